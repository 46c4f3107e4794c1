"""Model files of the catalog: a strict, compact YAML of sizes, each with its source."""

from __future__ import annotations

import dataclasses
from datetime import date
from functools import lru_cache
from typing import Any, Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from catalogs.errors import InputError
from catalogs.io.yaml_files import Share, YamlBlock, read_yaml, validate_as
from catalogs.models.audio_rules import parse_audio_rule
from catalogs.models.compressed_attention import CompressedAttention
from catalogs.models.image_rules import parse_image_rule
from catalogs.models.layers import LayerGroup, Mlp, Moe
from catalogs.models.mixers import Attention, LinearAttention, MlaAttention, Part
from catalogs.models.names import MODELS, load_names
from catalogs.models.spec import Checkpoint, ModelSpec, PartFormat, WeightFormat
from catalogs.models.towers import MediaRules, Projection, Tower
from catalogs.models.video_rules import parse_video_rule


class LayerFacts(YamlBlock):
    """One group of `count` identical layers: at most one mixer and one feed-forward block."""

    count: PositiveInt
    attention: Attention | None = None
    mla: MlaAttention | None = None
    compressed_attention: CompressedAttention | None = None
    linear_attention: LinearAttention | None = None
    cross_attention: bool = False
    mlp: Mlp | None = None
    moe: Moe | None = None

    def build(self) -> LayerGroup:
        """Return the group of layers.

        Raises:
            InputError: The layer has several mixers or several feed-forward blocks.
        """
        kinds = (self.attention, self.mla, self.compressed_attention, self.linear_attention)
        mixers = [mixer for mixer in kinds if mixer is not None]
        if len(mixers) > 1 or (self.mlp and self.moe):
            raise InputError("a layer has at most one mixer and one feed-forward block")
        return LayerGroup(self.count, mixers[0] if mixers else None, self.mlp or self.moe, self.cross_attention)


class ProjectionFacts(YamlBlock):
    """`count` equal matrix products before or behind the layers of a tower; see `Projection`."""

    inputs: PositiveInt
    outputs: PositiveInt
    count: PositiveInt = 1
    applied: PositiveInt = 1
    bias: bool = True

    def build(self) -> Projection:
        """Return the products as towers count them."""
        return Projection(self.inputs, self.outputs, self.count, self.applied, self.bias)


class TowerFacts(YamlBlock):
    """What the blocks `vision` and `audio` of a model file have in common.

    `merged_patches` are the patches that the projections read as one row.
    """

    hidden_size: PositiveInt
    layers: tuple[LayerFacts, ...]
    projections: tuple[ProjectionFacts, ...] = ()
    layer_norm: bool = False
    positions: NonNegativeInt = 0
    merged_patches: PositiveFloat | None = None
    source: str

    def _tower(self, front: tuple[Projection, ...], rules: MediaRules, merged_patches: float) -> Tower:
        return Tower(
            self.hidden_size,
            front,
            tuple(layer.build() for layer in self.layers),
            tuple(p.build() for p in self.projections),
            rules,
            self.merged_patches or merged_patches,
            self.layer_norm,
            self.positions,
        )


class VisionFacts(TowerFacts):
    """The `vision` block of a model file: its vision tower and the rules of its image and video processors.

    Without `merged_patches`, projections read as many rows as the largest image has embeddings.
    """

    patch_inputs: PositiveInt
    images: dict[str, Any]
    videos: dict[str, Any] | None = None

    def build(self) -> Tower:
        """Return the tower.

        Raises:
            InputError: A layer, or the rule of a processor, breaks a rule.
        """
        rule = parse_image_rule(self.images)
        video = None if self.videos is None else parse_video_rule(self.videos)
        merged = rule.largest.tiles * rule.largest.patches / rule.largest.embeddings
        front = Projection(self.patch_inputs, self.hidden_size, bias=False)
        return self._tower((front,), MediaRules(rule, video), merged)


