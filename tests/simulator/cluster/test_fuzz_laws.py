"""Faults planted around the schedulers that the laws of a run must see: in transfers, deaths and hand-overs.

Faults inside schedulers (budget, seats, blocks, preemption, context) are in test_scheduler_contract.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pytest
from simpy import Event

from simulator.cluster import kv_transfer as transfer
from simulator.cluster.cluster import Cluster, RunOptions
from simulator.cluster.compiled import Pool
from simulator.cluster.kv_transfer import KvTransfer, LinkLoad, LinkTraffic, TransferLinks
from simulator.cluster.routing_stage import RoutingStage
from simulator.cluster.run import Run
from simulator.cluster.run_invariants import check_run
from simulator.cluster.simulate import run_pools
from simulator.core.batch import Batch
from simulator.core.invariants import InvariantViolation
from simulator.core.outcomes import COMPLETED
from simulator.core.request import Request
from simulator.engine.replica import Replica
from simulator.engine.step_loop import StepLoop
from simulator.interconnect.fair_share import FairShareNetwork
from simulator.schedulers.base import Scheduler
from simulator.schedulers.continuous_batching import DecodeSet
from simulator.schedulers.registry import POLICIES
from simulator.schedulers.vllm.v1 import VllmV1
from tests.simulator.worlds import Linear, requests, rules

LAWS = RunOptions(check_invariants=True)
GENERAL = RunOptions(fast_path=False)  # the loop that calls the methods which the tests replace


@dataclass(frozen=True)
class Wire:
    """A quarter of a second for each block of four tokens."""

    latency_s: float = 0.125

    def pieces(self, tokens: int) -> int:  # noqa: ARG002 - everything leaves at the end
        return 1

    def load(self, tokens: int) -> LinkLoad:
        wire_s = tokens / 16.0
        return LinkLoad(wire_s, wire_s, wire_s)


@dataclass(frozen=True)
class Fails:
    """Replica 0 dies then."""

    at_s: float

    def start(self, cluster: Cluster) -> None:
        cluster.timetable.at(self.at_s, lambda: cluster.fail(cluster.replicas[0]))


WORK = requests([0.0, 0.0, 1.0, 2.0, 2.0], [8, 12, 4, 9, 5], [6, 3, 9, 1, 4])


def apart() -> Run:
    """Two prefill and one decode replica."""
    engine = rules()
    pools = [Pool(engine, Linear(), 2, "prefill"), Pool(engine, Linear(), 1, "decode")]
    wires = {(0, 1): Wire()}
    return run_pools(pools, WORK, replace(LAWS, transfer=TransferLinks(wires)))


def dying(at_s: float = 3.5) -> Run:
    """Two replicas, of which one fails."""
    return run_pools([Pool(rules(), Linear(), 2)], WORK, replace(LAWS, controllers=(Fails(at_s),)))


def test_sound_runs_pass() -> None:
    assert apart().completed.all()
    run = dying()
    assert run.completed.all()
    assert run.restarts


class CountsTheWireTwice(LinkTraffic):
    def begin(self, transfer: KvTransfer) -> Event:
        return super().begin(transfer._replace(tokens=2 * transfer.tokens))


class BooksEverythingTwice(LinkTraffic):
    def begin(self, transfer: KvTransfer) -> Event:
        super().begin(transfer)
        return super().begin(transfer)


class ForgetsTheWire(LinkTraffic):
    def begin(self, transfer: KvTransfer) -> Event:
        return super().begin(transfer._replace(tokens=0))


class LaysAWireForEach(LinkTraffic):
    """Who arrives is alone on a wire of his own."""

    def begin(self, transfer: KvTransfer) -> Event:
        self._flows = FairShareNetwork(self._clock)
        return super().begin(transfer)


@pytest.mark.parametrize(
    ("broken", "says"),
    [
        (CountsTheWireTwice, "later than in a serial transfer"),
        (BooksEverythingTwice, "later than in a serial transfer"),
        (ForgetsTheWire, "faster than its links permit"),
        (LaysAWireForEach, "exceeded its capacity"),
    ],
)
def test_a_wrong_transfer_is_caught(broken: type[LinkTraffic], says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "LinkTraffic", broken)
    with pytest.raises(InvariantViolation, match=says):
        apart()


def test_a_hand_over_told_twice_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = Run.of

    def of(cluster: Cluster) -> Run:
        cluster.results.handovers.extend(cluster.results.handovers[:])
        return kept(cluster)

    monkeypatch.setattr(Run, "of", of)
    with pytest.raises(InvariantViolation, match="hand-overs exceed"):
        apart()


def test_a_request_lost_at_the_hand_over_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    sound = Replica.receive

    def receive(self: Replica, request: Request) -> None:
        if self.pool == 0 or request.index != 1:
            sound(self, request)

    monkeypatch.setattr(Replica, "receive", receive)
    with pytest.raises(InvariantViolation, match="request 1 was never answered"):
        apart()


def test_blocks_kept_at_the_hand_over_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def release_transferred(self: Replica, request: Request) -> None:
        self.n_leaving -= 1
        self.finish(request)

    monkeypatch.setattr(Replica, "release_transferred", release_transferred)
    with pytest.raises(InvariantViolation, match=r"lost|requests are left"):
        apart()


def test_a_dead_replica_that_computes_on_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def discard(self: StepLoop) -> None:
        """Let it run."""

    monkeypatch.setattr(StepLoop, "discard", discard)
    with pytest.raises(InvariantViolation, match="lost"):
        dying()


def test_a_dead_replica_that_is_sent_requests_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is still on the router's list, and serves."""
    dead: list[Replica] = []
    sound_fail, sound_choose = Cluster.fail, RoutingStage.choose

    def fail(self: Cluster, replica: Replica) -> None:
        sound_fail(self, replica)
        dead.append(replica)
        for loop in replica.step_loops:  # a new engine where the old one died
            loop.scheduler = loop._accounting._scheduler = type(loop.scheduler)(replica.rules)
            replica.scheduler = loop.scheduler

    def choose(self: RoutingStage, request: Request) -> Replica | None:
        return dead[0] if dead else sound_choose(self, request)

    monkeypatch.setattr(Cluster, "fail", fail)
    monkeypatch.setattr(RoutingStage, "choose", choose)
    with pytest.raises(InvariantViolation, match=r"replica 0 ended at 1\.5 s"):
        dying(1.5)


