"""KV blocks in host memory and on disk: tiers by hand, whole timelines by hand, laws and fast-forward at random."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from catalogs.errors import InputError
from catalogs.workloads.files import parse_workload_file
from catalogs.workloads.request_set import RequestSet
from simulator.analysis.chrome_trace import write_chrome_trace
from simulator.cache.kv_cache import KvCache
from simulator.cache.offload import CacheTier, HostCache, OffloadRules, TierPort
from simulator.cluster.cluster import Cluster, RunOptions
from simulator.cluster.run import Run
from simulator.cluster.simulate import run_rules
from simulator.core.invariants import InvariantViolation
from simulator.core.request import Request
from simulator.engine.event_log import EventLog
from simulator.engine.invariants import check_host
from simulator.schedulers.registry import make_scheduler
from simulator.schedulers.rules import EngineRules
from simulator.schedulers.vllm.v1_offload import OffloadingV1
from tests.simulator.worlds import Linear, requests, rules

BOTH = pytest.mark.parametrize("fast", [True, False])
HOST = OffloadRules(host_blocks=100, host_s_per_block=0.25)


class Hands:
    now = 0.0


def simulate(engine: EngineRules, work: RequestSet, fast: bool = True, timer: Linear | None = None) -> Run:
    return run_rules(engine, timer or Linear(), work, 1, RunOptions(fast_forward=fast, check_invariants=True))


def test_a_tier_forgets_the_longest_unused_and_never_what_is_read_or_written() -> None:
    tier = CacheTier(4)
    for key in (1, 2, 3, 4):
        tier.add(key, 1, 5.0 if key == 3 else 0.0)
    tier.touch(1)
    entry = tier.get(2)
    assert entry is not None
    entry.readers = 1
    assert tier.free_up(2, 1.0) == 2  # 2 is read, 3 still written: 4 and then 1 go
    assert [e.key for e in tier.entries] == [2, 3]
    assert tier.free_up(3, 1.0) == 2  # nothing else can go
    with pytest.raises(ValueError, match="3 blocks requested, 2 free"):
        tier.add(9, 3, 0.0)


def test_blocks_nobody_shares_go_one_by_one() -> None:
    tier = CacheTier(10)
    tier.add(None, 10, 0.0)
    assert tier.free_up(3, 0.0) == 3
    assert [(e.key, e.count) for e in tier.entries] == [(None, 7)]


def test_copies_of_one_direction_queue() -> None:
    port = TierPort(0.25)
    assert [port.carry(4, 1.0), port.carry(2, 1.5), port.carry(1, 9.0)] == [2.0, 2.5, 9.25]


def test_what_the_disk_holds_comes_through_the_host() -> None:
    clock = Hands()
    cache = HostCache(OffloadRules(2, 0.25, 4, 1.0), KvCache(100, 4, prefix_caching=True), clock)
    request = Request(0, 17, (10, 11, 12, 13))
    for at, tokens in ((0.0, 8), (10.0, 16)):  # two units each: the second pair pushes the first out of the host
        clock.now = at
        copy = cache.due(request, tokens)
        assert copy is not None
        cache.store(copy)
    clock.now = 20.0
    assert [e.key for e in cache.host.entries] == [12, 13]
    assert [e.key for e in cache.disk.entries] == [10, 11, 12, 13]
    assert cache.find(request.keys, 0) == 4
    request.fetching, request.fetched_blocks = request.keys, 4
    cache.reserve(request)
    assert cache.fetch(request) == 23.0  # two units off the disk in 2 s, then four over the link in 1 s
    assert [e.key for e in cache.host.entries] == [12, 13]  # both are read: no room to keep the others
    cache.finish_fetch(request)
    check_host(cache)


def test_a_copy_is_a_hit_only_when_it_has_arrived() -> None:
    clock = Hands()
    cache = HostCache(HOST, KvCache(100, 4, prefix_caching=True), clock)
    request = Request(0, 9, (1, 2))
    copy = cache.due(request, 9)
    assert copy is not None
    assert copy == ((1, 2), 0, (1, 1))
    cache.store(copy)  # two blocks, 0.5 s
    for now, hits in ((0.0, 0), (0.499, 0), (0.5, 2)):
        clock.now = now
        assert cache.find((1, 2), 0) == hits
    assert cache.due(request, 9) is None  # never twice
    assert cache.due(request, 17) == ((), 2, ())  # blocks beyond the known contents are the request's own


@BOTH
def test_two_turns_of_a_session_by_hand(fast: bool) -> None:
    """A device of 8 blocks of 4 tokens. Turn 1: 16 tokens of prompt, 1 of output, 4 blocks known. A stranger with 28
    tokens needs 7 and evicts them. Turn 2 has a prompt of 24 tokens whose first 16 are turn 1's.

    Steps take 1 s and 1/8 s more a prompt token; a block takes 1/4 s over the link.
    """
    engine = rules(kv_blocks=8, offload=HOST, admit_whole_prompt=True)
    work = requests(
        [0.0, 10.0, 20.0],
        [16, 28, 24],
        [1, 1, 2],
        [[1, 2, 3, 4], [11, 12, 13, 14, 15, 16, 17], [1, 2, 3, 4, 5, 6]],
    )
    timer = Linear(prompt_token_s=0.125)
    run = simulate(engine, work, fast, timer)
    # Turn 1: [0, 3). Its four blocks reach the host at 4. The stranger: [10, 14.5); of turn 1 one block is left on the
    # device: freed last block first, the seven newly taken are the four never used, then blocks 4, 3 and 2.
    assert run.first_token_s.tolist()[:2] == [3.0, 14.5]
    # Turn 2 at 20: block 1 is hit, three come over the link until 20.75; then 8 tokens in 1 + 8/8 s, then a decode.
    assert run.started_s[2] == 20.75
    assert run.first_token_s[2] == 22.75
    assert run.last_token_s[2] == 23.75
    assert run.cached_tokens.tolist() == [0, 0, 16]
    without = simulate(replace(engine, offload=None), work, fast, timer)
    assert without.cached_tokens.tolist() == [0, 0, 4]
    assert without.first_token_s[2] == 20.0 + 1.0 + 20 / 8  # 20 tokens to compute


def test_a_trace_shows_what_comes_from_the_host(tmp_path: Path) -> None:
    """Turn 2 of the session above: three blocks over the link from 20 to 20.75."""
    engine = rules(kv_blocks=8, offload=HOST, admit_whole_prompt=True)
    contents = [[1, 2, 3, 4], [11, 12, 13, 14, 15, 16, 17], [1, 2, 3, 4, 5, 6]]
    work = requests([0.0, 10.0, 20.0], [16, 28, 24], [1, 1, 2], contents)
    run = run_rules(engine, Linear(prompt_token_s=0.125), work, 1, RunOptions(event_log=EventLog()))
    write_chrome_trace(run, tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    fetches = [(e["name"], e["ph"], e["ts"], e["pid"]) for e in events if e.get("cat") == "fetch"]
    name = "KV of request 2 from the host"
    assert fetches == [(name, "b", 20e6, 0), (name, "e", 20.75e6, 0)]


@BOTH
def test_others_are_served_while_one_waits_for_its_blocks(fast: bool) -> None:
    engine = rules(kv_blocks=9, offload=OffloadRules(100, 2.0), admit_whole_prompt=True)
    work = requests(
        [0.0, 20.0, 40.0, 40.0],
        [16, 32, 17, 4],
        [1, 1, 1, 12],
        [[1, 2, 3, 4], [11, 12, 13, 14, 15, 16, 17, 18], [1, 2, 3, 4], []],
    )
    run = simulate(engine, work, fast)
    # Turn 1 leaves 4 blocks, the stranger takes 5 unused and blocks 4, 3 and 2. At 40 three blocks start on their way,
    # with the step [40, 41) of the fourth request: they take 6 s, to 46, too late for the schedule made then, as an
    # arrival would be; the next one runs [47, 48).
    assert run.first_token_s.tolist() == [1.0, 21.0, 48.0, 41.0]
    assert run.last_token_s[3] == 52.0
    assert run.cached_tokens.tolist() == [0, 0, 16, 0]


@BOTH
def test_the_schedule_after_the_last_block_sees_it(fast: bool) -> None:
    """A step ahead: the copy starts with the step it was found in, and the landing is seen by the next schedule."""
    engine = rules(kv_blocks=9, offload=OffloadRules(100, 0.3125), admit_whole_prompt=True, lag=1)
    work = requests(
        [0.0, 20.0, 40.0, 40.5],
        [16, 32, 4, 17],
        [1, 1, 12, 1],
        [[1, 2, 3, 4], [11, 12, 13, 14, 15, 16, 17, 18], [], [1, 2, 3, 4]],
    )
    run = simulate(engine, work, fast)
    # The third takes the last block of turn 1 that the device still had. The fourth arrives in [40, 41), is considered
    # at 41 for the step [42, 43), and its four blocks come in [42, 43.25). The schedule at 44 sees them: [45, 46).
    assert run.started_s[3] == 45.0
    assert run.first_token_s[3] == 46.0


@BOTH
def test_turns_of_a_session_hit_their_history_by_hand(fast: bool) -> None:
    """Sessions of three turns: 64 new tokens and 33 of answer each, a minute of thought between, blocks of 16.

    Prompts are 64, 161 and 258 tokens. Of a turn all tokens but the last have been computed: 96, then 193, so a next
    turn finds 96 and 192 of its prompt. The device holds one session and not two, so nearly all comes from the host.
    """
    recipe = {
        "arrivals": {"poisson": {"requests_per_s": 1.0}},
        "requests": 60,
        "input_tokens": {"constant": 64},
        "output_tokens": {"constant": 33},
        "turns": {"per_session": {"constant": 3}, "think_time_s": 60},
    }
    _, content, _ = parse_workload_file(recipe, Path(), "w.yaml")
    work = content.draw(1, 60, 1.0)
    hits = {64: 0, 161: 96, 258: 192}
    by_hand = [hits[n] for n in work.input_tokens.tolist()]
    timer = Linear(base_s=0.001)
    engine = rules(block_size=16, kv_blocks=20, max_num_batched_tokens=512, admit_whole_prompt=True)
    stored = replace(engine, offload=OffloadRules(10_000, 1e-5))
    run = simulate(stored, work, fast, timer)
    assert run.cached_tokens.tolist() == by_hand
    assert run.offloads[0].fetches[:, 3].sum() * 16 <= sum(by_hand)
    without = simulate(engine, work, fast, timer)
    assert without.cached_tokens.sum() < 0.3 * sum(by_hand)
    # A host of 40 blocks forgets the oldest sessions; one of no blocks is none at all.
    few = simulate(replace(engine, offload=OffloadRules(40, 1e-5)), work, fast, timer)
    assert without.cached_tokens.sum() < few.cached_tokens.sum() < sum(by_hand)


class FailsWhileFetching:
    """Replica 0 dies at 41."""

    def start(self, cluster: Cluster) -> None:
        cluster.timetable.at(41.0, lambda: cluster.fail(cluster.replicas[0]))


@BOTH
def test_a_replica_that_dies_takes_its_host_memory_along(fast: bool) -> None:
    engine = rules(kv_blocks=9, offload=OffloadRules(100, 2.0), admit_whole_prompt=True)
    texts = [[1, 2, 3, 4], [], [11, 12, 13, 14, 15, 16, 17, 18], [], [1, 2, 3, 4], []]
    work = requests([0.0, 0.0, 20.0, 20.0, 40.0, 40.0], [16, 4, 32, 4, 17, 4], [1, 1, 1, 1, 1, 1], texts)
    options = RunOptions(fast_forward=fast, check_invariants=True, controllers=(FailsWhileFetching(),))
    run = run_rules(engine, Linear(), work, 2, options)
    assert run.completed.all()
    assert run.restarts == 1
    assert run.replica[4] == 1  # it fetched on replica 0 from 40 on, and begins again on the other
    assert run.cached_tokens[4] == 0
    assert run.first_token_s[4] == 42.0
    cut = run_rules(engine, Linear(), work, 1, replace(options, controllers=(), horizon_s=43.0))
    assert cut.unfinished[4]  # on its way when the run is cut off


def test_only_vllm_v1_offloads() -> None:
    with pytest.raises(InputError, match="KV offload is simulated only for vllm-v1: got 'sglang'"):
        make_scheduler(rules(policy="sglang", offload=HOST))
    with pytest.raises(InputError, match="KV offload allows only one batch in flight"):
        make_scheduler(rules(pipeline_stages=2, offload=HOST))


@st.composite
def worlds(draw: st.DrawFn) -> tuple[EngineRules, RequestSet, Linear]:
    """Sessions of a few turns on a device that holds about one of them, a small host and perhaps a disk."""
    seqs = draw(st.integers(1, 4))
    offload = OffloadRules(
        host_blocks=draw(st.sampled_from([0, 3, 12, 40])),
        host_s_per_block=draw(st.sampled_from([0.0, 1 / 16, 0.5, 3.0])),
        disk_blocks=draw(st.sampled_from([0, 0, 20])),
        disk_s_per_block=draw(st.sampled_from([1 / 16, 1.0])),
    )
    engine = rules(
        max_num_seqs=seqs,
        max_num_batched_tokens=draw(st.integers(seqs, 40)),
        kv_blocks=draw(st.integers(20, 40)),
        admit_whole_prompt=draw(st.booleans()),
        lag=draw(st.integers(0, 1)),
        offload=offload,
    )
    n = draw(st.integers(2, 14))
    families = draw(st.lists(st.integers(0, 3), min_size=n, max_size=n))
    inputs = draw(st.lists(st.integers(1, 40), min_size=n, max_size=n))
    outputs = draw(st.lists(st.integers(1, 30), min_size=n, max_size=n))
    gaps = draw(st.lists(st.sampled_from([0, 0, 1, 8, 40]), min_size=n, max_size=n))
    known = [(inputs[r] + (outputs[r] - 1 if f else 0)) // 4 for r, f in enumerate(families)]
    hashes = [[100 * f + i for i in range(k)] for f, k in zip(families, known, strict=True)]
    concurrency = draw(st.none() | st.integers(1, 4))
    arrivals = (np.cumsum(gaps) / 4).tolist() if concurrency is None else [0.0] * n
    timer = Linear(base_s=draw(st.sampled_from([0.25, 1.0])), context_s=draw(st.sampled_from([0.0, 1 / 64])))
    return engine, requests(arrivals, inputs, outputs, hashes, concurrency), timer


@settings(max_examples=150, deadline=None)
@given(worlds(), st.sampled_from([2, 4, 8]))
def test_fast_forward_changes_nothing(world: tuple[EngineRules, RequestSet, Linear], hash_tokens: int) -> None:
    engine, work, timer = world
    work = replace(work, hash_block_tokens=hash_tokens)
    slow, fast = (simulate(engine, work, fast, timer) for fast in (False, True))
    assert fast.completed.all()
    for name in ("status", "preemptions", "cached_tokens"):
        np.testing.assert_array_equal(getattr(slow, name), getattr(fast, name), err_msg=name)
    for name in ("started_s", "first_token_s", "last_token_s"):
        np.testing.assert_allclose(getattr(slow, name), getattr(fast, name), rtol=0, atol=1e-9, err_msg=name)


@settings(max_examples=100, deadline=None)
@given(worlds())
def test_a_host_without_room_changes_nothing(world: tuple[EngineRules, RequestSet, Linear]) -> None:
    engine, work, timer = world
    none = simulate(replace(engine, offload=OffloadRules(0, 0.25)), work, True, timer)
    plain = simulate(replace(engine, offload=None), work, True, timer)
    np.testing.assert_array_equal(none.last_token_s, plain.last_token_s)
    np.testing.assert_array_equal(none.cached_tokens, plain.cached_tokens)


def test_a_request_that_hides_the_blocks_it_waits_for_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OffloadingV1, "holding_requests", lambda _self: [])
    engine = rules(kv_blocks=9, offload=OffloadRules(100, 2.0), admit_whole_prompt=True)
    texts = [[1, 2, 3, 4], [11, 12, 13, 14, 15, 16, 17, 18], [1, 2, 3, 4], []]
    with pytest.raises(InvariantViolation, match=r"requests hold \d+ blocks, the cache counts \d+"):
        simulate(engine, requests([0.0, 20.0, 40.0, 40.0], [16, 32, 17, 4], [1, 1, 1, 12], texts))


def test_a_tier_that_loses_blocks_is_caught() -> None:
    cache = HostCache(HOST, KvCache(100, 4, prefix_caching=True), Hands())
    cache.host.add(1, 3, 0.0)
    cache.host.free += 1
    with pytest.raises(InvariantViolation, match="host tier: 98 free"):
        check_host(cache)
