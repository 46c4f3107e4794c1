"""The parts of a layer: what each holds (weights), keeps per token (KV) and keeps per sequence (state).

A layer has a mixer (`Mixer`: attention or a recurrent state) and a feed-forward block (`FeedForward`). Each kind of
either is one class that answers every question which the model alone decides; a new kind is a new class here.

Every count is of numbers, not bytes. `linear_params` are the weights of matrix products, which quantisation may shrink;
`small_params` are biases, norms and convolution taps, which no checkpoint quantises. `hidden` is the hidden_size.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Final, Literal

Part = Literal["attention", "linear_attention", "mlp", "experts", "shared_experts"]

#: The parts of a layer a checkpoint may quantise separately. The router is not among them: it always stays as trained.
PARTS: Final[tuple[Part, ...]] = ("attention", "linear_attention", "mlp", "experts", "shared_experts")

#: The sparse-attention indexer (DeepSeek-V3.2, GLM-5) caches its key in fp8 with one fp32 scale per 128 values.
INDEXER_SCALE_BYTES_PER_VALUE: Final = 4.0 / 128.0


class Mixer(ABC):
    """The part of a layer that mixes tokens. The defaults are those of softmax attention to the whole context."""

    __slots__ = ()

    part: ClassVar[Part] = "attention"
    #: Queries attend to cached tokens; False: the layer keeps a state of constant size.
    attends: ClassVar[bool] = True

    @property
    @abstractmethod
    def output_size(self) -> int:
        """Inputs of the output projection."""

    @abstractmethod
    def linear_params(self, hidden: int) -> int:
        """Weights of the matrix products of one layer."""

    @abstractmethod
    def small_params(self, hidden: int) -> int:
        """Weights of one layer that no checkpoint quantises."""

    @property
    @abstractmethod
    def softmax_heads(self) -> int:
        """Query heads that take a softmax over their context."""

    @property
    @abstractmethod
    def cached_heads(self) -> int:
        """Heads of keys and values in the cache; a shared latent counts as one."""

    @property
    def kv_heads_to_split(self) -> int | None:
        """Heads of keys and values that tensor parallelism distributes; None where every rank holds the whole cache."""
        return None

    @property
    @abstractmethod
    def score_width(self) -> int:
        """Multiply-adds of attention for one query token and one cached token, summed over heads."""

    @property
    def attended_tokens(self) -> int | None:
        """The most tokens of context that a query attends to; None: all of them."""
        return None

    @property
    def uniform_cache(self) -> bool:
        """Every token of a sequence takes as many bytes of cache as any other token."""
        return True

    def kv_bytes_per_token(self, element_bytes: float) -> float:  # noqa: ARG002 - signature of the kinds that cache
        """Bytes of cache that one token takes in one layer."""
        return 0.0

    def state_bytes(self) -> float:
        """Bytes of constant-size state that one sequence takes in one layer."""
        return 0.0

    @abstractmethod
    def indivisible_sizes(self, tp: int) -> list[str]:
        """The sizes that `tp` ranks cannot share evenly, in words; empty where tensor parallelism `tp` is possible."""


class FeedForward(ABC):
    """The feed-forward block of a layer."""

    __slots__ = ()

    #: Each token runs through some of the block's experts only.
    routed: ClassVar[bool] = False

    @abstractmethod
    def part_params(self, hidden: int) -> dict[Part, int]:
        """Weights of the matrix products of one layer, by part."""

    def linear_params(self, hidden: int) -> int:
        """Weights of the matrix products of one layer."""
        return sum(self.part_params(hidden).values())

    @abstractmethod
    def small_params(self, hidden: int) -> int:
        """Weights of one layer that no checkpoint quantises."""

    def idle_params(self, hidden: int) -> int:  # noqa: ARG002 - signature of the kinds that route
        """Weights that one token leaves untouched: the experts it is not routed to."""
        return 0

    @property
    @abstractmethod
    def active_intermediate_size(self) -> int:
        """Width inside the block that one token passes through."""

    @abstractmethod
    def indivisible_sizes(self, tp: int, expert_parallel: bool) -> list[str]:
        """The sizes that `tp` ranks cannot share evenly, in words. Experts kept whole (expert_parallel) are not cut."""


@dataclass(frozen=True, slots=True)
class Attention(Mixer):
    """Softmax attention with its own keys and values (MHA, GQA, MQA)."""

    n_heads: int
    n_kv_heads: int
    head_dim: int
    window_tokens: int | None = None  # sliding window or attention chunk; None: full attention
    qkv_bias: bool = False
    qk_norm: bool = False
    output_gate: bool = False  # a gate of the size of q beside it (Qwen3-Next, Qwen3.5)
    output_bias: bool = False
    value_head_dim: int | None = None  # where values are narrower than keys (MiMo-V2); None: head_dim

    @property
    def value_dim(self) -> int:
        return self.head_dim if self.value_head_dim is None else self.value_head_dim

    @property
    def q_size(self) -> int:
        """Outputs of the query projection, with its gate."""
        return self.n_heads * self.head_dim * (2 if self.output_gate else 1)

    @property
    def kv_size(self) -> int:
        """Outputs of the key and value projections together: what the KV cache keeps per token and layer."""
        return self.n_kv_heads * (self.head_dim + self.value_dim)

    @property
    def output_size(self) -> int:
        """Inputs of the output projection."""
        return self.n_heads * self.value_dim

    def rank_heads(self, tp: int) -> int:
        """Query heads on one of `tp` tensor ranks."""
        return -(-self.n_heads // tp)

    def rank_kv_heads(self, tp: int) -> int:
        """KV heads on one of `tp` tensor ranks; they are replicated once there are more ranks than heads."""
        return max(1, -(-self.n_kv_heads // tp))

    def linear_params(self, hidden: int) -> int:
        return hidden * (self.q_size + self.kv_size + self.output_size)

    def small_params(self, hidden: int) -> int:
        bias = (self.q_size + self.kv_size) * self.qkv_bias + hidden * self.output_bias
        return bias + 2 * self.head_dim * self.qk_norm

    @property
    def softmax_heads(self) -> int:
        return self.n_heads

    @property
    def cached_heads(self) -> int:
        return self.n_kv_heads

    @property
    def kv_heads_to_split(self) -> int | None:
        return self.n_kv_heads

    @property
    def score_width(self) -> int:
        return self.n_heads * (self.head_dim + self.value_dim)

    @property
    def attended_tokens(self) -> int | None:
        return self.window_tokens

    @property
    def uniform_cache(self) -> bool:
        return not self.window_tokens

    def kv_bytes_per_token(self, element_bytes: float) -> float:
        return self.kv_size * element_bytes

    def indivisible_sizes(self, tp: int) -> list[str]:
        """Heads; KV heads are repeated where there are more ranks than heads."""
        found = [f"the {self.n_heads} attention heads"] if self.n_heads % tp else []
        if self.n_kv_heads % tp and tp % self.n_kv_heads:
            found.append(f"the {self.n_kv_heads} KV heads (nor is it a multiple)")
        return found


@dataclass(frozen=True, slots=True)
class MlaAttention(Mixer):
    """Multi-head latent attention (DeepSeek-V2/V3): one compressed KV vector per token and layer."""

    n_heads: int
    q_lora_rank: int | None
    kv_lora_rank: int
    nope_head_dim: int
    rope_head_dim: int
    v_head_dim: int
    index_n_heads: int = 0  # sparse-attention indexer (DeepSeek-V3.2, GLM-5)
    index_head_dim: int = 0
    index_topk_tokens: int | None = None

    @property
    def q_size(self) -> int:
        return self.n_heads * (self.nope_head_dim + self.rope_head_dim)

    @property
    def latent_size(self) -> int:
        """What the KV cache keeps per token and layer: the latent and the shared rotary key."""
        return self.kv_lora_rank + self.rope_head_dim

    @property
    def output_size(self) -> int:
        return self.n_heads * self.v_head_dim

    def query_params(self, hidden: int) -> int:
        if self.q_lora_rank is None:
            return hidden * self.q_size
        return self.q_lora_rank * (hidden + self.q_size)

    def kv_params(self, hidden: int) -> int:
        return hidden * self.latent_size + self.kv_lora_rank * self.n_heads * (self.nope_head_dim + self.v_head_dim)

    def indexer_params(self, hidden: int) -> int:
        """Query (from the compressed query), key and head-weight projections of the indexer."""
        query = (self.q_lora_rank or hidden) * self.index_n_heads * self.index_head_dim
        return query + hidden * (self.index_head_dim + self.index_n_heads)

    def linear_params(self, hidden: int) -> int:
        output = self.output_size * hidden
        return self.query_params(hidden) + self.kv_params(hidden) + self.indexer_params(hidden) + output

    def small_params(self, hidden: int) -> int:  # noqa: ARG002 - same signature as the other mixers
        return (self.q_lora_rank or 0) + self.kv_lora_rank + 2 * self.index_head_dim

    def kv_bytes_per_token(self, element_bytes: float) -> float:
        """Latent in the KV dtype; the indexer's key always in fp8 with its scale."""
        return self.latent_size * element_bytes + self.index_head_dim * (1.0 + INDEXER_SCALE_BYTES_PER_VALUE)

    @property
    def softmax_heads(self) -> int:
        return self.n_heads

    @property
    def cached_heads(self) -> int:
        return 1

    @property
    def score_width(self) -> int:
        return self.n_heads * (2 * self.kv_lora_rank + self.rope_head_dim)

    @property
    def attended_tokens(self) -> int | None:
        """A sparse-attention indexer chooses this many tokens."""
        return self.index_topk_tokens

    def indivisible_sizes(self, tp: int) -> list[str]:
        return [f"the {self.n_heads} attention heads"] if self.n_heads % tp else []


