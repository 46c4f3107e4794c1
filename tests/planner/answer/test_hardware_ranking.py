"""The table of kinds of accelerator: a row has a plan whenever a plan exists, and else a true reason."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from catalogs.hardware.catalog import parse_hardware
from planner.answer.evaluated_plan import EvaluatedPlan
from planner.answer.hardware_ranking import HardwareRanking, HardwareRow, RankedHardware, _missed_words
from planner.answer.plan_evaluator import PlanEvaluator
from planner.evaluation.closed_forms.bounds import MEMORY, NOT_ADMITTED, NOT_RENTED, REQUEST_LENGTH, Discard
from planner.evaluation.run_sizes import RunSizes
from planner.problem.candidate import Candidate
from planner.problem.price_list import PriceList
from planner.problem.request import PlanRequest, SearchOptions
from planner.problem.slo import Slo, parse_slos
from planner.problem.tariff import Tariff
from planner.search.candidate_tester import CandidateTester
from tests.planner.known_plan import KnownPlan
from tests.planner.queue_toy import candidate

SLOS = parse_slos(["ttft.p90=0.4s"])


@dataclass
class Optimistic(KnownPlan):
    """A replica meets the objective up to 7.5 requests/s, and is estimated to carry `optimism` times its real rate.

    Candidates with 64 sequences never meet it.
    """

    optimism: float = 4.0

    def value_s(self, c: Candidate, rate_per_s: float) -> float:
        return 1.0 if c.max_num_seqs == 64 else super().value_s(c, rate_per_s)

    def fluid_requests_per_s(self, c: Candidate) -> float:
        return self.optimism * super().fluid_requests_per_s(c)

    def guess_s(self, c: Candidate, requests_per_s: float, metric: str, quantile: float | None = None) -> float:  # noqa: ARG002
        return self.value_s(c, requests_per_s)


def on(kind: str, n: int, seqs: int = 256) -> Candidate:
    return candidate(1, hardware=parse_hardware(f"{kind}x{n}"), replicas=n, max_num_seqs=seqs)


def rows(
    left: Sequence[Candidate],
    rate: float | None,
    discards: Sequence[tuple[Candidate, Discard]] = (),
    trials: int = 40,
    entries: Sequence[EvaluatedPlan] = (),
    slos: tuple[Slo, ...] = SLOS,
    refused: Collection[Candidate] = (),
    size: Callable[[Candidate], float] = lambda c: float(c.hardware.n_accelerators),
) -> dict[str, HardwareRow]:
    toy = Optimistic()
    tester = CandidateTester(toy, slos, RunSizes(300, 1000), 0, 0.9, requests_per_s=rate)  # type: ignore[arg-type]
    evaluator = PlanEvaluator(toy, tester, PriceList(Tariff(usd_per_hour=16.0), parse_hardware("h100x8")))  # type: ignore[arg-type]
    request = PlanRequest(
        model="llama3.1-8b",
        hardware="h100x8,l40sx8",
        slos=slos,
        requests_per_s=rate,
        search=SearchOptions(trials=trials),
    )
    ranking = HardwareRanking(request, evaluator, list, size, refused)
    found = ranking.rows(left, discards, (), entries).rows
    return {row.hardware.split("x")[0]: row for row in found}


OTHER = on("h100", 1)


def test_a_plan_beyond_the_smallest_parts_is_found_and_is_the_smallest() -> None:
    """40 requests/s need 5.3 replicas; the estimate takes one to be enough, so the first parts that are tried miss."""
    row = rows([*(on("l40s", n) for n in range(1, 9)), OTHER], rate=40.0)["l40s"]
    assert (row.state, row.hardware) == ("holds", "l40sx6")


@pytest.mark.parametrize("rate", [7.0, None])
def test_of_parts_at_an_equal_price_the_largest_is_tried_first(rate: float | None) -> None:
    """All of an instance is paid for that is rented as a whole."""
    left = [on("l40s", n) for n in (1, 2, 4)]
    assert rows([*left, OTHER], rate, size=lambda _: 16.0)["l40s"].hardware == "l40sx4"
    assert rows([*left, OTHER], rate)["l40s"].hardware == ("l40sx4" if rate is None else "l40sx1")


@settings(max_examples=25, deadline=None)
@given(
    rate=st.sampled_from([1.0, 7.0, 20.0, 44.0, 59.0, 61.0, 100.0]),
    counts=st.sets(st.integers(1, 8), min_size=1),
    slow=st.sets(st.integers(1, 8)),
)
def test_a_row_has_a_plan_exactly_if_a_candidate_meets_the_request(
    rate: float, counts: set[int], slow: set[int]
) -> None:
    left = [on("l40s", n, seqs) for n in sorted(counts) for seqs in (64, *(() if n in slow else (256,)))]
    row = rows([*left, OTHER], rate)["l40s"]
    enough = [c.replicas for c in left if c.max_num_seqs == 256 and rate < 7.5 * c.replicas]
    assert (row.state == "holds") == bool(enough)
    if enough:
        assert row.hardware == f"l40sx{min(enough)}"


def test_a_candidate_that_misses_with_all_seeds_of_a_winner_is_no_plan_with_fewer() -> None:
    left = [on("l40s", n) for n in (1, 2)]
    assert rows([*left, OTHER], rate=7.0, refused=left[:1])["l40s"].hardware == "l40sx2"
    none = rows([*left, OTHER], rate=7.0, refused=left)["l40s"]
    assert (none.state, none.why) == ("fails", "every candidate misses an objective")


def test_a_row_without_a_plan_states_how_many_candidates_were_tried() -> None:
    left = [on("l40s", n, 64) for n in range(1, 9)]
    every = rows([*left, OTHER], rate=7.0)["l40s"]
    assert (every.state, every.why) == ("fails", "every candidate misses ttft.p90")
    some = rows([*left, OTHER], rate=7.0, trials=5)["l40s"]
    others = "3 others that may serve the load were not simulated (a larger search.trials includes them)"
    assert (some.state, some.why) == ("undecided", f"all 5 simulated candidates miss ttft.p90; {others}")
    one = rows([*left, OTHER], rate=7.0, trials=1)["l40s"]
    assert one.why.startswith("the only simulated candidate misses ttft.p90; 7 others ")
    one_left = rows([*left[:2], OTHER], rate=7.0, trials=1)["l40s"]
    assert one_left.why.endswith(
        "; 1 other that may serve the load was not simulated (a larger search.trials includes them)"
    )
    mixed = _missed_words([(2.0, "ttft.p90"), (3.0, "tpot.p90")], "all 2 miss", "none meets the objectives")
    assert mixed == "none meets the objectives"
    assert _missed_words([(math.inf, "ttft.p90")], "all miss", "none meets") == "the queue grows without limit"
    far = rows([*left, OTHER], rate=1000.0)["l40s"]
    assert (far.state, far.why) == ("fails", "overloaded with full batches")


def test_a_kind_that_the_bounds_rule_out_names_the_bound_that_it_comes_closest_to_meeting() -> None:
    one = on("l40s", 1)
    memory, late = Discard(MEMORY, "", 2.0, 1.0), Discard("tpot.p99", "", 1.5, 1.0)
    for constraint, why in (
        (MEMORY, "model does not fit in memory"),
        (NOT_ADMITTED, "no replica would survive"),
        (NOT_RENTED, "no instance within the budget"),
        (REQUEST_LENGTH, "requests are too long"),
    ):
        row = rows([OTHER], 1.0, [(one, replace(memory, constraint=constraint))])["l40s"]
        assert (row.state, row.why) == ("ruled out", why)
    row = rows([OTHER], 1.0, [(one, memory), (on("l40s", 2), late)])["l40s"]
    assert row.why == "tpot.p99 is missed when idle"


def test_the_latency_of_a_row_is_that_of_the_objective() -> None:
    """The metrics of a plan hold no p99.9: the row had no value, which reads as unbounded."""
    for stat in ("p90", "p99.9"):
        slos = parse_slos([f"ttft.{stat}=0.4s"])
        row = rows([on("l40s", 1), OTHER], rate=1.0, slos=slos)["l40s"]
        assert (row.state, row.ttft_stat) == ("holds", stat)
        assert row.ttft_s is not None
        assert 0.0 < row.ttft_s <= 0.4


def test_one_kind_needs_no_table() -> None:
    assert rows([on("l40s", 1), on("l40s", 2)], rate=1.0) == {}


def test_plans_that_miss_with_all_seeds_leave_no_row_that_holds() -> None:
    """A refusal must not stand above a table with a plan."""
    holds = HardwareRow(hardware="h100x1", state="holds", candidate="1 replica", usd_per_hour=2.0)
    fails = HardwareRow(hardware="l40sx1", state="fails", why="overloaded with full batches")
    found = RankedHardware([holds, fails], [], {}, 3, 400, 1).refuted()
    assert found.rows[0] == HardwareRow(hardware="h100x1", state="undecided", why="met with few seeds, missed with all")
    assert found.rows[1] == fails
    assert (found.plans, found.n_trials, found.n_requests, found.n_searches) == ([], 3, 400, 1)
