"""What a model is: the sizes that decide its flops, bytes and memory. One ModelSpec per checkpoint shape."""

from __future__ import annotations

from dataclasses import dataclass


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


@dataclass(frozen=True, slots=True)
class LinearAttention:
    """A mixer with constant-size state per sequence (Gated DeltaNet, Mamba-2): no KV cache that grows."""

    n_key_heads: int
    n_value_heads: int
    key_head_dim: int
    value_head_dim: int
    conv_kernel: int = 4


@dataclass(frozen=True, slots=True)
class Mlp:
    """Dense feed-forward block."""

    intermediate_size: int
    gated: bool = True


@dataclass(frozen=True, slots=True)
class Moe:
    """Mixture of experts; the shared expert (if any) runs for every token."""

    n_experts: int
    experts_per_token: int
    expert_intermediate_size: int
    shared_intermediate_size: int = 0  # summed over shared experts
    gated: bool = True


@dataclass(frozen=True, slots=True)
class LayerGroup:
    """`count` identical layers. Either part may be missing (None) in hybrid models."""

    count: int
    mixer: Attention | MlaAttention | LinearAttention | None
    ffn: Mlp | Moe | None
    cross_attention: bool = False  # a decoder layer that also attends to the encoder's output


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """Facts of one model. Layers are grouped; their order does not matter to cost or memory."""

    name: str  # catalog alias, or the path given
    hf_id: str
    architecture: str  # as in config.json
    hidden_size: int
    vocab_size: int
    groups: tuple[LayerGroup, ...]  # decoder layers
    encoder_groups: tuple[LayerGroup, ...] = ()
    tied_embeddings: bool = False
    learned_positions: int = 0  # rows of a learned position table (OPT, BART), 0 for rotary/alibi/relative
    embedding_size: int | None = None  # width of the token embedding where it differs from hidden_size (OPT-350m)
    max_position_tokens: int = 4096
    weight_dtype: str = "bf16"  # native; "fp8" for an FP8 checkpoint, "fp4" for MXFP4/NVFP4
    quantized_fraction: float = 1.0  # share of the linear weights stored in weight_dtype (rest bf16)
    published_params: float | None = None  # the publisher's count, for the test
    source: str = ""
