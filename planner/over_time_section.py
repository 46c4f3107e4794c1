"""The best plan of an answer sized for a load that changes with time: brings `over_time` and the simulator together."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

from calibration.stated_error import StatedError
from catalogs.request_set import RequestSet
from catalogs.scaling import ColdStart
from catalogs.workloads import load_workload
from planner.answer import Answer
from planner.assess import RunSizes
from planner.confidence import SAFE
from planner.day import Clock, Size
from planner.final import Entry
from planner.layouts import replicas_of
from planner.load_curve import LoadCurve
from planner.observation import Load, judge
from planner.over_time import OverTime, Unit
from planner.progress import said_meanwhile
from planner.request import PlanRequest
from planner.room import with_replicas
from planner.simulated import SimulatedWorld
from simulator.cluster import RunOptions
from simulator.controllers.autoscaler import Autoscaler
from simulator.plant import Plant
from simulator.run_record import Run
from simulator.simulate import run

#: How sure a capacity is, where no rate is SAFE.
_EVEN: Final = 0.5


@dataclass(frozen=True, slots=True)
class Hall:
    """Where fleets of one kind of replica run, as large as they need to be."""

    plant: Plant

    @property
    def each(self) -> int:
        """Accelerators of a replica."""
        return self.plant.resolved.accelerators_per_replica

    def cold_start_s(self, cold: ColdStart) -> float:
        return cold.seconds(self.plant.memory.weights_bytes * self.each)

    def serve(self, size: Size, requests: RequestSet, speed: float) -> Run:
        """See planner.day.Serve."""
        scaling = size.scaling
        plant = with_replicas(self.plant, size.replicas, size.most)
        plant = replace(plant, resolved=replace(plant.resolved, scaling=scaling))
        if scaling is None:
            return run(plant, requests)
        follows = Autoscaler(0, scaling, self.cold_start_s(scaling.cold_start) / speed)
        return run(plant, requests, RunOptions(controllers=(follows,)))


def over_time_block(answer: Answer, world: SimulatedWorld) -> dict[str, Any]:
    """Some minutes of simulation where the load is long. Raises InputError for scaling the hardware has no room for."""
    request, best = answer.request, answer.entries[0]
    workload = load_workload(request.workload)
    curve = LoadCurve.of(workload, request.seed)
    requests = workload.materialise(request.seed, curve.n_requests)
    said: dict[str, Any] = dict(request.fixed.values.get("autoscaling") or {})  # type: ignore[call-overload]
    hall = Hall(world.plant(best.candidate))
    error = StatedError.of(request.engine, float(best.block["calibration"]["operator_error"]))  # type: ignore[index]
    unit = _unit(request, best, world, hall.cold_start_s(ColdStart.model_validate(said.get("cold_start") or {})))
    clock = Clock(request.slos, requests, curve.duration_s, hall.each, hall.serve)
    with said_meanwhile(f"{curve.n_requests:,} requests over {curve.duration_s / 3600:.3g} h"):
        return OverTime(clock, curve, unit, error, said).block()


def _unit(request: PlanRequest, best: Entry, world: SimulatedWorld, cold_start_s: float) -> Unit:
    candidate, block = best.candidate, best.block
    carries = (block["safe_requests_per_s"] or best.capacity_requests_per_s or best.requests_per_s) / candidate.replicas  # type: ignore[operator]
    sizes = RunSizes.for_slos(request.slos)
    seen = judge([world.observe(candidate, Load(carries * candidate.replicas, sizes.full, request.seed))], request.slos)
    price = world.price(candidate)
    limit = max(replicas_of(world.names, candidate.layout), candidate.replicas)
    usd = None if price is None else price.usd_per_hour / candidate.replicas
    in_flight = carries * seen.mean_s("e2e")
    sure = SAFE if block["safe_requests_per_s"] else _EVEN
    return Unit(carries, in_flight, limit, request.spare.lost(candidate), usd, cold_start_s, sure)
