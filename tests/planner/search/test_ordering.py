"""The orders of candidates by hand: placements first, redundant candidates last, and what a refinement changes."""

from __future__ import annotations

from planner.problem.candidate import Candidate
from planner.search.candidate_tester import Outcome
from planner.search.optuna_study import SearchSettings
from planner.search.ordering import (
    NEAR_MISS,
    differs_in_one_choice,
    failed_least_first,
    interleaved,
    most_promising_first,
    one_of_each_placement_first,
    placed_and_typed,
    redundant_last,
)
from planner.search.search import search
from tests.planner.queue_toy import candidate

WIDE, WIDE_SMALL = candidate(8), candidate(8, max_num_seqs=64)
NARROW, NARROW_SMALL = candidate(1, replicas=8), candidate(1, replicas=8, max_num_seqs=64)
SPACE = [WIDE, WIDE_SMALL, NARROW, NARROW_SMALL]


def test_the_most_promising_come_first_and_with_default_limits_one_of_each_placement() -> None:
    estimates = {WIDE: 3.0, WIDE_SMALL: 1.0, NARROW: 2.0, NARROW_SMALL: 4.0}
    assert most_promising_first(SPACE, estimates.__getitem__) == [WIDE_SMALL, NARROW, WIDE, NARROW_SMALL]
    assert most_promising_first(SPACE, estimates.__getitem__, True) == [NARROW, WIDE, NARROW_SMALL, WIDE_SMALL]
    assert one_of_each_placement_first([WIDE_SMALL, WIDE, NARROW]) == [WIDE_SMALL, NARROW, WIDE]
    assert interleaved([WIDE, NARROW], [NARROW, WIDE_SMALL]) == [WIDE, NARROW, WIDE_SMALL]


def test_a_redundant_candidate_comes_last_if_every_estimate_is_equal() -> None:
    alike = {WIDE: (1.0, 5.0), WIDE_SMALL: (1.009, 5.0), NARROW: (1.0, 5.0), NARROW_SMALL: (1.0, 6.0)}
    assert redundant_last(SPACE, alike.__getitem__, 0.01) == [WIDE, NARROW, NARROW_SMALL, WIDE_SMALL]
    assert redundant_last(SPACE, alike.__getitem__, 0.001) == SPACE
    other_tokens = [WIDE, candidate(8, max_num_batched_tokens=2048)]
    assert redundant_last(other_tokens, lambda _: (1.0,), 0.01) == other_tokens


def test_a_refinement_changes_one_choice() -> None:
    assert differs_in_one_choice(WIDE, WIDE_SMALL)
    assert differs_in_one_choice(WIDE, NARROW)  # the placement is one choice
    assert differs_in_one_choice(WIDE, candidate(8, kv_dtype="fp8"))
    assert not differs_in_one_choice(WIDE, WIDE)
    assert not differs_in_one_choice(WIDE, NARROW_SMALL)
    assert placed_and_typed(WIDE) == placed_and_typed(WIDE_SMALL) == placed_and_typed(WIDE.with_api_servers(2))
    assert placed_and_typed(WIDE) != placed_and_typed(candidate(8, kv_dtype="fp8"))


# ---- how the search uses them


GRID = [
    candidate(tp, replicas=8 // tp, max_num_seqs=seqs, max_num_batched_tokens=tokens)
    for tp in (8, 4, 2, 1)
    for seqs in (1024, 512, 256, 128, 64)
    for tokens in (2048, 8192)
]


class Tried(list[Candidate]):
    """Gives the candidates with a score that score; all others do not meet the objectives."""

    def __init__(self, scores: dict[Candidate, float]) -> None:
        super().__init__()
        self.scores = scores

    def __call__(self, c: Candidate, best: Outcome | None) -> Outcome:  # noqa: ARG002
        self.append(c)
        score = self.scores.get(c)
        return Outcome(c, "infeasible" if score is None else "measured", 1.0, 2.0, 2.0, "ttft.p90", score)


def test_placements_that_failed_come_after_those_that_did_not() -> None:
    tried = Tried({})
    search(GRID, tried, SearchSettings(8, 0))
    assert [c.layout.tensor_parallel for c in tried[:5]] == [8, 4, 2, 1, 8]


def test_until_a_plan_holds_every_other_trial_takes_the_safest() -> None:
    holds = GRID[-2]
    tried = Tried({holds: 1.0})
    search(GRID, tried, SearchSettings(30, 0), safest=lambda: [holds, *GRID[:-2], GRID[-1]])
    assert tried[0] == GRID[0]
    assert tried[1] == holds
    assert tried[2].layout.tensor_parallel == 4  # by promise again, and the first placement failed


def test_the_second_half_refines_the_best() -> None:
    best = GRID[3]
    tried = Tried({c: 1.0 + GRID.index(c) for c in GRID} | {best: 0.0})
    search(GRID, tried, SearchSettings(12, 0))
    first, second = tried[:7], tried[7:]
    assert first == GRID[:7]
    assert all(differs_in_one_choice(c, best) for c in second)
    assert second == [c for c in GRID[7:] if differs_in_one_choice(c, best)][: len(second)]


def test_a_near_miss_counts_against_all_limits_but_those_that_relieve_it() -> None:
    tokens = [candidate(8, max_num_batched_tokens=n) for n in (8192, 16384, 4096, 2048)]
    eight, sixteen, four, two = tokens
    order = [*tokens, NARROW]
    assert failed_least_first(order, []) == order
    assert failed_least_first(order, [(eight, "tpot.mean", 1.2)]) == [four, two, NARROW, eight, sixteen]
    assert failed_least_first(order, [(eight, "ttft.p90", 1.2)]) == [sixteen, NARROW, eight, four, two]
    twice = [(eight, "itl.p99", 1.3), (four, "itl.p99", 1.1)]
    assert failed_least_first(order, twice) == [two, NARROW, eight, sixteen, four]
    for far in ((eight, "tpot.mean", NEAR_MISS), (eight, "e2e.p90", 1.2), (eight, "tpot.mean", 0.9)):
        assert failed_least_first(order, [far]) == [NARROW, *tokens]


def test_a_search_finds_a_thrifty_placement_that_only_short_steps_can_use() -> None:
    """The first placement holds only with the smallest token limit, which is the last of 20 limits of its order."""
    space = [
        candidate(8 if wide else 1, replicas=n, max_num_seqs=seqs, max_num_batched_tokens=tokens)
        for wide, n in ((True, 1), (False, 8), (False, 7), (False, 6), (False, 5))
        for tokens in (16384, 8192, 4096, 2048)
        for seqs in (1024, 512, 256, 128, 64)
    ]

    def assess(c: Candidate, best: Outcome | None) -> Outcome:  # noqa: ARG001
        wide = c.layout.tensor_parallel == 8
        if wide and c.max_num_batched_tokens > 2048:
            return Outcome(c, "infeasible", 0.0, 1.0, 1 + c.max_num_batched_tokens / 65536, "tpot.mean", None)
        return Outcome(c, "measured", 1.0, 2.0, 0.9, "tpot.mean", 1.0 if wide else 2.0)

    found = search(space, assess, SearchSettings(20, 0)).best
    assert found is not None
    assert found.candidate.layout.tensor_parallel == 8
