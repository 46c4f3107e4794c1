"""The parts of a layer: what each holds (weights), keeps per token (KV) and keeps per sequence (state).

Every count is of numbers, not bytes. `linear_params` are the weights of matrix products, which quantisation may shrink;
`small_params` are biases, norms and convolution taps, which no checkpoint quantises. `hidden` is the hidden_size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

Part = Literal["attention", "linear_attention", "mlp", "experts", "shared_experts"]

#: The parts of a layer a checkpoint may quantise separately. The router is not among them: it always stays as trained.
PARTS: Final[tuple[Part, ...]] = ("attention", "linear_attention", "mlp", "experts", "shared_experts")

#: The sparse-attention indexer (DeepSeek-V3.2, GLM-5) caches its key in fp8 with one fp32 scale per 128 values.
INDEXER_SCALE_BYTES_PER_VALUE: Final = 4.0 / 128.0


@dataclass(frozen=True, slots=True)
class Attention:
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

    def linear_params(self, hidden: int) -> int:
        return hidden * (self.q_size + self.kv_size + self.output_size)

    def small_params(self, hidden: int) -> int:
        bias = (self.q_size + self.kv_size) * self.qkv_bias + hidden * self.output_bias
        return bias + 2 * self.head_dim * self.qk_norm

    def kv_bytes_per_token(self, element_bytes: float) -> float:
        return self.kv_size * element_bytes


@dataclass(frozen=True, slots=True)
class MlaAttention:
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


@dataclass(frozen=True, slots=True)
class LinearAttention:
    """A mixer with constant-size state per sequence (Gated DeltaNet, Mamba-2): no KV cache that grows.

    Mamba-2 in these words: key heads = groups, key_head_dim = state size, value heads = heads, value_head_dim =
    head size.
    """

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

    def linear_params(self, hidden: int) -> int:
        return hidden * (self.input_size + self.value_size)

    def small_params(self, hidden: int) -> int:  # noqa: ARG002 - same signature as the other mixers
        return self.conv_size * self.conv_kernel + 2 * self.n_value_heads + self.value_head_dim

    def state_bytes(self) -> float:
        """Recurrent state and the last inputs of the convolution (bf16), one sequence, one layer."""
        recurrent = self.n_value_heads * self.key_head_dim * self.value_head_dim * self.state_bytes_per_value
        return recurrent + self.conv_size * (self.conv_kernel - 1) * 2.0


@dataclass(frozen=True, slots=True)
class Mlp:
    """Dense feed-forward block."""

    intermediate_size: int
    gated: bool = True
    bias: bool = False

    def linear_params(self, hidden: int) -> int:
        return (3 if self.gated else 2) * hidden * self.intermediate_size

    def small_params(self, hidden: int) -> int:
        return ((2 if self.gated else 1) * self.intermediate_size + hidden) * self.bias


@dataclass(frozen=True, slots=True)
class Moe:
    """Mixture of experts; the shared expert (if any) runs for every token."""

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

    def linear_params(self, hidden: int) -> int:
        return self.routed_params(hidden) + self.shared_params(hidden)

    def expert_biases(self, hidden: int) -> int:
        """Biases of one routed expert."""
        return ((self.matrices - 1) * self.expert_intermediate_size + hidden) * self.bias

    def small_params(self, hidden: int) -> int:
        return self.router_params(hidden) + self.n_experts * (self.bias + self.expert_biases(hidden))

    def idle_params(self, hidden: int) -> int:
        """What one token leaves untouched: the experts it is not routed to."""
        return (self.n_experts - self.experts_per_token) * (self.expert_params(hidden) + self.expert_biases(hidden))


Mixer = Attention | MlaAttention | LinearAttention

FeedForward = Mlp | Moe


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

    def part_params(self, hidden: int) -> dict[Part, int]:
        """Linear weights of ONE layer by part; parts the layer lacks are 0."""
        sizes: dict[Part, int] = dict.fromkeys(PARTS, 0)
        if self.mixer is not None:
            part: Part = "linear_attention" if isinstance(self.mixer, LinearAttention) else "attention"
            sizes[part] = self.n_mixers * self.mixer.linear_params(hidden)
        if isinstance(self.ffn, Moe):
            sizes["experts"] = self.ffn.routed_params(hidden)
            sizes["shared_experts"] = self.ffn.shared_params(hidden)
        elif self.ffn is not None:
            sizes["mlp"] = self.ffn.linear_params(hidden)
        return sizes

    def small_params(self, hidden: int, norm_size: int) -> int:
        """What ONE layer never quantises: biases, router, and a norm of `norm_size` before each block."""
        mixer = self.n_mixers * (self.mixer.small_params(hidden) + norm_size) if self.mixer is not None else 0
        return mixer + (self.ffn.small_params(hidden) + norm_size if self.ffn is not None else 0)

    def params(self, hidden: int, norm_size: int) -> int:
        """All weights of ONE layer."""
        return sum(self.part_params(hidden).values()) + self.small_params(hidden, norm_size)

    def idle_params(self, hidden: int) -> int:
        return self.ffn.idle_params(hidden) if isinstance(self.ffn, Moe) else 0

    def kv_bytes_per_token(self, element_bytes: float) -> float:
        """Cache of ONE layer per token; 0 for linear attention and layers without a mixer."""
        if self.mixer is None or isinstance(self.mixer, LinearAttention):
            return 0.0
        return self.mixer.kv_bytes_per_token(element_bytes)

    def state_bytes(self) -> float:
        return self.mixer.state_bytes() if isinstance(self.mixer, LinearAttention) else 0.0
