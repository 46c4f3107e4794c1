"""Checks the stated error on public measured runs, each of which is predicted from runs of other models.

It shows how often the stated intervals contain the measured values, and how often measured values meet a limit that
they were said to meet with a probability.

    python benchmarks/stated_error.py VALIDATION_DIR [--fit] [--page docs/accuracy.md]

VALIDATION_DIR holds one folder per open-loop case and the folders steady_state and static_batch; the scorer is in
../tools beside it. --fit learns the stated errors from every closed-loop and steady-state point with published settings
(no open-loop case), and those of the engines of 2024 from static batches, and writes the shipped file; --no-check stops
there. The tables predict each point from a fit without all points of its model (or of its GPU, or of its tenth of the
table); the open-loop cases are predicted with the shipped file. --page writes the tables between the marks of that
page, reliability.svg beside it, and the curve that reports show (catalogs/data/calibrations/reliability.json). It takes
minutes in one process, and its result is the same every time.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from error_budget import load
from measured_points import SOURCES, Compared, open_loop, tables, verified
from page_section import write_section
from reliability import drawing, reliability, surprises

from calibration.accuracy.regime import UNKNOWN, Regime
from calibration.accuracy.reliability import PATH
from calibration.accuracy.spread_fit import LEAST_CONFORMAL, RunSet, fit_group, widening
from calibration.accuracy.spread_fit import fit as fit_groups
from calibration.accuracy.stated_error import (
    FILE_NAME,
    METRICS,
    WAITING_METRICS,
    Group,
    StatedError,
    StatedErrorFile,
    load_file,
)
from catalogs.arrays import FloatArray
from catalogs.io.output_files import write_atomically
from catalogs.io.yaml_files import DATA
from catalogs.ui.words import percent

SECTION = "coverage"
PAGE: Final = Path(__file__).parent.parent / "docs/accuracy.md"
CALIBRATION_SET: Final = (
    "all closed-loop and steady-state points with published settings; for vllm-v0 and trtllm-tensorrt, static batches; "
    "for engines in none of them, the means of docs/accuracy.md's own comparisons"
)

#: Levels at which stated errors are compared with measured ones.
SURE: Final = (0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95)
CENTRAL: Final = (0.5, 0.8, 0.9)  # levels of two-sided intervals
LIKE: Final = ("Llama", ("h100", "h200"))  # models and GPUs that open and closed loops have in common

#: Gain as a share of the loss that justifies a spread with one parameter more.
LEAST_GAIN: Final = 0.01

#: Weights of the operators' error in the spread that are tried in place of 1.
WEIGHTS: Final = (0.25, 0.5, 1.5)

Stated = tuple[Compared, StatedError]  # a point and the error stated for it
Key = tuple[str, str]  # engine and metric


@dataclass(frozen=True)
class Form:
    """What the spread of a group of runs depends on."""

    by_waiting: bool = False
    operator_weight: float = 1.0


# ---- learning


def fit(points: Sequence[Compared], page: Path) -> StatedErrorFile:
    """Return the errors by engine and metric, learned from public runs, or else from the comparisons of the page."""
    groups = _groups(points, best_forms(points))
    public = {g.engine for g in groups}
    for (engine, metric), log_ratios in sorted(verified(page).items()):
        if engine not in public:
            source = f"{engine} on one CPU, {len(log_ratios)} loads (docs/accuracy.md)"
            groups.append(fit_group(engine, metric, np.array(log_ratios), np.zeros(len(log_ratios)), source))
    return StatedErrorFile(calibration_set=CALIBRATION_SET, groups=tuple(groups))


def _groups(points: Sequence[Compared], forms: Mapping[Key, Form]) -> list[Group]:
    """Return the errors of all engines and metrics, widened by one factor so that they hold for other models."""
    sets = [_runs(mine, forms[key]) for key, mine in sorted(_grouped(points, _key).items())]
    return fit_groups(sets, widening(sets))


def _key(p: Compared) -> Key:
    return p.engine, p.metric


def best_forms(points: Sequence[Compared]) -> dict[Key, Form]:
    return {key: best_form(mine) for key, mine in _grouped(points, _key).items()}


def best_form(points: Sequence[Compared]) -> Form:
    """Return the form of the spread of one engine and metric.

    The spread depends on waiting only if that predicts the points of left-out models clearly better. The weight of the
    operators' error differs from 1 only if that predicts the points of left-out models and kinds of GPU clearly better.
    """
    form, waiting = Form(), Form(by_waiting=True)
    if points[0].metric in WAITING_METRICS:
        without, with_it = (left_out_loss(points, f, ("model",)) for f in (form, waiting))
        form = waiting if with_it < (1 - LEAST_GAIN) * without else form
    loss = left_out_loss(points, form)
    losses = {weight: left_out_loss(points, replace(form, operator_weight=weight)) for weight in WEIGHTS}
    weight = min(losses, key=lambda w: losses[w])
    return replace(form, operator_weight=weight) if losses[weight] < (1 - LEAST_GAIN) * loss else form


def left_out_loss(points: Sequence[Compared], form: Form, keys: Sequence[str] = ("model", "accelerator")) -> float:
    """Return the mean of the losses with each model left out and with each kind of GPU left out.

    It is infinite where too few points are left. All runs have one spread here, without factors of regimes.
    """
    by_key = [list(_one_spread(points, key, form)) for key in keys]
    found = [quantile_loss(stated) for stated in by_key if stated]
    return float(np.mean(found)) if found else float("inf")


def _one_spread(points: Sequence[Compared], key: str, form: Form) -> Iterator[Stated]:
    for mine, others in _splits(points, key):
        if len(others) >= LEAST_CONFORMAL:
            groups = {mine[0].metric: fit_groups([replace(_runs(others, form), regimes=())])[0]}
            yield from ((p, StatedError(p.engine, p.operator_error, groups, p.waiting_share)) for p in mine)


def quantile_loss(stated: Iterable[Stated]) -> float:
    """Return the mean pinball loss of log(measured / simulated) over the levels SURE.

    The better the error is stated, the smaller is the loss (Gneiting and Raftery 2007).
    """
    levels = np.array(SURE)
    beyond = np.array([p.log_ratio - np.log(error.factors(p.metric, levels)) for p, error in stated])
    return float(np.mean(np.maximum(levels * beyond, (levels - 1) * beyond)))


def _runs(points: Sequence[Compared], form: Form) -> RunSet:
    first = points[0]
    columns = ("log_ratio", "operator_error", "waiting_share")
    log_ratios, errors, shares = (np.array([getattr(p, key) for p in points]) for key in columns)
    return RunSet(
        engine=first.engine,
        metric=first.metric,
        source=f"{first.engine}, {SOURCES[first.part]}",
        log_ratios=log_ratios,
        operator_errors=errors,
        waiting_shares=shares if form.by_waiting else None,
        operator_weight=form.operator_weight,
        regimes=tuple(p.regime for p in points),
        models=tuple(p.model for p in points),
    )


def write(found: StatedErrorFile, path: Path) -> None:
    """Write one group per line, so that the difference of two fits is readable."""
    groups = ",\n".join(f"  {g.model_dump_json()}" for g in found.groups)
    head = found.model_dump_json(exclude={"groups"}).removesuffix("}")
    write_atomically(path, [f'{head},"groups":[\n{groups}\n]}}\n'])
    load_file.cache_clear()


# ---- checking


def left_out(points: Sequence[Compared], key: str, forms: Mapping[Key, Form] | None = None) -> Iterator[Stated]:
    """Yield each point with the error that is learned without all points that share its `key`.

    `forms` are the forms of the spreads; None stands for the best ones.
    """
    forms = forms or best_forms(points)
    for mine, others in _splits(points, key):
        counts = Counter(map(_key, others))
        enough = [p for p in others if counts[_key(p)] >= LEAST_CONFORMAL]
        groups = {(g.engine, g.metric): g for g in _groups(enough, forms)}
        for p in mine:
            if _key(p) in groups:
                yield p, StatedError(p.engine, p.operator_error, {p.metric: groups[_key(p)]}, p.waiting_share, p.regime)


def _splits(points: Sequence[Compared], key: str) -> Iterator[tuple[list[Compared], list[Compared]]]:
    for value, mine in _grouped(points, lambda p: getattr(p, key)).items():
        yield mine, [p for p in points if getattr(p, key) != value]


def as_shipped(points: Iterable[Compared]) -> Iterator[Stated]:
    """Yield each point with the error of the shipped file, which must not be learned from these points."""
    for p in points:
        yield p, StatedError.of(p.engine, p.operator_error, p.regime, p.waiting_share)


def ends(stated: Sequence[Stated], level: float) -> FloatArray:
    """Return measured over simulated, and the ends of the stated two-sided interval. Shape (3, n)."""
    levels = np.array([(1 - level) / 2, (1 + level) / 2])
    rows = [(p.measured / p.simulated, *error.factors(p.metric, levels).tolist()) for p, error in stated]
    return np.array(rows).reshape(-1, 3).T


def covered(stated: Sequence[Stated], level: float = 0.9) -> str:
    if not stated:
        return "-"
    ratios, low, high = ends(stated, level)
    return percent(np.mean((low <= ratios) & (ratios <= high)))


def right(stated: Sequence[Stated], sure: float = 0.9) -> str:
    """Return how often the measured value met a limit that it was said to meet with this probability."""
    ratios, _, high = ends(stated, 2 * sure - 1)
    return percent(np.mean(ratios <= high))


def coverage_lines(by_key: Mapping[str, Sequence[Stated]], held: Sequence[Compared]) -> list[str]:
    """Return the table of coverage by kind of load, engine and metric; open-loop cases have the shipped error."""
    lines = [
        "| runs | metric | checked | covered: model left out | GPU left out | tenth left out | "
        "true value below / above | stated (median) |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for (part, engine, metric), mine in _grouped(held, lambda p: (p.part, p.engine, p.metric)).items():
        found = list(as_shipped(mine))
        lines.append(f"| {part}, {engine} | {metric} | {len(mine)} | {covered(found)} | | | {_outside(found)} |")
    parts = {key: _grouped(stated, lambda s: (s[0].part, *_key(s[0]))) for key, stated in by_key.items()}
    for (part, engine, metric), found in sorted(parts["model"].items()):
        gpu, tenth = (parts[key].get((part, engine, metric), []) for key in ("accelerator", "fold"))
        cells = f"{len(found)} | {covered(found)} | {covered(gpu)} | {covered(tenth)} | {_outside(found)}"
        lines.append(f"| {part}, {engine} | {metric} | {cells} |")
    return lines


def _outside(stated: Sequence[Stated]) -> str:
    ratios, low, high = ends(stated, 0.9)
    return (
        f"{percent(np.mean(ratios < low))} / {percent(np.mean(ratios > high))} "
        f"| {percent(np.median(low) - 1, signed=True)} to " + (percent(np.median(high) - 1, signed=True))
    )


def waiting_lines(learned: Sequence[Compared]) -> list[str]:
    """Return the table of coverage of the time to first token in each third of the waiting share, models left out.

    Its last columns are those with one spread for all loads.
    """
    lines = [
        "| TTFT of | waiting share | runs | within 50 % | 80 % | 90 % | said 90 %, right | factor at 90 % | "
        "one spread for all: 50 % | 80 % | 90 % | said 90 %, right | factor at 90 % |",
        "|---" * 13 + "|",
    ]
    firsts = [p for p in learned if p.metric in WAITING_METRICS]
    best = best_forms(firsts)
    forms = ({key: replace(form, by_waiting=waits) for key, form in best.items()} for waits in (True, False))
    by_form = [_grouped(left_out(firsts, "model", each), lambda s: (s[0].part, s[0].engine)) for each in forms]
    for (part, engine), by_load in sorted(by_form[0].items()):
        for_all = by_form[1][part, engine]
        edges = np.quantile([p.waiting_share for p, _ in by_load], [0, 1 / 3, 2 / 3, 1])
        for i in range(3):
            low, high = float(edges[i]), float(edges[i + 1])
            cells = [*_third(by_load, low, high, i == 2), *_third(for_all, low, high, i == 2)]
            n = len(_between(by_load, low, high, i == 2))
            lines.append(f"| {part}, {engine} | {percent(low)} to {percent(high)} | {n} | " + " | ".join(cells) + " |")
    return lines


def _between(stated: Sequence[Stated], low: float, high: float, last: bool) -> list[Stated]:
    return [s for s in stated if low <= s[0].waiting_share < high or (last and s[0].waiting_share == high)]


def _third(stated: Sequence[Stated], low: float, high: float, last: bool) -> list[str]:
    mine = _between(stated, low, high, last)
    factor = float(np.median(ends(mine, 0.8)[2]))
    return [*(covered(mine, level) for level in CENTRAL), right(mine), f"{factor:.2f}"]


def alike_lines(learned: Sequence[Compared], held: Sequence[Compared]) -> list[str]:
    """Return measured over simulated mean TTFT in open and in closed loops of similar models on the same GPUs."""
    name, gpus = LIKE
    lines = [f"| vllm, {name} models on {' and '.join(gpus)} | runs | 10 % | 50 % | 90 % |", "|---|---|---|---|---|"]
    for part, points in (("open loop", held), ("closed loop", learned)):
        mine = [p for p in points if (p.part, p.metric, p.stat, p.engine) == (part, "ttft", "mean", "vllm")]
        ratios = [p.measured / p.simulated for p in mine if name.lower() in p.model.lower() and p.accelerator in gpus]
        cells = " | ".join(f"{q:.2f}" for q in np.quantile(ratios, [0.1, 0.5, 0.9]))
        lines.append(f"| TTFT measured / simulated, {part} | {len(ratios)} | {cells} |")
    return lines


def factor_lines(learned: Sequence[Compared], forms: Mapping[Key, Form]) -> list[str]:
    """Return the table that shows what the factors of regimes are worth, without them, with either and with both.

    Its columns are the quantile loss, the coverage by engine and metric, and the median width of the interval: with
    models left out, then with kinds of GPU left out.
    """
    known: dict[str, Callable[[Regime], Regime]] = {
        "neither": lambda _: UNKNOWN,
        "of the generation": lambda regime: replace(regime, layers=""),
        "of the layers": lambda regime: replace(regime, generation=""),
        "of both": lambda regime: regime,
    }
    columns = "loss | mean coverage | least and most | median high / low"
    head = " | ".join(f"{key} left out: {columns}" for key in ("model", "GPU"))
    lines = [f"| factors | {head} |", "|---" * 9 + "|"]
    for name, part in known.items():
        points = [replace(p, regime=part(p.regime)) for p in learned]
        cells = [_worth(list(left_out(points, key, forms))) for key in ("model", "accelerator")]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return lines


def _worth(stated: Sequence[Stated]) -> str:
    ratios, low, high = ends(stated, 0.9)
    inside = _grouped(zip(stated, (low <= ratios) & (ratios <= high), strict=True), lambda pair: _key(pair[0][0]))
    shares = [float(np.mean([ok for _, ok in pairs])) for pairs in inside.values()]
    edges = f"{percent(min(shares))} to {percent(max(shares))}"
    return f"{quantile_loss(stated):.4f} | {percent(np.mean(shares))} | {edges} | {np.median(high / low):.2f}"


def regime_lines(stated: Sequence[Stated]) -> list[str]:
    """Return the table of coverage by accelerator and kind of layers, with one column for each metric; models left out.

    Each cell has the coverage, the number of points and the median interval.
    """
    metrics = [m for m in METRICS if any(p.metric == m for p, _ in stated)]
    lines = ["| covered, of points, median interval | " + " | ".join(metrics) + " |", "|---" * (len(metrics) + 1) + "|"]
    for about, mine in sorted(_grouped(stated, lambda s: (s[0].part, s[0].accelerator, s[0].regime.layers)).items()):
        by_metric = _grouped(mine, lambda s: s[0].metric)
        cells = [_cell(by_metric[m]) if m in by_metric else "" for m in metrics]
        lines.append(f"| {', '.join(about)} | " + " | ".join(cells) + " |")
    return lines


def _cell(stated: Sequence[Stated]) -> str:
    _, low, high = ends(stated, 0.9)
    edges = " to ".join(percent(np.median(end) - 1, signed=True) for end in (low, high))
    return f"{covered(stated)} of {len(stated)}, {edges}"


def _grouped(points: Iterable[Any], key: Callable[[Any], Any]) -> dict[Any, list[Any]]:
    found: dict[Any, list[Any]] = {}
    for p in points:
        found.setdefault(key(p), []).append(p)
    return found


def expected_line(stated: Iterable[Stated]) -> str:
    """Return the line about `expected_error`, which is compared with mean TPOT."""
    inside: dict[str, list[bool]] = {}
    for p, error in stated:
        if p.metric == "tpot" and p.stat == "mean":
            inside.setdefault(p.part, []).append(abs(p.simulated / p.measured - 1.0) <= error.expected_error)
    parts = [f"{part} {sum(ok)} of {len(ok)}" for part, ok in inside.items()]
    return "`expected_error` alone (of step times, one number) covers mean TPOT in: " + ", ".join(parts) + "."


def said(stated: Sequence[Stated], cases: Sequence[Path]) -> dict[str, list[float]]:
    """Return the probability that the simulation gives to at most the measured value, by kind of run."""
    found = {"open loop, planner's probability_met": [s for folder in cases for s in surprises(folder)]}
    levels = (np.arange(400) + 0.5) / 400
    for p, error in stated:
        if p.metric in ("ttft", "tpot", "e2e", "itl"):
            factors = error.factors(p.metric, levels)
            found.setdefault(f"{p.part}, {p.engine}", []).append(float(np.mean(factors <= p.measured / p.simulated)))
    return found


def reliability_lines(surprising: dict[str, list[float]]) -> list[str]:
    """Return the shares of measured values that met a limit which they were said to meet with each probability."""
    head = [f"{name} ({len(values)})" for name, values in surprising.items()]
    lines = ["| said | " + " | ".join(head) + " |", "|---" * (len(head) + 1) + "|"]
    for sure in SURE:
        met = [percent(np.mean(np.array(values) <= sure)) for values in surprising.values()]
        lines.append(f"| {percent(sure)} | " + " | ".join(met) + " |")
    return lines


def section(
    learned: Sequence[Compared],
    held: Sequence[Compared],
    by_key: Mapping[str, Sequence[Stated]],
    surprising: dict[str, list[float]],
    refused: int,
) -> str:
    """Return all tables; `refused` points are in none of them."""
    n = {part: Counter(p.metric for p in learned if p.part == part).most_common(1)[0][1] for part in SOURCES}
    used = ", ".join(f"{count} {part} points" for part, count in n.items())
    return "\n".join(
        [
            f"Learned from: {used}. Points no deployment could be built for: {refused}.",
            "",
            *coverage_lines(by_key, held),
            "",
            "By accelerator and kind of layers, models left out:",
            "",
            *regime_lines([*as_shipped(held), *by_key["model"]]),
            "",
            "Factors of regimes that were tried:",
            "",
            *factor_lines(learned, best_forms(learned)),
            "",
            expected_line([*as_shipped(held), *by_key["model"]]),
            "",
            "The time to first token by the share of it that is waiting, models left out:",
            "",
            *waiting_lines(learned),
            "",
            "Open and closed loops of similar models on the same GPUs:",
            "",
            *alike_lines(learned, held),
            "",
            "How often the measured value met a limit that it was said to meet with this probability:",
            "",
            *reliability_lines(surprising),
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
    learned = list(tables(score, a.cases, refused))
    if a.fit:
        write(fit(learned, PAGE), DATA / "calibrations" / FILE_NAME)
        print(f"learned from {len(learned)} statistics", file=sys.stderr)
    if a.no_check:
        return
    folders = sorted(p.parent for p in a.cases.glob("*/case.json"))
    held = [p for folder in folders for p in open_loop(folder)]
    forms = best_forms(learned)
    by_key = {key: list(left_out(learned, key, forms)) for key in ("model", "accelerator", "fold")}
    surprising = said(by_key["model"], folders)
    text = section(learned, held, by_key, surprising, len(refused))
    print(text)
    if a.page:
        write_section(a.page, SECTION, text)
        found = reliability(surprising, "benchmarks/stated_error.py VALIDATION_DIR --page docs/accuracy.md")
        a.page.with_name("reliability.svg").write_text(drawing(found))
        PATH.write_text(found.model_dump_json(indent=1) + "\n")


if __name__ == "__main__":
    main()
