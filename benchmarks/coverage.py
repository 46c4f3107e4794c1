"""Does the stated error cover the real one, and is "p sure" right p of the time: learned on one declared part of the
public measurements, checked on all the rest.

    python benchmarks/coverage.py VALIDATION_DIR [--fit] [--page docs/accuracy.md]

VALIDATION_DIR holds one folder per open-loop case and the folder steady_state; the scorer lies in ../tools beside it.
--fit learns the stated errors from the calibration set (a fifth of the closed-loop points, two fifths of the
steady-state points, by a hash of their names; no open-loop case) and writes the shipped file; --no-check stops there.
--page writes the tables between the marks of that page, reliability.svg beside it, and the curve that reports show
(catalogs/data/calibrations/reliability.json). One process, minutes, the same answer every time.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from error_budget import load
from measured_points import SOURCES, Compared, open_loop, tables, verified
from reliability import drawing, reliability, surprises

from calibration.accuracy.reliability import PATH
from calibration.accuracy.stated_error import (
    FILE_NAME,
    LEAST_CONFORMAL,
    METRICS,
    Group,
    StatedError,
    StatedErrorFile,
    fit_group,
    load_file,
)
from catalogs.io.output_files import write_atomically
from catalogs.io.yaml_files import DATA

BEGIN, END = "<!-- coverage: begin -->", "<!-- coverage: end -->"
PAGE: Final = Path(__file__).parent.parent / "docs/accuracy.md"
CALIBRATION_SET: Final = (
    "closed-loop points whose sha256(id) mod 5 is 0; steady-state points whose sha256(name) mod 5 is 0 or 1; "
    "for engines in neither, the means of docs/accuracy.md's own comparisons"
)
SURE: Final = (0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95)


# ---- learning


def fit(points: Sequence[Compared], page: Path) -> StatedErrorFile:
    """Groups by engine and metric, of public runs; else of the page's own comparisons."""
    groups = []
    for engine, metric in sorted({(p.engine, p.metric) for p in points}):
        mine = [p for p in points if (p.engine, p.metric) == (engine, metric)]
        groups.append(_group(mine))
    public = {g.engine for g in groups}
    for (engine, metric), log_ratios in sorted(verified(page).items()):
        if engine not in public:
            source = f"{engine} on one CPU, {len(log_ratios)} loads (docs/accuracy.md)"
            groups.append(fit_group(engine, metric, np.array(log_ratios), np.zeros(len(log_ratios)), source))
    return StatedErrorFile(calibration_set=CALIBRATION_SET, groups=tuple(groups))


def _group(points: Sequence[Compared]) -> Group:
    first = points[0]
    log_ratios, errors = (np.array([getattr(p, key) for p in points]) for key in ("log_ratio", "operator_error"))
    return fit_group(first.engine, first.metric, log_ratios, errors, f"{first.engine}, {SOURCES[first.part]}")


def write(found: StatedErrorFile, path: Path) -> None:
    """One group a line, so that a refit shows as a readable difference."""
    groups = ",\n".join(f"  {g.model_dump_json()}" for g in found.groups)
    head = found.model_dump_json(exclude={"groups"}).removesuffix("}")
    write_atomically(path, [f'{head},"groups":[\n{groups}\n]}}\n'])
    load_file.cache_clear()


# ---- checking


def covered(point: Compared, groups: dict[str, Group] | None = None) -> bool | None:
    """Whether the measured value lies in the stated interval; None where none is stated."""
    stated = StatedError.of(point.engine, point.operator_error)
    if groups is not None:
        stated = StatedError(point.engine, point.operator_error, groups)
    interval = stated.interval(point.metric)
    return None if interval is None else interval[0] <= point.measured / point.simulated - 1.0 <= interval[1]


def unseen(held: Sequence[Compared], learned: Sequence[Compared], key: str) -> str:
    """Coverage where all points that share a point's `key` ("model", "accelerator") are left out of the set."""
    told = []
    for value in sorted({getattr(p, key) for p in held}):
        others = [p for p in learned if getattr(p, key) != value]
        if len(others) >= LEAST_CONFORMAL:
            group = {held[0].metric: _group(others)}
            told += [bool(covered(p, group)) for p in held if getattr(p, key) == value]
    return f"{np.mean(told):.0%}" if told else "-"


