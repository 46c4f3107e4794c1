"""The mixers of a layer: attention of several kinds, and recurrent states.

Each kind is one class that answers every question which the model alone decides. A new kind is a new class, here or in
a module of its own (`compressed_attention.py`), a key of `LayerFacts` (catalogs/models/files.py), a case of `mixer_of`
(catalogs/models/hf_config.py), the sizes to profile in `KINDS` (calibration/profile/shapes/sizes.py), its operators in
`MIXERS` (simulator/layers/attention.py), and what each of them reads in `INPUTS` (simulator/layers/operator_flow.py).
If its attention is a new operator, that needs a roofline and a family too (calibration/operators/roofline.py,
calibration/families).

Counts are in numbers, not bytes. `linear_params` are the weights of matrix products, which quantisation may shrink;
`small_params` are biases, norms and convolution taps, which no checkpoint quantises. `hidden` is the hidden_size.

The classes are also the schema of the model files; an alias is the key of a field in such a file.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Annotated, ClassVar, Final, Literal

from pydantic import BeforeValidator, ConfigDict, Field, NonNegativeInt, PositiveInt

Part = Literal["attention", "linear_attention", "mlp", "experts", "shared_experts"]

#: The parts of a layer that a checkpoint may quantise separately. The router is never quantised.
PARTS: Final[tuple[Part, ...]] = ("attention", "linear_attention", "mlp", "experts", "shared_experts")

#: The sparse-attention indexer (DeepSeek-V3.2, GLM-5) caches its key in fp8 with one fp32 scale per 128 values.
INDEXER_SCALE_BYTES_PER_VALUE: Final = 4.0 / 128.0


class Mixer(ABC):
    """The part of a layer that mixes tokens; the defaults are those of a mixer without a growing cache."""

    __slots__ = ()
    __pydantic_config__ = ConfigDict(extra="forbid")

    part: ClassVar[Part] = "attention"
    #: Queries attend to cached tokens; False: the layer keeps a state of constant size.
    attends: ClassVar[bool] = True
    #: Keys and values of a token are compressed into one vector.
    latent: ClassVar[bool] = False

    @property
    @abstractmethod
    def words(self) -> str:
        """The kind in the field's words, for example "GQA + sliding window of 1,024 tokens"."""

    @property
    @abstractmethod
    def output_size(self) -> int:
        """Return the number of inputs of the output projection."""

    @abstractmethod
    def linear_params(self, hidden: int) -> int:
        """Return the weights of the matrix products of one layer."""

    @abstractmethod
    def small_params(self, hidden: int) -> int:
        """Return the weights of one layer that no checkpoint quantises."""

    @property
    def softmax_heads(self) -> int:
        """Return the number of query heads that take a softmax over their context."""
        return 0

    @property
    def cached_heads(self) -> int:
        """Return the number of key and value heads in the cache; a shared latent counts as one."""
        return 0

    @property
    def kv_heads_to_split(self) -> int | None:
        """The number of KV heads that tensor parallelism distributes; None where every rank holds the whole cache."""
        return None

    @property
    def score_width(self) -> int:
        """Return the multiply-adds of attention for one query token and one cached token, summed over heads."""
        return 0

    @property
    def attended_tokens(self) -> int | None:
        """Return the most tokens of context that a query attends to; None means all of them."""
        return None

    @property
    def in_chunks(self) -> bool:
        """Return whether a query attends only to tokens of its own chunk of the sequence (Llama 4)."""
        return False

    @property
    def uniform_cache(self) -> bool:
        """Return whether every token of a sequence takes the same number of bytes in the cache."""
        return self.attends

    def kv_bytes_per_token(self, element_bytes: float) -> float:  # noqa: ARG002 - signature of the kinds that cache
        """Return the bytes of cache that one token takes in one layer."""
        return 0.0

    def state_bytes(self) -> float:
        """Return the bytes of constant-size state that one sequence takes in one layer."""
        return 0.0

    @abstractmethod
    def indivisible_sizes(self, tp: int) -> list[str]:
        """Return descriptions of the sizes that `tp` ranks cannot share evenly; empty where `tp` is possible."""


