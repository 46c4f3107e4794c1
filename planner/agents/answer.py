"""The answer to `plan --agents`, as `--json` writes it."""

from __future__ import annotations

import json
from typing import Any, Final, Literal, TypeGuard

from pydantic import ValidationError

from catalogs.errors import InputError
from catalogs.io.json_block import JsonBlock
from catalogs.ui.words import digits, seconds
from planner.answer.answer_schema import Suggestion
from planner.answer.plan_schema import SloResult
from planner.problem.key_definition import input_error

SCHEMA_VERSION: Final = 2

#: The value of the key `kind` of such an answer.
KIND: Final = "agents"


class TimeStats(JsonBlock):
    """The time of sessions or tasks, in seconds; None where requests are not served.

    Attributes:
        mean: The mean.
        p50: The time that half of them take at most.
        p90: The time that 90 % of them take at most.
    """

    mean: float | None
    p50: float | None
    p90: float | None


class AgentPlan(JsonBlock):
    """A deployment under the load of the agents.

    Attributes:
        words: The deployment in words.
        deployment: The deployment, as `simulate` reads it.
        tier: Where KV blocks are kept.
        router: The routing policy.
        replicas: Replicas, those of both kinds where prefill and decode are separate.
        met: Whether every objective is met with the confidence of the request.
        objectives: The objectives, with intervals from independent seeds and the stated error.
        interactivity_p50: Output tokens per second of a request, which half of the requests reach; None if fewer than
            half are served.
        interactivity_p90: Output tokens per second, which 90 % of the requests reach; None if fewer are served.
        ttft_p50_s: Median time to first token, seconds.
        e2e_mean_s: Mean end-to-end latency, seconds.
        hit_rate: Prompt tokens found in a KV cache, as a share.
        theoretical_hit_rate: The share with a cache without limits.
        requests_at_once: Mean requests under way at once.
        requests_per_s: Requests of all agents per second.
        output_tokens_per_s: Output tokens of all agents per second.
        rejected_share: Share of the requests that are rejected because of their size.
        session_s: Time of a session, from its first request to the end of its last.
        task_s: Time of a task, from one request of a human to the end of the last request before the next.
        requests_per_task: Mean requests of a task.
        tasks_per_hour: Tasks of all agents per hour.
        usd_per_hour: Price; None if unknown.
        usd_per_agent_hour: Price divided by the agents.
        usd_per_task: Price divided by the tasks.
    """

    words: str
    deployment: dict[str, Any]
    tier: str
    router: str
    replicas: int
    met: bool
    objectives: list[SloResult]
    interactivity_p50: float | None
    interactivity_p90: float | None
    ttft_p50_s: float | None
    e2e_mean_s: float | None
    hit_rate: float | None
    theoretical_hit_rate: float | None
    requests_at_once: float
    requests_per_s: float
    output_tokens_per_s: float
    rejected_share: float
    session_s: TimeStats
    task_s: TimeStats
    requests_per_task: float
    tasks_per_hour: float
    usd_per_hour: float | None
    usd_per_agent_hour: float | None
    usd_per_task: float | None


class ComparedPlan(JsonBlock):
    """A choice as it is compared with the others: by one run, and by values that are the true ones or above.

    Attributes:
        words: The deployment in words.
        tier: Where KV blocks are kept.
        router: The routing policy.
        replicas: Replicas, those of both kinds where prefill and decode are separate.
        values_s: Values that the objectives do not exceed with the confidence of the request, seconds; None if
            unbounded.
        hit_rate: Prompt tokens found in a KV cache, as a share.
        rejected_share: Share of the requests that are rejected because of their size.
        ratio: The highest ratio of an objective's value to its limit, with the stated error.
    """

    words: str
    tier: str
    router: str
    replicas: int
    values_s: dict[str, float | None]
    hit_rate: float | None
    rejected_share: float
    ratio: float | None


class AgentsRefusal(JsonBlock):
    """Why no deployment meets a request for agents.

    Attributes:
        binding_constraint: The objective that the closest deployment misses by most, and by how much.
        why: What the time and the cache of the closest deployment are spent on, one sentence each.
        what_would_meet_it: Changes that would meet the request.
    """

    binding_constraint: str
    why: list[str]
    what_would_meet_it: list[Suggestion]


class AgentsAnswer(JsonBlock):
    """The answer to `plan --agents`: the recommended deployment, its capacity in agents, and what it was compared with.

    Attributes:
        kind: What the answer is for.
        schema_version: Version of this schema.
        request: The keys of the request.
        agents: Agents at work.
        as_interactivity: Names of the objectives on tpot that were written as interactivity.
        slo_words: The objectives in words.
        feasible: Whether a deployment meets every objective.
        infeasible: Why none does; None if one does.
        best: The recommended deployment, or the one that comes closest.
        capacity_agents: The most agents for which it was found to meet the objectives; 0 for none.
        capacity_is_least: Whether the search for the capacity ended there, so that it may be higher.
        compared: The recommended deployment, as it is compared with the others.
        others: Other tiers, routers and token budgets, the best first.
        n_placements: Legal placements that fit.
        n_simulated: Placements that were simulated.
        n_runs: Simulated runs.
        n_requests: Simulated requests.
        seconds: Time of the search.
        notices: Lines for the user.
        command: The command that repeats the answer.
    """

    kind: Literal["agents"]
    schema_version: int
    request: dict[str, Any]
    agents: int
    as_interactivity: list[str]
    slo_words: list[str]
    feasible: bool
    infeasible: AgentsRefusal | None
    best: AgentPlan
    capacity_agents: int
    capacity_is_least: bool
    compared: ComparedPlan
    others: list[ComparedPlan]
    n_placements: int
    n_simulated: int
    n_runs: int
    n_requests: int
    seconds: float
    notices: list[str]
    command: str


def is_agents_answer(data: object) -> TypeGuard[dict[str, Any]]:
    """Return whether the JSON data of an answer is that of a plan for agents."""
    return isinstance(data, dict) and data.get("kind") == KIND


def parse_agents_answer(data: dict[str, Any], where: str = "answer") -> AgentsAnswer:
    """Return the answer for agents from its JSON data; `where` is its name in errors.

    Raises:
        InputError: The data is damaged or has another schema version.
    """
    if data.get("schema_version") != SCHEMA_VERSION:
        rule = f"{where}: schema_version {SCHEMA_VERSION} is required; plan again with this version"
        raise InputError(rule, data.get("schema_version"), str(SCHEMA_VERSION))
    try:
        return AgentsAnswer.model_validate_json(json.dumps(data))
    except ValidationError as error:
        raise input_error(AgentsAnswer, error, where) from None


def objective_text(value_s: float | None, as_rate: bool) -> str:
    """Return a value of an objective; the inverse of a time per output token where it was written as a rate."""
    if not as_rate:
        return seconds(value_s)
    return f"{digits(1 / value_s) if value_s else 0} tokens/s"
