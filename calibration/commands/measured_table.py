"""Measured runs on the screen and in JSON."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from calibration.accuracy.measured_run import MeasuredRun


def lines(run: MeasuredRun) -> Iterator[str]:
    """A head, a row per metric in milliseconds, and what was dropped."""
    from calibration.accuracy.measured_run import METRICS, STATS

    rates = f"{run.requests_per_s:.3g} requests/s, {run.output_tokens_per_s:,.4g} output tokens/s"
    yield f"{run.source} ({run.client}): {run.n:,} requests, {run.n_failed:,} failed, {run.duration_s:,.1f} s, {rates}"
    yield "  milliseconds" + "".join(f"{stat:>11}" for stat in STATS)
    for metric in METRICS:
        yield f"  {metric:12}" + "".join(f"{_milliseconds(run.stat(metric, stat)):>11}" for stat in STATS)
    for note in run.notes:
        yield f"  {note}"


def document(run: MeasuredRun) -> dict[str, Any]:
    """Everything on the screen, in seconds; null where there is no value."""
    from calibration.accuracy.measured_run import METRICS, STATS

    return {
        "client": run.client,
        "source": run.source,
        "n": run.n,
        "n_failed": run.n_failed,
        "duration_s": run.duration_s,
        "requests_per_s": run.requests_per_s,
        "output_tokens_per_s": run.output_tokens_per_s,
        **{f"{m}_s": {s: _or_null(run.stat(m, s)) for s in STATS} for m in METRICS},
        "notes": list(run.notes),
    }


def _milliseconds(seconds: float) -> str:
    return "-" if math.isnan(seconds) else f"{seconds * 1e3:,.2f}"


def _or_null(value: float) -> float | None:
    return None if math.isnan(value) else value
