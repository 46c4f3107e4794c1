"""Statistics of the requests of an artefact, as a text in the order of an MLPerf Inference summary."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np

from catalogs.arrays import FloatArray
from catalogs.statistics import statistics

METRICS: Final = ("ttft", "tpot", "e2e")

#: Percentiles of MLPerf's summary (loadgen's mlperf_log_summary.txt).
PERCENTILES: Final = (50.0, 90.0, 95.0, 97.0, 99.0, 99.9)

_NAMES: Final = {"ttft": "TTFT", "tpot": "TPOT", "e2e": "E2E"}


def groups(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    """Return the rows by run, under the name `SOURCE TRIAL`, in the order of their first rows."""
    found: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        found.setdefault(f"{row['source']} {row['trial']}".strip(), []).append(row)
    return found


def column(rows: Sequence[Mapping[str, Any]], name: str) -> FloatArray:
    """Return the values of a column of completed requests that have one, shape (any,)."""
    values = [row[name] for row in rows if row["status"] == "completed" and row[name] is not None]
    return np.asarray(values, dtype=np.float64)


def statistics_of(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the statistics of one run by name; times in seconds."""
    found: dict[str, float] = {"requests": len(rows), "completed": sum(row["status"] == "completed" for row in rows)}
    duration_s = _duration_s(rows)
    if duration_s:
        found["duration_s"] = duration_s
        found["completed_per_s"] = found["completed"] / duration_s
        found["output_tokens_per_s"] = float(column(rows, "output_tokens").sum()) / duration_s
    for metric in METRICS:
        values = column(rows, f"{metric}_s")
        if len(values):
            found |= {f"{metric}_min_s": float(values.min()), f"{metric}_max_s": float(values.max())}
            stats = statistics(values, {f"p{percentile:g}": percentile for percentile in PERCENTILES})
            found |= {f"{metric}_{name}_s": value for name, value in stats.items() if value is not None}
    return found


def _duration_s(rows: Sequence[Mapping[str, Any]]) -> float | None:
    """Return the seconds from the first arrival to the last token; None without times."""
    ends = [r["arrival_s"] + r["e2e_s"] for r in rows if r["arrival_s"] is not None and r["e2e_s"] is not None]
    return max(ends) - min(r["arrival_s"] for r in rows if r["arrival_s"] is not None) if ends else None


def summary_text(rows: Sequence[Mapping[str, Any]], command: Sequence[str]) -> str:
    """Return the summary of all runs of a table of requests."""
    blocks = (summary_lines(name, statistics_of(group), " ".join(command)) for name, group in groups(rows).items())
    return "\n".join(line for block in blocks for line in block) + "\n"


def summary_lines(name: str, found: Mapping[str, float], command: str) -> Iterator[str]:
    """Yield the summary of one run.

    Args:
        name: Name of the run.
        found: Its statistics under the names of `statistics_of`; those that are missing have no line.
        command: The command of the run.
    """
    rule = "=" * 48
    yield from (rule, "Results Summary", rule)
    yield f"Command : {command}"
    yield f"Run : {name}"
    yield f"Result is : {'VALID' if found['completed'] == found['requests'] else 'INVALID'}"
    if found["completed"] < found["requests"]:
        yield f"  * Not completed: {found['requests'] - found['completed']:.0f} of {found['requests']:.0f} requests"
    for key, words in (
        ("completed_per_s", "Completed requests per second"),
        ("output_tokens_per_s", "Completed tokens per second"),
    ):
        if key in found:
            yield f"{words} : {found[key]:.6g}"
    yield from ("", rule, "Latencies (ns)", rule)
    for metric in METRICS:
        for key in ("min", "max", "mean"):
            if f"{metric}_{key}_s" in found:
                yield f"{_NAMES[metric]} {key} : {found[f'{metric}_{key}_s'] * 1e9:.0f}"
        for percentile in PERCENTILES:
            if f"{metric}_p{percentile:g}_s" in found:
                yield f"{_NAMES[metric]} {percentile:.2f} percentile : {found[f'{metric}_p{percentile:g}_s'] * 1e9:.0f}"
    yield ""
