"""The answer as one schema: what `plan --json` writes and what every command that takes an answer reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Self

from pydantic import Field, field_serializer

from catalogs.errors import InputError
from catalogs.io.json_block import JsonBlock
from catalogs.ui.words import were
from planner.answer.hardware_ranking import HardwareRow
from planner.answer.plan_schema import Plan
from planner.economics.money import PriceLine
from planner.evaluation.workload_statistics import WorkloadBlock
from planner.problem.request import PlanRequest
from planner.problem.tariff import Tariff

if TYPE_CHECKING:
    from catalogs.models.spec import ModelSpec


#: Facts of a model that do not change what one step computes.
_OTHER_FACTS: Final[dict[str, Any]] = {
    "name": "", "hf_id": "", "source": "", "weight_dtype": "", "formats": (), "max_position_tokens": 0,
    "other_params": 0.0, "mtp_layers": 0, "published_params": None, "published_active_params": None,
    "checkpoints": (), "notices": (),
}  # fmt: skip


def same_model(name: str, planned: str) -> bool | None:
    """Return whether a name refers to the planned model; None if either name is unknown here.

    A name may be a path. Two models are the same if their layers and sizes are equal, whatever their weights.
    """
    if is_name_of(name, planned):
        return True
    found = [_loaded(text) for text in (name, planned)]
    one, other = (None if model is None else replace(model, **_OTHER_FACTS) for model in found)
    return None if one is None or other is None else one == other


def is_name_of(name: str, planned: str) -> bool:
    """Return whether two names are equal or lead to one entry of the catalog, also by a published checkpoint of it."""
    if name.lower() == planned.lower():
        return True
    one, other = _loaded(name), _loaded(planned)
    if other is not None and name.lower() in {c.repository.lower() for c in other.checkpoints}:
        return True
    return one is not None and other is not None and one.name == other.name


def _loaded(name: str) -> ModelSpec | None:
    from catalogs.models.catalog import load_model

    try:
        return load_model(name)
    except InputError:
        return None


#: Version of the form of an answer.
SCHEMA_VERSION: Final = 1

#: Reasons for which screens and pages state candidates that bounds rule out; JSON has all of them.
MAIN_REASONS: Final = 4

#: Words for the objectives that are maximised; the others are "lowest NAME".
GOALS: Final = {"throughput": "highest throughput", "goodput": "highest goodput per accelerator"}


class Suggestion(JsonBlock):
    """One change that would meet a refused request; `value` is a value of the option that `kind` names."""

    kind: str
    change: str
    value: str | float | None = None
    verified_by: str

    @classmethod
    def simulated(cls, kind: str, change: str, value: str | float) -> Self:
        """Return a change that simulation has checked."""
        return cls(kind=kind, change=change, value=value, verified_by="simulation")


class Refusal(JsonBlock):
    """Why no plan meets the request: the binding constraint, the closest plan, and changes that would meet it.

    `stages` names what takes the time of the missed objective at the smallest load, one sentence each. `reasons` counts
    all candidates by the reason why they are not the answer.
    """

    binding_constraint: str
    closest: Plan | None
    what_would_meet_it: list[Suggestion]
    stages: list[str] = Field(default_factory=list)
    reasons: dict[str, int] = Field(default_factory=dict)


def main_reasons(reasons: Mapping[str, int], key: str, most: int = MAIN_REASONS) -> dict[str, int]:
    """Return the first reasons, and the number of the others in one entry that names the key of them all in JSON."""
    found = list(reasons.items())
    if len(found) <= most:
        return dict(found)
    rest = found[most - 1 :]
    others = f"one of {len(rest)} other reasons applies ({key} in JSON has all)"
    return {**dict(found[: most - 1]), others: sum(n for _, n in rest)}


def refused_sentence(n: int) -> str:
    """Return a sentence on the candidates of a request that none of them meets."""
    return "The only candidate does not meet the request." if n == 1 else f"None of {n:,} candidates meets the request."


def reason_sentence(n: int, reason: str) -> str:
    """Return a sentence on the candidates that share a reason: "3 were ruled out: ...", or "3 more: ..."."""
    known = reason.startswith(("simulated", "not simulated", "ruled out"))
    return f"{were(n)} {reason}." if known else f"{n:,} more: {reason}."


class SearchSummary(JsonBlock):
    """How the answer was found.

    Attributes:
        n_space: All candidates, including those ruled out by bounds.
        n_simulated: Candidates that were simulated, by the search or for the table of hardware.
        n_trials: Trials of all searches together: a candidate that two searches simulate counts twice. 0 in answers of
            earlier versions.
        n_searches: Searches, each of at most `search.trials` trials: of groups of hardware, of the best kind of
            accelerator alone, and of each other kind for the table of hardware.
        n_requests: Requests simulated by all searches, including resumed outcomes but not the measurement of the plans.
            Answers of earlier versions do not have it.
        left_out: Sentences about hardware that is not compared.
        bounded_out: Number of candidates by the reason why bounds rule them out, the most common first.
    """

    n_space: int
    n_bounded_out: int
    n_simulated: int
    n_pruned: int
    seconds: float
    seed: int
    method: str
    n_resumed: int = 0
    bounded_out: dict[str, int] = Field(default_factory=dict)
    n_requests: int = 0
    n_trials: int = 0
    n_searches: int = 1
    interrupted: bool = False
    left_out: list[str] = Field(default_factory=list)

    @property
    def main_reasons(self) -> dict[str, int]:
        """Return the most common reasons why bounds rule candidates out, and the number of the others in one entry."""
        return main_reasons(self.bounded_out, "search.bounded_out")

    @property
    def n_not_simulated(self) -> int:
        """Return the candidates that neither the bounds nor a simulation decided on."""
        return self.n_space - self.n_bounded_out - self.n_simulated


class Reproduce(JsonBlock):
    """How to repeat the plan: the command, and everything else that the answer depends on."""

    command: str
    seed: int
    trials: int
    tariff: Tariff
    calibration: str
    versions: dict[str, str]


class Answer(JsonBlock):
    """The answer without its sections, which `planner.sections.full_answer` adds by their names."""

    schema_version: int
    request: PlanRequest
    feasible: bool
    best: Plan | None
    alternatives: list[Plan]
    pareto: list[Plan] = Field(default_factory=list)
    infeasible: Refusal | None
    search: SearchSummary
    hardware: list[HardwareRow] = Field(default_factory=list)
    assumptions: list[str]
    prices: list[PriceLine] = Field(default_factory=list)
    reproduce: Reproduce
    workload: WorkloadBlock | None = None  # None: an answer of an earlier version

    @field_serializer("request")
    def _written(self, request: PlanRequest) -> dict[str, Any]:
        return request.as_dict()

    @property
    def workload_words(self) -> str:
        """Return the name of the workload, with its lengths where the answer has them."""
        return self.request.workload if self.workload is None else self.workload.words

    @property
    def plans(self) -> list[Plan]:
        """Return the plans, best first; empty if the request is refused."""
        return [*([self.best] if self.best else []), *self.alternatives]

    @property
    def interrupted(self) -> bool:
        """Return whether the search was interrupted before its end."""
        return self.search.interrupted


def chosen(command: str, answer: Answer, alternative: int = 0) -> Plan:
    """Return the best plan of an answer, or an alternative by its number from 1.

    Raises:
        InputError: The answer has no such plan.
    """
    if not answer.feasible or not answer.plans:
        why = answer.infeasible.binding_constraint if answer.infeasible else "no reason recorded"
        raise InputError(f"this answer has no plan, so there is nothing for plan {command}: {why}")
    if not 0 <= alternative < len(answer.plans):
        rule = f"the answer has {len(answer.plans) - 1} alternatives, numbered from 1"
        raise InputError(rule, alternative, str(len(answer.plans) - 1))
    return answer.plans[alternative]
