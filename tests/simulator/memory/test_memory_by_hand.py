"""Device memory of several ranks by hand: weights, cache, activations, adapters and drafters, for TP, PP and DP."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from catalogs.deployments.layout import Layout
from catalogs.deployments.resolution.optional_blocks import DISK_BYTES_PER_S
from catalogs.deployments.resolve import resolve
from catalogs.deployments.schema import Deployment
from catalogs.errors import InputError
from catalogs.models.catalog import load_model
from catalogs.units import GIB
from simulator.layers.shard import Shard
from simulator.memory.adapters import LoraModule, adapter_bytes, lora_rules, modules
from simulator.memory.cache_groups import CacheGroup, cache_groups, even_blocks, held_bytes, varies
from simulator.memory.plan import (
    DRIVER_BYTES,
    REFERENCE_TOKENS,
    SAMPLER_COPIES,
    MemoryPlan,
    activation_bytes,
    cache_bytes,
    outer_bytes,
    sequence_bytes,
    size_memory,
    weight_bytes,
)
from tests.simulator.plants import ToySource, resolved
from tests.simulator.worlds import requests

#: Llama-3.1-8B: 32 layers, hidden 4,096, 32 heads of 128, 8 KV heads, inner 14,336, vocabulary 128,256.
HIDDEN, INNER, VOCABULARY, LAYERS = 4096, 14336, 128256, 32
ATTENTION = HIDDEN * (4096 + 2 * 1024) + 4096 * HIDDEN
MLP = 3 * HIDDEN * INNER
NORMS = 2 * HIDDEN
TOKEN = LAYERS * 2 * 8 * 128 * 2  # bytes of a token in the cache of one rank


def llama(tp: int = 1, pp: int = 1, **more: object) -> Shard:
    return Shard(load_model("llama-3.1-8b"), Layout(tp, pp), "bf16", "bf16", **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("tp", [1, 2, 4, 8])
@pytest.mark.parametrize("pp", [1, 2])
def test_weights_of_a_rank(tp: int, pp: int) -> None:
    """Linear layers and vocabulary are divided over tensor ranks, layers over stages; norms are whole."""
    layers = LAYERS * ((ATTENTION + MLP) / tp + NORMS) / pp
    outside = 2 * VOCABULARY * HIDDEN / tp + HIDDEN
    assert weight_bytes(llama(tp, pp)) == pytest.approx(2 * (layers + outside), rel=1e-12)


@pytest.mark.parametrize("tp", [1, 2, 4])
def test_weights_outside_the_layers_of_a_rank(tp: int) -> None:
    """Tensor ranks divide the embedding, the output projection and the parts that no text runs, such as a tower."""
    model = replace(load_model("llama-3.1-8b"), other_params=400_000_000)
    assert outer_bytes(Shard(model, Layout(tp), "bf16", "bf16")) == {
        "embedding": 2 * VOCABULARY * HIDDEN / tp,
        "output projection": 2 * VOCABULARY * HIDDEN / tp,
        "other parts, not run for text": 800_000_000 / tp,
        "last norms": 2 * HIDDEN,
    }


@pytest.mark.parametrize(("tp", "heads"), [(1, 8), (2, 4), (4, 2), (8, 1), (16, 1)])
def test_cache_of_a_rank(tp: int, heads: int) -> None:
    """Ranks divide the KV heads while there are enough, and stages divide the layers."""
    token = LAYERS * 2 * heads * 128 * 2
    assert sequence_bytes(llama(tp), 1000) == 1000 * token
    assert sequence_bytes(llama(tp, 2), 1000) == 1000 * token / 2
    assert cache_bytes([llama(tp), llama(1)], 10) == 10 * (token + TOKEN)
    shared = Shard(load_model("llama-3.1-8b"), Layout(16, decode_context_parallel=2), "bf16", "bf16")
    assert sequence_bytes(shared, 1000) == 1000 * LAYERS * 2 * 128 * 2 / 2


@pytest.mark.parametrize("tp", [1, 2, 4])
def test_the_plan_of_a_rank(tp: int) -> None:
    """Share x memory that torch sees, less weights, activations and the runtime of one or of several ranks."""
    limits = {"gpu_memory_utilization": 0.8, "max_num_seqs": 16, "max_num_batched_tokens": 8192, "max_model_len": 4096}
    d = resolved("llama-3.1-8b", "h100x8", tensor_parallel=tp, **limits)
    plan = size_memory(d)
    unit, engine = d.hardware.accelerator, d.engine
    runtime = engine.non_torch_bytes_single if tp == 1 else engine.non_torch_bytes_parallel
    assert engine.non_torch_bytes_single != engine.non_torch_bytes_parallel
    assert DRIVER_BYTES == GIB / 2
    budget = 0.8 * (unit.memory_bytes - GIB / 2)
    weights = 2 * (LAYERS * ((ATTENTION + MLP) / tp + NORMS) + 2 * VOCABULARY * HIDDEN / tp + HIDDEN)
    layer = (2 * HIDDEN + 3 * INNER / tp) * 8192 * 2
    sampler = 16 * VOCABULARY * 4 * SAMPLER_COPIES
    assert plan.budget_bytes == pytest.approx(budget, rel=1e-12)
    assert plan.weights_bytes == pytest.approx(weights, rel=1e-12)
    assert plan.activation_bytes == pytest.approx(max(layer, sampler), rel=1e-12)
    assert layer > sampler
    assert plan.non_torch_bytes == runtime
    kv = budget - weights - layer - runtime
    assert plan.kv_bytes == plan.free_bytes == pytest.approx(kv, rel=1e-12)
    assert plan.kv_bytes_per_token == TOKEN / tp
    assert plan.kv_blocks == int(kv / (16 * TOKEN / tp))
    assert plan.max_concurrency_tokens == 16 * plan.kv_blocks
    assert (plan.accelerators, plan.data_parallel, plan.block_size, plan.max_model_len) == (tp, 1, 16, 4096)
    assert (plan.adapter_bytes, plan.draft_bytes, plan.draft_kv_bytes_per_token, plan.cross_blocks) == (0, 0, 0, 0)
    assert plan.longest_sequence_tokens == 4096
    assert plan.fits


def test_many_sequences_are_sampled_together() -> None:
    """Eight and a half copies of the logits in 32 bits are more than the widest layer."""
    d = resolved("llama-3.1-8b", max_num_seqs=512, max_num_batched_tokens=512)
    assert activation_bytes(Shard.of(d), d) == pytest.approx(512 * VOCABULARY * 4 * 8.5, rel=1e-12)


def test_llama_cpp_keeps_the_logits_of_one_physical_batch() -> None:
    d = resolved("llama-3.1-8b", "h100", engine="llama.cpp", max_num_batched_tokens=2048)
    physical = d.engine.physical_batch_tokens
    assert physical == 512
    whole = (2 * HIDDEN + 3 * INNER) * 2048 * 2 + 2048 * VOCABULARY * 4
    assert activation_bytes(Shard.of(d), d) == pytest.approx(whole / 4, rel=1e-12)
    small = resolved("llama-3.1-8b", "h100", engine="llama.cpp", max_num_batched_tokens=256)
    assert activation_bytes(Shard.of(small), small) == pytest.approx(whole / 8, rel=1e-12)  # no more than its batch


def test_tensorrt_llm_samples_no_full_set_of_sequences() -> None:
    d = resolved("llama-3.1-8b", engine="trtllm", max_num_seqs=512, max_num_batched_tokens=1024)
    assert activation_bytes(Shard.of(d), d) == pytest.approx((2 * HIDDEN + 3 * INNER) * 1024 * 2, rel=1e-12)


def test_data_parallel_ranks_each_have_a_cache() -> None:
    d = resolve(Deployment(model="qwen3-30b-a3b", hardware="h100x4", data_parallel=4, expert_parallel=True))
    plan = size_memory(d)
    assert plan.data_parallel == plan.accelerators == 4
    assert plan.max_concurrency_tokens == 4 * plan.kv_blocks * plan.block_size
    assert plan.kv_blocks == int(plan.kv_bytes / (plan.kv_bytes_per_token * plan.block_size))


def test_copies_of_experts_take_the_memory_of_experts() -> None:
    """Qwen3-30B-A3B over four ranks, 48 layers: 8 copies are two more experts of 3 x 2,048 x 768 weights on each."""
    keys = {"model": "qwen3-30b-a3b", "hardware": "h100x4", "data_parallel": 4, "expert_parallel": True}
    few, more = (
        size_memory(resolve(Deployment(**keys, all2all_backend="deepep_low_latency", redundant_experts=n)))
        for n in (0, 8)
    )
    assert more.weights_bytes - few.weights_bytes == pytest.approx(48 * 2 * 3 * 2048 * 768 * 2, rel=1e-9)


def test_a_given_number_of_blocks_replaces_the_bytes_too() -> None:
    plan = size_memory(resolved("llama-3.1-8b", kv_blocks=100, max_model_len=4096))
    assert (plan.kv_blocks, plan.kv_bytes) == (100, 100 * 16 * TOKEN)
    assert plan.longest_sequence_tokens == 1600
    assert plan.why == "the KV cache holds one sequence of 1600 tokens, less than max_model_len 4096"
    enough = size_memory(resolved("llama-3.1-8b", kv_blocks=256, max_model_len=4096))
    assert (enough.longest_sequence_tokens, enough.why) == (4096, "")


def plan_of(**changes: object) -> MemoryPlan:
    figures = dict.fromkeys(("weights_bytes", "activation_bytes", "non_torch_bytes"), 1e9)
    rest = {
        "budget_bytes": 10e9,
        "kv_bytes": 7e9,
        "kv_bytes_per_token": 1e5,
        "kv_blocks": 4000,
        "block_size": 16,
        "data_parallel": 1,
        "longest_sequence_tokens": 4096,
        "max_model_len": 4096,
        "accelerators": 2,
    }
    return MemoryPlan(**(figures | rest | changes))  # type: ignore[arg-type]


def test_the_limit_that_is_exceeded_is_named_with_its_numbers() -> None:
    assert plan_of().fits
    assert plan_of(weights_bytes=11e9).why == "weights 22.0 GB > 20.0 GB usable on 2 accelerators"
    assert plan_of(budget_bytes=-3e9).why == (
        "the engine reserves all memory of an accelerator, 3.0 GB more than there is"
    )
    of_stage = plan_of(weights_bytes=11e9, stage=0).why  # the other stages may hold less
    assert of_stage == "weights 11.0 GB > 10.0 GB usable on each accelerator of pipeline stage 1"
    named = plan_of(weights_bytes=11e9, adapter_bytes=1e9, draft_bytes=2e9).why
    assert "(2.0 GB of them LoRA slots) (4.0 GB of them the drafter)" in named
    assert plan_of(weights_bytes=8e9).why.startswith("weights 8.0 GB + activations and runtime 2.0 GB > 10.0 GB per")
    assert plan_of(weights_bytes=10e9).why.startswith("weights 10.0 GB + ")  # no more than the budget by themselves
    assert plan_of(longest_sequence_tokens=4095).why
    assert plan_of(longest_sequence_tokens=5000).fits
    crossed = plan_of(cross_blocks=94)
    assert crossed.cross_tokens == 94 * 16
    assert "94 of them in every sequence" in crossed.equation
    assert "every sequence" not in plan_of().equation
    assert "= 6.52 GiB per accelerator; at 100000 B per token 4000 blocks of 16" in plan_of().equation
    assert f"{2e9 / GIB:.2f} of them the drafter" in plan_of(draft_bytes=2e9).equation


def test_an_encoder_decoder_leaves_room_for_the_output_of_its_encoder() -> None:
    """Whisper: 1,500 encoder tokens are 94 blocks of 16; the token budget of encoder output comes off the longest."""
    d = resolve(Deployment(model="whisper-large-v3", hardware="l4", max_num_seqs=4, max_num_batched_tokens=1500))
    plan, shard = size_memory(d), Shard.of(d)
    assert plan.cross_blocks == 94
    model = shard.model
    layers = sum(g.count * g.params(1280, 2560) for g in (*model.groups, *model.encoder_groups))
    outside = model.embedding_params + model.lm_head_params + model.other_params + 2 * 2560
    assert plan.weights_bytes == pytest.approx(2 * (layers + outside), rel=1e-12)
    given = resolve(
        Deployment(model="whisper-large-v3", hardware="l4", max_num_seqs=4, max_num_batched_tokens=1500, kv_blocks=100)
    )
    assert size_memory(given).longest_sequence_tokens == 6 * 16  # 100 blocks less 94


def test_a_drafter_takes_weights_and_cache() -> None:
    asked = {"model": "llama-3.1-70b", "hardware": "h100x4", "tensor_parallel": 4, "weight_dtype": "bf16"}
    draft = {"method": "draft_model", "model": "llama-3.1-8b", "num_speculative_tokens": 3, "acceptance": 0.7}
    plain = size_memory(resolve(Deployment.model_validate(asked)))
    plan = size_memory(resolve(Deployment.model_validate({**asked, "speculative": draft})))
    assert plan.draft_bytes == pytest.approx(weight_bytes(llama(4)), rel=1e-9)
    assert plan.weights_bytes - plain.weights_bytes == pytest.approx(plan.draft_bytes, rel=1e-9)
    assert plan.draft_kv_bytes_per_token == TOKEN / 4
    assert plan.kv_bytes_per_token == plain.kv_bytes_per_token + TOKEN / 4


# ---- adapters


@pytest.mark.parametrize("tp", [1, 2, 4])
def test_adapter_matrices_of_a_rank(tp: int) -> None:
    """Column-parallel layers: A whole, B divided. Row-parallel layers: A divided, B whole."""
    found = modules(llama(tp))
    assert found == [
        LoraModule(HIDDEN, (4096 / tp, 1024 / tp, 1024 / tp), LAYERS),
        LoraModule(4096 / tp, (HIDDEN,), LAYERS),
        LoraModule(HIDDEN, (INNER / tp, INNER / tp), LAYERS),
        LoraModule(INNER / tp, (HIDDEN,), LAYERS),
    ]
    layer = (3 * HIDDEN + 6144 / tp) + (4096 / tp + HIDDEN) + (2 * HIDDEN + 2 * INNER / tp) + (INNER / tp + HIDDEN)
    assert adapter_bytes(llama(tp), 8) == pytest.approx(2 * LAYERS * 8 * layer, rel=1e-12)
    assert adapter_bytes(llama(tp, 2), 8) == pytest.approx(LAYERS * 8 * layer, rel=1e-12)


@pytest.mark.parametrize("model", ["deepseek-r1", "mixtral-8x7b"])
def test_adapters_of_other_layers_are_refused(model: str) -> None:
    """Latent attention before a dense block, and plain attention before experts."""
    first = load_model(model).groups[0]
    assert (first.plain_attention is None) != (first.dense_block is None)
    with pytest.raises(InputError, match="dense models with plain attention"):
        modules(Shard(load_model(model), Layout(8), "bf16", "bf16"))


def test_one_gate_less_is_one_matrix_less() -> None:
    shard = llama()
    groups = tuple(replace(g, ffn=replace(g.ffn, gated=False)) for g in shard.model.groups)  # type: ignore[type-var]
    assert modules(replace(shard, model=replace(shard.model, groups=groups)))[2].n_out == (INNER,)


class Bytes:
    """A source whose kernels stream a byte in a picosecond."""

    def cost(self, op: object) -> object:
        seconds = np.asarray(op.tokens * op.bytes_per_token) * 1e-12  # type: ignore[attr-defined]
        return type("Cost", (), {"seconds": seconds})()


def test_seconds_of_an_adapter_by_hand() -> None:
    """Shrink and expand read and write their bytes, or run at half of the matrix rate, whichever takes longer."""
    lora = {"adapters": 9, "max_loras": 4, "max_rank": 64}
    d = resolve(Deployment.model_validate({"model": "llama-3.1-8b", "hardware": "h100", "lora": lora}))
    rules = lora_rules(d, Bytes())  # type: ignore[arg-type]
    assert rules is not None
    part, unit = adapter_bytes(Shard.of(d), 64), d.hardware.accelerator
    assert rules.from_host_s == pytest.approx(part / d.hardware.node.host_bytes_per_s, rel=1e-12)
    assert rules.from_disk_s == pytest.approx(part / DISK_BYTES_PER_S, rel=1e-12)
    assert rules.further_s == pytest.approx(part / unit.memory_bandwidth_bytes_per_s, rel=1e-12)
    rate = unit.peak_flops["bf16"] / 2
    for n, seconds in zip(rules.tokens, rules.step_s, strict=True):
        total = 0.0
        for n_in, n_out in ((4096, (4096, 1024, 1024)), (4096, (4096,)), (4096, (INNER, INNER)), (INNER, (4096,))):
            parts, outputs = len(n_out), sum(n_out)
            shrink = 2 * n * n_in + 2 * parts * 64 * n_in + 4 * n * parts * 64
            expand = 4 * n * parts * 64 + 2 * 64 * outputs + 2 * 2 * n * outputs
            total += LAYERS * max(shrink * 1e-12, 2 * n * parts * 64 * n_in / rate)
            total += LAYERS * max(expand * 1e-12, 2 * n * 64 * outputs / rate)
        assert seconds == pytest.approx(total if n else 0.0, rel=1e-9)
    assert rules.tokens[0] == 0.0
    assert rules.tokens[1] == 1.0
    assert rules.tokens[-1] == d.limits.max_num_batched_tokens


def test_no_adapters_no_rules() -> None:
    d = resolved("llama-3.1-8b")
    assert lora_rules(d, ToySource(d.hardware.accelerator)) is None


# ---- windows


@pytest.mark.parametrize("tp", [1, 2])
def test_bytes_of_a_sequence_with_windows_by_hand(tp: int) -> None:
    """gpt-oss-20b: 12 full and 12 windowed layers of 8 KV heads of 64; a block of 16 tokens in one group."""
    shard = Shard(load_model("gpt-oss-20b"), Layout(tp), "bf16", "bf16")
    page = 12 * 16 * (8 // tp) * 2 * 64 * 2
    assert held_bytes(shard, 4096, 16) == pytest.approx((256 + 8.9375) * page, rel=1e-12)
    assert held_bytes(shard, 17, 16) == pytest.approx(4 * page, rel=1e-12)
    assert held_bytes(shard, 17, 16, grouped=False) == sequence_bytes(shard, 32)
    stages = Shard(load_model("gpt-oss-20b"), Layout(tp, 2), "bf16", "bf16")
    assert held_bytes(stages, 4096, 16) == pytest.approx((256 + 8.9375) * page / 2, rel=1e-12)
    assert varies(shard)
    assert not varies(llama())


def kinds(full: int, windowed: int) -> list[CacheGroup] | None:
    base = Shard(load_model("gpt-oss-20b"), Layout(), "bf16", "bf16")
    by_window = {g.mixer.window_tokens: g for g in base.model.groups}  # type: ignore[union-attr]
    groups = (replace(by_window[None], count=full), replace(by_window[128], count=windowed))
    return cache_groups(replace(base, model=replace(base.model, groups=groups)))


def test_groups_are_as_large_as_the_smaller_kind_unless_the_kinds_are_alike() -> None:
    assert kinds(4, 5) == [CacheGroup(5, None), CacheGroup(5, 128)]
    assert kinds(4, 6) == [CacheGroup(4, None), CacheGroup(4, 128), CacheGroup(4, 128)]  # exactly 1.5 times as many
    assert kinds(9, 4) == [CacheGroup(4, None)] * 3 + [CacheGroup(4, 128)]
    mixed = replace(llama().model.groups[0], mixer=replace(llama().model.groups[0].mixer, n_kv_heads=4))
    two_sizes = replace(llama().model, groups=(*llama().model.groups, mixed))
    assert cache_groups(replace(llama(), model=two_sizes)) is None


def test_equal_blocks_hold_the_same_sequences() -> None:
    """Sequences weigh by their decode time and are taken halfway through their output."""
    d = resolve(Deployment(model="gpt-oss-20b", hardware="h100", max_model_len=32768))
    memory, shard = size_memory(d), Shard.of(d)
    work = requests([0.0, 0.0], [1000, 100], [200, 600])
    held = 200 * held_bytes(shard, 1100, 16) + 600 * held_bytes(shard, 400, 16)
    per_block = held / (200 * 69 + 600 * 25)
    assert even_blocks(d, memory, work) == int(memory.kv_bytes / per_block)
    scarce = replace(memory, kv_bytes=held_bytes(shard, 400, 16), budget_bytes=0.0)
    scarce = replace(scarce, budget_bytes=scarce.budget_bytes - scarce.free_bytes + scarce.kv_bytes)
    assert scarce.kv_bytes == pytest.approx(scarce.free_bytes)
    scarce = replace(scarce, kv_bytes=scarce.free_bytes)
    assert even_blocks(d, scarce, work) == -(-1200 // 16)  # the longest sequence fits if it runs alone
    short = replace(scarce, longest_sequence_tokens=800)
    assert even_blocks(d, short, work) == max(int(short.kv_bytes / per_block), 50)
    assert even_blocks(d, memory, requests([], [], [])) == memory.kv_blocks


def test_tokens_of_reference() -> None:
    """Windowed layers are charged at 2,048 tokens a sequence, where they have long stopped growing."""
    assert REFERENCE_TOKENS == 2048
    d = resolve(Deployment(model="gpt-oss-20b", hardware="h100", max_model_len=32768))
    width = 8 * 2 * 64 * 2
    assert size_memory(d).kv_bytes_per_token == pytest.approx(12 * width * (1 + 128 / 2048), rel=1e-12)
