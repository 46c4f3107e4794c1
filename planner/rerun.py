"""A written answer brought back to life: the request, its world, and the candidates its plans were."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from catalogs.errors import InputError
from planner.answer_file import AnswerFile, Plan
from planner.assess import Bench, RunSizes
from planner.candidate import Candidate
from planner.choices import is_one
from planner.reproduction import digest
from planner.request import PlanRequest, Tariff
from planner.simulated import SimulatedWorld
from planner.slo import parse_slos
from planner.space import candidates

#: Deployment keys that say the same in other words, or follow from others.
_NAMES: Final = ("model", "engine", "kv_blocks")
#: Requests of a run at most.
MOST_REQUESTS: Final = 4000


@dataclass(frozen=True, slots=True)
class Rerun:
    """candidates: of the answer's plans, the best first."""

    request: PlanRequest
    world: SimulatedWorld
    candidates: tuple[Candidate, ...]

    @classmethod
    def of(cls, answer: AnswerFile) -> Rerun:
        """Raises InputError for an answer made with another calibration or by a planner with another space."""
        request = request_of(answer)
        need_one(request.hardware)
        world = SimulatedWorld(request)
        made, here = answer.reproduce.calibration, digest(world.fingerprint)
        if made != here:
            raise InputError(f"the answer was made with another calibration ({made}, here {here}): plan again")
        space = candidates(request, world.names)
        return cls(request, world, tuple(found_again(plan, space, request) for plan in answer.plans))

    @property
    def bench(self) -> Bench:
        """The seed and run sizes of the answer's own search, runs of far percentiles cut short: what is simulated
        again compares loads and plans under the same requests, the answer's own figures stay as they are."""
        request, sizes = self.request, RunSizes.for_slos(self.request.slos)
        sizes = RunSizes(min(sizes.quick, MOST_REQUESTS // 4), min(sizes.full, MOST_REQUESTS))
        return Bench(self.world, request.slos, sizes, request.seed, request.requests_per_s)


def need_one(hardware: str) -> None:
    """Raises InputError for a choice of hardware: they lie in several worlds, not brought back yet."""
    if not is_one(hardware):
        rule = (
            "reports and explanations are of answers on one kind of hardware: plan again with the one that was chosen"
        )
        raise InputError(rule, hardware, "--hw of the answer's plan")


def request_of(answer: AnswerFile) -> PlanRequest:
    """The question an answer is to."""
    asked, again = answer.request, answer.reproduce
    return PlanRequest(
        model=asked.model,
        hardware=asked.hardware,
        slos=parse_slos(asked.slo),
        workload=asked.workload,
        requests_per_s=asked.rate,
        objective=asked.objective,
        precisions=tuple(asked.precisions or ()),
        engine=asked.engine,
        trials=again.trials,
        seed=again.seed,
        tariff=Tariff(**again.tariff.model_dump()),
    )


def found_again(plan: Plan, space: Sequence[Candidate], request: PlanRequest) -> Candidate:
    """The candidate whose every choice the plan's deployment names. Raises InputError where there is none."""
    for candidate in space:
        chosen = candidate.deployment(request.model, request.engine).model_dump(exclude_none=True)
        if all(plan.deployment.get(k) == v for k, v in chosen.items() if k not in _NAMES):
            return candidate
    raise InputError("a plan of this answer is no candidate of this version: plan again", plan.deployment["hardware"])