def coverage_lines(held: Sequence[Compared], learned: Sequence[Compared]) -> list[str]:
    """By part, engine and metric."""
    lines = [
        "| held out | metric | checked | covered | true value below / above | stated (median) | model never seen | "
        "GPU never seen |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for (part, engine), mine in _grouped(held, lambda p: (p.part, p.engine)).items():
        for metric, same in _grouped(mine, lambda p: p.metric).items():
            of_engine = [p for p in learned if (p.engine, p.metric) == (engine, metric)]
            lines.append(f"| {part}, {engine} | {metric} {_line(same, of_engine)} |")
    return lines


def _line(held: Sequence[Compared], learned: Sequence[Compared]) -> str:
    intervals = [StatedError.of(p.engine, p.operator_error).interval(p.metric) or (-1.0, np.inf) for p in held]
    ratios = np.array([p.measured / p.simulated - 1.0 for p in held])
    low, high = np.array(intervals).T
    inside = np.mean((low <= ratios) & (ratios <= high))
    out = f"{np.mean(ratios < low):.0%} / {np.mean(ratios > high):.0%}"
    stated = f"{np.median(low):+.0%} to {np.median(high):+.0%}"
    never = [unseen(held, learned, key) for key in ("model", "accelerator")]
    return f"| {len(held)} | {inside:.0%} | {out} | {stated} | {never[0]} | {never[1]}"


def accelerator_lines(held: Sequence[Compared]) -> list[str]:
    """The same by accelerator, metrics as columns."""
    metrics = [m for m in METRICS if any(p.metric == m for p in held)]
    lines = ["| covered | " + " | ".join(metrics) + " |", "|---" * (len(metrics) + 1) + "|"]
    for (part, accelerator), mine in _grouped(held, lambda p: (p.part, p.accelerator)).items():
        by_metric = _grouped(mine, lambda p: p.metric)
        cells = [_share([bool(covered(p)) for p in by_metric.get(m, [])]) for m in metrics]
        lines.append(f"| {part}, {accelerator} | " + " | ".join(cells) + " |")
    return lines


def _share(told: Sequence[bool]) -> str:
    return f"{np.mean(told):.0%} of {len(told)}" if told else ""


def _grouped(points: Sequence[Compared], key: Callable[[Compared], Any]) -> dict[Any, list[Compared]]:
    found: dict[Any, list[Compared]] = {}
    for p in points:
        found.setdefault(key(p), []).append(p)
    return found


def expected_line(held: Iterable[Compared]) -> str:
    """The one number: `expected_error` against TPOT (ITL where only that is measured)."""
    told: dict[str, list[bool]] = {}
    for p in held:
        if p.metric == "tpot" and p.stat == "mean":
            limit = StatedError.of(p.engine, p.operator_error).expected_error
            told.setdefault(p.part, []).append(abs(p.simulated / p.measured - 1.0) <= limit)
    parts = [f"{part} {sum(ok)} of {len(ok)}" for part, ok in told.items()]
    return "`expected_error` alone (of step times, one number) covers mean TPOT in: " + ", ".join(parts) + "."


def said(held: Sequence[Compared], cases: Sequence[Path]) -> dict[str, list[float]]:
    """The probability given to at most the measured value, by kind of run."""
    found = {"open loop, planner's probability_met": [s for folder in cases for s in surprises(folder)]}
    levels = (np.arange(400) + 0.5) / 400
    for p in held:
        if p.part != "open loop" and p.metric in ("ttft", "tpot", "e2e", "itl"):
            factors = StatedError.of(p.engine, p.operator_error).factors(p.metric, levels)
            found.setdefault(f"{p.part}, {p.engine}", []).append(float(np.mean(factors <= p.measured / p.simulated)))
    return found


def reliability_lines(told: dict[str, list[float]]) -> list[str]:
    """Shares of measured values at or below the limit of which `plan` would say it is p sure."""
    head = [f"{name} ({len(values)})" for name, values in told.items()]
    lines = ["| said | " + " | ".join(head) + " |", "|---" * (len(head) + 1) + "|"]
    for sure in SURE:
        right = [f"{np.mean(np.array(values) <= sure):.0%}" for values in told.values()]
        lines.append(f"| {sure:.0%} | " + " | ".join(right) + " |")
    return lines


def section(held: Sequence[Compared], learned: Sequence[Compared], told: dict[str, list[float]], refused: int) -> str:
    """All tables; `refused` points are in none of them."""
    n = {part: len({p.case for p in learned if p.part == part}) for part in SOURCES}
    used = ", ".join(f"{count} {part} points" for part, count in n.items())
    return "\n".join(
        [
            f"Calibration set: {used}; all below is held out. Points no deployment could be built for: {refused}.",
            "",
            *coverage_lines(held, learned),
            "",
            *accelerator_lines(held),
            "",
            expected_line(held),
            "",
            "How often the measured value met a limit that it was said to meet with this probability:",
            "",
            *reliability_lines(told),
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", type=Path)
    parser.add_argument("--fit", action="store_true")
    parser.add_argument("--no-check", action="store_true")
    parser.add_argument("--page", type=Path)
    parser.add_argument("--score", type=Path, help="the scorer, where it does not lie in ../tools")
    a = parser.parse_args()
    score = load(a.score or a.cases.parent / "tools/score.py")
    refused: list[str] = []
    learned = list(tables(score, a.cases, lambda chosen: chosen, refused))
    if a.fit:
        write(fit(learned, PAGE), DATA / "calibrations" / FILE_NAME)
        print(f"learned from {len(learned)} statistics", file=sys.stderr)
    if a.no_check:
        return
    folders = sorted(p.parent for p in a.cases.glob("*/case.json"))
    held = [p for folder in folders for p in open_loop(folder)]
    held += tables(score, a.cases, lambda chosen: not chosen, refused)
    told = said(held, folders)
    text = section(held, learned, told, len(refused))
    print(text)
    if a.page:
        head, rest = a.page.read_text().split(BEGIN)
        a.page.write_text(f"{head}{BEGIN}\n{text}\n{END}{rest.split(END)[1]}")
        found = reliability(told, "benchmarks/coverage.py VALIDATION_DIR --page docs/accuracy.md")
        a.page.with_name("reliability.svg").write_text(drawing(found))
        PATH.write_text(found.model_dump_json(indent=1) + "\n")


if __name__ == "__main__":
    main()
