"""Model files of the catalog: a strict, compact YAML of sizes, each with its source."""

from __future__ import annotations

import dataclasses
from datetime import date
from functools import lru_cache
from typing import Any, Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from catalogs.errors import InputError
from catalogs.io.yaml_files import Share, YamlBlock, read_yaml, validate_as
from catalogs.models.image_rules import parse_image_rule
from catalogs.models.layers import LayerGroup, Mlp, Moe
from catalogs.models.mixers import Attention, LinearAttention, MlaAttention, Part
from catalogs.models.names import MODELS, load_names
from catalogs.models.spec import Checkpoint, ModelSpec, WeightFormat
from catalogs.models.vision import Projection, VisionTower


class LayerFacts(YamlBlock):
    """One group of `count` identical layers: at most one mixer and one feed-forward block."""

    count: PositiveInt
    attention: Attention | None = None
    mla: MlaAttention | None = None
    linear_attention: LinearAttention | None = None
    cross_attention: bool = False
    mlp: Mlp | None = None
    moe: Moe | None = None

    def build(self) -> LayerGroup:
        """Return the group of layers.

        Raises:
            InputError: The layer has several mixers or several feed-forward blocks.
        """
        if (self.attention, self.mla, self.linear_attention).count(None) < 2 or (self.mlp and self.moe):
            raise InputError("a layer has at most one mixer and one feed-forward block")
        mixer = self.attention or self.mla or self.linear_attention
        return LayerGroup(self.count, mixer, self.mlp or self.moe, self.cross_attention)


class ProjectionFacts(YamlBlock):
    """`count` equal matrix products behind the layers of a vision tower, for each embedding."""

    inputs: PositiveInt
    outputs: PositiveInt
    count: PositiveInt = 1


class VisionFacts(YamlBlock):
    """The `vision` block of a model file: its vision tower and the rule of its image processor."""

    hidden_size: PositiveInt
    patch_inputs: PositiveInt
    layers: tuple[LayerFacts, ...]
    projections: tuple[ProjectionFacts, ...] = ()
    images: dict[str, Any]
    layer_norm: bool = False
    positions: NonNegativeInt = 0
    source: str

    def build(self) -> VisionTower:
        """Return the tower.

        Raises:
            InputError: A layer, or the rule of the image processor, breaks a rule.
        """
        return VisionTower(
            self.hidden_size,
            self.patch_inputs,
            tuple(layer.build() for layer in self.layers),
            tuple(Projection(p.inputs, p.outputs, p.count) for p in self.projections),
            parse_image_rule(self.images),
            self.layer_norm,
            self.positions,
        )


class WeightFacts(YamlBlock):
    """The storage of a quantised checkpoint.

    `unquantized` is the fraction of each part left in bf16. `block_size` is the number of rows and columns of the
    blocks that share a scale; without it a scale covers a whole tensor or output channel.
    """

    dtype: Literal["bf16", "fp16", "fp8", "int8", "int4", "fp4"]
    bytes_per_weight: PositiveFloat | None = None
    unquantized: dict[Part, Share] = Field(default_factory=dict)
    kv_dtype: Literal["fp8"] | None = None
    block_size: PositiveInt | None = None
    source: str

    def build(self) -> WeightFormat:
        """Return the weight format that the block describes."""
        shares = tuple(self.unquantized.items())
        return WeightFormat(self.dtype, self.bytes_per_weight, shares, self.kv_dtype, self.block_size)


class CheckpointFacts(YamlBlock):
    """A published quantised checkpoint of the model.

    `repository` is its Hugging Face id, and `of` that of the weights that were quantised. Its storage is that of the
    catalog entry `entry`, or is stated in `weights`.
    """

    repository: str
    of: str
    entry: str | None = None
    weights: WeightFacts | None = None
    source: str
    as_of: date

    @model_validator(mode="after")
    def _has_one_storage(self) -> CheckpointFacts:
        if (self.entry is None) == (self.weights is None):
            raise ValueError("a checkpoint needs exactly one of: entry, weights")
        return self

    def build(self) -> Checkpoint:
        """Return the checkpoint.

        Raises:
            InputError: The entry is unknown, or states no storage.
        """
        weights = self.weights if self.entry is None else read_facts(self.entry).weights
        if weights is None:
            raise InputError("the entry of a checkpoint states no weights", self.entry)
        return Checkpoint(self.repository, self.of, weights.build(), self.source, self.as_of)


