"""InferenceX points of SGLang and TensorRT-LLM with the flags of their launch scripts, beside the points as published.

    python benchmarks/launch_flags.py SCORE.py [sglang|trtllm]

SCORE.py is the scorer that lies beside the public measurements. The table of points names few engine settings, and the
scorer passes only those. This benchmark states those of the launch scripts too (`launch_facts.py`), and prints the
errors with and without them, also by halves of the points (by hash of the name).

Points of cold servers and of runs with drafts (`launch_facts.why_left_out`) are groups of their own.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import io
import statistics
from argparse import Namespace
from pathlib import Path
from types import ModuleType
from typing import Any

from error_budget import load
from launch_facts import Row, flags, why_left_out
from measured_points import INFERRED, fold_of, simulated, written

from catalogs.errors import InputError
from simulator.analysis.metrics import summarise


def points(score: ModuleType, engine: str) -> list[tuple[Row, dict[str, Any], dict[str, Any]]]:
    """Return (row, deployment, workload) of each point of an engine whose settings were not inferred from figures."""
    rows: list[Row] = []
    found: list[tuple[Any, ...]] = []

    def sample(path: Path, *_: object) -> list[Row]:
        with path.open() as file:
            known = [row for row in csv.DictReader(file) if row["backend"] == engine and not row["same_run_as"]]
        rows.extend(row for row in known if row["settings_from"] != INFERRED)
        return rows

    def point(_arguments: object, *about: Any) -> list[float]:
        found.append(about)
        return [0.0 for _ in about[-1]]

    score.__dict__.update(sample=sample, point=point, summarise=lambda *_: None)
    only = Namespace(data=score.HERE.parent / "validation", only="", closed_loop=1, seed=0, limit=[])
    with contextlib.redirect_stdout(io.StringIO()):
        score.closed_loop(only)
    return [(row, deployment, work) for row, (_, deployment, work, _) in zip(rows, found, strict=True)]


def errors(row: Row, deployment: dict[str, Any], workload: dict[str, Any]) -> tuple[float, float] | None:
    """Return the signed errors of the mean TTFT and TPOT in percent; None if the deployment cannot run."""
    try:
        with written(deployment, workload) as files:
            metrics = summarise(simulated(*files))["metrics"]
    except InputError:
        return None
    found = (float(metrics[f"{name}_s"]["mean"]) * 1e3 / float(row[f"{name}_mean_ms"]) for name in ("ttft", "tpot"))
    ttft, tpot = found
    return 100 * (ttft - 1), 100 * (tpot - 1)


def line(name: str, table: list[tuple[tuple[float, float], tuple[float, float]]]) -> str:
    """Return a line with the median absolute errors of the points as published and as launched."""
    parts = [f"{name:34} n={len(table):4}"]
    for i, metric in enumerate(("TTFT", "TPOT")):
        was, now = (statistics.median(abs(pair[j][i]) for pair in table) for j in (0, 1))
        signed = statistics.median(pair[1][i] for pair in table)
        parts.append(f"{metric} {was:5.1f} -> {now:5.1f} % (signed {signed:+5.1f})")
    return "   ".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("score", type=Path)
    parser.add_argument("engine", choices=("sglang", "trtllm"))
    arguments = parser.parse_args()
    groups: dict[str, list[tuple[tuple[float, float], tuple[float, float]]]] = {}
    for row, deployment, workload in points(load(arguments.score), arguments.engine):
        pair = (errors(row, deployment, workload), errors(row, deployment | flags(row), workload))
        if pair[0] is None or pair[1] is None:
            print(f"cannot run: {row['id']}")
            continue
        why = why_left_out(row)
        names = ["all", why or "warm, no drafts"]
        if not why:
            names.append(f"  half {fold_of('half of ' + row['id']) % 2}")
            names.append(f"  {row['system'][:4]} {row['model'].rpartition('/')[2]} {row['precision']}")
        for name in names:
            groups.setdefault(name, []).append((pair[0], pair[1]))
    for name in sorted(groups):
        print(line(name, groups[name]))


if __name__ == "__main__":
    main()
