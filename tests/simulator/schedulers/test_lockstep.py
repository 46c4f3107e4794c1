"""Ranks that each schedule for themselves and step together: by hand, against independent replicas, and at random."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from catalogs.engines.model_defaults import ReceiveIntervals
from catalogs.workloads.request_set import RequestSet
from simulator.cluster.cluster import RunOptions
from simulator.cluster.run import Run
from simulator.cluster.simulate import run_rules
from simulator.core.batch import Batch, together
from simulator.core.invariants import InvariantViolation
from simulator.core.outcomes import STATUS
from simulator.schedulers import registry as schedulers
from simulator.schedulers.base import Scheduler
from simulator.schedulers.data_parallel import Lockstep
from simulator.schedulers.dp_dispatch import DISPATCHES
from simulator.schedulers.registry import make_scheduler
from simulator.schedulers.rules import EngineRules
from tests.simulator.reference_engine import REFERENCES
from tests.simulator.worlds import Linear, host_times, requests, rules

TICK = 1.0 / 64
POLICIES = ("vllm-v1", "sglang", "trtllm", "trtllm-max-utilization")


def group(ranks: int, dispatch: str = "round_robin", **changes: object) -> EngineRules:
    """Limits are given for one rank."""
    own = rules(**changes)
    return replace(
        own,
        attention_ranks=ranks,
        rank_dispatch=dispatch,
        max_num_seqs=own.max_num_seqs * ranks,
        max_num_batched_tokens=own.max_num_batched_tokens * ranks,
        kv_blocks=own.kv_blocks * ranks,
    )


@st.composite
def worlds(draw: st.DrawFn) -> tuple[EngineRules, Linear, RequestSet]:
    ticks = st.sampled_from([0, 1, 3, 40]).map(lambda t: t * TICK)
    seqs = draw(st.integers(1, 5))
    ranks = draw(st.integers(2, 4))
    made = group(
        ranks,
        draw(st.sampled_from(sorted(DISPATCHES))),
        policy=draw(st.sampled_from(POLICIES)),
        max_num_seqs=seqs,
        max_num_batched_tokens=draw(st.integers(seqs, 30)),
        kv_blocks=draw(st.integers(11, 40) | st.integers(50, 90)),
        prefix_caching=draw(st.booleans()),
        admit_whole_prompt=draw(st.booleans()),
        lag=draw(st.integers(0, 1)),
        host=host_times(step_s=draw(ticks), output_s=draw(ticks), api_token_s=draw(st.sampled_from([0.0, TICK / 2]))),
        balance_steps=draw(st.sampled_from([0, 3, 9])),
        receiving=draw(st.sampled_from([None, ReceiveIntervals(3, 5, 4)])),
        max_output_tokens=draw(st.sampled_from([0, 30])),
    )
    n = draw(st.integers(1, 14))
    lengths = [draw(st.integers(1, 25)) for _ in range(n)], [draw(st.integers(1, 15)) for _ in range(n)]
    arrival = np.cumsum([draw(st.sampled_from([0, 0, 1, 7, 64])) * TICK for _ in range(n)]).tolist()
    hashes = [[draw(st.integers(0, 2)), *range(100 * i, 100 * i + 5)] for i in range(n)]
    timer = Linear(TICK, draw(ticks) / 8, draw(ticks) / 32, draw(st.sampled_from([0.0, TICK / 256])))
    closed = draw(st.sampled_from([None, None, 1, 3]))
    return made, timer, requests(arrival if closed is None else [0.0] * n, *lengths, hashes=hashes, concurrency=closed)


def serve(world: tuple[EngineRules, Linear, RequestSet], **options: object) -> Run:
    return run_rules(*world, options=RunOptions(check_invariants=True, **options))  # type: ignore[arg-type]


def assert_same(a: Run, b: Run) -> None:
    for name in ("status", "preemptions", "cached_tokens"):
        np.testing.assert_array_equal(getattr(a, name), getattr(b, name), err_msg=name)
    for name in ("started_s", "first_token_s", "last_token_s"):
        np.testing.assert_allclose(getattr(a, name), getattr(b, name), rtol=0, atol=1e-9, err_msg=name)
    np.testing.assert_allclose(np.sort(a.gaps_s), np.sort(b.gaps_s), rtol=0, atol=1e-9)
    for x, y in zip(a.logs[0].parts, b.logs[0].parts, strict=True):
        assert x.steps.sum() == y.steps.sum()
        assert x.logits @ x.steps == y.logits @ y.steps
        np.testing.assert_allclose(x.total_s.sum(), y.total_s.sum(), rtol=0, atol=1e-9)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(worlds())
def test_laws_hold_and_fast_forward_changes_nothing(world: tuple[EngineRules, Linear, RequestSet]) -> None:
    slow, fast = serve(world, fast_forward=False), serve(world)
    assert_same(slow, fast)
    assert slow.kv_peak_fraction == fast.kv_peak_fraction
    assert len(fast.logs[0]) <= len(slow.logs[0])


def test_an_idle_rank_that_is_sent_a_request_meanwhile_has_run_nothing() -> None:
    """SGLang's share of promised output falls with every decode step of the rank, and only of the rank."""
    made = group(2, "least_requests", policy="sglang", max_num_seqs=3, max_num_batched_tokens=3, kv_blocks=24, lag=1)
    made = replace(made, prefix_caching=False)
    arrival_s, inputs = [0.0] * 2 + [1.0] * 3 + [2.0] * 8, [1, 1, 21, 1, 1, 1, 1, 4, 1, 25, 1, 1, 1]
    work = requests(arrival_s, inputs, [13, 1, 6, 3, 1, 1, 1, 3, 15, 1, 1, 1, 1])
    world = made, Linear(TICK, 5 * TICK, 1.25 * TICK), work
    assert_same(serve(world, fast_forward=False), serve(world))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(worlds())
