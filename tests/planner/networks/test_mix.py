"""Jobs of several sizes, files of jobs, users and instances: laws, and worlds small enough to check by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from catalogs.errors import InputError
from catalogs.hardware.catalog import parse_hardware
from catalogs.networks.files import load_network
from planner.networks.candidate import JobCandidate, Setup
from planner.networks.evaluation import JobEvaluator
from planner.networks.job_service import JobService, busy_s
from planner.networks.mix import JobMix, read_jobs
from planner.networks.plan import plan_network
from planner.networks.plan_builder import PlanBuilder
from planner.networks.request import network_request
from planner.networks.space import make_space
from planner.problem.slo import parse_slos
from tests.planner.networks.known_jobs import ask, one, world

WAN = "wan2.1-t2v-1.3b"
#: Keys that leave few candidates.
SMALL = {"modes": "compiled", "precisions": "bf16", "max_batch": 1, "max_instances": 1, "search.trials": 2}


def jobs(text: str | None, steps: int | None = None, network: str = WAN) -> JobMix:
    return read_jobs(load_network(network), text, steps)


def test_one_job_is_a_mix_of_one() -> None:
    assert jobs("832x480x81", 20).shares == (1.0,)
    assert jobs("832x480x81:1").jobs == jobs("832x480x81").jobs


@given(st.lists(st.floats(0.01, 100), min_size=2, max_size=4), st.sampled_from([1.0, 100.0]))
def test_shares_add_up_to_one_or_to_a_hundred_per_cent(weights: list[float], whole: float) -> None:
    shares = [whole * weight / sum(weights) for weight in weights]
    found = jobs(",".join(f"832x480x{4 * i + 1}:{share!r}" for i, share in enumerate(shares, 1)))
    assert found.shares == pytest.approx([share / whole for share in shares])
    assert [job.all_sizes["frames"] for job in found.jobs] == [4 * i + 1 for i in range(1, len(shares) + 1)]


def test_rounded_shares_are_accepted_and_others_are_refused_with_those_in_their_proportion() -> None:
    thirds = jobs("832x480x81:0.333,832x480x41:0.333,832x480x21:0.333")
    assert thirds.shares == pytest.approx([1 / 3] * 3)
    refused = "add up to 1, or to 100 as percentages: got '1.2'; nearest valid choice: 832x480x81:0.75,832x480x41:0.25"
    with pytest.raises(InputError) as error:
        jobs("832x480x81:0.9,832x480x41:0.3")
    assert refused in str(error.value)
    for text in ("832x480x81:0.4", "832x480x81:60,832x480x41:30", "832x480x81:3,832x480x41:1"):
        with pytest.raises(InputError, match="add up to 1"):
            jobs(text)


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("832x480x81:0", "a number above zero"),
        ("832x480x81:0.5,832x480x41", "SIZES:SHARE"),
        ("832x480x81:0.3,832x480x81:0.7", "the same"),
        ("832x480x80:0.5,832x480x41:0.5", "frames is"),
        ("nowhere.csv", "a YAML file"),
        ("{arrivals: all_at_once}", "no rate of arrivals"),
    ],
)
def test_what_is_no_mix_is_refused_in_one_line(text: str, rule: str) -> None:
    with pytest.raises(InputError, match=rule) as refused:
        jobs(text)
    assert "\n" not in str(refused.value)


def test_a_mix_has_the_mean_of_its_jobs_and_the_memory_of_the_largest() -> None:
    setup = Setup(parse_hardware("h100"), "bf16", "compiled")
    both = JobService(jobs("832x480x81:75,832x480x41:25", 10))
    alone = [JobService(jobs(text, 10)) for text in ("832x480x81", "832x480x41")]
    assert both.seconds(setup) == pytest.approx(0.75 * alone[0].seconds(setup) + 0.25 * alone[1].seconds(setup))
    assert both.memory_bytes(setup) == max(each.memory_bytes(setup) for each in alone)
    each_s = sum(share / one.fluid_jobs_per_s(setup, 2) for share, one in zip((0.75, 0.25), alone, strict=True))
    assert both.fluid_jobs_per_s(setup, 2) == pytest.approx(1.0 / each_s)
    p50, p90, mean = parse_slos(["e2e.p50=1s", "e2e.p90=1s", "e2e.mean=1s"])
    assert both.statistic_s(setup, 1, p50) == alone[0].seconds(setup)
    assert both.statistic_s(setup, 1, p90) == alone[0].seconds(setup)
    assert both.statistic_s(setup, 1, mean) == pytest.approx(both.seconds(setup))
    mostly_short = JobService(jobs("832x480x81:25,832x480x41:75", 10))
    assert mostly_short.statistic_s(setup, 1, p50) == alone[1].seconds(setup)


def test_the_jobs_of_a_run_have_their_shares() -> None:
    drawn = jobs("832x480x81:75,832x480x41:25").draw(0, 20_000, 1.0)
    assert np.bincount(drawn.kind) / drawn.n == pytest.approx([0.75, 0.25], abs=0.02)
    assert [kind.sizes["frames"] for kind in drawn.kinds] == [81, 41]


def test_a_trace_brings_its_rate_and_its_peaks(tmp_path: Path) -> None:
    """Ten jobs each second, all at its beginning: the last of them waits for the nine before it."""
    file = tmp_path / "jobs.csv"
    file.write_text("arrival_s,batch\n" + "".join(f"{s},1\n" for s in range(100) for _ in range(10)))
    request = network_request(
        {"model": "resnet50", "hardware": "h100x8", "slo": "e2e.p90=1s", "job": str(file), "confidence": 0.5}
    )
    assert request.requests_per_s == pytest.approx(999 / 99)
    assessor = world(lambda _: 0.01)
    mix = read_jobs(load_network("resnet50"), str(file), None)
    assessor.evaluator.service = type(assessor.evaluator.service)(mix, seconds_of=lambda _: 0.01)
    seen = assessor.evaluator.observe(one(), 999 / 99, 1.0, 0)
    assert seen.n_simulated == 1000
    assert sorted(set(np.round(seen.e2e_s, 6))) == pytest.approx([0.01 * i for i in range(1, 11)], abs=1e-4)


def test_users_send_their_next_job_after_their_last_one() -> None:
    """Three users without think time before one server of 1 s: each job takes 3 s, and the server serves 1 job/s."""
    assessor = world(lambda _: 1.0, users=3, slo="e2e.p90=10s")
    seen = assessor.evaluator.verdict(one(), 0.0, 1.0)
    assert seen.observations[0].e2e_s == pytest.approx(3.0)
    assert seen.requests_per_s == pytest.approx(1.0, rel=0.01)
    slower = assessor.evaluator.verdict(one(), 0.0, 2.0)
    assert slower.requests_per_s == pytest.approx(0.5, rel=0.01)
    assert slower.value_s(assessor.request.objectives[0]) == pytest.approx(6.0)


@pytest.mark.parametrize(("limit", "replicas"), [("10s", 1), ("2.5s", 2), ("1.2s", 4)])
def test_users_get_the_fewest_replicas(limit: str, replicas: int) -> None:
    """Four users without think time: r servers of 1 s take 4 / r s for a job."""
    assessor = world(lambda _: 1.0, users=4, slo=f"e2e.p90={limit}", confidence=0.5)
    found = assessor(one(replicas=8))
    assert found.score is not None
    assert found.candidate.replicas == replicas


def test_users_who_think_need_less() -> None:
    needed = [
        world(lambda _: 1.0, users=8, think_s=think, slo="e2e.p90=2.2s", confidence=0.5)(one()).candidate.replicas
        for think in (0.0, 4.0, 20.0)
    ]
    assert needed[0] == 4
    assert needed == sorted(needed, reverse=True)
    assert needed[-1] < needed[0]


@pytest.mark.parametrize(("limit", "users"), [("1.2s", 2), ("10.2s", 20), ("100.2s", 200), ("0.9s", 0)])
@pytest.mark.parametrize("start", [1, 30])
def test_the_most_users_are_the_jobs_that_the_limit_has_time_for(limit: str, users: int, start: int) -> None:
    """Users without think time before two servers of 1 s: with n users a job takes n / 2 s, and at least 1 s."""
    builder = PlanBuilder(world(lambda _: 1.0, users=start, slo=f"e2e.p90={limit}", confidence=0.5))
    found = builder.users(one(replicas=2))
    assert 0.96 * users <= found <= users


def test_users_who_think_are_more() -> None:
    """One server of 1 s and a think time of 9 s: one job at a time needs few users, and the capacity grows with it."""
    found = [
        PlanBuilder(world(lambda _: 1.0, users=2, think_s=think, slo="e2e.p90=3s", confidence=0.5)).users(one())
        for think in (0.0, 9.0, 30.0)
    ]
    assert found == sorted(set(found))


@pytest.mark.usual_runs
def test_a_plan_for_users_states_what_they_send() -> None:
    keys = {"model": "resnet50", "hardware": "l4", "slo": "e2e.p90=500ms", "users": 6, "think_s": 0.1, **SMALL}
    found = plan_network(network_request(keys | {"tariff.usd_per_hour": 1.0}))
    assert found.best is not None
    best = found.best
    assert best.capacity_requests_per_s is None
    assert best.capacity_users is not None
    assert best.capacity_users >= 6
    mean_s = best.metrics.e2e_s.mean
    assert mean_s is not None
    assert best.requests_per_s == pytest.approx(6 / (0.1 + mean_s), rel=0.03)  # Little's law
    tight = {"users": 40, "think_s": 0.0, "slo": "e2e.p90=10ms", "tariff.usd_per_hour": 1.0}
    refused = plan_network(network_request(keys | tight))
    no = refused.infeasible
    assert no is not None
    most = next(change.value for change in no.what_would_meet_it if change.kind == "users")
    assert most is not None
    assert plan_network(network_request(keys | tight | {"users": int(most)})).feasible


def test_instances_hide_the_host_and_never_more() -> None:
    setup = Setup(parse_hardware("h100"), "bf16", "eager")
    service = JobService(JobMix.one(jobs(None, network="resnet50").first))
    price = service.price(setup)
    rates = [service.fluid_jobs_per_s(setup, 1, instances) for instances in (1, 2, 4, 64)]
    assert rates[0] == pytest.approx(1.0 / price.seconds)
    assert rates == sorted(rates)
    assert rates[-1] == pytest.approx(1.0 / busy_s(price))


def test_more_instances_are_searched_where_the_host_limits() -> None:
    request = ask(modes=["eager"], precisions=["bf16"], max_batch=1)
    service = JobService(jobs(None, network="resnet50"))
    found = {c.instances for c in make_space(request, service, [parse_hardware("h100")]).left}
    assert {1, 2} <= found
    alone = ask(modes=["eager"], precisions=["bf16"], max_batch=1, max_instances=1)
    assert {c.instances for c in make_space(alone, service, [parse_hardware("h100")]).left} == {1}


@pytest.mark.usual_runs
def test_simulated_instances_reach_the_rate_of_the_bound() -> None:
    setup = Setup(parse_hardware("h100"), "bf16", "eager")
    request = ask(slo="e2e.p90=1s", confidence=0.5)
    evaluator = JobEvaluator(request, JobService(jobs(None, network="resnet50")))
    for instances in (1, 2):
        candidate = JobCandidate(setup, 1, 1, 0.0, instances)
        most = evaluator.fluid_per_s(candidate)
        seen = evaluator.observe(candidate, 0.97 * most, 1.0, 0, 4000)
        assert seen.jobs_per_s == pytest.approx(0.97 * most, rel=0.05)
        assert evaluator.deployment(candidate).instances == instances