class PublishedCount(YamlBlock):
    """A parameter count as the publisher states it."""

    total: PositiveFloat
    active: PositiveFloat | None = None
    active_leaves_out: Literal["nothing", "input embedding", "embeddings"] = "nothing"  # in the publisher's count
    source: str


class ModelFacts(YamlBlock):
    """One file of data/models; with `base`, it holds only what differs from that entry."""

    base: str | None = None
    architecture: str | None = None
    hidden_size: PositiveInt | None = None
    vocab_size: PositiveInt | None = None
    max_position_tokens: PositiveInt | None = None
    tied_embeddings: bool | None = None
    learned_positions: NonNegativeInt | None = None
    embedding_size: PositiveInt | None = None
    layer_norm: bool | None = None
    layers: tuple[LayerFacts, ...] | None = None
    encoder_layers: tuple[LayerFacts, ...] | None = None
    encoder_tokens: NonNegativeInt | None = None
    other_params: NonNegativeFloat | None = None
    vision: VisionFacts | None = None
    mtp_layers: NonNegativeInt | None = None
    weights: WeightFacts | None = None  # the published storage; bf16 where neither file nor base states one
    other_weights: tuple[WeightFacts, ...] = ()  # other published storages; only together with `weights`
    checkpoints: tuple[CheckpointFacts, ...] = ()  # quantised, the preferred first; not inherited from the base
    published: PublishedCount | None = None
    source: str
    as_of: date

    def changes(self) -> dict[str, Any]:
        """Return the fields of ModelSpec that this file states.

        Raises:
            InputError: A layer has several mixers or several feed-forward blocks.
        """
        stated = self.model_dump(
            include={f.name for f in dataclasses.fields(ModelSpec)} - {"checkpoints", "vision"}, exclude_none=True
        )
        if self.vision is not None:
            stated["vision"] = self.vision.build()
        for key, layers in (("groups", self.layers), ("encoder_groups", self.encoder_layers)):
            if layers is not None:
                stated[key] = tuple(layer.build() for layer in layers)
        if self.weights is not None:
            formats = tuple(weights.build() for weights in (self.weights, *self.other_weights))
            stated |= {"weight_dtype": self.weights.dtype, "formats": formats}
        if self.published is not None:
            stated |= {"published_params": self.published.total, "published_active_params": self.published.active}
        return stated


def read_facts(alias: str) -> ModelFacts:
    """Return the checked file of one entry.

    Raises:
        InputError: The file is unreadable or invalid; the message names the file and the first error.
    """
    path = MODELS / f"{alias}.yaml"
    return validate_as(ModelFacts, read_yaml(path), path.name)


@lru_cache(maxsize=64)
def load_entry(alias: str) -> ModelSpec:
    """Return the model of one catalog entry, including the values inherited from its base.

    Raises:
        InputError: The file of the entry, or that of its base, is unreadable or invalid.
    """
    facts = read_facts(alias)
    found = tuple(checkpoint.build() for checkpoint in facts.checkpoints)
    own = facts.changes() | {"name": alias, "hf_id": load_names().hf_id(alias), "checkpoints": found}
    model = ModelSpec(**own) if facts.base is None else dataclasses.replace(load_entry(facts.base), **own)
    native = [f for f in model.formats if f.dtype == model.weight_dtype]
    rest = [f for f in model.formats if f.dtype != model.weight_dtype]
    # The first format of a dtype is used, so a checkpoint takes precedence over a storage that the base states.
    return dataclasses.replace(model, formats=(*native, *(c.format for c in found), *rest))
