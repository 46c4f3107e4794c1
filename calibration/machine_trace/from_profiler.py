"""Turns the trace of a profiler into signals of the machine: alone, or added to signals sampled at the time.

Kernels, copies and operators become counters that rise while they run, so that the shown rate is the mean number at
work, and their bytes are spread over their time. A sampled metric becomes its mean around each sample.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from calibration.importers.profilers.trace import COPY, KERNEL, ProfilerTrace, SampledMetric, parents
from calibration.machine_trace.sampler import PERIOD_S, MachineTrace, Phase
from catalogs.arrays import FloatArray
from catalogs.errors import InputError

#: Fewest intervals of a trace that has no samples of the machine.
_LEAST_INTERVALS: Final = 200

#: Shortest interval of such a trace.
_SHORTEST_S: Final = 1e-4

#: Most ranges of the program that become phases, the longest.
_MOST_PHASES: Final = 100


def machine_trace_of(trace: ProfilerTrace) -> MachineTrace:
    """Return the signals of a profiler's trace alone.

    Raises:
        InputError: The trace states no times.
    """
    _check_times(trace)
    period_s = max(min(PERIOD_S, trace.duration_s / _LEAST_INTERVALS), _SHORTEST_S)
    at_s = np.linspace(0.0, trace.duration_s, max(2, math.ceil(trace.duration_s / period_s) + 1))
    reason = f"this is a trace of {trace.profiler}, which does not sample the machine"
    return MachineTrace(
        at_s, values_at(trace, at_s), {"machine": reason}, _phases(trace, 0.0), began_unix_s=trace.began_unix_s
    )


def with_profiler(machine: MachineTrace, trace: ProfilerTrace, shift_s: float | None = None) -> MachineTrace:
    """Return a trace of the machine with the signals of a profiler that ran at the same time.

    Args:
        machine: The trace of the machine.
        trace: The trace of the profiler.
        shift_s: Start of the profiler's trace in seconds since that of the machine; None takes both from the clock.

    Raises:
        InputError: The profiler's trace states no times, does not overlap the other, or its start is not known.
    """
    _check_times(trace)
    if shift_s is None:
        if machine.began_unix_s is None or trace.began_unix_s is None:
            which = "trace of the machine" if machine.began_unix_s is None else f"trace of {trace.profiler}"
            rule = f"the {which} does not state when it began"
            raise InputError(rule, trace.source, hint="give its start in the trace of the machine: --at 12.5s")
        shift_s = trace.began_unix_s - machine.began_unix_s
    end_s = float(machine.at_s[-1]) if len(machine.at_s) else 0.0
    if shift_s >= end_s or shift_s + trace.duration_s <= 0.0:
        rule = f"the trace of {trace.profiler} lies outside that of the machine, which has {end_s:.1f} s"
        raise InputError(rule, f"starts at {shift_s:.1f} s", hint="give its start with --at")
    found = values_at(trace, machine.at_s - shift_s)
    taken = sorted(found.keys() & machine.values.keys())
    if taken:
        raise InputError("the trace has signals of a profiler already", taken[0])
    phases = (*machine.phases, *_phases(trace, shift_s))
    return replace(machine, values=machine.values | found, phases=phases)


def _check_times(trace: ProfilerTrace) -> None:
    if not trace.has_times:
        raise InputError(f"{trace.profiler} states no times, so that it gives no signals", trace.source)


def values_at(trace: ProfilerTrace, at_s: FloatArray) -> dict[str, FloatArray]:
    """Return the values of the signals by name at times since the start of the trace, shape (n,) as each of them."""
    found: dict[str, FloatArray] = {}
    for device in sorted({each.device for each in trace.work}):
        work = [each for each in trace.work if each.device == device]
        kernels = [each for each in work if each.kind == KERNEL]
        spans = _spans([(each.start_s, each.end_s) for each in kernels])
        found[f"gpu.{device}.kernels"] = busy_until(spans, np.ones(len(spans)), at_s)
        found[f"gpu.{device}.launches"] = np.searchsorted(np.sort(spans[:, 0]), at_s, side="right").astype(np.float64)
        for direction in sorted({each.direction for each in work if each.kind == COPY and each.direction}):
            copies = [each for each in work if each.direction == direction]
            spans = _spans([(each.start_s, each.end_s) for each in copies])
            rates = np.array([each.copied_bytes for each in copies]) / np.diff(spans, axis=1)[:, 0]
            found[f"gpu.{device}.copied.{direction}"] = busy_until(spans, rates, at_s)
    outer = [call for call, parent in zip(trace.calls, parents(trace.calls), strict=True) if parent is None]
    if outer:
        spans = _spans([(call.start_s, call.end_s) for call in outer])
        found["operators.running"] = busy_until(spans, np.ones(len(spans)), at_s)
    for metric in trace.metrics:
        name = re.sub(r"[^a-z0-9]+", "_", metric.name.lower()).strip("_")
        found[f"gpu.{metric.device}.sampled.{name}"] = _means_around(metric, at_s)
    return found


def _spans(pairs: Sequence[tuple[float, float]]) -> FloatArray:
    """Return starts and ends, shape (n, 2); each lasts at least a nanosecond."""
    spans = np.array(pairs, dtype=np.float64).reshape(-1, 2)
    spans[:, 1] = np.maximum(spans[:, 1], spans[:, 0] + 1e-9)
    return spans


def busy_until(spans: FloatArray, rates: FloatArray, at_s: FloatArray) -> FloatArray:
    """Return the sum over spans of rate times the part of the span before each time.

    Args:
        spans: Start and end of each span, seconds. Shape (n, 2).
        rates: Rate of each span. Shape (n,).
        at_s: The times. Shape (m,), as the result.
    """
    total = np.zeros(len(at_s))
    for column, sign in ((0, 1.0), (1, -1.0)):
        order = np.argsort(spans[:, column], kind="stable")
        edges, weights = spans[order, column], rates[order]
        before = np.searchsorted(edges, at_s, side="right")
        sums = np.concatenate([[0.0], np.cumsum(weights)])
        moments = np.concatenate([[0.0], np.cumsum(weights * edges)])
        total += sign * (sums[before] * at_s - moments[before])
    return np.maximum.accumulate(np.maximum(total, 0.0)) if len(at_s) else total


def _means_around(metric: SampledMetric, at_s: FloatArray) -> FloatArray:
    """Return the mean of the samples that are nearest to each time, shape (n,).

    A time without such samples has the value of its neighbour, and NaN where that is further than two sampling periods.
    """
    middles = (at_s[1:] + at_s[:-1]) / 2
    span_s = float(np.median(np.diff(at_s))) if len(at_s) > 1 else np.inf
    inside = (metric.at_s >= at_s[0] - span_s / 2) & (metric.at_s <= at_s[-1] + span_s / 2)
    places = np.searchsorted(middles, metric.at_s[inside])
    counts = np.bincount(places, minlength=len(at_s))
    sums = np.bincount(places, weights=metric.values[inside], minlength=len(at_s))
    period_s = float(np.median(np.diff(metric.at_s))) if len(metric.at_s) > 1 else 0.0
    right = np.clip(np.searchsorted(metric.at_s, at_s), 1, max(len(metric.at_s) - 1, 1))
    left = right - 1
    right = np.minimum(right, len(metric.at_s) - 1)
    nearest = np.where(at_s - metric.at_s[left] <= metric.at_s[right] - at_s, left, right)
    is_near = np.abs(metric.at_s[nearest] - at_s) <= 2 * period_s
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(counts > 0, sums / counts, np.where(is_near, metric.values[nearest], np.nan))


def _phases(trace: ProfilerTrace, shift_s: float) -> tuple[Phase, ...]:
    longest = sorted(trace.ranges, key=lambda each: each.start_s - each.end_s)[:_MOST_PHASES]
    return tuple(
        Phase(each.name[:80], each.start_s + shift_s, each.end_s + shift_s)
        for each in sorted(longest, key=lambda each: each.start_s)
    )
