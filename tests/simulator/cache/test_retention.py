"""Blocks that are evicted last and copies that expire: worlds by hand, and laws of hits."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from catalogs.deployments.resolve import resolve_pools
from catalogs.deployments.schema import Deployment
from catalogs.errors import InputError
from catalogs.workloads.request_set import RequestSet
from simulator.analysis.prefix_hits import PrefixHits
from simulator.cache.offload import OffloadRules
from simulator.cache.retention import RetentionRules
from simulator.cluster.cluster import RunOptions
from simulator.cluster.compiled import compile_deployment, retention_rules
from simulator.cluster.run import Run
from simulator.cluster.simulate import run_rules
from simulator.schedulers.rules import EngineRules
from tests.simulator.cluster.test_session_clients import drawn
from tests.simulator.worlds import Linear, requests, rules

#: Three prompts of four blocks each, twice in turn.
ROUNDS = [[1, 2, 3, 4], [11, 12, 13, 14], [21, 22, 23, 24]] * 2

KEYS: dict[str, Any] = {"model": "llama3.1-8b", "engine": "trtllm", "hardware": "h100"}


def engine(kv_blocks: int = 80, **changes: Any) -> EngineRules:
    return rules(policy="trtllm-max-utilization", kv_blocks=kv_blocks, prefix_caching=True, **changes)


def serve(work: RequestSet, of: EngineRules, replicas: int = 1) -> Run:
    """Serve requests and check every invariant."""
    return run_rules(of, Linear(base_s=0.125, prompt_token_s=1 / 64), work, replicas, RunOptions(check_invariants=True))


def rounds(*arrival_s: float) -> RequestSet:
    return requests(list(arrival_s), [17] * 6, [1] * 6, ROUNDS)


@pytest.mark.parametrize(
    ("prompt_tokens", "found"),
    [
        (None, [0, 0, 0, 0, 0, 0]),  # the prompt that was used last drops the one that comes next
        (4, [0, 0, 0, 4, 4, 4]),  # three blocks stay, five are shared by the rest of the prompts
        (8, [0, 0, 0, 8, 8, 8]),
        (5, [0, 0, 0, 8, 8, 8]),  # the block that holds the fifth token is the second
        (16, [0, 0, 0, 0, 0, 0]),  # nine blocks of the first priority: as without any
    ],
)
def test_the_first_blocks_of_prompts_in_turn_stay(prompt_tokens: int | None, found: list[int]) -> None:
    """A request of 17 tokens holds five blocks of nine, so that two prompts do not fit together."""
    kept = None if prompt_tokens is None else RetentionRules(prompt_tokens)
    run = serve(rounds(0, 3, 6, 9, 12, 15), engine(9, retention=kept))
    assert run.cached_tokens.tolist() == found


def test_generated_blocks_have_no_priority_unless_all_blocks_have_it() -> None:
    """Three prompts of one block, each with three generated ones; then a prompt that is the first with its answer.

    Eight blocks hold the first blocks of all prompts and five others. If the generated blocks were kept as well, the
    third request would evict all that the first one left.
    """
    work = requests([0, 10, 20, 30], [4, 4, 4, 17], [13, 13, 13, 1], [*ROUNDS[:3], ROUNDS[0]])
    for prompt_tokens, found in ((100, 4), (inf, 0)):
        run = serve(work, engine(8, retention=RetentionRules(prompt_tokens)))
        assert run.cached_tokens.tolist() == [0, 0, 0, found]


def test_a_block_that_has_lost_its_priority_goes_in_its_turn() -> None:
    """Eleven blocks hold two blocks of each of three prompts and five others.

    The first prompt loses its priority at 5.4 s, so that the third prompt takes its last two blocks and the fourth one
    its first two, at 9 s.
    """
    work = requests([0, 3, 6, 9, 12], [17] * 5, [1] * 5, [*ROUNDS[:3], [31, 32, 33, 34], ROUNDS[0]])
    for duration_s, found in ((inf, 8), (5.0, 0)):
        run = serve(work, engine(11, retention=RetentionRules(8, duration_s)))
        assert run.cached_tokens.tolist() == [0, 0, 0, 0, found]


@given(st.integers(0, 99), st.sampled_from([4, 20, inf]))
@settings(max_examples=15, deadline=None)
def test_a_priority_that_ends_at_once_is_none(seed: int, prompt_tokens: float) -> None:
    """One client, so that a request takes blocks between two releases."""
    work = replace(drawn(seed, 30), concurrency=1)
    kept = RetentionRules(prompt_tokens, 0.0)
    one, other = (serve(work, engine(retention=each)) for each in (None, kept))
    assert one.cached_tokens.tolist() == other.cached_tokens.tolist()
    assert one.last_token_s.tolist() == other.last_token_s.tolist()


@given(st.integers(0, 99), st.sampled_from([4, 40, inf]), st.sampled_from([0.0, 3.0, inf]))
@settings(max_examples=15, deadline=None)
def test_a_cache_without_limits_finds_all_that_was_seen(seed: int, prompt_tokens: float, duration_s: float) -> None:
    run = serve(drawn(seed, 40), engine(100_000, retention=RetentionRules(prompt_tokens, duration_s)))
    hits = PrefixHits.of(run)
    assert hits.rate == hits.theoretical_rate


@given(st.integers(0, 99), st.integers(0, 90), st.sampled_from([0.0, 3.0, inf]))
@settings(max_examples=15, deadline=None)
def test_every_request_is_served_whatever_is_kept(seed: int, prompt_tokens: int, duration_s: float) -> None:
    run = serve(drawn(seed, 40), engine(120, retention=RetentionRules(prompt_tokens, duration_s)))
    assert run.completed.all()


# ---- copies that expire


@pytest.mark.parametrize(("expire_s", "found"), [(None, 16), (16.5, 16), (16.0, 0), (0.0, 0)])
def test_a_copy_is_found_until_it_expires(expire_s: float | None, found: int) -> None:
    """A prompt ends at 3 s and its four blocks reach the pool at 4 s; the other replica wants them at 20 s."""
    pool = OffloadRules(50, 0.25, shared=True, expire_s=expire_s)
    work = requests([0.0, 20.0], [16, 17], [1, 1], [[1, 2, 3, 4]] * 2)
    of = rules(kv_blocks=8, offload=pool, admit_whole_prompt=True)
    run = run_rules(of, Linear(prompt_token_s=0.125), work, 2, RunOptions(check_invariants=True))
    assert run.cached_tokens.tolist() == [0, found]


def test_an_expired_copy_is_stored_again() -> None:
    """The second request computes the prompt again at 20 s, and the third one finds that copy."""
    pool = OffloadRules(50, 0.25, shared=True, expire_s=10.0)
    work = requests([0.0, 20.0, 28.0], [16, 17, 17], [1, 1, 1], [[1, 2, 3, 4]] * 3)
    of = rules(kv_blocks=8, offload=pool, admit_whole_prompt=True)
    run = run_rules(of, Linear(prompt_token_s=0.125), work, 3, RunOptions(check_invariants=True))
    assert run.cached_tokens.tolist() == [0, 0, 16]


@given(st.integers(0, 99))
@settings(max_examples=10, deadline=None)
def test_copies_that_expire_at_once_are_as_no_pool(seed: int) -> None:
    work = drawn(seed, 30)
    of = rules(kv_blocks=80, prefix_caching=True, admit_whole_prompt=True)
    pools = (None, OffloadRules(5_000, 0.01, shared=True, expire_s=0.0))
    one, other = (serve(work, replace(of, offload=pool), 2) for pool in pools)
    assert one.cached_tokens.tolist() == other.cached_tokens.tolist()
    assert one.last_token_s.tolist() == other.last_token_s.tolist()


# ---- deployment.yaml


def test_the_keys_of_a_deployment_reach_the_cache() -> None:
    written = Deployment.model_validate({**KEYS, "kv_retention": {"prompt_tokens": 4096, "duration_s": 60}})
    compiled = compile_deployment(written)
    assert retention_rules(compiled.resolved) == RetentionRules(4096, 60.0)
    again = Deployment.model_validate(compiled.resolved.filled_in(written))
    assert again.kv_retention == written.kv_retention
    everything = compile_deployment(Deployment.model_validate({**KEYS, "kv_retention": {}}))
    assert retention_rules(everything.resolved) == RetentionRules(inf, inf)


@pytest.mark.parametrize(
    ("keys", "rule"),
    [
        ({"engine": "vllm", "kv_retention": {}}, "not simulated for vllm.*engine: trtllm"),
        ({"engine": "sglang", "kv_retention": {}}, "not simulated for sglang.*engine: trtllm"),
        ({"prefix_caching": False, "kv_retention": {}}, "needs prefix caching"),
        ({"engine": "vllm", "kv_offload": {"host_gib": 8, "expire_s": 60}}, "expire_s needs a pool"),
    ],
)
def test_what_an_engine_does_not_have_is_refused(keys: dict[str, Any], rule: str) -> None:
    with pytest.raises(InputError, match=rule) as caught:
        resolve_pools(Deployment.model_validate(KEYS | keys))
    assert "\n" not in str(caught.value)


def test_a_priority_is_above_that_of_all_other_blocks() -> None:
    with pytest.raises(ValueError, match="greater than 35"):
        Deployment.model_validate({**KEYS, "kv_retention": {"priority": 35}})
