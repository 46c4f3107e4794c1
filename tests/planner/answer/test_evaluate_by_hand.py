"""The figures of a plan from an evaluator whose latencies are a formula: capacity, seeds, survival, cost and curves."""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from calibration.accuracy.stated_error import StatedError
from planner.answer import confirmed_capacity
from planner.answer.confirmed_rates import BEST, MOST_REPLICAS, OTHER, SeedBudget
from planner.answer.curve_rates import higher_rates, lower_rates
from planner.answer.evaluated_plan import EvaluatedPlan, objective_value, pareto
from planner.answer.plan_evaluator import CapacityHint, PlanEvaluator
from planner.answer.plan_figures import QUANTILES, cdf_of, curve_of, short, steady_metrics
from planner.economics.money import Energy, Money
from planner.evaluation.capacity import TOLERANCE
from planner.evaluation.confidence import Confidence, allowance_for
from planner.evaluation.observation import Load, Observation, RunDetail
from planner.evaluation.run_sizes import RunSizes
from planner.evaluation.verdict import judge
from planner.pipeline import assumptions
from planner.problem.candidate import Candidate
from planner.problem.demand import Demand, FailureTolerance, RequiredRates
from planner.problem.price_list import PriceList
from planner.problem.request import PlanRequest
from planner.problem.slo import parse_slos
from planner.problem.tariff import Tariff
from planner.search.candidate_tester import CandidateTester
from tests.planner.known_plan import KnownPlan
from tests.planner.queue_toy import candidate

SLOS = parse_slos(["ttft.p90=0.4s", "tpot.mean=1s"])
TWO = candidate(tensor_parallel=4, replicas=2)
ONE = candidate()
SEED = 5


def evaluator(
    toy: KnownPlan, rate_per_s: float | None = None, required: RequiredRates | None = None, sure: float = 0.9
) -> PlanEvaluator:
    toy.seed = SEED
    tester = CandidateTester(toy, SLOS, RunSizes(300, 1000), SEED, sure, rate_per_s, required)  # type: ignore[arg-type]
    tariff = Tariff(usd_per_hour=36.0, grid="us")
    return PlanEvaluator(toy, tester, PriceList(tariff, TWO.hardware))  # type: ignore[arg-type]


def lost(rate_per_s: float, replicas: int) -> RequiredRates:
    demand = Demand(rate_per_s, spare=FailureTolerance(replicas))
    return RequiredRates(demand, lambda _c, _r: 1.0, lambda _c, _r: 1.0)


def test_workers_are_sent_little() -> None:
    """Workers inherit the evaluator; a task that holds it could not be sent and would be done here again."""
    sent: list[int] = []

    def each(work: Callable[[Any], Any], tasks: Sequence[Any]) -> Iterable[Any]:
        sent.extend(len(pickle.dumps(task)) for task in tasks)
        return map(work, tasks)

    replace(evaluator(KnownPlan()), each=each).entry(TWO, None, BEST)
    assert len(sent) > 10
    assert max(sent) < 1000


@pytest.mark.parametrize("plan", [ONE, TWO])
def test_the_runs_of_other_processes_are_not_made_again(plan: Candidate) -> None:
    toy, made = KnownPlan(operator_error=0.05), list[Load]()

    def elsewhere(work: Callable[[Any], Any], tasks: Iterable[Any]) -> list[Any]:
        """What another process does: this one gets the results, and knows nothing of the runs."""
        known = dict(toy.known)
        results = [work(task) for task in tasks]
        made.extend(replace(load, patient=False) for load in toy.loads)
        toy.loads, toy.known = [], known
        return results

    rates = replace(evaluator(toy), each=elsewhere).rates
    for _ in range(2):
        rates.point_and_slower(plan, 5.0, BEST)
    rates.verdict(plan, 5.0, BEST.curve)
    assert not toy.loads
    others = [load for load in made if load not in {Load(5.0, 1000, SEED + i, plan is TWO, False) for i in range(4)}]
    assert len(others) == len(set(others)) == (6 if plan is ONE else 8)  # the figures themselves are not kept


@pytest.mark.parametrize("budget", [BEST, OTHER])
@pytest.mark.parametrize("start_per_s", [None, 14.0, 15.2, 16.0])
def test_the_capacity_is_the_highest_rate_that_meets_the_objectives(
    budget: SeedBudget, start_per_s: float | None
) -> None:
    """0.1 / (1 - r / 20) = 0.4 at 15 requests/s."""
    toy = KnownPlan()
    assert toy.rate_per_s(TWO, 0.4) == pytest.approx(15.0)
    if budget is OTHER and start_per_s is not None:
        start_per_s = 14.8  # one seed does not lower the rate that it is given
    found = evaluator(toy).entry(TWO, start_per_s, budget)
    assert found.capacity_requests_per_s is not None
    assert 15.0 / 1.021 < found.capacity_requests_per_s <= 15.0
    assert found.requests_per_s == found.plan.requests_per_s == found.capacity_requests_per_s
    assert found.plan.capacity_requests_per_s == found.capacity_requests_per_s
    assert found.verdict.met
    assert found.survives
    assert found.plan.survival is None
    assert all(row.met and row.probability_met == 1.0 for row in found.plan.slo)
    assert found.plan.slo[0].value_s == pytest.approx(toy.value_s(TWO, found.requests_per_s))
    assert found.met
    row = found.plan.slo[0]
    assert (row.ci_low_s, row.ci_high_s, row.value_at_confidence_s) == pytest.approx((row.value_s,) * 3)
    assert found.plan.limited_by == "ttft.p90"


