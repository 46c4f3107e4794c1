"""The memory of pipeline stages: what each holds, and that the fullest one decides."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from catalogs.deployments.resolve import resolve
from catalogs.deployments.schema import Deployment
from simulator.layers.shard import Shard
from simulator.memory.plan import cache_bytes, outer_bytes, size_memory, weight_bytes


def made(model: str = "llama3.1-8b", stages: int = 4, **keys: object) -> Deployment:
    size = {"hardware": f"h100x{stages}", "pipeline_parallel": stages, "max_model_len": 8192}
    return Deployment(model=model, **(size | keys))  # type: ignore[arg-type]


@pytest.mark.parametrize("layers", [None, [5, 9, 9, 9], [11, 8, 8, 5]])
def test_the_stages_together_hold_the_model_once(layers: list[int] | None) -> None:
    shard, whole = Shard.of(resolve(made(pipeline_layers=layers))), Shard.of(resolve(made(stages=1)))
    assert sum(weight_bytes(stage) for stage in shard.stages) == pytest.approx(weight_bytes(whole), rel=1e-12)
    held = sum(cache_bytes([stage], 1000) for stage in shard.stages)
    assert held == pytest.approx(cache_bytes([whole], 1000), rel=1e-12)
    first, *middle, last = (outer_bytes(stage) for stage in shard.stages)
    assert first["embedding"] > 0.0 == first["output projection"]
    assert last["output projection"] > 0.0 == last["embedding"]
    assert all(not sum(outer.values()) for outer in middle)


def test_the_last_stage_keeps_a_shared_embedding() -> None:
    shard = Shard.of(resolve(made("llama3.2-1b")))  # its output projection is the embedding
    assert shard.model.lm_head_params == 0
    assert [bool(outer_bytes(stage)["embedding"]) for stage in shard.stages] == [True, False, False, True]


def test_the_stage_with_room_for_the_fewest_blocks_decides() -> None:
    resolved = resolve(made(pipeline_layers=[5, 9, 9, 9]))
    plan, stages = size_memory(resolved), Shard.of(resolved).stages
    free = plan.budget_bytes - plan.activation_bytes - plan.non_torch_bytes
    # a token of the whole model takes 131,072 bytes: 32 layers of 8 heads of 128 values, twice, in 2 bytes
    blocks = [int((free - weight_bytes(stage)) / (16 * 131072 * stage.layer_share)) for stage in stages]
    assert plan.kv_blocks == min(blocks) == blocks[3]  # as many layers as those before it, and the output projection
    assert plan.stage == 3
    assert plan.weights_bytes == weight_bytes(stages[3])


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(1, 20), min_size=2, max_size=2))
def test_moving_layers_to_the_fullest_stage_leaves_fewer_blocks(moved: list[int]) -> None:
    a, b = sorted(moved)
    divisions = ([16 - n // 2, 16 + n // 2] for n in (a, b))
    fewer, more = (size_memory(resolve(made(pipeline_layers=layers, stages=2))).kv_blocks for layers in divisions)
    assert fewer >= more


def test_one_stage_is_sized_as_before() -> None:
    plan = size_memory(resolve(made(stages=1)))
    assert plan.stage is None
    assert plan.weights_bytes == weight_bytes(Shard.of(resolve(made(stages=1))))
