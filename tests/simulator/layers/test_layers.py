"""Operators of a step against hand numbers, and the laws of splitting them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from calibration.bundles.bundle import load_bundle
from calibration.operators.flops_and_bytes import flops
from calibration.operators.operators import Collective, Elementwise, Gemm, GroupedGemm
from calibration.operators.roofline import memory_s
from catalogs.deployments.layout import Layout
from catalogs.deployments.resolve import resolve
from catalogs.deployments.schema import Deployment
from catalogs.models.catalog import load_model
from catalogs.models.layers import LayerGroup, Mlp
from catalogs.models.mixers import Attention, LinearAttention
from simulator.core.batch import BatchShape
from simulator.costs.pricing import Pricer
from simulator.layers.operator_call import CLASSES, OperatorCall
from simulator.layers.shard import Shard
from simulator.layers.step import StepCalls, step_calls
from tests.simulator.plants import resolved


def shard(model: str, tp: int = 1, dp: int = 1, expert_parallel: bool = False, weight_dtype: str = "bf16") -> Shard:
    return Shard(load_model(model), Layout(tp, 1, dp, expert_parallel), weight_dtype, "bf16")


def work(lines: list[OperatorCall], kinds: tuple[str, ...] = CLASSES) -> float:
    return sum(line.count * float(flops(line.op)) for line in lines if line.kind in kinds)


def named(lines: list[OperatorCall], name: str) -> OperatorCall:
    (found,) = [line for line in lines if line.name == name]
    return found


@pytest.mark.parametrize(
    "model", ["llama-2-7b", "llama-2-70b", "llama-3.1-8b", "deepseek-v3", "gpt-oss-120b", "qwen3-30b-a3b"]
)
def test_flops_of_a_decode_are_twice_the_active_parameters(model: str) -> None:
    spec = load_model(model)
    lines = step_calls(shard(model), BatchShape(decodes=1, decode_context_sum=1, decode_context_max=1, logits=1))
    looked_up = 0 if spec.tied_embeddings else spec.embedding_params  # an embedding row is read, not multiplied
    assert work(lines) == pytest.approx(2 * (spec.n_active_params - looked_up), rel=0.03)


def test_projections_of_llama_2_70b_on_four_ranks_by_hand() -> None:
    lines = StepCalls(shard("llama-2-70b", tp=4)).rank(10)
    sizes = {
        n: (op.m, op.n, op.k) for n in ("qkv_proj", "o_proj", "gate_up_proj", "down_proj") if (op := named(lines, n).op)
    }
    assert sizes == {
        "qkv_proj": (10, (16 + 2 * 2) * 128, 8192),
        "o_proj": (10, 8192, 2048),
        "gate_up_proj": (10, 2 * 7168, 8192),
        "down_proj": (10, 8192, 7168),
    }
    reduces = [line for line in lines if isinstance(line.op, Collective)]
    assert sum(line.count for line in reduces) == 2 * 80 + 1  # two per layer and the vocabulary-parallel embedding
    assert {line.op.message_bytes for line in reduces} == {10 * 8192 * 2}  # type: ignore[union-attr]


def test_kv_heads_replicate_beyond_their_number() -> None:
    narrow = named(StepCalls(shard("llama-2-70b", tp=16)).rank(1), "qkv_proj").op
    assert isinstance(narrow, Gemm)
    assert narrow.n == (4 + 2 * 1) * 128


def test_two_ranks_halve_the_gemm_work() -> None:
    one, two = (StepCalls(shard("llama-2-7b", tp=tp)).rank(100) for tp in (1, 2))
    assert work(two, ("gemm",)) == pytest.approx(work(one, ("gemm",)) / 2)
    assert not [line for line in one if line.kind == "collective"]


def test_experts_are_whole_when_parallel_and_sliced_when_not() -> None:
    whole = named(StepCalls(shard("qwen3-30b-a3b", tp=4, expert_parallel=True)).group(10), "experts").op
    sliced = named(StepCalls(shard("qwen3-30b-a3b", tp=4)).group(10), "experts").op
    assert isinstance(whole, GroupedGemm)
    assert isinstance(sliced, GroupedGemm)
    assert (whole.intermediate_size, whole.expert_ranks) == (768, 4)
    assert (sliced.intermediate_size, sliced.expert_ranks) == (192, 1)
    assert float(flops(whole)) == pytest.approx(float(flops(sliced)))


def test_data_parallel_experts_gather_and_scatter() -> None:
    lines = StepCalls(shard("deepseek-v3", dp=8, expert_parallel=True)).group(64)
    kinds = [line.op.kind for line in lines if isinstance(line.op, Collective)]
    assert kinds == ["all_gather", "reduce_scatter"]
    assert named(lines, "dispatch").op.message_bytes == 64 * 7168 * 2  # type: ignore[union-attr]


@pytest.mark.parametrize(("weights", "each"), [("fp4", 0.5 + 1 / 16), ("fp8", 2.0), ("bf16", 2.0)])
def test_tensorrt_llm_gathers_tokens_in_the_type_of_the_experts(weights: str, each: float) -> None:
    """Four bits and a scale of one byte for 16 values; block-scaled FP8 (DeepSeek) is quantised after the gather. The
    sums come back in 16 bit."""
    s = replace(shard("deepseek-v3", dp=8, expert_parallel=True, weight_dtype=weights), gathers_quantised=True)
    there, back = (named(StepCalls(s).group(64), name).op for name in ("dispatch", "combine"))
    assert (there.message_bytes, back.message_bytes) == (64 * 7168 * each, 64 * 7168 * 2.0)  # type: ignore[union-attr]


def test_sglang_sums_the_tokens_of_all_ranks_outside_graphs() -> None:
    """DpPaddingMode: SUM_LEN in a step with prompts, all-gathers in captured decode steps."""
    s = replace(shard("deepseek-v3", dp=8, expert_parallel=True), sums_prompts=True)
    for graph, kinds in ((False, ["all_reduce", "all_reduce"]), (True, ["all_gather", "reduce_scatter"])):
        found = [call.op for call in StepCalls(s).group(64, graph) if isinstance(call.op, Collective)]
        assert [op.kind for op in found] == kinds
        assert {float(op.message_bytes) for op in found} == {64 * 7168 * 2.0}
    alone = replace(s, layout=replace(s.layout, data_parallel=1))
    assert not [call for call in StepCalls(alone).group(64, False) if call.name == "dispatch"]


def test_output_projection_and_router_stay_in_16_bit() -> None:
    s = shard("deepseek-v3", weight_dtype="fp8")
    lines = StepCalls(s).rank(4) + StepCalls(s).group(4) + StepCalls(s).logits(4)
    assert named(lines, "lm_head").op.dtype == "bf16"  # type: ignore[union-attr]
    assert named(lines, "router").op.dtype == "bf16"  # type: ignore[union-attr]
    assert named(lines, "experts").op.dtype == "fp8_block"  # type: ignore[union-attr]
    assert named(StepCalls(shard("llama-2-7b", weight_dtype="fp8")).rank(4), "qkv_proj").op.dtype == "fp8"  # type: ignore[union-attr]


def test_marlin_computes_mxfp4_experts_in_its_own_multiples() -> None:
    """On 8 ranks, gpt-oss has 360 columns a rank and 2,880 hidden values; Marlin computes 384 and 3,072."""
    s = shard("gpt-oss-120b", tp=8, weight_dtype="fp4")
    plain, marlin = (StepCalls(x).group(4)[0].op for x in (s, replace(s, marlin_experts=True)))
    assert isinstance(plain, GroupedGemm)
    assert isinstance(marlin, GroupedGemm)
    assert (plain.dtype, plain.hidden_size, plain.intermediate_size) == ("mxfp4", 2880, 360)
    assert (marlin.dtype, marlin.hidden_size, marlin.intermediate_size) == ("mxfp4_marlin", 3072, 384)
    other = replace(shard("qwen3-30b-a3b", weight_dtype="int4"), marlin_experts=True)  # a checkpoint is not padded
    assert named(StepCalls(other).group(4), "experts").op.hidden_size == 2048  # type: ignore[union-attr]


def test_minimax_routes_in_fp32_and_norms_over_all_heads() -> None:
    one, four = (StepCalls(shard("minimax-m2.5", tp=tp, weight_dtype="fp8")) for tp in (1, 4))
    assert named(one.rank(4), "router").op.dtype == "fp32"  # type: ignore[union-attr]
    assert named(one.rank(4), "router_input").op.bytes_per_token == 3072 * 6  # type: ignore[union-attr]
    assert not [call for call in one.rank(4) if call.name == "qk_norm_all_reduce"]
    squares = named(four.rank(4), "qk_norm_all_reduce")
    assert squares.op == Collective("all_reduce", 4 * 8, 4)
    assert (squares.count, squares.skewed) == (62, False)
    assert not [call for call in StepCalls(shard("qwen3-30b-a3b", tp=4)).rank(4) if call.name == squares.name]


def test_ranks_wait_once_for_the_sums_of_a_layer() -> None:
    deployed = resolved("minimax-m2.5", "h100x4", tensor_parallel=4)
    source = load_bundle(deployed.hardware.accelerator)
    squares = named(StepCalls.of(deployed, source).rank(4), "qk_norm_all_reduce")
    alone, waiting = (Pricer(source, deployed.hardware, skew_s).price([squares], ()).sum() for skew_s in (0.0, 1e-3))
    assert alone == waiting > 0.0


def test_fp8_is_block_wise_where_the_checkpoint_is() -> None:
    """The checkpoint decides, not its publisher; a model without a checkpoint has one scale per tensor."""
    blocks = shard("qwen3-8b-fp8", weight_dtype="fp8")
    (stored,) = blocks.model.formats
    tensors = replace(blocks, model=replace(blocks.model, formats=(replace(stored, block_size=None),)))
    named = shard("qwen3-8b", weight_dtype="fp8")  # served from the published checkpoint
    on_the_fly = replace(named, model=replace(named.model, formats=()))
    found = [s.dtype("mlp") for s in (blocks, tensors, named, on_the_fly)]
    assert found == ["fp8_block", "fp8", "fp8_block", "fp8"]


def test_a_window_bounds_decode_attention() -> None:
    windowed = LayerGroup(2, Attention(8, 8, 64, window_tokens=100), Mlp(512))
    s = replace(shard("llama-2-7b"), model=replace(load_model("llama-2-7b"), groups=(windowed,)))
    assert work(StepCalls(s).decode(3, 1000.0, 1500.0)) == work(StepCalls(s).decode(3, 100.0, 100.0))


def test_shared_experts_beside_the_routed_ones_cost_their_bytes() -> None:
    """Up to the engine's number of tokens they add weight bytes over bandwidth, beyond it their own time."""
    deployed = resolved("deepseek-v3", hardware="h200x8", tensor_parallel=8)
    accelerator = deployed.hardware.accelerator
    bundle, most = load_bundle(accelerator), deployed.engine.shared_experts_beside_tokens
    assert most == 256
    for tokens, hidden in ((8, True), (most, True), (most + 1, False)):
        lines = [line for line in StepCalls(Shard.of(deployed)).rank(tokens) if line.name.startswith("shared_")]
        assert len(lines) == 3
        seconds = float(Pricer(bundle, deployed.hardware).price(lines, ())[: len(CLASSES)].sum())
        own = sum(line.count * float(bundle.cost(line.op).seconds) for line in lines)
        stream = sum(line.count * float(memory_s(line.op, accelerator)) for line in lines)
        assert seconds == pytest.approx(stream if hidden else own)
        assert stream < 0.5 * own


