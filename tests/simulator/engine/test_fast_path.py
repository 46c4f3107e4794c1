"""The fast path decides as the general loop does, to the last digit, and hands over where it cannot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from catalogs.deployments.queueing import Queueing
from catalogs.engines.model_defaults import ReceiveIntervals
from simulator.cluster.cluster import RunOptions
from simulator.cluster.compiled import Pool
from simulator.cluster.plain_runs import _WITHOUT
from simulator.cluster.run import INSTANTS, Run
from simulator.cluster.simulate import run_pools, run_rules
from simulator.core.batch import BatchShape
from simulator.core.outcomes import COMPLETED, TOO_LONG
from simulator.core.speculation import SpeculationRules
from simulator.core.step_timer import Segment
from simulator.engine.fast_path import FastPath
from simulator.engine.fast_rank import FastRank
from simulator.engine.fast_sglang import FastSglang
from simulator.engine.fast_trtllm import FastTrtLlm
from simulator.schedulers.dp_dispatch import DISPATCHES
from simulator.schedulers.registry import VARIANTS
from simulator.schedulers.rules import EngineRules
from tests.simulator.engine.test_fast_forward import EXACT, TICK, World, crowds, worlds
from tests.simulator.worlds import Linear, requests, rules


def plain(world: World, n_replicas: int = 1) -> World:
    """The world as replicas with an open loop and no shared content."""
    n = world.requests.n
    arrival_s = world.requests.arrival_s if world.requests.concurrency is None else np.arange(n) * 3 * TICK
    work = replace(world.requests, arrival_s=arrival_s, concurrency=None, block_hashes=None)
    engine = replace(world.rules, receiving=None)  # which keeps a run to the general loop
    return replace(world, rules=engine, requests=work, n_replicas=n_replicas, router="round_robin")


def run_both(world: World) -> tuple[Run, Run]:
    """The run of a plain world on the fast path, and by the general loop."""
    fast, general = (
        run_rules(world.rules, world.timer, world.requests, world.n_replicas, RunOptions(fast_path=chosen))
        for chosen in (True, False)
    )
    return fast, general


def assert_equal(fast: Run, general: Run) -> None:
    """Every bit of both runs is equal."""
    for name in ("status", "replica", "preemptions", "cached_tokens", "arrival_s", *INSTANTS, "gaps_s"):
        np.testing.assert_array_equal(getattr(fast, name), getattr(general, name), err_msg=name)
    for a, b in zip(fast.replicas, general.replicas, strict=True):
        assert (a.kv_peak_fraction, a.peak_use) == (b.kv_peak_fraction, b.peak_use)
        np.testing.assert_array_equal(a.logs[0].table(), b.logs[0].table())
        np.testing.assert_array_equal(a.logs[0].shares, b.logs[0].shares)


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of requests that arrived on the fast path, by run."""
    found: list[int] = []
    serve = FastPath.serve

    def noted(self: FastPath, order: list[int], times_s: list[float]) -> int:
        found.append(serve(self, order, times_s))
        return found[-1]

    monkeypatch.setattr(FastPath, "serve", noted)
    return found


@EXACT
@given((worlds() | crowds()).map(plain))
def test_equals_the_general_loop(world: World) -> None:
    """Ties of time, full queues, chunks, refusals, an API server that is behind, and preemptions, which hand over."""
    assert_equal(*run_both(world))


