"""Steps outside CUDA graphs are no faster than the host launches their kernels."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from calibration.bundles.bundle import load_bundle
from calibration.operators.operators import Elementwise
from catalogs.deployments.resolve import resolve
from catalogs.deployments.resolved import ResolvedDeployment
from catalogs.deployments.schema import Deployment
from catalogs.engines.files import load_engine
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
        resolved = made("trtllm", model=model, hardware="b200x8", tensor_parallel=8)
        terms = replace(resolved.engine.host, kernel_launch_s=1.0, **host)
        resolved = replace(resolved, engine=replace(resolved.engine, host=terms))
        return cost(resolved).cycle_s(prompt(16)) / step_launches(Shard.of(resolved))

    assert cycle_s("deepseek-v3", latent_launch_s=2.0) == pytest.approx(2.0, rel=1e-3)
    assert cycle_s("deepseek-v3", latent_launch_s=0.0) == pytest.approx(1.0, rel=1e-3)
    assert cycle_s("llama3.1-70b", latent_launch_s=2.0) == pytest.approx(1.0, rel=1e-3)


def test_python_code_of_triton_experts_takes_the_host_a_time_for_each_layer() -> None:
    """gpt-oss-120b has 36 layers of experts in MXFP4, which a B200 multiplies in 4 bits in other kernels."""

    def added_s(model: str, hardware: str) -> float:
        resolved = made("trtllm", model=model, hardware=hardware, tensor_parallel=8)
        host = replace(resolved.engine.host, triton_experts_s=0.0)
        without = replace(resolved, engine=replace(resolved.engine, host=host))
        return cost(resolved).tables.launch_s - cost(without).tables.launch_s

    engine = load_engine("trtllm")
    layer_s = engine.host.triton_experts_s * engine.launch_factors["hopper"]
    assert layer_s > 0.0
    assert added_s("gpt-oss-120b", "h200x8") == pytest.approx(36 * layer_s)
    assert added_s("gpt-oss-120b", "b200x8") == 0.0
    assert added_s("qwen3-235b-a22b", "h200x8") == 0.0


@pytest.mark.parametrize("model", ["deepseek-v3", "llama3.1-70b"])
def test_hosts_of_hopper_nodes_launch_slower_with_tensorrt_llm(model: str) -> None:
    def each_s(hardware: str, engine: str) -> float:
        resolved = made(engine, model=model, hardware=hardware, tensor_parallel=8)
        return cost(resolved).tables.launch_s / step_launches(Shard.of(resolved))

    factor = load_engine("trtllm").launch_factors["hopper"]
    assert factor > 1.0
    assert each_s("h200x8", "trtllm") == pytest.approx(factor * each_s("b200x8", "trtllm"))
    assert each_s("h200x8", "vllm") == pytest.approx(each_s("b200x8", "vllm"))


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
    """SGLang 0.5.9 runs four products, later ones two: q, k, v and the gate keep their columns, the scalars of 8 heads
    on a rank are products of 16 bit, and in 45 layers there are three more kernels each."""
    keys = {"model": "qwen3.5-397b-a17b", "hardware": "b200x8", "tensor_parallel": 8, "weight_dtype": "fp8"}

    def products(engine: str) -> list[OperatorCall]:
        calls = StepCalls(Shard.of(made(engine, **keys))).rank(4.0)
        return [call for call in calls if call.name.startswith("in_proj")]

    joint, apart = products("sglang"), products("sglang-0.5")
    assert [call.name for call in joint] == ["in_proj", "in_proj_head_gates"]
    assert [call.name for call in apart] == ["in_proj", "in_proj_gate", "in_proj_head_gates", "in_proj_head_gates"]
    assert sum(call.op.n for call in apart) == sum(call.op.n for call in joint)  # type: ignore[union-attr]
    assert [call.op.dtype for call in (joint[1], *apart[2:])] == ["bf16"] * 3  # type: ignore[union-attr]
    assert [call.overlapped_rows for call in (*joint, *apart)] == [0, 1024, 0, 0, 0, 0]  # a second stream
    shards = [Shard.of(made(engine, **keys)) for engine in ("sglang", "sglang-0.5")]
    assert step_launches(shards[1]) - step_launches(shards[0]) == 45 * (2 + 1)  # the gate's product quantises its input


def test_inputs_of_a_scan_that_are_projected_apart_are_copied_for_several_decodes() -> None:
    """SGLang 0.5.9 copies q, k and v of a rank before the scan of decodes, each in a kernel of its own: 2 x 2 x 128
    values of queries and keys and 8 x 128 of values, read and written in 16 bit. One row is contiguous as it is."""
    keys = {"model": "qwen3.5-397b-a17b", "hardware": "b200x8", "tensor_parallel": 8, "weight_dtype": "fp8"}

    def copies(engine: str) -> list[OperatorCall]:
        calls = StepCalls(Shard.of(made(engine, **keys))).decode(np.array([1.0, 4.0]), 900.0, 900.0)
        return [call for call in calls if call.name == "scan_copies"]

    assert copies("sglang") == []
    (call,) = copies("sglang-0.5")
    assert call.count == 3 * 45
    assert 3 * call.op.bytes_per_token == pytest.approx(2 * 2 * (2 * 2 * 128 + 8 * 128))  # type: ignore[union-attr]
    assert np.ravel(call.runs).tolist() == [False, True]


def test_nvfp4_checkpoints_of_qwen3_5_keep_both_kinds_of_attention_in_16_bits() -> None:
    """SGLang's models/qwen3_5.py passes no quantisation of modelopt_fp4 to linear_attn and self_attn."""
    keys = {"model": "Qwen/Qwen3.5-397B-A17B", "hardware": "b200x4", "tensor_parallel": 4, "weight_dtype": "fp4"}
    calls = StepCalls(Shard.of(made("sglang", **keys))).rank(4.0)
    names = {"in_proj", "out_proj", "qkv_proj", "o_proj"}
    found = {call.name: call.op.dtype for call in calls if call.name in names}  # type: ignore[union-attr]
    assert found == dict.fromkeys(names, "bf16")


