"""Failures of replicas: availability, randomly drawn outages, and the latencies of requests during outages.

Replicas fail independently. The time between the end of an outage and the next failure is exponential with mean
`mtbf_s`, and an outage lasts `restart_s`. Failures of several replicas at once (a rack, a bad release) are not
modelled.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
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
from planner.evaluation.deployments import resized
from planner.evaluation.observation import Load, Observation
from planner.evaluation.steady_state import SteadyWindow, WindowStatistics, finish_s, observe_window, steady_window
from planner.evaluation.verdict import NO_ALLOWANCE, ErrorAllowance, pooled_waiting_share
from planner.problem.latency_metrics import E2E
from planner.problem.slo import Slo
from planner.studies.rerun import Rerun
from simulator.cluster.cluster import RunOptions
from simulator.cluster.compiled import CompiledDeployment, CompiledFleet
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

    def window(self, rng: np.random.Generator, replicas: Sequence[int], length_s: float) -> list[Outage]:
        """Return the outages of one window; failures that begin before an outage is over belong to it.

        `replicas` holds the number of replicas of each kind.
        """
        drawn = [(pool, self._starts(rng, length_s)) for pool, n in enumerate(replicas) for _ in range(n)]
        starts = np.concatenate([s for _, s in drawn])
        order = np.argsort(starts, kind="stable")
        starts, pools = starts[order], np.concatenate([np.full(len(s), pool) for pool, s in drawn])[order]
        ends_before = np.flatnonzero(np.diff(starts) >= 2 * self.restart_s) + 1
        groups = zip(np.split(starts, ends_before), np.split(pools, ends_before), strict=True)
        return [
            Outage(tuple((s - group[0]).item() for s in group), self.restart_s, tuple(of.tolist()))
            for group, of in groups
            if len(group)
        ]

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
    """Overlapping failures of replicas.

    `starts_s` are seconds since the first failure. `pools` are the kinds of the failing replicas, by their number in
    the order of a request; by default there is one kind.
    """

    starts_s: tuple[float, ...]
    restart_s: float
    pools: tuple[int, ...] = ()

    @property
    def failures(self) -> tuple[tuple[float, int], ...]:
        """Return the time and the kind of replica of each failure, in order of time."""
        return tuple(zip(self.starts_s, self.pools or (0,) * len(self.starts_s), strict=True))

    @property
    def length_s(self) -> float:
        """Return the seconds until all waiting requests are served: as long after the last restart as it took."""
        return self.starts_s[-1] + self.restart_s + self.restart_s

    def most_down(self, n_pools: int = 1) -> tuple[int, ...]:
        """Return the maximum number of replicas of each kind that are down at the same time."""
        own = ([s for s, of in self.failures if of == pool] for pool in range(n_pools))
        return tuple(
            max((sum(s <= t < s + self.restart_s for s in starts) for t in starts), default=0) for starts in own
        )

    def victims(self) -> Iterator[tuple[int, int, float]]:
        """Yield the kind and index of a failing replica, which is available until then, and the time in seconds."""
        back_s: dict[tuple[int, int], float] = {}
        for start_s, pool in self.failures:
            place = next(p for p in range(len(self.starts_s)) if back_s.get((pool, p), -1.0) <= start_s)
            back_s[pool, place] = start_s + self.restart_s
            yield pool, place, start_s


def binomial_bounds(met: int, n: int, level: float) -> tuple[float, float]:
    """Return the two-sided Clopper-Pearson interval of a share from `met` of `n` observations.

    Its ends are the shares at which at least (at most) `met` of `n` would be seen with probability (1 - level) / 2
    (Biometrika 26(4), 1934). They are found by bisection, because importing scipy would take longer than the study.
    """
    tail = (1 - level) / 2
    low = 0.0 if met == 0 else _share_at(met, n, tail)
    high = 1.0 if met == n else 1.0 - _share_at(n - met, n, tail)
    return low, high


def _share_at(least: int, n: int, probability: float) -> float:
    """Return the share of which at least `least` of `n` observations are seen with the given probability."""
    counts = range(least, n + 1)
    ways = [math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1) for k in counts]
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        share = (low + high) / 2
        inside, outside = math.log(share), math.log1p(-share)
        seen = math.fsum(math.exp(w + k * inside + (n - k) * outside) for w, k in zip(ways, counts, strict=True))
        low, high = (share, high) if seen < probability else (low, share)
    return (low + high) / 2


#: Halvings of the search for the end of an interval: as many as a float has binary digits.
_HALVINGS: Final = 52


#: Maximum number of requests of a simulated outage; a longer outage is shortened. A judgement of cost.
MOST_REQUESTS: Final = 120_000

#: Time before the first crash, in mean residence times. A judgement: after two of them most requests that found an
#: empty system have left (`steady_window`).
_STAYS: Final = 4.0

#: Minimum time before the first crash, seconds. A judgement: with short requests it takes longer until the queues are
#: as usual.
_MIN_LEAD_S: Final = 20.0


@dataclass(frozen=True, slots=True)
class FailingFleet:
    """A planned deployment with any number of replicas of each kind, some of which crash.

    `reading` are the statistics to take from a run, `n_requests` is the size of a run without outages, and `stay_s` the
    mean time of a request in the system.
    """

    served: CompiledDeployment | CompiledFleet
    workload: Workload
    reading: WindowStatistics
    requests_per_s: float
    n_requests: int
    stay_s: float
    seed: int
    slos: tuple[Slo, ...]
    allowance: ErrorAllowance = NO_ALLOWANCE

    @classmethod
    def of(cls, rerun: Rerun, plan: Plan, index: int) -> FailingFleet:
        """Return the fleet of a plan.

        Raises:
            InputError: The plan has no figures.
        """
        stay_s = plan.latency_s(E2E.name, "mean")
        if not plan.requests_per_s or stay_s is None:
            raise InputError("plan spares needs a plan with a sustainable rate", plan.deployment["hardware"])
        served = rerun.evaluator_of(index).deployments.part(rerun.candidates[index], 1)
        request, n_requests = rerun.request, rerun.tester.sizes.full
        reading = WindowStatistics.of(request.slos)
        return cls(served, rerun.workload, reading, plan.requests_per_s, n_requests, stay_s, request.seed, request.slos)

    def shortened(self, outage: Outage) -> Outage:
        """Return the outage, shortened to MOST_REQUESTS requests."""
        factor = min(1.0, (MOST_REQUESTS / self.requests_per_s - self._lead_s) / outage.length_s)
        return Outage(tuple(s * factor for s in outage.starts_s), outage.restart_s * factor, outage.pools)

    @property
    def _lead_s(self) -> float:
        return max(_STAYS * self.stay_s, _MIN_LEAD_S)

    def observe(
        self, replicas: Sequence[int], outage: Outage | None, example: int, speed: float
    ) -> Mapping[str, FloatArray]:
        """Return samples of each metric in seconds (Shape (n,)), see `planner.studies.spares.Observe`."""
        if outage is None:
            done = self._run(replicas, self.n_requests * max(1, ceil(0.6 * max(replicas))), example, speed, ())
            window = steady_window(done.arrival_s, finish_s(done))
        else:
            part, lead_s = self.shortened(outage), self._lead_s
            faults = tuple(
                Fault(kind="crash", at_s=(lead_s + at_s) / speed, lasts_s=part.restart_s / speed, replica=at, pool=pool)
                for pool, at, at_s in part.victims()
            )
            end_s = lead_s + part.length_s
            done = self._run(replicas, ceil(self.requests_per_s * end_s * 1.02), example, speed, faults)
            inside = (done.arrival_s * speed >= lead_s) & (done.arrival_s * speed < end_s)
            window = SteadyWindow(inside, 0.0)
        load = Load(self.requests_per_s, done.requests.n, self.seed, whole_cluster=True)
        seen = observe_window(done, window, load, self.reading)
        return {metric: values * self._factor(metric, seen, speed) for metric, values in seen.samples_s.items()}

    def _factor(self, metric: str, seen: Observation, speed: float) -> float:
        """Return the factor on the samples of a run on a clock rescaled by `speed`.

        A run with slower steps has all its times longer, and the error of an objective's own statistic replaces that
        factor; of several objectives on one metric, the largest.
        """
        mine = [slo for slo in self.slos if slo.metric == metric and self.allowance.error is not None]
        return max((self.allowance.latency(slo, pooled_waiting_share([seen], slo)) for slo in mine), default=speed)

    def _run(self, replicas: Sequence[int], n: int, example: int, speed: float, faults: tuple[Fault, ...]) -> Run:
        fleet = resized(self.served, replicas)
        drawn = self.workload.materialise(self.seed + example, n, self.requests_per_s)
        requests = replace(drawn, arrival_s=drawn.arrival_s / speed)
        if not faults:
            return simulate(fleet, requests)
        placements = tuple(Placement("", tuple((place,) for place in range(count))) for count in replicas)
        return simulate(fleet, requests, RunOptions(controllers=(Faults(faults, placements),), retries=Retries()))