@pytest.mark.parametrize(("start_per_s", "capacity_per_s"), [(14.8, 14.8), (14.0, 15.0), (13.5, 15.0), (9.0, 15.0)])
def test_an_alternative_is_raised_until_the_curve_ends(start_per_s: float, capacity_per_s: float) -> None:
    """A winner is raised; alternatives that never were would look worse than they are. 2 % more is not worth a run."""
    found = evaluator(KnownPlan()).entry(TWO, start_per_s, OTHER)
    assert found.met
    assert found.capacity_requests_per_s is not None
    assert found.capacity_requests_per_s == found.plan.capacity_requests_per_s
    assert capacity_per_s / 1.06 < found.capacity_requests_per_s <= 15.0
    assert found.plan.limited_by == "ttft.p90"


@pytest.mark.parametrize("missed_per_s", [None, 16.0])
@pytest.mark.parametrize("factor", [0.3, 0.6, 0.9, 1.0, 1.1, 1.5, 3.0])
def test_an_estimate_like_that_of_another_plan_leads_to_the_capacity(factor: float, missed_per_s: float | None) -> None:
    """The estimate of the toy is right, so a plan with `factor` times its capacity makes it wrong by that factor."""
    known = evaluator(KnownPlan()).entry(ONE, 7.5, BEST)
    like = replace(known, capacity_requests_per_s=factor * 7.5)
    toy = KnownPlan()
    found = evaluator(toy).entry(TWO, None, OTHER, hint=CapacityHint(missed_per_s, like))
    assert found.capacity_requests_per_s is not None
    assert 15.0 / 1.06 < found.capacity_requests_per_s <= 15.0
    assert found.plan.limited_by == "ttft.p90"
    if factor == 1.0:
        searched = KnownPlan()
        evaluator(searched).entry(TWO, None, OTHER, hint=CapacityHint(missed_per_s))
        assert len(toy.loads) < len(searched.loads) - 2


@dataclass
class SuddenPlan(KnownPlan):
    """A toy whose latency is constant up to 15 requests/s of two replicas, and far above the limit beyond."""

    def value_s(self, c: Candidate, rate_per_s: float) -> float:
        return 0.1 if rate_per_s <= 7.5 * c.replicas else 1.0


@pytest.mark.parametrize("operator_error", [0.0, 0.08])
@pytest.mark.parametrize("start_per_s", [2.0, 4.0, 5.0, 7.0, 9.0, 11.0, 12.5])
def test_a_raise_beyond_a_sudden_limit_does_not_end_far_below_it(start_per_s: float, operator_error: float) -> None:
    """A raise by up to 1.4 met a rate far above the capacity, and the curve had no rate between the two."""
    toy = SuddenPlan(operator_error=operator_error)
    found = evaluator(toy).entry(TWO, start_per_s, OTHER)
    assert found.capacity_requests_per_s is not None
    speed = allowance_for(0.9, toy.stated_error(TWO)).speed
    assert 15.0 / speed / 1.08 < found.capacity_requests_per_s <= 15.0 / speed * 1.02


def test_a_hint_does_not_replace_the_verdict_at_a_light_load() -> None:
    like = evaluator(KnownPlan()).entry(ONE, 7.5, BEST)
    found = evaluator(KnownPlan(base_s=0.5)).entry(TWO, None, OTHER, hint=CapacityHint(like=like))
    assert found.capacity_requests_per_s is None
    assert not found.met


def test_a_plan_without_a_capacity_is_no_hint() -> None:
    like = replace(evaluator(KnownPlan()).entry(ONE, 7.5, BEST), capacity_requests_per_s=None)
    plain, hinted = KnownPlan(), KnownPlan()
    evaluator(plain).entry(TWO, None, OTHER)
    evaluator(hinted).entry(TWO, None, OTHER, hint=CapacityHint(like=like))
    assert hinted.loads == plain.loads


@dataclass
class RoughPlan(KnownPlan):
    """A toy whose latencies have another noise at every rate, so that its latency curves are rough."""

    world: int = 0

    def value_s(self, c: Candidate, rate_per_s: float) -> float:
        noise = np.random.default_rng((self.world, int(1e3 * rate_per_s))).normal(1.0, 0.12)
        return super().value_s(c, rate_per_s) * (float(noise) if rate_per_s > 1.0 else 1.0)


@pytest.mark.parametrize("world", range(20))
def test_an_alternative_that_meets_a_light_load_has_a_capacity(world: int) -> None:
    """The rates below a rate may change the curve, so that it is no longer confirmed: a lower one is then."""
    toy = RoughPlan(operator_error=0.08, world=world)
    found = evaluator(toy).entry(TWO, 14.5, OTHER)
    assert found.met
    assert found.capacity_requests_per_s == found.requests_per_s


def test_a_light_load_that_misses_leaves_no_capacity() -> None:
    found = evaluator(KnownPlan(base_s=0.5)).entry(TWO, None, OTHER)
    assert found.capacity_requests_per_s is None
    assert not found.verdict.met
    assert found.plan.limited_by is None


@pytest.mark.parametrize("cluster", [0.95, 1.02, 1.06, 1.6])
def test_a_cluster_that_is_worse_carries_a_little_less(cluster: float) -> None:
    toy = KnownPlan(cluster=cluster)
    found = evaluator(toy).entry(TWO, None, BEST)
    assert found.verdict.met
    assert found.capacity_requests_per_s == found.requests_per_s
    highest = min(toy.rate_per_s(TWO, 0.4 / cluster), 15.0)
    assert highest / 1.05 < found.requests_per_s <= highest
    assert evaluator(KnownPlan(cluster=4.0)).entry(TWO, None, BEST).verdict.met is False


