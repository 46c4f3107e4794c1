"""Orders, limits and timeouts of queues: by hand, laws, exact fast-forward, a second implementation."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from math import inf
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from catalogs.deployments.queueing import Queueing
from catalogs.errors import InputError
from catalogs.workloads.request_set import RequestSet
from catalogs.workloads.service_classes import ServiceLevels
from simulator.cli.main import main
from simulator.cluster.cluster import RunOptions
from simulator.cluster.compiled import Pool
from simulator.cluster.run import Run
from simulator.cluster.simulate import run_pools, run_rules
from simulator.core.invariants import InvariantViolation
from simulator.core.outcomes import STATUS
from simulator.core.request import Request
from simulator.schedulers import registry as schedulers
from simulator.schedulers.rules import EngineRules
from simulator.schedulers.vllm.v1 import VllmV1
from tests.simulator.engine.test_fast_forward import TICK, World, assert_same, simulate, with_policy, worlds
from tests.simulator.reference_engine import REFERENCES
from tests.simulator.worlds import Linear, requests, rules

BOTH = pytest.mark.parametrize("fast", [True, False])
EXACT = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
POLICIES = sorted(schedulers.POLICIES)


def asked(
    work: RequestSet,
    priority: Sequence[int] | None = None,
    deadline_s: Sequence[float] | None = None,
    timeout_s: Sequence[float] | None = None,
) -> RequestSet:
    """The same requests, with terms."""
    terms = ServiceLevels(
        np.array(priority if priority is not None else [0] * work.n),
        np.array(deadline_s if deadline_s is not None else [inf] * work.n),
        np.array(timeout_s if timeout_s is not None else [inf] * work.n),
    )
    return replace(work, terms=terms)


def ordered(order: str, **changes: object) -> EngineRules:
    return rules(queueing=Queueing(order=order), **changes)  # type: ignore[arg-type]


def run_one(engine: EngineRules, work: RequestSet, fast: bool, timer: Linear | None = None, **options: object) -> Run:
    chosen = RunOptions(fast_forward=fast, check_invariants=True, **options)  # type: ignore[arg-type]
    return run_rules(engine, timer or Linear(), work, 1, chosen)


def statuses(run: Run) -> list[str]:
    return [STATUS[s] for s in run.status]


# By hand


@BOTH
def test_the_lowest_number_is_served_first(fast: bool) -> None:
    """One seat. A has it until 3; C (0), B (1) and D (1, later) wait. A is not interrupted."""
    work = requests([0.0, 0.5, 1.5, 2.5], [4] * 4, [3, 2, 2, 2])
    run = run_one(ordered("priority", max_num_seqs=1), asked(work, [9, 1, 0, 1]), fast)
    assert run.started_s.tolist() == [0.0, 5.0, 3.0, 7.0]
    plain = run_one(rules(max_num_seqs=1), asked(work, [9, 1, 0, 1]), fast)
    assert plain.started_s.tolist() == [0.0, 3.0, 5.0, 7.0]


@BOTH
def test_the_least_urgent_is_preempted(fast: bool) -> None:
    """4 blocks of 4. A (5) and B (0) hold 2 each; at 9 tokens both want a third at 2, and A goes, though it came first.
    B ends at 6, then A computes its 9 tokens for its third and ends at 10."""
    work = requests([0.0, 0.0], [7, 7], [6, 6])
    run = run_one(ordered("priority", kv_blocks=4), asked(work, [5, 0]), fast)
    assert run.preemptions.tolist() == [1, 0]
    assert run.last_token_s.tolist() == [10.0, 6.0]
    assert run_one(rules(kv_blocks=4), asked(work, [5, 0]), fast).preemptions.tolist() == [0, 1]


@BOTH
def test_the_earliest_deadline_is_served_first(fast: bool) -> None:
    """Deadlines count from arrival: B's is 0.5 + 9 = 9.5, C's 1.5 + 2 = 3.5; D has none."""
    work = requests([0.0, 0.5, 1.5, 1.75], [4] * 4, [3, 2, 2, 2])
    run = run_one(ordered("deadline", max_num_seqs=1), asked(work, deadline_s=[inf, 9.0, 2.0, inf]), fast)
    assert run.started_s.tolist() == [0.0, 5.0, 3.0, 7.0]


@BOTH
def test_the_longest_cached_prefix_is_served_first(fast: bool) -> None:
    """SGLang, one seat. A leaves two blocks of its prompt. C shares both, B none: C starts at 2, B at 3."""
    work = requests([0.0, 0.5, 0.75], [12, 12, 12], [2, 1, 1], hashes=[[1, 2, 3], [7, 8, 9], [1, 2, 4]])
    engine = ordered("prefix", policy="sglang", max_num_seqs=1)
    run = run_one(engine, work, fast)
    assert run.started_s.tolist() == [0.0, 3.0, 2.0]
    assert run.cached_tokens.tolist() == [0, 0, 8]
    assert run_one(replace(engine, queueing=Queueing()), work, fast).started_s.tolist() == [0.0, 2.0, 3.0]


@BOTH
def test_a_full_queue_rejects(fast: bool) -> None:
    """One seat, two may wait. A runs until 4; B and C wait, D is rejected; at 4 B starts, so E at 4.5 may wait."""
    engine = rules(max_num_seqs=1, queueing=Queueing(max_waiting=2))
    run = run_one(engine, requests([0.0, 0.5, 1.5, 2.5, 4.5], [4] * 5, [4] * 5), fast)
    assert statuses(run) == ["completed", "completed", "completed", "rejected: the queue was full", "completed"]
    assert run.last_token_s[[0, 1, 2, 4]].tolist() == [4.0, 8.0, 12.0, 16.0]
    assert int(run.rejected.sum()) == 1


@BOTH
@pytest.mark.parametrize("lag", [0, 1])
def test_a_client_gives_up(fast: bool, lag: int) -> None:
    """One seat. A's client gives up at 2.5: A's step ends at 3, and B has the seat from then (one step later where a
    step is scheduled ahead). C's gives up at 2.75 in the queue, D's at 100, long after its answer."""
    engine = rules(max_num_seqs=1, lag=lag)
    work = asked(requests([0.0, 0.5, 0.75, 1.0], [4] * 4, [50, 3, 3, 3]), timeout_s=[2.5, inf, 2.0, 99.0])
    run = run_one(engine, work, fast)
    gone = "timed out: its client gave up"
    assert statuses(run) == [gone, "completed", gone, "completed"]
    assert run.started_s[1] == 3.0 + lag
    assert run.last_token_s[[1, 3]].tolist() == [6.0 + lag, 9.0 + lag]
    assert np.isnan(run.last_token_s[[0, 2]]).all()
    assert np.isnan(run.started_s[2])


@BOTH
def test_one_limit_for_all_clients_and_the_next_request_of_a_closed_loop(fast: bool) -> None:
    """Two clients, one seat, patience of 2.5. A would run until 5 and is given up at 2.5, as B is, which waits; C and D
    are sent then. C has the seat at 3 and ends at 5; D's two tokens would be ready at 7: given up at 5."""
    work = requests([0.0] * 4, [4] * 4, [5, 2, 2, 2], concurrency=2)
    run = run_one(rules(max_num_seqs=1, queueing=Queueing(timeout_s=2.5)), work, fast)
    assert run.arrival_s.tolist() == [0.0, 0.0, 2.5, 2.5]
    assert [s.split(":")[0] for s in statuses(run)] == ["timed out", "timed out", "completed", "timed out"]
    assert run.last_token_s[2] == 5.0


