"""A load that changes with time: its rate in each window, its peak, and the same requests at a constant rate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from catalogs.arrays import FloatArray
from catalogs.errors import InputError
from catalogs.units import HOUR_S
from catalogs.workloads.arrivals import Poisson, VaryingRate
from catalogs.workloads.replay import Replay
from catalogs.workloads.request_set import RequestSet
from catalogs.workloads.synthetic import SyntheticWorkload
from catalogs.workloads.workload import Workload, load_workload
from planner.problem.slo import Slo

#: Most windows of a load curve: a day in quarters of an hour.
WINDOWS: Final = 96

#: Least mean number of requests in a window of a trace, so that its rate is not noise. A judgement: the rate is then
#: known to 10 % (one standard error).
_MIN_IN_A_WINDOW: Final = 100

#: Mean number of requests above a percentile that a window needs to be meaningful. A judgement: with fewer, it is one
#: of the largest samples.
_BEYOND: Final = 5.0

#: Requests of a run. With more requests, an equal part of a fleet is simulated under its part of the load. A judgement
#: of cost.
MOST_SIMULATED: Final = 40_000

#: Fewest windows that describe a change with time. A judgement.
_MIN_WINDOWS: Final = 4

#: Most requests of a load. A judgement of cost.
MOST_REQUESTS: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class LoadCurve:
    """The rate of a load in evenly spaced windows.

    Attributes:
        edges_s: Edges of the windows from zero, seconds. Shape (windows + 1,).
        rates: Mean requests per second in each window. Shape (windows,).
        n_requests: Requests in all windows.
        drawn: Whether the load is drawn from a workload that has a rate but is neither a trace nor a rate curve.
    """

    edges_s: FloatArray
    rates: FloatArray
    n_requests: int
    drawn: bool = False

    @classmethod
    def of(cls, workload: Workload, seed: int = 0, slos: Sequence[Slo] = ()) -> LoadCurve:
        """Return the load curve of one period of a rate curve, or of a whole trace.

        Of other workloads with a rate it is that of the requests that they state, or else of an hour, as far as one
        run holds it. The windows are as short as the number of requests and the objectives allow, whose percentiles
        are judged in the same windows.

        Raises:
            InputError: The workload has no rate, or has too few or too many requests.
        """
        own = workload.requests_per_s
        if workload.closed_loop or own is None:
            rule = f"--trace needs a workload with its own rate, and workload {workload.name} has none"
            raise InputError(rule, None, "arrivals: {diurnal: {requests_per_s: 8}}, or a trace with arrival times")
        arrivals = workload.content.arrivals if isinstance(workload.content, SyntheticWorkload) else None
        if isinstance(arrivals, VaryingRate):
            return cls._of_curve(arrivals, workload.name, slos)
        n = workload.n_requests
        if isinstance(workload.content, SyntheticWorkload) and not workload.content.sized:
            n = max(n, min(round(own * HOUR_S), MOST_SIMULATED))
        requests = workload.materialise(seed, n)
        return cls._of_requests(requests, workload.name, slos, isinstance(workload.content, SyntheticWorkload))

    @classmethod
    def _of_curve(cls, arrivals: VaryingRate, name: str, slos: Sequence[Slo]) -> LoadCurve:
        curve = arrivals.curve()
        n = _whole(curve.mean * curve.period_s, name)
        edges = np.linspace(0.0, curve.period_s, _n_windows(n, name, slos) + 1)
        return cls(edges, np.diff(np.interp(edges, curve.edges_s, curve.reached)) / np.diff(edges), n)

    @classmethod
    def _of_requests(cls, requests: RequestSet, name: str, slos: Sequence[Slo], drawn: bool) -> LoadCurve:
        n = _whole(requests.n, name)
        edges = np.linspace(0.0, float(requests.arrival_s.max()) * (1 + 1e-9), _n_windows(n, name, slos) + 1)
        counts, _ = np.histogram(requests.arrival_s, edges)
        return cls(edges, counts / np.diff(edges), n, drawn)

    @property
    def duration_s(self) -> float:
        """Return the length of the load, seconds."""
        return float(self.edges_s[-1])

    @property
    def n_windows(self) -> int:
        """Return the number of windows."""
        return len(self.rates)

    @property
    def window_s(self) -> float:
        """Return the length of a window, seconds."""
        return float(self.edges_s[1])

    @property
    def peak_per_s(self) -> float:
        """Return the mean requests per second of the busiest window."""
        return float(self.rates.max())

    @property
    def mean_per_s(self) -> float:
        """Return the mean requests per second of the whole load."""
        return self.n_requests / self.duration_s

    @property
    def trough_per_s(self) -> float:
        """Return the mean requests per second of the quietest window."""
        return float(self.rates.min())

    def growth_within(self, lead_s: float) -> float:
        """Return the largest factor by which the rate grows within `lead_s` seconds.

        Only windows with at least half of the mean rate are considered.
        """
        middle = (self.edges_s[1:] + self.edges_s[:-1]) / 2
        later = np.interp(middle + lead_s, middle, self.rates)
        busy = self.rates >= self.mean_per_s / 2
        return float(max(1.0, np.max(later[busy] / self.rates[busy])))


def _whole(requests: float, name: str) -> int:
    if requests > MOST_REQUESTS:
        rule = f"a load over time may have at most {MOST_REQUESTS:,} requests; {name} has"
        raise InputError(rule, f"{requests:,.0f}", hint="use a part of the trace or a shorter period_s")
    return max(int(requests), 1)


def _n_windows(n: int, name: str, slos: Sequence[Slo]) -> int:
    """Return the windows of a load of `n` requests; refuse a load with too few requests.

    Each has enough requests for its rate, and those of a simulated part enough for the percentiles of the objectives.
    """
    if n < (least := _MIN_WINDOWS * _MIN_IN_A_WINDOW):
        raise InputError(f"a load over time needs at least {least} requests; {name} has", n, f"requests: {least}")
    beyond = min((1.0 - slo.quantile for slo in slos if slo.quantile is not None), default=1.0)
    simulated = n // max(1, n // MOST_SIMULATED)
    return max(_MIN_WINDOWS, min(WINDOWS, n // _MIN_IN_A_WINDOW, round(simulated * beyond / _BEYOND)))


def steady(workload: Workload) -> Workload:
    """Return the workload with the same lengths and contents, but Poisson arrivals at a constant rate."""
    content = workload.content
    if isinstance(content, SyntheticWorkload):
        return replace(workload, content=replace(content, arrivals=Poisson()))
    assert isinstance(content, Replay)
    return replace(workload, content=replace(content, trace=replace(content.trace, arrival_s=None), rate_scale=1.0))


def peak_of(workload: str, slos: Sequence[Slo] = ()) -> float:
    """Return the mean requests per second of the busiest window of a workload with its own rate.

    The length of a window depends on the objectives.

    Raises:
        InputError: The workload has no rate.
    """
    return LoadCurve.of(load_workload(workload), slos=slos).peak_per_s
