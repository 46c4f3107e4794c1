"""A load as it changes with time: its rate window by window, its peak, and the same requests at a steady rate."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from catalogs.arrays import FloatArray
from catalogs.errors import InputError
from catalogs.workloads.arrivals import Poisson, VaryingRate
from catalogs.workloads.replay import Replay
from catalogs.workloads.request_set import RequestSet
from catalogs.workloads.synthetic import SyntheticWorkload
from catalogs.workloads.workload import Workload, load_workload

#: Windows a load is looked at through, at most: a day in quarters of an hour.
WINDOWS: Final = 96

#: Requests in a window of a trace, on average, so that its rate is more than chance.
_LEAST_IN_A_WINDOW: Final = 100

#: Fewer windows say nothing about time.
_FEWEST_WINDOWS: Final = 4

#: Requests of a load at most.
MOST_REQUESTS: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class LoadCurve:
    """edges_s (windows + 1,) from zero, evenly spaced; rates (windows,) requests per second on average."""

    edges_s: FloatArray
    rates: FloatArray
    n_requests: int

    @classmethod
    def of(cls, workload: Workload, seed: int = 0) -> LoadCurve:
        """One period of arrivals along a curve, or all of a trace. Raises InputError for a load that has no rate of its
        own, or is too short or too long to be looked at."""
        own = workload.requests_per_s
        if workload.closed_loop or own is None:
            rule = f"a load over time has a rate of its own, and workload {workload.name} has none"
            raise InputError(rule, None, "arrivals: {diurnal: {requests_per_s: 8}}, or a trace with arrival times")
        arrivals = workload.content.arrivals if isinstance(workload.content, SyntheticWorkload) else None
        if isinstance(arrivals, VaryingRate):
            return cls._of_curve(arrivals, workload.name)
        return cls._of_requests(workload.materialise(seed), workload.name)

    @classmethod
    def _of_curve(cls, arrivals: VaryingRate, name: str) -> LoadCurve:
        curve = arrivals.curve()
        n = _whole(curve.mean * curve.period_s, name)
        windows = min(WINDOWS, n // _LEAST_IN_A_WINDOW)
        edges = np.linspace(0.0, curve.period_s, _enough(windows, n, name) + 1)
        reached = np.interp(edges, curve.edges_s, curve.reached)
        return cls(edges, np.diff(reached) / np.diff(edges), n)

    @classmethod
    def _of_requests(cls, requests: RequestSet, name: str) -> LoadCurve:
        n = _whole(requests.n, name)
        last_s = float(requests.arrival_s.max())
        edges = np.linspace(0.0, last_s * (1 + 1e-9), _enough(min(WINDOWS, n // _LEAST_IN_A_WINDOW), n, name) + 1)
        counts, _ = np.histogram(requests.arrival_s, edges)
        return cls(edges, counts / np.diff(edges), n)

    @property
    def duration_s(self) -> float:
        return float(self.edges_s[-1])

    @property
    def window_s(self) -> float:
        return float(self.edges_s[1])

    @property
    def peak_per_s(self) -> float:
        """Of the busiest window."""
        return float(self.rates.max())

    @property
    def mean_per_s(self) -> float:
        return self.n_requests / self.duration_s

    @property
    def trough_per_s(self) -> float:
        """Of the quietest window."""
        return float(self.rates.min())

    def growth_within(self, lead_s: float) -> float:
        """By which factor the rate grows at most within so many seconds (windows at least half as busy as the mean)."""
        middle = (self.edges_s[1:] + self.edges_s[:-1]) / 2
        later = np.interp(middle + lead_s, middle, self.rates)
        busy = self.rates >= self.mean_per_s / 2
        return float(max(1.0, np.max(later[busy] / self.rates[busy])))


def _whole(requests: float, name: str) -> int:
    if requests > MOST_REQUESTS:
        rule = f"a load over time is simulated request by request, at most {MOST_REQUESTS:,}; {name} has"
        raise InputError(rule, f"{requests:,.0f}", "a part of the trace, or a shorter period_s")
    return max(int(requests), 1)


def _enough(windows: int, n: int, name: str) -> int:
    if windows < _FEWEST_WINDOWS:
        least = _FEWEST_WINDOWS * _LEAST_IN_A_WINDOW
        raise InputError(f"a load over time has at least {least} requests; {name} has", n, f"requests: {least}")
    return windows


def steady(workload: Workload) -> Workload:
    """The same lengths and contents, arriving at random at one rate: what a search for a given rate looks at."""
    content = workload.content
    if isinstance(content, SyntheticWorkload):
        return replace(workload, content=replace(content, arrivals=Poisson()))
    assert isinstance(content, Replay)
    return replace(workload, content=replace(content, trace=replace(content.trace, arrival_s=None), rate_scale=1.0))


def peak_of(workload: str) -> float:
    """Return the requests per second of the busiest window of a workload that has a rate of its own.

    Raises InputError for one that has none.
    """
    return LoadCurve.of(load_workload(workload)).peak_per_s
