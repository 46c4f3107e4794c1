"""Tower: the encoder that turns the images, videos or audio of a request into embeddings of the language model.

Its layers are `LayerGroup`s like those of the language model: attention over a whole sequence (an image, a tile, the
frames of one patch, a chunk of audio), or over windows of `window_tokens` patches (Qwen2.5-VL, Qwen2.5-Omni), and a
dense feed-forward block. Before them products embed the patches, or convolutions the spectrogram; after them
projections merge neighbouring patches into the width of the language model. All weights are kept in 16 bits: published
quantised checkpoints leave the towers out.
"""

from __future__ import annotations

from dataclasses import dataclass

from catalogs.errors import InputError
from catalogs.models.audio_rules import AudioRule
from catalogs.models.image_rules import ImageRule
from catalogs.models.layers import LayerGroup
from catalogs.models.media_items import Audio, Image, MediaItem, MediaLayout, Modality, TowerName
from catalogs.models.video_rules import VideoRule


@dataclass(frozen=True, slots=True)
class Projection:
    """`count` matrix products of `inputs` x `outputs` weights with biases.

    Those before the layers run `applied` times for each patch: a convolution of stride 1 in front of one of stride 2
    computes two positions for each of them.
    """

    inputs: int
    outputs: int
    count: int = 1
    applied: int = 1
    bias: bool = True

    @property
    def params(self) -> int:
        """Return the weights of all of them."""
        return self.count * (self.inputs + self.bias) * self.outputs


@dataclass(frozen=True, slots=True)
class MediaRules:
    """The rules of a tower's processors; None where the tower does not read the kind of item."""

    image: ImageRule | None = None
    video: VideoRule | None = None
    audio: AudioRule | None = None

    @property
    def modalities(self) -> tuple[Modality, ...]:
        """Return the kinds of items that the tower reads."""
        found: dict[Modality, object] = {"image": self.image, "video": self.video, "audio": self.audio}
        return tuple(modality for modality, rule in found.items() if rule is not None)

    def layout(self, item: MediaItem) -> MediaLayout:
        """Return what an item becomes.

        Raises:
            InputError: The tower does not read the kind of item, or its processor does not accept the size.
        """
        if isinstance(item, Audio):
            found = None if self.audio is None else self.audio.layout(item.seconds)
        elif isinstance(item, Image):
            found = None if self.image is None else self.image.layout(item.width, item.height)
        else:
            found = None if self.video is None else self.video.layout(item)
        if found is None:
            raise InputError("the tower does not read this kind of item", item.modality, ", ".join(self.modalities))
        return found

    def largest(self, modality: Modality, max_model_len: int) -> MediaLayout | None:
        """Return the item of a kind that engines reserve budgets and memory for; None if the tower reads none.

        Args:
            modality: The kind of item.
            max_model_len: Tokens of the longest sequence, which limits videos and audio.
        """
        if modality == "image":
            return None if self.image is None else self.image.largest
        rule = self.video if modality == "video" else self.audio
        return None if rule is None else rule.largest(max_model_len)


@dataclass(frozen=True, slots=True)
class Tower:
    """The sizes of an encoder.

    Attributes:
        hidden_size: Width of its layers.
        front: The products before the layers, for each patch: the patch embedding, or the convolutions.
        groups: Its layers.
        projections: The products behind the layers, for each row of `merged_patches` patches.
        rules: The rules of its processors.
        merged_patches: Patches that the projections read as one row, class tokens included.
        layer_norm: Norms with a bias (LayerNorm) rather than RMSNorm.
        positions: Rows of a learned position table; 0 for rotary or fixed positions.
    """

    hidden_size: int
    front: tuple[Projection, ...]
    groups: tuple[LayerGroup, ...]
    projections: tuple[Projection, ...]
    rules: MediaRules
    merged_patches: float
    layer_norm: bool = False
    positions: int = 0

    def __post_init__(self) -> None:
        for group in self.groups:
            if group.plain_attention is None or group.dense_block is None:
                raise InputError("layers of a tower have plain attention and a dense block", group.words)

    @property
    def name(self) -> TowerName:
        """Return which of a model's towers it is."""
        return "vision" if self.rules.audio is None else "audio"

    @property
    def n_layers(self) -> int:
        """Return the number of layers."""
        return sum(group.count for group in self.groups)

    @property
    def n_params(self) -> int:
        """Return all weights of the tower and of its projections."""
        norm = self.hidden_size * (2 if self.layer_norm else 1)
        layers = sum(group.count * group.params(self.hidden_size, norm) for group in self.groups)
        products = sum(product.params for product in (*self.front, *self.projections))
        return layers + products + self.positions * self.hidden_size

    @property
    def embedding_values(self) -> int:
        """Return the numbers of one embedding; with DeepStack, those for several layers of the language model."""
        last = self.projections[-1] if self.projections else None
        return self.hidden_size if last is None else last.outputs * last.count

    @property
    def words(self) -> str:
        """Return the tower in words, for example "27 layers, reads image and video"."""
        return f"{self.n_layers} layers, reads {' and '.join(self.rules.modalities)}"