@pytest.mark.parametrize(
    ("hardware", "layout", "kernels"),
    [
        ("b200x8", {}, 2),  # the input is quantised, and one operator does all the rest, the routing too
        ("h200x8", {}, 1 + 6 + 2),  # routing, then sorting, two products, activation and sum, and two quantisations
        ("b200x8", {"data_parallel": 8, "tensor_parallel": 1, "all2all_backend": "deepep_auto"}, 1 + 6 + 2),
    ],
)
def test_one_operator_launches_all_kernels_of_experts_in_sglang_on_blackwell(
    hardware: str, layout: dict[str, Any], kernels: int
) -> None:
    """moe_runner_backend flashinfer_trtllm of server_args.py, unless tokens are sent to their experts."""
    keys: dict[str, Any] = {"model": "deepseek-r1", "tensor_parallel": 8, "expert_parallel": True}
    step = StepCalls(Shard.of(made("sglang", hardware=hardware, **keys | layout)))
    calls = step.rank(8.0, graph=False) + step.group(8.0, graph=False)
    assert sum(call.kernels for call in calls if call.name in ("routing", "experts")) == kernels


def test_the_gate_of_a_shared_expert_is_hidden_in_captured_steps_and_launched_in_prompts() -> None:
    """Qwen2MoeSparseMoeBlock: a product with one column, a sigmoid, and a product with the output of the expert."""
    found = made("sglang", model="qwen3.5-397b-a17b", hardware="h200x8", tensor_parallel=8, weight_dtype="fp8")
    calls = {call.name: call for call in StepCalls(Shard.of(found)).rank(8.0)}
    gate, scale = calls["shared_gate"], calls["scale_shared"]
    assert (gate.op.n, gate.kernels, scale.kernels) == (1, 1, 2)  # type: ignore[union-attr]
    assert gate.overlapped_rows == scale.overlapped_rows == found.engine.shared_experts_beside_tokens > 0
    other = StepCalls(Shard.of(made("sglang", model="glm-5", hardware="h200x8", tensor_parallel=8))).rank(8.0)
    assert not [call for call in other if call.name in ("shared_gate", "scale_shared")]
