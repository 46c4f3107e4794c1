"""ModelSpec: the sizes of a model that decide its flops, bytes and memory, and the storage of its weights."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import date
from typing import Final

from catalogs.errors import InputError, nearest_name
from catalogs.models.layers import LayerGroup
from catalogs.models.media_items import Modality
from catalogs.models.mixers import PARTS, Part
from catalogs.models.towers import Tower
from catalogs.units import DTYPE_BYTES, MXFP4_BYTES


@dataclass(frozen=True, slots=True)
class PartFormat:
    """The storage of one part whose quantised weights are not in the dtype of most weights of a mixed checkpoint."""

    part: Part
    dtype: str
    bytes_per_weight: float | None = None  # per quantised weight, with its scales; None: units.DTYPE_BYTES

    @property
    def stored_bytes(self) -> float:
        """Return the stored bytes per quantised weight, including scales."""
        return dtype_bytes(self.dtype) if self.bytes_per_weight is None else self.bytes_per_weight


@dataclass(frozen=True, slots=True)
class WeightFormat:
    """One published storage of a model's linear weights; by default, every linear weight is stored in `dtype`.

    `parts` are those that a mixed checkpoint stores in another dtype, such as attention in FP8 beside NVFP4 experts.
    """

    dtype: str
    bytes_per_weight: float | None = None  # per quantised weight, with its scales; None: units.DTYPE_BYTES
    unquantized: tuple[tuple[Part, float], ...] = ()  # fraction of a part's weights left in bf16
    kv_dtype: str | None = None  # KV dtype that the checkpoint declares; the engine's "auto" follows it
    block_size: int | None = None  # rows and columns of the blocks of weights that share a scale; None: whole tensors
    parts: tuple[PartFormat, ...] = ()

    def quantized_fraction(self, part: Part) -> float:
        """Return the fraction of a part's linear weights that is quantised."""
        return 1.0 - dict(self.unquantized).get(part, 0.0)

    def _stored(self, part: Part) -> PartFormat:
        own = next((stored for stored in self.parts if stored.part == part), None)
        return own or PartFormat(part, self.dtype, self.bytes_per_weight)

    def part_dtype(self, part: Part) -> str:
        """Return the dtype in which most of a part's matrix products run."""
        return self._stored(part).dtype if self.quantized_fraction(part) >= 0.5 else "bf16"

    def has_mxfp4(self, part: Part) -> bool:
        """Return whether most of a part's weights are stored in MXFP4, with one scale for 32 weights."""
        return self.part_dtype(part) == "fp4" and self._stored(part).bytes_per_weight == MXFP4_BYTES

    def has_scale_blocks(self, part: Part) -> bool:
        """Return whether most of a part's weights are stored in FP8 with one scale for a block of them."""
        return self.part_dtype(part) == "fp8" and self.block_size is not None

    def part_bytes_per_weight(self, part: Part) -> float:
        """Return the mean stored bytes per linear weight of a part, including scales."""
        share = self.quantized_fraction(part)
        return share * self._stored(part).stored_bytes + (1.0 - share) * DTYPE_BYTES["bf16"]

    def other_bytes_per_weight(self) -> float:
        """Return the bytes per weight of the weights that are never quantised.

        These are embeddings, output projection, norms, biases and routers.
        """
        return dtype_bytes(self.dtype if self.dtype in WHOLE_DTYPES else "bf16")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """One published quantised checkpoint of a model: `repository` holds the weights of `of` in the storage `format`."""

    repository: str  # Hugging Face id
    of: str  # Hugging Face id of the weights that were quantised
    format: WeightFormat
    source: str
    as_of: date  # when the repository and its storage were looked up

    @property
    def words(self) -> str:
        """Return the checkpoint in words: "nvidia/Llama-3.1-8B-Instruct-FP8 (fp8, model cards, as of 2026-11-20)"."""
        return f"{self.repository} ({self.format.dtype}, {self.source}, as of {self.as_of})"

    @property
    def kind(self) -> str:
        """Return what the weights are to a user of another model of the family, in words."""
        tuned = {"instruct", "it", "chat"} & set(self.of.lower().rsplit("/", 1)[-1].split("-"))
        return "the instruction-tuned sibling" if tuned else "a sibling"

    def holds(self, hf_id: str) -> bool:
        """Return whether the checkpoint holds the weights of this Hugging Face id."""
        return self.of.lower() == hf_id.lower()


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """The facts of one model; layers are grouped, since their order does not matter to cost or memory."""

    name: str  # catalog alias, or path as given
    hf_id: str
    architecture: str  # as in config.json
    hidden_size: int
    vocab_size: int
    groups: tuple[LayerGroup, ...]  # decoder layers
    encoder_groups: tuple[LayerGroup, ...] = ()
    encoder_tokens: int = 0  # encoder positions per request (Whisper: 30 s of audio); 0: those of the input
    tied_embeddings: bool = False
    learned_positions: int = 0  # rows of a learned position table (OPT, BART), 0 for rotary/alibi/relative
    embedding_size: int | None = None  # width of the token embedding where it differs from hidden_size (OPT-350m)
    layer_norm: bool = False  # norms with a bias (LayerNorm) rather than RMSNorm
    residual_streams: int = 1  # residuals that every block reads, mixes and writes (hyper-connections)
    max_position_tokens: int = 4096
    weight_dtype: str = "bf16"  # as published; "fp8" for an FP8 checkpoint, "fp4" for MXFP4/NVFP4
    formats: tuple[WeightFormat, ...] = ()  # published storages, including the native one; other dtypes are unquantised
    other_params: float = 0.0  # loaded in bf16 but not run for text: towers, projector
    vision: Tower | None = None  # its sizes, where the catalog states them; its weights are part of other_params
    audio: Tower | None = None  # the same for audio
    mtp_layers: int = 0  # multi-token prediction modules in the checkpoint; loaded only for drafting
    published_params: float | None = None  # the publisher's count, for tests
    published_active_params: float | None = None
    source: str = ""
    notices: tuple[str, ...] = ()  # what was assumed about the model, one sentence each
    checkpoints: tuple[Checkpoint, ...] = ()  # published quantised checkpoints, the preferred ones first

    # ---- shape

    @property
    def n_layers(self) -> int:
        """Return the number of decoder layers."""
        return sum(g.count for g in self.groups)

    @property
    def n_encoder_layers(self) -> int:
        """Return the number of encoder layers."""
        return sum(g.count for g in self.encoder_groups)

    @property
    def is_encoder_decoder(self) -> bool:
        """Return whether the model has an encoder."""
        return bool(self.encoder_groups)

    @property
    def encodes_prompt(self) -> bool:
        """Return whether the prompt is the input of an encoder, and the decoder starts from one token (T5, BART)."""
        return self.is_encoder_decoder and not self.encoder_tokens

    @property
    def longest_sequence_tokens(self) -> int:
        """Return the most tokens of a request, prompt and output together.

        An encoder and a decoder have `max_position_tokens` positions each.
        """
        return self.max_position_tokens * (2 if self.encodes_prompt else 1)

    @property
    def towers(self) -> tuple[Tower, ...]:
        """Return the encoders of images, videos and audio that the catalog knows."""
        return tuple(tower for tower in (self.vision, self.audio) if tower is not None)

    @property
    def modalities(self) -> tuple[Modality, ...]:
        """Return the kinds of items that the towers read."""
        return tuple(modality for tower in self.towers for modality in tower.rules.modalities)

    @property
    def is_moe(self) -> bool:
        """Return whether the model is a mixture of experts."""
        return any(g.ffn is not None and g.ffn.routed for g in self.groups)

    @property
    def has_recurrent_layers(self) -> bool:
        """Return whether some layers keep a state of fixed size instead of keys and values."""
        return any(g.mixer is not None and not g.mixer.attends for g in self.groups)

    @property
    def has_chunked_attention(self) -> bool:
        """Return whether some layers attend within chunks of the sequence (Llama 4)."""
        return any(g.mixer is not None and g.mixer.in_chunks for g in self.groups)

    # ---- parameters

    @property
    def norm_size(self) -> int:
        """Return the weights of one norm."""
        return self.hidden_size * (2 if self.layer_norm else 1)

    @property
    def embedding_params(self) -> int:
        """Return the weights of the token embedding, the learned positions and the projections of a narrower embedding.

        There is one table of positions per stack.
        """
        width = self.embedding_size or self.hidden_size
        positions = self.learned_positions
        if self.is_encoder_decoder and positions:
            positions += self.encoder_tokens or self.learned_positions
        projections = 2 * width * self.hidden_size if width != self.hidden_size else 0
        return self.vocab_size * width + positions * self.hidden_size + projections

    @property
    def lm_head_params(self) -> int:
        """Return the weights of a separate output projection; 0 where it is tied to the embedding."""
        return 0 if self.tied_embeddings else self.vocab_size * (self.embedding_size or self.hidden_size)

    @property
    def part_params(self) -> dict[Part, int]:
        """Return the linear weights of the whole model by part."""
        sizes: dict[Part, int] = dict.fromkeys(PARTS, 0)
        for group in self.groups + self.encoder_groups:
            for part, n in group.part_params(self.hidden_size).items():
                sizes[part] += group.count * n
        return sizes

    @property
    def small_params(self) -> int:
        """Return the biases, norms and routers of all layers, and the last norm of each stack."""
        layers = sum(
            g.count * g.small_params(self.hidden_size, self.norm_size) for g in self.groups + self.encoder_groups
        )
        return layers + self.norm_size * (2 if self.is_encoder_decoder else 1)

    @property
    def n_params(self) -> float:
        """All weights in the checkpoint except multi-token-prediction heads, which engines do not load by default."""
        linear = sum(self.part_params.values())
        return linear + self.small_params + self.embedding_params + self.lm_head_params + self.other_params

    @property
    def n_active_params(self) -> float:
        """The text weights that one token uses, without other experts; embedding and output projection both count."""
        idle = sum(g.count * g.idle_params(self.hidden_size) for g in self.groups)
        return self.n_params - self.other_params - idle

    # ---- bytes

    def weight_format(self, weight_dtype: str) -> WeightFormat:
        """Return how the model is stored as weight_dtype: as published, else with every linear weight in that dtype.

        Checkpoints requantised to fp8 or fp4 (NVIDIA's, made with ModelOpt) declare an fp8 KV cache.
        """
        requantised = WeightFormat(weight_dtype, kv_dtype="fp8" if weight_dtype in ("fp8", "fp4") else None)
        return next((f for f in self.formats if f.dtype == weight_dtype), requantised)

    def with_modelopt_checkpoints(self) -> ModelSpec:
        """Return the model whose fp8 weights are those that NVIDIA made with ModelOpt, unless fp8 is its own dtype.

        They have one scale for a tensor and declare an fp8 KV cache, where publishers of 16-bit models scale blocks.
        """
        if self.weight_dtype == "fp8":
            return self
        return replace(self, formats=(WeightFormat("fp8", kv_dtype="fp8"), *self.formats))

    def checkpoint(self, weight_dtype: str) -> Checkpoint | None:
        """Return the published checkpoint to serve as weight_dtype; None for the native dtype, or if there is none.

        A checkpoint of exactly these weights takes precedence over one of a sibling, such as the instruction-tuned
        model of a base model. All checkpoints of one dtype have the same storage.
        """
        if weight_dtype == self.weight_dtype:
            return None
        found = [c for c in self.checkpoints if c.format.dtype == weight_dtype]
        return min(found, key=lambda c: c.of != self.hf_id, default=None)

    def part_dtype(self, part: Part, weight_dtype: str) -> str:
        """Return the dtype in which most of a part's matrix products run when the model is served as weight_dtype."""
        return self.weight_format(weight_dtype).part_dtype(part)

    def weight_bytes(self, weight_dtype: str) -> float:
        """Return the bytes of all weights, with linear weights in weight_dtype and all others in bf16.

        The others are embeddings, output projection, norms, biases and routers; dtypes of WHOLE_DTYPES apply to them
        too.

        Raises:
            InputError: The dtype is not known.
        """
        stored = self.weight_format(weight_dtype)
        linear = sum(n * stored.part_bytes_per_weight(part) for part, n in self.part_params.items())
        rest = self.small_params + self.embedding_params + self.lm_head_params + self.other_params
        return linear + rest * stored.other_bytes_per_weight()

    def kv_bytes_per_token(self, kv_dtype: str) -> float:
        """Return the cache of one token in bytes over all decoder layers.

        Windowed layers are included, although an allocator may drop their old tokens.

        Raises:
            InputError: The dtype is not known.
        """
        size = dtype_bytes(kv_dtype)
        return sum(g.count * g.mixer.kv_bytes_per_token(size) for g in self.groups if g.mixer is not None)

    @property
    def state_bytes_per_sequence(self) -> float:
        """Return the bytes of constant-size state of all linear-attention layers, per sequence."""
        return sum(g.count * g.mixer.state_bytes() for g in self.groups if g.mixer is not None)


#: Dtypes of whole checkpoints. Any other dtype applies to linear weights only, and the rest stays in bf16.
WHOLE_DTYPES: Final = frozenset({"fp32", "bf16", "fp16"})


def dtype_bytes(dtype: str) -> float:
    """Return the bytes per stored element.

    Raises:
        InputError: The dtype is not known.
    """
    if dtype not in DTYPE_BYTES:
        raise InputError("unknown dtype", dtype, nearest_name(dtype, DTYPE_BYTES) or "bf16")
    return DTYPE_BYTES[dtype]
