"""Links that collectives share with transfers of KV blocks: timelines by hand, laws, and the links of deployments."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from catalogs.deployments.schema import Deployment
from catalogs.workloads.request_set import RequestSet
from simulator.cluster.cluster import Cluster, RunOptions
from simulator.cluster.compiled import Pool, compile_deployment, compile_fleet
from simulator.cluster.disaggregation import DisaggregationPolicy
from simulator.cluster.kv_transfer import LinkLoad, TransferLinks
from simulator.cluster.run import Run
from simulator.cluster.shared_links import StepsOnLinks
from simulator.cluster.simulate import run_pools
from simulator.cluster.simulate import simulate as run
from simulator.cluster.transfer_paths import transfer_links
from simulator.core.batch import Batch, BatchShape
from simulator.core.clock import CONTROL
from simulator.costs.link_use import CollectiveLinkUse
from tests.simulator.worlds import Linear, requests, rules


@dataclass(frozen=True)
class Wire:
    """A path with a time for each token."""

    token_s: float = 0.25
    latency_s: float = 0.5

    def pieces(self, tokens: int) -> int:  # noqa: ARG002
        return 1

    def load(self, tokens: int) -> LinkLoad:
        return LinkLoad(tokens, self.token_s * tokens, self.token_s * tokens)


@dataclass(frozen=True)
class Collectives:
    """Every step occupies the link for so long."""

    seconds: float = 0.5

    def occupied_s(self, batch: Batch) -> float:  # noqa: ARG002
        return self.seconds


def serve(
    work: RequestSet,
    uses: dict[int, Collectives],
    wire: Wire = Wire(),
    fast: bool = True,
    counts: tuple[int, int] = (1, 1),
    lag: int = 0,
    timer: Linear = Linear(),  # noqa: B008
) -> Run:
    pools = [Pool(rules(lag=lag), timer, counts[0], "prefill"), Pool(rules(lag=lag), timer, counts[1], "decode")]
    links = TransferLinks({(0, 1): wire}, uses=uses)
    options = RunOptions(check_invariants=True, transfer=links, hand_over=DisaggregationPolicy(), fast_forward=fast)
    return run_pools(pools, work, options)


def steps(done: Run, replica: int) -> list[tuple[float, float]]:
    """Start and duration of each step."""
    log = done.replicas[replica].logs[0]
    found = []
    for start_s, n, first_s, slope_s in zip(
        *log.columns("start_s", "steps", "first_s", "slope_s").tolist(), strict=True
    ):
        for j in range(int(n)):
            found.append((start_s, first_s + j * slope_s))
            start_s += first_s + j * slope_s
    return found


@pytest.mark.parametrize("fast", [True, False])
def test_a_transfer_meets_the_steps_of_the_replica_that_receives_it(fast: bool) -> None:
    """A decodes in steps of 1 s from 2.5 on, of which the link is busy for half: B's blocks, 1 s on an idle link, take
    1.5 s from 4.0 on. Of the third of a second sent by 4.5, half delays the next step, and of the rest the one after.
    """
    done = serve(requests([0.0, 3.0], [4, 4], [8, 2]), {1: Collectives(0.5)}, fast=fast)
    assert done.handovers[:, 3:].tolist() == [[1.0, 2.5], [4.0, pytest.approx(6.0)]]
    expected = [(2.5, 1.0), (3.5, 1.0), (4.5, 7 / 6), (17 / 3, 4 / 3), (7.0, 1.0), (8.0, 1.0), (9.0, 1.0)]
    np.testing.assert_allclose(steps(done, 1), expected, rtol=1e-12)


@pytest.mark.parametrize("fast", [True, False])
def test_a_transfer_meets_the_steps_of_the_replica_that_sends_it(fast: bool) -> None:
    """A's blocks leave at 1.0, when B's prompt begins: the link is busy for half of its second, so A's second of blocks
    is two thirds sent at 2.0. Nothing runs then, and the last third takes its usual time."""
    done = serve(requests([0.0, 1.0], [4, 4], [2, 2]), {0: Collectives(0.5)}, fast=fast)
    starts, ends = done.handovers[:, 3:].T
    assert starts.tolist() == [1.0, 2.0]
    # B's blocks leave at 2.0 as well: both share the link, and A has a third of a second left
    assert ends.tolist() == pytest.approx([2.0 + 2 / 3 + 0.5, 3.0 + 1 / 3 + 0.5])
    assert steps(done, 0) == [(0.0, 1.0), (1.0, 1.0)]


def test_a_long_transfer_and_the_collectives_each_get_half() -> None:
    """The blocks take 60 s alone. Each step of 1 s with half a second on the link takes 1.5 s beside them."""
    work = requests([0.0, 3.0], [1, 60], [200, 2])
    done = serve(work, {1: Collectives(0.5)}, Wire(1.0, 0.0))
    began_s, ended_s = done.handovers[1, 3:]
    assert ended_s - began_s == pytest.approx(90.0)
    beside = [s for start_s, s in steps(done, 1) if began_s + 20.0 < start_s < ended_s - 1.5]
    np.testing.assert_allclose(beside, 1.5, rtol=1e-6)
    alone = [s for start_s, s in steps(done, 1) if start_s > ended_s + 3.0]
    assert set(alone) == {1.0}
    # what the transfer has taken from the collectives: half of the 60 s, bit by bit
    assert sum(s - 1.0 for _, s in steps(done, 1)) == pytest.approx(30.0)


def test_steps_that_meet_no_transfer_take_their_usual_time() -> None:
    work = requests([0.0], [4], [30])
    plain, shared = (serve(work, uses) for uses in ({}, {0: Collectives(), 1: Collectives()}))
    assert [log.table().tobytes() for log in plain.logs] == [log.table().tobytes() for log in shared.logs]


WORK = st.lists(st.tuples(st.integers(0, 12), st.integers(1, 24), st.integers(1, 20)), min_size=1, max_size=12)


@settings(max_examples=60, deadline=None)
@given(WORK, st.integers(0, 1), st.sampled_from([(1, 1), (2, 1), (1, 2)]), st.sampled_from([0.0, 0.25, 0.75, 5.0]))
def test_any_traffic(rows: list[tuple[int, int, int]], lag: int, counts: tuple[int, int], busy_s: float) -> None:
    """Fast or step by step is the same; no delay is longer than what was sent; nothing changes without collectives."""
    work = requests(np.cumsum([g for g, _, _ in rows]).tolist(), [i for _, i, _ in rows], [o for _, _, o in rows])
    uses, wire = {0: Collectives(busy_s), 1: Collectives(busy_s)}, Wire(2.0**-3, 0.0)
    fast, slow = (serve(work, uses, wire, each, counts, lag) for each in (True, False))
    np.testing.assert_allclose(fast.last_token_s, slow.last_token_s, rtol=1e-9)
    np.testing.assert_allclose(fast.handovers, slow.handovers, rtol=1e-9)
    plain = serve(work, {}, wire, True, counts, lag)
    for replica in range(sum(counts)):
        delays = [s - 1.0 for _, s in steps(fast, replica)]
        own = fast.handovers[:, 1 if replica < counts[0] else 2] == replica
        sent_s = float(fast.requests.input_tokens[fast.handovers[own, 0].astype(int)].sum()) / 8
        assert min(delays, default=0.0) > -1e-9
        assert sum(delays) <= min(1.0, busy_s) * sent_s + 1e-6
    if busy_s == 0.0:
        np.testing.assert_array_equal(fast.last_token_s, plain.last_token_s)


def test_a_replica_that_fails_no_longer_slows_the_transfers_on_its_link() -> None:
    class Fails:
        def start(self, cluster: Cluster) -> None:
            cluster.clock.at(4.25, CONTROL, [lambda _: cluster.fail(cluster.replicas[1])])

    pools = [Pool(rules(), Linear(), 1, "prefill"), Pool(rules(), Linear(), 2, "decode")]
    links = TransferLinks({(0, 1): Wire(0.25, 0.0)}, uses={1: Collectives(1.0)})
    work = requests([0.0, 2.0, 3.0], [4, 1, 8], [9, 2, 3])
    done = run_pools(pools, work, RunOptions(check_invariants=True, transfer=links, controllers=(Fails(),)))
    assert done.completed.all()
    # Two seconds of blocks from 4.0 on, at half of the rate until 4.25. Then all of it, until the blocks of the request
    # that was lost and computed again leave the same replica at 5.25.
    assert done.handovers[2, [0, 2, 3, 4]].tolist() == [2, 1, 4.0, 7.0]


def fleet_links(hardware: str, **keys: object) -> TransferLinks:
    split = {"prefill_replicas": 1, "decode_replicas": 1}
    written = {
        "max_model_len": 4096,
        "max_num_seqs": 16,
        "max_num_batched_tokens": 2048,
        "disaggregation": split,
        **keys,
    }
    found = transfer_links(compile_fleet(Deployment(hardware=hardware, **written)))  # type: ignore[arg-type]
    assert found is not None
    return found


def test_tensor_ranks_in_a_node_share_its_links() -> None:
    """L40S over PCIe: 64 all-reduces of 8,192 bytes a token, each of them once over a rank's slot of 32 GB/s."""
    uses = fleet_links("l40sx4", model="llama3.1-8b", tensor_parallel=2).uses
    assert sorted(uses) == [0, 1]
    cost = compile_deployment(Deployment(model="llama3.1-8b", hardware="l40sx2", tensor_parallel=2)).cost
    use = uses[1]
    assert isinstance(use, CollectiveLinkUse)
    batch = Batch()
    batch.prefill_tokens, batch.prefill_pairs, batch.prefill_chunks, batch.logits = 2048, 2048.0**2 / 2, 1, 1
    assert use.occupied_s(batch) / cost.cycle_s(batch) == pytest.approx(0.27, abs=0.01)
    decodes = Batch()
    decodes.decodes = decodes.logits = 16
    decodes.decode_context_sum, decodes.decode_context_max = 16 * 1000, 1000
    assert use.occupied_s(decodes) / cost.cycle_s(decodes) == pytest.approx(0.02, abs=0.005)
    node = use.tables.resolved.hardware.node
    assert use.occupied_s(batch) == pytest.approx((64 + 1) * 2048 * 8192 / node.link_bytes_per_s_of(2), rel=0.02)


