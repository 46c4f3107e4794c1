"""The law of start commands: a deployment written as a command and read again is the same resolved deployment."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest
import yaml
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from catalogs.deployments.resolve import resolve
from catalogs.deployments.resolved import ResolvedDeployment
from catalogs.deployments.schema import Deployment
from catalogs.errors import InputError
from catalogs.launch.command import engine_family, serve_arguments
from catalogs.launch.reading.read import read_command
from catalogs.launch.writing.trtllm import CONFIG, config

#: Fields that a command does not state, or that only describe others.
ELSEWHERE = ("notices", "hardware", "model", "engine", "replicas", "settings")

MODELS = (
    "llama3.1-8b",
    "llama3.1-70b",
    "gpt-oss-120b",
    "deepseek-v3",
    "qwen2.5-vl-7b",
    "mixtral-8x7b",
    "qwen3-30b-a3b",
)

HARDWARE = ("h100x8", "b200x8", "h200x8", "a100-80gbx8")

SIZES = st.sampled_from([1, 2, 4, 8])


def block(**keys: Any) -> Any:
    return st.none() | st.fixed_dictionaries(keys)


COMMON: dict[str, Any] = {
    "tensor_parallel": SIZES,
    "max_num_seqs": st.none() | st.integers(1, 2048),
    "max_num_batched_tokens": st.none() | st.integers(256, 32768),
    "max_model_len": st.none() | st.integers(1024, 30000),
    "gpu_memory_utilization": st.none() | st.sampled_from([0.7, 0.85, 0.9, 0.95]),
}

GRAPHS: dict[str, Any] = {
    "async_scheduling": st.sampled_from([None, False]),
    "moe_backend": st.none() | st.sampled_from(["triton", "cutlass", "deepgemm", "trtllm"]),
    "max_cudagraph_capture_size": st.none() | st.sampled_from([8, 64, 256, 1024]),
}

OPTIONS: dict[str, dict[str, Any]] = {
    "vllm": {
        "pipeline_parallel": st.sampled_from([1, 1, 2]),
        "data_parallel": st.sampled_from([1, 1, 2, 4]),
        "expert_parallel": st.booleans(),
        "decode_context_parallel": st.sampled_from([1, 1, 1, 2]),
        "context_parallel": st.sampled_from([1, 1, 1, 2]),
        "all2all_backend": st.sampled_from(["allgather_reducescatter", "deepep_low_latency", "deepep_high_throughput"]),
        "redundant_experts": st.sampled_from([0, 0, 16, 32]),
        "two_batch_overlap": st.sampled_from([False, False, True]),
        "weight_dtype": st.none() | st.sampled_from(["fp8", "fp4", "bf16"]),
        "kv_dtype": st.none() | st.sampled_from(["fp8", "bf16"]),
        "block_size": st.none() | st.sampled_from([16, 32, 64]),
        "prefix_caching": st.none() | st.booleans(),
        "api_server_count": st.none() | st.integers(1, 4),
        "async_scheduling": st.none() | st.booleans(),
        "enforce_eager": st.none() | st.booleans(),
        "fused_allreduce": st.none() | st.booleans(),
        "cudagraph_mode": st.none() | st.sampled_from(["none", "piecewise", "full", "full_decode_only"]),
        "cudagraph_capture_sizes": st.none() | st.sampled_from([[1, 2, 4], [8, 16, 512]]),
        "max_cudagraph_capture_size": st.none() | st.sampled_from([8, 64, 1024]),
        "moe_backend": st.none() | st.sampled_from(["triton", "marlin", "cutlass", "deepgemm", "flashinfer", "trtllm"]),
        "attention_backend": st.none() | st.sampled_from(["fa2", "fa3", "fa4", "flashinfer", "triton", "sdpa"]),
        "lora": block(
            adapters=st.just(4), max_loras=st.just(2), max_rank=st.sampled_from([8, 64]), max_cpu_loras=st.just(4)
        ),
        "kv_offload": block(host_gib=st.sampled_from([8.0, 64.0])),
        "queue": block(order=st.sampled_from(["fcfs", "priority"])),
        "multimodal": block(encoder_parallel=st.sampled_from(["weights", "data"])),
        "speculative": block(
            method=st.sampled_from(["ngram", "mtp"]), num_speculative_tokens=st.integers(1, 4), acceptance=st.just(0.5)
        ),
    },
    "sglang": {
        "pipeline_parallel": st.sampled_from([1, 1, 2]),
        "data_parallel": st.sampled_from([1, 1, 2, 4]),
        "expert_parallel": st.booleans(),
        "all2all_backend": st.sampled_from(
            ["allgather_reducescatter", "deepep_low_latency", "deepep_high_throughput", "deepep_auto"]
        ),
        "redundant_experts": st.sampled_from([0, 0, 16, 32]),
        "two_batch_overlap": st.sampled_from([False, False, True]),
        "weight_dtype": st.none() | st.sampled_from(["fp8", "fp4"]),
        "kv_dtype": st.none() | st.sampled_from(["fp8", "bf16"]),
        "block_size": st.none() | st.sampled_from([1, 16, 64]),
        "prefix_caching": st.none() | st.booleans(),
        "rank_dispatch": st.sampled_from([None, None, "least_requests", "least_tokens"]),
        "queue": block(order=st.sampled_from(["fcfs", "prefix"])),
        "cudagraph_mode": st.sampled_from([None, None, "none"]),
        "cudagraph_capture_sizes": st.none() | st.sampled_from([[1, 2, 4], [8, 16, 512]]),
        "gemm_backend": st.none() | st.sampled_from(["triton", "cutlass", "deepgemm"]),
        "attention_backend": st.none() | st.sampled_from(["fa3", "fa4", "flashinfer", "trtllm", "triton", "sdpa"]),
        "multimodal": block(encoder_parallel=st.sampled_from(["weights", "data"])),
        **GRAPHS,
    },
    "trtllm": {
        "pipeline_parallel": st.sampled_from([1, 1, 2]),
        "expert_parallel": st.booleans(),
        "weight_dtype": st.none() | st.sampled_from(["fp8", "fp4"]),
        "kv_dtype": st.none() | st.sampled_from(["fp8"]),
        "block_size": st.none() | st.sampled_from([32, 64]),
        "prefix_caching": st.none() | st.booleans(),
        "cudagraph_mode": st.sampled_from([None, None, "none"]),
        "attention_backend": st.none() | st.sampled_from(["trtllm", "flashinfer", "sdpa"]),
        **GRAPHS,
    },
    "llama.cpp": {},
}


@st.composite
def deployments(draw: st.DrawFn, engine: str) -> Deployment:
    """Draw a deployment, of which most optional keys are left to the engine: many together contradict each other."""
    family = engine_family(engine)
    keys: dict[str, Any] = {"model": draw(st.sampled_from(MODELS)), "engine": engine}
    keys["hardware"] = draw(st.sampled_from(HARDWARE))
    options = {**COMMON, **OPTIONS[family]}
    if family == "llama.cpp":
        del options["gpu_memory_utilization"]  # it has no such flag
    for key in draw(st.lists(st.sampled_from(sorted(options)), unique=True, max_size=6)):
        keys[key] = draw(options[key])
    return Deployment.model_validate({key: value for key, value in keys.items() if value is not None})


def written(resolved: ResolvedDeployment) -> str:
    """Return the start command as a script, with its variables and the file that TensorRT-LLM reads."""
    made = serve_arguments(resolved)
    if engine_family(resolved.engine.name) == "trtllm":
        return f"cat > {CONFIG} <<'EOF'\n{yaml.safe_dump(config(resolved))}EOF\n{made.text}"
    return made.text_with_environment


def check_law(deployment: Deployment) -> None:
    try:
        before = resolve(deployment)
        command = written(before)
    except InputError:
        assume(False)
    made = serve_arguments(before)
    assume(not any(note.startswith(("needs a ", "KV cache in")) for note in made.notes))  # the command cannot state it
    text_only = before.model.towers and before.multimodal is None
    assume(not (text_only and before.engine.name == "sglang"))  # it has no flag that leaves the towers out
    found = read_command(command, before.hardware.text, further(before))
    after = resolve(found.deployment)
    same = {f.name for f in fields(before)} - {*ELSEWHERE}
    assert {k: plain(getattr(after, k)) for k in same} == {k: plain(getattr(before, k)) for k in same}, command
    assert after.model.hf_id == before.model.hf_id or after.model.hf_id == made.model
    assert replace(after.engine, notice="") == replace(before.engine, notice=""), command
    assert not [note for note in found.notes if note.kind in ("unknown", "trap")], command
    assert serve_arguments(replace(after, model=before.model)).words == made.words


def plain(value: Any) -> Any:
    """Return a value with fractions as a command writes them, in twelve digits."""
    return float(f"{value:.12g}") if isinstance(value, float) else value


def further(resolved: ResolvedDeployment) -> list[str]:
    """Return what no command states: the acceptance of drafts, and the engine's version."""
    more = [] if resolved.speculation is None else ["speculative.acceptance=0.5"]
    return [*more, f"engine={engine_name(resolved)}"]


