"""Disturbances in the signals of a trace, and what the signals did while the slowest requests were served.

A signal is disturbed where it leaves its usual range: further than FAR robust standard deviations from its median (from
median absolute deviations; Rousseeuw and Croux, JASA 88, 1993), and by more than the least change that matters for it.
The usual range is that of the whole trace, of which disturbances may fill less than half.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from calibration.machine_trace.readings import quantity
from calibration.machine_trace.sampler import MachineTrace
from catalogs.arrays import BoolArray, FloatArray

#: Robust standard deviations that a disturbed value lies from the median. A judgement: normal noise gets there in one
#: sample of a million.
FAR: Final = 5.0

#: Disturbed values with at most this number of usual ones between them are one disturbance.
_GAP: Final = 2

#: Least number of samples of a disturbance.
_SHORTEST: Final = 2

#: Least spread of a signal that shows no disturbance, as a share of its usual value. A judgement: smaller changes slow
#: nothing down visibly.
_LEAST_SHARE: Final = 0.2

#: Standard deviation of a normal distribution over its median absolute deviation.
_TO_SIGMA: Final = 1.4826


@dataclass(frozen=True, slots=True)
class Cause:
    """A signal that shows a disturbance from outside.

    Attributes:
        words: What disturbs.
        least: The least change from the median that matters, in the unit of the signal.
        falls: Whether a low value is the disturbance, not a high one.
        relative: Whether `least` is a share of the median.
    """

    words: str
    least: float
    falls: bool = False
    relative: bool = False


#: Patterns of the signals that show disturbances. Each disturbance of the tests of docs/machine-traces.md has one.
CAUSES: Final[Mapping[str, Cause]] = {
    r"others\.cpu": Cause("other processes use cores", 0.3),
    r"engine\.run_queue": Cause("threads of the engine wait for a core", 0.3),
    r"cpu\.steal": Cause("the hypervisor gives cores to other machines", 0.1),
    r"psi\.memory": Cause("tasks wait for memory", 0.02),
    r"memory\.available": Cause("memory is used up", 0.15, falls=True, relative=True),
    r"faults\.major": Cause("pages are read from a disk", 20.0),
    r"swap\.(in|out)": Cause("memory is swapped", 1e6),
    r"reclaim\.direct": Cause("processes wait for memory to be reclaimed", 1e6),
    r"psi\.io": Cause("tasks wait for a disk", 0.05),
    r"disk\..*\.busy": Cause("a disk is busy", 0.2),
    r"disk\..*\.(read|written)": Cause("a disk is read or written", 20e6),
    r"cpu\.iowait": Cause("cores wait for a disk", 0.2),
    r"net\..*\.(received|sent)": Cause("a network interface is busy", 20e6),
    r"numa\.misses": Cause("pages come from another NUMA node", 1000.0),
    r"clock\.(mean|least)": Cause("clocks are lower", 0.1, falls=True, relative=True),
    r"gpu\.\d+\.clock": Cause("the clock of a GPU is lower", 0.1, falls=True, relative=True),
}


def cause_of(signal: str) -> Cause | None:
    """Return what a disturbance of a signal means; None if the signal shows none."""
    return next((cause for pattern, cause in CAUSES.items() if re.fullmatch(pattern, signal)), None)


@dataclass(frozen=True, slots=True)
class Disturbance:
    """A time in which a signal left its usual range.

    Attributes:
        signal: Name of the signal.
        start_s: Start, seconds since the start of the trace.
        end_s: End.
        usual: The median of the signal over the whole trace, in its unit.
        extreme: The value furthest from it.
        size: Distance of the mean of the disturbed values from the median, in robust standard deviations.
    """

    signal: str
    start_s: float
    end_s: float
    usual: float
    extreme: float
    size: float

    def block(self) -> dict[str, Any]:
        """Return the disturbance as a block of JSON."""
        cause = cause_of(self.signal)
        return {
            "signal": self.signal,
            "unit": quantity(self.signal).unit,
            "start_s": self.start_s,
            "end_s": self.end_s,
            "usual": self.usual,
            "extreme": self.extreme,
            "size": self.size,
            "means": "" if cause is None else cause.words,
        }


def disturbances(trace: MachineTrace) -> list[Disturbance]:
    """Return the disturbances of a trace, the largest first."""
    found = [d for name, values in trace.signals().items() for d in _of_signal(name, values, trace.at_s)]
    return sorted(found, key=lambda d: -d.size)


def _of_signal(name: str, values: FloatArray, at_s: FloatArray) -> Iterator[Disturbance]:
    """Yield the disturbances of a signal of shape (n - 1,) between samples at `at_s`, shape (n,)."""
    cause = cause_of(name)
    if cause is None:
        return
    centre = float(np.nanmedian(values))
    deviations = (centre - values) if cause.falls else (values - centre)
    least = cause.least * abs(centre) if cause.relative else cause.least
    spread = _spread(values)
    with np.errstate(invalid="ignore"):
        far = deviations > max(FAR * spread, least)
    for first, last in _stretches(far):
        part = deviations[first : last + 1][far[first : last + 1]]
        worst = first + int(np.nanargmax(deviations[first : last + 1]))
        size = float(np.mean(part)) / max(spread, least / FAR)
        yield Disturbance(name, float(at_s[first]), float(at_s[last + 1]), centre, float(values[worst]), size)


def _spread(values: FloatArray) -> float:
    """Return the robust standard deviation of a signal, shape (n,), which long disturbances hardly widen.

    It is the smaller of two estimates: from the distances to the median, and from the differences of successive values,
    which a shift of level enters only once (von Neumann et al., Annals of Mathematical Statistics 12, 1941).
    """
    good = values[np.isfinite(values)]
    around = float(np.median(np.abs(good - np.median(good))))
    between = float(np.median(np.abs(np.diff(good)))) / math.sqrt(2.0) if len(good) > 1 else around
    return _TO_SIGMA * min(around, between)


def _stretches(far: BoolArray) -> Iterator[tuple[int, int]]:
    """Yield (first, last) of each stretch of disturbed values, shape (n,); short gaps do not end one."""
    rows = np.flatnonzero(far)
    if not len(rows):
        return
    breaks = np.flatnonzero(np.diff(rows) > _GAP + 1)
    starts, ends = np.r_[0, breaks + 1], np.r_[breaks, len(rows) - 1]
    for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
        if end - start + 1 >= _SHORTEST:
            yield int(rows[start]), int(rows[end])


@dataclass(frozen=True, slots=True)
class SlowTimeSignal:
    """A signal while the slowest requests were served, and in the rest of the run.

    Attributes:
        signal: Name of the signal.
        slow: Mean while a slow request was served, in the unit of the signal.
        rest: Mean in the rest of the run.
        effect: Their difference over the robust standard deviation of the signal.
    """

    signal: str
    slow: float
    rest: float
    effect: float


def while_slow(
    trace: MachineTrace, requests: Sequence[Mapping[str, float]], quantile: float = 0.99
) -> tuple[list[SlowTimeSignal], float | None]:
    """Return the signals in the order of how much they differed while the slowest requests were served.

    Args:
        trace: The trace.
        requests: `start_s`, `end_s` (since the start of the trace) and `latency_s` of each request.
        quantile: Requests from this quantile of the latency on are the slow ones.

    Returns:
        The signals, and the latency from which a request counts as slow; None without requests.
    """
    if not requests or len(trace.at_s) < 2:
        return [], None
    latency_s = np.array([request["latency_s"] for request in requests])
    limit_s = float(np.quantile(latency_s, quantile))
    starts, ends = trace.at_s[:-1], trace.at_s[1:]

    def covered(chosen: BoolArray) -> FloatArray:
        """Return the seconds of each interval in which one of the chosen requests was served. Shape (n - 1,)."""
        total = np.zeros(len(starts))
        for request, use in zip(requests, chosen.tolist(), strict=True):
            if use:
                part = np.minimum(ends, request["end_s"]) - np.maximum(starts, request["start_s"])
                total = np.maximum(total, np.clip(part, 0.0, None))
        return total

    slow_s, any_s = covered(latency_s >= limit_s), covered(np.ones(len(latency_s), dtype=np.bool_))
    rest_s = np.clip(any_s - slow_s, 0.0, None)
    found = [signal for name, values in trace.signals().items() if (signal := _compared(name, values, slow_s, rest_s))]
    return sorted(found, key=lambda signal: -abs(signal.effect)), limit_s


def until_first_token(requests: Sequence[Mapping[str, float]]) -> list[dict[str, float]]:
    """Return the time of each request until its first token as a request, of those that state it."""
    return [
        {"start_s": r["start_s"], "end_s": r["first_token_s"], "latency_s": r["first_token_s"] - r["start_s"]}
        for r in requests
        if np.isfinite(r.get("first_token_s", np.nan))
    ]


def _compared(name: str, values: FloatArray, slow_s: FloatArray, rest_s: FloatArray) -> SlowTimeSignal | None:
    """Return a signal in slow times and in the rest, all arrays of shape (n - 1,); None if it has no value in one."""
    good = np.isfinite(values)
    weights = slow_s * good, rest_s * good
    if not weights[0].sum() > 0 or not weights[1].sum() > 0:
        return None
    filled = np.where(good, values, 0.0)
    slow, rest = (float(filled @ weight / weight.sum()) for weight in weights)
    spread = max(_spread(values), _least_spread(name, rest))
    return SlowTimeSignal(name, slow, rest, (slow - rest) / spread)


def _least_spread(name: str, usual: float) -> float:
    """Return the smallest spread that is used for a signal, so that noise in a steady signal is no disturbance."""
    cause = cause_of(name)
    if cause is None:
        return max(_LEAST_SHARE * abs(usual), 1e-12)
    return max(cause.least * (abs(usual) if cause.relative else 1.0) / FAR, 1e-12)
