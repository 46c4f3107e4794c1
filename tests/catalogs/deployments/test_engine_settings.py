"""Settings that replace a default of the engine version, and where they are refused."""

from __future__ import annotations

from typing import Any

import pytest

from catalogs.deployments.engine_settings import DEFAULTS, KEYS
from catalogs.deployments.resolve import resolve
from catalogs.deployments.resolved import ResolvedDeployment
from catalogs.deployments.schema import Deployment
from catalogs.errors import InputError
from catalogs.io.yaml_files import validate_as
from catalogs.launch.writing.vllm import MXFP8_VARIABLE, vllm_arguments


def engine_of(model: str = "gpt-oss-120b", hardware: str = "b200x2", **keys: Any) -> Any:
    return resolve(Deployment(model=model, hardware=hardware, tensor_parallel=2, **keys))


@pytest.mark.parametrize("engine", ["vllm", "vllm-0.11", "vllm-0.11-async"])
def test_without_settings_the_engine_keeps_its_defaults(engine: str) -> None:
    plain = engine_of(engine=engine)
    assert plain.settings == DEFAULTS
    assert plain.settings.given == []
    explicit = engine_of(engine=engine, async_scheduling=plain.engine.async_scheduling)
    assert explicit.engine == plain.engine


def test_each_setting_changes_its_own_default() -> None:
    assert engine_of(engine="vllm-0.11", async_scheduling=True).engine.async_scheduling
    assert not engine_of(async_scheduling=False).engine.async_scheduling
    assert engine_of(fused_allreduce=True).engine.fuses_norms
    assert engine_of(activation_dtype="mxfp8").engine.mxfp8_activations
    assert not engine_of(activation_dtype="bf16").engine.mxfp8_activations


@pytest.mark.parametrize(
    ("keys", "rule"),
    [
        ({"engine": "sglang", "fused_allreduce": True}, "fused_allreduce is a setting of vllm; sglang has none"),
        ({"engine": "llama.cpp", "async_scheduling": False}, "async_scheduling is a setting of vllm, sglang, trtllm"),
        ({"model": "llama3.1-8b", "moe_backend": "triton"}, "moe_backend applies to experts"),
        ({"enforce_eager": True, "cudagraph_mode": "full"}, "enforce_eager turns CUDA graphs and fused passes off"),
        ({"model": "llama3.1-8b", "activation_dtype": "mxfp8"}, "activation_dtype applies to experts"),
        ({"hardware": "h100x2", "activation_dtype": "mxfp8"}, "does not multiply 4-bit operands: activation_dtype"),
    ],
)
def test_a_setting_without_effect_is_refused(keys: dict[str, Any], rule: str) -> None:
    with pytest.raises(InputError, match=rule):
        engine_of(**keys)


def test_kernels_that_are_stated_are_not_those_of_another_engines_tables() -> None:
    for given in ({}, {"moe_backend": "flashinfer"}):
        assert engine_of(engine="vllm-0.15", **given).engine.cut_experts_tables == {"hopper": "trtllm"}
    assert not engine_of(engine="vllm-0.15", moe_backend="triton").engine.cut_experts_tables
    assert not engine_of(engine="vllm-0.17").engine.cut_experts_tables


def test_the_start_command_has_the_flags_of_the_settings() -> None:
    arguments = vllm_arguments(engine_of(async_scheduling=False, fused_allreduce=True, activation_dtype="mxfp8"))
    assert ("--no-async-scheduling", None) in arguments.flags
    assert ("--compilation-config", '{"pass_config": {"fuse_allreduce_rms": true}}') in arguments.flags
    assert arguments.environment == {MXFP8_VARIABLE: "1"}
    assert arguments.text_with_environment.startswith(f"{MXFP8_VARIABLE}=1 vllm serve ")
    plain = vllm_arguments(engine_of())
    assert not [name for name, _ in plain.flags if "scheduling" in name or "compilation" in name]
    assert set(KEYS) <= set(Deployment.model_fields)


def test_cuda_graphs_follow_the_settings() -> None:
    plain = engine_of(model="qwen3-30b-a3b").engine
    eager = engine_of(enforce_eager=True).engine
    assert (eager.graph_capture_sizes, eager.max_graph_tokens, eager.fuses_quantisation) == ((), 0, False)
    without = engine_of(cudagraph_mode="none").engine
    assert (without.graph_capture_sizes, without.fuses_quantisation) == ((), plain.fuses_quantisation)
    assert not engine_of(cudagraph_mode="full_decode_only").engine.graphs_with_prefill
    own = engine_of(cudagraph_capture_sizes=[8, 4, 8]).engine
    assert (own.graph_capture_sizes, own.max_graph_tokens) == ((4, 8), 8)
    few = engine_of(max_cudagraph_capture_size=64).engine
    assert few.graph_capture_sizes == tuple(size for size in plain.graph_capture_sizes if size <= 64)
    more = engine_of(max_cudagraph_capture_size=1024).engine
    assert more.graph_capture_sizes[:-1][-1] == 1008
    assert more.max_graph_tokens == 1024
    assert plain.graphs_follow_seats
    assert not any(engine.graphs_follow_seats for engine in (own, few, more))


def test_vllm_states_the_largest_graph_of_gpt_oss_itself() -> None:
    """Sizes are multiples of 16 beyond 512, and none depends on the seats; a flag decides otherwise."""
    own = engine_of(max_num_seqs=4).engine
    assert (own.max_graph_tokens, len(own.graph_capture_sizes), own.graphs_follow_seats) == (1024, 83, False)
    assert engine_of(max_cudagraph_capture_size=512).engine.max_graph_tokens == 512
    assert engine_of(engine="vllm-v0", hardware="h100x2").engine.max_graph_tokens == 256
    assert engine_of(enforce_eager=True).engine.graph_capture_sizes == ()


