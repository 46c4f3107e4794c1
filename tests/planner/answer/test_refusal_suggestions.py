"""Suggestions of a refusal: each is simulated as it is printed, with all replicas, and below what was asked for."""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from catalogs.hardware.specs import Hardware
from planner.answer import candidate_search
from planner.answer.plan_evaluator import PlanEvaluator
from planner.answer.refusal import CLOSEST, Refuser, least_missed
from planner.evaluation.observation import Load, Observation
from planner.evaluation.run_sizes import RunSizes
from planner.problem.candidate import Candidate
from planner.problem.demand import FailureTolerance
from planner.problem.price_list import PriceList
from planner.problem.request import PlanRequest
from planner.problem.slo import Slo, parse_slos
from planner.problem.tariff import Tariff
from planner.search.candidate_tester import CandidateTester, Outcome
from tests.planner.known_plan import KnownPlan
from tests.planner.queue_toy import QueueToy, candidate

SLOS = parse_slos(["ttft.p90=0.4s"])  # a replica takes 0.4 s at 7.5 requests/s
TWO = candidate(tensor_parallel=4, replicas=2)


def refuser(toy: KnownPlan, slos: tuple[Slo, ...] = SLOS, **keys: Any) -> Refuser:
    request = PlanRequest(model="llama3.1-8b", hardware="h100x8", slos=slos, **keys)
    required = candidate_search.tester_of(request, toy, ()).required  # type: ignore[arg-type]
    sizes, rate = RunSizes(300, 1000), request.requests_per_s
    tester = CandidateTester(toy, slos, sizes, 0, request.confidence, rate, required)  # type: ignore[arg-type]
    prices = PriceList(Tariff(usd_per_hour=36.0, grid="us"), TWO.hardware)
    evaluator = PlanEvaluator(toy, tester, prices)  # type: ignore[arg-type]
    return Refuser(request, evaluator, lambda _: toy, lambda _: None)  # type: ignore[arg-type, return-value]


def suggested(found: Refuser, of: Candidate = TWO) -> dict[str, Any]:
    entry = found.plan_evaluator.entry(of, None, CLOSEST)
    return {each.kind: each for each in found._load(entry)}


@pytest.mark.parametrize("cluster", [1.1, 1.5])
def test_a_rate_that_is_suggested_is_lower_and_printed_as_simulated(cluster: float) -> None:
    """Each replica alone carries 14 requests/s, and both together do not."""
    toy = KnownPlan(cluster=cluster)
    found = suggested(refuser(toy, requests_per_s=14.0))["rate"]
    assert found.value < 14.0
    assert found.change == f"{found.value:g} requests/s on the closest plan"
    assert found.value in {load.requests_per_s for load in toy.loads if load.whole_cluster}
    assert cluster * toy.value_s(TWO, found.value) <= 0.4


def test_a_rate_that_is_suggested_holds_after_the_loss_of_a_replica() -> None:
    """Both carry 12 requests/s and one does not: a suggestion must be what one carries, 7.5 requests/s."""
    toy = KnownPlan()
    found = suggested(refuser(toy, requests_per_s=12.0, spare=FailureTolerance(replicas=1)))["rate"]
    assert 6.5 < found.value <= 7.5


@pytest.mark.parametrize(("think_s", "lost"), [(0.0, 0), (2.0, 0), (2.0, 1)])
def test_the_number_of_users_that_is_suggested_is_the_largest_that_holds(think_s: float, lost: int) -> None:
    """A replica carries 7.5 requests/s; an answer takes three times the time to first token. Little's law."""
    toy, spare = KnownPlan(), FailureTolerance(replicas=lost)
    found = suggested(refuser(toy, users=400, think_s=think_s, spare=spare))["users"]
    carried = (2 - lost) * 7.5
    most = carried * (3 * toy.value_s(TWO, carried) + think_s)
    assert 0.9 * most - 1 <= found.value <= most
    assert found.value == int(found.value)
    assert found.change == f"{found.value:.0f} users on the closest plan (--users {found.value:.0f})"


