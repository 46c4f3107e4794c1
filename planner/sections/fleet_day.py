"""A run of a fleet under a load that changes with time, evaluated window by window."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from math import ceil
from typing import Final, Literal

import numpy as np

from calibration.accuracy.stated_error import ALL_WAITING, WAITING_METRICS, waiting_share
from catalogs.arrays import FloatArray
from catalogs.deployments.autoscaling import Autoscaling
from catalogs.workloads.request_set import RequestSet
from planner.evaluation.steady_state import RequestWindow, finish_s
from planner.evaluation.verdict import ErrorAllowance
from planner.problem.slo import Slo
from simulator.cluster.run import Run

#: Share of the windows that must meet the objectives, in addition to the whole run.
LEAST_WINDOWS_MET: Final = 0.95

#: Number of parts of the duration for which the number of replicas is reported: hours, if it is a day.
PARTS: Final = 24

Name = Literal["peak", "mean", "autoscaled"]


@dataclass(frozen=True, slots=True)
class FleetSize:
    """The size of a fleet: a fixed number of replicas, or the initial number if `scaling` is given."""

    name: Name
    replicas: int
    scaling: Autoscaling | None = None

    @property
    def most(self) -> int:
        """Return the maximum number of replicas."""
        return self.replicas if self.scaling is None else self.scaling.max_replicas

    @property
    def as_simulated(self) -> FleetSize:
        """Return the size without its autoscaler if that cannot change it: a fixed fleet is simulated much faster."""
        fixed = self.scaling is not None and self.scaling.min_replicas == self.scaling.max_replicas == self.replicas
        return replace(self, scaling=None) if fixed else self

    def part(self, share: int) -> FleetSize:
        """Return one of `share` equal parts of the fleet."""
        if self.scaling is None:
            return replace(self, replicas=self.replicas // share)
        ends = {key: max(1, ceil(getattr(self.scaling, key) / share)) for key in ("min_replicas", "max_replicas")}
        return FleetSize(self.name, max(1, ceil(self.replicas / share)), self.scaling.model_copy(update=ends))

    def faster(self, factor: float) -> FleetSize:
        """Return the size with the times of its autoscaler divided by `factor`."""
        if self.scaling is None:
            return self
        times = ("interval_s", "scale_up_stabilization_s", "scale_down_stabilization_s")
        shorter = {key: getattr(self.scaling, key) / factor for key in times}
        return replace(self, scaling=self.scaling.model_copy(update=shorter))


#: Simulates requests on a fleet of a size, with the cold start times divided by the last argument.
Serve = Callable[[FleetSize, RequestSet, float], Run]


@dataclass(frozen=True, slots=True)
class FleetDay:
    """The result of one run.

    Attributes:
        size: Size of the fleet.
        values_s: Value of each objective over all requests, seconds.
        waiting: Share of each of these values that is waiting for the first step.
        windows_s: Value of each objective over the requests that arrive in a window, seconds; NaN for a window without
            requests. Shape (windows,).
        windows_waiting: Share of each of these values that is waiting for the first step. Shape (windows,).
        replicas: Mean number of replicas in each part of the duration. Shape (PARTS,).
        accelerator_s: Accelerator-seconds of the whole fleet.
        joules: Energy of the whole fleet.
        duration_s: Duration of the run.
    """

    size: FleetSize
    values_s: dict[str, float]
    waiting: dict[str, float]
    windows_s: dict[str, FloatArray]
    windows_waiting: dict[str, FloatArray]
    replicas: FloatArray
    accelerator_s: float
    joules: float
    duration_s: float

    def allowing(self, slos: tuple[Slo, ...], allowance: ErrorAllowance) -> FleetDay:
        """Return the result with the allowance for the error of each statistic; its steps must be as slow as allowed.

        A run with slower steps has all its times longer, and the error of each statistic replaces that factor.
        """

        def factor(slo: Slo, share: float) -> float:
            return allowance.latency(slo, share) / allowance.speed

        values_s = {slo.name: self.values_s[slo.name] * factor(slo, self.waiting[slo.name]) for slo in slos}
        windows_s = {
            slo.name: self.windows_s[slo.name]
            * np.array([factor(slo, share) for share in self.windows_waiting[slo.name].tolist()])
            for slo in slos
        }
        return replace(self, values_s=values_s, windows_s=windows_s)

    def windows_met(self, slos: tuple[Slo, ...]) -> float:
        """Return the share of windows that meet all objectives."""
        met = np.all([~(self.windows_s[slo.name] > slo.limit_s) for slo in slos], axis=0)
        return float(np.mean(met))

    def holds(self, slos: tuple[Slo, ...]) -> bool:
        """Return True if the whole run and a share LEAST_WINDOWS_MET of its windows meet all objectives.

        An objective on a metric that no request has is met, as in every verdict: its value is NaN.
        """
        return not any(self.values_s[s.name] > s.limit_s for s in slos) and self.windows_met(slos) >= LEAST_WINDOWS_MET


@dataclass(frozen=True, slots=True)
class DailyRun:
    """Simulates a load of `duration_s` in `n_windows` windows on fleets whose replicas have `each` accelerators."""

    slos: tuple[Slo, ...]
    requests: RequestSet
    duration_s: float
    n_windows: int
    each: int
    serve: Serve

    def day(self, size: FleetSize, share: int = 1, speed: float = 1.0) -> FleetDay:
        """Return the result of a fleet from the simulation of one of `share` equal parts.

        Every step takes `speed` times as long. To that end the clock is rescaled: arrivals, decisions of the autoscaler
        and cold starts come earlier by this factor.
        """
        part = self.requests.every(share)
        run = self.serve(size.part(share).faster(speed), replace(part, arrival_s=part.arrival_s / speed), speed)
        duration_s = max(self.duration_s, run.span_s[1] * speed)
        paid_s = _paid_s(run, np.array([0.0, duration_s]), speed)[0]
        return FleetDay(
            size,
            {slo.name: slo.value_s(_samples(run, slo, 0.0, np.inf)) * speed for slo in self.slos},
            {slo.name: _waiting(run, slo, 0.0, np.inf) for slo in self.slos},
            {slo.name: self._by_window(run, slo, speed, _value_s) * speed for slo in self.slos},
            {slo.name: self._by_window(run, slo, speed, _waiting) for slo in self.slos},
            _paid_s(run, np.linspace(0.0, self.duration_s, PARTS + 1), speed) * share / (self.duration_s / PARTS),
            float(paid_s) * share * self.each,
            _joules(run) * speed * share,
            duration_s,
        )

    def _by_window(self, run: Run, slo: Slo, speed: float, figure: Callable[..., float]) -> FloatArray:
        """Return a figure of an objective in each window. Shape (windows,)."""
        edges = np.linspace(0.0, self.duration_s, self.n_windows + 1) / speed
        edges[-1] = np.inf
        return np.array([figure(run, slo, a, b) for a, b in pairwise(edges.tolist())])


def _value_s(run: Run, slo: Slo, begin_s: float, end_s: float) -> float:
    """Return the value of an objective over the requests that arrive in an interval, seconds."""
    return slo.value_s(_samples(run, slo, begin_s, end_s))


def _waiting(run: Run, slo: Slo, begin_s: float, end_s: float) -> float:
    """Return the share of that value that is waiting for the first step; ALL_WAITING if it does not matter."""
    if slo.latency.stated_error not in WAITING_METRICS:
        return ALL_WAITING
    inside = (run.arrival_s >= begin_s) & (run.arrival_s < end_s)
    queue_s = slo.latency.of_same_requests(RequestWindow(run, inside), run.queue_s)
    return waiting_share(_samples(run, slo, begin_s, end_s), queue_s, slo.value_s)


def _samples(run: Run, slo: Slo, begin_s: float, end_s: float) -> FloatArray:
    """Return the samples of the requests that arrive in an interval, seconds; infinite for unserved requests.

    Shape (samples,).
    """
    inside = (run.arrival_s >= begin_s) & (run.arrival_s < end_s)
    return slo.latency.samples(RequestWindow(run, inside, (begin_s, end_s), ~np.isfinite(finish_s(run))))


def _joules(run: Run) -> float:
    """Return the energy of accelerators and hosts; NaN for runs without hardware."""
    if not run.compiled_pools:
        return float("nan")
    from simulator.analysis.energy import pool_uses, power_and_energy

    return float(power_and_energy(pool_uses(run), 1.0)["energy"]["total_j_per_output_token"])


def _paid_s(run: Run, edges_s: FloatArray, speed: float) -> FloatArray:
    """Return the paid replica-seconds between neighbouring edges, from the order of a replica to its end.

    `edges_s` has shape (n,), the result has shape (n - 1,).
    """
    grown = np.zeros(len(edges_s))
    starting = [(ordered_s, ended_s) for _, ordered_s, ended_s in run.orders.tolist()]
    for begin_s, end_s in [*starting, *((r.created_s, r.removed_s) for r in run.replicas)]:
        begin, end = begin_s * speed, end_s * speed
        grown += np.clip(edges_s, begin, max(begin, end)) - begin
    return np.diff(grown)
