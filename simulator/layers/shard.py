"""The part of a model that one rank runs after the parallel split, and the data type of each of its layers."""

from __future__ import annotations

from dataclasses import dataclass, replace

from calibration.families.fixed_tiles import FLASHINFER, TABLED
from calibration.operators.operators import Gemm, Matmul, Num
from catalogs.deployments.engine_settings import padded_expert_rows
from catalogs.deployments.layout import ALLGATHER_REDUCESCATTER, Layout
from catalogs.deployments.resolved import ResolvedDeployment
from catalogs.hardware.specs import Accelerator
from catalogs.models.mixers import Part
from catalogs.models.spec import ModelSpec


@dataclass(frozen=True, slots=True)
class Shard:
    """A model split over tp x pp x dp x cp ranks. Its properties are the sizes on one rank."""

    model: ModelSpec
    layout: Layout
    weight_dtype: str
    kv_dtype: str
    sampling: str = "random"  # or "top_p", "greedy"
    mxfp8_activations: bool = False  # whether MXFP4 weights are multiplied with 8-bit activations; otherwise 16 bit
    marlin_experts: bool = False  # whether Marlin's kernels compute MXFP4 experts
    flashinfer_products: bool = False  # whether FlashInfer's kernel computes dense block-scaled FP8 products
    shared_overlap_tokens: int = 0  # up to this many tokens, shared experts run in parallel with the routed ones
    sorts_logits: bool = False  # whether the engine samples top_p from sorted logits
    queries: int = 1  # tokens that each decode brings into a step
    scored: int = 1  # number of those tokens that get logits
    plain_torch: bool = False  # on a CPU, products take the weights in the layout in which they were loaded
    accelerator: Accelerator | None = None  # None: further queries of a decode do not read the cache again
    stage_layers: tuple[int, ...] = ()  # layers of each pipeline stage; empty: equal stages
    expert_block_rows: int = 0  # rows of a block in which block-scaled experts are computed, with or without tokens
    splits_scan_inputs: bool = False  # each part of the input of linear attention is a product of its own
    launches_experts_at_once: bool = False  # one operator launches the routing and all kernels of the routed experts
    norms_in_torch: bool = False  # kernels of PyTorch compute the gated norm of Mamba-2 one after the other
    stage: int | None = None  # the pipeline stage of the rank; None: the mean over the stages
    sums_prompts: bool = False  # whether the tokens of data-parallel ranks meet by an all-reduce outside CUDA graphs
    gathers_quantised: bool = False  # whether the tokens that ranks gather have the data type of their experts

    @classmethod
    def of(cls, resolved: ResolvedDeployment) -> Shard:
        """Return the shard of a deployment."""
        model, engine, unit = resolved.model, resolved.engine, resolved.hardware.accelerator
        return cls(
            model,
            resolved.layout,
            resolved.weight_dtype,
            resolved.kv_dtype,
            resolved.sampling,
            engine.mxfp8_activations and "fp4" in unit.peak_flops,
            engine.marlin_experts,
            engine.flashinfer_products and unit.is_data_center_blackwell,
            engine.shared_experts_beside_tokens,
            resolved.sampling == "top_p" and engine.top_p_by_sort,
            resolved.queries,
            resolved.queries,
            unit.kind == "cpu" and not engine.packs_weights,
            unit,
            resolved.stage_layers,
            padded_expert_rows(engine, unit),
            engine.splits_scan_inputs,
            engine.launches_experts_at_once,
            engine.mamba_norm_in_torch,
            sums_prompts=engine.sums_prompts,
            gathers_quantised=engine.gathers_quantised,
        )

    @property
    def tp(self) -> int:
        """Return the number of tensor-parallel ranks."""
        return self.layout.tensor_parallel

    @property
    def pp(self) -> int:
        """Return the number of pipeline stages."""
        return self.layout.pipeline_parallel

    @property
    def stages(self) -> tuple[Shard, ...]:
        """Return the shard of a rank of each pipeline stage, first stage first."""
        return tuple(replace(self, stage=stage) for stage in range(self.pp)) if self.pp > 1 else (self,)

    @property
    def layer_share(self) -> float:
        """Return the share of the model's layers that the rank holds.

        A stage holds every kind of layer in proportion: which kind each single layer is of does not count.
        """
        if self.stage is None or not self.stage_layers:
            return 1.0 / self.pp
        return self.stage_layers[self.stage] / sum(self.stage_layers)

    @property
    def embeds(self) -> bool:
        """Return whether the rank holds the embedding: the first stage, and the last where the output shares it."""
        return self.stage in (None, 0) or (self.projects and not self.model.lm_head_params)

    @property
    def projects(self) -> bool:
        """Return whether the rank holds the last norm and the output projection."""
        return self.stage in (None, self.pp - 1)

    @property
    def dp(self) -> int:
        """Return the number of data-parallel ranks."""
        return self.layout.data_parallel

    @property
    def cp(self) -> int:
        """Return the context-parallel ranks, which divide the tokens of each prompt."""
        return self.layout.context_parallel

    @property
    def kv_shards(self) -> int:
        """Return the ranks that divide the KV cache of each sequence."""
        return self.layout.decode_context_parallel

    @property
    def joined_heads(self) -> int:
        """Return tensor ranks that gather each other's query heads, because they hold the keys of different tokens."""
        return self.kv_shards if self.cp == 1 else 1

    @property
    def exchange_ranks(self) -> int:
        """Return the ranks of an expert group that hold different tokens."""
        return self.dp * self.cp

    @property
    def expert_group(self) -> int:
        """Ranks that divide the routed experts, either whole experts (expert parallel) or slices (tensor parallel)."""
        return self.tp * self.exchange_ranks

    @property
    def sends_to_experts(self) -> bool:
        """Return whether each token goes only to the ranks of its experts, not to all ranks of the group.

        Each tensor rank then sends its part of the tokens.
        """
        return self.layout.all2all_backend != ALLGATHER_REDUCESCATTER

    @property
    def expert_ranks(self) -> int:
        """Return the ranks over which whole experts are distributed."""
        return self.expert_group if self.layout.expert_parallel else 1

    @property
    def vocab(self) -> int:
        """Return the rows of the vocabulary-parallel embedding and output projection on one rank."""
        return -(-self.model.vocab_size // self.tp)

    @property
    def unpacks_mxfp4(self) -> bool:
        """Return whether Marlin's kernels unpack experts in MXFP4 to 16 bit."""
        return self.marlin_experts and self.model.weight_format(self.weight_dtype).has_mxfp4("experts")

    @property
    def plain_dtype(self) -> str:
        """Return the data type of weights that no format quantises: output projection and router."""
        return "fp32" if self.weight_dtype == "fp32" else "bf16"

    def dtype(self, part: Part) -> str:
        """Return the data type of a part's matrix products, as the operator vocabulary names it.

        Experts in MXFP4 that Marlin's kernels compute are a type of their own, with its own rows in the tables, and so
        are dense block-scaled FP8 products in FlashInfer's kernel.
        """
        if part == "experts" and self.unpacks_mxfp4:
            return "mxfp4_marlin"
        stored = self.model.weight_format(self.weight_dtype)
        name = stored.part_dtype(part).replace("fp16", "bf16")  # equally fast, and the type that the tables hold
        if stored.has_mxfp4(part):
            return "mxfp4_mxfp8" if self.mxfp8_activations else "mxfp4"
        if stored.has_scale_blocks(part):
            return FLASHINFER if self.flashinfer_products and part != "experts" else TABLED
        return name

    def product(self, m: Num, n: int, k: int, dtype: str) -> Gemm | Matmul:
        """Return the product of `m` tokens with n x k weights, as the engine runs it."""
        if self.plain_torch and dtype in ("bf16", "fp32"):
            return Matmul(m, n, k, 1, 1, dtype)
        return Gemm(m, n, k, dtype)

    @property
    def windows(self) -> tuple[int, ...]:
        """Return the lengths from which on some layer ignores earlier tokens, ascending."""
        found = {g.mixer.attended_tokens for g in self.model.groups if g.mixer is not None}
        return tuple(sorted(w for w in found if w))