@BOTH
def test_a_static_batch_pads_for_a_client_who_is_gone(fast: bool) -> None:
    """A's client gives up at 2.5; B needs 4 steps. Nobody takes A's place before B is done. Had A the longest answer,
    the batch would end with the step on the device."""
    engine = rules(policy="static", max_num_seqs=2)
    work = asked(requests([0.0, 0.0, 0.5], [4] * 3, [9, 4, 1]), timeout_s=[2.5, inf, inf])
    run = run_one(engine, work, fast)
    assert run.last_token_s[1:].tolist() == [4.0, 5.0]
    late = asked(requests([0.0, 0.0, 0.5], [4] * 3, [9, 2, 1]), timeout_s=[4.5, inf, inf])
    assert run_one(engine, late, fast).last_token_s[1:].tolist() == [5.0, 6.0]


@BOTH
def test_too_long_is_rejected_or_cut(fast: bool) -> None:
    """8 positions. A's 5 + 6 tokens end at 8: 3 tokens. B's prompt of 20 keeps 7, and one token comes out."""
    work = requests([0.0, 0.0], [5, 20], [6, 4])
    run = run_one(rules(max_model_len=8, queueing=Queueing(too_long="truncate")), work, fast)
    assert run.last_token_s.tolist() == [3.0, 1.0]
    assert run.requests.input_tokens.tolist() == [5, 7]
    assert run.requests.output_tokens.tolist() == [3, 1]
    refused = run_one(rules(max_model_len=8), work, fast)
    assert set(statuses(refused)) == {"rejected: longer than max_model_len"}