@pytest.mark.parametrize("noise", [(), (1.0, 1.0, 1.0, 1.0), (1.04, 0.96, 1.0, 1.0)])
def test_a_start_that_one_seed_measured_is_confirmed_with_few_runs(noise: tuple[float, ...]) -> None:
    """A capacity of the search is lowered if all seeds ask for it, and never raised: 10 runs of each curve."""
    toy = KnownPlan(noise=noise)
    found = evaluator(toy).entry(TWO, 14.8, BEST, start_is_capacity=True)
    assert found.met
    assert found.capacity_requests_per_s is not None
    assert 14.8 / 1.15 < found.capacity_requests_per_s <= 14.8
    assert (found.capacity_requests_per_s == 14.8) is (max(noise, default=1.0) == 1.0)
    assert found.plan.limited_by == "ttft.p90"
    assert found.plan.limit_words == "beyond it ttft.p90 is missed"
    n_curves = 1 if found.capacity_requests_per_s == 14.8 else 2
    assert len([load for load in toy.loads if not load.whole_cluster]) <= 10 * n_curves


def test_a_start_that_is_only_near_the_capacity_is_raised_to_it() -> None:
    for start_per_s in (9.0, 11.0, 13.0):
        found = evaluator(KnownPlan()).entry(TWO, start_per_s, BEST)
        assert found.capacity_requests_per_s is not None
        assert found.capacity_requests_per_s <= 15.0
        assert found.capacity_requests_per_s >= min(15.0 / 1.03, start_per_s * 1.15**3 / 1.03)


LIGHT_LOADS = [
    KnownPlan(),
    KnownPlan(operator_error=0.05),
    KnownPlan(base_s=0.5),
    KnownPlan(base_s=0.39, operator_error=0.05),
    KnownPlan(cluster=1.3),
    KnownPlan(base_s=0.2, noise=(1.1, 0.9, 1.0, 1.0)),
    KnownPlan(base_s=0.35, noise=(1.5, 0.6, 1.0, 1.0)),
]


@pytest.mark.parametrize("toy", LIGHT_LOADS)
def test_a_plan_has_a_capacity_exactly_if_it_is_sure_at_a_light_load(toy: KnownPlan) -> None:
    plans = evaluator(toy)
    sure = plans.is_confirmed(TWO, toy.light_requests_per_s(TWO))
    assert sure is plans.entry(TWO, None, BEST).met
    assert sure is (toy.base_s < 0.35)


@pytest.mark.parametrize("budget", [BEST, OTHER])
def test_a_plan_that_is_not_sure_at_a_light_load_is_not_tried_below_it(budget: SeedBudget) -> None:
    """Fewer requests do not overlap less. One seed meets the limit; the start is 1 % above a light load."""
    toy = KnownPlan(base_s=0.35, noise=(1.0, 1.5, 0.6, 1.4))
    light_per_s = toy.light_requests_per_s(TWO)
    found = evaluator(toy).entry(TWO, 1.01 * light_per_s, budget)
    assert not found.met
    figures = {load.requests_per_s for load in toy.loads if load.requests_per_s <= 1.01 * light_per_s}
    assert min(figures - set(lower_rates(light_per_s))) == light_per_s
    assert len(figures - set(lower_rates(light_per_s)) - set(lower_rates(1.01 * light_per_s))) == 2


class LaterErrors(KnownPlan):
    """Only the first seed of a plan states the error of the candidate."""

    def detail(self, c: Candidate, load: Load) -> RunDetail:
        found = super().detail(c, load)
        return found if load.seed == self.seed else replace(found, error=StatedError("other", 0.5, {}))


@pytest.mark.parametrize("cluster", [1.0, 1.3])
def test_the_error_of_all_figures_is_that_of_the_first_seed(cluster: float) -> None:
    one, other = (make(cluster=cluster, operator_error=0.05) for make in (KnownPlan, LaterErrors))
    for rate in (None, 9.0):
        expected, found = (evaluator(toy, rate).entry(TWO, None, BEST) for toy in (one, other))
        assert found.requests_per_s == expected.requests_per_s
        assert found.plan.slo == expected.plan.slo


def test_a_rate_that_the_cluster_just_misses_leaves_a_capacity_below_it_by_the_tolerance() -> None:
    """A replica under its share carries 15 requests/s; the cluster of 1.21 times the latency carries 13.95."""
    toy = KnownPlan(cluster=1.21)
    assert toy.rate_per_s(TWO, 0.4 / 1.21) == pytest.approx(13.95)
    found = evaluator(toy, 14.0).entry(TWO, None, BEST)
    assert not found.met
    assert found.capacity_requests_per_s == pytest.approx(14.0 / (1 + TOLERANCE), rel=1e-9)


def test_with_an_error_the_rate_is_lower_and_surer_than_the_limit() -> None:
    """Steps 1.1 times as long at 90 %: a tenth of the error leaves less rate than the limit would."""
    toy = KnownPlan(operator_error=0.05)
    found = evaluator(toy).entry(TWO, None, BEST)
    assert found.verdict.met
    assert all(row.probability_met >= 0.9 for row in found.plan.slo)
    assert found.requests_per_s < 14.7
    assert found.requests_per_s > 11.0
    assert found.plan.slo[0].ci_low_s < found.plan.slo[0].value_s < found.plan.slo[0].ci_high_s <= 0.45