@EXACT
@given(crowds().map(plain), st.booleans())
def test_equals_the_general_loop_after_a_hand_over(world: World, whole_prompts: bool) -> None:
    """Few blocks and long outputs: most of these runs preempt."""
    engine = replace(world.rules, admit_whole_prompt=whole_prompts, kv_blocks=max(18, world.rules.kv_blocks // 2))
    assert_equal(*run_both(replace(world, rules=engine)))


@EXACT
@given((worlds() | crowds()).map(lambda world: plain(world, 3)))
def test_several_replicas_equal_the_general_loop(world: World) -> None:
    """With a router that needs no signals, each replica takes the fast path for itself."""
    assert_equal(*run_both(world))


@st.composite
def of_sglang(draw: st.DrawFn, drawn: st.SearchStrategy[World]) -> World:
    """Plain worlds of SGLang: some with little memory, a short context window, or outputs that wait for a launch."""
    world = plain(draw(drawn))
    blocks = world.rules.kv_blocks
    engine = replace(
        world.rules,
        policy="sglang",
        kv_blocks=draw(st.sampled_from([blocks, max(18, blocks // 2)])),
        max_model_len=draw(st.sampled_from([84, 4096])),
        held_launch_s=draw(st.sampled_from([0, 3, 30])) * TICK if world.rules.lag else 0.0,
        queueing=Queueing(order=draw(st.sampled_from(["fcfs", "prefix"]))),
    )
    return replace(world, rules=engine)


@EXACT
@given(of_sglang(worlds() | crowds()))
def test_sglang_equals_the_general_loop(world: World) -> None:
    """Steps of prompts or of decodes, refusals for lack of tokens, the fall of its ratio, and retractions."""
    assert_equal(*run_both(world))


@pytest.mark.parametrize("policy", ["trtllm", "trtllm-max-utilization"])
@EXACT
@given((worlds() | crowds()).map(plain), st.booleans(), st.sampled_from([0, 3, 30]))
def test_tensorrt_llm_equals_the_general_loop(policy: str, world: World, tight: bool, launch_ticks: int) -> None:
    """Reserved worst cases, outputs that wait for a launch, and pauses, which hand over."""
    blocks = max(18, world.rules.kv_blocks // 2) if tight else world.rules.kv_blocks
    held_s = launch_ticks * TICK if world.rules.lag else 0.0
    engine = replace(world.rules, policy=policy, kv_blocks=blocks, held_launch_s=held_s)
    assert_equal(*run_both(replace(world, rules=engine)))


def test_a_worst_case_that_is_not_given_back_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault: the blocks committed to a finished request stay committed, so the next one never starts."""
    engine = rules(policy="trtllm", max_num_seqs=4, max_num_batched_tokens=64, kv_blocks=12, block_size=4)
    world = World(engine, Linear(), requests([0.0, 1.0, 2.0], [8, 8, 8], [20, 20, 20]), 1, "round_robin")
    assert_equal(*run_both(world))
    monkeypatch.setattr(FastTrtLlm, "free", FastRank.free)
    with pytest.raises((AssertionError, RuntimeError)):
        assert_equal(*run_both(world))


@pytest.mark.parametrize("policy", ["vllm-v1", "sglang", "trtllm", "trtllm-max-utilization"])
def test_policies_with_a_fast_path_take_it(served: list[int], policy: str) -> None:
    run_rules(rules(max_num_seqs=4, policy=policy), Linear(), requests([0.0, 1.0], [8, 8], [4, 4]))
    assert served == [2]


@pytest.mark.parametrize("lag", [0, 1])
def test_a_retraction_hands_over(served: list[int], lag: int) -> None:
    """Three requests of 17 blocks each start in a cache of 32, one of which is retracted; the fourth comes later."""
    engine = rules(policy="sglang", max_num_seqs=8, max_num_batched_tokens=64, kv_blocks=32, block_size=4, lag=lag)
    work = requests([0.0, 1.0, 2.0, 5000.0], [8, 8, 8, 8], [60, 60, 60, 4])
    fast, general = run_both(World(engine, Linear(), work, 1, "round_robin"))
    assert served == [3]
    assert general.preemptions.sum() > 0
    assert_equal(fast, general)


def test_a_seat_that_is_free_too_early_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault: the seat of a finished request is free at once, and not from the next decode step on."""
    engine = rules(policy="sglang", max_num_seqs=2, max_num_batched_tokens=64)
    world = World(engine, Linear(), requests([0.0, 0.0, 0.5], [8, 8, 8], [4, 9, 4]), 1, "round_robin")
    assert_equal(*run_both(world))
    monkeypatch.setattr(FastSglang, "free", FastRank.free)
    with pytest.raises(AssertionError):
        assert_equal(*run_both(world))


@st.composite
def in_lockstep(draw: st.DrawFn, drawn: st.SearchStrategy[World]) -> World:
    """Worlds with ranks that step together, of which each has the limits of a replica of the drawn world."""
    world = plain(draw(drawn))
    n, engine = draw(st.sampled_from([2, 3, 5])), world.rules
    group = replace(
        engine,
        attention_ranks=n,
        rank_dispatch=draw(st.sampled_from(sorted(DISPATCHES))),
        kv_blocks=n * draw(st.sampled_from([engine.kv_blocks, max(18, engine.kv_blocks // 2)])),
        max_num_seqs=n * engine.max_num_seqs,
        max_num_batched_tokens=n * engine.max_num_batched_tokens,
    )
    work = world.requests
    rounds = draw(st.integers(1, 3))  # requests that arrive together
    arrival_s = np.sort(np.tile(work.arrival_s, rounds))
    crowd = requests(arrival_s, np.tile(work.input_tokens, rounds), np.tile(work.output_tokens, rounds))
    timer = draw(st.sampled_from([world.timer, Waits(world.timer)]))
    return replace(world, rules=group, requests=crowd, timer=timer)


@dataclass(frozen=True)
class Waits:
    """A timer that models what the ranks of a group share: all tokens of a group cost time, and idle ranks as well."""

    alone: Linear

    def cycle_s(self, shape: BatchShape) -> float:
        return self.alone.cycle_s(shape)

    def decode_segment(self, decodes: int, context_sum: float, context_max: float) -> Segment:
        return self.alone.decode_segment(decodes, context_sum, context_max)

    def ranks_segment(self, ranks: Sequence[BatchShape | None]) -> Segment:
        longest = max(rank.decode_context_max for rank in ranks if rank is not None)
        tokens = sum(rank.decodes + rank.prefill_tokens for rank in ranks if rank is not None)
        prompts = any(rank.prefill_tokens for rank in ranks if rank is not None)
        first_s = self.alone.base_s + TICK * (tokens + longest + ranks.count(None))
        return first_s, TICK, 1 if prompts else 7


@EXACT
@given(in_lockstep(worlds() | crowds()))
def test_ranks_in_lockstep_equal_the_general_loop(world: World) -> None:
    """All dispatches, idle ranks, refusals on one rank while others go on, and preemptions, which hand over."""
    assert_equal(*run_both(world))


@pytest.mark.parametrize("lag", [0, 1])
@pytest.mark.parametrize("dispatch", sorted(DISPATCHES))
def test_a_preemption_on_one_rank_hands_over(served: list[int], lag: int, dispatch: str) -> None:
    """Long requests on both ranks, of which some do not fit into the 12 blocks of their rank."""
    engine = rules(
        max_num_seqs=8, max_num_batched_tokens=128, kv_blocks=24, lag=lag, attention_ranks=2, rank_dispatch=dispatch
    )
    work = requests([0.0, 0.0, 1.0, 2.0, 3.0, 500.0], [8, 8, 3, 8, 8, 8], [28, 2, 9, 28, 28, 4])
    fast, general = run_both(World(engine, Linear(context_s=TICK), work, 1, "round_robin"))
    assert served == [5]
    assert general.preemptions.sum() > 0
    assert_equal(fast, general)


def test_an_arrival_on_an_idle_rank_cuts_the_steps_of_the_others(served: list[int]) -> None:
    """A request decodes on one rank for 100 s; the second request starts on the other rank with the next step."""
    engine = rules(attention_ranks=2, rank_dispatch="round_robin")
    fast, general = run_both(World(engine, Linear(), requests([0.0, 10.5], [8, 8], [100, 4]), 1, "round_robin"))
    assert served == [2]
    assert fast.started_s.tolist() == [0.0, 11.0]
    assert fast.replicas[0].logs[0].shares[1, :, 3].tolist() == [1.0, 0.0]  # decodes of both ranks before it
    assert_equal(fast, general)


@pytest.mark.parametrize("lag", [0, 1])
def test_a_preemption_hands_over(served: list[int], lag: int) -> None:
    """Two requests of 9 blocks each in a cache of 12: the second is preempted while a third has not arrived yet."""
    engine = rules(max_num_seqs=4, max_num_batched_tokens=64, kv_blocks=12, block_size=4, lag=lag)
    world = World(engine, Linear(), requests([0.0, 0.0, 500.0], [8, 8, 8], [28, 28, 4]), 1, "round_robin")
    fast, general = run_both(world)
    assert served == [2]
    assert general.preemptions.sum() > 0
    assert_equal(fast, general)


def test_requests_that_can_never_run_are_rejected(served: list[int]) -> None:
    engine = rules(max_model_len=20)
    world = World(engine, Linear(), requests([0.0, 0.0, 1.0, 9.0], [8, 30, 8, 30], [4, 4, 4, 4]), 1, "round_robin")
    fast, general = run_both(world)
    assert fast.status.tolist() == [COMPLETED, TOO_LONG, COMPLETED, TOO_LONG]
    assert served == [4]
    assert_equal(fast, general)


@pytest.mark.parametrize(
    "special",
    [
        {"policy": "trtllm", "attention_ranks": 2, "balance_steps": 4},
        {"queueing": Queueing(order="priority")},
        {"queueing": Queueing(max_waiting=1)},
        {"queueing": Queueing(timeout_s=5.0)},
        {"chunked_prefill": False, "max_num_batched_tokens": 64},
        {"receiving": ReceiveIntervals(2, 2, 2)},
        {"attention_ranks": 2, "rank_dispatch": "round_robin", "policy": "sglang"},
        {"attention_ranks": 2, "rank_dispatch": "round_robin", "speculation": SpeculationRules(2, (0.5,))},
        {"pipeline_stages": 2, "lag": 0},
    ],
    ids=str,
)
def test_other_rules_keep_to_the_general_loop(served: list[int], special: dict[str, object]) -> None:
    engine = rules(max_num_seqs=4, **special)  # type: ignore[arg-type]
    run_rules(engine, Linear(), requests([0.0, 1.0], [8, 8], [4, 4]))
    assert served == []


def test_shared_content_and_closed_loops_keep_to_the_general_loop(served: list[int]) -> None:
    engine = rules(prefix_caching=True)
    run_rules(engine, Linear(), requests([0.0, 1.0], [8, 8], [4, 4], [[1, 2], [1, 2]]))
    run_rules(engine, Linear(), requests([0.0, 0.0], [8, 8], [4, 4], None, 1))
    run_rules(engine, Linear(), requests([0.0, 0.0], [8, 8], [4, 4]), 2, RunOptions(router="least_outstanding"))
    run_rules(engine, Linear(), requests([0.0, 1.0], [8, 8], [4, 4]), 1, RunOptions(check_invariants=True))
    run_rules(engine, Linear(), requests([0.0, 1.0], [8, 8], [4, 4]), 1, RunOptions(horizon_s=2.0))
    assert served == []
    run_rules(engine, Linear(), requests([0.0, 1.0], [8, 8], [4, 4]))
    run_rules(engine, Linear(), requests([0.0, 1.0], [8, 8], [4, 4]), 2)
    assert served == [2, 1, 1]


def test_a_pool_without_replicas_lends_no_rules(served: list[int]) -> None:
    """The only replica belongs to the second pool, whose limits apply."""
    narrow, wide = rules(max_num_seqs=1), rules(max_num_seqs=4)
    work = requests([0.0, 0.0, 0.0], [8, 8, 8], [20, 20, 20])
    pools = [Pool(rules=narrow, timer=Linear(), replicas=0), Pool(rules=wide, timer=Linear(), replicas=1)]
    fast, general = (run_pools(pools, work, RunOptions(fast_path=chosen)) for chosen in (True, False))
    alone = run_rules(wide, Linear(), work)
    assert served == [3]  # with two pools, the general loop serves
    np.testing.assert_array_equal(fast.last_token_s, general.last_token_s)
    np.testing.assert_array_equal(fast.last_token_s, alone.last_token_s)


#: The fields of EngineRules and Queueing that the fast path follows, or that change nothing in
#: an open loop of VllmV1 on independent replicas.
FOLLOWED = {
    EngineRules: {
        *("max_num_seqs", "max_num_batched_tokens", "kv_blocks", "block_size", "max_model_len", "side_tokens"),
        *("host", "admit_whole_prompt", "lag", "api_servers", "attention_ranks", "prefix_caching", "unit_blocks"),
        *("rank_dispatch", "held_launch_s"),
        *("max_output_tokens", "physical_batch_tokens", "balance_steps", "stage_layers"),
    },
    Queueing: {"too_long", "preferred_batch_sizes"},
}

#: Those that `is_plain` excludes, besides the fields of scheduler variants.
EXCLUDED = {
    EngineRules: {*_WITHOUT, *VARIANTS, "policy", "queueing"},
    Queueing: {"order", "max_waiting", "timeout_s", "max_delay_s"},
}


def test_every_rule_is_followed_or_excluded() -> None:
    """A new field has to be sorted into one of the two, so that no feature slips through."""
    for kind, names in ((EngineRules, {f.name for f in fields(EngineRules)}), (Queueing, set(Queueing.model_fields))):
        assert not FOLLOWED[kind] & EXCLUDED[kind]
        assert FOLLOWED[kind] | EXCLUDED[kind] == names