@dataclass(frozen=True, slots=True)
class LinearAttention(Mixer):
    """A mixer with constant-size state per sequence (Gated DeltaNet, Mamba-2): no KV cache that grows.

    Mamba-2 in these words: key heads = groups, key_head_dim = state size, value heads = heads, value_head_dim =
    head size.
    """

    part: ClassVar[Part] = "linear_attention"
    attends: ClassVar[bool] = False

    n_key_heads: int
    n_value_heads: int
    key_head_dim: int
    value_head_dim: int
    conv_kernel: int = 4
    n_head_gates: int = 2  # scalars per value head and token: Gated DeltaNet 2 (alpha, beta), Mamba-2 1 (dt)
    state_bytes_per_value: float = 4.0  # engines keep the recurrent state in fp32 where the config asks for it

    @property
    def key_size(self) -> int:
        return self.n_key_heads * self.key_head_dim

    @property
    def value_size(self) -> int:
        return self.n_value_heads * self.value_head_dim

    @property
    def conv_size(self) -> int:
        """Channels of the short convolution: queries, keys, values (Mamba-2: C, B, x)."""
        return 2 * self.key_size + self.value_size

    @property
    def input_size(self) -> int:
        """Outputs of the input projection: the convolved channels, the output gate, the per-head gates."""
        return self.conv_size + self.value_size + self.n_head_gates * self.n_value_heads

    @property
    def output_size(self) -> int:
        return self.value_size

    def linear_params(self, hidden: int) -> int:
        return hidden * (self.input_size + self.value_size)

    def small_params(self, hidden: int) -> int:  # noqa: ARG002 - same signature as the other mixers
        return self.conv_size * self.conv_kernel + 2 * self.n_value_heads + self.value_head_dim

    def state_bytes(self) -> float:
        """Recurrent state and the last inputs of the convolution (bf16), one sequence, one layer."""
        recurrent = self.n_value_heads * self.key_head_dim * self.value_head_dim * self.state_bytes_per_value
        return recurrent + self.conv_size * (self.conv_kernel - 1) * 2.0

    @property
    def softmax_heads(self) -> int:
        return 0

    @property
    def cached_heads(self) -> int:
        return 0

    @property
    def score_width(self) -> int:
        return 0

    @property
    def uniform_cache(self) -> bool:
        return False

    def indivisible_sizes(self, tp: int) -> list[str]:
        return [f"the {self.n_value_heads} linear-attention heads"] if self.n_value_heads % tp else []