@pytest.mark.parametrize("budget", [BEST, OTHER])
def test_more_confidence_leaves_less_capacity(budget: SeedBudget) -> None:
    """Steps s times and latencies f times as long: f x 0.1 / (1 - r s / 20) = 0.4 at 20 (1 - f / 4) / s requests/s."""
    capacities = []
    for sure in (0.6, 0.75, 0.9, 0.95):
        toy = KnownPlan(operator_error=0.05)
        allowance = allowance_for(sure, toy.stated_error(TWO))
        highest = 20 * (1 - allowance.latency(SLOS[0]) / 4) / allowance.speed
        found = evaluator(toy, sure=sure).entry(TWO, None, budget)
        assert found.met
        assert found.capacity_requests_per_s is not None
        assert highest / 1.1 < found.capacity_requests_per_s <= highest * 1.001
        capacities.append(found.capacity_requests_per_s)
        row = found.plan.slo[0]
        assert row.met
        assert row.probability_met >= sure
        assert row.value_at_confidence_s is not None
        assert row.value_at_confidence_s <= row.limit_s
        assert row.ci_level == pytest.approx(max(0.8, 2 * sure - 1))
    assert capacities == sorted(set(capacities), reverse=True)


@pytest.mark.parametrize("sure", [0.75, 0.95])
def test_a_required_rate_is_met_exactly_if_it_is_met_with_the_confidence(sure: float) -> None:
    toy = KnownPlan(operator_error=0.05)
    allowance = allowance_for(sure, toy.stated_error(TWO))
    highest = 20 * (1 - allowance.latency(SLOS[0]) / 4) / allowance.speed
    for rate, met in ((0.95 * highest, True), (1.02 * highest, False)):
        found = evaluator(toy, rate, sure=sure).entry(TWO, None, BEST)
        assert found.verdict.met  # as simulated, it is
        assert found.met is met
        assert found.plan.slo[0].met is met
        assert (found.capacity_requests_per_s or 0.0) >= rate if met else (found.capacity_requests_per_s or 0.0) < rate
        assert evaluator(toy, sure=sure).holds(TWO, rate) is met


@pytest.mark.parametrize(("rate", "met"), [(5.0, True), (14.9, True), (15.2, False)])
def test_a_required_rate_is_the_rate_of_the_plan(rate: float, met: bool) -> None:
    found = evaluator(KnownPlan(), rate).entry(TWO, None, BEST)
    assert found.requests_per_s == found.plan.requests_per_s == rate
    assert found.verdict.met is found.met is met
    if met:
        assert found.capacity_requests_per_s is not None
        assert found.capacity_requests_per_s >= max(rate, 15 / 1.021)
    assert not [v for v in found.plan.curve if v.met and v.requests_per_s > 15.0]


@dataclass
class SlowRise(KnownPlan):
    """The latency reaches the limit at 15 requests/s on two replicas, and rises with the fifth root of the rate."""

    def value_s(self, c: Candidate, rate_per_s: float) -> float:
        return 0.4 * (rate_per_s / c.replicas / 7.5) ** 0.2


def test_a_capacity_that_depends_on_the_seeds_has_a_notice() -> None:
    """Seeds that differ by a tenth move the capacity of a slow rise far, that of a steep one little.

    At a required rate the figures are those of that rate, whose slope says nothing about the capacity.
    """
    noise = (0.95, 1.05, 0.95, 1.05)
    for toy, rate_per_s, n in (
        (SlowRise(noise=noise), None, 1),
        (KnownPlan(noise=noise), None, 0),
        (SlowRise(noise=noise), 5.0, 0),
    ):
        found = evaluator(toy, rate_per_s).entry(TWO, None, BEST)
        assert found.plan.limited_by == "ttft.p90"
        assert sum("rises slowly" in notice for notice in found.plan.notices) == n


@dataclass
class LateSeeds(KnownPlan):
    """One replica under its share falls behind above 12 requests/s with the third seed and later ones."""

    def observe(self, c: Candidate, load: Load) -> Observation:
        seen = KnownPlan.observe(self, c, load)
        late = load.seed - self.seed >= 2 and not load.whole_cluster and load.requests_per_s > 12.0
        return replace(seen, growth_fraction=1.0) if late else seen


def test_a_required_rate_gets_the_verdict_of_the_plan_that_recommends_it() -> None:
    """The search for the capacity tries other rates, which say nothing about the required one."""
    toy = LateSeeds(operator_error=0.05)
    rate = 12.9
    planned = evaluator(toy).entry(TWO, rate, BEST, start_is_capacity=True)
    assert planned.met
    assert planned.requests_per_s == rate
    for start_per_s in (None, 0.7 * rate, rate, 1.1 * rate):
        again = evaluator(toy, rate).entry(TWO, start_per_s, BEST)
        assert again.met
        assert again.capacity_requests_per_s is not None
        assert rate <= again.capacity_requests_per_s <= 1.02 * rate
        odds, same = ([row.probability_met for row in found.plan.slo] for found in (again, planned))
        assert odds == pytest.approx(same)


def test_the_capacity_of_one_seed_is_raised_where_all_seeds_are_sure_well_beyond_it() -> None:
    """A rate that fails with all seeds is lowered until they are sure."""
    for start_per_s in (9.0, 11.0):
        found = evaluator(LateSeeds(operator_error=0.05)).entry(TWO, start_per_s, BEST, start_is_capacity=True)
        assert found.met
        assert found.requests_per_s > 1.02 * start_per_s
        assert found.plan.limited_by is not None


