"""The latencies of agents on a placement in closed form, by which placements are ordered before any is simulated.

Agents alternate between requests and the times of tools and humans. The estimate is the fixed point of three equations:
the rate of requests follows from the time of a request (the interactive response time law, Denning and Buzen, ACM
Computing Surveys 10(3), 1978), the number of requests that decode at once from Little's law, and the time of a token
from a step with that many decodes and from the share of time that prompts take from it. Prompts whose context has left
the caches are computed whole.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

import numpy as np

from catalogs.workloads.request_set import RequestSet
from planner.agents.load import new_tokens
from planner.problem.candidate import Candidate
from planner.problem.latency_metrics import TPOT, TTFT
from simulator.core.batch import BatchShape
from simulator.costs.step_cost import StepCost

if TYPE_CHECKING:
    from planner.agents.agent_runs import AgentServing

#: Share of the time that prompts may take from decodes in the estimate; beyond it, prompts queue without end.
MOST_SHARE: Final = 0.95

#: Rounds of the fixed point, which is damped by half.
_ROUNDS: Final = 12


@dataclass(frozen=True, slots=True)
class AgentLoad:
    """What agents at work demand on average.

    Attributes:
        agents: Agents at work.
        gap_s: Time from the end of a request to the next one of the agent.
        prompt_tokens: Tokens of a prompt.
        new_tokens: Those that are not known from the session.
        output_tokens: Tokens of an output.
    """

    agents: int
    gap_s: float
    prompt_tokens: float
    new_tokens: float
    output_tokens: float

    @classmethod
    def of(cls, requests: RequestSet, agents: int) -> Self:
        """Return the load of agents of which some requests have been drawn."""
        graph = requests.graph
        assert graph is not None
        waits = np.array(graph.awaited()) > 0
        return cls(
            agents,
            float(graph.gap_s[waits].mean()) if waits.any() else 0.0,
            float(requests.input_tokens.mean()),
            float(new_tokens(requests).mean()),
            float(requests.output_tokens.mean()),
        )


def estimated_ratio(serving: AgentServing, candidate: Candidate, load: AgentLoad) -> float:
    """Return the highest ratio of an estimated latency to its limit; only the order of such ratios is meant.

    Raises:
        InputError: The candidate does not fit in memory.
    """
    pools = dict(candidate.pools)
    decoding = pools.get("decode") or pools["both"]
    prefilling = pools.get("prefill") or decoding
    held = _held_tokens(serving, prefilling) / max(1.0, load.agents * (load.prompt_tokens + load.output_tokens))
    missed = max(0.0, 1.0 - held)
    tokens = load.new_tokens + missed * (load.prompt_tokens - load.new_tokens)
    costs = serving.deployments.step_cost(prefilling), serving.deployments.step_cost(decoding)
    batch, tpot_s, ttft_s, rate = 1.0, 0.0, 0.0, 0.0
    for _ in range(_ROUNDS):
        decode_s = _decode_s(costs[1], batch, load)
        prompt_s = _prompt_s(costs[0], prefilling, tokens, load, 0.0 if candidate.split else batch, decode_s)
        share = min(rate * prompt_s / prefilling.replicas, MOST_SHARE)
        tpot_s = decode_s if candidate.split else decode_s / (1.0 - share)
        ttft_s = prompt_s / (1.0 - share)
        longer = load.agents / (load.gap_s + ttft_s + load.output_tokens * tpot_s)
        rate = (rate + longer) / 2
        batch = (batch + rate * load.output_tokens * tpot_s / decoding.replicas) / 2
    values = {TPOT.name: tpot_s, TTFT.name: ttft_s}
    ratios = [values[slo.metric] / slo.limit_s for slo in serving.slos if slo.metric in values]
    return max(ratios, default=ttft_s + load.output_tokens * tpot_s)


def _held_tokens(serving: AgentServing, pool: Candidate) -> float:
    """Return the tokens that the caches of a pool hold, on the devices and in host memory."""
    memory = serving.deployments.memory(pool)
    device = memory.max_concurrency_tokens * pool.replicas
    host = pool.hardware.host_memory_bytes or 0.0
    return device + host / max(memory.replica_kv_bytes_per_token, 1.0)


def _decode_s(cost: StepCost, batch: float, load: AgentLoad) -> float:
    """Return the seconds of a step of decodes alone."""
    n = max(1, round(batch))
    context = round(load.prompt_tokens + load.output_tokens / 2)
    shape = BatchShape(decodes=n, decode_context_sum=n * context, decode_context_max=context, logits=n)
    return cost.cycle_s(shape)


def _prompt_s(cost: StepCost, pool: Candidate, tokens: float, load: AgentLoad, batch: float, decode_s: float) -> float:
    """Return the seconds by which a prompt makes the steps longer that compute it with `batch` decodes.

    `decode_s` are the seconds of a step of these decodes alone.
    """
    n, context = max(0, round(batch)), round(load.prompt_tokens + load.output_tokens / 2)
    chunk = max(1, min(round(tokens), pool.max_num_batched_tokens))
    before = max(load.prompt_tokens - tokens / 2, 0.0)
    shape = BatchShape(chunk, chunk * (before + chunk / 2), 1, n, n * context, context if n else 0, n + 1)
    return max(cost.cycle_s(shape) - (decode_s if n else 0.0), 0.0) * max(1.0, tokens / chunk)