def test_marlin_experts_are_priced() -> None:
    marlin = engine_of(hardware="h100x2", moe_backend="marlin")
    assert marlin.engine.marlin_experts
    assert not [n for n in marlin.notices if "not priced" in n]
    assert not engine_of(hardware="h100x2", moe_backend="triton").engine.marlin_experts


def test_marlin_is_recorded_where_experts_are_not_in_mxfp4() -> None:
    notices = resolve(Deployment(model="qwen3-30b-a3b", hardware="h100x1", moe_backend="marlin")).notices
    assert [n for n in notices if n.startswith("recorded, not priced: moe_backend marlin;")]


@pytest.mark.parametrize("kernels", ["triton", "deepgemm"])
def test_kernels_that_decide_on_padded_rows_are_priced(kernels: str) -> None:
    """vLLM 0.11 pads experts in block-scaled FP8 on cards with HBM, in DeepGEMM only."""

    def is_priced(**changes: object) -> bool:
        written = {"model": "qwen3-235b-a22b", "hardware": "h100x8", "engine": "vllm-0.11", "weight_dtype": "fp8"}
        notices = resolve(Deployment.model_validate(written | {"moe_backend": kernels} | changes)).notices
        return not [n for n in notices if n.startswith("recorded, not priced")]

    assert is_priced()
    assert not is_priced(engine="vllm")
    assert not is_priced(weight_dtype="bf16")
    assert not is_priced(hardware="rtxpro6000x8")


R1_ON_B200 = {"model": "deepseek-r1", "hardware": "b200x8", "tensor_parallel": 8, "weight_dtype": "fp8"}


def r1_on_b200(**changes: object) -> ResolvedDeployment:
    return resolve(Deployment.model_validate(R1_ON_B200 | changes))


def test_flashinfer_products_are_a_choice_of_sglang() -> None:
    """The recipes of SGLang up to 0.5.9 make it on B200; the engine itself and later versions do not."""
    assert not r1_on_b200(engine="sglang").engine.flashinfer_products
    assert r1_on_b200(engine="sglang", gemm_backend="flashinfer").engine.flashinfer_products
    assert r1_on_b200(engine="sglang-0.5").engine.flashinfer_products
    assert not r1_on_b200(engine="sglang-0.5", gemm_backend="deepgemm").engine.flashinfer_products
    assert not r1_on_b200(engine="sglang-0.5", hardware="h200x8").engine.flashinfer_products
    with pytest.raises(InputError, match="gemm_backend is a setting of sglang"):
        r1_on_b200(engine="vllm", gemm_backend="flashinfer")
    with pytest.raises(InputError, match="need Blackwell with HBM, not h200: gemm_backend") as wrong:
        r1_on_b200(engine="sglang", hardware="h200x8", gemm_backend="flashinfer")
    assert wrong.value.nearest == "deepgemm"


def test_products_are_priced_in_the_kernels_of_flashinfer_and_deepgemm() -> None:
    def is_priced(**changes: object) -> bool:
        return not [n for n in r1_on_b200(engine="sglang", **changes).notices if n.startswith("recorded, not priced")]

    assert is_priced(gemm_backend="flashinfer")
    assert is_priced(gemm_backend="deepgemm")
    assert not is_priced(gemm_backend="triton")
    assert not is_priced(gemm_backend="flashinfer", model="llama3.1-70b")


def test_a_wrong_name_of_kernels_names_the_nearest() -> None:
    with pytest.raises(InputError) as wrong:
        validate_as(Deployment, {"model": "gpt-oss-120b", "hardware": "h100x2", "moe_backend": "marlon"}, "d.yaml")
    assert wrong.value.nearest == "marlin"


def test_kernels_that_are_not_priced_are_stated() -> None:
    notices = engine_of(moe_backend="cutlass", attention_backend="fa3").notices
    (found,) = [n for n in notices if "recorded, not priced" in n]
    assert found.startswith("recorded, not priced: moe_backend cutlass, attention_backend fa3; steps take the kernels")
    assert not [n for n in engine_of(enforce_eager=True).notices if "not priced" in n]


def test_only_deepgemm_computes_padded_blocks_of_experts() -> None:
    padded = engine_of(engine="vllm-0.11").engine.expert_block_rows
    assert padded
    assert engine_of(engine="vllm-0.11", moe_backend="deepgemm").engine.expert_block_rows == padded
    assert not engine_of(engine="vllm-0.11", moe_backend="triton").engine.expert_block_rows
    assert not engine_of(engine="vllm").engine.expert_block_rows


def test_the_start_command_has_the_flags_of_graphs_and_kernels() -> None:
    settings = {"enforce_eager": False, "cudagraph_mode": "piecewise", "max_cudagraph_capture_size": 256}
    made = vllm_arguments(engine_of(**settings, moe_backend="triton", attention_backend="fa3"))
    assert ("--no-enforce-eager", None) in made.flags
    assert ("--compilation-config", '{"cudagraph_mode": "PIECEWISE"}') in made.flags
    assert ("--max-cudagraph-capture-size", "256") in made.flags
    assert ("--moe-backend", "triton") in made.flags
    assert ("--attention-config", '{"backend": "FLASH_ATTN", "flash_attn_version": 3}') in made.flags