@dataclass
class OneLuckySeed(KnownPlan):
    """Latency is 0.05 s + 0.01 s a request per second; above 14 requests/s all seeds but the first have a multiple."""

    multiple: float = 1.0

    def value_s(self, c: Candidate, rate_per_s: float) -> float:  # noqa: ARG002
        return 0.05 + 0.01 * rate_per_s if rate_per_s < 15 else 1.0

    def observe(self, c: Candidate, load: Load) -> Observation:
        self.noise = (1.0, *[self.multiple] * 3) if load.requests_per_s > 14 else ()
        return super().observe(c, load)


@pytest.mark.parametrize("start_per_s", [None, 14.8])
@pytest.mark.parametrize(("budget", "multiple"), [(OTHER, 2.2), (BEST, 4.5)])
def test_a_rate_that_the_curve_sets_far_too_low_is_raised_again(
    budget: SeedBudget, multiple: float, start_per_s: float | None
) -> None:
    """All seeds together miss at 14.8, and the curve through that point leads to 6 or 10 requests/s."""
    found = evaluator(OneLuckySeed(multiple=multiple)).entry(TWO, start_per_s, budget)
    assert found.met
    assert found.capacity_requests_per_s is not None
    assert 14.8 / 1.15 < found.capacity_requests_per_s <= 14.0


@pytest.mark.parametrize("toy", [KnownPlan(cluster=1.05), KnownPlan(operator_error=0.05), KnownPlan(base_s=0.5)])
def test_a_required_rate_is_never_lowered(toy: KnownPlan) -> None:
    found = evaluator(toy, 14.9).entry(TWO, None, BEST)
    assert found.requests_per_s == found.plan.requests_per_s == 14.9
    assert found.verdict.met is (toy.operator_error > 0)
    assert not found.met  # 14.9 of 15 requests/s leave nothing for the error


def test_all_replicas_together_may_carry_what_one_under_its_share_does_not() -> None:
    found = evaluator(KnownPlan(cluster=0.9), 15.2).entry(TWO, None, BEST)
    assert found.verdict.met
    assert found.capacity_requests_per_s == 15.2


def test_the_rates_around_the_plan_are_simulated() -> None:
    toy = KnownPlan()
    found = evaluator(toy, 10.0).entry(TWO, None, BEST)
    simulated = {round(load.requests_per_s, 6) for load in toy.loads if not load.whole_cluster}
    capacity = found.capacity_requests_per_s
    assert capacity is not None
    for rate in (10.0, capacity):
        around = (*lower_rates(rate), rate, *higher_rates(rate, 1.0, 1.0))
        assert {round(each, 6) for each in around} <= simulated
    near = [p.requests_per_s for p in found.plan.curve]
    assert near == sorted(near)
    assert len(found.plan.curve) >= 9


@pytest.mark.parametrize("rate_per_s", [None, 10.0, 14.9])
def test_a_plan_that_holds_is_the_same_plan(rate_per_s: float | None) -> None:
    found, same = evaluator(KnownPlan(), rate_per_s), evaluator(KnownPlan(), rate_per_s)
    held = found.entry_that_holds(TWO, None, BEST)
    assert held is not None
    assert held.plan == same.entry(TWO, None, BEST).plan


@pytest.mark.parametrize(("rate", "above"), [(15.2, 0), (14.5, 3)])
def test_a_plan_that_misses_the_required_rate_is_left_out_as_soon_as_that_is_known(rate: float, above: int) -> None:
    """At 15.2 the simulated value says so, and at 14.5 slower steps do; its capacity is not sought in either case."""
    toy = KnownPlan(operator_error=0.05)
    assert evaluator(toy, rate).entry_that_holds(TWO, rate, BEST) is None
    rates = sorted({load.requests_per_s for load in toy.loads})
    assert rates[0] == rate
    assert len(rates) == 1 + above
    assert not evaluator(KnownPlan(operator_error=0.05), rate).entry(TWO, rate, BEST).holds


@pytest.mark.parametrize(
    ("plan", "budget", "seeds", "whole"),
    [
        (TWO, BEST, 3, True),
        (ONE, BEST, 4, False),
        (replace(TWO, replicas=MOST_REPLICAS), BEST, 3, True),
        (replace(TWO, replicas=MOST_REPLICAS + 1), BEST, 4, False),
        (TWO, OTHER, 3, False),
        (TWO, replace(BEST, figures=2), 3, True),
        (TWO, replace(BEST, figures=10), 5, True),
    ],
)
def test_figures_come_from_independent_seeds_and_all_replicas_of_the_best(
    plan: object, budget: SeedBudget, seeds: int, whole: bool
) -> None:
    toy = KnownPlan()
    found = evaluator(toy, 5.0).entry(plan, None, budget)  # type: ignore[arg-type]
    loads = [o.load for o in found.verdict.observations]
    assert loads == [Load(5.0, 1000, SEED + i, whole) for i in range(seeds)]


def test_holds_asks_one_seed_and_then_all() -> None:
    toy = KnownPlan(noise=(1.0, 1.2))
    asked = evaluator(toy)
    assert asked.holds(TWO, 14.0)
    assert [load.seed for load in toy.loads] == [SEED, SEED + 1, SEED + 2, SEED + 3]  # each is simulated once
    toy.loads.clear()
    assert not asked.holds(TWO, 15.5)
    assert [load.seed for load in toy.loads] == [SEED]
    assert not evaluator(KnownPlan(noise=(1.0, 3.0, 3.0))).holds(TWO, 14.0)