@dataclass(frozen=True, slots=True)
class Attention(Mixer):
    """Softmax attention with its own keys and values (MHA, GQA, MQA)."""

    n_heads: Annotated[PositiveInt, Field(alias="heads")]
    n_kv_heads: Annotated[PositiveInt, Field(alias="kv_heads")]
    head_dim: PositiveInt
    window_tokens: PositiveInt | None = None  # sliding window or attention chunk; None: full attention
    chunked: bool = False  # window_tokens is a chunk: a token attends to those before it in its own chunk (Llama 4)
    qkv_bias: bool = False
    qk_norm: bool = False
    #: The norm runs over all heads of queries and over all of keys, so tensor ranks add up squares (MiniMax-M2).
    qk_norm_over_heads: bool = False
    output_gate: bool = False  # an output gate as large as the query (Qwen3-Next, Qwen3.5)
    output_bias: bool = False
    value_head_dim: PositiveInt | None = None  # where values are narrower than keys (MiMo-V2); None: head_dim

    @property
    def words(self) -> str:
        """MHA, GQA or MQA, with the window or the chunk if there is one."""
        kind = "MHA" if self.n_heads == self.n_kv_heads else "MQA" if self.n_kv_heads == 1 else "GQA"
        limit = "chunks" if self.chunked else "sliding window"
        return kind if self.window_tokens is None else f"{kind} + {limit} of {self.window_tokens:,} tokens"

    @property
    def value_dim(self) -> int:
        """Return the size of one value head."""
        return self.head_dim if self.value_head_dim is None else self.value_head_dim

    @property
    def q_size(self) -> int:
        """Return the outputs of the query projection, including its gate."""
        return self.n_heads * self.head_dim * (2 if self.output_gate else 1)

    @property
    def kv_size(self) -> int:
        """Return the outputs of the key and value projections, which the KV cache holds per token and layer."""
        return self.n_kv_heads * (self.head_dim + self.value_dim)

    @property
    def output_size(self) -> int:
        """Return the number of inputs of the output projection."""
        return self.n_heads * self.value_dim

    def rank_heads(self, tp: int) -> int:
        """Return the query heads on one of `tp` tensor ranks."""
        return -(-self.n_heads // tp)

    def rank_kv_heads(self, tp: int) -> int:
        """Return the KV heads on one of `tp` tensor ranks; they are replicated where ranks outnumber heads."""
        return max(1, -(-self.n_kv_heads // tp))

    def linear_params(self, hidden: int) -> int:
        """Return the weights of the query, key, value and output projections."""
        return hidden * (self.q_size + self.kv_size + self.output_size)

    def small_params(self, hidden: int) -> int:
        """Return the biases of the projections and the norms of queries and keys."""
        bias = (self.q_size + self.kv_size) * self.qkv_bias + hidden * self.output_bias
        normed = (self.n_heads + self.n_kv_heads) if self.qk_norm_over_heads else 2
        return bias + normed * self.head_dim * self.qk_norm

    @property
    def softmax_heads(self) -> int:
        """Return the number of query heads."""
        return self.n_heads

    @property
    def cached_heads(self) -> int:
        """Return the number of KV heads."""
        return self.n_kv_heads

    @property
    def kv_heads_to_split(self) -> int | None:
        """Return the number of KV heads."""
        return self.n_kv_heads

    @property
    def score_width(self) -> int:
        """The multiply-adds for one query token and one cached token: a score and a weighted value in each head."""
        return self.n_heads * (self.head_dim + self.value_dim)

    @property
    def attended_tokens(self) -> int | None:
        """Return the window in tokens; None for full attention."""
        return self.window_tokens

    @property
    def in_chunks(self) -> bool:
        """Return whether `window_tokens` is the size of a chunk."""
        return self.chunked

    @property
    def uniform_cache(self) -> bool:
        """Return whether the attention has no window, so that every token stays in the cache."""
        return not self.window_tokens

    def kv_bytes_per_token(self, element_bytes: float) -> float:
        """Return the bytes of keys and values of one token."""
        return self.kv_size * element_bytes

    def indivisible_sizes(self, tp: int) -> list[str]:
        """Return the head counts that `tp` does not divide; KV heads are replicated where ranks outnumber heads."""
        found = [f"the {self.n_heads} attention heads"] if self.n_heads % tp else []
        if self.n_kv_heads % tp and tp % self.n_kv_heads:
            found.append(f"the {self.n_kv_heads} KV heads (nor is it a multiple)")
        return found


@dataclass(frozen=True, slots=True)
class MlaAttention(Mixer):
    """Multi-head latent attention (DeepSeek-V2/V3): one compressed KV vector per token and layer.

    With `index_topk_tokens` a query attends to that many tokens, which the layer's indexer selects. A layer without
    index heads attends to the selection of an earlier layer, and has no indexer of its own (GLM-5.2).
    """

    latent: ClassVar[bool] = True

    n_heads: Annotated[PositiveInt, Field(alias="heads")]
    q_lora_rank: PositiveInt | None
    kv_lora_rank: PositiveInt
    nope_head_dim: PositiveInt
    rope_head_dim: PositiveInt
    v_head_dim: PositiveInt
    index_n_heads: Annotated[NonNegativeInt, Field(alias="index_heads")] = 0  # sparse indexer (DeepSeek-V3.2, GLM-5)
    index_head_dim: NonNegativeInt = 0
    index_topk_tokens: PositiveInt | None = None
    output_gate: bool = False  # a projection of the layer's input, as wide as the output, that gates it (Kimi-K3)

    @property
    def words(self) -> str:
        """MLA, with the tokens that an indexer selects if there is one."""
        chosen = self.index_topk_tokens
        if chosen is None:
            return "MLA"
        by = "" if self.runs_indexer else " selected by an earlier layer"
        return f"MLA + sparse attention to {chosen:,} tokens{by}"

    @property
    def runs_indexer(self) -> bool:
        """Return whether the layer selects the tokens that it attends to with an indexer of its own."""
        return self.index_topk_tokens is not None and self.index_n_heads > 0

    @property
    def q_size(self) -> int:
        """Return the outputs of the query projection."""
        return self.n_heads * (self.nope_head_dim + self.rope_head_dim)

    @property
    def latent_size(self) -> int:
        """Return the numbers that the KV cache holds per token and layer: the latent and the shared rotary key."""
        return self.kv_lora_rank + self.rope_head_dim

    @property
    def output_size(self) -> int:
        """Return the number of inputs of the output projection."""
        return self.n_heads * self.v_head_dim

    def indexer_params(self, hidden: int) -> int:
        """Return the weights of the indexer: its query (from the compressed query), key and head-weight projections."""
        query = (self.q_lora_rank or hidden) * self.index_n_heads * self.index_head_dim
        return query + hidden * (self.index_head_dim + self.index_n_heads)

    def linear_params(self, hidden: int) -> int:
        """Return the weights of the query, key-value, indexer, gate and output projections."""
        rank, expanded = self.q_lora_rank, self.n_heads * (self.nope_head_dim + self.v_head_dim)
        queries = hidden * self.q_size if rank is None else rank * (hidden + self.q_size)
        keys_and_values = hidden * self.latent_size + self.kv_lora_rank * expanded
        outputs = self.output_size * hidden * (2 if self.output_gate else 1)
        return queries + keys_and_values + self.indexer_params(hidden) + outputs

    def small_params(self, hidden: int) -> int:  # noqa: ARG002 - same signature as the other mixers
        """Return the norms of the compressed query, the latent and the indexer's key."""
        return (self.q_lora_rank or 0) + self.kv_lora_rank + 2 * self.index_head_dim

    @property
    def index_bytes_per_token(self) -> float:
        """Return the bytes of the indexer's key of one token, which is always fp8 with its scale; 0 without one."""
        return self.index_head_dim * (1.0 + INDEXER_SCALE_BYTES_PER_VALUE)

    def kv_bytes_per_token(self, element_bytes: float) -> float:
        """Return the bytes of the latent in the KV dtype; the indexer's key is always fp8 with its scale."""
        return self.latent_size * element_bytes + self.index_bytes_per_token

    @property
    def softmax_heads(self) -> int:
        """Return the number of query heads."""
        return self.n_heads

    @property
    def cached_heads(self) -> int:
        """Return one head, since all query heads share the latent."""
        return 1

    @property
    def score_width(self) -> int:
        """The multiply-adds for one query token and one cached token, with keys and values absorbed into the latent."""
        return self.n_heads * (2 * self.kv_lora_rank + self.rope_head_dim)

    @property
    def attended_tokens(self) -> int | None:
        """Return the number of tokens that a sparse-attention indexer selects; None without an indexer."""
        return self.index_topk_tokens

    def indivisible_sizes(self, tp: int) -> list[str]:
        """Return the head count where `tp` does not divide it."""
        return [f"the {self.n_heads} attention heads"] if self.n_heads % tp else []


@dataclass(frozen=True, slots=True)
class LinearAttention(Mixer):
    """A mixer with a state of constant size per sequence (Gated DeltaNet, Mamba-2) and no growing KV cache.

    For Mamba-2, key heads are its groups, key_head_dim its state size, value heads its heads, and value_head_dim its
    head size.
    """

    part: ClassVar[Part] = "linear_attention"
    attends: ClassVar[bool] = False

    n_key_heads: Annotated[PositiveInt, Field(alias="key_heads")]
    n_value_heads: Annotated[PositiveInt, Field(alias="value_heads")]
    key_head_dim: PositiveInt
    value_head_dim: PositiveInt
    conv_kernel: PositiveInt = 4
    #: Scalars per value head and token: Gated DeltaNet 2 (alpha, beta), Mamba-2 1 (dt).
    n_head_gates: Annotated[int, Field(alias="head_gates", ge=1, le=2)] = 2
    #: Engines keep the recurrent state in fp32 where the config sets it.
    state_bytes_per_value: Annotated[
        float, Field(alias="state_dtype"), BeforeValidator({"fp32": 4.0, "bf16": 2.0}.get)
    ] = 4.0

    @property
    def words(self) -> str:
        """Mamba-2 or the gated delta rule, which differ in their gates."""
        return "Mamba-2" if self.is_mamba else "gated delta rule"

    @property
    def is_mamba(self) -> bool:
        """Return whether it is Mamba-2 and not a gated delta rule, which has a second scalar per head."""
        return self.n_head_gates == 1

    @property
    def key_size(self) -> int:
        """Return the total size of the key heads."""
        return self.n_key_heads * self.key_head_dim

    @property
    def value_size(self) -> int:
        """Return the total size of the value heads."""
        return self.n_value_heads * self.value_head_dim

    @property
    def conv_size(self) -> int:
        """Return the channels of the short convolution: queries, keys and values (Mamba-2: C, B, x)."""
        return 2 * self.key_size + self.value_size

    @property
    def input_size(self) -> int:
        """The outputs of the input projection: the convolved channels, the output gate and the gates per head."""
        return self.conv_size + self.value_size + self.n_head_gates * self.n_value_heads

    @property
    def output_size(self) -> int:
        """Return the number of inputs of the output projection."""
        return self.value_size

    def linear_params(self, hidden: int) -> int:
        """Return the weights of the input and output projections."""
        return hidden * (self.input_size + self.value_size)

    def small_params(self, hidden: int) -> int:  # noqa: ARG002 - same signature as the other mixers
        """Return the convolution taps, two numbers per value head, and the norm of the values."""
        return self.conv_size * self.conv_kernel + 2 * self.n_value_heads + self.value_head_dim

    def state_bytes(self) -> float:
        """Return the bytes of the recurrent state and the convolution's last inputs (bf16), per sequence and layer."""
        recurrent = self.n_value_heads * self.key_head_dim * self.value_head_dim * self.state_bytes_per_value
        return recurrent + self.conv_size * (self.conv_kernel - 1) * 2.0

    def indivisible_sizes(self, tp: int) -> list[str]:
        """Return the number of value heads where `tp` does not divide it."""
        return [f"the {self.n_value_heads} linear-attention heads"] if self.n_value_heads % tp else []
