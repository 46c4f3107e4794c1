"""The operator vocabulary; calibration/roofline.py knows the flops, bytes and roofline time of each.

Every field may be a number or a numpy array; fields broadcast, and so do flops, bytes and costs. One operator object
describes what ONE rank runs (sizes are after the tensor-parallel split). Bytes are device-memory traffic.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Num = int | float | npt.NDArray[np.float64] | npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Gemm:
    """y[m, n] = x[m, k] w[k, n]; w stored as `dtype`, x quantised to it where the dtype computes natively."""

    m: Num
    n: Num
    k: Num
    dtype: str


@dataclass(frozen=True, slots=True)
class GroupedGemm:
    """One MoE layer's routed experts on one rank: gate/up and down projections of the experts touched."""

    tokens: Num  # tokens routed by the whole expert-parallel group
    hidden_size: int
    intermediate_size: int  # of one expert, after the TP split
    n_experts: int  # of the model (not of the rank)
    experts_per_token: int
    expert_ranks: int  # ranks the experts are spread over (1: all experts on this rank)
    dtype: str


@dataclass(frozen=True, slots=True)
class PrefillAttention:
    """Attention of `chunks` prompt chunks that together hold `tokens` new tokens and `pairs` query-key pairs.

    pairs = sum over chunks of q * (context + q / 2), window already applied.
    """

    chunks: Num
    tokens: Num
    pairs: Num
    n_heads: int
    n_kv_heads: int
    head_dim: int
    kv_dtype: str
    window_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class DecodeAttention:
    """Attention of `sequences` one-token queries over `context_tokens` cached tokens in all; longest is max_context."""

    sequences: Num
    context_tokens: Num  # sum over sequences, window already applied
    max_context_tokens: Num
    n_heads: int
    n_kv_heads: int
    head_dim: int
    kv_dtype: str
    window_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class MlaModule:
    """A whole MLA attention block (projections, absorbed products, attention) of one layer, as public tables have it.

    stage "prefill": tokens new tokens in `sequences` chunks with `pairs` query-key pairs; "decode": sequences queries
    over context_tokens in all.
    """

    stage: str
    sequences: Num
    tokens: Num
    pairs: Num
    context_tokens: Num
    n_heads: int
    hidden_size: int
    q_lora_rank: int
    kv_lora_rank: int
    nope_head_dim: int
    rope_head_dim: int
    v_head_dim: int
    dtype: str
    kv_dtype: str


@dataclass(frozen=True, slots=True)
class LinearAttentionScan:
    """State update of a linear-attention or Mamba mixer: tokens new tokens in `sequences` sequences."""

    tokens: Num
    sequences: Num
    n_heads: int
    key_head_dim: int
    value_head_dim: int
    stage: str  # "prefill" | "decode"


@dataclass(frozen=True, slots=True)
class Elementwise:
    """A memory-bound kernel: norm, activation, rotary, residual, KV write, quantise, sampling, embedding."""

    # "norm" | "activation" | "rotary" | "kv_write" | "quantize" | "embedding" | "sampling" | "routing"
    kind: str
    tokens: Num
    bytes_per_token: float  # read + written per token


@dataclass(frozen=True, slots=True)
class Collective:
    """A collective over `ranks` accelerators of one node.

    message_bytes is the whole tensor: what is all-reduced, the gathered result, the input of a reduce-scatter, what one
    rank sends in all of an all-to-all or a send.
    """

    kind: str  # "all_reduce" | "all_gather" | "reduce_scatter" | "all_to_all" | "send_recv"
    message_bytes: Num
    ranks: int
    graph: bool = True  # captured in a CUDA graph (decode) or launched eagerly


Operator = (
    Gemm | GroupedGemm | PrefillAttention | DecodeAttention | MlaModule | LinearAttentionScan | Elementwise | Collective
)