def test_survival_is_the_same_load_on_the_replicas_that_are_left() -> None:
    """Four replicas of 10 requests/s: 20 requests/s are 26.7 of 40 when one is lost, 40 when two are."""
    four = candidate(tensor_parallel=2, replicas=4)
    for n, met in ((1, True), (2, False)):
        found = evaluator(KnownPlan(), 20.0, lost(20.0, n)).entry(four, None, BEST)
        survival = found.plan.survival
        assert survival is not None
        assert (survival.replicas_left, survival.requests_per_s) == (4 - n, 20.0)
        assert (survival.met, survival.stable, found.survives) == (met, met, met)
        if met:
            assert survival.slo[0].value_s == pytest.approx(0.1 / (1 - 20 / 30))
    gone = evaluator(KnownPlan(), 2.0, lost(2.0, 1)).entry(ONE, None, OTHER)
    assert gone.plan.survival is not None
    assert (gone.plan.survival.replicas_left, gone.plan.survival.requests_per_s) == (0, None)
    assert (gone.plan.survival.met, gone.plan.survival.stable, gone.survives) == (False, False, False)
    assert gone.plan.survival.slo[0].value_s is None
    slow = evaluator(KnownPlan(), 20.0, lost(20.0, 1)).entry(
        candidate(tensor_parallel=2, replicas=4), None, replace(BEST, capacity=2)
    )
    assert slow.survives


def test_a_stable_loss_may_still_miss_the_objectives() -> None:
    four = candidate(tensor_parallel=2, replicas=4)
    found = evaluator(KnownPlan(), 25.0, lost(25.0, 1)).entry(four, None, BEST)  # 25 of 30: 0.6 s
    assert found.plan.survival is not None
    assert (found.plan.survival.met, found.plan.survival.stable) == (False, True)


def test_figures_are_means_over_seeds() -> None:
    """Seeds one and two: 1,000 and 2,000 output tokens/s at 10 requests/s, 1,000 and 2,000 W."""
    toy = KnownPlan(noise=(0.9, 1.1))
    found = evaluator(toy, 10.0).entry(TWO, None, replace(OTHER, figures=2)).plan
    assert found.metrics is not None
    assert (found.metrics["output_tokens_per_s"], found.metrics["total_tokens_per_s"]) == (1500.0, 6000.0)
    assert found.metrics["input_tokens_per_s"] == 4500.0
    assert found.metrics["other"] == 1
    assert found.metrics["ttft_s"]["mean"] == pytest.approx(0.2)
    assert found.metrics["ttft_s"]["p99"] == pytest.approx(0.22)
    assert found.metrics["e2e_s"]["p50"] == pytest.approx(0.6)
    assert found.time_breakdown == {"compute": pytest.approx(0.375), "host": 0.5}
    assert found.cost is not None
    assert found.cost.usd_per_hour == 36.0
    assert found.cost.usd_per_million_output_tokens == pytest.approx(10 / 1.5)
    assert found.cost.usd_per_million_total_tokens == pytest.approx(2.5 / 1.5)
    assert found.cost.usd_per_request == pytest.approx(0.001)
    assert found.energy is not None
    assert found.energy.w_mean == 1500.0
    assert found.energy.j_per_output_token == pytest.approx(1.0)
    assert found.notices == ["notice of seed 1", "a notice", "another"]
    assert (found.command, found.command_notes) == ("serve", ["a note"])
    assert found.deployment["replicas"] == 2
    assert found.memory is not None
    assert found.memory.kv_blocks == 1000
    overloaded = evaluator(KnownPlan(), 30.0).entry(TWO, None, OTHER).plan
    assert overloaded.cost is not None
    assert overloaded.cost.usd_per_request is None  # the queue grows
    assert not overloaded.slo[0].met


def test_what_ends_the_capacity_is_named() -> None:
    """A replica that falls behind before its latency reaches the limit is limited by its queue."""
    slos = parse_slos(["ttft.p90=50s"])
    asked = evaluator(KnownPlan())
    asked = replace(asked, tester=replace(asked.tester, slos=slos))
    plan = asked.entry(TWO, None, OTHER).plan
    assert plan.limited_by == "queue"
    assert plan.missed_requests_per_s is not None
    assert plan.limit_words == f"at {plan.missed_requests_per_s:.3g} requests/s the queue grows without limit"


@pytest.mark.parametrize(
    ("value_s", "limit"), [(0.39, "ttft.p90"), (0.2, "ttft.p90"), (0.05, "queue"), (None, "ttft.p90")]
)
def test_an_objective_far_from_its_limit_at_the_capacity_is_not_what_limits_it(
    value_s: float | None, limit: str
) -> None:
    """The limit is 0.4 s. A rate a little higher is not sure although the latency is short: the queue grows there."""
    rates = evaluator(KnownPlan()).rates
    bars = [Confidence(0.04, 0.03, 0.05, 0.91, at_confidence_s=value_s), Confidence(0.1, 0.1, 0.1, 1.0)]
    assert rates.limit_above("ttft.p90", bars) == limit
    assert rates.limit_above("tpot.mean", bars) == "tpot.mean"
    assert rates.limit_above(None, bars) is None


@pytest.mark.parametrize("budget", [BEST, OTHER])
@pytest.mark.parametrize("required_per_s", [10.0, 14.95])
def test_the_capacity_beside_a_required_rate_is_that_without_one(budget: SeedBudget, required_per_s: float) -> None:
    """The limit of 0.4 s is reached at 15 requests/s."""
    plan = evaluator(KnownPlan(), required_per_s).entry(TWO, 14.9, budget).plan
    free = evaluator(KnownPlan()).entry(TWO, 14.9, budget).plan
    assert plan.capacity_requests_per_s is not None
    assert free.capacity_requests_per_s is not None
    assert plan.capacity_requests_per_s == max(free.capacity_requests_per_s, required_per_s)
    assert (plan.limited_by, plan.missed_requests_per_s) == ("ttft.p90", None)


