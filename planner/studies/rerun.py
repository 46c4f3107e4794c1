"""A saved answer prepared for further simulation: the request, its evaluator, and the candidates of its plans."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from catalogs.errors import InputError
from catalogs.workloads.workload import Workload
from planner.answer.answer_schema import Answer
from planner.answer.plan_schema import Plan
from planner.evaluation.multi_hardware import HardwareChoiceEvaluator, open_evaluator
from planner.evaluation.run_sizes import run_sizes
from planner.evaluation.simulated_evaluator import SimulatedEvaluator
from planner.problem.candidate import API_SERVERS, Candidate
from planner.problem.demand import NOTHING
from planner.problem.hardware_choice import is_one
from planner.problem.price_list import PriceList
from planner.problem.reproduction import digest
from planner.problem.request import PlanRequest
from planner.search.candidate_tester import CandidateTester

#: Deployment keys that have other spellings, or follow from other keys.
_NAMES: Final = ("model", "engine", "kv_blocks")

#: Deployment keys that tell candidates apart where they are null.
_DECISIVE: Final = ("disaggregation", "speculative")

#: Maximum number of requests of a run.
MOST_REQUESTS: Final = 4000


@dataclass(frozen=True, slots=True)
class Rerun:
    """The request, the evaluator of all its hardware, and the candidates of the plans, the recommended one first."""

    request: PlanRequest
    evaluator: HardwareChoiceEvaluator
    candidates: tuple[Candidate, ...]

    @classmethod
    def of(cls, answer: Answer) -> Rerun:
        """Return the rerun of an answer.

        Raises:
            InputError: The answer was made with another calibration or another search space.
        """
        request = answer.request
        evaluator = open_evaluator(request)
        made, here = answer.reproduce.calibration, digest(evaluator.fingerprint)
        if made != here:
            other = "calibration" if is_one(request.hardware) else "calibration or another choice of hardware"
            raise InputError(f"the answer was made with another {other} ({made}, here {here}): plan again")
        space = evaluator.space()
        return cls(request, evaluator, tuple(found_again(plan, space, request) for plan in answer.plans))

    @property
    def workload(self) -> Workload:
        """Return the workload of the request."""
        return self.evaluator_of(0).workload

    def evaluator_of(self, plan: int) -> SimulatedEvaluator:
        """Return the evaluator of the hardware of plan number `plan`."""
        return self.evaluator.of(self.candidates[plan])

    @property
    def prices(self) -> PriceList:
        """Return the prices of all hardware of the request."""
        request = self.request
        return PriceList.of(request.tariff, self.evaluator.names.hardware, request.accounting)

    @property
    def tester(self) -> CandidateTester:
        """Return a tester with the seed and run sizes of the answer's search; runs of high percentiles are shortened.

        Short runs are enough, because they only compare loads and plans under the same requests.
        """
        request, sizes = self.request, run_sizes(self.request).at_most(MOST_REQUESTS)
        rate, confidence = request.requests_per_s, request.confidence
        return CandidateTester(self.evaluator, request.slos, sizes, request.seed, confidence, rate)


def without_load(request: PlanRequest) -> PlanRequest:
    """Return the request without its load, which asks for the highest sustainable rate."""
    return request.replace(requests_per_s=None, users=None, think_s=0.0, spare=NOTHING)


def found_again(plan: Plan, space: Sequence[Candidate], request: PlanRequest) -> Candidate:
    """Return the candidate that matches the deployment of a plan.

    Raises:
        InputError: No candidate matches.
    """
    for candidate in space:
        written = candidate.deployment(request.model, request.engine).model_dump(mode="json")
        chosen = {k: v for k, v in written.items() if v is not None or k in _DECISIVE}
        chosen |= {API_SERVERS: candidate.api_servers} if plan.deployment.get(API_SERVERS) else {}
        if candidate.split:  # the block of a plan states the number of its decode replicas
            chosen["replicas"] = candidate.replicas
        if all(plan.deployment.get(k) == v for k, v in chosen.items() if k not in _NAMES):
            return candidate
    raise InputError(
        "a plan of this answer is not a candidate in this version: plan again", plan.deployment["hardware"]
    )
