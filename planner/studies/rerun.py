"""A written answer brought back to life: the request, its world, and the candidates its plans were."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from catalogs.errors import InputError
from catalogs.workloads.workload import Workload
from planner.answer.capabilities import need_readable
from planner.answer.plan_schema import Plan
from planner.answer.schema import Answer
from planner.evaluation.multi_hardware import HardwareChoiceEvaluator, open_evaluator
from planner.evaluation.simulated import SimulatedEvaluator
from planner.problem.candidate import Candidate
from planner.problem.demand import NOTHING
from planner.problem.hardware_choice import is_one
from planner.problem.price_list import PriceList
from planner.problem.reproduction import digest
from planner.problem.request import PlanRequest
from planner.search.objectives import CandidateTester, RunSizes

#: Deployment keys that say the same in other words, or follow from others.
_NAMES: Final = ("model", "engine", "kv_blocks")

#: Requests of a run at most.
MOST_REQUESTS: Final = 4000


@dataclass(frozen=True, slots=True)
class Rerun:
    """candidates: of the answer's plans, the best first. world: of every piece of hardware there was to choose from."""

    request: PlanRequest
    world: HardwareChoiceEvaluator
    candidates: tuple[Candidate, ...]

    @classmethod
    def of(cls, answer: Answer, command: str = "report") -> Rerun:
        """For a command. Raises InputError for an answer that it cannot read, or that was made with another calibration
        or by a planner with another space."""
        need_readable(command, answer.plans)
        request = answer.request
        world = open_evaluator(request)
        made, here = answer.reproduce.calibration, digest(world.fingerprint)
        if made != here:
            other = "calibration" if is_one(request.hardware) else "calibration or another choice of hardware"
            raise InputError(f"the answer was made with another {other} ({made}, here {here}): plan again")
        space = world.space()
        return cls(request, world, tuple(found_again(plan, space, request) for plan in answer.plans))

    @property
    def workload(self) -> Workload:
        """Of every world."""
        return self.world_of(0).workload

    def world_of(self, plan: int) -> SimulatedEvaluator:
        """The world of the hardware that plan number `plan` is on, or a part of."""
        return self.world.of(self.candidates[plan])

    @property
    def prices(self) -> PriceList:
        """Of all hardware of the request."""
        return PriceList(self.request.tariff, self.world.names.hardware)

    @property
    def bench(self) -> CandidateTester:
        """The seed and run sizes of the answer's own search, runs of far percentiles cut short: what is simulated
        again compares loads and plans under the same requests, the answer's own figures stay as they are."""
        request, sizes = self.request, RunSizes.for_slos(self.request.slos).at_most(MOST_REQUESTS)
        return CandidateTester(self.world, request.slos, sizes, request.seed, request.requests_per_s)


def without_load(request: PlanRequest) -> PlanRequest:
    """The same question of all that the hardware can carry."""
    return request.replace(requests_per_s=None, users=None, think_s=0.0, spare=NOTHING)


def found_again(plan: Plan, space: Sequence[Candidate], request: PlanRequest) -> Candidate:
    """The candidate whose every choice the plan's deployment names. Raises InputError where there is none."""
    for candidate in space:
        written = candidate.deployment(request.model, request.engine).model_dump()
        chosen = {k: v for k, v in written.items() if v is not None or k == "disaggregation"}
        if all(plan.deployment.get(k) == v for k, v in chosen.items() if k not in _NAMES):
            return candidate
    raise InputError("a plan of this answer is no candidate of this version: plan again", plan.deployment["hardware"])