@pytest.mark.parametrize("required_per_s", [15.2, 17.0])
def test_the_capacity_of_a_plan_that_misses_a_required_rate_is_that_without_one(required_per_s: float) -> None:
    found = evaluator(KnownPlan(), required_per_s).entry(TWO, None, BEST)
    free = evaluator(KnownPlan()).entry(TWO, None, BEST)
    assert not found.met
    assert found.capacity_requests_per_s == pytest.approx(free.capacity_requests_per_s, rel=0.02)
    assert found.plan.missed_requests_per_s == required_per_s


def test_the_capacity_beside_a_required_rate_is_that_of_the_whole_cluster() -> None:
    """One replica under its share misses 15.5 requests/s; the whole cluster carries 16.5."""
    plan = evaluator(KnownPlan(cluster=0.7), 15.5).entry(TWO, 15.5, BEST).plan
    assert plan.slo[0].met
    assert plan.capacity_requests_per_s is not None
    assert 16.5 / 1.05 < plan.capacity_requests_per_s <= 16.5


def test_a_required_rate_that_is_missed_is_the_rate_that_limits_the_capacity() -> None:
    """One replica under its share meets 14 requests/s, and all of them together miss it."""
    plan = evaluator(KnownPlan(cluster=1.6), 14.0).entry(TWO, 14.0, BEST).plan
    assert not plan.slo[0].met
    assert plan.capacity_requests_per_s is not None
    assert plan.capacity_requests_per_s < 14.0
    assert plan.limit_words == "at 14 requests/s ttft.p90 is missed"


def test_power_and_energy_are_means_of_the_runs_that_agree_with_the_plan() -> None:
    """Seeds one and two: 1,000 and 2,000 W for 1,000 and 2,000 output tokens/s."""
    toy = KnownPlan()
    loads = [Load(10.0, 1000, seed) for seed in (0, 1)]
    details = [toy.detail(TWO, load) for load in loads]
    blocks = [
        {"power": {"gpu_w_mean": w, "cap_w": cap}, "energy": {"gpu_j": w}} for w, cap in ((400.0, 1.0), (500.0, None))
    ]
    runs = [replace(d, metrics=d.metrics | block) for d, block in zip(details, blocks, strict=True)]
    verdict = judge([d.observation for d in runs], SLOS)
    found = steady_metrics(runs, verdict)
    assert found["power"] == {"gpu_w_mean": 450.0, "cap_w": None, "node_w_mean": 1500.0}
    assert found["energy"] == {"gpu_j": 450.0, "total_j_per_output_token": pytest.approx(1.0, rel=1e-12)}
    without = [runs[0], details[1]]
    assert steady_metrics(without, verdict)["power"] == {"gpu_w_mean": 400.0, "cap_w": 1.0}


# ---- blocks of the answer


def seen(rate_per_s: float, value_s: float, seeds: int = 1, whole: bool = False, growth: float = 0.0) -> object:
    samples = {"ttft": np.linspace(0, 2 * value_s, 11), "tpot": np.full(11, 0.01), "e2e": np.full(11, 1.0)}
    load = Load(rate_per_s, 100, 0, whole)
    return judge([Observation(load, samples, 90, growth) for _ in range(seeds)], SLOS)


def test_of_several_points_at_a_rate_the_one_with_the_most_seeds_counts() -> None:
    verdicts = [seen(2.0, 0.2, 3), seen(2.0, 0.1), seen(1.0, 0.5), seen(2.0, 0.3, 2, True), seen(3.0, 0.1, growth=1.0)]
    points = curve_of(verdicts, 1.5)  # type: ignore[arg-type]
    assert [(p.requests_per_s, p.whole_cluster, p.n_seeds, p.n_measured) for p in points] == [
        (1.0, False, 1, 90),
        (2.0, False, 3, 270),
        (2.0, True, 2, 180),
        (3.0, False, 1, 90),
    ]
    assert [(p.stable, p.met) for p in points] == [(True, True), (True, False), (True, False), (False, False)]
    assert not any(p.met for p in curve_of(verdicts, None))  # type: ignore[arg-type]
    assert points[1].ttft_s.mean == pytest.approx(0.2)
    assert points[1].ttft_s.p90 == pytest.approx(0.36, abs=0.02)


def test_no_rate_is_printed_both_as_met_and_as_missed() -> None:
    """A rate above the capacity that is printed as the capacity is left out; one below it, or another one, is not."""
    verdicts = [seen(rate, 0.2) for rate in (14.9999, 15.0, 15.0001, 15.9)]
    points = curve_of(verdicts, 15.0)  # type: ignore[arg-type]
    assert [(p.requests_per_s, p.met) for p in points] == [(14.9999, True), (15.0, True), (15.9, False)]
    assert len(curve_of(verdicts, None)) == 4  # type: ignore[arg-type]


def test_a_distribution_is_that_of_all_seeds() -> None:
    found = cdf_of(seen(1.0, 0.5, 2))  # type: ignore[arg-type]
    assert found["quantiles"] == list(QUANTILES)
    assert found["quantiles"][0] == 0.0
    assert found["quantiles"][-2:] == [0.995, 0.999]
    assert len(QUANTILES) == 102
    assert found["ttft_s"][0] == 0.0
    assert found["ttft_s"][50] == pytest.approx(0.5, abs=0.05)
    assert found["ttft_s"] == sorted(found["ttft_s"])  # type: ignore[type-var]
    assert "itl_s" not in found
    assert short(1 / 3) == 0.333333


