"""The answer to `plan --agents`, as `--json` writes it."""

from __future__ import annotations

from typing import Any, Final

from catalogs.io.json_block import JsonBlock
from planner.answer.plan_schema import SloResult

SCHEMA_VERSION: Final = 1


class AgentPlan(JsonBlock):
    """A deployment under the load of the agents.

    Attributes:
        words: The deployment in words.
        deployment: The deployment, as `simulate` reads it.
        tier: Where KV blocks are kept.
        router: The routing policy.
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
        usd_per_hour: Price; None if unknown.
        usd_per_agent_hour: Price divided by the agents.
    """

    words: str
    deployment: dict[str, Any]
    tier: str
    router: str
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
    usd_per_hour: float | None
    usd_per_agent_hour: float | None


class ComparedPlan(JsonBlock):
    """A choice as it is compared with the others: by one run, and by values that are the true ones or above.

    Attributes:
        words: The deployment in words.
        tier: Where KV blocks are kept.
        router: The routing policy.
        values_s: Values that the objectives do not exceed with the confidence of the request, seconds; None if
            unbounded.
        hit_rate: Prompt tokens found in a KV cache, as a share.
        rejected_share: Share of the requests that are rejected because of their size.
        ratio: The highest ratio of an objective's value to its limit, with the stated error.
    """

    words: str
    tier: str
    router: str
    values_s: dict[str, float | None]
    hit_rate: float | None
    rejected_share: float
    ratio: float | None


class AgentsAnswer(JsonBlock):
    """The answer to `plan --agents`: the recommended deployment, its capacity in agents, and what it was compared with.

    Attributes:
        schema_version: Version of this schema.
        request: The keys of the request.
        agents: Agents at work.
        as_interactivity: Names of the objectives on tpot that were written as interactivity.
        feasible: Whether a deployment meets every objective.
        best: The recommended deployment, or the one that comes closest.
        capacity_agents: The most agents for which it was found to meet the objectives; 0 for none.
        capacity_is_least: Whether the search for the capacity ended there, so that it may be higher.
        compared: The recommended deployment, as it is compared with the others.
        others: Other tiers, routers and token budgets, the best first.
        n_runs: Simulated runs.
        n_requests: Simulated requests.
        seconds: Time of the search.
        notices: Lines for the user.
    """

    schema_version: int
    request: dict[str, Any]
    agents: int
    as_interactivity: list[str]
    feasible: bool
    best: AgentPlan
    capacity_agents: int
    capacity_is_least: bool
    compared: ComparedPlan
    others: list[ComparedPlan]
    n_runs: int
    n_requests: int
    seconds: float
    notices: list[str]
