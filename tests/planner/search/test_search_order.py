"""The order of a search by hand: promise first, what cannot win is skipped, and what Optuna is given."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import optuna
import pytest
from optuna.samplers import RandomSampler

from planner.problem.candidate import Candidate
from planner.search.candidate_tester import Outcome
from planner.search.optuna_study import CandidateStudy, SearchSettings
from planner.search.ordering import differs_in_one_choice
from planner.search.search import SearchResult, _tell, search
from tests.planner.queue_toy import candidate

SPACE = [
    candidate(tensor_parallel=tp, replicas=8 // tp, max_num_seqs=seqs, max_num_batched_tokens=tokens)
    for tp in (8, 4, 2, 1)
    for seqs in (1024, 256, 64)
    for tokens in (2048, 8192)
]


def outcome(c: Candidate, score: float | None, status: str = "measured", ratio: float = 0.5) -> Outcome:
    return Outcome(c, status, 1.0, 2.0, ratio, "ttft.p90", score)  # type: ignore[arg-type]


def score_of(c: Candidate) -> float:
    """The best is the 18th of SPACE."""
    return float(abs(SPACE.index(c) - 17))


def study_of(settings: SearchSettings, candidates: list[Candidate]) -> CandidateStudy[Candidate]:
    """The study as another process has it."""
    by_params = {(" ".join(map(str, c.placement)), c.max_num_seqs, c.max_num_batched_tokens): c for c in candidates}
    return CandidateStudy(("layout", "max_num_seqs", "max_num_batched_tokens"), by_params, settings, RandomSampler())


class Recorder:
    """Measures a candidate by its place; keeps what it was given."""

    def __init__(self) -> None:
        self.given: list[tuple[Candidate, Outcome | None]] = []

    def __call__(self, c: Candidate, best: Outcome | None) -> Outcome:
        self.given.append((c, best))
        return outcome(c, score_of(c))

    @property
    def order(self) -> list[Candidate]:
        return [c for c, _ in self.given]


def test_all_are_measured_in_the_order_of_promise_each_against_the_best_so_far() -> None:
    seen, told = Recorder(), []
    result = search(SPACE, seen, SearchSettings(len(SPACE), 0), lambda *step: told.append(step))
    assert seen.order == SPACE
    assert [o.candidate for o in result.outcomes] == SPACE
    for i, (_, best) in enumerate(seen.given):
        assert (best is None) == (i == 0)
        if best is not None:
            assert best.score == min(score_of(c) for c in SPACE[:i])
    assert [(done, planned) for done, planned, _ in told] == [(i + 1, len(SPACE)) for i in range(len(SPACE))]
    assert [best.score for *_, best in told] == [min(score_of(c) for c in SPACE[: i + 1]) for i in range(len(SPACE))]
    assert result.best is not None
    assert result.best.candidate == SPACE[17]
    assert (result.enumerated, result.interrupted, result.n_resumed, result.n_outclassed) == (True, False, 0, 0)


def test_the_sampler_chooses_nothing_while_there_are_trials_for_all_that_can_win(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One candidate of 24 cannot win, so 23 trials are enough: by promise, then those first that refine the best."""

    seen, wanted = Recorder(), []
    ask = CandidateStudy.ask

    def recorded(self: CandidateStudy[Candidate], c: Candidate | None = None) -> object:
        wanted.append(c)
        return ask(self, c)

    monkeypatch.setattr(CandidateStudy, "ask", recorded)
    search(SPACE, seen, SearchSettings(len(SPACE) - 1, 0), outclassed=lambda c, _: c == SPACE[-1])
    assert wanted == seen.order
    assert len(seen.order) == 23
    for i, (c, best) in enumerate(seen.given):
        left = [each for each in SPACE[:-1] if each not in seen.order[:i]]
        if i > 23 // 2:
            assert best is not None
            refining = [each for each in left if differs_in_one_choice(each, best.candidate)]
            left = refining or left
        assert c == left[0]


