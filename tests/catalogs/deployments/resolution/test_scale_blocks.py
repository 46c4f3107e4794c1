"""Block-scaled weights: which layouts end inside a block of scales, and what each engine does about it."""

from __future__ import annotations

import pytest

from catalogs.deployments.layout import Layout
from catalogs.deployments.resolution.scale_blocks import CutBlock, cut_blocks, refusal
from catalogs.deployments.resolve import resolve_pools
from catalogs.deployments.schema import Deployment
from catalogs.engines.files import load_engine
from catalogs.errors import InputError
from catalogs.models.catalog import load_model


def deployed(engine: str, model: str = "qwen3-235b-a22b-fp8", **keys: object) -> Deployment:
    return Deployment.model_validate({"model": model, "engine": engine, "hardware": "h200x8"} | keys)


@pytest.mark.parametrize(
    ("model", "tp", "width"),
    [
        ("qwen3-235b-a22b-fp8", 8, 192),
        ("qwen3-30b-a3b-fp8", 4, 192),
        ("qwen3-coder-480b-a35b-fp8", 8, 320),
        ("minimax-m2.5", 8, 192),
    ],
)
def test_shares_that_end_inside_a_block(model: str, tp: int, width: int) -> None:
    found = load_model(model)
    assert cut_blocks(found, found.weight_dtype, Layout(tp)) == [CutBlock("experts", width, 128)]
    assert cut_blocks(found, found.weight_dtype, Layout(tp, expert_parallel=True)) == []  # experts stay whole
    assert cut_blocks(found, found.weight_dtype, Layout(2)) == []


@pytest.mark.parametrize(("model", "tp"), [("deepseek-v3", 8), ("qwen3-32b-fp8", 8), ("llama3.1-70b", 8)])
def test_whole_blocks_and_other_formats_are_fine(model: str, tp: int) -> None:
    found = load_model(model)
    assert cut_blocks(found, found.weight_dtype, Layout(tp)) == []


def test_scales_made_while_loading_a_16_bit_model_have_no_blocks() -> None:
    assert cut_blocks(load_model("qwen3-235b-a22b"), "int4", Layout(8)) == []


def test_dense_blocks_are_refused_also_where_experts_are_refined() -> None:
    dense = load_model("deepseek-v3")  # 18432 / 32 = 576 wide: four and a half blocks
    why = refusal(dense, "fp8", Layout(32, expert_parallel=True), load_engine("vllm"))
    assert why is not None
    assert "a feed-forward block is 576 wide" in why


@pytest.mark.parametrize("engine", ["sglang", "vllm-0.11"])
def test_an_engine_that_refuses_says_why_and_what_it_loads(engine: str) -> None:
    with pytest.raises(InputError) as caught:
        resolve_pools(deployed(engine, tensor_parallel=8))
    text = str(caught.value)
    assert "192 wide, no multiple of the 128 weights that share a scale" in text
    assert text.endswith("nearest valid choice: tensor_parallel: 4, or expert_parallel: true")
    assert "\n" not in text
    assert resolve_pools(deployed(engine, tensor_parallel=4))
    assert resolve_pools(deployed(engine, tensor_parallel=8, expert_parallel=True))


def test_an_engine_that_refines_the_scales_of_experts_says_so() -> None:
    (found,) = resolve_pools(deployed("vllm", tensor_parallel=8))
    assert any("refines them to 64" in notice for notice in found.notices)
    (whole,) = resolve_pools(deployed("vllm", tensor_parallel=4))
    assert not any("refines" in notice for notice in whole.notices)


def test_an_engine_that_pads_the_scales_loads_every_layout() -> None:
    assert resolve_pools(deployed("trtllm", tensor_parallel=8))
