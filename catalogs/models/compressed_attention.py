"""Attention over a window of tokens and over compressed entries of all earlier ones (DeepSeek-V4): its sizes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final

from pydantic import Field, NonNegativeInt, PositiveInt

from catalogs.models.mixers import INDEXER_SCALE_BYTES_PER_VALUE, Mixer

#: The scales of an 8-bit entry of compressed attention: one byte for 64 numbers, padded to 8 (FlashMLA, MODEL1 layout).
ENTRY_SCALE_BYTES: Final = 8.0


@dataclass(frozen=True, slots=True)
class CompressedAttention(Mixer):
    """Attention over a window of tokens and over compressed entries of all earlier ones (DeepSeek-V4).

    One vector of `head_dim` numbers, of which `rope_head_dim` are rotary, is key and value of a token for all query
    heads. Beside the window, a layer attends to entries that each stand for `compress_ratio` tokens: to all of them, or
    to those that an indexer selects. The output projection is two products, the first of which is divided into groups
    of heads. (DeepSeek-V4 technical report, section 2.3; inference/model.py of the published checkpoints.)
    """

    n_heads: Annotated[PositiveInt, Field(alias="heads")]
    head_dim: PositiveInt
    rope_head_dim: PositiveInt
    q_lora_rank: PositiveInt
    o_lora_rank: PositiveInt
    o_groups: PositiveInt
    window_tokens: PositiveInt
    compress_ratio: PositiveInt | None = None  # None: the window alone
    index_n_heads: Annotated[NonNegativeInt, Field(alias="index_heads")] = 0
    index_head_dim: NonNegativeInt = 0
    index_topk_entries: PositiveInt | None = None  # None: queries attend to every entry

    @property
    def words(self) -> str:
        """The window, with the entries if there are any."""
        window = f"sliding window of {self.window_tokens:,} tokens"
        if self.compress_ratio is None:
            return f"MQA + {window}"
        some = "entries" if self.index_topk_entries is None else f"{self.index_topk_entries:,} selected entries"
        return f"MQA + {window} + {some} of {self.compress_ratio} tokens"

    @property
    def q_size(self) -> int:
        """Return the outputs of the query projection."""
        return self.n_heads * self.head_dim

    @property
    def output_size(self) -> int:
        """Return the number of inputs of the output projection: the heads have values as wide as their queries."""
        return self.q_size

    @property
    def group_size(self) -> int:
        """Return the inputs of one group of the first output product."""
        return self.output_size // self.o_groups

    @property
    def overlap(self) -> int:
        """Return the number of entries that each token is part of: 2 where entries are selected, as they overlap."""
        return 1 if self.index_topk_entries is None else 2

    @property
    def compressor_size(self) -> int:
        """Return the outputs of the product that forms entries: for each, numbers and their weights in the mean."""
        if self.compress_ratio is None:
            return 0
        return 2 * self.overlap * (self.head_dim + self.index_head_dim)

    def indexer_params(self) -> int:
        """Return the weights of the indexer's queries, which are projected from the compressed query."""
        return self.q_lora_rank * self.index_n_heads * self.index_head_dim

    def shared_params(self, hidden: int) -> int:
        """Return the weights that every tensor rank holds: products into the latents, the compressor, the indexer."""
        down = hidden * (self.q_lora_rank + self.head_dim + self.compressor_size + self.index_n_heads)
        return down + self.indexer_params()

    def linear_params(self, hidden: int) -> int:
        """Return the weights of the query, key-value, compressor, indexer and output projections."""
        outputs = self.output_size * self.o_lora_rank + self.o_groups * self.o_lora_rank * hidden
        return self.shared_params(hidden) + self.q_lora_rank * self.q_size + outputs

    def small_params(self, hidden: int) -> int:  # noqa: ARG002 - same signature as the other mixers
        """Return the norms of the latents, and the positions within an entry."""
        return self.q_lora_rank + self.head_dim + (self.compress_ratio or 0) * self.compressor_size // 2

    def entry_bytes(self, element_bytes: float) -> float:
        """Return the bytes of one cached vector; in 8 bit, the rotary numbers stay in 16 bit and scales are added."""
        if element_bytes >= 2:
            return self.head_dim * element_bytes
        return (self.head_dim - self.rope_head_dim) * element_bytes + 2 * self.rope_head_dim + ENTRY_SCALE_BYTES

    @property
    def index_bytes_per_entry(self) -> float:
        """Return the bytes of the indexer's key of one entry, which is always fp8 with its scale; 0 without one."""
        return self.index_head_dim * (1.0 + INDEXER_SCALE_BYTES_PER_VALUE)

    def kv_bytes_per_token(self, element_bytes: float) -> float:
        """Return the bytes of compressed entries of one token; the window takes a constant number of bytes beside."""
        if self.compress_ratio is None:
            return 0.0
        return (self.entry_bytes(element_bytes) + self.index_bytes_per_entry) / self.compress_ratio

    @property
    def softmax_heads(self) -> int:
        """Return the number of query heads."""
        return self.n_heads

    @property
    def cached_heads(self) -> int:
        """Return one head, since all query heads share the entries."""
        return 1

    @property
    def score_width(self) -> int:
        """The multiply-adds for one query token and one cached vector: a score and a weighted value in each head."""
        return 2 * self.n_heads * self.head_dim

    @property
    def attended_tokens(self) -> int | None:
        """Return the tokens that the window or the selected entries hold; None where every entry is attended to."""
        if self.compress_ratio is None:
            return self.window_tokens
        return None if self.index_topk_entries is None else self.index_topk_entries * self.compress_ratio

    @property
    def uniform_cache(self) -> bool:
        """Return that tokens take different numbers of bytes: those of the window and those behind it."""
        return False

    def indivisible_sizes(self, tp: int) -> list[str]:
        """Return the counts that `tp` does not divide: heads, and groups of the output projection."""
        found = [f"the {self.n_heads} attention heads"] if self.n_heads % tp else []
        return found + ([f"the {self.o_groups} groups of the output projection"] if self.o_groups % tp else [])
