"""Closed-form bounds: find candidates that can never meet the objectives, and the reasons with numbers.

A bound must be safe: a candidate that it rules out would fail in every simulation. A latency bound therefore takes the
least work that any request needs (its prompt alone, every token at the cheapest decode step) and leaves a margin for
the small dips of measured cost tables.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from catalogs.arrays import BoolArray, FloatArray, IntArray
from catalogs.deployments.layout import Limits
from catalogs.ui.words import human_s, percent
from catalogs.workloads.length_statistics import LengthStatistics
from catalogs.workloads.request_set import RequestSet
from planner.evaluation.stability import most_unserved
from planner.problem.candidate import Candidate
from planner.problem.metric_definition import LeastTimes
from planner.problem.price_list import PriceList, rental_need
from planner.problem.slo import Slo, statistic_s
from planner.space.speculative import CycleS
from simulator.cluster.compiled import SHORTEST_SEQUENCE_TOKENS
from simulator.core.batch import BatchShape
from simulator.memory.plan import MemoryPlan

#: A floor must exceed the limit by this factor to rule out a candidate: cost tables are not perfectly monotone.
MARGIN: Final = 1.05

#: Lengths at which the floor of prefill is evaluated. A judgement of cost: a prompt takes the value of the next shorter
#: one, so fewer lengths lower the floor and never rule out more.
_GRID_POINTS: Final = 24

#: Standard errors by which the draw of a run may be more favourable than the sample. A judgement: a normal error is
#: larger in one of 740 cases on this side, in which a bound would rule out a candidate wrongly.
_SIGMAS: Final = 3.0

#: Fewest requests that a full run measures, of the 1,000 of the shortest one (`RunSizes`, `steady_window`).
_MIN_MEASURED: Final = 400

#: The constraint of a candidate that the request excludes, whatever its performance is (`PlanRequest.admits`).
NOT_ADMITTED: Final = "request"

#: The constraint of a candidate that the memory of its accelerators cannot hold.
MEMORY: Final = "memory"

#: The constraint of a candidate that rejects too many requests because they exceed its max_model_len.
REQUEST_LENGTH: Final = "max_model_len"

#: Name of the constraint that no whole instances on sale hold a candidate within the budget.
NOT_RENTED: Final = "price"


@dataclass(frozen=True, slots=True)
class PromptGrid:
    """The few prompt lengths at which the least time of a prompt is evaluated; every prompt takes one of these times.

    Attributes:
        tokens: The lengths, ascending. Shape (n,), at most `_GRID_POINTS`.
        place: The longest of them that is not above each prompt, as an index. Shape (requests,).
    """

    tokens: tuple[int, ...]
    place: IntArray

    @classmethod
    def of(cls, new_tokens: FloatArray) -> PromptGrid:
        """Return the grid of prompts with these numbers of tokens to compute. Shape (requests,)."""
        quantiles = np.quantile(new_tokens, np.linspace(0, 1, _GRID_POINTS), method="lower")
        grid = np.array(sorted(set(quantiles.tolist()))).astype(int)  # np.unique would import numpy.ma: 0.04 s
        return cls(tuple(grid.tolist()), np.searchsorted(grid, new_tokens, side="right") - 1)


@dataclass(frozen=True, slots=True)
class Discard:
    """The reason why a candidate is ruled out.

    Attributes:
        constraint: MEMORY, REQUEST_LENGTH, NOT_ADMITTED, NOT_RENTED or the name of an objective.
        reason: The reason in words.
        value: The needed value: bytes (MEMORY), tokens (REQUEST_LENGTH), lost replicas (NOT_ADMITTED), US dollars per
            hour (NOT_RENTED) or seconds (an objective).
        limit: The limit that it exceeds, in the same unit.
    """

    constraint: str
    reason: str
    value: float
    limit: float


@dataclass(frozen=True, slots=True)
class RentalBound:
    """Rules out candidates that cannot be rented as the request demands.

    Attributes:
        prices: The prices under the tariff of the request.
        most_usd_per_hour: The budget, US dollars per hour; None without one.
    """

    prices: PriceList
    most_usd_per_hour: float | None

    def discard(self, candidate: Candidate) -> Discard | None:
        """Return why no whole instances hold the candidate, or why they exceed the budget, or None."""
        usd, most = self.prices.usd_per_hour(candidate), self.most_usd_per_hour
        if usd is None:
            together = rental_need(candidate).together
            reason = f"no {self.prices.tariff.words} instance with {together} accelerators for one replica has a price"
            return Discard(NOT_RENTED, reason, math.inf, most or 1.0)
        if most is not None and usd > most:
            return Discard(NOT_RENTED, f"above the budget of ${most:g} per hour", usd, most)
        return None


def memory_discard(memory: MemoryPlan, longest_request_tokens: int, states_length: bool = False) -> Discard | None:
    """Return why the model, or the workload's longest request, does not fit in memory, or None.

    Args:
        memory: The memory of one accelerator.
        longest_request_tokens: The tokens of the workload's longest request.
        states_length: Whether the deployment states its max_model_len. The engine does not start where the cache cannot
            hold a sequence of a stated length; a length that is not stated is shortened to what the cache holds.
    """
    longest = memory.longest_sequence_tokens
    if memory.free_bytes <= 0:
        need = memory.weights_bytes + memory.activation_bytes + memory.non_torch_bytes
        return Discard(MEMORY, memory.why, need * memory.accelerators, memory.budget_bytes * memory.accelerators)
    if states_length and not memory.fits:
        return Discard(MEMORY, memory.why, float(memory.max_model_len), float(max(longest, 1)))
    shortest = min(SHORTEST_SEQUENCE_TOKENS, memory.max_model_len)
    if longest < min(longest_request_tokens, memory.max_model_len) or longest < shortest:
        need = max(longest_request_tokens, shortest)
        why = f"the KV cache holds a sequence of at most {longest} tokens, but a request needs {need}"
        return Discard(MEMORY, why, float(need), float(max(longest, 1)))
    return None


def length_discard(
    max_model_len: int, requests: RequestSet, slos: Sequence[Slo], side_tokens: int = 0
) -> Discard | None:
    """Return why too many requests are rejected because they exceed max_model_len, or None.

    The system does not keep up if it rejects more than `most_unserved` of the requests. An objective on a percentile is
    missed if a larger share is rejected than it leaves out; a mean is infinite if a single request is rejected. In both
    cases the draw of a run may be more favourable than the sample, by three standard errors.
    """
    too_long = _too_long(max_model_len, requests, side_tokens)
    if not too_long.any():
        return None
    everyone = np.ones(requests.n, dtype=np.bool_)
    tolerated = [(most_unserved(_MIN_MEASURED), everyone)]
    tolerated += [(1 - (slo.quantile or 1.0), _concerned(slo, requests)) for slo in slos if slo.latency.is_per_request]
    if all(_least_refused(too_long, requests, concerned) <= share for share, concerned in tolerated):
        return None
    why, longest = rejected_words(max_model_len, requests, side_tokens), requests.input_tokens + requests.output_tokens
    return Discard(REQUEST_LENGTH, why, float(longest.max()), float(max_model_len))


def _least_refused(too_long: BoolArray, requests: RequestSet, concerned: BoolArray) -> float:
    """Return a lower bound, by three standard errors, of the share of the concerned requests that are rejected.

    `concerned` marks the requests of an objective, and `too_long` those that max_model_len rejects.

    Requests of one output token, which have no time per output token, count if that makes the share smaller. Both
    arrays have shape (requests,).
    """
    several = concerned & (requests.output_tokens > 1)
    share = min(float(too_long[concerned].mean()), float(too_long[several].mean()) if several.any() else 1.0)
    return share - _SIGMAS * math.sqrt(share * (1 - share) / (_MIN_MEASURED * float(concerned.mean())))


def _concerned(slo: Slo, requests: RequestSet) -> BoolArray:
    """Return which requests an objective is about. Shape (requests,)."""
    condition = slo.latency.condition
    if condition is None:
        return np.ones(requests.n, dtype=np.bool_)
    return condition.holds(requests.input_tokens, requests.output_tokens)


def rejected_words(max_model_len: int, requests: RequestSet, side_tokens: int = 0) -> str:
    """Return which share of the requests exceeds the limits on lengths, in words; empty if none does."""
    share = float(_too_long(max_model_len, requests, side_tokens).mean())
    if not share:
        return ""
    tokens = requests.input_tokens + requests.output_tokens
    rejected = f"{percent(share)} of requests are rejected because they exceed max_model_len {max_model_len}"
    if side_tokens:
        tokens = np.maximum(requests.input_tokens, requests.output_tokens)
        rejected = f"{percent(share)} of requests are rejected because prompt or output exceed {side_tokens} positions"
        return f"{rejected} (the longest has {int(tokens.max()):,} tokens)"
    fit = LengthStatistics.of(requests.input_tokens, requests.output_tokens).within_words(max_model_len)
    return f"{rejected} (the longest has {int(tokens.max()):,} tokens; {fit})"


def _too_long(max_model_len: int, requests: RequestSet, side_tokens: int) -> npt.NDArray[np.bool_]:
    """Return which requests exceed max_model_len or, if not 0, side_tokens in input or output. Shape (requests,)."""
    inputs, outputs = requests.input_tokens, requests.output_tokens
    too_long = inputs + outputs > max_model_len
    return too_long | (np.maximum(inputs, outputs) > side_tokens) if side_tokens else too_long


def latency_discard(
    cycle_s: CycleS, limits: Limits, requests: RequestSet, slos: Sequence[Slo], prompts: PromptGrid | None = None
) -> Discard | None:
    """Return why an objective can never be met: the first whose floor is above its limit, or None.

    `prompts` is the grid of `shortest_new_tokens` of the requests, if the caller has it already.
    """
    step_s = fastest_decode_s(cycle_s, limits)
    prefill_s = prefill_floor_s(cycle_s, limits, prompts or PromptGrid.of(shortest_new_tokens(requests)))
    least = LeastTimes(prefill_s, step_s, requests.input_tokens, requests.output_tokens)
    for slo in slos:
        n_measured = _MIN_MEASURED * float(_concerned(slo, requests).mean())
        floor_s = optimistic_statistic_s(slo.latency.floor(least), slo.quantile, n_measured)
        if floor_s > slo.limit_s * MARGIN:
            why = slo.latency.floor_words.format(floor=human_s(floor_s), stat=slo.stat)
            reason = f"{why}, above the limit of {human_s(slo.limit_s)}"
            return Discard(slo.name, reason, floor_s, slo.limit_s)
    return None


def optimistic_statistic_s(samples_s: FloatArray, quantile: float | None, n_measured: float = _MIN_MEASURED) -> float:
    """Return the statistic of a favourable sample, seconds: three standard errors below the statistic of the samples.

    Args:
        samples_s: Values of many requests. Shape (n,).
        quantile: The statistic; None is the mean.
        n_measured: The fewest requests that a run measures, which the standard error is for.
    """
    if quantile is None:
        return float(samples_s.mean() - _SIGMAS * samples_s.std() / math.sqrt(n_measured))
    luck = _SIGMAS * math.sqrt(quantile * (1 - quantile) / n_measured)
    return statistic_s(samples_s, max(quantile - luck, 0.0))


def fastest_decode_s(cycle_s: CycleS, limits: Limits) -> float:
    """Return the seconds of the cheapest decode step: shortest contexts, batch sizes in powers of two."""
    sizes = [2**i for i in range(limits.max_num_seqs.bit_length())]
    return min(cycle_s(BatchShape(decodes=n, decode_context_sum=n, decode_context_max=1, logits=n)) for n in sizes)


def shortest_new_tokens(requests: RequestSet) -> FloatArray:
    """Return the prompt tokens that must be computed with any content of the prefix cache. Shape (requests,).

    These are all tokens, or one if requests may share contents.
    """
    if requests.block_hashes is not None:
        return np.ones(requests.n)
    return requests.input_tokens.astype(np.float64)


def prefill_floor_s(cycle_s: CycleS, limits: Limits, prompts: PromptGrid) -> FloatArray:
    """Return the seconds that each prompt needs on an idle engine, in chunks of the token budget. Shape (requests,).

    The values never decrease with length. They are evaluated at up to 24 lengths; a prompt takes the value of the next
    shorter one, so the floor is never too high.
    """
    at_grid = np.array([_single_prefill_s(cycle_s, limits.max_num_batched_tokens, n) for n in prompts.tokens])
    floor_s: FloatArray = np.minimum.accumulate(at_grid[::-1])[::-1][prompts.place]
    return floor_s


def _single_prefill_s(cycle_s: CycleS, budget: int, tokens: int) -> float:
    total_s, context = 0.0, 0
    while context < tokens:
        chunk = min(budget, tokens - context)
        last = context + chunk == tokens
        pairs = chunk * (context + chunk / 2)
        total_s += cycle_s(BatchShape(prefill_tokens=chunk, prefill_pairs=pairs, prefill_chunks=1, logits=int(last)))
        context += chunk
    return total_s
