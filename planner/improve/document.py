"""The document of `plan improve --json`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Self

from pydantic import Field

from catalogs.deployments.resolve import resolve_pools
from catalogs.deployments.schema import deployment_of_keys
from catalogs.io.json_block import JsonBlock
from planner.answer.evaluated_plan import EvaluatedPlan
from planner.answer.plan_schema import Plan
from planner.problem.candidate import deployment_words

#: Version of the form of the answer of plan improve.
SCHEMA_VERSION: Final = 1


class Figures(JsonBlock):
    """The figures of one deployment under the load of the request.

    Attributes:
        words: The deployment in words.
        hardware: The hardware in the form of --hw.
        accelerators: The accelerators that it uses.
        requests_per_s: The rate at which the latencies were simulated; None: no rate meets every objective.
        capacity_requests_per_s: The highest rate that meets every objective; None: no rate does.
        meets: Whether every objective is met at the rate of the request with its confidence.
        probability_met: The probability of the objective that is met least surely.
        latencies_s: The value of each objective at the rate, by its name, seconds.
        usd_per_hour: The price of an hour; None where no price is known.
        usd_per_million_output_tokens: The price of a million output tokens; None where no price is known.
        j_per_output_token: The energy of an output token, joules; None where it is not known.
        idle_accelerators: Rented accelerators that are not used; they are billed, and their power is in the energy.
    """

    words: str
    hardware: str
    accelerators: int
    requests_per_s: float | None
    capacity_requests_per_s: float | None
    meets: bool
    probability_met: float
    latencies_s: dict[str, float | None]
    usd_per_hour: float | None
    usd_per_million_output_tokens: float | None
    j_per_output_token: float | None
    idle_accelerators: int = 0

    @classmethod
    def of(cls, entry: EvaluatedPlan, with_load: bool) -> Self:
        """Return the figures of a plan; without a required load, it is enough that some rate meets the objectives."""
        plan = entry.plan
        carries = entry.capacity_requests_per_s is not None
        return cls.of_plan(plan, entry.met if with_load else carries)

    @classmethod
    def of_plan(cls, plan: Plan, meets: bool) -> Self:
        """Return the figures of a plan."""
        cost, used = plan.cost, plan.energy
        return cls(
            words=deployment_words(plan.deployment),
            hardware=plan.hardware,
            accelerators=accelerators_of(plan.deployment),
            requests_per_s=plan.requests_per_s,
            capacity_requests_per_s=plan.capacity_requests_per_s,
            meets=meets,
            probability_met=min((row.probability_met for row in plan.slo), default=0.0),
            latencies_s={row.name: row.value_s for row in plan.slo},
            usd_per_hour=plan.usd_per_hour,
            usd_per_million_output_tokens=None if cost is None else cost.usd_per_million_output_tokens,
            j_per_output_token=None if used is None else used.j_per_output_token,
            idle_accelerators=0 if cost is None else cost.idle_accelerators or 0,
        )


class ChangeRow(JsonBlock):
    """One change to the deployment.

    Attributes:
        what: What changes, in words.
        keys: The keys of deployment.yaml, each with the value before and after.
        flags: The flags of the command that appear (+) and disappear (-).
        alone: The figures of the deployment with only this change; None if it cannot stand alone.
        why_not_alone: Why it cannot stand alone; "" if it can.
        recommended: Whether the new command has it.
        why: Why it is left out, or why the new command has it without a gain of its own; "" for a gain of its own.
    """

    what: str
    keys: dict[str, dict[str, Any]]
    flags: list[str]
    alone: Figures | None
    why_not_alone: str
    recommended: bool
    why: str = ""


class Savings(JsonBlock):
    """What the new command saves; a positive number is an advantage, and None is not known.

    Attributes:
        usd_per_hour: The price of an hour, US dollars.
        share_of_cost: The share of the cost: of an hour with a required load, otherwise of an output token.
        accelerators: The accelerators that are no longer used.
        share_of_energy_per_token: The share of the energy of an output token.
        capacity: The relative gain in capacity.
        latencies_s: The difference of each objective, by its name, seconds.
    """

    usd_per_hour: float | None
    share_of_cost: float | None
    accelerators: int
    share_of_energy_per_token: float | None
    capacity: float | None
    latencies_s: dict[str, float | None]


class OtherHardware(JsonBlock):
    """The best deployment on other hardware.

    Attributes:
        hardware: The hardware in the form of --hw.
        figures: Its figures; None if no deployment meets the objectives there.
        command: Its start command; "" without figures.
        reason: Why no deployment meets the objectives; "" with figures.
    """

    hardware: str
    figures: Figures | None
    command: str
    reason: str = ""


class Improvement(JsonBlock):
    """The whole document.

    Attributes:
        request: The request that was planned.
        command: The command or the file that was read.
        notes: The notes of the reader on each flag.
        deployment: The present deployment, every null filled in.
        feasible: Whether the new command (or the present one, where nothing better was found) meets the objectives.
        improves: Whether the new command is better than the present one by more than a tie.
        today: The figures of the present command; None if it cannot start.
        why_not_today: Why it cannot start; "" if it can.
        changes: Every change, the recommended ones first.
        improved: The figures of the new command; None if it cannot start.
        improved_deployment: The keys of its deployment.yaml.
        new_command: The new command; "" if it cannot start.
        command_notes: Further steps for the operator.
        notices: What is kept though the command does not state it, and what the new command brings, such as precisions
            that may change the answers.
        saves: What the new command saves; None if one of the two cannot start.
        infeasible: What binds where no deployment on the hardware meets the objectives.
        what_would_meet_it: Changes of the request or the hardware that would.
        other_hardware: The best deployment on each of --other-hw.
        seconds: The time that the study took.
        confidence: The probability that the new command meets every objective.
    """

    schema_version: int
    request: dict[str, Any]
    command: str
    notes: list[dict[str, str]] = Field(default_factory=list)
    deployment: dict[str, Any]
    today: Figures | None
    why_not_today: str
    feasible: bool
    improves: bool
    changes: list[ChangeRow]
    improved: Figures | None
    improved_deployment: dict[str, Any] | None
    new_command: str
    command_notes: list[str]
    notices: list[str] = Field(default_factory=list)
    saves: Savings | None
    confidence: float | None
    infeasible: str | None
    what_would_meet_it: list[str] = Field(default_factory=list)
    other_hardware: list[OtherHardware] = Field(default_factory=list)
    seconds: float


def accelerators_of(keys: Mapping[str, Any]) -> int:
    """Return the accelerators of all replicas of a deployment.

    Raises:
        InputError: The deployment is invalid.
    """
    pools = resolve_pools(deployment_of_keys(dict(keys), "the deployment of the plan"))
    return sum(pool.replicas * pool.accelerators_per_replica for pool in pools)


def savings(today: Figures, improved: Figures, with_load: bool) -> Savings:
    """Return what the improved deployment saves."""

    def share(a: float | None, b: float | None) -> float | None:
        return None if a is None or b is None or not a else 1 - b / a

    hour = (today.usd_per_hour, improved.usd_per_hour)
    token = (today.usd_per_million_output_tokens, improved.usd_per_million_output_tokens)
    capacity = share(today.capacity_requests_per_s, improved.capacity_requests_per_s)
    both = {name: (value, improved.latencies_s.get(name)) for name, value in today.latencies_s.items()}
    return Savings(
        usd_per_hour=None if None in hour else hour[0] - hour[1],  # type: ignore[operator]
        share_of_cost=share(*hour) if with_load else share(*token),
        accelerators=today.accelerators - improved.accelerators,
        share_of_energy_per_token=share(today.j_per_output_token, improved.j_per_output_token),
        capacity=None if capacity is None else -capacity,
        latencies_s={n: None if a is None or b is None else a - b for n, (a, b) in both.items()},
    )