@dataclass(frozen=True, slots=True)
class Mlp(FeedForward):
    """Dense feed-forward block."""

    intermediate_size: int
    gated: bool = True
    bias: bool = False

    def part_params(self, hidden: int) -> dict[Part, int]:
        return {"mlp": (3 if self.gated else 2) * hidden * self.intermediate_size}

    def small_params(self, hidden: int) -> int:
        return ((2 if self.gated else 1) * self.intermediate_size + hidden) * self.bias

    @property
    def active_intermediate_size(self) -> int:
        return self.intermediate_size

    def indivisible_sizes(self, tp: int, expert_parallel: bool) -> list[str]:  # noqa: ARG002 - a block has no experts
        return [f"the {self.intermediate_size} feed-forward width"] if self.intermediate_size % tp else []


@dataclass(frozen=True, slots=True)
class Moe(FeedForward):
    """Mixture of experts; the shared expert (if any) runs for every token."""

    routed: ClassVar[bool] = True

    n_experts: int
    experts_per_token: int
    expert_intermediate_size: int
    shared_intermediate_size: int = 0  # summed over shared experts
    gated: bool = True
    bias: bool = False
    expert_hidden_size: int | None = None  # width routed experts work in (latent MoE of Nemotron-3); None: hidden_size

    @property
    def matrices(self) -> int:
        return 3 if self.gated else 2

    def expert_params(self, hidden: int) -> int:
        """Weights of one routed expert."""
        return self.matrices * (self.expert_hidden_size or hidden) * self.expert_intermediate_size

    def routed_params(self, hidden: int) -> int:
        return self.n_experts * self.expert_params(hidden)

    def shared_params(self, hidden: int) -> int:
        """Shared experts, and the projections into and out of the routed experts' latent width."""
        latent = 2 * hidden * self.expert_hidden_size if self.expert_hidden_size else 0
        return self.matrices * hidden * self.shared_intermediate_size + latent

    def router_params(self, hidden: int) -> int:
        return hidden * self.n_experts

    def part_params(self, hidden: int) -> dict[Part, int]:
        return {"experts": self.routed_params(hidden), "shared_experts": self.shared_params(hidden)}

    def expert_biases(self, hidden: int) -> int:
        """Biases of one routed expert."""
        return ((self.matrices - 1) * self.expert_intermediate_size + hidden) * self.bias

    def small_params(self, hidden: int) -> int:
        return self.router_params(hidden) + self.n_experts * (self.bias + self.expert_biases(hidden))

    def idle_params(self, hidden: int) -> int:
        return (self.n_experts - self.experts_per_token) * (self.expert_params(hidden) + self.expert_biases(hidden))

    @property
    def active_intermediate_size(self) -> int:
        return self.experts_per_token * self.expert_intermediate_size + self.shared_intermediate_size

    def indivisible_sizes(self, tp: int, expert_parallel: bool) -> list[str]:
        if expert_parallel or not self.expert_intermediate_size % tp:
            return []
        return [f"the {self.expert_intermediate_size} expert width"]


