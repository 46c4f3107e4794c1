"""What every scheduling policy must hold, and planted faults that the laws must see."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from worlds import Linear, requests, rules

from simulator import schedulers
from simulator.cluster import RunOptions
from simulator.laws import LawBroken
from simulator.request import Batch, Request
from simulator.rules import EngineRules
from simulator.run_record import Run
from simulator.schedulers.vllm_v1 import VllmV1
from simulator.simulate import run_rules

FEW = settings(max_examples=60, deadline=None)
POLICIES = pytest.mark.parametrize("policy", sorted(schedulers.POLICIES))
lags = st.integers(0, 1)
sizes = st.lists(st.tuples(st.integers(1, 24), st.integers(1, 16), st.integers(0, 40)), min_size=1, max_size=12)


def simulate(engine: EngineRules, work: object, timer: Linear | None = None, **options: bool) -> Run:
    return run_rules(engine, timer or Linear(), work, 1, RunOptions(check_laws=True, **options))  # type: ignore[arg-type]


def work_of(rows: list[tuple[int, int, int]]) -> object:
    arrivals = np.cumsum([gap * 0.25 for _, _, gap in rows]).tolist()
    return requests(arrivals, [i for i, _, _ in rows], [o for _, o, _ in rows])


def tight(policy: str, lag: int) -> EngineRules:
    return rules(policy=policy, lag=lag, kv_blocks=11, max_num_seqs=4, max_num_batched_tokens=16)


@POLICIES
@FEW
@given(rows=sizes, lag=lags)
def test_everyone_is_served_in_causal_order(policy: str, rows: list[tuple[int, int, int]], lag: int) -> None:
    run = simulate(tight(policy, lag), work_of(rows))
    assert run.completed.all()
    assert (run.started_s >= run.arrival_s).all()
    assert (run.first_token_s > run.started_s).all()
    more = run.requests.output_tokens > 1
    assert (run.last_token_s > run.first_token_s)[more].all()
    assert (run.last_token_s == run.first_token_s)[~more].all()
    assert run.logs[0].logits @ run.logs[0].steps == run.requests.output_tokens.sum()


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
    """Longer outputs change nothing before the first request ends."""
    engine = replace(tight(policy, lag), kv_blocks=60)
    short = simulate(engine, work_of(rows), fast_forward=False)
    long = simulate(engine, work_of([(i, o + more, gap) for i, o, gap in rows]), fast_forward=False)
    until = short.last_token_s.min() - 1.0 * lag
    a, b = short.logs[0].table(), long.logs[0].table()
    a, b = a[a[:, 0] < until], b[b[:, 0] < until]
    np.testing.assert_array_equal(a, b)


@POLICIES
@FEW
@given(prompt=st.integers(1, 40), output=st.integers(1, 30), slower=st.floats(0.0, 2.0), lag=lags)
def test_a_slower_machine_never_makes_a_lone_request_faster(
    policy: str, prompt: int, output: int, slower: float, lag: int
) -> None:
    work = requests([0.0], [prompt], [output])
    engine = replace(tight(policy, lag), kv_blocks=60)
    fast = simulate(engine, work, Linear(prompt_token_s=0.125))
    slow = simulate(engine, work, Linear(base_s=1.0 + slower, prompt_token_s=0.125 * (1.0 + slower)))
    assert slow.first_token_s[0] >= fast.first_token_s[0]
    assert slow.last_token_s[0] >= fast.last_token_s[0]


def test_a_request_does_not_say_how_long_its_output_is() -> None:
    assert not any("output" in name for name in Request.__slots__)


def test_a_budget_below_the_seats_is_refused() -> None:
    with pytest.raises(ValueError, match="at least max_num_seqs"):
        VllmV1(rules(max_num_seqs=8, max_num_batched_tokens=7))


# Planted faults


class IgnoresBudget(VllmV1):
    def __init__(self, engine: EngineRules) -> None:
        super().__init__(replace(engine, max_num_batched_tokens=1_000_000))


class LeaksBlocks(VllmV1):
    def release(self, request: Request) -> None:
        self._running.pop(request)


class ForgetsToReset(VllmV1):
    def _preempt(self) -> None:
        request = next(reversed(self._running))
        super()._preempt()
        request.computed_tokens = 3


class SchedulesFinished(VllmV1):
    def retire(self, request: Request) -> None:
        request.retired = True  # and goes on decoding


class ReadsOutputLength(VllmV1):
    def add(self, request: Request) -> None:
        if request.output_tokens > 0:  # type: ignore[attr-defined]
            super().add(request)


class LosesRequests(VllmV1):
    def add(self, request: Request) -> None:
        if request.index != 1:
            super().add(request)


class TakesTooManySeats(VllmV1):
    def __init__(self, engine: EngineRules) -> None:
        super().__init__(replace(engine, max_num_seqs=16))


class CountsContextWrong(VllmV1):
    def schedule(self) -> Batch | None:
        batch = super().schedule()
        if batch is not None and batch.decodes:
            batch.decode_context_sum += 1
        return batch


class SitsIdle(VllmV1):
    def schedule(self) -> Batch | None:
        return None


class KeepsBlocksWhenPreempting(VllmV1):
    def _preempt(self) -> None:
        held = self.kv.available
        super()._preempt()
        self.kv.take((self.kv.available - held) // 2)


FAULTS = [
    (IgnoresBudget, LawBroken, "tokens in a batch"),
    (LeaksBlocks, LawBroken, "blocks"),
    (ForgetsToReset, LawBroken, "counts computed tokens"),
    (SchedulesFinished, LawBroken, "decodes scheduled|requests hold"),
    (ReadsOutputLength, AttributeError, "output_tokens"),
    (LosesRequests, LawBroken, "lost"),
    (TakesTooManySeats, LawBroken, "max_num_seqs"),
    (CountsContextWrong, LawBroken, "context sum"),
    (SitsIdle, RuntimeError, "no progress: request 0"),
    (KeepsBlocksWhenPreempting, LawBroken, "blocks"),
]


@pytest.mark.parametrize(("policy", "error", "says"), FAULTS, ids=[f[0].__name__ for f in FAULTS])
@pytest.mark.parametrize("lag", [0, 1])
def test_planted_faults_are_caught(
    monkeypatch: pytest.MonkeyPatch, policy: type[VllmV1], error: type[Exception], says: str, lag: int
) -> None:
    inputs, outputs = [20, 9, 9, 9, 9, 1, 1, 1, 1, 1], [6, 12, 9, 20, 2, 2, 5, 5, 5, 5]
    work = requests([0.0, 0.0, *[0.5] * 8], inputs, outputs)
    engine = tight("vllm-v1", lag)
    assert simulate(engine, work).preemptions.sum() > 0  # the sound policy passes, and meets every situation
    monkeypatch.setitem(schedulers.POLICIES, "vllm-v1", policy)
    with pytest.raises(error, match=says):
        simulate(engine, work)


def test_a_step_must_take_time() -> None:
    with pytest.raises(RuntimeError, match="a step must take time"):
        simulate(rules(), requests([0.0], [4], [2]), Linear(base_s=0.0))
