"""Laws of requests that wait for others, and of the prefixes that they share."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from catalogs.errors import InputError
from catalogs.workloads.files import parse_workload_file
from catalogs.workloads.request_set import RequestSet
from catalogs.workloads.sessions.request_graph import RequestGraph
from catalogs.workloads.sessions.texts import TextTree, TextUnits
from simulator.analysis.prefix_hits import PrefixHits
from simulator.cluster.cluster import RunOptions
from simulator.cluster.run import Run
from simulator.cluster.simulate import run_rules
from simulator.schedulers.rules import EngineRules
from tests.simulator.worlds import Linear, requests, rules

AGENTS = {
    "input_tokens": {"uniform": {"low": 1, "high": 40}},
    "output_tokens": {"uniform": {"low": 1, "high": 20}},
    "turns": {
        "per_session": {"uniform": {"low": 1, "high": 5}},
        "gap_s": {"tool": 2.0, "human": {"lognormal": {"mean_s": 9.0, "cv": 1.0}}, "human_share": 0.3},
        "first_input_tokens": {"uniform": {"low": 20, "high": 90}},
        "subagents": {"share": 0.3, "turns": 2, "first_input_tokens": 30, "parallel": 2},
        "restarts": {"share": 0.1, "input_tokens": 35, "above_tokens": 250},
    },
}


def drawn(seed: int, n: int, steady: bool = False, **changes: object) -> RequestSet:
    """Return n requests of agents in a closed loop of three."""
    written = {"arrivals": {"closed_loop": {"concurrency": 3}}, **AGENTS, **changes}
    content = parse_workload_file(written, Path(), "test")[1]
    return replace(content, steady_sessions=steady).draw(seed, n, 1.0)  # type: ignore[union-attr, call-arg, type-var]


def serve(work: RequestSet, engine: EngineRules, replicas: int = 1, router: str = "round_robin") -> Run:
    """Serve requests and check every invariant."""
    options = RunOptions(check_invariants=True, router=router)
    return run_rules(engine, Linear(base_s=0.125, prompt_token_s=1 / 64), work, replicas, options)


def by_hand(waits: list[tuple[int, int]], gap_s: list[float], **columns: object) -> RequestSet:
    """Return one request of 8 + 2 tokens for each gap, in one session unless given."""
    n = len(gap_s)
    work = requests([0.0] * n, [8] * n, [2] * n)
    graph = RequestGraph(np.array(waits, dtype=np.int64).reshape(-1, 2), np.array(gap_s))
    return replace(work, **{"sessions": np.zeros(n, dtype=np.int64), "graph": graph, **columns})  # type: ignore[arg-type]


def test_turns_spawned_agents_and_their_join_follow_the_clock() -> None:
    # Steps take 1 s: a request of two tokens takes 2 s alone. Turn 0; 1 and 2 at once after it; 3 waits for both.
    work = by_hand([(1, 0), (2, 0), (3, 1), (3, 2)], [0.5, 1.0, 1.5, 2.0])
    run = run_rules(rules(), Linear(), work, options=RunOptions(check_invariants=True))
    assert run.arrival_s.tolist() == [0.5, 3.5, 4.0, 8.5]
    assert run.last_token_s.tolist() == [2.5, 5.5, 6.5, 10.5]


def test_a_closed_loop_takes_a_session_when_the_last_request_of_the_one_before_has_ended() -> None:
    sessions = np.array([0, 0, 1, 2])
    work = by_hand([(1, 0)], [0.0, 1.0, 0.0, 3.0], sessions=sessions, concurrency=1)
    run = run_rules(rules(), Linear(), work, options=RunOptions(check_invariants=True))
    assert run.arrival_s.tolist() == [0.0, 3.0, 5.0, 10.0]


def test_sessions_of_an_open_loop_begin_at_their_arrivals() -> None:
    work = by_hand([(1, 0)], [0.0, 1.0, 0.0], sessions=np.array([0, 0, 1]), arrival_s=np.array([4.0, 0.0, 9.0]))
    run = run_rules(rules(), Linear(), work, options=RunOptions(check_invariants=True))
    assert run.arrival_s.tolist() == [4.0, 7.0, 9.0]


def test_an_idle_time_of_the_whole_system_is_cut_and_no_other() -> None:
    # Two sessions at once. A request takes 2 s alone: 0 ends at 2 and 1 would follow at 102; 2 ends at 9 and 3 at 59.
    work = by_hand([(1, 0), (3, 2)], [0.0, 100.0, 7.0, 50.0], sessions=np.array([0, 0, 1, 1]), concurrency=2)
    graph = work.graph
    assert graph is not None
    work = replace(work, graph=replace(graph, longest_idle_s=10.0))
    run = run_rules(rules(), Linear(), work, options=RunOptions(check_invariants=True))
    # From 2 s, 2 is due in 5 s: nothing is cut. From 9 s, 3 is due in 50 s and 1 in 93 s: 40 s are cut. From 21 s, 1 is
    # due in 41 s: 31 s are cut.
    assert run.arrival_s.tolist() == [0.0, 31.0, 7.0, 19.0]


@pytest.mark.parametrize(("pair", "gap"), [((0, 1), 0.0), ((1, 1), 0.0), ((2, 0), 0.0), ((1, -1), 0.0), ((1, 0), -1.0)])
def test_a_graph_with_a_cycle_or_a_negative_gap_is_refused(pair: tuple[int, int], gap: float) -> None:
    with pytest.raises(InputError):
        run_rules(rules(), Linear(), by_hand([pair], [0.0, gap]))


@given(st.integers(0, 99), st.booleans(), st.sampled_from([30, 60, 4000]))
@settings(max_examples=25, deadline=None)
def test_no_turn_is_sent_before_its_parents_end(seed: int, steady: bool, blocks: int) -> None:
    work = drawn(seed, 40, steady)
    run = serve(work, rules(kv_blocks=blocks, prefix_caching=True, max_num_seqs=3))
    graph = work.graph
    assert graph is not None
    assert run.completed.all() or blocks < 4000
    for later, earlier in graph.waits.tolist():
        if run.completed[earlier]:
            assert run.arrival_s[later] >= run.last_token_s[earlier] + graph.gap_s[later] - 1e-9


@given(st.integers(0, 99), st.sampled_from([1, 4, 16]))
@settings(max_examples=25, deadline=None)
def test_an_endless_cache_realises_the_theoretical_rate_exactly_and_no_cache_none(seed: int, size: int) -> None:
    # One client: no request is in progress when another one looks for what it computes.
    work = replace(drawn(seed, 30, turns={**AGENTS["turns"], "subagents": None}), concurrency=1)  # type: ignore[dict-item]
    endless = serve(work, rules(kv_blocks=100_000, block_size=size, prefix_caching=True))
    hits = PrefixHits.of(endless)
    assert hits.cached_tokens == hits.seen_tokens
    assert endless.completed.all()
    none = PrefixHits.of(serve(work, rules(kv_blocks=100_000, block_size=size, prefix_caching=False)))
    assert (none.cached_tokens, none.seen_tokens) == (0, hits.seen_tokens)
    assert hits.seen_tokens > 0 or not len(work.graph.waits)  # type: ignore[union-attr]


@given(st.integers(0, 99), st.sampled_from([60, 120, 400]))
@settings(max_examples=25, deadline=None)
def test_a_limited_cache_never_exceeds_the_theoretical_rate(seed: int, blocks: int) -> None:
    run = serve(drawn(seed, 40), rules(kv_blocks=blocks, prefix_caching=True))
    hits = PrefixHits.of(run)
    assert hits.cached_tokens <= hits.seen_tokens


@given(st.integers(0, 99), st.sampled_from([2, 3]))
@settings(max_examples=25, deadline=None)
def test_session_affinity_never_hits_less_than_round_robin(seed: int, replicas: int) -> None:
    work = drawn(seed, 40)
    engine = rules(kv_blocks=100_000, prefix_caching=True)
    turns, alone = (PrefixHits.of(serve(work, engine, replicas, name)) for name in ("round_robin", "session_affinity"))
    assert alone.cached_tokens >= turns.cached_tokens


@given(st.integers(0, 99), st.integers(2, 4))
@settings(max_examples=15, deadline=None)
def test_parts_of_a_load_hold_whole_sessions(seed: int, parts: int) -> None:
    whole = drawn(seed, 40, arrivals={"poisson": {"requests_per_s": 0.5}})
    part = whole.every(parts)
    assert part.graph is not None
    assert whole.graph is not None
    assert part.sessions is not None
    assert whole.sessions is not None
    kept = np.isin(whole.sessions, part.sessions)
    assert kept.sum() == part.n
    assert len(part.graph.waits) == kept[whole.graph.waits[:, 0]].sum()
    part.graph.checked()


# --- texts ------------------------------------------------------------------------------------------------------------


def _tokens(tree: TextTree, index: int) -> list[tuple[int, int]]:
    """Return the tokens of a request as (text that they belong to, position), one by one."""
    text, n = int(tree.text[index]), int(tree.known_tokens[index])
    found = []
    for at in range(n):
        owner = text
        while tree.parent[owner] >= 0 and at < tree.kept_tokens[owner]:
            owner = int(tree.parent[owner])
        found.append((owner, at))
    return found


@given(st.integers(0, 99), st.sampled_from([1, 4, 16, 30]), st.sampled_from([None, 1, 4]))
@settings(max_examples=40, deadline=None)
def test_equal_units_are_equal_tokens_and_common_prefixes_are_found_to_the_block(
    seed: int, size: int, grain: int | None
) -> None:

    tree = drawn(seed, 12, shared_prefix={"tokens": 37, "groups": 2}).block_hashes
    assert isinstance(tree, TextTree)
    units = TextUnits(tree, size, grain)
    content: dict[int, list[tuple[int, int]]] = {}
    rows = []
    for index in range(len(tree)):
        tokens, (keys, ends) = _tokens(tree, index), units.of(index)
        limits = [0, *(ends if ends is not None else range(1, len(keys) + 1))]
        assert limits[-1] == len(tokens) // size
        assert all(b - a <= units.grain for a, b in pairwise(limits))
        for key, end in zip(keys, limits[1:], strict=True):
            assert content.setdefault(key, tokens[: end * size]) == tokens[: end * size]
        rows.append((tokens, dict(zip(keys, limits[1:], strict=True))))
    for tokens, ends_of in rows:
        for others, other_ends in rows:
            common = next((i for i, (a, b) in enumerate(zip(tokens, others, strict=False)) if a != b), None)
            common = min(len(tokens), len(others)) if common is None else common
            assert max((ends_of[key] for key in ends_of.keys() & other_ends.keys()), default=0) == common // size