def plan_of(usd: float | None, kwh: float | None, value_s: float, capacity: float | None = 1.0) -> EvaluatedPlan:
    base = evaluator(KnownPlan(), 5.0).entry(TWO, None, OTHER)
    cost = None if usd is None else Money(1.0, usd, None, None, None)
    used = None if kwh is None else Energy(1.0, 1.0, kwh, None, 1.0, None, None)
    plan = base.plan.model_copy(update={"cost": cost, "energy": used})
    verdict = seen(1.0, value_s)
    return replace(base, plan=plan, verdict=verdict, capacity_requests_per_s=capacity)  # type: ignore[arg-type]


def test_pareto_optimal_is_what_nothing_beats_in_everything() -> None:
    cheap, green, fast = plan_of(1.0, 3.0, 0.3), plan_of(2.0, 1.0, 0.3), plan_of(3.0, 3.0, 0.1)
    worse = plan_of(2.0, 3.0, 0.3)
    assert pareto([cheap, worse, green, fast]) == [cheap.plan, green.plan, fast.plan]
    assert pareto([cheap, replace(cheap)]) == [cheap.plan, cheap.plan]  # equal plans do not beat each other
    strong, weak = plan_of(None, None, 0.3, 9.0), plan_of(None, None, 0.3, 5.0)
    assert pareto([weak, strong]) == [strong.plan]
    assert pareto([plan_of(None, None, 0.3, None), strong]) == [strong.plan]
    unknown = plan_of(1.0, None, 0.3)
    assert pareto([unknown, cheap]) == [cheap.plan]


def test_objectives_are_minimised() -> None:
    """1 US dollar an hour, 8 accelerators, 4 requests/s at the capacity."""
    given = plan_of(1.0, 3.0, 0.3, 4.0)
    cheap = replace(given, plan=given.plan.model_copy(update={"cost": Money(1.0, 0.5, None, None, None)}))
    assert objective_value("cost", True, cheap) == 1.0
    assert objective_value("cost", False, cheap) == 0.25
    assert objective_value("throughput", False, cheap) == -4.0
    assert objective_value("goodput", False, cheap) == -0.5
    assert objective_value("energy", True, cheap) == 1.0
    assert objective_value("carbon", True, cheap) == math.inf  # of an unknown grid
    assert objective_value("latency", True, cheap) == cheap.plan.tightest.share
    unknown = plan_of(None, None, 0.3, None)
    for objective, with_load in (("cost", True), ("cost", False), ("energy", True), ("carbon", True)):
        assert objective_value(objective, with_load, unknown) == math.inf
    assert objective_value("cost", False, replace(cheap, capacity_requests_per_s=None)) == math.inf
    assert objective_value("throughput", False, unknown) == 0.0


def test_the_assumed_rate_is_stated() -> None:
    slos = parse_slos(["ttft.p99=2s"])
    asked = {"model": "llama3.1-8b", "hardware": "h100x8", "slos": slos}
    plain = PlanRequest(**asked)  # type: ignore[arg-type]
    assert assumptions(plain, "100 in")[-1].endswith("figures are at the highest rate that meets every objective")
    assert "requests of these lengths: 100 in" in assumptions(plain, "100 in")[0]
    light = PlanRequest(**asked, objective="latency")  # type: ignore[arg-type]
    assert assumptions(light, "100 in")[-1].endswith("figures are at a light load")
    assert "no rate given" not in assumptions(PlanRequest(**asked, requests_per_s=3.0), "100 in")[-1]  # type: ignore[arg-type]
    users = assumptions(PlanRequest(**asked, users=30), "100 in")[-1]  # type: ignore[arg-type]
    assert users == "figures are at the rate of 30 users who wait for each answer"


@dataclass
class KneeToy(KnownPlan):
    """A latency that stays flat up to a knee and then rises as a power of the rate."""

    knee_per_s: float = 15.0
    power: float = 8.0

    def value_s(self, c: Candidate, rate_per_s: float) -> float:
        growth = 1 + 2 * (rate_per_s / self.knee_per_s) ** self.power
        return self.base_s * growth if rate_per_s < self.fluid_requests_per_s(c) else 5.0


@pytest.mark.parametrize(
    ("start_per_s", "knee_per_s", "power", "error", "noise"),
    [
        (5.57, 8.86, 14.5, 0.1, (0.967, 1.082, 0.990, 0.949)),
        (9.196, 18.676, 37.95, 0.2, (0.970, 1.106, 0.934, 1.043)),
        (9.77, 15.57, 1.58, 0.1, (0.960, 1.097, 0.983, 1.058)),
    ],
)
def test_a_rate_that_is_raised_too_far_does_not_refuse_a_plan_that_is_sure(
    start_per_s: float, knee_per_s: float, power: float, error: float, noise: tuple[float, ...]
) -> None:
    """The last rate simulated extends the latency curve, which then shows that the rate before it is not sure."""
    toy = KneeToy(knee_per_s=knee_per_s, power=power, operator_error=error, noise=noise)
    assert evaluator(toy).entry(TWO, start_per_s, BEST, start_is_capacity=True).met
    raised = evaluator(toy).entry(TWO, start_per_s, BEST)
    assert raised.met
    assert raised.requests_per_s >= start_per_s


def test_an_unconfirmed_rate_is_lowered_in_growing_steps() -> None:
    """Few steps reach a rate that is a quarter lower, and no step passes over more than is tried again."""
    steps = list(confirmed_capacity._reductions())
    assert steps == sorted(steps)
    assert steps[0] == 1 + TOLERANCE
    assert steps[-1] == confirmed_capacity._BETWEEN
    assert math.prod(steps) > 1.25
