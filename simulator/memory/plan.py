"""The division of device memory: bytes of weights, activations and the runtime, and the KV blocks that remain.

    KV bytes = utilisation x memory - weights - activation peak - non-torch          per accelerator
    blocks   = KV bytes / (block size x KV bytes per token)                          per data-parallel rank

Some engines divide memory by another rule (`EngineProfile.memory_rule`). SGLang's share excludes activations and the
runtime. TensorRT-LLM and transformers give KV a share of the memory that weights, activations and runtime leave, so
"usable" is all memory except the rest of that. llama.cpp reserves a context of max_model_len for each of its slots and
leaves the rest free.

The activation peak is what vLLM's start-up run finds: the larger of the widest layer over a full token budget and the
sampler over a full set of sequences. If images are served, embeddings and the vision tower's pass are part of it
(simulator/memory/towers.py).
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from calibration.operators.flops_and_bytes import ACTIVATION_BYTES
from catalogs.deployments.layout import Limits
from catalogs.deployments.resolved import ResolvedDeployment
from catalogs.models.layers import LayerGroup
from catalogs.models.mixers import Part
from catalogs.ui.words import counted
from catalogs.units import DTYPE_BYTES, GIB
from simulator.layers.attention import sharded_mixer
from simulator.layers.drafter import draft_shard, joining_bytes
from simulator.layers.feed_forward import sharded_feed_forward
from simulator.layers.shard import Shard
from simulator.memory.adapters import lora_bytes
from simulator.memory.towers import tower_memory

#: Memory that the driver lists but keeps: torch sees 79.1-79.2 GiB of an H100's 81,559 MiB, 44.4 of an L40S's 46,068,
#: 23.6 of an RTX 4090's 24,564. Engines take their share of the memory that torch sees.
DRIVER_BYTES: Final = 0.5 * GIB

#: Vocabulary-wide buffers of vLLM's sampler with top-p, in fp32 copies of the logits: 16-bit logits (1/2), fp32 (1),
#: sorted values (1) and 64-bit indices (2), softmax (1), running sum (1), scattered result (1), noise (1). With 8B,
#: 2,048 batched tokens and 256 sequences on a 24 GB card this gives 1.19 GiB beyond the weights; 1.15 was measured.
SAMPLER_COPIES: Final = 8.5

#: Sequence length at which the memory per sequence (windowed layers, linear-attention state) is divided by its tokens,
#: because a pool of equal blocks can only count tokens.
REFERENCE_TOKENS: Final = 2048


#: The blocks of a replica without a KV cache: more than all its requests together could fill.
UNLIMITED_BLOCKS: Final = 1 << 40

#: The name of the weights of towers and projectors among the weights outside the layers.
TOWERS: Final = "other parts, not run for text"


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """How the memory of one accelerator is divided, in bytes.

    `kv_blocks` is per data-parallel rank, as the engine reports it.
    """

    budget_bytes: float  # utilisation x memory
    weights_bytes: float
    activation_bytes: float
    non_torch_bytes: float
    kv_bytes: float  # the remaining memory, never negative
    kv_bytes_per_token: float  # at REFERENCE_TOKENS
    kv_blocks: int
    block_size: int
    data_parallel: int
    longest_sequence_tokens: int  # of a sequence that is alone in the cache
    max_model_len: int
    accelerators: int
    adapter_bytes: float = 0.0  # part of the weights: slots for LoRA adapters
    draft_bytes: float = 0.0  # part of the weights: the drafter
    draft_kv_bytes_per_token: float = 0.0  # part of kv_bytes_per_token: the drafter
    cross_blocks: int = 0  # blocks that every sequence holds for its encoder's output
    stage: int | None = None  # the pipeline stage of the accelerator: the one with room for the fewest blocks

    @property
    def free_bytes(self) -> float:
        """Return the bytes left for KV; negative if weights and activations alone do not fit."""
        return self.budget_bytes - self.weights_bytes - self.activation_bytes - self.non_torch_bytes

    @property
    def max_concurrency_tokens(self) -> int:
        """Return the tokens that the caches of one replica hold."""
        return self.kv_blocks * self.block_size * self.data_parallel

    @property
    def replica_kv_bytes_per_token(self) -> float:
        """Return the bytes that a token takes on all accelerators of a replica together.

        The accelerators of a pipeline count as the stage of this plan.
        """
        return self.kv_bytes_per_token * self.accelerators / self.data_parallel

    @property
    def cross_tokens(self) -> int:
        """Return the tokens in the blocks that a sequence's encoder output takes."""
        return self.cross_blocks * self.block_size

    @property
    def fits(self) -> bool:
        """Return whether the weights and one sequence of max_model_len fit, which the engine checks when it starts."""
        return not self.why

    @property
    def why(self) -> str:
        """Return the limit that is exceeded, with its numbers; empty if the plan fits."""
        held, n = self.weights_bytes, self.accelerators
        if self.budget_bytes <= 0:
            return f"the engine reserves all memory of an accelerator, {_gb(-self.budget_bytes)} more than there is"
        if held > self.budget_bytes:
            lora = f" ({_gb(self.adapter_bytes * n)} of them LoRA slots)" if self.adapter_bytes else ""
            lora += f" ({_gb(self.draft_bytes * n)} of them the drafter)" if self.draft_bytes else ""
            if self.stage is not None:  # the other stages hold less
                stage = f"each accelerator of pipeline stage {self.stage + 1}"
                return f"weights {_gb(held)} > {_gb(self.budget_bytes)} usable on {stage}"
            return f"weights {_gb(held * n)}{lora} > {_gb(self.budget_bytes * n)} usable on {counted(n, 'accelerator')}"
        if self.free_bytes <= 0:
            rest = _gb(self.activation_bytes + self.non_torch_bytes)
            return f"weights {_gb(held)} + activations and runtime {rest} > {_gb(self.budget_bytes)} per accelerator"
        longest = self.longest_sequence_tokens
        if longest >= self.max_model_len:
            return ""
        return f"the KV cache holds one sequence of {longest} tokens, less than max_model_len {self.max_model_len}"

    @property
    def equation(self) -> str:
        """Return the KV size and its terms in GiB, on one line."""
        terms = (self.budget_bytes, self.weights_bytes, self.activation_bytes, self.non_torch_bytes, self.free_bytes)
        budget, weights, activations, runtime, left = (f"{t / GIB:.2f}" for t in terms)
        if not self.kv_bytes_per_token:
            return (
                f"towers only: {budget} (usable) - {weights} (weights) - {activations} (their pass, or the encoder "
                f"cache) - {runtime} (runtime) = {left} GiB per accelerator left free; no KV cache"
            )
        held = f"weights, {self.draft_bytes / GIB:.2f} of them the drafter" if self.draft_bytes else "weights"
        return (
            f"KV = {budget} (usable) - {weights} ({held}) - {activations} (activations) - {runtime} (runtime) "
            f"= {left} GiB per accelerator; at {self.kv_bytes_per_token:.0f} B per token "
            f"{self.kv_blocks} blocks of {self.block_size}"
            + (f", {self.cross_blocks} of them in every sequence for its encoder's output" if self.cross_blocks else "")
        )