class AudioFacts(TowerFacts):
    """The `audio` block of a model file: its audio tower, the convolutions in front, and the rule of its processor."""

    front: tuple[ProjectionFacts, ...]
    merged_patches: PositiveFloat
    audio: dict[str, Any]

    def build(self) -> Tower:
        """Return the tower.

        Raises:
            InputError: A layer, or the rule of the processor, breaks a rule.
        """
        rules = MediaRules(audio=parse_audio_rule(self.audio))
        return self._tower(tuple(p.build() for p in self.front), rules, self.merged_patches)


class PartWeightFacts(YamlBlock):
    """The storage of one part of a mixed checkpoint, where it is not that of most weights."""

    dtype: Literal["fp8", "int8", "int4", "fp4"]
    bytes_per_weight: PositiveFloat | None = None


class WeightFacts(YamlBlock):
    """The storage of a quantised checkpoint.

    `unquantized` is the fraction of each part left in bf16, and `parts` the storage of those that a mixed checkpoint
    quantises to another dtype. `block_size` is the number of rows and columns of the
    blocks that share a scale; without it a scale covers a whole tensor or output channel.
    """

    dtype: Literal["bf16", "fp16", "fp8", "int8", "int4", "fp4"]
    bytes_per_weight: PositiveFloat | None = None
    unquantized: dict[Part, Share] = Field(default_factory=dict)
    kv_dtype: Literal["fp8"] | None = None
    block_size: PositiveInt | None = None
    parts: dict[Part, PartWeightFacts] = Field(default_factory=dict)
    source: str

    def build(self) -> WeightFormat:
        """Return the weight format that the block describes."""
        shares = tuple(self.unquantized.items())
        parts = tuple(PartFormat(part, facts.dtype, facts.bytes_per_weight) for part, facts in self.parts.items())
        return WeightFormat(self.dtype, self.bytes_per_weight, shares, self.kv_dtype, self.block_size, parts)


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


class RoutingFacts(YamlBlock):
    """How evenly the router of a model chooses experts: the i-th most popular one in proportion to i ** -skew."""

    skew: NonNegativeFloat  # 0: every choice is equally likely
    source: str


class PublishedCount(YamlBlock):
    """A parameter count as the publisher states it."""

    total: PositiveFloat
    total_rounded_to: NonNegativeFloat = 0.0  # the unit of the last digit that the publisher states, if it is coarse
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
    residual_streams: PositiveInt | None = None
    layers: tuple[LayerFacts, ...] | None = None
    encoder_layers: tuple[LayerFacts, ...] | None = None
    encoder_tokens: NonNegativeInt | None = None
    other_params: NonNegativeFloat | None = None
    vision: VisionFacts | None = None
    audio: AudioFacts | None = None
    mtp_layers: NonNegativeInt | None = None
    routing: RoutingFacts | None = None  # of all layers with experts; None: that of the base, else not known
    weights: WeightFacts | None = None  # the published storage; bf16 where neither file nor base states one
    other_weights: tuple[WeightFacts, ...] = ()  # other published storages; only together with `weights`
    checkpoints: tuple[CheckpointFacts, ...] = ()  # quantised, the preferred first; not inherited from the base
    published: PublishedCount | None = None
    notices: tuple[str, ...] | None = None  # what is assumed about the model, one sentence each
    source: str
    as_of: date

    def changes(self) -> dict[str, Any]:
        """Return the fields of ModelSpec that this file states.

        Raises:
            InputError: A layer has several mixers or several feed-forward blocks.
        """
        stated = self.model_dump(
            include={f.name for f in dataclasses.fields(ModelSpec)} - {"checkpoints", "vision", "audio"},
            exclude_none=True,
        )
        for key, tower in (("vision", self.vision), ("audio", self.audio)):
            if tower is not None:
                stated[key] = tower.build()
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
    if facts.routing is not None:
        groups = [
            g if g.ffn is None else dataclasses.replace(g, ffn=g.ffn.with_routing_skew(facts.routing.skew))
            for g in model.groups
        ]
        model = dataclasses.replace(model, groups=tuple(groups))
    native = [f for f in model.formats if f.dtype == model.weight_dtype]
    rest = [f for f in model.formats if f.dtype != model.weight_dtype]
    # The first format of a dtype is used, so a checkpoint takes precedence over a storage that the base states.
    return dataclasses.replace(model, formats=(*native, *(c.format for c in found), *rest))
