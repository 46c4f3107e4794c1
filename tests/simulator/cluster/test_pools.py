"""Pools: whole timelines by hand of hand-overs, births and deaths, and the laws that hold for any of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from catalogs.deployments.schema import Deployment
from catalogs.errors import InputError
from catalogs.workloads.request_set import RequestSet
from simulator.analysis.inter_token_latency import itl_statistics
from simulator.analysis.metrics import latency_metrics, output_tokens, summarise
from simulator.cluster.cluster import Cluster, RunOptions
from simulator.cluster.compiled import CompiledFleet, Pool, compile_deployment
from simulator.cluster.disaggregation import DisaggregationPolicy
from simulator.cluster.kv_transfer import LinkLoad, TransferLinks
from simulator.cluster.run import Run
from simulator.cluster.simulate import run_pools, run_rules
from simulator.cluster.simulate import simulate as run
from simulator.core.step_log import StepLog
from simulator.engine.replica import Replica
from tests.simulator.worlds import Linear, requests, rules


@dataclass(frozen=True)
class Wire:
    """A path with a time for each token."""

    token_s: float = 0.25
    latency_s: float = 0.5

    def pieces(self, tokens: int) -> int:  # noqa: ARG002 - everything leaves at the end
        return 1

    def load(self, tokens: int) -> LinkLoad:
        wire_s = self.token_s * tokens
        return LinkLoad(wire_s, wire_s, wire_s)


@dataclass(frozen=True)
class Script:
    """A controller that does what it was given."""

    acts: Callable[[Cluster], None]

    def start(self, cluster: Cluster) -> None:
        self.acts(cluster)


def crash_and_replacement(cluster: Cluster) -> None:
    """The first replica fails after 2.5 seconds, and another one starts after 4."""
    cluster.timetable.at(2.5, lambda: cluster.fail(cluster.replicas[0]))
    cluster.timetable.at(4.0, lambda: cluster.add_replica(0) and None)


def apart(n_prefill: int = 1, n_decode: int = 1, **changes: object) -> list[Pool]:
    return [
        Pool(rules(**changes), Linear(), n_prefill, "prefill"),
        Pool(rules(**changes), Linear(), n_decode, "decode"),
    ]


def simulate(pools: list[Pool], work: RequestSet, **options: object) -> Run:
    return run_pools(pools, work, RunOptions(check_invariants=True, **options))  # type: ignore[arg-type]


@pytest.mark.parametrize("fast", [True, False])
def test_a_prompt_is_handed_over_and_decoded_elsewhere(fast: bool) -> None:
    ports = TransferLinks({(0, 1): Wire()})
    run = simulate(apart(), requests([0.0], [4], [3]), transfer=ports, fast_forward=fast)
    # the prompt takes 0..1 and gives the first token; four tokens take one second on the wire and 0.5 to be seen
    assert run.first_token_s.tolist() == [1.0]
    assert run.handovers.tolist() == [[0.0, 0.0, 1.0, 1.0, 2.5]]
    assert run.last_token_s.tolist() == [4.5]
    assert (run.replica.tolist(), run.cached_tokens.tolist()) == ([1], [0])
    prompt, decode = run.logs
    assert (prompt.prefill_tokens.tolist(), prompt.decodes.tolist()) == ([4], [0])
    assert (decode.prefill_tokens.sum(), decode.context_sum[0], decode.start_s[0]) == (0, 4, 2.5)
    # gaps between tokens: 1 to 3.5, and one step
    assert run.waits_s.tolist() == [[1.0, 1.5]]
    assert latency_metrics(run)["itl_s"]["mean"] == 1.75
    assert latency_metrics(run)["kv_transfer_s"]["mean"] == 1.5


def test_transfers_share_the_port_and_blocks_stay_until_they_left() -> None:
    # two blocks in all at the prefill replica: the second prompt waits until the first has been sent
    pools = [replace(pool, rules=rules(kv_blocks=1) if pool.role == "prefill" else pool.rules) for pool in apart()]
    run = simulate(pools, requests([0.0, 0.0], [4, 4], [2, 2]), transfer=TransferLinks({(0, 1): Wire()}))
    assert run.first_token_s.tolist() == [1.0, 3.5]
    assert run.last_token_s.tolist() == [3.5, 6.0]
    # with room for both they are computed in one step, and share the wire
    run = simulate(apart(), requests([0.0, 0.0], [4, 4], [2, 2]), transfer=TransferLinks({(0, 1): Wire()}))
    assert run.handovers[:, 3:].tolist() == [[1.0, 3.5], [1.0, 3.5]]
    assert run.last_token_s.tolist() == [4.5, 4.5]
    # two receivers: the sender's port is still one
    run = simulate(apart(1, 2), requests([0.0, 0.0], [4, 4], [2, 2]), transfer=TransferLinks({(0, 1): Wire()}))
    assert run.handovers[:, 2:].tolist() == [[1.0, 1.0, 3.5], [2.0, 1.0, 3.5]]
    # two senders, one receiver: so is the receiver's
    run = simulate(apart(2, 1), requests([0.0, 0.0], [4, 4], [2, 2]), transfer=TransferLinks({(0, 1): Wire()}))
    assert run.handovers[:, 1:].tolist() == [[0.0, 2.0, 1.0, 3.5], [1.0, 2.0, 1.0, 3.5]]


def test_a_decode_replica_without_seats_or_blocks_makes_them_wait() -> None:
    prefill, decode = apart()
    one_seat = [prefill, replace(decode, rules=rules(max_num_seqs=1))]
    run = simulate(one_seat, requests([0.0, 0.0], [4, 4], [3, 3]))
    assert run.first_token_s.tolist() == [1.0, 1.0]
    assert run.last_token_s.tolist() == [3.0, 5.0]
    three_blocks = [prefill, replace(decode, rules=rules(kv_blocks=3))]
    run = simulate(three_blocks, requests([0.0, 0.0], [4, 4], [3, 3]))
    assert run.last_token_s.tolist() == [3.0, 5.0]


def test_what_ends_with_its_first_token_is_not_handed_over() -> None:
    run = simulate(apart(), requests([0.0, 0.0], [4, 4], [1, 2]))
    assert run.last_token_s.tolist() == [1.0, 2.0]
    assert (run.replica.tolist(), len(run.handovers)) == ([0, 1], 1)


def test_a_free_transfer_is_no_slower_than_one_replica_that_does_both() -> None:
    work = requests([0.0, 0.5, 0.75, 4.0], [8, 40, 12, 30], [9, 3, 1, 5])
    timer = Linear(base_s=0.25, prompt_token_s=0.125)
    pools = [replace(pool, timer=timer) for pool in apart()]
    two, one = simulate(pools, work), run_rules(rules(), timer, work)
    assert (two.last_token_s <= one.last_token_s).all()
    assert two.last_token_s[3] < one.last_token_s[3] or two.last_token_s[0] < one.last_token_s[0]


def test_the_decode_pool_refuses_what_it_cannot_hold() -> None:
    prefill, decode = apart()
    run = simulate([prefill, replace(decode, rules=rules(max_model_len=8))], requests([0.0, 0.0], [6, 4], [3, 3]))
    assert run.rejected.tolist() == [True, False]


def test_schedulers_that_take_nothing_over_say_so() -> None:
    with pytest.raises(InputError, match="cannot hand requests over"):
        simulate(apart(policy="llama.cpp"), requests([0.0], [4], [3]))
    prefill, _ = apart()
    _, decode = apart(policy="llama.cpp")
    with pytest.raises(InputError, match="cannot take over requests"):
        simulate([prefill, decode], requests([0.0], [4], [3]))


@st.composite
def workloads(draw: st.DrawFn) -> RequestSet:
    n = draw(st.integers(1, 14))
    arrivals = np.cumsum(draw(st.lists(st.sampled_from([0.0, 0.25, 1.0, 3.0]), min_size=n, max_size=n)))
    inputs = draw(st.lists(st.integers(1, 60), min_size=n, max_size=n))
    outputs = draw(st.lists(st.integers(1, 20), min_size=n, max_size=n))
    hashes = [[draw(st.integers(0, 2))] * (i // 4) for i in inputs] if draw(st.booleans()) else None
    closed = draw(st.sampled_from([None, 2]))
    return requests(arrivals.tolist() if closed is None else [0.0] * n, inputs, outputs, hashes, closed)


@settings(max_examples=60, deadline=None)
@given(workloads(), st.integers(1, 2), st.integers(1, 2), st.sampled_from([0, 1]), st.sampled_from([22, 1000]))
def test_laws_hold_and_fast_forward_is_exact(work: RequestSet, n: int, m: int, lag: int, blocks: int) -> None:
    timer = Linear(base_s=0.25, decode_s=0.125, prompt_token_s=0.0625, context_s=2.0**-10, segment_steps=7)
    pools = [replace(pool, timer=timer) for pool in apart(n, m, lag=lag, kv_blocks=blocks)]
    runs = [
        simulate(pools, work, fast_forward=fast, transfer=TransferLinks({(0, 1): Wire(token_s=2.0**-6)}))
        for fast in (True, False)
    ]
    for done in runs:
        assert done.completed.all()
        assert (done.first_token_s > done.arrival_s).all()
        several = work.output_tokens > 1
        assert (done.last_token_s[several] > done.first_token_s[several]).all()
        assert output_tokens(done) == work.output_tokens.sum()
        assert len(done.handovers) == several.sum()
    fast, slow = runs
    for name in ("first_token_s", "last_token_s", "started_s"):
        np.testing.assert_allclose(getattr(fast, name), getattr(slow, name), rtol=0, atol=1e-9)
    gaps = [itl_statistics(StepLog.merged(r.logs), r.gaps_s, np.insert(r.waits_s, 2, 1.0, axis=1)) for r in runs]
    if gaps[0]["mean"] is not None:
        assert gaps[0]["mean"] == pytest.approx(gaps[1]["mean"])
        total = (fast.last_token_s - fast.first_token_s).sum()
        assert gaps[0]["mean"] * (work.output_tokens - 1).sum() == pytest.approx(total)


# ---- births, deaths, several models


def test_a_replica_that_dies_gives_its_requests_back() -> None:
    def acts(cluster: Cluster) -> None:
        cluster.timetable.at(2.5, lambda: cluster.fail(cluster.replicas[0]))

    run = simulate([Pool(rules(), Linear(), 2)], requests([0.0, 0.0], [4, 4], [5, 5]), controllers=(Script(acts),))
    assert run.last_token_s.tolist() == [8.0, 5.0]  # it begins again beside the other's third decode, at 3
    assert run.first_token_s.tolist() == [4.0, 1.0]
    assert (run.restarts, run.replica.tolist(), run.replicas[0].removed_s) == (1, [1, 1], 2.5)
    assert run.logs[0].total_s.sum() == 2.0  # the step in flight left nothing
    assert run.replicas[0].alive_fraction(0.0, 8.0) == 2.5 / 8


def test_requests_wait_for_a_birth_where_nobody_lives() -> None:
    def acts(cluster: Cluster) -> None:
        cluster.timetable.at(0.5, lambda: cluster.fail(cluster.replicas[0]))
        cluster.timetable.at(3.0, lambda: cluster.add_replica(0) and None)

    run = simulate([Pool(rules(), Linear())], requests([0.0, 1.0], [4, 4], [2, 2]), controllers=(Script(acts),))
    assert run.last_token_s.tolist() == [5.0, 5.0]
    assert [r.created_s for r in run.replicas] == [0.0, 3.0]


def test_a_draining_replica_serves_what_it_has_and_dies() -> None:
    def acts(cluster: Cluster) -> None:
        cluster.timetable.at(0.5, lambda: cluster.drain(cluster.replicas[0]))

    run = simulate(
        [Pool(rules(), Linear(), 2)], requests([0.0, 1.0, 1.0], [4] * 3, [3] * 3), controllers=(Script(acts),)
    )
    assert run.replica.tolist() == [0, 1, 1]
    assert (run.replicas[0].removed_s, run.restarts) == (3.0, 0)


@pytest.mark.parametrize("victim", [0, 1])
def test_blocks_on_their_way_are_lost_with_either_end(victim: int) -> None:
    def acts(cluster: Cluster) -> None:
        def crash() -> None:
            pool = cluster.replicas[victim].pool
            cluster.fail(cluster.replicas[victim])
            cluster.add_replica(pool)

        cluster.timetable.at(2.0, crash)

    ports = TransferLinks({(0, 1): Wire()})
    run = simulate(apart(), requests([0.0], [4], [2]), transfer=ports, controllers=(Script(acts),))
    # from 1 to 2.5 the blocks were to travel. A sender's death is known at once, a receiver's when they arrive; either
    # way the prompt is computed again and takes 1 + 1.5 + 1
    assert run.last_token_s.tolist() == [(2.0 if victim == 0 else 2.5) + 3.5]
    assert run.restarts == 1


@pytest.mark.parametrize("shown", ["prefill", "decode"])
def test_a_prompt_that_nobody_is_left_to_decode_begins_again(shown: str) -> None:
    """Computed from 0 to 1 while no decode replica lives; one is born at 3: again 1 s, 1.5 s on the wire."""

    def acts(cluster: Cluster) -> None:
        cluster.timetable.at(0.5, lambda: cluster.fail(cluster.replicas[1]))
        cluster.timetable.at(3.0, lambda: cluster.add_replica(1) and None)

    ports, hand_over = TransferLinks({(0, 1): Wire()}), DisaggregationPolicy(first_token=shown)  # type: ignore[arg-type]
    run = simulate(apart(), requests([0.0], [4], [2]), transfer=ports, controllers=(Script(acts),), hand_over=hand_over)
    assert (run.started_s.tolist(), run.restarts) == ([3.0], 1)
    assert run.last_token_s.tolist() == [6.5 if shown == "prefill" else 7.5]
    assert run.handovers.tolist() == [[0.0, 0.0, 2.0, 4.0, 5.5]]


@pytest.mark.parametrize("fast", [True, False])
def test_a_replica_turns_slow_with_its_next_step(fast: bool) -> None:
    def acts(cluster: Cluster) -> None:
        cluster.timetable.at(2.5, lambda: cluster.replicas[0].run_by(Linear(base_s=2.0)))

    work = requests([0.0], [4], [5])
    run = simulate([Pool(rules(), Linear())], work, controllers=(Script(acts),), fast_forward=fast)
    assert run.last_token_s.tolist() == [7.0]


def test_controllers_act_until_all_is_served() -> None:
    seen: list[float] = []
    script = Script(lambda cluster: cluster.timetable.every(1.0, lambda: seen.append(cluster.clock.now)))
    simulate([Pool(rules(), Linear())], requests([0.0], [4], [3]), controllers=(script,))
    assert seen == [1.0, 2.0]  # at 3 the last token comes out first


def test_waiting_for_a_birth_that_never_comes_ends() -> None:
    def acts(cluster: Cluster) -> None:
        cluster.timetable.at(0.5, lambda: cluster.fail(cluster.replicas[0]))
        cluster.timetable.every(1.0, lambda: None)

    with pytest.raises(RuntimeError, match="1 requests wait for a replica"):
        simulate([Pool(rules(), Linear())], requests([0.0], [4], [3]), controllers=(Script(acts),))


@settings(max_examples=40, deadline=None)
@given(workloads(), st.lists(st.tuples(st.sampled_from([0.5, 1.0, 2.25, 5.0, 9.0]), st.integers(0, 5)), max_size=4))
def test_whoever_dies_every_request_is_answered(work: RequestSet, deaths: list[tuple[float, int]]) -> None:
    def acts(cluster: Cluster) -> None:
        def crash(which: int) -> None:
            victim = cluster.replicas[which % len(cluster.replicas)]
            born: Replica = cluster.add_replica(victim.pool)
            assert born.index == len(cluster.replicas) - 1
            cluster.fail(victim)

        for at_s, which in deaths:
            cluster.timetable.at(at_s, lambda which=which: crash(which))

    run = simulate(
        apart(2, 2, lag=1), work, transfer=TransferLinks({(0, 1): Wire(2.0**-6)}), controllers=(Script(acts),)
    )
    assert run.completed.all()
    assert output_tokens(run) == work.output_tokens.sum()


def test_one_router_before_two_models_and_two_kinds_of_hardware() -> None:
    slow, quick = Linear(), Linear(base_s=0.5)
    pools = [Pool(rules(), slow), Pool(rules(), quick), Pool(rules(), slow, model=1)]
    work = replace(requests([0.0] * 4, [4] * 4, [2] * 4), requested_models=np.array([0, 0, 1, 1]))
    run = simulate(pools, work)
    assert run.replica.tolist() == [0, 1, 2, 2]
    assert run.last_token_s.tolist() == [2.0, 1.0, 2.0, 2.0]
    assert [r.pool for r in run.replicas] == [0, 1, 2]


def test_a_fleet_of_two_models_and_two_kinds_of_hardware_adds_up() -> None:
    keys = {"max_model_len": 4096, "max_num_seqs": 32, "max_num_batched_tokens": 512}
    two = [("llama3.1-8b", "h100"), ("qwen2.5-0.5b", "l40s"), ("qwen2.5-0.5b", "l40s")]
    plants = [compile_deployment(Deployment(model=m, hardware=h, **keys)) for m, h in two]  # type: ignore[arg-type]
    work = RequestSet(np.linspace(0.0, 2.0, 40), np.full(40, 100), np.full(40, 20))
    work = replace(work, requested_models=np.arange(40) % 2)
    done = run(
        CompiledFleet(tuple(replace(p, resolved=replace(p.resolved, site=str(i))) for i, p in enumerate(plants))),
        work,
        RunOptions(check_invariants=True),
    )
    assert np.bincount(done.replica).tolist() == [20, 10, 10]
    assert set(done.replica[::2]) == {0}
    alone = [run(p, replace(work.every(2), arrival_s=work.arrival_s[::2], requested_models=None)) for p in plants[:1]]
    assert done.tpot_s[::2].tolist() == alone[0].tpot_s.tolist()
    summary = summarise(done)
    assert sum(summary["time_breakdown"].values()) == pytest.approx(3 * summary["metrics"]["duration_s"], rel=0.01)
    power = summary["metrics"]["power"]
    node = [p.resolved.hardware.node for p in plants]
    idle_w = sum(n.host_idle_w / n.max_accelerators for n in node)  # one accelerator of each node, all of them used
    assert power["node_w_mean"] > 3 * power["gpu_w_mean"] + idle_w