def test_a_single_rank_or_links_of_another_kind_share_nothing() -> None:
    assert fleet_links("l40sx2", model="llama3.1-8b").uses == {}
    assert fleet_links("2*h100x8", model="llama3.1-70b", tensor_parallel=8).uses == {}  # NVLink and network cards


def test_tensor_ranks_over_two_nodes_share_their_network_cards() -> None:
    links = fleet_links("4*h100x8", model="llama3.1-405b", tensor_parallel=16, weight_dtype="fp8")
    use = links.uses[1]
    assert isinstance(use, CollectiveLinkUse)
    batch = Batch()
    batch.decodes = batch.logits = 16
    batch.decode_context_sum, batch.decode_context_max = 16 * 100, 100
    model = use.tables.resolved.model
    message = 16 * model.hidden_size * 2 * 2 * 15 / 16  # a ring sends almost twice the message
    assert use.occupied_s(batch) == pytest.approx((2 * model.n_layers + 1) * message / (8 * 50e9), rel=0.02)


def test_ranks_that_step_together_are_as_busy_as_the_fullest() -> None:
    use = fleet_links(
        "4*h100x8", model="deepseek-v3", data_parallel=16, expert_parallel=True, all2all_backend="deepep_low_latency"
    ).uses[1]
    assert isinstance(use, CollectiveLinkUse)
    busy = []
    for shares in ((8,) * 16, (8,) * 8 + (0,) * 8, (1,) * 16):
        batch = Batch()
        batch.ranks = tuple(
            BatchShape(decodes=n, decode_context_sum=100 * n, decode_context_max=100, logits=n) if n else None
            for n in shares
        )
        busy.append(use.occupied_s(batch))
    assert busy[0] >= busy[1] > busy[2] > 0.0


