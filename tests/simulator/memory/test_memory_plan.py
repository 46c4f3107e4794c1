"""Device memory: laws, hand numbers, and the block counts real engines printed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from catalogs.deployments.layout import Layout
from catalogs.deployments.resolve import resolve
from catalogs.deployments.schema import Deployment, load_deployment
from catalogs.errors import InputError
from catalogs.models.catalog import load_model
from catalogs.units import GIB
from simulator.cluster.compiled import fit
from simulator.layers.shard import Shard
from simulator.memory.plan import activation_bytes, sequence_bytes, size_memory, weight_bytes
from tests.simulator.plants import resolved


@pytest.mark.parametrize("model", ["llama-2-7b", "llama-3.1-8b", "deepseek-v3", "gpt-oss-120b", "qwen3-30b-a3b"])
@pytest.mark.parametrize("dtype", ["bf16", "fp8", "fp4"])
def test_one_rank_holds_what_the_model_weighs(model: str, dtype: str) -> None:
    spec = load_model(model)
    assert weight_bytes(Shard(spec, Layout(), dtype, "bf16")) == pytest.approx(spec.weight_bytes(dtype), rel=1e-6)


@pytest.mark.parametrize("model", ["llama-2-70b", "deepseek-v3", "qwen3-30b-a3b"])
def test_ranks_share_the_weights(model: str) -> None:
    held = [weight_bytes(Shard(load_model(model), Layout(tp), "bf16", "bf16")) for tp in (1, 2, 4, 8)]
    for n, w in zip((2, 4, 8), held[1:], strict=True):
        assert held[0] / n <= w <= 1.1 * held[0] / n


def test_data_parallel_ranks_repeat_attention_and_share_experts() -> None:
    spec = load_model("deepseek-v3")
    dp, tp = (weight_bytes(Shard(spec, Layout(t, 1, d, True), "fp8", "bf16")) for t, d in ((1, 8), (8, 1)))
    assert tp < dp < 2 * tp


def test_kv_of_a_token_by_hand() -> None:
    spec = load_model("llama-2-70b")
    assert sequence_bytes(Shard(spec, Layout(4), "bf16", "bf16"), 1) == 80 * 2 * 2 * 128 * 2
    assert sequence_bytes(Shard(spec, Layout(16), "bf16", "bf16"), 1) == 80 * 2 * 1 * 128 * 2  # replicated head
    latent = load_model("deepseek-v3")
    for tp in (1, 8):
        assert sequence_bytes(Shard(latent, Layout(tp), "fp8", "bf16"), 1) == 61 * (512 + 64) * 2


def test_windowed_layers_stop_growing() -> None:
    s = Shard(load_model("gpt-oss-120b"), Layout(), "fp4", "bf16")
    first, second, third = (sequence_bytes(s, n) for n in (128, 1128, 2128))
    assert second - first == pytest.approx(third - second)
    assert second - first == pytest.approx(
        1000 * s.model.kv_bytes_per_token("bf16") / 2
    )  # every other layer is windowed


def blocks(**keys: object) -> int:
    return size_memory(resolved(**keys)).kv_blocks  # type: ignore[arg-type]


def test_memory_laws() -> None:
    base = blocks()
    assert blocks(gpu_memory_utilization=0.8) < base < blocks(gpu_memory_utilization=0.95)
    assert blocks(weight_dtype="fp8") > base
    assert blocks(kv_dtype="fp8") == pytest.approx(2 * base, abs=1)
    assert blocks(max_num_batched_tokens=65536) < base
    assert blocks(max_num_seqs=1024, max_num_batched_tokens=1024) < base
    assert blocks(block_size=32) == pytest.approx(base / 2, abs=1)
    assert blocks(hardware="h200x1") > base
    assert blocks(hardware="h100x2", tensor_parallel=2) > base


def test_a_given_block_count_is_kept() -> None:
    plan = size_memory(resolved(kv_blocks=1000))
    assert plan.kv_blocks == 1000
    assert plan.max_concurrency_tokens == 16000


def test_activation_rule_of_a_24_gb_card() -> None:
    """8B, 2,048 batched tokens, 256 sequences: 1.15 GiB beyond the weights in all, runtime included."""
    d = resolved("llama-3.1-8b", "rtx4090x1", max_num_seqs=256, max_num_batched_tokens=2048, max_model_len=2048)
    beyond = activation_bytes(Shard.of(d), d) + d.engine.non_torch_bytes_single
    assert beyond / GIB == pytest.approx(1.15, rel=0.1)


def test_activation_rule_of_80_gb_cards_is_an_upper_bound() -> None:
    """A published rule of thumb: 5.5 GiB dense, 8 GiB MoE at 8,192 tokens. It is meant to be safe."""
    for model, gib in (("llama-3.1-8b", 5.5), ("qwen3-30b-a3b", 8.0)):
        d = resolved(model, max_num_seqs=1024, max_num_batched_tokens=8192)
        assert 0.4 * gib < activation_bytes(Shard.of(d), d) / GIB <= gib


@pytest.mark.parametrize("case", ["h100-llama-2-7b-tp1-general-8rps", "h100-llama-2-70b-tp4-general-8rps"])
def test_block_counts_of_real_engines(validation_data: Path, case: str) -> None:
    deployment = load_deployment(validation_data / case / "deployment.yaml")
    mine = deployment.model_copy(update={"kv_blocks": None, "gpu_memory_utilization": 0.9})
    assert size_memory(resolve(mine)).kv_blocks == pytest.approx(deployment.kv_blocks, rel=0.01)


def test_what_does_not_fit_says_why_with_numbers() -> None:
    plan = size_memory(replace(resolved("llama-2-70b", "h100x8", tensor_parallel=8), layout=Layout()))
    assert not plan.fits
    assert plan.why.startswith("weights 138.0 GB > ")
    assert plan.kv_blocks == 0
    assert "GiB" in plan.equation


def test_a_plant_that_does_not_fit_names_the_nearest_that_does() -> None:
    with pytest.raises(InputError, match=r"weights 138\.0 GB") as error:
        fit(Deployment(model="llama-2-70b", hardware="h100x1", weight_dtype="bf16"))
    assert error.value.nearest == "weight_dtype fp8"
    with pytest.raises(InputError) as error:
        fit(Deployment(model="llama-3.1-405b", hardware="h100x4", tensor_parallel=4, weight_dtype="bf16"))
    assert error.value.nearest is not None


def test_weights_that_need_a_larger_share_of_the_memory_are_answered_with_it() -> None:
    deployment = {"model": "deepseek-r1", "hardware": "b200x4", "tensor_parallel": 4, "weight_dtype": "fp8"}
    with pytest.raises(InputError) as error:
        fit(Deployment.model_validate({**deployment, "engine": "sglang"}))
    assert error.value.nearest == "gpu_memory_utilization 0.95"
    key, share = error.value.nearest.split()
    fit(Deployment.model_validate({**deployment, "engine": "sglang", key: float(share)}))


def test_more_blocks_than_the_memory_holds_are_answered_with_those_that_it_holds() -> None:
    deployment = {"model": "llama3.1-8b", "hardware": "h100"}
    with pytest.raises(InputError, match="kv_blocks must fit") as error:
        fit(Deployment.model_validate({**deployment, "kv_blocks": 10**8}))
    assert error.value.nearest is not None
    blocks = int(error.value.nearest)
    memory = fit(Deployment.model_validate({**deployment, "kv_blocks": blocks}))[1]
    spare_bytes = 81559 * 2**20 - memory.weights_bytes - memory.kv_bytes
    assert 0 <= spare_bytes < memory.kv_bytes / blocks


@pytest.mark.parametrize(
    ("limits", "nearest"),
    [
        ({"max_num_batched_tokens": 10**9}, "max_num_batched_tokens 16384"),
        (
            {"max_num_seqs": 10**22},
            "max_num_seqs 2048, max_num_batched_tokens 16384",
        ),  # the tokens follow the sequences
    ],
)
def test_a_batch_that_does_not_fit_is_answered_with_a_usual_one(limits: dict[str, int], nearest: str) -> None:
    with pytest.raises(InputError, match="activations") as error:
        fit(Deployment(model="llama-3.1-8b", hardware="h100x1", **limits))
    assert error.value.nearest == nearest


def test_an_open_length_is_lowered_to_the_cache_and_a_given_one_is_not() -> None:
    open_length = Deployment(model="llama-3.1-8b", hardware="rtx4090x1", weight_dtype="bf16")
    lowered, plan = fit(open_length)
    assert plan.fits
    assert lowered.limits.max_model_len < 131072
    assert any("max_model_len" in n for n in lowered.notices)
    with pytest.raises(InputError, match="max_model_len") as error:
        fit(open_length.model_copy(update={"max_model_len": 131072}))
    assert error.value.nearest == f"max_model_len {lowered.limits.max_model_len}"


def test_engines_take_their_share_of_different_things() -> None:
    """vLLM: share x all, less weights, activations, runtime. SGLang: less weights. TensorRT-LLM: share x the rest."""
    vllm, sglang, trtllm = (resolved(engine=e, gpu_memory_utilization=0.8) for e in ("vllm", "sglang", "trtllm"))
    plans = [size_memory(r) for r in (vllm, sglang, trtllm)]
    seen = vllm.hardware.accelerator.memory_bytes - GIB / 2
    weights = plans[0].weights_bytes
    assert plans[0].kv_bytes == 0.8 * seen - weights - plans[0].activation_bytes - plans[0].non_torch_bytes
    assert plans[1].kv_bytes == 0.8 * seen - weights
    rest = seen - weights - plans[2].activation_bytes - plans[2].non_torch_bytes
    assert plans[2].kv_bytes == pytest.approx(0.8 * rest)
    for plan in plans:
        assert plan.kv_bytes == pytest.approx(plan.free_bytes)
        assert plan.fits
    assert [p.block_size for p in plans] == [16, 1, 32]


def test_llama_cpp_takes_a_context_for_every_slot_and_no_more() -> None:
    d = {"model": "llama3.1-8b", "engine": "llama.cpp", "hardware": "h100", "max_num_seqs": 8}
    small, plan = fit(Deployment(**d, max_model_len=4096))  # type: ignore[arg-type]
    assert plan.kv_blocks == small.limits.kv_blocks == 8 * 4096 // 16
    assert plan.kv_bytes == 8 * 4096 * 131072
    _, open_length = fit(Deployment(**d))  # type: ignore[arg-type]
    assert open_length.kv_bytes <= open_length.free_bytes  # eight of 131,072 tokens do not fit: shorter contexts
    assert open_length.kv_blocks * 16 == 8 * open_length.max_model_len
    with pytest.raises(InputError, match="does not fit"):
        fit(Deployment(**d, max_model_len=131072))  # type: ignore[arg-type]