@dataclass(frozen=True, slots=True)
class LayerGroup:
    """`count` identical layers. Either part may be missing (None) in hybrid models."""

    count: int
    mixer: Mixer | None
    ffn: FeedForward | None
    cross_attention: bool = False  # a decoder layer that also attends to the encoder's output (a second `mixer`)

    @property
    def n_mixers(self) -> int:
        return (self.mixer is not None) * (2 if self.cross_attention else 1)

    @property
    def plain_attention(self) -> Attention | None:
        """The mixer where every token has keys and values of its own (MHA, GQA, MQA); None for any other mixer.

        It is for features that are defined for this kind alone: LoRA, encoders, EAGLE heads, vLLM's cache groups.
        """
        return self.mixer if isinstance(self.mixer, Attention) else None

    @property
    def dense_block(self) -> Mlp | None:
        """The feed-forward block where every token runs through all of it; None for any other block."""
        return self.ffn if isinstance(self.ffn, Mlp) else None

    def part_params(self, hidden: int) -> dict[Part, int]:
        """Linear weights of ONE layer by part; parts the layer lacks are 0."""
        sizes: dict[Part, int] = dict.fromkeys(PARTS, 0)
        if self.mixer is not None:
            sizes[self.mixer.part] = self.n_mixers * self.mixer.linear_params(hidden)
        if self.ffn is not None:
            sizes.update(self.ffn.part_params(hidden))
        return sizes

    def small_params(self, hidden: int, norm_size: int) -> int:
        """What ONE layer never quantises: biases, router, and a norm of `norm_size` before each block."""
        mixer = self.n_mixers * (self.mixer.small_params(hidden) + norm_size) if self.mixer is not None else 0
        return mixer + (self.ffn.small_params(hidden) + norm_size if self.ffn is not None else 0)

    def params(self, hidden: int, norm_size: int) -> int:
        """All weights of ONE layer."""
        return sum(self.part_params(hidden).values()) + self.small_params(hidden, norm_size)

    def idle_params(self, hidden: int) -> int:
        return self.ffn.idle_params(hidden) if self.ffn is not None else 0

    def kv_bytes_per_token(self, element_bytes: float) -> float:
        """Cache of ONE layer per token; 0 for linear attention and layers without a mixer."""
        return self.mixer.kv_bytes_per_token(element_bytes) if self.mixer is not None else 0.0

    def state_bytes(self) -> float:
        return self.mixer.state_bytes() if self.mixer is not None else 0.0

    def indivisible_sizes(self, tp: int, expert_parallel: bool = False) -> list[str]:
        """The sizes that `tp` ranks cannot share evenly, in words."""
        mixer = self.mixer.indivisible_sizes(tp) if self.mixer is not None else []
        return mixer + (self.ffn.indivisible_sizes(tp, expert_parallel) if self.ffn is not None else [])
