"""A planned deployment with more replicas, some of which crash: what its requests see meanwhile."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import ceil
from typing import Final

from catalogs.errors import InputError
from catalogs.faults import Fault, Retries
from catalogs.workloads import Workload
from planner.answer_file import Plan
from planner.observation import Load
from planner.outages import Outage
from planner.rerun import Rerun
from planner.room import with_replicas
from planner.slo import FloatArray
from planner.window import Reading, Window, finish_s, observe_window, steady_window
from simulator.cluster import RunOptions
from simulator.controllers.faults import Faults, Ground
from simulator.plant import Plant
from simulator.run_record import Run
from simulator.simulate import run

#: Requests of one simulated outage at most: of a longer one its beginning stands for all of it.
MOST_REQUESTS: Final = 120_000
#: Before the first crash: so many mean residence times, and seconds at least.
_STAYS: Final = 4.0
_LEAST_LEAD_S: Final = 20.0


@dataclass(frozen=True, slots=True)
class FailingFleet:
    """plant: of one replica, in any number. n_requests: of a run without outages; stay_s: mean time in the system."""

    plant: Plant
    workload: Workload
    requests_per_s: float
    n_requests: int
    stay_s: float
    seed: int

    @classmethod
    def of(cls, rerun: Rerun, plan: Plan, index: int) -> FailingFleet:
        """Raises InputError for a plan without figures."""
        stay_s = None if plan.metrics is None else plan.metrics["e2e_s"]["mean"]
        if not plan.requests_per_s or stay_s is None:
            raise InputError("a plan without a rate it holds has no spares", plan.deployment["hardware"])
        plant = rerun.world_of(index).plant(rerun.candidates[index])
        return cls(plant, rerun.workload, plan.requests_per_s, rerun.bench.sizes.full, stay_s, rerun.request.seed)

    def shortened(self, outage: Outage) -> Outage:
        """As much of it as is simulated."""
        most_s = MOST_REQUESTS / self.requests_per_s - self._lead_s
        factor = min(1.0, most_s / outage.length_s)
        if factor == 1.0:
            return outage
        starts = tuple(s * factor for s in outage.starts_s)
        return Outage(starts, outage.restart_s * factor, outage.settle_s * factor)

    @property
    def _lead_s(self) -> float:
        return max(_STAYS * self.stay_s, _LEAST_LEAD_S)

    def observe(self, replicas: int, outage: Outage | None, example: int, speed: float) -> Mapping[str, FloatArray]:
        """See planner.spares.Observe."""
        if outage is None:
            n = self.n_requests * max(1, ceil(0.6 * replicas))
            done = self._run(replicas, n, example, speed, ())
            return self._samples(done, steady_window(done.arrival_s, finish_s(done)), speed)
        part, lead_s = self.shortened(outage), self._lead_s
        faults = tuple(
            Fault(kind="crash", at_s=(lead_s + at_s) / speed, lasts_s=part.restart_s / speed, replica=place)
            for place, at_s in part.victims()
        )
        end_s = lead_s + part.length_s
        done = self._run(replicas, ceil(self.requests_per_s * end_s * 1.02), example, speed, faults)
        inside = (done.arrival_s * speed >= lead_s) & (done.arrival_s * speed < end_s)
        return self._samples(done, Window(inside, 0.0), speed)

    def _run(self, replicas: int, n: int, example: int, speed: float, faults: tuple[Fault, ...]) -> Run:
        plant = with_replicas(self.plant, replicas)
        drawn = self.workload.materialise(self.seed + example, n, self.requests_per_s)
        requests = replace(drawn, arrival_s=drawn.arrival_s / speed)
        if not faults:
            return run(plant, requests)
        ground = Ground("", tuple((place,) for place in range(replicas)))
        return run(plant, requests, RunOptions(controllers=(Faults(faults, (ground,)),), retries=Retries()))

    def _samples(self, done: Run, window: Window, speed: float) -> Mapping[str, FloatArray]:
        load = Load(self.requests_per_s, done.requests.n, self.seed, whole_cluster=True)
        found = observe_window(done, window, load, Reading())
        return {metric: values * speed for metric, values in found.samples_s.items()}