def engine_name(resolved: ResolvedDeployment) -> str:
    return NAMES.get((resolved.engine.name, resolved.engine.version), resolved.engine.name)


NAMES = {("vllm", "0.11"): "vllm-0.11", ("vllm", "0.15"): "vllm-0.15"}


@settings(max_examples=120, deadline=None)
@given(deployments("vllm"))
def test_vllm(deployment: Deployment) -> None:
    check_law(deployment)


@settings(max_examples=25, deadline=None)
@given(deployments("vllm-0.11"))
def test_an_older_vllm(deployment: Deployment) -> None:
    check_law(deployment)


@settings(max_examples=80, deadline=None)
@given(deployments("sglang"))
def test_sglang(deployment: Deployment) -> None:
    check_law(deployment)


@settings(max_examples=50, deadline=None)
@given(deployments("trtllm"))
def test_trtllm(deployment: Deployment) -> None:
    check_law(deployment)


@settings(max_examples=15, deadline=None)
@given(deployments("trtllm-max-utilization"))
def test_trtllm_with_another_policy(deployment: Deployment) -> None:
    check_law(deployment)


@settings(max_examples=15, deadline=None)
@given(deployments("llama.cpp"))
def test_llama_cpp(deployment: Deployment) -> None:
    check_law(deployment)