@BOTH
def test_triton_waits_for_a_batch_to_fill_up(fast: bool) -> None:
    """At most 4 in a batch, preferred 2 and 4, patience 3. A at 0 waits; B at 1 makes two: they go at once. C at 2.5
    waits for the device until 3, and for company until 5.5, with D since 5: two, they go at 5. E alone goes at 12."""
    queueing = Queueing(max_delay_s=3.0, preferred_batch_sizes=(2, 4))
    engine = rules(policy="static", max_num_seqs=4, queueing=queueing)
    run = run_one(engine, requests([0.0, 1.0, 2.5, 5.0, 9.0], [4] * 5, [2] * 5), fast)
    assert run.started_s.tolist() == [1.0, 1.0, 5.0, 5.0, 12.0]
    # three wait at 0: two go, the third has waited for 3 at 3 and goes alone
    run = run_one(engine, requests([0.0, 0.0, 0.0], [4] * 3, [1] * 3), fast)
    assert run.started_s.tolist() == [0.0, 0.0, 3.0]
    # without preferred sizes the whole of a batch is; without patience whatever is there goes
    full = replace(engine, queueing=Queueing(max_delay_s=3.0))
    assert run_one(full, run.requests, fast).started_s.tolist() == [3.0, 3.0, 3.0]
    eager = replace(engine, queueing=Queueing(preferred_batch_sizes=(4,)))
    assert run_one(eager, run.requests, fast).started_s.tolist() == [0.0, 0.0, 0.0]


def test_timeouts_need_whole_requests() -> None:
    halves = [Pool(rules(queueing=Queueing(timeout_s=1.0)), Linear(), 1, role) for role in ("prefill", "decode")]  # type: ignore[arg-type]
    with pytest.raises(InputError, match="timeouts are not simulated"):
        run_pools(halves, requests([0.0], [4], [4]), RunOptions())


# Properties


@st.composite
def queues(draw: st.DrawFn) -> World:
    """Worlds in which everything about queues is at work."""
    world = draw(worlds())
    n = world.requests.n
    ticks = st.sampled_from([30, 100, 400, 2000]).map(lambda t: t * TICK) | st.just(inf)
    terms = ServiceLevels(
        np.array(draw(st.lists(st.integers(0, 2), min_size=n, max_size=n))),
        np.array(draw(st.lists(ticks, min_size=n, max_size=n))),
        np.array(draw(st.lists(ticks, min_size=n, max_size=n))),
    )
    queueing = Queueing(
        order=draw(st.sampled_from(["fcfs", "priority", "deadline"])),
        max_waiting=draw(st.sampled_from([None, None, 1, 3])),
        timeout_s=draw(st.sampled_from([None, None, 5.0])),
        too_long=draw(st.sampled_from(["reject", "truncate"])),
        max_delay_s=draw(st.sampled_from([0.0, 0.0, 2.0])),
        preferred_batch_sizes=draw(st.sampled_from([(), (2,), (2, 4)])),
    )
    longest = draw(st.sampled_from([4096, 30]))
    engine = replace(world.rules, queueing=queueing, max_model_len=longest)
    return replace(world, rules=engine, requests=replace(world.requests, terms=terms))


def able(policy: str, world: World) -> World:
    """What the policy cannot do left out."""
    queueing, longest = world.rules.queueing, world.rules.max_model_len
    if policy not in ("vllm-v1", "static", "one-at-a-time"):
        queueing = queueing.model_copy(update={"order": "fcfs"})
    if policy not in ("static", "one-at-a-time"):
        queueing = queueing.model_copy(update={"max_delay_s": 0.0, "preferred_batch_sizes": ()})
    world = with_policy(world, policy)
    return replace(
        world,
        rules=replace(world.rules, queueing=queueing, max_model_len=min(longest, world.rules.max_model_len)),
    )


@pytest.mark.parametrize("policy", POLICIES)
@EXACT
@given(queues())
def test_fast_forward_changes_nothing(policy: str, world: World) -> None:
    world = able(policy, world)
    slow = simulate(world, fast_forward=False, check_invariants=True)
    fast = simulate(world, fast_forward=True, check_invariants=True)
    assert_same(slow, fast)
    assert not np.isin(slow.status, [0, 1]).any()  # everybody was answered, or gave up