def test_ranks_decide_like_engines_written_out(world: tuple[EngineRules, Linear, RequestSet]) -> None:
    """They count no blocks in the cache that dispatch could look at, and know no balance."""
    dispatch = world[0].rank_dispatch.replace("least_requests", "queue_score")
    world = (replace(world[0], balance_steps=0, rank_dispatch=dispatch), *world[1:])
    fast, policy = serve(world), world[0].policy
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(schedulers.POLICIES, policy, REFERENCES[policy])
        assert_same(run_rules(*world, options=RunOptions(fast_forward=False)), fast)


def test_two_ranks_by_hand() -> None:
    """A step is 1 s, 1/8 s a prompt token and 1/4 s a decode, of the slowest rank. Requests take turns: A and C are
    rank 0's, B and D rank 1's.

    | step | rank 0 | rank 1 |
    | 0 to 2 | A prefills 8: 2 s | B prefills 4: 1.5 s, and waits |
    | 2 to 3.25 | A decodes; C arrives at 2.5 | B decodes its last |
    | 3.25 to 4.75 | A decodes its last, C prefills 2: 1.5 s | dummy |
    | 4.75 to 6 | C decodes its last | dummy |
    | 100 to 102 | dummy | D prefills 8, its only token |
    """
    timer = Linear(base_s=1.0, decode_s=0.25, prompt_token_s=0.125)
    work = requests([0.0, 0.0, 2.5, 100.0], [8, 4, 2, 8], [3, 2, 2, 1])
    done = serve((group(2, max_num_seqs=2, max_num_batched_tokens=8), timer, work))
    assert done.started_s.tolist() == [0.0, 0.0, 3.25, 100.0]
    assert done.first_token_s.tolist() == [2.0, 2.0, 4.75, 102.0]
    assert done.last_token_s.tolist() == [4.75, 3.25, 6.0, 102.0]
    (log,) = done.logs
    assert log.n_ranks
    assert log.total_s.tolist() == [2.0, 1.25, 1.5, 1.25, 2.0]
    prompts, decodes = log.shares[:, :, 0].tolist(), log.shares[:, :, 3].tolist()
    assert prompts == [[8, 4], [0, 0], [2, 0], [0, 0], [0, 8]]
    assert decodes == [[0, 0], [1, 1], [1, 0], [1, 0], [0, 0]]
    assert [len(part) for part in log.parts] == [4, 3]