def test_the_kernels_of_a_start_command_on_amd_are_those_that_are_simulated() -> None:
    before = resolve(Deployment(model="llama3.1-8b", hardware="mi300x"))
    found = read_command(written(before), "mi300x")
    assert resolve(found.deployment).limits == before.limits
    assert [note.kind for note in found.notes if "AITER" in note.flag] == ["no effect"]
    off = read_command(written(before).replace("AITER=1", "AITER=0"), "mi300x")
    assert [note.kind for note in off.notes if "AITER" in note.flag] == ["not simulated"]


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_servers_of_two_roles(role: str) -> None:
    pool = replace(resolve(Deployment(model="llama3.1-8b", hardware="h100x2")), role=role)
    found = read_command(serve_arguments(pool).text, "h100x2")
    assert any(note.text == f"the server of a pool: {role}" for note in found.notes)


def test_two_servers_are_one_disaggregated_deployment() -> None:
    pools = [
        replace(resolve(Deployment(model="llama3.1-8b", hardware="h100x4", tensor_parallel=tp)), role=role)
        for role, tp in (("prefill", 2), ("decode", 1))
    ]
    text = " &\n".join(serve_arguments(pool).text for pool in [pools[0], pools[1], pools[1]])
    found = read_command(text, "h100x4").deployment
    assert found.disaggregation is not None
    assert (found.disaggregation.prefill_replicas, found.disaggregation.decode_replicas) == (1, 2)
    assert found.tensor_parallel == 1
    assert found.disaggregation.prefill["tensor_parallel"] == 2


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm", "llama.cpp"])
@pytest.mark.parametrize("layers", [[16, 16], [19, 13], [9, 7, 7, 9]])
def test_layers_of_pipeline_stages(engine: str, layers: list[int]) -> None:
    keys: dict[str, Any] = {"model": "llama3.1-8b", "engine": engine, "hardware": "h100x8", "pipeline_layers": layers}
    before = resolve(Deployment(**keys, pipeline_parallel=len(layers), max_model_len=8192))
    after = resolve(read_command(written(before), before.hardware.text, further(before)).deployment)
    assert after.stage_layers == before.stage_layers == tuple(layers)
