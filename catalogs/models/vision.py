"""VisionTower: the encoder that turns the images of a request into embeddings of the language model.

Its layers are `LayerGroup`s like those of the language model: attention over a whole image or tile, or over windows of
`window_tokens` patches (Qwen2.5-VL), and a dense feed-forward block. Before them a projection embeds the patches; after
them projections merge neighbouring patches into the width of the language model. All weights are kept in 16 bits:
published quantised checkpoints leave the tower out.
"""

from __future__ import annotations

from dataclasses import dataclass

from catalogs.errors import InputError
from catalogs.models.image_rules import ImageLayout, ImageRule
from catalogs.models.layers import LayerGroup


@dataclass(frozen=True, slots=True)
class Projection:
    """`count` matrix products of each embedding: `inputs` x `outputs` weights with biases."""

    inputs: int
    outputs: int
    count: int = 1

    @property
    def params(self) -> int:
        """Return the weights of all of them."""
        return self.count * (self.inputs + 1) * self.outputs


@dataclass(frozen=True, slots=True)
class VisionTower:
    """The sizes of a vision encoder.

    Attributes:
        hidden_size: Width of its layers.
        patch_inputs: Numbers of one patch: channels x frames x height x width.
        groups: Its layers.
        projections: The products behind the layers, for each embedding.
        rule: The rule of the image processor.
        layer_norm: Norms with a bias (LayerNorm) rather than RMSNorm.
        positions: Rows of a learned position table; 0 for rotary positions.
    """

    hidden_size: int
    patch_inputs: int
    groups: tuple[LayerGroup, ...]
    projections: tuple[Projection, ...]
    rule: ImageRule
    layer_norm: bool = False
    positions: int = 0

    def __post_init__(self) -> None:
        for group in self.groups:
            if group.plain_attention is None or group.dense_block is None:
                raise InputError("layers of a vision tower have plain attention and a dense block", group.words)

    @property
    def n_layers(self) -> int:
        """Return the number of layers."""
        return sum(group.count for group in self.groups)

    @property
    def n_params(self) -> int:
        """Return all weights of the tower and of its projections."""
        norm = self.hidden_size * (2 if self.layer_norm else 1)
        layers = sum(group.count * group.params(self.hidden_size, norm) for group in self.groups)
        embedding = (self.patch_inputs + self.positions) * self.hidden_size
        return embedding + layers + sum(projection.params for projection in self.projections)

    @property
    def patches_per_embedding(self) -> float:
        """Return the patches that are merged into one embedding, class tokens included."""
        largest = self.rule.largest
        return largest.tiles * largest.patches / largest.embeddings

    @property
    def embedding_values(self) -> int:
        """Return the numbers of one embedding; with DeepStack, those for several layers of the language model."""
        last = self.projections[-1] if self.projections else None
        return self.hidden_size if last is None else last.outputs * last.count

    @property
    def largest(self) -> ImageLayout:
        """Return what the image with the most tokens becomes."""
        return self.rule.largest

    @property
    def words(self) -> str:
        """Return the tower in words, for example "27 layers, up to 16,384 embeddings per image"."""
        return f"{self.n_layers} layers, up to {self.largest.embeddings:,} embeddings per image"
