"""Timing of a call as the median of repeats.

The call is repeated until the confidence interval of the median is narrow. All samples are kept.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np

from calibration.profile.machine.device import ProfiledDevice

NARROW: Final = 0.02  # target half-width of the median's 95 % interval, relative to the median

FEWEST: Final = 5  # samples taken at least, where the time limit allows them

MOST_SAMPLES: Final = 300  # samples taken at most

SAMPLE_S: Final = 100e-6  # shorter calls are timed several at a time

REPLAY_S: Final = 1e-3  # device time between two events, which resolve half a microsecond

MOST_IN_GRAPH: Final = 1000  # calls in one CUDA graph at most

OUTLIER_MADS: Final = 5.0  # distance of an outlier from the median, in scaled median absolute deviations

WARM_SHARE: Final = 0.2  # share of the time limit that the warm-up may take


Call = Callable[[], object]  # executes an operator once, or `Work.per_call` times


@dataclass(frozen=True, slots=True)
class Work:
    """Calls that do the same work on different inputs; they are rotated so that no input stays in a cache."""

    calls: Sequence[Call]
    kernel: str
    per_call: int = 1  # executions of the operator in one call
    graph: bool = True  # whether a CUDA graph can capture the calls


@dataclass(frozen=True, slots=True)
class Timing:
    """The time of one execution of a shape, in seconds.

    `ci_fraction` is the half-width of the 95 % interval of the median over the median. `samples_s` holds all samples;
    `outliers` and `preempted` are positions in it.
    """

    seconds: float
    ci_fraction: float
    samples_s: tuple[float, ...]
    outliers: tuple[int, ...] = ()
    preempted: tuple[int, ...] = ()
    mode: str = "wall"
    replay: Call | None = field(default=None, compare=False)  # repeats the work, which takes replay_s
    replay_s: float = 0.0


def measure(work: Work, device: ProfiledDevice, limit_s: float) -> Timing:
    """Time `work`, by events around a CUDA graph replay on a GPU and by the wall clock on a CPU.

    Args:
        work: The calls to time.
        device: The device on which they run.
        limit_s: Seconds that the repeats may take.
    """
    return _on_cuda(work, device, limit_s) if device.is_cuda else on_cpu(work, limit_s, device.threads == 1)


def on_cpu(work: Work, limit_s: float, alone: bool = False) -> Timing:
    """Time `work` on a CPU by the wall clock.

    Samples during which the scheduler preempted a thread are left out of the median where enough others remain;
    otherwise the shortest sample is the result.

    Args:
        work: The calls to time.
        limit_s: Seconds that the repeats may take.
        alone: Whether one thread does all the work. Its processor time then replaces wall time in preempted samples.
    """
    start = time.perf_counter()
    once = _warm(work, start + WARM_SHARE * limit_s)
    inner = max(1, int(np.ceil(SAMPLE_S / max(once, 1e-9))))
    samples: list[float] = []
    preempted: list[int] = []
    turn = 0
    while _goes_on(samples, [] if alone else preempted, time.perf_counter() - start, limit_s):
        switches = resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw
        t0, own0 = time.perf_counter(), time.thread_time()
        for _ in range(inner):
            work.calls[turn % len(work.calls)]()
            turn += 1
        took, own = time.perf_counter() - t0, time.thread_time() - own0
        cut = resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw > switches
        samples.append((min(took, own) if cut and alone else took) / (inner * work.per_call))
        if cut:
            preempted.append(len(samples) - 1)
    found = summary(samples, [] if alone else preempted, "wall, processor time where preempted" if alone else "wall")
    return replace(found, preempted=tuple(preempted), replay=work.calls[0], replay_s=once)


def _warm(work: Work, until: float) -> float:
    """Run every input once, or until the time is up, and return the seconds of the last call."""
    last = 0.0
    for i in range(max(3, len(work.calls))):
        t0 = time.perf_counter()
        work.calls[i % len(work.calls)]()
        last = time.perf_counter() - t0
        if i >= 1 and time.perf_counter() > until:
            break
    return last


def _goes_on(samples: list[float], preempted: list[int], spent_s: float, limit_s: float) -> bool:
    if len(samples) < (FEWEST if spent_s < limit_s else 2):
        return True
    if spent_s >= limit_s or len(samples) >= MOST_SAMPLES:
        return False
    clean = _clean(samples, preempted)
    return len(clean) < FEWEST or median_ci(clean)[1] > NARROW


def _clean(samples: Sequence[float], preempted: Sequence[int]) -> list[float]:
    left_out = set(preempted)
    return [s for i, s in enumerate(samples) if i not in left_out]


def summary(samples: Sequence[float], preempted: Sequence[int], mode: str) -> Timing:
    """Summarise samples by the median of those that were not preempted.

    Outliers are samples more than OUTLIER_MADS scaled median absolute deviations away from the median.

    Args:
        samples: Seconds of one execution, per sample.
        preempted: Positions of the preempted samples.
        mode: How the samples were timed.
    """
    clean = _clean(samples, preempted)
    middle, width = median_ci(clean) if len(clean) >= FEWEST or not preempted else (min(samples), median_ci(samples)[1])
    mad = float(np.median(np.abs(np.asarray(samples) - middle)))
    far = OUTLIER_MADS * 1.4826 * max(mad, 1e-3 * middle)
    outliers = tuple(i for i, s in enumerate(samples) if abs(s - middle) > far)
    return Timing(middle, width, tuple(samples), outliers, tuple(preempted), mode)


def median_ci(samples: Sequence[float]) -> tuple[float, float]:
    """Return the median and the half-width of its 95 % interval relative to it.

    The interval comes from order statistics. With fewer than six samples it is their whole range.
    """
    x = np.sort(np.asarray(samples, dtype=np.float64))
    n, middle = len(x), float(np.median(x))
    if n < 6:
        return middle, float((x[-1] - x[0]) / (2 * middle)) if n > 1 else 1.0
    ranks = 1.96 * np.sqrt(n) / 2
    low, high = max(int(np.floor(n / 2 - ranks)), 0), min(int(np.ceil(n / 2 + ranks)), n - 1)
    return middle, float((x[high] - x[low]) / (2 * middle))


def _on_cuda(work: Work, device: ProfiledDevice, limit_s: float) -> Timing:
    torch = device.torch
    start = time.perf_counter()
    _warm_cuda(work, torch)
    once = event_s(_loop(work, len(work.calls)), torch) / len(work.calls)
    rounds = int(np.ceil(min(REPLAY_S / max(once, 1e-7), MOST_IN_GRAPH) / len(work.calls)))
    inner = rounds * len(work.calls)  # every input is used equally often
    run, mode = _loop(work, inner), "events, eager launches"
    if work.graph and (replay := _captured(run, torch)) is not None:
        run, mode = replay, "events, graph replay"
    run()
    device.synchronize()
    samples: list[float] = []
    while _goes_on(samples, [], time.perf_counter() - start, limit_s):
        samples.append(event_s(run, torch) / (inner * work.per_call))
    found = summary(samples, [], mode)
    return replace(found, replay=run, replay_s=found.seconds * inner * work.per_call)


def _warm_cuda(work: Work, torch: Any) -> None:
    """Warm up on a side stream, as capture requires; libraries choose kernels and allocate workspaces here."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        _loop(work, max(3, len(work.calls)))()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()


def _loop(work: Work, inner: int) -> Call:
    def run() -> None:
        for i in range(inner):
            work.calls[i % len(work.calls)]()

    return run


def _captured(run: Call, torch: Any) -> Call | None:
    """Capture a run in a CUDA graph; return None where an operator synchronises and cannot be captured."""
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            run()
    except RuntimeError:
        torch.cuda.synchronize()
        return None
    replay: Call = graph.replay
    return replay


def event_s(run: Call, torch: Any) -> float:
    """Return the seconds between CUDA events before and after a run."""
    first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    first.record()
    run()
    last.record()
    last.synchronize()
    return float(first.elapsed_time(last)) * 1e-3
