"""Blocks of hybrid models: sizes by hand, and what a deployment makes of them."""

from __future__ import annotations

import pytest

from catalogs.deployments.resolve import resolve
from catalogs.deployments.schema import Deployment
from catalogs.launch.vllm import vllm_arguments
from catalogs.models.catalog import load_model
from catalogs.models.state_pages import StatePages, group_size, state_pages
from catalogs.units import DTYPE_BYTES

HYBRIDS = ("qwen3.5-35b-a3b", "qwen3.5-397b-a17b", "nemotron-3-nano-30b-a3b", "nemotron-h-56b")


def test_pages_of_a_model_by_hand() -> None:
    """Qwen3.5-35B-A3B has 10 layers of attention with 2 KV heads of 256 + 256 and 30 with states.

    A state has 32 heads of 128 x 128 numbers of 4 bytes, and 3 inputs of 8,192 channels of 2 bytes: 2,146,304 bytes. A
    token of one layer takes 2,048 bytes in bf16: 1,048 tokens, or 66 blocks of 16. Ten layers share a page.
    """
    model = load_model("qwen3.5-35b-a3b")
    assert state_pages(model, 1, "bf16", 16) == StatePages(1056, 3)
    assert state_pages(model, 2, "bf16", 16) == StatePages(1056, 3)  # both are halved
    assert state_pages(model, 4, "bf16", 16) == StatePages(528, 3)  # four ranks repeat the two KV heads
    assert state_pages(model, 1, "fp8", 16) == StatePages(2096, 3)
    assert state_pages(model, 1, "bf16", 64) == StatePages(1088, 3)


@pytest.mark.parametrize("name", HYBRIDS)
@pytest.mark.parametrize("ranks", [1, 2, 8])
def test_a_page_is_the_smallest_that_holds_a_state(name: str, ranks: int) -> None:
    model = load_model(name)
    pages = state_pages(model, ranks, "bf16", 16)
    assert pages is not None
    attention = next(g.mixer for g in model.groups if g.mixer is not None and g.mixer.attends)
    state = max(g.mixer.state_bytes() for g in model.groups if g.mixer is not None) / ranks
    heads = attention.kv_heads_to_split
    assert heads is not None
    token = attention.kv_bytes_per_token(DTYPE_BYTES["bf16"]) * max(1, heads // ranks) / heads
    assert (pages.block_tokens - 16) * token < state <= pages.block_tokens * token


@pytest.mark.parametrize("name", ["llama3.1-8b", "gpt-oss-120b", "deepseek-v3", "whisper-large-v3"])
def test_models_without_states_have_none(name: str) -> None:
    assert state_pages(load_model(name), 1, "bf16", 16) is None


@pytest.mark.parametrize(("layers", "size"), [((10, 30), 10), ((13, 12), 13), ((8, 12), 8), ((9, 12), 12)])
def test_a_kind_that_is_little_larger_sets_the_size(layers: tuple[int, ...], size: int) -> None:
    assert group_size(layers) == size


def test_vllm_raises_the_block_size_itself_and_other_engines_do_not() -> None:
    written = Deployment(model="qwen3.5-35b-a3b-fp8", hardware="l40sx2", tensor_parallel=2)
    found = resolve(written)
    assert (found.limits.block_size, found.state_blocks) == (1056, 3)
    assert "--block-size" not in vllm_arguments(found).words
    again = resolve(Deployment.model_validate(found.filled_in(written)))
    assert again.limits == found.limits
    other = resolve(written.model_copy(update={"engine": "sglang"}))
    assert other.limits.block_size != 1056
    assert not other.state_blocks
