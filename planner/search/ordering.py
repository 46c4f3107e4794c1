"""Orders of candidates by estimates, and which candidates are alike: where a search begins, and where it refines."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from planner.problem.candidate import Candidate, kind_of
from planner.problem.latency_metrics import LATENCY_METRICS

#: A candidate that misses an objective by less than this factor may meet it with other batching limits.
NEAR_MISS: Final = 1.5


def most_promising_first(
    candidates: Sequence[Candidate], estimate: Callable[[Candidate], float], default_limits_first: bool = False
) -> list[Candidate]:
    """Return the candidates by ascending estimate of the score.

    With `default_limits_first`, every placement comes with its first limits before any other limits.
    """
    if not default_limits_first:
        return sorted(candidates, key=estimate)
    best = sorted(_by_placement(candidates), key=lambda cs: estimate(cs[0]))
    return [cs[0] for cs in best] + [c for cs in best for c in cs[1:]]


def one_of_each_placement_first(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Return the first candidate of every placement, then all others, each part in the given order."""
    first = [cs[0] for cs in _by_placement(candidates)]
    taken = set(first)
    return first + [c for c in candidates if c not in taken]


def best_on_most_of_each_kind(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Return, for each kind of accelerator, the first of the candidates that use the most accelerators of the kind."""
    most: dict[str, Candidate] = {}
    for c in candidates:
        known = most.setdefault(kind_of(c), c)
        if c.hardware.n_accelerators > known.hardware.n_accelerators:
            most[kind_of(c)] = c
    return sorted(most.values(), key=candidates.index)


def _by_placement(candidates: Sequence[Candidate]) -> list[list[Candidate]]:
    """Return the candidates grouped by placement, in their order."""
    placements: dict[object, list[Candidate]] = {}
    for c in candidates:
        placements.setdefault(c.placement, []).append(c)
    return list(placements.values())


def interleaved(*orders: Sequence[Candidate]) -> list[Candidate]:
    """Return the candidates of several orders in turn, each once."""
    return list(dict.fromkeys(c for turn in zip(*orders, strict=True) for c in turn))


def redundant_last(
    candidates: Sequence[Candidate], estimates: Callable[[Candidate], Sequence[float]], tolerance: float
) -> list[Candidate]:
    """Return the candidates, with those moved to the end that an earlier one makes redundant.

    A candidate makes another one redundant if they differ only in `max_num_seqs` or in API servers, and none of their
    estimates differs by more than `tolerance`: what differs is not expected to limit them. A search has few trials,
    which are better spent on candidates that are expected to differ.
    """
    seen: dict[object, list[Sequence[float]]] = {}
    first, last = list[Candidate](), list[Candidate]()
    for c in candidates:
        own, others = estimates(c), seen.setdefault((*placed_and_typed(c), c.max_num_batched_tokens), [])
        is_redundant = any(
            all(math.isclose(a, b, rel_tol=tolerance) for a, b in zip(own, other, strict=True)) for other in others
        )
        others.append(own)
        (last if is_redundant else first).append(c)
    return first + last


def placed_and_typed(candidate: Candidate) -> tuple[object, ...]:
    """Return every choice except batching limits and API servers, which seldom decide whether a load is carried."""
    c = candidate
    return (c.hardware, c.replicas, *c.step_choices, c.split)


def failed_least_first(
    candidates: Sequence[Candidate],
    missed: Iterable[tuple[Candidate, str, float]],
    group_of: Callable[[Candidate], object] = placed_and_typed,
) -> list[Candidate]:
    """Return the candidates with those first whose placement and dtypes failed least often, else in their order.

    A near miss of a metric does not count against the token limits that relieve it (`relieving_tokens`): fewer batched
    tokens in a step relieve the times between tokens, more of them the time to first token.

    Args:
        candidates: The candidates in order of promise.
        missed: The candidates that failed, each with its objective and with value / limit.
        group_of: Returns what is equal for candidates of equal placement and dtypes.
    """
    failed = Counter[object]()
    fewest: dict[object, float] = {}
    most: dict[object, float] = {}
    for c, objective, ratio in missed:
        group, tokens = group_of(c), c.max_num_batched_tokens
        relieving = LATENCY_METRICS[objective.partition(".")[0]].relieving_tokens
        failed[group] += 1
        if 1 < ratio < NEAR_MISS and relieving < 0:
            fewest[group] = min(tokens, fewest.get(group, math.inf))
        if 1 < ratio < NEAR_MISS and relieving > 0:
            most[group] = max(tokens, most.get(group, -math.inf))

    def failures(c: Candidate) -> int:
        n_failed = failed.get(group := group_of(c), 0)
        if not n_failed:
            return 0
        tokens = c.max_num_batched_tokens
        relieved = tokens < fewest.get(group, -math.inf) or tokens > most.get(group, math.inf)
        return 0 if relieved else n_failed

    return sorted(candidates, key=failures)


def _choices(candidate: Candidate) -> tuple[object, ...]:
    """Return the choices that a refinement changes one at a time: placement, weights, KV cache and batching limits."""
    c = candidate
    placed = (c.hardware, c.replicas, c.layout, c.split, c.rest)
    return (placed, c.weight_dtype, c.kv_dtype, c.max_num_seqs, c.max_num_batched_tokens)


def differs_in_one_choice(a: Candidate, b: Candidate) -> bool:
    """Return whether two candidates differ in exactly one choice."""
    return sum(x != y for x, y in zip(_choices(a), _choices(b), strict=True)) == 1