def test_a_run_over_shared_links_is_slower_and_keeps_all_laws() -> None:
    """Collectives over PCIe beside the transfers; the same run without them is faster."""
    split = {"prefill_replicas": 1, "decode_replicas": 1}
    keys = {"max_model_len": 8192, "max_num_seqs": 32, "max_num_batched_tokens": 2048}
    written = Deployment(model="llama3.1-8b", hardware="l40sx4", tensor_parallel=2, disaggregation=split, **keys)  # type: ignore[arg-type]
    fleet = compile_fleet(written)
    work = RequestSet(np.zeros(24), np.full(24, 3000), np.full(24, 60))
    links = transfer_links(fleet)
    assert links is not None
    shared = run(fleet, work, RunOptions(check_invariants=True, transfer=links))
    links.uses = {}
    alone = run(fleet, work, RunOptions(check_invariants=True, transfer=links))
    took = [float((done.handovers[:, 4] - done.handovers[:, 3]).mean()) for done in (shared, alone)]
    assert took[0] > 1.1 * took[1]
    assert shared.last_token_s.max() > alone.last_token_s.max()


def test_planted_faults_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Delays that are forgotten or counted twice fail the timeline by hand."""
    right = StepsOnLinks.delay_s
    for factor in (0.0, 2.0):
        monkeypatch.setattr(StepsOnLinks, "delay_s", lambda *args, f=factor: f * right(*args))
        with pytest.raises(AssertionError):
            test_a_transfer_meets_the_steps_of_the_replica_that_receives_it(True)
