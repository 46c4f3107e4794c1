"""Replicas simulated one by one on several cores give what one run of all gives, number for number."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from catalogs.deployments.queueing import Queueing
from catalogs.deployments.schema import Deployment
from catalogs.workloads.request_set import RequestSet
from simulator.analysis.metrics import latency_metrics, summarise
from simulator.cluster.cluster import Controller, RunOptions
from simulator.cluster.compiled import Pool, compile_fleet
from simulator.cluster.parallel import run_both
from simulator.cluster.run import Run
from simulator.cluster.simulate import run_pools
from simulator.cluster.simulate import simulate as run_fleet
from tests.simulator.worlds import Linear, host_times, requests, rules

BLIND = ("round_robin", "random", "session_affinity")


def drawn(n: int, seed: int = 0, rate: float = 2.0) -> RequestSet:
    rng = np.random.default_rng(seed)
    groups = rng.integers(0, 9, n)
    hashes = tuple(tuple(range(1000 * g, 1000 * g + 3)) for g in groups.tolist())
    return RequestSet(
        np.cumsum(rng.exponential(1 / rate, n)),
        rng.integers(12, 60, n),
        rng.integers(1, 40, n),
        block_hashes=hashes,
        hash_block_tokens=4,
        sessions=groups,
    )


def both(pools: list[Pool], work: RequestSet, **options: object) -> tuple[Run, Run]:
    chosen = RunOptions(**options)  # type: ignore[arg-type]
    return run_pools(pools, work, chosen), run_pools(pools, work, replace(chosen, processes=2))


def sent(work: Callable[[int], Any], n: int) -> list[Any]:
    """Compute in reverse on a copy that was sent with pickle, as a machine of a cluster does."""
    there = pickle.loads(pickle.dumps(work))
    return [there(i) for i in reversed(range(n))][::-1]


def assert_same(one: Run, two: Run) -> None:
    for field in fields(Run):
        a, b = getattr(one, field.name), getattr(two, field.name)
        if isinstance(a, np.ndarray):
            np.testing.assert_array_equal(a, b, err_msg=field.name)
    assert len(one.replicas) == len(two.replicas)
    for mine, other in zip(one.replicas, two.replicas, strict=True):
        assert (mine.pool, mine.kv_peak_fraction) == (other.pool, other.kv_peak_fraction)
        assert (mine.created_s, mine.removed_s) == (other.created_s, other.removed_s)
        assert [log.table().tolist() for log in mine.logs] == [log.table().tolist() for log in other.logs]
    assert latency_metrics(one) == latency_metrics(two)


@pytest.mark.parametrize("router", BLIND)
@pytest.mark.parametrize("horizon_s", [None, 60.0])
def test_the_same_as_in_one_run(router: str, horizon_s: float | None) -> None:
    timer = Linear(base_s=0.25, decode_s=0.03, prompt_token_s=0.001, context_s=1e-4)
    engine = rules(kv_blocks=60, lag=1, host=host_times(request_s=0.01, request_s_per_input_token=1e-3, output_s=0.02))
    work = drawn(300)
    one, two = both([Pool(engine, timer, 5)], work, router=router, horizon_s=horizon_s)
    assert two.options.processes == 2
    assert one.preemptions.sum() > 0  # and so gaps that a preemption made
    assert_same(one, two)
    assert (horizon_s is None) == bool(one.completed.all())


@settings(max_examples=8, deadline=None)
@given(st.integers(1, 40), st.integers(1, 6), st.sampled_from(BLIND), st.integers(0, 99))
def test_for_any_fleet(n: int, replicas: int, router: str, seed: int) -> None:
    """Two pools of one model, of which one refuses long requests, and one of another."""
    timer = Linear(base_s=0.25, decode_s=0.125)
    pools = [
        Pool(rules(max_model_len=64), timer, replicas),
        Pool(rules(kv_blocks=30), timer, 1),
        Pool(rules(max_model_len=50), timer, 2, model=1),
    ]
    work = drawn(n, seed)
    assert_same(*both(pools, replace(work, requested_models=work.input_tokens % 2), router=router))


@pytest.mark.parametrize("policy", ["sglang", "trtllm"])
def test_what_clients_declare_is_the_longest_of_all(policy: str) -> None:
    """Schedulers that reserve for it must see the same on every replica."""
    work = requests([0.0] * 6, [8] * 6, [40, 1, 1, 1, 1, 1])
    assert_same(*both([Pool(rules(policy=policy, kv_blocks=30), Linear(), 2)], work))


def test_full_queues_and_cut_requests_are_each_replicas_own() -> None:
    queueing = Queueing(max_waiting=2, too_long="truncate")
    engine = rules(max_num_seqs=2, max_model_len=60, queueing=queueing)
    one, two = both([Pool(engine, Linear(), 3)], drawn(120, rate=1.0))
    assert_same(one, two)
    assert one.rejected.any()
    assert one.completed.any()


def test_clients_that_give_up_may_meet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who is gone before the router is asked changes whose turn it is."""
    monkeypatch.setattr("simulator.cluster.parallel.run_independent", lambda _: pytest.fail("taken apart"))
    engine = rules(queueing=Queueing(timeout_s=4.0), host=host_times(request_s_per_input_token=0.1))
    assert_same(*both([Pool(engine, Linear(), 3)], drawn(60)))