def test_tokens_counted_twice_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    sound = StepLoop._schedule

    def schedule(self: StepLoop) -> Batch | None:
        batch = sound(self)
        if batch is not None and batch.prompted:
            batch.logits += 1
        return batch

    monkeypatch.setattr(StepLoop, "_schedule", schedule)
    with pytest.raises(InvariantViolation, match=r"the steps output \d+ tokens"):
        run_pools([Pool(rules(), Linear(), 1)], WORK, LAWS)


def test_clients_whose_replica_is_gone_for_good_send_no_more() -> None:
    """Two clients of five requests each wait for ever: neither lost nor answered, and no law is broken by that."""
    work = replace(WORK, arrival_s=np.zeros(5), concurrency=2)
    run = run_pools([Pool(rules(), Linear())], work, replace(LAWS, controllers=(Fails(3.5),)))
    assert (run.unfinished.sum(), (~run.arrived).sum()) == (2, 2)


def test_what_leaves_any_batch_of_a_pipeline_is_in_the_books() -> None:
    """Also of a prefill replica that dies while blocks of its second batch travel: its requests begin again."""
    pools = [Pool(rules(pipeline_stages=2), Linear(), 1, "prefill"), Pool(rules(), Linear(), 1, "decode")]
    work = requests([0.0, 0.0, 0.0, 0.5], [40, 60, 30, 50], [6, 3, 9, 4])
    slow = replace(LAWS, transfer=TransferLinks({(0, 1): Wire()}))
    assert run_pools(pools, work, slow).completed.all()

    class Dies:
        def start(self, cluster: Cluster) -> None:
            cluster.timetable.at(4.25, lambda: cluster.fail(cluster.replicas[0]))
            cluster.timetable.at(5.0, lambda: cluster.add_replica(0))

    run = run_pools(pools, work, replace(LAWS, transfer=TransferLinks({(0, 1): Wire()}), controllers=(Dies(),)))
    assert run.completed.all()
    assert run.restarts