def size_memory(resolved: ResolvedDeployment) -> MemoryPlan:
    """Return the memory plan of one replica's accelerators.

    A given `kv_blocks` overrides the number of blocks and with it the KV bytes, nothing else. The stages of a pipeline
    have equally many blocks, as many as the stage that has room for the fewest, whose plan this is.
    """
    whole = Shard.of(resolved)
    if whole.pp == 1:
        return _stage_memory(resolved, whole)
    alike = {(s.layer_share, s.embeds, s.projects): s for s in whole.stages}
    plans = (_stage_memory(resolved, shard) for shard in alike.values())
    return min(plans, key=lambda plan: (plan.kv_blocks, plan.longest_sequence_tokens, plan.free_bytes))


def _stage_memory(resolved: ResolvedDeployment, shard: Shard) -> MemoryPlan:
    """Return the memory plan of the accelerators of one pipeline stage."""
    engine, limits = resolved.engine, resolved.limits
    unit = resolved.hardware.accelerator
    visible = unit.memory_bytes - (DRIVER_BYTES if unit.kind == "gpu" else 0.0)
    adapters, drafter, drafting = lora_bytes(resolved), draft_bytes(resolved), draft_shard(resolved)
    tower = tower_memory(resolved)
    serves = resolved.runs_language_model
    weights = (weight_bytes(shard) if serves else outer_bytes(shard)[TOWERS]) + adapters + drafter + tower.copies
    activations = tower.activation_bytes(activation_bytes(shard, resolved) if serves else 0.0)
    alone = resolved.accelerators_per_replica == 1
    runtime = engine.non_torch_bytes_single if alone else engine.non_torch_bytes_parallel
    share = resolved.gpu_memory_utilization
    budget = share * visible
    if engine.memory_rule == "static":
        activations = runtime = 0.0  # they use the memory outside the budget
    elif engine.memory_rule == "free":
        budget = visible - (1.0 - share) * max(visible - weights - activations - runtime, 0.0)
    kv_bytes = max(budget - weights - activations - runtime, 0.0)
    if not serves:
        return _encoder_plan(resolved, budget, weights, activations, runtime)
    caches = [shard] if drafting is None else [shard, drafting]
    per_token = cache_bytes(caches, REFERENCE_TOKENS) / REFERENCE_TOKENS
    block_bytes = per_token * limits.block_size
    blocks = int(kv_bytes / block_bytes) if block_bytes else limits.max_num_seqs
    if limits.kv_blocks:
        blocks, kv_bytes = limits.kv_blocks, limits.kv_blocks * block_bytes
    slots = limits.max_num_seqs if engine.memory_rule == "slots" else 1
    # An engine starts if the longest sequence fits in addition to a token budget of encoder output (CrossAttentionSpec)
    crossing = -(-limits.max_num_batched_tokens // limits.block_size) if shard.model.encoder_tokens else 0
    longest = _longest(caches, kv_bytes / slots - crossing * block_bytes, limits)
    if engine.memory_rule == "slots" and not limits.kv_blocks:
        blocks = slots * -(-longest // limits.block_size)
        kv_bytes = min(kv_bytes, slots * cache_bytes(caches, longest))
    return MemoryPlan(
        budget,
        weights,
        activations,
        runtime,
        kv_bytes,
        per_token,
        blocks,
        limits.block_size,
        resolved.layout.data_parallel,
        longest,
        limits.max_model_len,
        resolved.accelerators_per_replica,
        adapters,
        drafter,
        cache_bytes(caches[1:], REFERENCE_TOKENS) / REFERENCE_TOKENS,
        -(-shard.model.encoder_tokens // limits.block_size),
        shard.stage,
    )


def _encoder_plan(
    resolved: ResolvedDeployment, budget: float, weights: float, activations: float, runtime: float
) -> MemoryPlan:
    """Return the memory plan of a replica of an encoder pool, which has no KV cache.

    Blocks never limit its requests.
    """
    limits = resolved.limits
    fits = budget > weights + activations + runtime
    return MemoryPlan(
        budget,
        weights,
        activations,
        runtime,
        0.0,
        0.0,
        UNLIMITED_BLOCKS,
        limits.block_size,
        1,
        limits.max_model_len if fits else 0,
        limits.max_model_len,
        resolved.accelerators_per_replica,
    )


def draft_bytes(resolved: ResolvedDeployment) -> float:
    """Return the weights of the drafter on one rank.

    A drafter is a whole model, or a head that shares the target's embedding and output projection.
    """
    shard, speculation = draft_shard(resolved), resolved.speculation
    if shard is None or speculation is None:
        return 0.0
    if not speculation.is_head:
        return weight_bytes(shard)
    layers = sum(g.count * layer_bytes(shard, g) for g in shard.model.groups)
    return layers + joining_bytes(shard, speculation.method)


def weight_bytes(shard: Shard) -> float:
    """Return the bytes of weights on one rank.

    Linear layers and the vocabulary are divided over tensor ranks, experts over all ranks. Norms and routers are on
    every rank.
    """
    model = shard.model
    layers = sum(g.count * layer_bytes(shard, g) for g in (*model.groups, *model.encoder_groups)) * shard.layer_share
    return layers + sum(outer_bytes(shard).values())


def outer_bytes(shard: Shard) -> dict[str, float]:
    """Return the bytes of the weights outside the layers on one rank, by what they are."""
    model = shard.model
    each = model.weight_format(shard.weight_dtype).other_bytes_per_weight()
    return {
        "embedding": model.embedding_params / shard.tp * each if shard.embeds else 0.0,
        "output projection": model.lm_head_params / shard.tp * each if shard.projects else 0.0,
        TOWERS: model.other_params / shard.tp * each,
        "last norms": model.norm_size * (2 if model.is_encoder_decoder else 1) * each if shard.projects else 0.0,
    }


def layer_bytes(shard: Shard, group: LayerGroup) -> float:
    """Return the bytes of weights of one layer on one rank."""
    mixer, block = sharded_mixer(shard, group), sharded_feed_forward(shard, group)
    held: dict[Part, float] = block.part_params() if block else {}
    if group.mixer and mixer:
        held = {group.mixer.part: group.n_mixers * mixer.linear_params()} | held
    stored = shard.model.weight_format(shard.weight_dtype)
    linear = sum(n * stored.part_bytes_per_weight(part) for part, n in held.items())
    small = group.small_params(shard.model.hidden_size, shard.model.norm_size)
    return linear + small * stored.other_bytes_per_weight()


def activation_bytes(shard: Shard, resolved: ResolvedDeployment) -> float:
    """Return the activation peak of the engine's start-up run on one rank: the widest layer or the sampler."""
    model, seqs, tokens = shard.model, resolved.limits.max_num_seqs, resolved.limits.max_num_batched_tokens
    # Elements alive per token in a layer: residual and hidden state, and the wider of its two blocks.
    groups = (*model.groups, *model.encoder_groups)
    blocks = [block for g in groups for block in (sharded_mixer(shard, g), sharded_feed_forward(shard, g)) if block]
    widest = 2 * model.hidden_size + max((block.activation_width() for block in blocks), default=0.0)
    layer = widest * tokens * ACTIVATION_BYTES
    if resolved.engine.memory_rule == "free":  # TensorRT-LLM runs a few long prompts, not a full set of sequences
        return layer
    if resolved.engine.memory_rule == "slots":  # llama.cpp reserves one physical batch, with logits of all its tokens
        share = min(1.0, (resolved.engine.physical_batch_tokens or math.inf) / tokens)
        return share * (layer + tokens * model.vocab_size * DTYPE_BYTES["fp32"])
    return max(layer, seqs * model.vocab_size * DTYPE_BYTES["fp32"] * SAMPLER_COPIES)  # the layer or the sampler


def sequence_bytes(shard: Shard, tokens: float) -> float:
    """Return the cache of one sequence on one rank. Windowed layers keep only their window, and states are constant.

    Engines with a hybrid KV manager (vLLM V1, SGLang) free the tokens behind a window. MLA's latent is on every rank.
    Ranks that divide a cache (decode_context_parallel) hold their part of its tokens, others hold all of them.
    """
    mixers = (sharded_mixer(shard, group) for group in shard.model.groups)
    return sum(mixer.cache_bytes(tokens) for mixer in mixers if mixer) * shard.layer_share / shard.kv_shards


def cache_bytes(shards: Sequence[Shard], tokens: float) -> float:
    """Return the cache of one sequence on one rank, of the target and of its drafter: vLLM's blocks hold both."""
    return sum(sequence_bytes(shard, tokens) for shard in shards)


def _longest(shards: Sequence[Shard], kv_bytes: float, limits: Limits) -> int:
    """Return the longest sequence that fits alone, at most max_model_len, in whole blocks."""
    if cache_bytes(shards, -(-limits.max_model_len // limits.block_size) * limits.block_size) <= kv_bytes:
        return limits.max_model_len
    blocks = range(1, 1 + -(-limits.max_model_len // limits.block_size))
    most = bisect_right(blocks, kv_bytes, key=lambda n: cache_bytes(shards, n * limits.block_size))
    return min(most * limits.block_size, limits.max_model_len)


def _gb(n_bytes: float) -> str:
    return f"{n_bytes / 1e9:.1f} GB"