@pytest.mark.parametrize(
    ("engine", "sampling", "sorts"),
    [("vllm", "top_p", False), ("vllm-0.11", "top_p", True), ("vllm-0.11", "random", False)],
)
def test_only_top_p_on_an_old_engine_sorts_its_logits(engine: str, sampling: str, sorts: bool) -> None:
    deployment = Deployment(model="llama3.1-8b", hardware="h100", engine=engine, sampling=sampling)  # type: ignore[arg-type]
    lines = StepCalls(Shard.of(resolve(deployment))).logits(4)
    assert [line.name for line in lines] == ["lm_head", *(["sort_logits"] if sorts else []), "sampling"]


@pytest.mark.parametrize(
    ("engine", "model", "kernels", "value_bytes"),
    [
        ("vllm-0.11", "nemotron-nano-12b-v2", 10, 54),  # gate to 32 bits 6, SiLU 8, product 10, square 8, mean 4, ...
        ("vllm", "nemotron-nano-12b-v2", 10, 54),
        ("sglang", "nemotron-nano-12b-v2", 1, 6),  # one kernel: values and gate in, result out
        ("trtllm", "nemotron-nano-12b-v2", 1, 6),
        ("vllm", "qwen3.5-27b", 1, 6),  # a gated delta rule has a fused norm in every engine
    ],
)
def test_vllm_normalises_mamba_in_a_chain_of_kernels(engine: str, model: str, kernels: int, value_bytes: int) -> None:
    plant = resolve(Deployment(model=model, engine=engine, hardware="h100"))
    calls = [c for c in StepCalls(Shard.of(plant)).rank(64.0, graph=True) if c.name == "gated_norm"]
    mixer = next(g.mixer for g in plant.model.groups if isinstance(g.mixer, LinearAttention))
    assert len(calls) == kernels
    assert sum(c.kernels for c in calls) == kernels  # each is launched outside CUDA graphs
    moved = sum(c.op.bytes_per_token for c in calls if isinstance(c.op, Elementwise))
    of_groups = 2 * 8 * mixer.n_key_heads if kernels > 1 else 0
    assert moved == value_bytes * mixer.value_size + of_groups


def test_flashinfer_computes_dense_products_and_no_experts() -> None:
    written = {"model": "deepseek-r1", "hardware": "b200x8", "tensor_parallel": 8, "weight_dtype": "fp8"}
    chosen = written | {"engine": "sglang", "gemm_backend": "flashinfer"}
    own = Shard.of(resolve(Deployment.model_validate(chosen)))
    assert {own.dtype("attention"), own.dtype("mlp"), own.dtype("shared_experts")} == {"fp8_block_flashinfer"}
    assert own.dtype("experts") == "fp8_block"
    assert Shard.of(resolve(Deployment.model_validate(written | {"engine": "sglang"}))).dtype("mlp") == "fp8_block"