def test_who_left_a_batch_is_not_its_longest() -> None:
    """A request that was preempted in one batch of a pipeline and came back in another, as many tokens ahead of that
    batch's rounds as it was of the first one's."""
    first, second, request = DecodeSet(4), DecodeSet(4), Request(0, 9)
    request.computed_tokens = 9
    first.add(request)
    first.remove(request)
    second.add(request)
    assert (first.contexts()[1], second.contexts()[1]) == (0, 9)


def nudge(name: str, row: int, to: float) -> Callable[[Run], Run]:
    def change(run: Run) -> Run:
        values = getattr(run, name).copy()
        values[row] = to
        return replace(run, **{name: values})

    return change


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (nudge("started_s", 2, 0.5), "request 2 started too early"),
        (nudge("first_token_s", 1, 0.0), "request 1 had its first token without any time"),
        (nudge("last_token_s", 0, 0.5), "request 0 ended too early"),
        (nudge("last_token_s", 4, np.nan), "request 4 completed without its last token"),
        (nudge("routed_s", 1, -1.0), "request 1 reached its router too early"),
        (nudge("prefilled_s", 2, 1e9), "request 2 had its last token computed too early"),
        (nudge("decoded_s", 2, np.nan), "request 2 had its last token computed too early"),
        (nudge("replica", 3, -1), "request 3 completed without a replica"),
        (nudge("status", 3, 99), "a status that does not exist"),
        (nudge("status", 3, COMPLETED - 1), "request 3 did not complete but has a last token"),
    ],
)
def test_a_wrong_record_is_caught(change: Callable[[Run], Run], says: str) -> None:
    sound = run_pools([Pool(rules(), Linear(), 1)], WORK, LAWS)
    with pytest.raises(InvariantViolation, match=says):
        check_run(change(sound))


@dataclass(frozen=True)
class Looks:
    """Something that acts again and again and changes nothing, so that there always is a next event."""

    def start(self, cluster: Cluster) -> None:
        cluster.timetable.every(1.0, lambda: None)


@pytest.mark.parametrize("controllers", [(), (Looks(),)], ids=["alone", "looked at"])
@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_a_policy_that_never_begins_is_stopped(
    policy: str, controllers: tuple[Looks, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without any law being checked: the run ends by itself and names the request."""

    def schedule(self: Scheduler) -> Batch | None:  # noqa: ARG001
        return None

    monkeypatch.setattr(POLICIES[policy], "schedule", schedule)
    with pytest.raises(RuntimeError, match="no progress: request 0 can never be scheduled on replica 0"):
        run_pools([Pool(rules(policy=policy), Linear())], WORK, RunOptions(controllers=controllers, fast_path=False))


@pytest.mark.parametrize("tokens", [0, 3])
@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_steps_that_lead_nowhere_are_stopped(policy: str, tokens: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Prompts that are computed and computed, and no token ever comes out."""

    def schedule(self: Scheduler) -> Batch | None:  # noqa: ARG001
        return Batch(prefill_tokens=tokens, prefill_chunks=1, prefill_pairs=1.0)

    monkeypatch.setattr(POLICIES[policy], "schedule", schedule)
    with pytest.raises(RuntimeError, match="no progress: request 0 is recomputed repeatedly on replica 0"):
        run_pools([Pool(rules(policy=policy, max_model_len=64), Linear())], WORK, GENERAL)


def test_a_prompt_preempted_again_and_again_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    """A real way to get there: the newest prompt loses its blocks whenever it is about to end."""
    sound = VllmV1.schedule

    def schedule(self: VllmV1) -> Batch | None:
        batch = sound(self)
        if self._partial is not None and self._partial.computed_tokens > 8:
            self._preempt()
        return batch

    monkeypatch.setattr(VllmV1, "schedule", schedule)
    engine = rules(max_num_seqs=4, max_num_batched_tokens=5, max_model_len=64, prefix_caching=False)
    with pytest.raises(RuntimeError, match="no progress: request 1 is recomputed repeatedly"):
        run_pools([Pool(engine, Linear())], requests([0.0, 0.0], [4, 40], [2, 2]), GENERAL)
