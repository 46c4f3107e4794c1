"""What a search does not simulate: short runs that save little, rates that decide nothing, dominated candidates."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.evaluation.observation import Load, Observation
from planner.evaluation.run_sizes import RunSizes
from planner.evaluation.verdict import ErrorAllowance
from planner.problem.candidate import Candidate, Split
from planner.problem.slo import parse_slos
from planner.search.candidate_tester import HALF_TIE, TIE, CandidateTester, Outcome, apart_from_seats, dominates
from planner.search.objectives import CapacityRace, LeastLoad, LowestEnergy, LowestLatency, equal_unit_cost
from planner.search.optuna_study import SearchSettings
from planner.search.search import SearchResult, search
from planner.search.workers import ProcessLookahead
from tests.planner.queue_toy import QueueToy, candidate

SLOS = parse_slos(["ttft.p90=1s"])
SIZES = RunSizes(10, 50)


@dataclass
class SeatsToy(QueueToy):
    """Latency is proportional to the rate, and up to `busy_seats` requests are in a batch at any rate.

    Attributes:
        capacity_per_s: Of each number of batched tokens, where no seat is missing.
        eager: Share of its capacity that a candidate loses for each halving of `max_num_seqs` from 1024.
        busy_seats: Requests in a batch at the same time; None if the evaluator does not tell.
        short_run: Requests of a short run.
    """

    capacity_per_s: dict[int, float] = field(default_factory=dict)
    eager: float = 0.0
    busy_seats: int | None = 100
    short_run: int = SIZES.quick

    def capacity_of(self, c: Candidate) -> float:
        fewer = min(c.max_num_seqs / (self.busy_seats or 1), 1.0)
        halvings = np.log2(1024 / c.max_num_seqs)
        return float(self.capacity_per_s[c.max_num_batched_tokens] * fewer * (1 - self.eager) ** halvings)

    def fluid_requests_per_s(self, c: Candidate) -> float:
        return 2 * self.capacity_of(c)

    def guess_s(self, c: Candidate, requests_per_s: float, metric: str, quantile: float | None = None) -> float:  # noqa: ARG002
        return 0.8 * requests_per_s / self.capacity_of(c)

    def run_requests(self, c: Candidate, load: Load) -> int:  # noqa: ARG002
        return max(load.n_requests, self.short_run)

    def observe(self, c: Candidate, load: Load) -> Observation:
        self.loads.append((c, load))
        ttft_s = np.full(10, load.requests_per_s / self.capacity_of(c))
        share = 1.0 if self.busy_seats is None else min(self.busy_seats / c.max_num_seqs, 1.0)
        n = self.run_requests(c, load)
        return Observation(load, {"ttft": ttft_s}, n, 0.0, n_simulated=n, seat_share=share)

    @property
    def runs(self) -> list[tuple[int, int]]:
        """`max_num_seqs` and batched tokens of each run."""
        return [(c.max_num_seqs, c.max_num_batched_tokens) for c, _ in self.loads]


def by_distance(c: Candidate) -> tuple[int, ...]:
    """512 sequences are the default, then more and then fewer."""
    return ((512, 1024, 256, 128, 64).index(c.max_num_seqs), abs(c.max_num_batched_tokens - 2048))


def race_of(toy: SeatsToy, rate: float | None = None) -> CapacityRace:
    return CapacityRace(CandidateTester(toy, SLOS, SIZES, 0, 0.9, rate), by_distance)


def space(*tokens: int) -> list[Candidate]:
    return [candidate(max_num_seqs=s, max_num_batched_tokens=t) for t in tokens for s in (1024, 512, 256, 128, 64)]


def searched(race: CapacityRace, candidates: list[Candidate], trials: int = 100, settle: bool = True) -> SearchResult:
    settled = race.settled if settle else None
    return search(candidates, race, SearchSettings(trials, 0), outclassed=race.outclassed, settled=settled)


# ---- dominated candidates


def test_candidates_with_fewer_seats_that_stay_free_are_not_simulated() -> None:
    """The batch has 100 requests: 256 and 128 seats are as good as 1024, and 64 are too few. 512 are simpler."""
    toy = SeatsToy(capacity_per_s={2048: 10.0, 8192: 9.0})
    result = searched(race_of(toy), space(2048, 8192))
    assert set(toy.runs) == {(seqs, tokens) for seqs in (1024, 512, 64) for tokens in (2048, 8192)}
    assert result.enumerated
    assert result.n_outclassed == 10 - len(result.outcomes)


def test_a_simpler_candidate_is_measured_although_it_is_dominated() -> None:
    """With 512 seats it is simpler than the best, so it is recommended if it is hardly worse."""
    toy = SeatsToy(capacity_per_s={2048: 10.0})
    result = searched(race_of(toy), space(2048))
    found = [(o.candidate.max_num_seqs, o.status) for o in result.outcomes]
    assert found == [(1024, "measured"), (512, "tied"), (64, "pruned")]


def test_without_knowledge_of_the_seats_every_candidate_is_simulated() -> None:
    toy = SeatsToy(capacity_per_s={2048: 10.0}, busy_seats=None)
    assert {seqs for seqs, _ in (searched(race_of(toy), space(2048)), toy.runs)[1]} == {1024, 512, 256, 128, 64}


def test_only_fewer_seats_that_no_run_reached_are_dominated() -> None:
    def outcome(seqs: int, seats: float, **changes: object) -> Outcome:
        c = candidate(max_num_seqs=seqs, **changes)
        return Outcome(c, "pruned", 0.0, 1.0, 1.5, "ttft.p90", None, seats=seats)

    few = candidate(max_num_seqs=128)
    assert dominates(outcome(256, 127.0), few)
    assert not dominates(outcome(256, 128.0), few)  # the last seat was in use, so that another request may have waited
    assert not dominates(outcome(256, float("inf")), few)
    assert not dominates(outcome(64, 20.0), few)  # it has captured fewer CUDA graphs
    assert not dominates(outcome(256, 127.0, split=Split(1)), replace(few, split=Split(1)))  # pools share the limit
    assert apart_from_seats(few) == apart_from_seats(candidate(max_num_seqs=64))
    assert apart_from_seats(few) != apart_from_seats(replace(few, kv_dtype="fp8"))


def test_a_miss_settles_only_what_needs_at_least_the_rate_that_was_missed() -> None:
    race = race_of(SeatsToy(capacity_per_s={2048: 10.0}))
    best = Outcome(candidate(max_num_seqs=1024), "measured", 10.0, 10.1, 1.0, "ttft.p90", -10.0)
    plain, simpler = candidate(max_num_seqs=64), candidate(max_num_seqs=512, max_num_batched_tokens=2048)
    for rate, settled in ((10 * (1 + HALF_TIE), (True, False)), (9.9, (True, True)), (10.2, (False, False))):
        missed = Outcome(best.candidate, "pruned", 0.0, rate, 1.5, "ttft.p90", None)
        assert (race.settled(plain, best, missed), race.settled(simpler, best, missed)) == settled
    with_load = race_of(SeatsToy(capacity_per_s={2048: 10.0}), 12.0)
    missed = Outcome(best.candidate, "pruned", 0.0, 12.0, 1.5, "ttft.p90", None)
    assert with_load.settled(simpler, best, missed)
    for other in (
        LeastLoad(race.tester, race),
        LowestEnergy(race.tester, race.distance_from_defaults),
        LowestLatency(race.tester),
    ):
        assert not other.settled(plain, best, missed)


@given(
    st.lists(st.floats(9.5, 10.5), min_size=1, max_size=4),
    st.floats(0.0, 0.03),
    st.integers(20, 1100),
    st.permutations(range(20)),
)
def test_the_plan_is_at_most_a_tie_worse_than_any_candidate_simulated_or_not(
    per_s: list[float], eager: float, busy: int, order: list[int]
) -> None:
    tokens = [2048 * (i + 1) for i in range(len(per_s))]
    toy = SeatsToy(capacity_per_s=dict(zip(tokens, per_s, strict=True)), eager=eager, busy_seats=busy)
    every = space(*tokens)
    candidates = [every[i] for i in order if i < len(every)]
    for settle in (True, False):
        best = searched(race_of(toy), candidates, settle=settle).best
        assert best is not None
        assert toy.capacity_of(best.candidate) >= (1 - TIE) * max(toy.capacity_of(c) for c in every)


def test_a_candidate_that_is_skipped_at_its_turn_takes_a_trial() -> None:
    toy = SeatsToy(capacity_per_s={2048: 10.0, 4096: 9.9})
    candidates = [c for c in space(2048, 4096) if c.max_num_seqs in (1024, 256, 128)]
    result = searched(race_of(toy), candidates, trials=3)
    assert [(o.candidate.max_num_seqs, o.candidate.max_num_batched_tokens) for o in result.outcomes] == [(1024, 2048)]
    assert not result.enumerated


def test_two_workers_skip_what_one_process_skips() -> None:
    toy = SeatsToy(capacity_per_s={2048: 9.0, 4096: 9.9, 8192: 10.5, 16384: 10.4})
    race, candidates = race_of(toy), space(2048, 4096, 8192, 16384)
    alone = searched(race, candidates)
    lookahead = ProcessLookahead(race, 1)
    try:
        shared = search(
            candidates, race, SearchSettings(100, 0), None, race.outclassed, lookahead, settled=race.settled
        )
    finally:
        lookahead.close()
    assert shared.outcomes == alone.outcomes
    assert len(alone.outcomes) < len(candidates)


# ---- rates and lengths


@pytest.mark.parametrize(("short_run", "lengths"), [(25, [10, 50]), (26, [50])])
def test_a_short_run_comes_first_if_it_is_at_most_half_as_long_as_a_full_one(
    short_run: int, lengths: list[int]
) -> None:
    toy = SeatsToy(capacity_per_s={8192: 10.0}, short_run=short_run)
    assert race_of(toy).tester.race(candidate(), 9.0).met
    assert [load.n_requests for _, load in toy.loads] == lengths


def test_a_simpler_candidate_that_misses_the_lower_rate_is_not_run_at_the_higher_one() -> None:
    toy = SeatsToy(capacity_per_s={2048: 9.7, 8192: 10.0}, busy_seats=None)
    race = race_of(toy)
    best = Outcome(candidate(max_num_seqs=1024), "measured", 10.0, 10.1, 1.0, "ttft.p90", -10.0)
    assert not race(candidate(max_num_seqs=512, max_num_batched_tokens=2048), best).feasible
    assert all(load.requests_per_s == pytest.approx(9.9) for _, load in toy.loads)


def test_a_capacity_is_looked_for_from_the_estimate_corrected_by_that_of_a_known_plan() -> None:
    toy = SeatsToy(capacity_per_s={2048: 10.0, 8192: 5.0})
    tester = race_of(toy).tester
    a, b = candidate(max_num_batched_tokens=2048), candidate(max_num_batched_tokens=8192)
    alone = tester.start_per_s(a)
    assert alone == pytest.approx(10 / 0.8, rel=0.05)  # the estimate is 20 % too short
    known = Outcome(b, "measured", 5.0, 5.05, 1.0, "ttft.p90", -5.0)
    assert tester.start_per_s(a, known) == pytest.approx(10.0, rel=0.1)
    assert tester.start_per_s(a, replace(known, requests_per_s=50.0)) == tester.evaluator.fluid_requests_per_s(a)
    strict = replace(tester, slos=parse_slos(["ttft.p90=1us"]))
    assert strict.start_per_s(a) == tester.evaluator.fluid_requests_per_s(a)


def test_the_estimate_of_a_capacity_is_made_once_for_each_tester() -> None:
    """The toy guesses 0.8 of its time: with a limit of 1 s, the estimate is 1.25 times the capacity."""
    toy, c = GuessCounter(capacity_per_s={8192: 16.0}), candidate(max_num_seqs=1024)
    tester = CandidateTester(toy, SLOS, SIZES, 0, 0.9, None)
    assert tester.guessed_capacity_per_s(c) == pytest.approx(20.0, rel=0.05)
    n_guesses = toy.n_guesses
    assert tester.guessed_capacity_per_s(c) <= 20.0
    assert toy.n_guesses == n_guesses > 0
    stricter = replace(tester, slos=parse_slos(["ttft.p90=500ms"]))
    assert stricter.guessed_capacity_per_s(c) == pytest.approx(10.0, rel=0.05)
    slower = replace(tester, fixed_allowance=ErrorAllowance(speed=1.6))
    assert slower.guessed_capacity_per_s(c) == pytest.approx(20.0 / 1.6, rel=0.05)


@dataclass
class GuessCounter(SeatsToy):
    """Counts its estimates."""

    n_guesses: int = 0

    def guess_s(self, c: Candidate, requests_per_s: float, metric: str, quantile: float | None = None) -> float:
        self.n_guesses += 1
        return super().guess_s(c, requests_per_s, metric, quantile)


def test_costs_of_candidates_decide_about_the_rate_they_need() -> None:
    race = replace(race_of(SeatsToy(capacity_per_s={2048: 10.0})), unit_cost=equal_unit_cost)
    cheap = replace(race, unit_cost=lambda c: float(c.max_num_seqs))
    best = Outcome(candidate(max_num_seqs=1024), "measured", 10.0, 10.1, 1.0, "ttft.p90", -10.0)
    missed = Outcome(best.candidate, "pruned", 0.0, 10.0, 1.5, "ttft.p90", None)
    assert race.settled(candidate(max_num_seqs=64), best, missed)
    assert not cheap.settled(candidate(max_num_seqs=64), best, missed)
