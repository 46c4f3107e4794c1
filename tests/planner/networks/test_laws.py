"""Laws of plans of jobs, in worlds whose batches take a known time."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest

from planner.networks.candidate import JobCandidate
from planner.networks.evaluation import meets_confidence
from planner.networks.job_assessor import JobAssessor
from planner.networks.plan_builder import PlanBuilder
from planner.networks.screen import job_near_miss_words
from tests.planner.networks.known_jobs import one, world

pytestmark = pytest.mark.runs_of(200)


def capacity_per_s(assessor: JobAssessor, candidate: JobCandidate) -> float:
    floor = assessor.evaluator.verdict(candidate, assessor.light_per_s(candidate))
    return assessor.capacity(candidate, floor).requests_per_s if floor.met else 0.0


def test_the_capacity_of_one_server_is_that_of_the_m_d_1_queue() -> None:
    """With service of 1 s, the mean time in the system is 1 + r / (2 (1 - r)): 2 s at two thirds of a job/s."""
    assessor = world(lambda _: 1.0, slo="e2e.mean=2s", confidence=0.5)
    assert capacity_per_s(assessor, one()) == pytest.approx(2 / 3, rel=0.05)


def test_slower_batches_are_a_rescaled_clock() -> None:
    """Batches that take 1.7 times as long give the latencies of the world in which they are priced so."""
    candidate = one(max_batch=4, queue_delay_s=0.4)
    fast, slow = world(lambda n: 0.5 + 0.1 * n), world(lambda n: 1.7 * (0.5 + 0.1 * n))
    seen = fast.evaluator.verdict(candidate, 1.1, 1.7)
    expected = slow.evaluator.verdict(candidate, 1.1, 1.0)
    assert 1.7 * seen.observations[0].e2e_s == pytest.approx(expected.observations[0].e2e_s, rel=1e-9)
    assert seen.load == pytest.approx(expected.load)


@pytest.mark.parametrize("batched", [False, True])
def test_a_tighter_limit_never_raises_the_capacity(batched: bool) -> None:
    candidate = one(max_batch=8 if batched else 1)
    found = [
        capacity_per_s(world(lambda n: 0.8 + 0.2 * n, slo=f"e2e.p90={limit}s"), candidate)
        for limit in (0.9, 1.2, 1.7, 2.5, 4, 8)
    ]
    assert found[0] == 0.0  # a single job takes 1 s
    assert found[1] > 0.0
    assert all(low <= high * 1.021 for low, high in pairwise(found))  # bisection leaves 2 %


def test_several_replicas_carry_at_least_as_many_times_the_rate_of_one() -> None:
    """A router that knows the queues only helps; 3 % are left to bisection and noise."""
    assessor = world(lambda _: 1.0, slo="e2e.p90=3s")
    single = capacity_per_s(assessor, one())
    for n in (2, 3, 8):
        assert capacity_per_s(assessor, one(replicas=n)) >= 0.97 * n * single


def test_twice_the_rate_never_needs_fewer_replicas() -> None:
    needed = []
    for rate in (0.25, 0.5, 1, 2, 4):
        assessor = world(lambda _: 1.0, slo="e2e.p90=3s", rate=rate)
        needed.append(assessor(one()).candidate.replicas)
    assert needed == sorted(needed)
    assert needed[0] == 1
    assert needed[-1] > 4


def test_the_fewest_replicas_hold_and_one_fewer_do_not() -> None:
    assessor = world(lambda _: 1.0, slo="e2e.p90=2s", rate=3.0)
    found = assessor(one())
    assert found.score is not None
    least = found.candidate
    assert assessor.evaluator.verdict(least, 3.0).met
    assert not assessor.evaluator.verdict(least.with_replicas(least.replicas - 1), 3.0).met


def test_the_published_error_lowers_the_capacity_by_at_least_its_factor() -> None:
    """Slower batches also leave less of the limit for waiting."""
    sure = capacity_per_s(world(lambda _: 1.0, slo="e2e.p90=4s", error=1.5), one())
    plain = capacity_per_s(world(lambda _: 1.0, slo="e2e.p90=4s"), one())
    assert 0.0 < sure <= plain / 1.5 * 1.021


def test_full_batches_bound_what_a_candidate_carries() -> None:
    """Batches of four take 1.6 s, so no limit makes one replica carry more than 2.5 jobs per second."""
    assessor = world(lambda n: 0.8 + 0.2 * n, slo="e2e.p90=1000s")
    candidate = one(max_batch=4)
    assert assessor.evaluator.fluid_per_s(candidate) == pytest.approx(2.5)
    found = capacity_per_s(assessor, candidate)
    assert 0.95 * 2.5 <= found < 2.5
    assert not assessor.evaluator.verdict(candidate, 2.5).stable
    assert math.isinf(assessor.evaluator.verdict(candidate, 2.5).ratio)


def test_a_bound_is_never_worse_than_what_is_measured() -> None:
    for objective in ("cost", "throughput", "energy", "latency"):
        for rate in (None, 2.0):
            assessor = world(lambda n: 0.3 + 0.1 * n, slo="e2e.p90=3s", objective=objective, rate=rate)
            candidate = one(max_batch=4)
            found = assessor(candidate)
            assert found.score is not None
            if objective != "energy":  # the joules of this world are not those of the bound
                assert assessor.bound(candidate) <= found.score + 1e-9 * abs(found.score)


def test_the_sized_rate_is_met_at_the_confidence_and_a_higher_one_is_not() -> None:
    assessor = world(lambda _: 1.0, slo="e2e.p90=3s", error=1.3)
    builder = PlanBuilder(assessor)
    rate = builder.capacity(one())
    assert rate is not None
    assert meets_confidence(assessor.evaluator.certainty(one(), rate), 0.9)
    assert not meets_confidence(assessor.evaluator.certainty(one(), 1.1 * rate), 0.9)


@pytest.mark.parametrize(
    ("rate", "slo", "limit"),
    [
        (0.99, "e2e.p50=10s", "every replica is busy with full batches"),
        (0.9, "e2e.p50=6s", "beyond it e2e.p50 is missed"),  # less than a fourth of the limit is far
        (0.9, "e2e.p50=60s", "beyond it the queue grows without limit"),
        (0.9, "e2e.p99=20s,e2e.p50=60s", "beyond it e2e.p99 is missed"),
    ],
)
def test_an_objective_far_from_its_limit_is_not_said_to_limit_the_capacity(rate: float, slo: str, limit: str) -> None:
    """One replica executes one job in a second, so that its median latency at 0.9 jobs/s is a few seconds."""
    builder = PlanBuilder(world(lambda _: 1.0, slo=slo, hardware="h100x1"))
    builder._capacities[one("h100x1")] = rate
    plan = builder.plan(builder.sized(one("h100x1"), rate))
    assert plan.limited_by == limit
    nearest = max((row.value_at_confidence_s or 0.0) / row.limit_s for row in plan.slo)
    assert bool(job_near_miss_words(plan, 0.9)) == (nearest < 0.8)


def test_a_plan_carries_at_least_the_required_rate_that_it_holds() -> None:
    """The search for the capacity ends with a step down, which may pass the required rate."""
    assessor = world(lambda _: 1.0, slo="e2e.p90=3s", rate=0.4)
    builder = PlanBuilder(assessor)
    highest = builder.capacity(one())
    assert highest is not None
    assert highest > 0.4
    builder._capacities[one()] = 0.39
    sized = builder.sized(one(), 0.4)
    assert sized.met
    plan = builder.plan(sized)
    assert (plan.requests_per_s, plan.capacity_requests_per_s) == (0.4, 0.4)
    assert plan.curve[-1].requests_per_s <= 0.4
