"""What one rank runs: a model after the parallel split, and the data type of each of its parts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from calibration.operators.roofline import MXFP4_BYTES
from catalogs.deployments.features import check_encoder
from catalogs.deployments.layout import Layout
from catalogs.deployments.resolved import ResolvedDeployment
from catalogs.models.layers import Attention, MlaAttention, Moe, Part
from catalogs.models.spec import ModelSpec
from catalogs.units import DTYPE_BYTES

#: Publishers whose own FP8 checkpoints carry one scale per 128 x 128 block (their model cards); others, and FP8 made on
#: the fly from a 16-bit checkpoint, use one scale per tensor.
BLOCK_FP8_FAMILIES: Final = ("deepseek", "qwen", "minimax", "kimi", "glm", "mimo")


@dataclass(frozen=True, slots=True)
class Shard:
    """A model split over tp x pp x dp x cp ranks; sizes asked of it are those of one rank."""

    model: ModelSpec
    layout: Layout
    weight_dtype: str
    kv_dtype: str
    sampling: str = "random"  # or "top_p", "greedy"
    mxfp8_activations: bool = False  # of MXFP4 weights; else 16 bit
    shared_beside_tokens: int = 0  # up to so many tokens shared experts run beside the routed ones
    sorts_logits: bool = False  # the engine draws top_p from sorted logits
    queries: int = 1  # tokens that each decode brings into a step
    scored: int = 1  # of those, the ones whose logits are computed
    latent_passes: float = 1.0  # times that the cache of an MLA block is read for all queries of a decode, in effect

    @classmethod
    def of(cls, resolved: ResolvedDeployment) -> Shard:
        """The shard of a deployment; InputError for encoders that no modelled engine step covers."""
        model, engine = resolved.model, resolved.engine
        check_encoder(model)
        return cls(
            model,
            resolved.layout,
            resolved.weight_dtype,
            resolved.kv_dtype,
            resolved.sampling,
            engine.mxfp8_activations and "fp4" in resolved.hardware.accelerator.peak_flops,
            engine.shared_experts_beside_tokens,
            resolved.sampling == "top_p" and engine.top_p_by_sort,
            resolved.queries,
            resolved.queries,
            latent_passes(model, resolved, resolved.queries),
        )

    @property
    def tp(self) -> int:
        return self.layout.tensor_parallel

    @property
    def pp(self) -> int:
        return self.layout.pipeline_parallel

    @property
    def dp(self) -> int:
        return self.layout.data_parallel

    @property
    def cp(self) -> int:
        """Ranks that share each prompt's tokens."""
        return self.layout.context_parallel

    @property
    def kv_shards(self) -> int:
        """Ranks that share each sequence's cache."""
        return self.layout.decode_context_parallel

    @property
    def joined_heads(self) -> int:
        """Tensor ranks whose query heads meet on each of them, because they hold different tokens' keys."""
        return self.kv_shards if self.cp == 1 else 1

    @property
    def exchange_ranks(self) -> int:
        """Ranks of an expert group that hold different tokens."""
        return self.dp * self.cp

    @property
    def expert_group(self) -> int:
        """Ranks that share the routed experts, whole (expert parallel) or sliced (tensor parallel)."""
        return self.tp * self.exchange_ranks

    @property
    def sends_to_experts(self) -> bool:
        """Tokens go to the ranks of their experts only, each tensor rank sending its part; else to all of the group."""
        return self.layout.all2all_backend != "allgather_reducescatter"

    @property
    def expert_ranks(self) -> int:
        return self.expert_group if self.layout.expert_parallel else 1

    def expert_width(self, moe: Moe) -> int:
        """Intermediate size of one expert on one rank, as if gated: two matrices count as two thirds of three."""
        slices = 1 if self.layout.expert_parallel else self.expert_group
        return -(-moe.expert_intermediate_size * moe.matrices // (3 * slices))

    def heads(self, mixer: Attention | MlaAttention) -> int:
        return -(-mixer.n_heads // self.tp)

    def kv_heads(self, mixer: Attention) -> int:
        """KV heads are replicated once there are more ranks than heads."""
        return max(1, -(-mixer.n_kv_heads // self.tp))

    @property
    def vocab(self) -> int:
        """Rows of the vocabulary-parallel embedding and output projection."""
        return -(-self.model.vocab_size // self.tp)

    @property
    def plain_dtype(self) -> str:
        """Of weights no format quantises: output projection, router."""
        return "fp32" if self.weight_dtype == "fp32" else "bf16"

    def dtype(self, part: Part) -> str:
        """Type of a part's matrix products as the operator vocabulary names it."""
        name = self.model.part_dtype(part, self.weight_dtype).replace("fp16", "bf16")  # as fast, and what tables hold
        if name == "fp4" and self.model.weight_format(self.weight_dtype).bytes_per_weight == MXFP4_BYTES:
            return "mxfp4_mxfp8" if self.mxfp8_activations else "mxfp4"
        if name != "fp8" or all(f.dtype != "fp8" for f in self.model.formats):
            return name
        label = f"{self.model.name} {self.model.hf_id} {self.model.architecture}".lower()
        return "fp8_block" if any(family in label for family in BLOCK_FP8_FAMILIES) else name

    @property
    def windows(self) -> tuple[int, ...]:
        """Lengths at which some layer stops attending further back, ascending."""
        found = {g.mixer.window_tokens for g in self.model.groups if isinstance(g.mixer, Attention)}
        found |= {g.mixer.index_topk_tokens for g in self.model.groups if isinstance(g.mixer, MlaAttention)}
        return tuple(sorted(w for w in found if w))


def latent_passes(model: ModelSpec, resolved: ResolvedDeployment, queries: int) -> float:
    """By how much longer MLA attention to the cache takes for so many queries than for one: not at all while bytes
    bound it, in proportion once arithmetic does (on all heads of a rank at once, it soon does)."""
    mixers = [g.mixer for g in model.groups if isinstance(g.mixer, MlaAttention)]
    if queries == 1 or not mixers:
        return 1.0
    a, unit = mixers[0], resolved.hardware.accelerator
    heads = -(-a.n_heads // resolved.layout.tensor_parallel)
    compute_s = 2.0 * heads * (2 * a.kv_lora_rank + a.rope_head_dim) / unit.flops_for("bf16")
    memory_s = a.latent_size * DTYPE_BYTES[resolved.kv_dtype] / unit.memory_bandwidth_bytes_per_s
    return max(queries * compute_s / memory_s, 1.0) / max(compute_s / memory_s, 1.0)