@pytest.mark.parametrize(("dispatch", "ends"), [("round_robin", [6.0, 1.0, 7.0]), ("least_requests", [6.0, 1.0, 3.0])])
def test_a_request_stays_with_its_rank(dispatch: str, ends: list[float]) -> None:
    """One seat a rank, 1 s a step: C comes while A holds rank 0's seat and rank 1 has nothing."""
    work = requests([0.0, 0.0, 1.5], [4, 4, 4], [6, 1, 1])
    done = serve((group(2, dispatch, max_num_seqs=1, max_num_batched_tokens=8), Linear(), work))
    assert done.last_token_s.tolist() == ends


def test_a_rank_has_only_its_own_cache() -> None:
    """Two ranks of 6 blocks of 4 tokens hold no request of 30, though all 12 blocks are free; nor does a prompt take
    more than one rank's budget."""
    made = group(2, max_num_seqs=2, max_num_batched_tokens=8, kv_blocks=6)
    done = serve((made, Linear(), requests([0.0, 0.0], [28, 16], [3, 2])))
    assert [STATUS[code] for code in done.status] == ["rejected: larger than the KV cache", "completed"]
    assert done.last_token_s[1] == 3.0  # two chunks, then a decode
    assert serve((replace(made, rank_dispatch=""), *(Linear(), requests([0.0, 0.0], [28, 16], [3, 2])))).completed.all()


def test_prefixes_are_cached_by_rank() -> None:
    """The second of two equal prompts hits where the first ran, and nowhere else."""
    work = requests([0.0, 5.0, 10.0], [8, 8, 8], [1, 1, 1], hashes=[[7, 8]] * 3)
    hits = serve((group(2, prefix_caching=True), Linear(), work)).cached_tokens.tolist()
    assert hits == [0, 0, 4]


def test_tensorrt_waits_until_every_rank_has_a_prompt() -> None:
    """balance_steps: B comes while both ranks decode and only one has a prompt; C, a step later, completes the set."""
    both = requests([0.0, 0.0, 1.5, 3.5], [4, 4, 4, 4], [20, 20, 1, 1])
    work = group(2, "least_tokens", policy="trtllm", balance_steps=9, max_output_tokens=20)
    done = serve((work, Linear(), both))
    assert done.started_s.tolist() == [0.0, 0.0, 4.0, 4.0]
    alone = serve((work, Linear(), requests([0.0, 0.0, 1.5], [4, 4, 4], [20, 20, 1])))
    assert alone.started_s[2] == 9.0  # nobody completes it: nine steps after prompts last could start it goes alone


@st.composite
def at_once(draw: st.DrawFn) -> tuple[EngineRules, RequestSet]:
    made, _, work = draw(worlds())
    made = replace(made, lag=0, rank_dispatch="round_robin", balance_steps=0, receiving=None)
    made = replace(
        made, host=host_times(), max_output_tokens=max(made.max_output_tokens, int(work.output_tokens.max()))
    )
    return made, replace(work, arrival_s=np.zeros(work.n), concurrency=None)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(at_once(), st.sampled_from([0.0, TICK / 4]))
def test_ranks_that_share_nothing_are_replicas(world: tuple[EngineRules, RequestSet], decode_s: float) -> None:
    """Where a step takes the same time whatever it holds nobody waits for anybody: the same as replicas behind a router
    that deals in turn. Where it does not, a group is never ahead of them. (Scheduled ahead, a rank whose only seat is
    freed by a step misses the next, which others have begun.)"""
    engine, work = world
    timer, options = Linear(TICK, decode_s), RunOptions(check_invariants=True)
    apart = run_rules(engine.of_rank(), timer, work, engine.attention_ranks, options)
    done = run_rules(engine, timer, work, 1, options)
    np.testing.assert_array_equal(done.status, apart.status)
    np.testing.assert_array_equal(done.preemptions, apart.preemptions)
    ended = done.completed
    if decode_s:
        assert (done.last_token_s >= apart.last_token_s - 1e-9)[ended].all()
    else:
        np.testing.assert_allclose(done.last_token_s, apart.last_token_s, rtol=0, atol=1e-9)
        np.testing.assert_allclose(done.first_token_s, apart.first_token_s, rtol=0, atol=1e-9)


def _forgets_a_rank(parts: Sequence[Batch | None]) -> Batch:
    batch = together(parts)
    batch.decodes -= next((part.decodes for part in parts if part is not None), 0)
    return batch


