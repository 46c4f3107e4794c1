"""Failures of replicas: availability, randomly drawn outages, and the latencies of requests during outages.

Replicas fail independently. The time between the end of an outage and the next failure is exponential with mean
`mtbf_s`, and an outage lasts `restart_s`. Failures of several replicas at once (a rack, a bad release) are not
modelled.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import ceil
from typing import Final

import numpy as np

from catalogs.arrays import FloatArray
from catalogs.deployments.faults import Fault, Retries
from catalogs.errors import InputError
from catalogs.workloads.workload import Workload
from planner.answer.plan_schema import Plan
from planner.economics.spot import enough_up
from planner.evaluation.deployments import with_replicas
from planner.evaluation.evaluator import Load
from planner.evaluation.steady_state import SteadyWindow, WindowStatistics, finish_s, observe_window, steady_window
from planner.problem.latency_metrics import E2E
from planner.studies.rerun import Rerun
from simulator.cluster.cluster import RunOptions
from simulator.cluster.compiled import CompiledDeployment
from simulator.cluster.controllers.faults import Faults, Placement
from simulator.cluster.run import Run
from simulator.cluster.simulate import simulate


@dataclass(frozen=True, slots=True)
class FailingReplicas:
    """Failure times of replicas: the mean working time between two failures, and the length of an outage, seconds."""

    mtbf_s: float
    restart_s: float

    @property
    def availability(self) -> float:
        """Return the share of time that a replica is available."""
        return self.mtbf_s / (self.mtbf_s + self.restart_s)

    def enough_up(self, replicas: int, needed: int) -> float:
        """Return the share of time that at least `needed` replicas are available."""
        return enough_up(replicas, needed, self.availability)

    def fewest(self, needed: int, share: float, most: int) -> int:
        """Return the fewest replicas of which `needed` are available for a share of time; at most `most`."""
        return next((n for n in range(needed, most + 1) if self.enough_up(n, needed) >= share), most)

    def window(self, rng: np.random.Generator, replicas: int, length_s: float) -> list[Outage]:
        """Return the outages of one window; failures that begin before an outage is over belong to it."""
        starts = np.sort(np.concatenate([self._starts(rng, length_s) for _ in range(replicas)]))
        ends_before = np.flatnonzero(np.diff(starts) >= 2 * self.restart_s) + 1
        groups = [group.tolist() for group in np.split(starts, ends_before) if len(group)]
        return [Outage(tuple(s - group[0] for s in group), self.restart_s) for group in groups]

    def _starts(self, rng: np.random.Generator, length_s: float) -> FloatArray:
        """Return the start times of one replica's outages in a window that begins with the replica available.

        Seconds. Shape (outages,).
        """
        expected = length_s / (self.mtbf_s + self.restart_s)
        n = int(expected + 10 * math.sqrt(expected) + 10)
        starts: FloatArray = np.cumsum(rng.exponential(self.mtbf_s, n) + self.restart_s) - self.restart_s
        return starts[starts < length_s]


@dataclass(frozen=True, slots=True)
class Outage:
    """Overlapping failures of replicas; `starts_s` are seconds since the first failure."""

    starts_s: tuple[float, ...]
    restart_s: float

    @property
    def length_s(self) -> float:
        """Return the seconds until all waiting requests are served: as long after the last restart as it took."""
        return self.starts_s[-1] + self.restart_s + self.restart_s

    @property
    def most_down(self) -> int:
        """Return the maximum number of replicas that are down at the same time."""
        return max(sum(s <= t < s + self.restart_s for s in self.starts_s) for t in self.starts_s)

    def victims(self) -> Iterator[tuple[int, float]]:
        """Yield the index of a failing replica, which is available until then, and the time in seconds."""
        back_s: dict[int, float] = {}
        for start_s in self.starts_s:
            place = next(p for p in range(len(self.starts_s)) if back_s.get(p, -1.0) <= start_s)
            back_s[place] = start_s + self.restart_s
            yield place, start_s


def binomial_bounds(met: int, n: int, level: float) -> tuple[float, float]:
    """Return the two-sided Clopper-Pearson interval of a share from `met` of `n` observations."""
    from scipy.stats import beta

    tail = (1 - level) / 2
    low = 0.0 if met == 0 else float(beta.ppf(tail, met, n - met + 1))
    high = 1.0 if met == n else float(beta.ppf(1 - tail, met + 1, n - met))
    return low, high


#: Maximum number of requests of a simulated outage; a longer outage is shortened.
MOST_REQUESTS: Final = 120_000

#: Time before the first crash, in mean residence times, and its minimum in seconds.
_STAYS: Final = 4.0

_MIN_LEAD_S: Final = 20.0


@dataclass(frozen=True, slots=True)
class FailingFleet:
    """A planned deployment with any number of replicas, some of which crash.

    `n_requests` is the size of a run without outages, and `stay_s` the mean time of a request in the system.
    """

    compiled: CompiledDeployment
    workload: Workload
    requests_per_s: float
    n_requests: int
    stay_s: float
    seed: int

    @classmethod
    def of(cls, rerun: Rerun, plan: Plan, index: int) -> FailingFleet:
        """Return the fleet of a plan.

        Raises:
            InputError: The plan has no figures.
        """
        stay_s = plan.latency_s(E2E.name, "mean")
        if not plan.requests_per_s or stay_s is None:
            raise InputError("plan spares needs a plan with a sustainable rate", plan.deployment["hardware"])
        compiled = rerun.evaluator_of(index).deployments.compiled(rerun.candidates[index])
        return cls(compiled, rerun.workload, plan.requests_per_s, rerun.tester.sizes.full, stay_s, rerun.request.seed)

    def shortened(self, outage: Outage) -> Outage:
        """Return the outage, shortened to MOST_REQUESTS requests."""
        factor = min(1.0, (MOST_REQUESTS / self.requests_per_s - self._lead_s) / outage.length_s)
        return Outage(tuple(s * factor for s in outage.starts_s), outage.restart_s * factor)

    @property
    def _lead_s(self) -> float:
        return max(_STAYS * self.stay_s, _MIN_LEAD_S)

    def observe(self, replicas: int, outage: Outage | None, example: int, speed: float) -> Mapping[str, FloatArray]:
        """Return samples of each metric in seconds (Shape (n,)), see `planner.studies.spares.Observe`."""
        if outage is None:
            done = self._run(replicas, self.n_requests * max(1, ceil(0.6 * replicas)), example, speed, ())
            window = steady_window(done.arrival_s, finish_s(done))
        else:
            part, lead_s = self.shortened(outage), self._lead_s
            faults = tuple(
                Fault(kind="crash", at_s=(lead_s + at_s) / speed, lasts_s=part.restart_s / speed, replica=place)
                for place, at_s in part.victims()
            )
            end_s = lead_s + part.length_s
            done = self._run(replicas, ceil(self.requests_per_s * end_s * 1.02), example, speed, faults)
            inside = (done.arrival_s * speed >= lead_s) & (done.arrival_s * speed < end_s)
            window = SteadyWindow(inside, 0.0)
        load = Load(self.requests_per_s, done.requests.n, self.seed, whole_cluster=True)
        samples = observe_window(done, window, load, WindowStatistics()).samples_s
        return {metric: values * speed for metric, values in samples.items()}

    def _run(self, replicas: int, n: int, example: int, speed: float, faults: tuple[Fault, ...]) -> Run:
        fleet = with_replicas(self.compiled, replicas)
        drawn = self.workload.materialise(self.seed + example, n, self.requests_per_s)
        requests = replace(drawn, arrival_s=drawn.arrival_s / speed)
        if not faults:
            return simulate(fleet, requests)
        placement = Placement("", tuple((place,) for place in range(replicas)))
        return simulate(fleet, requests, RunOptions(controllers=(Faults(faults, (placement,)),), retries=Retries()))
