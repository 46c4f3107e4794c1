"""The published decode table, to the digit, and how a real step differs from it."""

from __future__ import annotations

import pytest

from calibration.operators.flops_and_bytes import bytes_moved, flops
from calibration.operators.roofline import compute_s, memory_s
from catalogs.errors import InputError
from catalogs.hardware.catalog import parse_hardware
from catalogs.models.catalog import load_model
from planner.studies.published_table import published_decode_table
from simulator.core.batch import BatchShape
from simulator.layers.shard import Shard
from simulator.layers.step import step_calls
from tests.simulator.plants import resolved


@pytest.mark.parametrize(("bits", "share"), [(16, 1.0), (8, 0.5)])
def test_published_llama_2_7b_on_a6000(bits: int, share: float) -> None:
    table = published_decode_table(load_model("llama-2-7b"), parse_hardware("a6000").accelerator, 1, 1024, bits)
    t = table.total
    assert t.operations == 13_627_555_840
    assert t.load_activation_bytes == 8_314_880 * share
    assert t.load_kv_bytes == 536_870_912 * share
    assert t.load_weights_bytes == 13_214_154_752 * share
    assert t.store_activation_bytes == 8_026_624 * share
    assert t.store_kv_bytes == 524_288 * share
    assert t.memory_access_bytes == 13_767_891_456 * share
    assert table.kv_cache_bytes == 536_870_912 * share
    assert table.temporary_activation_bytes == 248_832 * share
    assert table.weights_bytes == 12_952_010_752 * share
    assert round(t.seconds * 1e3, 6) == {16: 17.926942, 8: 8.963471}[bits]


def test_published_view_covers_plain_dense_models_only() -> None:
    a6000 = parse_hardware("a6000").accelerator
    for model in ("deepseek-v3", "gpt-oss-120b", "qwen3-30b-a3b"):
        with pytest.raises(InputError):
            published_decode_table(load_model(model), a6000, 1, 1024, 16)


def test_real_steps_count_the_output_projection_twice_and_no_scores_in_memory() -> None:
    d = resolved()
    shape = BatchShape(decodes=1, decode_context_sum=1024, decode_context_max=1024, logits=1)
    calls = {call.name: call for call in step_calls(Shard.of(d), shape)}
    unit, attention = d.hardware.accelerator, calls["decode_attention"]
    assert float(flops(calls["lm_head"].op)) == 2 * 4096 * 32000
    assert attention.count * float(bytes_moved(attention.op, unit)) == 32 * (1024 * 2 * 4096 * 2 + 2 * 4096 * 2)
    assert all(float(memory_s(call.op, unit)) >= float(compute_s(call.op, unit)) for call in calls.values())


def test_the_products_of_a_long_prompt_are_bound_by_compute() -> None:
    d = resolved("llama-2-70b", "h100x4", tensor_parallel=4)
    calls = {c.name: c.op for c in step_calls(Shard.of(d), BatchShape(1024, 1024 * 512.0, 1, logits=1))}
    unit = d.hardware.accelerator
    assert compute_s(calls["gate_up_proj"], unit) > memory_s(calls["gate_up_proj"], unit)
    assert compute_s(calls["post_norm"], unit) < memory_s(calls["post_norm"], unit)
