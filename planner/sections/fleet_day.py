"""A fleet under a load that changes with time: one run of it, read window by window."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from math import ceil
from typing import Final, Literal

import numpy as np

from catalogs.arrays import FloatArray
from catalogs.deployments.autoscaling import Autoscaling
from catalogs.workloads.request_set import RequestSet
from planner.evaluation.steady_state import RequestWindow, finish_s
from planner.problem.slo import Slo
from simulator.cluster.run import Run

#: Share of the windows in which an objective must hold beside the whole.
MOST_WINDOWS: Final = 0.95

#: Parts of the time that the number of replicas is told for: hours, where it is a day.
PARTS: Final = 24

#: Requests beyond a percentile in a window, on average, so that the window says something.
_BEYOND: Final = 5.0

_FEWEST_WINDOWS: Final = 4

Name = Literal["peak", "mean", "autoscaled"]


@dataclass(frozen=True, slots=True)
class FleetSize:
    """How many replicas there are. scaling None: as many all the time; else they begin with `replicas`."""

    name: Name
    replicas: int
    scaling: Autoscaling | None = None

    @property
    def most(self) -> int:
        """That there ever are."""
        return self.replicas if self.scaling is None else self.scaling.max_replicas

    def part(self, share: int) -> FleetSize:
        """One of `share` even parts of the fleet."""
        if self.scaling is None:
            return replace(self, replicas=self.replicas // share)
        ends = {key: max(1, ceil(getattr(self.scaling, key) / share)) for key in ("min_replicas", "max_replicas")}
        return FleetSize(self.name, max(1, ceil(self.replicas / share)), self.scaling.model_copy(update=ends))

    def faster(self, factor: float) -> FleetSize:
        """With a clock that runs so many times as fast."""
        if self.scaling is None:
            return self
        times = ("interval_s", "scale_up_stabilization_s", "scale_down_stabilization_s")
        shorter = {key: getattr(self.scaling, key) / factor for key in times}
        return replace(self, scaling=self.scaling.model_copy(update=shorter))


#: Simulates requests on a fleet of that size whose cold starts last `1 / factor` of what they do.
Serve = Callable[[FleetSize, RequestSet, float], Run]


@dataclass(frozen=True, slots=True)
class FleetDay:
    """One run. values_s: of everything, by objective; windows_s: (windows,) of the requests that arrive in each, nan
    where nobody does; replicas: (PARTS,) on average; accelerator_s and joules: of the whole fleet."""

    size: FleetSize
    values_s: dict[str, float]
    windows_s: dict[str, FloatArray]
    replicas: FloatArray
    accelerator_s: float
    joules: float
    duration_s: float

    def windows_met(self, slos: tuple[Slo, ...]) -> float:
        """Share of windows with all objectives met."""
        met = np.all([~(self.windows_s[slo.name] > slo.limit_s) for slo in slos], axis=0)
        return float(np.mean(met))

    def holds(self, slos: tuple[Slo, ...]) -> bool:
        """All objectives over all requests, and in nearly every window."""
        return all(self.values_s[s.name] <= s.limit_s for s in slos) and self.windows_met(slos) >= MOST_WINDOWS


@dataclass(frozen=True, slots=True)
class DailyRun:
    """What a day is read by. duration_s: of the load; each: accelerators of a replica."""

    slos: tuple[Slo, ...]
    requests: RequestSet
    duration_s: float
    each: int
    serve: Serve

    def day(self, size: FleetSize, share: int = 1, speed: float = 1.0) -> FleetDay:
        """One of `share` even parts of the fleet under its part of the load, counted as all of it; every step taking
        `speed` times as long (the clock rescaled: arrivals, looks and cold starts come so much sooner)."""
        part = self.requests.every(share)
        part = replace(part, arrival_s=part.arrival_s / speed)
        done = self.serve(size.part(share).faster(speed), part, speed)
        read = _Reading(done, self.slos, self.duration_s, speed)
        alive_s = read.alive_s(np.array([0.0, max(self.duration_s, read.end_s)]))[0]
        return FleetDay(
            size,
            {slo.name: read.overall_s(slo) for slo in self.slos},
            {slo.name: read.by_window_s(slo) for slo in self.slos},
            read.alive_s(np.linspace(0.0, self.duration_s, PARTS + 1)) * share / (self.duration_s / PARTS),
            float(alive_s) * share * self.each,
            read.joules * share,
            max(self.duration_s, read.end_s),
        )


@dataclass(frozen=True, slots=True)
class _Reading:
    run: Run
    slos: tuple[Slo, ...]
    duration_s: float
    speed: float

    @property
    def end_s(self) -> float:
        return self.run.span_s[1] * self.speed

    @property
    def joules(self) -> float:
        """Of accelerators and hosts; nan where bare timers ran."""
        if not self.run.plants:
            return float("nan")
        from simulator.analysis.energy import pool_uses, power_and_energy

        found = power_and_energy(pool_uses(self.run), 1.0)["energy"]["total_j_per_output_token"]
        return float(found) * self.speed

    def overall_s(self, slo: Slo) -> float:
        return slo.value_s(self._samples(slo, 0.0, np.inf)) * self.speed

    def by_window_s(self, slo: Slo) -> FloatArray:
        """As many windows as still hold enough requests."""
        beyond = 1.0 if slo.quantile is None else 1.0 - slo.quantile
        wanted = self.run.requests.n * min([beyond, *(1 - s.quantile for s in self.slos if s.quantile is not None)])
        n = int(min(4 * PARTS, max(_FEWEST_WINDOWS, wanted / _BEYOND)))
        edges = np.linspace(0.0, self.duration_s, n + 1) / self.speed
        edges[-1] = np.inf
        values = [slo.value_s(self._samples(slo, a, b)) for a, b in pairwise(edges.tolist())]
        return np.array(values) * self.speed

    def _samples(self, slo: Slo, begin_s: float, end_s: float) -> FloatArray:
        """Of requests that arrive in between; those that were never served are infinite."""
        run = self.run
        inside = (run.arrival_s >= begin_s) & (run.arrival_s < end_s)
        lost = ~np.isfinite(finish_s(run))
        return slo.latency.samples(RequestWindow(run, inside, (begin_s, end_s), lost))

    def alive_s(self, edges_s: FloatArray) -> FloatArray:
        """Replica seconds paid for between neighbouring edges: from a replica's order to its death."""
        grown = np.zeros(len(edges_s))
        starting = [(ordered_s, ended_s) for _, ordered_s, ended_s in self.run.orders.tolist()]
        for begin_s, end_s in [*starting, *((r.born_s, r.died_s) for r in self.run.replicas)]:
            begin, end = begin_s * self.speed, end_s * self.speed
            grown += np.clip(edges_s, begin, max(begin, end)) - begin
        return np.diff(grown)