FAULTS: dict[str, tuple[str, object]] = {
    "a rank is not in the step": ("simulator.schedulers.data_parallel.together", _forgets_a_rank),
    "blocks are freed on another rank": (
        "simulator.schedulers.data_parallel.Lockstep.rank_of",
        lambda self, request: self.ranks[(self._place[request] + 1) % 2],
    ),
    "no rank steps": (
        "simulator.schedulers.data_parallel.Lockstep._part",
        lambda self, rank: self.ranks and Batch(),  # noqa: ARG005
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_faults_are_caught(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    work = requests([0.0] * 6, [8, 4, 6, 9, 3, 5], [9, 3, 5, 2, 8, 6])
    world = group(2, max_num_seqs=2, max_num_batched_tokens=8, kv_blocks=12), Linear(), work
    serve(world)
    monkeypatch.setattr(*FAULTS[fault])
    with pytest.raises((InvariantViolation, RuntimeError, KeyError)):
        serve(world)


def test_a_rank_with_more_than_its_share_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    world = group(2, max_num_batched_tokens=8), Linear(), requests([0.0], [30], [2])
    made = make_scheduler(world[0])
    monkeypatch.setattr("simulator.engine.replica.make_scheduler", lambda rules, beside=None: _greedy(made))  # noqa: ARG005
    with pytest.raises(InvariantViolation, match="tokens in a batch"):
        serve(world)


def _greedy(made: Scheduler) -> Scheduler:
    assert isinstance(made, Lockstep)
    for rank in made.ranks:
        rank.rules = replace(rank.rules, max_num_batched_tokens=64)
    return made


class Seen(NamedTuple):
    """A rank as dispatch sees it."""

    n_waiting: int
    n_running: int
    used_fraction: float
    prompt_tokens: int

    @property
    def n_requests(self) -> int:
        return self.n_waiting + self.n_running


def test_dispatch_by_hand() -> None:
    """Ranks of 5, 2 and 4 requests, of which the second's cache is full and one request waits there."""
    ranks = [Seen(0, 5, 0.9, 500), Seen(1, 1, 0.9, 900), Seen(0, 4, 0.4, 700)]
    chosen = {name: dispatch().choose(0, ranks) for name, dispatch in DISPATCHES.items() if name != "random"}
    # 5, 2 + 6 x 0.4, 4; 5, 4 + 1, 4; at most 4 each, of ranks with fewer the one with 700 tokens
    assert chosen == {"round_robin": 0, "least_requests": 2, "queue_score": 2, "least_tokens": 2}
    even = [Seen(0, 1, 0.1, 10)] * 3
    for name in ("least_requests", "queue_score"):
        dispatch = DISPATCHES[name]()
        assert [dispatch.choose(0, even) for _ in range(4)] == [0, 1, 2, 0]


@pytest.mark.parametrize("ranks", [3, 8])
def test_drawn_ranks_are_even_and_independent_of_each_other(ranks: int) -> None:
    """Chi-squared of the ranks of 8,000 requests, and of pairs of ranks of neighbours, within three standard errors."""
    seen = [Seen(0, 0, 0.0, 0)] * ranks
    drawn = np.array([DISPATCHES["random"]().choose(i, seen) for i in range(8000)])
    for codes, cells in ((drawn, ranks), (drawn[:-1] * ranks + drawn[1:], ranks**2)):
        expected = len(codes) / cells
        squares = ((np.bincount(codes, minlength=cells) - expected) ** 2 / expected).sum()
        assert abs(squares - (cells - 1)) < 3 * np.sqrt(2 * (cells - 1))


def test_drawn_ranks_queue_while_others_have_nothing() -> None:
    """One seat a rank, 1 s a step: in turn, eight prompts take one step; drawn, as many as the fullest rank has."""
    work = requests([0.0] * 8, [4] * 8, [1] * 8)
    seen = [Seen(0, 0, 0.0, 0)] * 8
    fullest = max(np.bincount([DISPATCHES["random"]().choose(i, seen) for i in range(8)]))
    for dispatch, last_s in (("round_robin", 1.0), ("random", float(fullest))):
        done = serve((group(8, dispatch, max_num_seqs=1, max_num_batched_tokens=4), Linear(), work))
        assert done.last_token_s.max() == last_s
    assert fullest > 1
