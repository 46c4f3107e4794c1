"""Steps outside CUDA graphs are no faster than the host launches their kernels."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from calibration.bundles.bundle import load_bundle
from calibration.operators.operators import Elementwise
from catalogs.deployments.resolve import resolve
from catalogs.deployments.resolved import ResolvedDeployment
from catalogs.deployments.schema import Deployment
from simulator.core.batch import BatchShape
from simulator.costs.compile import compile_step_cost
from simulator.costs.step_cost import StepCost
from simulator.layers.operator_call import OperatorCall
from simulator.layers.shard import Shard
from simulator.layers.step import StepCalls, fused_rows, step_launches

FAST_LAUNCH_S = 1e-9


def made(engine: str = "vllm", **keys: Any) -> ResolvedDeployment:
    return resolve(Deployment(**({"model": "llama3.1-8b", "hardware": "h100", "engine": engine} | keys)))


def cost(resolved: ResolvedDeployment, launch_s: float | None = None) -> StepCost:
    if launch_s is not None:
        host = replace(resolved.engine.host, kernel_launch_s=launch_s)
        resolved = replace(resolved, engine=replace(resolved.engine, host=host))
    return compile_step_cost(resolved, load_bundle(resolved.hardware.accelerator))


def test_a_launch_time_of_latent_attention_replaces_the_general_one_there_only() -> None:
    def cycle_s(model: str, **host: float) -> float:
        resolved = made("trtllm", model=model, hardware="h200x8", tensor_parallel=8)
        terms = replace(resolved.engine.host, kernel_launch_s=1.0, **host)
        resolved = replace(resolved, engine=replace(resolved.engine, host=terms))
        return cost(resolved).cycle_s(prompt(16)) / step_launches(Shard.of(resolved))

    assert cycle_s("deepseek-v3", latent_launch_s=2.0) == pytest.approx(2.0, rel=1e-3)
    assert cycle_s("deepseek-v3", latent_launch_s=0.0) == pytest.approx(1.0, rel=1e-3)
    assert cycle_s("llama3.1-70b", latent_launch_s=2.0) == pytest.approx(1.0, rel=1e-3)


def prompt(tokens: int) -> BatchShape:
    return BatchShape(tokens, tokens * tokens / 2, 1, 0, 0, 0, 1)


def decodes(n: int) -> BatchShape:
    return BatchShape(0, 0.0, 0, n, 100 * n, 100, n)


def test_counts_by_hand() -> None:
    # norm, qkv, rotary, cache write, attention, output, norm, gate and up, activation, down
    # and embedding, norm, head, draw
    dense = 10 * 32 + 4
    assert step_launches(Shard.of(made())) == dense
    # two all-reduces a layer, one of the embedding, the gather of the logits
    assert step_launches(Shard.of(made(hardware="h100x2", tensor_parallel=2))) == dense + 2 * 32 + 2
    # the input of each of the four products is quantised first
    assert step_launches(Shard.of(made(weight_dtype="fp8"))) == dense + 4 * 32


@pytest.mark.parametrize(
    ("engine", "shape", "bound"),
    [
        ("vllm", prompt(512), False),  # captured
        ("vllm", prompt(520), True),
        ("sglang", prompt(16), True),  # decodes only are captured
        ("trtllm", prompt(16), True),
        ("vllm", decodes(512), False),
        ("vllm", decodes(600), True),
        ("sglang", decodes(600), True),
    ],
)
def test_steps_outside_graphs_wait_for_the_host(engine: str, shape: BatchShape, bound: bool) -> None:
    resolved = made(engine, model="llama3.2-1b")
    slow, fast = cost(resolved, 1.0).cycle_s(shape), cost(resolved, FAST_LAUNCH_S).cycle_s(shape)
    if bound:
        assert slow >= step_launches(Shard.of(resolved))  # a second each
    else:
        assert slow == pytest.approx(fast, rel=5e-3)  # attention is priced between sizes on both sides of the captured


def test_a_step_longer_than_its_launches_does_not_see_them() -> None:
    resolved = made(model="llama3.1-70b", weight_dtype="fp8")
    assert cost(resolved).cycle_s(prompt(8192)) == cost(resolved, FAST_LAUNCH_S).cycle_s(prompt(8192))


def test_no_launches_on_a_cpu() -> None:
    assert cost(made(hardware="epyc-9654"), 1.0).tables.launch_s == 0.0


def test_fused_norms_are_left_out_of_graphed_steps_of_a_tensor_parallel_group_only() -> None:
    alone, group = Shard.of(made()), Shard.of(made(hardware="h100x2", tensor_parallel=2))

    def left_out(shard: Shard, graph: bool) -> set[str]:
        kept = {line.name for line in StepCalls(shard, 8).rank(8, graph)}
        return {line.name for line in StepCalls(shard).rank(8, graph)} - kept

    assert left_out(group, True) == {"input_norm", "post_norm", "final_norm"}
    assert left_out(group, False) == left_out(alone, True) == set()


def test_messages_beyond_the_workspace_are_normalised_by_a_kernel_of_their_own() -> None:
    """8 MB hold 976 tokens of 4,096 values; a larger message goes through NCCL."""
    resolved = made("trtllm", hardware="h100x4", tensor_parallel=4)
    bounded, unbounded = cost(resolved), cost(replace(resolved, engine=replace(resolved.engine, fused_norm_bytes={})))
    norm = Elementwise("norm", 1088.0, 4 * resolved.model.hidden_size * 2)
    each = float(load_bundle(resolved.hardware.accelerator, engine=resolved.engine).cost(norm).seconds)
    longer = [bounded.cycle_s(decodes(n)) - unbounded.cycle_s(decodes(n)) for n in (960, 1088)]
    assert longer == pytest.approx([0.0, 65 * each], rel=1e-3)


def test_a_group_that_no_link_joins_normalises_by_a_kernel_of_its_own() -> None:
    keys = {"model": "llama3.1-405b", "weight_dtype": "fp8", "tensor_parallel": 16}
    values = resolve(Deployment(model="llama3.1-405b", hardware="h100x8", tensor_parallel=8)).model.hidden_size
    inside, across = (fused_rows(made("trtllm", hardware=hw, **keys)) for hw in ("gb200-nvl72x16", "2*h100x8"))
    assert (inside, across) == (8_000_000 // (2 * values), 0)


def test_an_engine_that_fuses_norms_decodes_faster_by_them() -> None:
    resolved = made("trtllm", hardware="h100x2", tensor_parallel=2)
    separate = cost(replace(resolved, engine=replace(resolved.engine, fuses_norms=False)))
    norm = Elementwise("norm", 8.0, 4 * resolved.model.hidden_size * 2)
    each = float(load_bundle(resolved.hardware.accelerator).cost(norm).seconds)
    saved = separate.cycle_s(decodes(8)) - cost(resolved).cycle_s(decodes(8))
    assert saved == pytest.approx(65 * each, rel=1e-6)
    assert separate.cycle_s(prompt(512)) == cost(resolved).cycle_s(prompt(512))


@pytest.mark.parametrize(
    ("model", "hardware", "fuses"),
    [
        ("deepseek-r1", "h200x8", True),
        ("deepseek-r1", "b200x8", True),
        ("gpt-oss-120b", "h100x8", True),
        ("gpt-oss-120b", "a100-80gbx8", False),
        ("gpt-oss-120b", "rtxpro6000x8", False),  # compute capability 12
        ("qwen3.5-397b-a17b", "b200x8", False),
        ("llama3.1-70b", "h100x8", False),
    ],
)
def test_sglang_normalises_in_the_all_reduce_of_some_models(model: str, hardware: str, fuses: bool) -> None:
    """The models of _handle_model_specific_adjustments in server_args.py, on Hopper and data-centre Blackwell."""
    found = made("sglang", model=model, hardware=hardware, tensor_parallel=8)
    assert (fused_rows(found) > 0) is fuses


def test_sglang_normalises_apart_with_data_parallel_attention() -> None:
    """enable_flashinfer_allreduce_fusion needs enable_dp_attention off."""
    layout = {"tensor_parallel": 2, "data_parallel": 4, "expert_parallel": True}
    assert fused_rows(made("sglang", model="deepseek-r1", hardware="h200x8", **layout)) == 0


def test_inputs_of_linear_attention_that_are_projected_apart_read_the_same_weights_in_more_kernels() -> None:
    """SGLang 0.5.9 runs four products, later ones one: q, k, v and the gate keep their columns, in 45 layers three more
    kernels each, and the two kinds of scalars of 8 heads on a rank are products of 16 bit."""
    keys = {"model": "qwen3.5-397b-a17b", "hardware": "b200x8", "tensor_parallel": 8, "weight_dtype": "fp8"}

    def products(engine: str) -> list[OperatorCall]:
        calls = StepCalls(Shard.of(made(engine, **keys))).rank(4.0)
        return [call for call in calls if call.name.startswith("in_proj")]

    (joint,), apart = products("sglang"), products("sglang-0.5")
    assert [call.name for call in apart] == ["in_proj", "in_proj_gate", "in_proj_head_gates", "in_proj_head_gates"]
    assert sum(call.op.n for call in apart) == joint.op.n  # type: ignore[union-attr]
    assert [call.op.dtype for call in apart[2:]] == ["bf16", "bf16"]  # type: ignore[union-attr]
    shards = [Shard.of(made(engine, **keys)) for engine in ("sglang", "sglang-0.5")]
    assert step_launches(shards[1]) - step_launches(shards[0]) == 45 * (2 + 1 + 1)  # one of them quantises its input
