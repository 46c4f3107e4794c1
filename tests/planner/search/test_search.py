"""The search finds what brute force finds, says the same thing twice, and notices a planted fault."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from planner.evaluation.observation import Load
from planner.evaluation.run_sizes import RunSizes
from planner.evaluation.verdict import judge
from planner.problem.candidate import Candidate
from planner.problem.slo import parse_slos
from planner.search.candidate_tester import CandidateTester, Outcome
from planner.search.objectives import CapacityRace, LowestEnergy, LowestLatency
from planner.search.optuna_study import SearchSettings
from planner.search.search import search
from tests.planner.queue_toy import QueueToy, candidate

SLOS = parse_slos(["ttft.p90=0.3s"])
SIZES = RunSizes(300, 1500)


def space() -> list[Candidate]:
    return [
        candidate(tensor_parallel=tp, replicas=8 // tp, max_num_seqs=seqs, max_num_batched_tokens=tokens)
        for tp in (8, 4, 2, 1)
        for seqs in (1024, 256, 64)
        for tokens in (2048, 8192, 16384)
    ]


def plain(c: Candidate) -> tuple[int, ...]:
    return (int(c.max_num_seqs != 1024), int(c.max_num_batched_tokens != 8192))


def race_of(tester: CandidateTester) -> CapacityRace:
    return CapacityRace(tester, plain)


def brute_force(toy: QueueToy, candidates: list[Candidate]) -> dict[Candidate, float]:
    tester = CandidateTester(toy, SLOS, SIZES, 0, 0.9, None)
    rates = {}
    for c in candidates:
        floor = tester.probe(c, tester.floor_per_s(c), SIZES.full)
        rates[c] = tester.capacity(c, floor, toy.fluid_requests_per_s(c)).requests_per_s if floor.met else 0.0
    return rates


def test_search_equals_brute_force_on_a_small_space() -> None:
    toy, candidates = QueueToy(0.4), space()
    rates = brute_force(toy, candidates)
    result = search(candidates, race_of(CandidateTester(toy, SLOS, SIZES, 0, 0.9, None)), SearchSettings(100, 0))
    assert result.enumerated
    assert len(result.outcomes) == len(candidates)
    assert result.best is not None
    assert result.best.requests_per_s == pytest.approx(max(rates.values()), rel=0.041)
    assert rates[result.best.candidate] == pytest.approx(max(rates.values()), rel=0.041)


def test_the_race_costs_far_fewer_requests_than_brute_force() -> None:
    brute, raced, candidates = QueueToy(0.4), QueueToy(0.4), space()
    brute_force(brute, candidates)
    search(candidates, race_of(CandidateTester(raced, SLOS, SIZES, 0, 0.9, None)), SearchSettings(100, 0))
    brute_cost = sum(load.n_requests for _, load in brute.loads)
    assert sum(load.n_requests for _, load in raced.loads) < brute_cost / 4


def test_sampling_finds_a_near_best_plan_with_few_trials() -> None:
    toy, candidates = QueueToy(0.4), space()
    best = max(brute_force(toy, candidates).values())
    result = search(candidates, race_of(CandidateTester(toy, SLOS, SIZES, 0, 0.9, None)), SearchSettings(18, 0))
    assert not result.enumerated
    assert result.best is not None
    assert result.best.requests_per_s >= 0.9 * best


@pytest.mark.parametrize("trials", [12, 100])
def test_equal_seeds_give_equal_searches(trials: int) -> None:
    def once() -> list[Outcome]:
        return search(
            space(), race_of(CandidateTester(QueueToy(0.4), SLOS, SIZES, 0, 0.9, None)), SearchSettings(trials, 7)
        ).outcomes

    assert once() == once()


@pytest.mark.parametrize("trials", [12, 100])
def test_no_candidate_is_assessed_twice(trials: int) -> None:
    seen: Counter[Candidate] = Counter()
    race = race_of(CandidateTester(QueueToy(0.4), SLOS, SIZES, 0, 0.9, None))

    def assess(c: Candidate, best: Outcome | None) -> Outcome:
        seen[c] += 1
        return race(c, best)

    result = search(space(), assess, SearchSettings(trials, 1))
    assert set(seen.values()) == {1}
    assert len(seen) == len(result.outcomes) <= trials


def test_a_journal_resumes_where_it_was_interrupted(tmp_path: Path) -> None:
    candidates = space()[:12]
    race = race_of(CandidateTester(QueueToy(0.4), SLOS, SIZES, 0, 0.9, None))
    settings = SearchSettings(50, 0, "request", tmp_path / "study.log")

    def interrupted(c: Candidate, best: Outcome | None) -> Outcome:
        if c == candidates[5]:
            raise KeyboardInterrupt
        return race(c, best)

    broken = search(candidates, interrupted, settings)
    assert (broken.interrupted, len(broken.outcomes)) == (True, 5)
    calls: list[Candidate] = []

    def counted(c: Candidate, best: Outcome | None) -> Outcome:
        calls.append(c)
        return race(c, best)

    resumed = search(candidates, counted, settings)
    assert resumed.n_resumed == 5
    assert calls == candidates[5:]
    assert resumed.outcomes == search(candidates, race, SearchSettings(50, 0)).outcomes
    other = search(candidates, race, replace(settings, study_name="another request"))
    assert other.n_resumed == 0


def test_energy_and_latency_objectives_equal_brute_force() -> None:
    candidates, rate = space(), 4.0
    tester = CandidateTester(QueueToy(0.4), SLOS, SIZES, 0, 0.9, rate)
    for assess in (LowestEnergy(tester, lambda _: (0,)), LowestLatency(tester)):
        scores = [assess(c, None) for c in candidates]
        best = min(o.score for o in scores if o.score is not None)
        found = search(candidates, assess, SearchSettings(100, 0)).best
        assert found is not None
        assert found.score == pytest.approx(best, rel=1e-9)


def test_nothing_feasible_is_an_answer_and_ends() -> None:
    tight = parse_slos(["ttft.p90=1ms"])
    result = search(
        space(), race_of(CandidateTester(QueueToy(0.4), tight, SIZES, 0, 0.9, None)), SearchSettings(100, 0)
    )
    assert result.best is None
    assert {o.status for o in result.outcomes} == {"infeasible"}


@dataclass(frozen=True)
class IgnoresSlo:
    """A planted fault: every load is declared fine."""

    tester: CandidateTester

    def __call__(self, c: Candidate, best: Outcome | None) -> Outcome:  # noqa: ARG002
        rate = 10 * self.tester.evaluator.fluid_requests_per_s(c)
        return Outcome(c, "measured", rate, float("inf"), 0.0, "ttft.p90", -rate)


def holds_its_slo(outcome: Outcome, toy: QueueToy) -> bool:
    load = Load(outcome.requests_per_s, SIZES.full, 0)
    return judge([toy.observe(outcome.candidate, load)], SLOS).met


def test_a_search_that_ignores_the_slo_is_caught() -> None:
    toy = QueueToy(0.4)
    tester = CandidateTester(toy, SLOS, SIZES, 0, 0.9, None)
    honest = search(space(), race_of(tester), SearchSettings(100, 0)).best
    faulty = search(space(), IgnoresSlo(tester), SearchSettings(100, 0)).best
    assert honest is not None
    assert faulty is not None
    assert holds_its_slo(honest, toy)
    assert not holds_its_slo(faulty, toy)
