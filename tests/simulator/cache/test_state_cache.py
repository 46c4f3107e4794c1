"""States of hybrid models beside blocks of attention: worlds by hand, and laws."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from catalogs.deployments.queueing import FCFS
from catalogs.workloads.request_set import RequestSet
from simulator.analysis.prefix_hits import PrefixHits
from simulator.cache.offload import OffloadRules
from simulator.cluster.cluster import RunOptions
from simulator.cluster.run import Run
from simulator.cluster.simulate import run_rules
from simulator.schedulers.rules import EngineRules
from tests.simulator.cluster.test_session_clients import AGENTS, drawn
from tests.simulator.worlds import Linear, requests, rules

#: Three prompts of four blocks each, twice in turn.
ROUNDS = [[1, 2, 3, 4], [11, 12, 13, 14], [21, 22, 23, 24]] * 2


def engine(kv_blocks: int = 80, state_blocks: int = 2, **changes: Any) -> EngineRules:
    return rules(policy="vllm-v1", kv_blocks=kv_blocks, prefix_caching=True, state_blocks=state_blocks, **changes)


def serve(work: RequestSet, of: EngineRules, fast_forward: bool = True) -> Run:
    """Serve requests and check every invariant."""
    options = RunOptions(check_laws=True, fast_forward=fast_forward)
    return run_rules(of, Linear(base_s=0.125, prompt_token_s=1 / 64), work, 1, options)


@pytest.mark.parametrize(
    ("kv_blocks", "state_blocks", "found"),
    [
        (24, 2, [0, 0, 0, 16, 16, 16]),  # three times four blocks and a state of two, and five others
        (15, 0, [0, 0, 0, 16, 16, 16]),  # without states, three times four blocks and three others
        (15, 2, [0, 0, 0, 0, 0, 0]),  # the third prompt takes the state of the first, whose first block is still there
    ],
)
def test_a_prompt_without_its_state_is_computed_again(kv_blocks: int, state_blocks: int, found: list[int]) -> None:
    """A request of 17 tokens holds five blocks, and the state at its sixteenth token takes `state_blocks`."""
    work = requests([0, 3, 6, 9, 12, 15], [17] * 6, [1] * 6, ROUNDS)
    assert serve(work, engine(kv_blocks, state_blocks)).cached_tokens.tolist() == found


def test_the_next_turn_finds_the_block_that_the_answer_filled() -> None:
    """Eight tokens and eleven generated ones, of which ten are in the cache, fill four blocks, two while decoding."""
    work = requests([0, 20], [8, 21], [11, 1], [[1, 2, 3, 4], [1, 2, 3, 4, 5]])
    assert serve(work, engine()).cached_tokens.tolist() == [0, 16]


def test_a_prefix_inside_a_chunk_has_no_state() -> None:
    """The first prompt is computed to its last whole block at once: no state is kept after its first two blocks."""
    work = requests([0, 10, 20], [17, 17, 17], [1] * 3, [[1, 2, 3, 4], [1, 2, 33, 34], [1, 2, 33, 34]])
    assert serve(work, engine()).cached_tokens.tolist() == [0, 0, 16]
    assert serve(work, engine(state_blocks=0)).cached_tokens.tolist() == [0, 8, 16]
    small = engine(max_num_batched_tokens=8)  # chunks of two blocks
    assert serve(work, small).cached_tokens.tolist() == [0, 8, 16]


@pytest.mark.parametrize(
    ("state_blocks", "caching", "steps"),
    [
        (0, True, 2),  # 24 and 16 tokens
        (2, False, 2),  # states are not kept
        (2, True, 3),  # 16, 16 and 8 tokens
    ],
)
def test_chunks_end_where_blocks_end(state_blocks: int, caching: bool, steps: int) -> None:
    of = rules(
        max_num_batched_tokens=24, block_size=16, state_blocks=state_blocks, prefix_caching=caching, policy="vllm-v1"
    )
    run = serve(requests([0], [40], [1]), of)
    assert run.ttft_s.tolist() == [steps * 0.125 + 40 / 64]


def test_a_block_larger_than_the_token_budget_is_computed_in_parts() -> None:
    of = engine(max_num_batched_tokens=8, block_size=16)
    run = serve(requests([0], [40], [1]), of)
    assert run.ttft_s.tolist() == [5 * 0.125 + 40 / 64]


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 999), st.sampled_from([120, 300, 5000]), st.integers(1, 3))
def test_no_more_than_was_sent_before_is_found(seed: int, blocks: int, state: int) -> None:
    run = serve(drawn(seed, 30), engine(blocks, state))
    hits = PrefixHits.of(run)
    assert run.completed.all()
    assert hits.cached_tokens <= hits.seen_tokens


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 999), st.integers(1, 3))
def test_an_endless_cache_finds_all_if_every_block_ends_a_chunk(seed: int, state: int) -> None:
    """One client, whose prompts are computed in chunks of one block."""
    turns = {**AGENTS["turns"], "subagents": None}  # type: ignore[dict-item]
    work = replace(drawn(seed, 30, turns=turns), concurrency=1)
    hits = PrefixHits.of(serve(work, engine(100_000, state, max_num_batched_tokens=4, max_num_seqs=4)))
    assert hits.cached_tokens == hits.seen_tokens


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([130, 200, 400]))
def test_a_run_is_the_same_step_by_step(seed: int, blocks: int) -> None:
    work = drawn(seed, 40)
    fast, slow = (serve(work, engine(blocks, 3), fast_forward) for fast_forward in (True, False))
    np.testing.assert_allclose(fast.last_token_s, slow.last_token_s, rtol=0, atol=1e-9)
    assert fast.cached_tokens.tolist() == slow.cached_tokens.tolist()


@pytest.mark.parametrize(
    "changes",
    [
        {"offload": OffloadRules(host_blocks=200, host_s_per_block=1 / 256)},
        {"queueing": FCFS.model_copy(update={"order": "priority"})},
        {"pipeline_stages": 2},
        {"lag": 1},
    ],
    ids=lambda changes: next(iter(changes)),
)
@pytest.mark.parametrize("blocks", [130, 260])
def test_variants_of_the_scheduler_keep_every_invariant(changes: dict[str, Any], blocks: int) -> None:
    for seed in range(3):
        assert serve(drawn(seed, 30), engine(blocks, 3, **changes)).completed.all()