class Idle(Controller):
    def start(self, cluster: object) -> None: ...


@pytest.mark.parametrize(
    "options", [{"router": "least_outstanding"}, {"controllers": (Idle(),)}, {"router": "power_of_two"}]
)
def test_replicas_that_may_meet_run_together(options: dict[str, object], monkeypatch: pytest.MonkeyPatch) -> None:
    import simulator.cluster.parallel

    def never(_: object) -> Run:
        raise AssertionError("taken apart")

    monkeypatch.setattr(simulator.cluster.parallel, "run_independent", never)
    one, two = both([Pool(rules(), Linear(), 2)], drawn(20), **options)
    assert_same(one, two)
    one, two = both([Pool(rules(), Linear(), 2)], replace(drawn(20), concurrency=3))
    assert_same(one, two)


def test_a_planted_fault_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests that go elsewhere in the shares than in the whole."""
    import simulator.cluster.parallel

    right = simulator.cluster.parallel._assign
    monkeypatch.setattr(
        simulator.cluster.parallel, "_assign", lambda c, order: tuple(x[::-1].copy() for x in right(c, order))
    )
    with pytest.raises(AssertionError):
        assert_same(*both([Pool(rules(), Linear(), 3)], drawn(20)))


@pytest.mark.parametrize("router", BLIND)
def test_replicas_may_be_computed_elsewhere(router: str) -> None:
    """The work of a replica can be sent to another machine, and gives the same numbers there."""
    engine = rules(kv_blocks=60, lag=1, host=host_times(request_s=0.01, request_s_per_input_token=1e-3, output_s=0.02))
    pools = [Pool(engine, Linear(base_s=0.25, decode_s=0.03, prompt_token_s=0.001), 3)]
    chosen = RunOptions(router=router)
    assert_same(run_pools(pools, drawn(300), chosen), run_pools(pools, drawn(300), replace(chosen, spread=sent)))


def test_a_fleet_of_the_catalog_can_be_sent() -> None:
    fleet = compile_fleet(Deployment(model="llama3.1-8b", hardware="h100x4", replicas=4))
    work = RequestSet(np.arange(60) / 20, np.full(60, 700), np.arange(60) % 7 + 20)
    one, two = (run_fleet(fleet, work, RunOptions(spread=spread)) for spread in (None, sent))
    assert_same(one, two)


def test_a_summary_in_two_processes_is_that_of_one() -> None:
    fleet = compile_fleet(Deployment(model="llama3.1-8b", hardware="h100x4", replicas=4))
    work = replace(drawn(120), block_hashes=None)
    one, two = (summarise(run_fleet(fleet, work, RunOptions(processes=n))) for n in (1, 2))
    assert one == two


def test_the_process_beside_returns_its_result_and_its_error() -> None:
    here = os.getpid()
    there, mine = run_both(2, os.getpid, os.getpid)
    assert mine == here != there
    assert run_both(1, os.getpid, os.getpid) == (here, here)

    def fails() -> int:
        raise ValueError("of the other process")

    with pytest.raises(ValueError, match="of the other process"):
        run_both(2, fails, os.getpid)