def test_no_number_of_users_is_suggested_where_not_even_one_holds() -> None:
    assert "users" not in suggested(refuser(KnownPlan(base_s=0.5), users=400))


def test_no_number_of_users_is_suggested_where_some_requests_are_never_answered() -> None:
    """One request of ten is too long for the engine: the percentile of the objective is finite, the mean is not."""

    @dataclass
    class Rejecting(KnownPlan):
        def observe(self, c: Candidate, load: Load) -> Observation:
            seen = super().observe(c, load)
            seen.samples_s["e2e"][-1] = np.inf
            return seen

    found = refuser(Rejecting(), users=400)
    assert found.plan_evaluator.entry(TWO, None, CLOSEST).capacity_requests_per_s
    assert "users" in suggested(refuser(KnownPlan(), users=400))
    assert "users" not in suggested(found)


def test_looser_objectives_are_met_by_all_replicas_together() -> None:
    """A plan that misses with each replica alone misses by more with both: the first margin is not enough."""
    for cluster in (1.0, 1.2):
        toy = KnownPlan(cluster=cluster)
        text = suggested(refuser(toy, requests_per_s=16.0))["slo"].value
        limit_s = parse_slos([text])[0].limit_s
        assert limit_s >= cluster * toy.value_s(TWO, 16.0)
    toy = KnownPlan(cluster=2.0)
    assert "slo" not in suggested(refuser(toy, requests_per_s=16.0))


def test_a_load_of_users_is_not_called_light() -> None:
    """Users have a load although the request has no rate."""

    @dataclass
    class Users(KnownPlan):
        def value_s(self, c: Candidate, rate_per_s: float) -> float:
            return 1.0 + super().value_s(c, rate_per_s)

    found = refuser(Users(), users=10)
    entry = found.plan_evaluator.entry(TWO, None, CLOSEST)
    assert not entry.met
    assert "light load" not in found._binding(entry)
    plain = replace(found, request=found.request.replace(users=None))
    assert plain._binding(entry).endswith("a light load")


def test_a_budget_that_is_suggested_pays_for_the_hardware_as_it_is_printed() -> None:
    """Rounded down, 65.914 dollars an hour would be a budget that no instance meets."""

    class Elsewhere(Refuser):
        def _try_on(self, hardware: Hardware) -> Candidate | None:
            return candidate(1, hardware=hardware)

    price = SimpleNamespace(price=lambda _: SimpleNamespace(usd_per_hour=65.914))
    plain = refuser(KnownPlan(), max_usd_per_hour=50.0)
    evaluator = replace(plain.plan_evaluator, prices=SimpleNamespace(of_other=lambda _: price))  # type: ignore[arg-type]
    found = Elsewhere(plain.request, evaluator, plain.elsewhere, lambda hardware: candidate(1, hardware=hardware))
    budgets = list(found._hardware(TWO.hardware))
    assert budgets
    for each in budgets:
        assert (each.kind, each.value) == ("budget", 65.92)
        assert each.change.startswith("a budget of $65.92 per hour instead of $50: ")


def test_a_full_run_decides_between_placements_within_the_noise_of_short_ones() -> None:
    """Eight replicas of one accelerator carry more than two of four, but each request takes four times as long."""
    one = candidate(tensor_parallel=1, replicas=8, max_num_seqs=512)
    toy = QueueToy()
    tester = CandidateTester(toy, SLOS, RunSizes(300, 1000), 0, 0.9, 1.0)  # type: ignore[arg-type]
    found = refuser(KnownPlan(), requests_per_s=1.0)
    found = replace(found, plan_evaluator=replace(found.plan_evaluator, evaluator=toy, tester=tester))  # type: ignore[arg-type]
    assert toy.fluid_requests_per_s(one) > toy.fluid_requests_per_s(TWO)
    short = [Outcome(TWO, "infeasible", 0.0, 1.0, 1.3, "ttft.p90", None)]
    short += [Outcome(one, "infeasible", 0.0, 1.0, 1.2, "ttft.p90", None)]
    assert least_missed(short, toy.fluid_requests_per_s) == one
    assert found._least_missed(short) == TWO