def test_the_safest_is_tried_every_second_time_and_then_always_until_a_plan_is_known() -> None:
    safest = SPACE[::-1]
    order: list[Candidate] = []

    def fails(c: Candidate, best: Outcome | None) -> Outcome:  # noqa: ARG001
        order.append(c)
        return outcome(c, None, "infeasible")

    search(SPACE, fails, SearchSettings(12, 0), safest=safest)
    took_safest = [c == next(s for s in safest if s not in order[:i]) for i, c in enumerate(order)]
    # Of 12 trials, those from the seventh on leave at most half a trial more than half of the trials.
    assert took_safest == [False, True, False, True, False, True] + [True] * 6


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_first_half_of_few_trials_is_by_promise(seed: int) -> None:
    seen = Recorder()
    result = search(SPACE, seen, SearchSettings(12, seed))
    assert len(result.outcomes) == len(seen.given) == 12
    assert seen.order[:7] == SPACE[:7]  # up to and with half of the trials
    assert seen.order != SPACE[:12]
    assert not result.enumerated


def test_the_sampler_chooses_when_nothing_is_left_to_refine() -> None:
    """The first is the best, and two of its refinements are left after nine trials; then the choice has a seed."""

    def first_is_best(c: Candidate, best: Outcome | None) -> Outcome:
        seen(c, best)
        return outcome(c, float(SPACE.index(c)))

    orders = set()
    for seed in range(6):
        seen = Recorder()
        search(SPACE, first_is_best, SearchSettings(16, seed))
        orders.add(tuple(SPACE.index(c) for c in seen.order))
        assert seen.order[:11] == [*SPACE[:9], SPACE[12], SPACE[18]]
    assert len(orders) > 1


def test_what_cannot_win_is_skipped_and_counted() -> None:
    seen = Recorder()
    result = search(
        SPACE, seen, SearchSettings(100, 0), outclassed=lambda c, best: best.score <= 15 and c.max_num_seqs == 64
    )
    assert [c for c in seen.order if c.max_num_seqs == 64] == []
    assert result.n_outclassed == 8
    assert result.enumerated
    assert [c for c in SPACE if c.max_num_seqs != 64] == seen.order


def test_candidates_are_compared_once_with_each_best() -> None:
    seen, compared = Recorder(), list[tuple[Candidate, Outcome]]()

    def outclassed(c: Candidate, best: Outcome) -> bool:
        compared.append((c, best))
        return False

    search(SPACE, seen, SearchSettings(len(SPACE) - 1, 0), outclassed=outclassed)
    bests = list(dict.fromkeys(best for _, best in seen.given if best is not None))
    assert len(bests) > 3
    assert compared[: len(SPACE) * len(bests)] == [(c, best) for best in bests for c in SPACE]
    assert len(compared) == len(SPACE) * len(bests) + 1  # and the one candidate that is left at the end


def test_a_candidate_that_was_outclassed_late_is_not_missing() -> None:
    seen = Recorder()
    result = search(SPACE, seen, SearchSettings(5, 0), outclassed=lambda c, _: c.layout.tensor_parallel < 8)
    assert (len(seen.given), result.n_outclassed, result.enumerated) == (5, 18, False)


def test_an_interrupted_search_keeps_what_it_found() -> None:
    def stops(c: Candidate, best: Outcome | None) -> Outcome:  # noqa: ARG001
        if c == SPACE[3]:
            raise KeyboardInterrupt
        return outcome(c, score_of(c))

    result = search(SPACE, stops, SearchSettings(100, 0))
    assert result.interrupted
    assert [o.candidate for o in result.outcomes] == SPACE[:3]
    assert not result.enumerated


def test_no_candidates_no_search() -> None:
    assert search([], Recorder(), SearchSettings(5, 0)) == SearchResult()


def test_what_others_have_begun_is_taken_when_the_rest_is_done_the_last_of_it_first(tmp_path: Path) -> None:
    settings = SearchSettings(100, 0, "begun", tmp_path / "study.log")
    other = study_of(settings, SPACE[:6])
    for begun in (SPACE[1], SPACE[3], SPACE[4]):
        other.ask(begun)
    seen = Recorder()
    search(SPACE[:6], seen, settings)
    assert [SPACE.index(c) for c in seen.order] == [0, 2, 5, 4, 3, 1]


