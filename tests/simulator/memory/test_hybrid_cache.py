"""Sliding windows: vLLM's groups and blocks by hand, and that a run's equal blocks hold as many sequences."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from catalogs.deployments.layout import Layout
from catalogs.deployments.resolve import resolve
from catalogs.deployments.schema import Deployment
from catalogs.errors import InputError
from catalogs.models.catalog import load_model
from simulator.cluster.compiled import compile_deployment
from simulator.cluster.simulate import pool_of
from simulator.layers.shard import Shard
from simulator.memory.cache_groups import CacheGroup, cache_groups, even_blocks, held_bytes, varies
from simulator.memory.plan import size_memory
from tests.simulator.worlds import requests


def shard(name: str) -> Shard:
    return Shard(load_model(name), Layout(), "bf16", "bf16")


def test_groups_of_real_models_by_hand() -> None:
    """gpt-oss-120b: 18 full, 18 windowed layers. Gemma-3-27b: 10 full, 52 windowed in six groups of 10, eight layers of
    padding. Llama: one group. Mistral-7B v0.1: one group, windowed."""
    assert cache_groups(shard("gpt-oss-120b")) in (
        [CacheGroup(18, 128), CacheGroup(18, None)],
        [CacheGroup(18, None), CacheGroup(18, 128)],
    )
    gemma = cache_groups(shard("gemma-3-27b"))
    assert gemma is not None
    assert sorted(gemma, key=str) == sorted([CacheGroup(10, None)] + 6 * [CacheGroup(10, 1024)], key=str)
    assert cache_groups(shard("llama-3.1-8b")) == [CacheGroup(32, None)]
    assert cache_groups(shard("mistral-7b-v0.1")) == [CacheGroup(32, 4096)]
    assert cache_groups(shard("deepseek-v3")) is None


def test_a_kind_that_is_little_larger_sets_the_size() -> None:
    """13 full and 12 windowed layers are two groups of 13, as vLLM pads gpt-oss-20b with a drafter."""
    base = shard("gpt-oss-20b")
    kinds = {g.mixer.window_tokens: g for g in base.model.groups}  # type: ignore[union-attr]
    groups = (replace(kinds[None], count=13), replace(kinds[128], count=12))
    found = cache_groups(replace(base, model=replace(base.model, groups=groups)))
    assert found == [CacheGroup(13, None), CacheGroup(13, 128)]


@pytest.mark.parametrize(("tokens", "blocks"), [(1, 1), (16, 1), (17, 2), (128, 8), (4096, 8.9375)])
def test_blocks_behind_the_window_are_free(tokens: int, blocks: float) -> None:
    """128 tokens lie in 8 blocks where the window begins with a block, else in 9: 15 of 16 times."""
    assert CacheGroup(18, 128).blocks(tokens, 16) == blocks
    begins = [-(-(offset + 128) // 16) for offset in range(16)]
    assert np.mean(begins) == CacheGroup(18, 128).blocks(4096, 16)


@pytest.mark.parametrize("name", ["gpt-oss-20b", "gemma-3-27b"])
@pytest.mark.parametrize("tokens", [300, 2000, 16000])
def test_the_run_holds_as_many_sequences_as_vllm_s_pool(name: str, tokens: int) -> None:
    """vLLM's pool: pages of one group; a sequence takes the blocks of each group. Ours: equal blocks."""
    resolved = resolve(Deployment(model=name, hardware="h100", max_model_len=32768))
    memory = size_memory(resolved)
    work = requests([0.0] * 8, [tokens - 32] * 8, [64] * 8)
    ours = even_blocks(resolved, memory, work) / -(-tokens // 16)
    rank = Shard.of(resolved)
    groups = cache_groups(rank)
    assert groups is not None
    a = rank.model.groups[0].plain_attention
    assert a is not None
    page = groups[0].padded * 16 * a.n_kv_heads * 2 * a.head_dim * 2
    theirs = memory.kv_bytes / page / sum(group.blocks(tokens, 16) for group in groups)
    assert ours == pytest.approx(theirs, rel=0.01)
    full = memory.kv_bytes / (sum(g.count for g in rank.model.groups) * page / groups[0].padded) / -(-tokens // 16)
    if tokens == 16000:
        assert ours > 1.8 * full  # every layer keeping every token


def test_longer_sequences_make_more_blocks_of_the_same_bytes() -> None:
    resolved = resolve(Deployment(model="gemma-3-27b", hardware="h100", max_model_len=32768))
    memory = size_memory(resolved)
    found = [even_blocks(resolved, memory, requests([0.0], [n], [10])) for n in (100, 1000, 5000, 20000)]
    assert found == sorted(found)
    assert found[-1] > 2 * found[0]


def test_models_whose_lengths_cost_alike_keep_their_blocks() -> None:
    plant = compile_deployment(Deployment(model="llama-3.1-8b", hardware="h100"))
    assert not varies(Shard.of(plant.resolved))
    assert pool_of(plant, 0, requests([0.0], [100], [10])).rules.kv_blocks == plant.memory.kv_blocks
    asked = resolve(Deployment(model="gpt-oss-20b", hardware="h100", kv_blocks=777))
    assert even_blocks(asked, size_memory(asked), requests([0.0], [100], [10])) == 777


def test_states_are_charged_once_a_sequence() -> None:
    """Qwen3-Next keeps a state in three of four layers: short sequences cost more a token than long ones."""
    hybrid = next((n for n in ("qwen3-next-80b-a3b", "nemotron-h-56b") if _known(n)), None)
    assert hybrid is not None
    assert held_bytes(shard(hybrid), 64, 16) / 64 > held_bytes(shard(hybrid), 6400, 16) / 6400


def _known(name: str) -> bool:
    try:
        load_model(name)
    except InputError:
        return False
    return True
