"""Model files of the catalog: a strict, compact YAML of sizes, each with its source."""

from __future__ import annotations

import dataclasses
from datetime import date
from functools import lru_cache
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from catalogs.errors import InputError
from catalogs.models.layers import LayerGroup, Mlp, Moe
from catalogs.models.mixers import Attention, LinearAttention, Mixer, MlaAttention, Part
from catalogs.models.names import MODELS, load_names
from catalogs.models.spec import ModelSpec, WeightFormat

Share = Annotated[float, Field(ge=0, le=1)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class AttentionFacts(_Strict):
    """The sizes of softmax attention with its own keys and values (MHA, GQA, MQA)."""

    heads: int = Field(gt=0)
    kv_heads: int = Field(gt=0)
    head_dim: int = Field(gt=0)
    window_tokens: int | None = Field(None, gt=0)
    value_head_dim: int | None = Field(None, gt=0)
    qkv_bias: bool = False
    output_bias: bool = False
    qk_norm: bool = False
    output_gate: bool = False

    def build(self) -> Attention:
        """Return the attention with these sizes."""
        rest = self.model_dump(exclude={"heads", "kv_heads"})
        return Attention(n_heads=self.heads, n_kv_heads=self.kv_heads, **rest)


class MlaFacts(_Strict):
    """The sizes of multi-head latent attention, and of its sparse indexer where it has one."""

    heads: int = Field(gt=0)
    q_lora_rank: int | None = Field(None, gt=0)
    kv_lora_rank: int = Field(gt=0)
    nope_head_dim: int = Field(gt=0)
    rope_head_dim: int = Field(gt=0)
    v_head_dim: int = Field(gt=0)
    index_heads: int = Field(0, ge=0)
    index_head_dim: int = Field(0, ge=0)
    index_topk_tokens: int | None = Field(None, gt=0)

    def build(self) -> MlaAttention:
        """Return the latent attention with these sizes."""
        rest = self.model_dump(exclude={"heads", "index_heads"})
        return MlaAttention(n_heads=self.heads, index_n_heads=self.index_heads, **rest)


class LinearFacts(_Strict):
    """The sizes of a linear-attention layer (Gated DeltaNet, Mamba-2)."""

    key_heads: int = Field(gt=0)
    value_heads: int = Field(gt=0)
    key_head_dim: int = Field(gt=0)
    value_head_dim: int = Field(gt=0)
    conv_kernel: int = Field(4, gt=0)
    head_gates: Literal[1, 2] = 2
    state_dtype: Literal["fp32", "bf16"] = "fp32"

    def build(self) -> LinearAttention:
        """Return the linear attention with these sizes."""
        return LinearAttention(
            self.key_heads,
            self.value_heads,
            self.key_head_dim,
            self.value_head_dim,
            self.conv_kernel,
            self.head_gates,
            4.0 if self.state_dtype == "fp32" else 2.0,
        )


class MlpFacts(_Strict):
    """The sizes of a dense feed-forward block."""

    intermediate_size: int = Field(gt=0)
    gated: bool = True
    bias: bool = False

    def build(self) -> Mlp:
        """Return the feed-forward block with these sizes."""
        return Mlp(**self.model_dump())


class MoeFacts(_Strict):
    """The sizes of a mixture of experts."""

    experts: int = Field(gt=0)
    experts_per_token: int = Field(gt=0)
    intermediate_size: int = Field(gt=0)
    shared_intermediate_size: int = Field(0, ge=0)
    expert_hidden_size: int | None = Field(None, gt=0)
    gated: bool = True
    bias: bool = False

    def build(self) -> Moe:
        """Return the mixture of experts with these sizes."""
        rest = self.model_dump(exclude={"experts", "intermediate_size"})
        return Moe(n_experts=self.experts, expert_intermediate_size=self.intermediate_size, **rest)


class LayerFacts(_Strict):
    """One group of `count` identical layers: at most one mixer and one feed-forward block."""

    count: int = Field(gt=0)
    attention: AttentionFacts | None = None
    mla: MlaFacts | None = None
    linear_attention: LinearFacts | None = None
    cross_attention: bool = False
    mlp: MlpFacts | None = None
    moe: MoeFacts | None = None

    def build(self) -> LayerGroup:
        """Return the group of layers.

        Raises:
            InputError: The layer has several mixers or several feed-forward blocks.
        """
        mixers = [m for m in (self.attention, self.mla, self.linear_attention) if m is not None]
        ffns = [f for f in (self.mlp, self.moe) if f is not None]
        if len(mixers) > 1 or len(ffns) > 1:
            raise InputError("a layer has at most one mixer and one feed-forward block")
        mixer: Mixer | None = mixers[0].build() if mixers else None
        return LayerGroup(self.count, mixer, ffns[0].build() if ffns else None, self.cross_attention)


class WeightFacts(_Strict):
    """The storage of a quantised checkpoint.

    `unquantized` is the fraction of each part left in bf16. `block_size` is the number of rows and columns of the
    blocks that share a scale; without it a scale covers a whole tensor or output channel.
    """

    dtype: Literal["bf16", "fp16", "fp8", "int8", "int4", "fp4"]
    bytes_per_weight: float | None = Field(None, gt=0)
    unquantized: dict[Part, Share] = Field(default_factory=dict)
    kv_dtype: Literal["fp8"] | None = None
    block_size: int | None = Field(None, gt=0)
    source: str

    def build(self) -> WeightFormat:
        """Return the weight format."""
        shares = tuple(self.unquantized.items())
        return WeightFormat(self.dtype, self.bytes_per_weight, shares, self.kv_dtype, self.block_size)


class PublishedCount(_Strict):
    """A parameter count as the publisher states it."""

    total: float = Field(gt=0)
    active: float | None = Field(None, gt=0)
    active_leaves_out: Literal["nothing", "input embedding", "embeddings"] = "nothing"  # in the publisher's count
    source: str


class ModelFacts(_Strict):
    """One file of data/models; with `base`, it holds only what differs from that entry."""

    base: str | None = None
    architecture: str | None = None
    hidden_size: int | None = Field(None, gt=0)
    vocab_size: int | None = Field(None, gt=0)
    max_position_tokens: int | None = Field(None, gt=0)
    tied_embeddings: bool | None = None
    learned_positions: int | None = Field(None, ge=0)
    embedding_size: int | None = Field(None, gt=0)
    layer_norm: bool | None = None
    layers: tuple[LayerFacts, ...] | None = None
    encoder_layers: tuple[LayerFacts, ...] | None = None
    encoder_tokens: int | None = Field(None, ge=0)
    other_params: float | None = Field(None, ge=0)
    mtp_layers: int | None = Field(None, ge=0)
    weights: WeightFacts | None = None  # the published storage; bf16 where neither file nor base states one
    other_weights: tuple[WeightFacts, ...] = ()  # other published storages; only together with `weights`
    published: PublishedCount | None = None
    source: str
    as_of: date

    def changes(self) -> dict[str, Any]:
        """Return the fields of ModelSpec that this file states."""
        plain = self.model_dump(
            include={
                "architecture",
                "hidden_size",
                "vocab_size",
                "max_position_tokens",
                "tied_embeddings",
                "learned_positions",
                "embedding_size",
                "layer_norm",
                "other_params",
                "mtp_layers",
                "encoder_tokens",
                "source",
            },
            exclude_none=True,
        )
        return plain | self._layer_changes() | self._weight_changes() | self._published_changes()

    def _layer_changes(self) -> dict[str, Any]:
        stated = {"groups": self.layers, "encoder_groups": self.encoder_layers}
        return {key: tuple(f.build() for f in facts) for key, facts in stated.items() if facts is not None}

    def _weight_changes(self) -> dict[str, Any]:
        if self.weights is None:
            return {}
        stored = (self.weights, *self.other_weights)
        return {"weight_dtype": self.weights.dtype, "formats": tuple(w.build() for w in stored)}

    def _published_changes(self) -> dict[str, Any]:
        if self.published is None:
            return {}
        return {"published_params": self.published.total, "published_active_params": self.published.active}


def read_facts(alias: str) -> ModelFacts:
    """Return the checked file of one entry.

    Raises:
        InputError: The file is unreadable or invalid; the message names the file and the first error.
    """
    path = MODELS / f"{alias}.yaml"
    try:
        return ModelFacts.model_validate(yaml.load(path.read_text(encoding="utf-8"), Loader=yaml.CSafeLoader))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(p) for p in first["loc"])
        raise InputError(f"{path.name}: {where}: {first['msg']}") from error
    except (OSError, yaml.YAMLError) as error:
        raise InputError(f"cannot read model file {path.name}: {error}") from error


@lru_cache(maxsize=64)
def load_entry(alias: str) -> ModelSpec:
    """Return the model of one catalog entry, including the values inherited from its base.

    Raises:
        InputError: The file of the entry, or that of its base, is unreadable or invalid.
    """
    facts = read_facts(alias)
    own = facts.changes() | {"name": alias, "hf_id": load_names().hf_id(alias)}
    if facts.base is not None:
        return dataclasses.replace(load_entry(facts.base), **own)
    return ModelSpec(**own)