@EXACT
@given(queues())
def test_priorities_decide_like_the_engine_written_out(world: World) -> None:
    queueing = world.rules.queueing.model_copy(update={"max_delay_s": 0.0, "preferred_batch_sizes": ()})
    world = replace(world, rules=replace(world.rules, queueing=queueing))
    fast = simulate(world)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(schedulers.POLICIES, "vllm-v1", REFERENCES["vllm-v1"])  # type: ignore[type-abstract]
        slow = simulate(world, fast_forward=False)
    for name in ("status", "replica", "preemptions", "cached_tokens"):
        np.testing.assert_array_equal(getattr(slow, name), getattr(fast, name), err_msg=name)
    for name in ("started_s", "first_token_s", "last_token_s"):
        np.testing.assert_allclose(getattr(slow, name), getattr(fast, name), rtol=0, atol=1e-9, err_msg=name)


@EXACT
@given(queues())
def test_equal_priorities_are_first_come_first_served(world: World) -> None:
    same = asked(world.requests)
    plain = replace(world, rules=replace(world.rules, queueing=Queueing()), requests=same)
    ranked = replace(plain, rules=replace(world.rules, queueing=Queueing(order="priority")))
    if world.requests.concurrency is None and not world.rules.host.request_s_per_input_token:
        assert_same(simulate(plain), simulate(ranked))


# Planted faults


def test_planted_faults_of_withdrawal_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    class KeepsBlocks(VllmV1):
        def withdraw(self, request: Request) -> bool:
            if request is self._partial:
                self._partial = None
                del self._running[request]
                return True
            return super().withdraw(request)

    class Forgets(VllmV1):
        def withdraw(self, request: Request) -> bool:  # noqa: ARG002
            return True

    engine = rules(max_num_batched_tokens=8)
    work = asked(requests([0.0, 0.5], [60, 4], [4, 9]), timeout_s=[2.5, inf])
    assert statuses(run_one(engine, work, True))[1] == "completed"
    for broken, says in ((KeepsBlocks, "blocks"), (Forgets, "lost")):
        monkeypatch.setitem(schedulers.POLICIES, "vllm-v1", broken)
        with pytest.raises(InvariantViolation, match=says):
            run_one(engine, work, True)


def test_an_order_that_is_not_kept_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    class Forgets(VllmV1):
        def add(self, request: Request) -> None:
            self._waiting.append(request)

    work = asked(requests([0.0, 0.5, 1.5], [4] * 3, [3, 2, 2]), [0, 5, 1])
    engine = ordered("priority", max_num_seqs=1)
    assert run_one(engine, work, True).started_s.tolist() == [0.0, 5.0, 3.0]
    monkeypatch.setitem(schedulers.POLICIES, "vllm-v1", Forgets)
    assert run_one(engine, work, True).started_s.tolist() != [0.0, 5.0, 3.0]


def test_a_queue_from_file_to_file(tmp_path: Path) -> None:
    """One seat, two may wait. The first client gives up at 3 s; those behind it are answered then, while theirs still
    wait; the last found the queue full. Statuses and counts of `simulate` are those of the queue."""
    (tmp_path / "d.yaml").write_text(
        "model: qwen2.5-0.5b\nhardware: rtx4090\nmax_num_seqs: 1\nmax_model_len: 2048\n"
        "queue: {order: priority, max_waiting: 2, timeout_s: 3}\n"
    )
    rows = ["0,8,1900,5", "0.1,8,4,5", "0.2,8,4,1", "0.3,8,4,0"]
    (tmp_path / "t.csv").write_text("arrival_s,input_tokens,output_tokens,priority\n" + "\n".join(rows) + "\n")
    out = tmp_path / "o.json", tmp_path / "o.csv"
    asked = ["--workload", str(tmp_path / "t.csv"), "--json", str(out[0]), "--requests-out", str(out[1])]
    with pytest.raises(SystemExit) as ended:
        main([str(tmp_path / "d.yaml"), *asked])
    assert ended.value.code == 0
    table = [line.split(",") for line in out[1].read_text().splitlines()]
    statuses = [row[table[0].index("status")] for row in table[1:]]
    gone, full = "timed out: its client gave up", "rejected: the queue was full"
    assert statuses == [gone, "completed", "completed", full]
    metrics = json.loads(out[0].read_text())["metrics"]
    assert (metrics["n_arrived"], metrics["n_completed"], metrics["n_rejected"], metrics["n_timed_out"]) == (4, 2, 1, 1)
