"""What every scheduling policy must hold, and planted faults that the laws must see."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.analysis.metrics import output_tokens
from simulator.cluster.cluster import RunOptions
from simulator.cluster.run import Run
from simulator.cluster.simulate import run_rules
from simulator.core.batch import Batch
from simulator.core.invariants import InvariantViolation
from simulator.core.request import Request
from simulator.schedulers import registry as schedulers
from simulator.schedulers.base import Scheduler
from simulator.schedulers.continuous_batching import ContinuousBatching
from simulator.schedulers.rules import EngineRules
from simulator.schedulers.static_batching import OneAtATime
from simulator.schedulers.trtllm import TrtLlm
from tests.simulator.worlds import Linear, requests, rules

FEW = settings(max_examples=60, deadline=None)
POLICIES = pytest.mark.parametrize("policy", sorted(schedulers.POLICIES))
lags = st.integers(0, 1)
sizes = st.lists(st.tuples(st.integers(1, 24), st.integers(1, 16), st.integers(0, 40)), min_size=1, max_size=12)


def simulate(engine: EngineRules, work: object, timer: Linear | None = None, **options: bool) -> Run:
    return run_rules(engine, timer or Linear(), work, 1, RunOptions(check_invariants=True, **options))  # type: ignore[arg-type]


def work_of(rows: list[tuple[int, int, int]]) -> object:
    arrivals = np.cumsum([gap * 0.25 for _, _, gap in rows]).tolist()
    return requests(arrivals, [i for i, _, _ in rows], [o for _, o, _ in rows])


def tight(policy: str, lag: int) -> EngineRules:
    engine = rules(policy=policy, lag=lag, kv_blocks=11, max_num_seqs=4, max_num_batched_tokens=16)
    if policy == "orca":  # three seats' slots
        return replace(engine, max_num_batched_tokens=72, max_model_len=52, kv_blocks=39)
    if not schedulers.POLICIES[policy].chunks:  # a prompt must fit in a step, with what it has produced
        return replace(engine, max_num_batched_tokens=72)
    if policy == "llama.cpp":  # nothing is ever short: every slot has a context of its own, here 18 blocks
        return replace(engine, max_model_len=72, kv_blocks=72, physical_batch_tokens=5)
    return engine


@POLICIES
@FEW
@given(rows=sizes, lag=lags)
def test_everyone_is_served_in_causal_order(policy: str, rows: list[tuple[int, int, int]], lag: int) -> None:
    run = simulate(tight(policy, lag), work_of(rows))
    assert run.completed.all()
    assert (run.started_s >= run.arrival_s).all()
    assert (run.first_token_s > run.started_s).all()
    more = run.requests.output_tokens > 1
    if schedulers.POLICIES[policy].streams:
        assert (run.last_token_s > run.first_token_s)[more].all()
    else:
        assert (run.last_token_s == run.first_token_s).all()
    if not schedulers.POLICIES[policy].pads:
        assert (run.last_token_s == run.first_token_s)[~more].all()
        assert run.logs[0].logits @ run.logs[0].steps == run.requests.output_tokens.sum()
    assert output_tokens(run) == run.requests.output_tokens.sum()


@POLICIES
@FEW
@given(rows=sizes, lag=lags)
def test_the_device_idles_only_when_nobody_is_there(policy: str, rows: list[tuple[int, int, int]], lag: int) -> None:
    run = simulate(tight(policy, lag), work_of(rows))
    starts = run.logs[0].start_s
    ends = starts + run.logs[0].total_s
    for idle_from, idle_to in zip(ends[:-1], starts[1:], strict=True):
        if idle_to > idle_from:
            present = (run.arrival_s < idle_to) & (run.last_token_s > idle_from)
            assert not present.any()


@POLICIES
@FEW
@given(rows=sizes, lag=lags, more=st.integers(1, 9))
def test_output_lengths_are_not_known_before_they_end(
    policy: str, rows: list[tuple[int, int, int]], lag: int, more: int
) -> None:
    """Longer outputs change nothing before the first request ends, whatever limit they all declare."""
    engine = replace(tight(policy, lag), kv_blocks=30, max_output_tokens=30)
    short = simulate(engine, work_of(rows), fast_forward=False)
    long = simulate(engine, work_of([(i, o + more, gap) for i, o, gap in rows]), fast_forward=False)
    until = short.last_token_s.min() - 1.0 * lag
    a, b = short.logs[0].table(), long.logs[0].table()
    a, b = a[a[:, 0] < until], b[b[:, 0] < until]
    np.testing.assert_array_equal(a, b)


@POLICIES
@FEW
@given(prompt=st.integers(1, 40), output=st.integers(1, 30), slower=st.floats(0.0, 2.0), lag=lags)
def test_a_slower_machine_never_makes_a_single_request_faster(
    policy: str, prompt: int, output: int, slower: float, lag: int
) -> None:
    work = requests([0.0], [prompt], [output])
    engine = replace(tight(policy, lag), kv_blocks=60, max_model_len=72)
    fast = simulate(engine, work, Linear(prompt_token_s=0.125))
    slow = simulate(engine, work, Linear(base_s=1.0 + slower, prompt_token_s=0.125 * (1.0 + slower)))
    assert slow.first_token_s[0] >= fast.first_token_s[0]
    assert slow.last_token_s[0] >= fast.last_token_s[0]


def test_a_request_does_not_say_how_long_its_output_is() -> None:
    assert not any("output" in name for name in Request.__slots__)


@POLICIES
def test_a_budget_below_the_seats_is_refused(policy: str) -> None:
    with pytest.raises(ValueError, match="at least max_num_seqs"):
        schedulers.POLICIES[policy](rules(max_num_seqs=8, max_num_batched_tokens=7))


@FEW
@given(rows=sizes, lag=lags)
def test_a_started_request_is_never_preempted_by_trtllm(rows: list[tuple[int, int, int]], lag: int) -> None:
    assert not simulate(tight("trtllm", lag), work_of(rows)).preemptions.any()


# Planted faults


def faults_of(sound: type[ContinuousBatching]) -> list[tuple[type[Scheduler], type[Exception], str]]:
    """Broken versions of a policy, with the complaint each must bring about."""

    class LeaksBlocks(sound):  # type: ignore[valid-type,misc]
        def release(self, request: Request) -> None:
            self._running.pop(request)

    class SchedulesFinished(sound):  # type: ignore[valid-type,misc]
        def retire(self, request: Request) -> None:
            request.retired = True  # and goes on decoding

    class ReadsOutputLength(sound):  # type: ignore[valid-type,misc]
        def add(self, request: Request) -> None:
            if request.output_tokens > 0:  # type: ignore[attr-defined]
                super().add(request)

    class LosesRequests(sound):  # type: ignore[valid-type,misc]
        def add(self, request: Request) -> None:
            if request.index != 1:
                super().add(request)

    class CountsContextWrong(sound):  # type: ignore[valid-type,misc]
        def schedule(self) -> Batch | None:
            batch = super().schedule()
            if batch is not None and batch.decodes:
                batch.decode_context_sum += 1
            return batch

    class SitsIdle(sound):  # type: ignore[valid-type,misc]
        def schedule(self) -> Batch | None:
            return None

    return [
        (LeaksBlocks, InvariantViolation, "blocks"),
        (SchedulesFinished, InvariantViolation, "decodes scheduled|requests hold"),
        (ReadsOutputLength, AttributeError, "output_tokens"),
        (LosesRequests, InvariantViolation, "lost"),
        *([] if sound is OneAtATime else limit_faults_of(sound)),
        (CountsContextWrong, InvariantViolation, "context sum"),
        (SitsIdle, RuntimeError, "no progress: request 0"),
        *(preemption_faults_of(sound) if sound.preempts else []),
        *([] if sound.pads else [(other_phase_fault_of(sound), InvariantViolation, "decodes scheduled")]),
    ]


def limit_faults_of(sound: type[ContinuousBatching]) -> list[tuple[type[Scheduler], type[Exception], str]]:
    class IgnoresBudget(sound):  # type: ignore[valid-type,misc]
        def __init__(self, engine: EngineRules) -> None:
            super().__init__(replace(engine, max_num_batched_tokens=1_000_000))

    class TakesTooManySeats(sound):  # type: ignore[valid-type,misc]
        def __init__(self, engine: EngineRules) -> None:
            super().__init__(replace(engine, max_num_seqs=16))

    return [
        (IgnoresBudget, InvariantViolation, "tokens in a batch"),
        (TakesTooManySeats, InvariantViolation, "max_num_seqs"),
    ]


def preemption_faults_of(sound: type[ContinuousBatching]) -> list[tuple[type[Scheduler], type[Exception], str]]:
    class ForgetsToReset(sound):  # type: ignore[valid-type,misc]
        def _preempt(self) -> None:
            super()._preempt()
            self.preempted[-1].computed_tokens = 3

    class KeepsBlocksWhenPreempting(sound):  # type: ignore[valid-type,misc]
        def _preempt(self) -> None:
            held = self.kv.available
            super()._preempt()
            self.kv.take((self.kv.available - held) // 2)

    return [
        (ForgetsToReset, InvariantViolation, "counts computed tokens"),
        (KeepsBlocksWhenPreempting, InvariantViolation, "blocks"),
    ]


def other_phase_fault_of(sound: type[ContinuousBatching]) -> type[Scheduler]:
    """It claims to mix prefill and decodes where it does not, and the other way round."""

    class MixesUpPhases(sound):  # type: ignore[valid-type,misc]
        mixes_phases = not sound.mixes_phases

    return MixesUpPhases


FAULTS = [
    (policy, *fault) for policy in sorted(schedulers.POLICIES) for fault in faults_of(schedulers.POLICIES[policy])
]


def crowd(policy: str, lag: int) -> tuple[EngineRules, object]:
    """Enough requests to fill budget, seats and, where the policy lets it come to that, the cache."""
    inputs, outputs = [20, 9, 9, 9, 9, 1, 1, 1, 1, 1], [6, 12, 9, 20, 2, 2, 5, 5, 5, 5]
    engine = tight(policy, lag)
    if policy == "transformers-cb":
        engine = replace(engine, kv_blocks=10)
    if policy == "static":
        engine = replace(engine, max_num_batched_tokens=38, kv_blocks=40)  # the first two do not fit in one batch
    if policy in ("trtllm", "orca"):
        engine = replace(engine, kv_blocks=40, max_model_len=40)
    if policy in ("vllm-v0", "orca"):
        return replace(engine, max_num_batched_tokens=32), requests([0.0] * 10, inputs, outputs)
    if policy != "sglang":
        return engine, requests([0.0, 0.0, *[0.5] * 8], inputs, outputs)
    # SGLang keeps 70 % of what the running ones declare: four of 60 tokens need 60 blocks, the last is let in at 52
    late = requests([0.0, 2.0, 6.0, 8.0, 10.0, 12.0, *[14.0] * 4], [20, *[1] * 9], [2, *[60] * 5, *[5] * 4])
    return replace(engine, kv_blocks=54), late


@pytest.mark.parametrize(("policy", "broken", "error", "says"), FAULTS, ids=[f"{f[0]}-{f[1].__name__}" for f in FAULTS])
@pytest.mark.parametrize("lag", [0, 1])
def test_planted_faults_are_caught(
    monkeypatch: pytest.MonkeyPatch, policy: str, broken: type[Scheduler], error: type[Exception], says: str, lag: int
) -> None:
    engine, work = crowd(policy, lag)
    sound = simulate(engine, work)  # the sound policy passes, and meets every situation
    assert bool(sound.preemptions.sum()) == schedulers.POLICIES[policy].preempts
    monkeypatch.setitem(schedulers.POLICIES, policy, broken)
    if broken.__name__ in ("TakesTooManySeats", "IgnoresBudget"):
        engine = replace(engine, kv_blocks=400)  # where the cache does not hold them back
    with pytest.raises(error, match=says):
        simulate(engine, work)


@pytest.mark.parametrize("lag", [0, 1])
def test_a_reservation_that_is_too_small_is_caught(monkeypatch: pytest.MonkeyPatch, lag: int) -> None:
    class PromisesTooLittle(TrtLlm):
        def _worst_blocks(self, request: Request) -> int:
            return -(-request.input_tokens // self.rules.block_size)

    monkeypatch.setitem(schedulers.POLICIES, "trtllm", PromisesTooLittle)
    with pytest.raises(RuntimeError, match="ran out of blocks"):
        simulate(tight("trtllm", lag), requests([0.0] * 4, [9] * 4, [20] * 4))


def test_a_step_must_take_time() -> None:
    with pytest.raises(RuntimeError, match="a step must take time"):
        simulate(rules(), requests([0.0], [4], [2]), Linear(base_s=0.0))