def test_other_processes_see_what_is_reserved_and_nothing_more_while_the_sampler_chooses(tmp_path: Path) -> None:
    """The next candidates in order of promise are reserved for three workers, or only the sampler's choice is.

    In the second half, candidates that refine the best come first in order, and the sampler chooses after them.
    """
    space = [
        candidate(tensor_parallel=tp, replicas=8 // tp, max_num_seqs=seqs, max_num_batched_tokens=tokens)
        for tp in (8, 4, 2, 1)
        for seqs in (1024, 512, 256, 128, 64)
        for tokens in (2048, 4096, 8192)
    ]
    sampled = 0
    for seed in range(4):
        settings = SearchSettings(36, seed, "reserved", tmp_path / f"{seed}.log")
        other = study_of(settings, space)
        begun: list[set[Candidate]] = []
        bests: list[Outcome | None] = []

        class Ahead(Recorder):
            depth = 3

            def evaluate(self, c: Candidate, best: Outcome | None, upcoming: Sequence[Candidate]) -> Outcome:  # noqa: ARG002
                begun.append(other.begun_elsewhere())  # noqa: B023 - called while it has this value
                bests.append(best)  # noqa: B023
                self.given.append((c, best))
                return outcome(c, float(abs(space.index(c) - 10)))

        seen = Ahead()
        search(space, seen, settings, lookahead=seen)
        assert seen.order[:19] == space[:19]
        assert begun[:19] == [set(space[i : i + 4]) for i in range(19)]
        for i, chosen in enumerate(seen.order[19:], start=19):
            waiting, best = [c for c in space if c not in seen.order[:i]], bests[i]
            assert best is not None
            if not any(differs_in_one_choice(c, best.candidate) for c in waiting) and chosen != waiting[0]:
                sampled += 1
                assert begun[i] == {chosen}
        assert other.begun_elsewhere() == set()
    assert sampled > 1


# ---- results


def test_the_best_is_the_first_of_the_feasible_with_the_lowest_score() -> None:
    a, b, c, d, e = (outcome(x, score) for x, score in zip(SPACE, (5.0, 3.0, 3.0, None, 1.0), strict=False))
    result = SearchResult()
    for each in (replace(e, status="infeasible"), replace(e, status="pruned")):
        result.add(each)
        assert result.best is None
    for each, best in ((d, d), (a, a), (b, b), (c, b), (replace(e, status="tied"), replace(e, status="tied"))):
        result.add(each)
        assert result.best == best
    assert result.n_pruned == 1


def test_parts_of_a_space_are_joined() -> None:
    first = SearchResult(n_resumed=1, n_outclassed=2)
    first.add(outcome(SPACE[0], 3.0))
    second = SearchResult(enumerated=False, n_resumed=10, n_outclassed=20)
    second.add(outcome(SPACE[1], 1.0))
    third = SearchResult(interrupted=True)
    third.add(outcome(SPACE[2], 2.0))
    first.join(second)
    assert (first.enumerated, first.interrupted) == (False, False)
    first.join(third)
    assert [o.candidate for o in first.outcomes] == SPACE[:3]
    assert first.best is not None
    assert first.best.candidate == SPACE[1]
    assert (first.enumerated, first.interrupted, first.n_resumed, first.n_outclassed) == (False, True, 11, 22)


# ---- what Optuna is given


@pytest.mark.parametrize(
    ("found", "value", "reported", "constraint"),
    [
        (outcome(SPACE[0], 7.0, ratio=0.75), 7.0, None, -0.25),
        (outcome(SPACE[0], 7.0, ratio=1.5), 7.0, None, 0.0),  # feasible in the end, whatever the last run
        (outcome(SPACE[0], None, "infeasible", 3.0), None, 3.0, 2.0),
        (outcome(SPACE[0], None, "pruned", 0.5), None, 0.5, 1e-6),  # it lost the race, though within its limits
        (outcome(SPACE[0], None, "infeasible", 1002.0), None, 10.0, 9.0),
        (None, None, 10.0, 9.0),
    ],
)
def test_optuna_gets_the_score_or_how_far_off_it_was(
    found: Outcome | None, value: float | None, reported: float | None, constraint: float
) -> None:
    study = optuna.create_study()
    trial = study.ask({"x": optuna.distributions.CategoricalDistribution([1, 2])})
    _tell(study, trial, found)
    (told,) = study.trials
    assert told.value == (reported if value is None else value)
    assert told.state == (optuna.trial.TrialState.PRUNED if value is None else optuna.trial.TrialState.COMPLETE)
    assert told.intermediate_values == ({} if reported is None else {0: reported})
    assert list(told.constraints.values()) == [pytest.approx(constraint)]
