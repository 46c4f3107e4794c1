"""FLOPs and device-memory bytes of every operator.

One multiply-add counts as two operations. Activations are 16 bit unless the operator has another dtype.
"""

from __future__ import annotations

from math import prod
from typing import Final

import numpy as np

from calibration.operators.cost import broadcast
from calibration.operators.operators import (
    Collective,
    Convolution,
    DecodeAttention,
    Elementwise,
    Gemm,
    GroupedGemm,
    HostLaunch,
    LinearAttentionScan,
    Matmul,
    MlaModule,
    NonCausalAttention,
    Operator,
    PrefillAttention,
    Streaming,
    numbers,
)
from catalogs.arrays import FloatArray
from catalogs.errors import InputError
from catalogs.hardware.specs import Accelerator
from catalogs.units import DTYPE_BYTES, MXFP4_BYTES

#: Bytes of an activation: 16 bits.
ACTIVATION_BYTES: Final = 2

#: Bytes that the quantisation of an input moves for each value: it reads 16 bits and writes 8.
QUANTISE_BYTES: Final = 3.0

STATE_BYTES: Final = 4.0  # the state of linear attention is kept in fp32


def stored_bytes(dtype: str) -> float:
    """Return the bytes per stored element.

    "fp8_block", and the same weights in another kernel ("fp8_block_flashinfer"), have one fp32 scale per 128 x 128
    block, which is not counted. "mxfp4" has one byte of scale per 32 elements, with 16-bit activations or, as
    "mxfp4_mxfp8", with 8-bit activations.

    Raises:
        InputError: The dtype is unknown.
    """
    if dtype.startswith("mxfp4"):
        return MXFP4_BYTES
    name = "fp8" if dtype.startswith("fp8_block") else dtype
    if name not in DTYPE_BYTES:
        raise InputError("unknown dtype", dtype, ", ".join(DTYPE_BYTES))
    return DTYPE_BYTES[name]


def compute_dtype(dtype: str, accelerator: Accelerator) -> str:
    """Return the dtype that a product is computed in.

    Weight-only formats, and dtypes without a fast path on the accelerator, are computed in bf16.
    """
    name = "fp8" if dtype == "mxfp4_mxfp8" or dtype.startswith("fp8_block") else dtype
    return name if name in accelerator.peak_flops and name != "int4" else "bf16"


def operand_bytes(dtype: str, accelerator: Accelerator) -> float:
    """Return the bytes per activation element of a product.

    They are narrow only where the accelerator computes in that dtype.
    """
    name = compute_dtype(dtype, accelerator)
    return stored_bytes(name) if name != "bf16" else ACTIVATION_BYTES


def distinct_experts(tokens: FloatArray, n_experts: int, experts_per_token: int) -> FloatArray:
    """Return the number of experts that receive at least one of `tokens` tokens under balanced routing.

    N (1 - (1 - k/N)^tokens) with N experts and k experts per token; the result has the shape of `tokens`.
    """
    return n_experts * (1.0 - (1.0 - experts_per_token / n_experts) ** np.asarray(tokens, dtype=np.float64))


def padding_rows(op: GroupedGemm) -> FloatArray:
    """Return the rows without a token that the kernel computes on one rank, in the shape of `op.tokens`.

    A kernel with `block_rows` reserves a row for every choice of every token, of experts of other ranks too, and up to
    block_rows - 1 for each expert of the rank (vLLM 0.11: compute_aligned_M, whose last rounding is left out here).
    """
    (tokens,) = broadcast(op.tokens)
    if not op.block_rows:
        return 0.0 * tokens
    elsewhere = tokens * op.experts_per_token * (1.0 - 1.0 / op.expert_ranks)
    return elsewhere + op.n_experts / op.expert_ranks * (op.block_rows - 1.0)


def mla_weights(op: MlaModule) -> float:
    """Return the weight elements of an MLA block on one rank: q, compressed kv, up-projections and output."""
    q_dim = op.n_heads * (op.nope_head_dim + op.rope_head_dim)
    q = op.q_lora_rank * (op.hidden_size + q_dim) if op.q_lora_rank else op.hidden_size * q_dim
    kv_down = op.hidden_size * (op.kv_lora_rank + op.rope_head_dim)
    kv_up = op.kv_lora_rank * op.n_heads * (op.nope_head_dim + op.v_head_dim)
    return float(q + kv_down + kv_up + op.n_heads * op.v_head_dim * op.hidden_size)


def flops(op: Operator) -> FloatArray:
    """Return the floating-point operations of one execution on one rank, in the broadcast shape of the fields.

    Raises:
        TypeError: `op` is not an operator.
    """
    match op:
        case Gemm():
            m, n, k = broadcast(op.m, op.n, op.k)
            return 2.0 * m * n * k
        case GroupedGemm():
            (tokens,) = broadcast(op.tokens)
            rows = tokens * op.experts_per_token / op.expert_ranks + padding_rows(op)
            return rows * 6.0 * op.hidden_size * op.intermediate_size
        case PrefillAttention():
            _, _, pairs = broadcast(op.chunks, op.tokens, op.pairs)
            return 4.0 * pairs * op.n_heads * op.head_dim
        case DecodeAttention():
            _, context, _ = broadcast(op.sequences, op.context_tokens, op.max_context_tokens)
            return 4.0 * context * op.n_heads * op.head_dim
        case NonCausalAttention():
            sequences, queries, keys = broadcast(op.sequences, op.query_tokens, op.key_tokens)
            return 4.0 * sequences * queries * keys * op.n_heads * op.head_dim
        case MlaModule():
            sequences, tokens, pairs, context = broadcast(op.sequences, op.tokens, op.pairs, op.context_tokens)
            projections = 2.0 * (sequences if op.stage == "decode" else tokens) * mla_weights(op)
            if op.stage == "decode":  # absorbed: scores over latent + rope, values over the latent
                return projections + 2.0 * context * op.n_heads * (2 * op.kv_lora_rank + op.rope_head_dim)
            return projections + 2.0 * pairs * op.n_heads * (op.nope_head_dim + op.rope_head_dim + op.v_head_dim)
        case LinearAttentionScan():
            tokens, _ = broadcast(op.tokens, op.sequences)
            return 6.0 * tokens * op.n_heads * op.key_head_dim * op.value_head_dim  # read, update and query the state
        case Elementwise():
            return 0.0 * broadcast(op.tokens)[0]
        case Collective():
            return 0.0 * broadcast(op.message_bytes)[0]
        case Matmul():
            m, n, k, batch = broadcast(op.m, op.n, op.k, op.batch)
            return 2.0 * batch * m * n * k
        case Convolution():
            taps = prod(numbers(op.window)) * op.in_channels * op.out_channels / op.groups
            return 2.0 * broadcast(op.batch)[0] * prod(numbers(op.input if op.transposed else op.output)) * taps
        case Streaming():
            return 0.0 * broadcast(op.elements, op.width, op.read_bytes, op.written_bytes)[0]
        case HostLaunch():
            return 0.0 * broadcast(op.kernels)[0]
        case _:
            raise TypeError(f"no flops for {type(op).__name__}")


def bytes_moved(op: Operator, accelerator: Accelerator) -> FloatArray:
    """Return the device-memory bytes of one execution on one rank, in the broadcast shape of the fields.

    Each operand counts once.

    Raises:
        TypeError: `op` is not an operator.
    """
    match op:
        case Gemm():
            m, n, k = broadcast(op.m, op.n, op.k)
            operands = n * k * stored_bytes(op.dtype) + m * k * operand_bytes(op.dtype, accelerator)
            return operands + m * n * ACTIVATION_BYTES
        case GroupedGemm():
            (tokens,) = broadcast(op.tokens)
            experts = distinct_experts(tokens, op.n_experts, op.experts_per_token) / op.expert_ranks
            weights = experts * 3.0 * op.hidden_size * op.intermediate_size * stored_bytes(op.dtype)
            rows = tokens * op.experts_per_token / op.expert_ranks
            # 8-bit inputs and 16-bit outputs of both products, and what lies between them in two kernels, per row
            padding = padding_rows(op) * (3.0 * op.hidden_size + 14.0 * op.intermediate_size)
            return weights + rows * ACTIVATION_BYTES * (2.0 * op.hidden_size + 3.0 * op.intermediate_size) + padding
        case PrefillAttention():
            chunks, tokens, pairs = broadcast(op.chunks, op.tokens, op.pairs)
            q = tokens / np.maximum(chunks, 1.0)
            # The sum over chunks of context + q, since pairs = q (context + q/2).
            keys = pairs / np.maximum(q, 1.0) + 0.5 * tokens
            kv = keys * 2.0 * op.n_kv_heads * op.head_dim * stored_bytes(op.kv_dtype)
            return kv + 2.0 * tokens * op.n_heads * op.head_dim * ACTIVATION_BYTES
        case DecodeAttention():
            sequences, context, _ = broadcast(op.sequences, op.context_tokens, op.max_context_tokens)
            kv = context * 2.0 * op.n_kv_heads * op.head_dim * stored_bytes(op.kv_dtype)
            return kv + 2.0 * sequences * op.n_heads * op.head_dim * ACTIVATION_BYTES
        case NonCausalAttention():
            sequences, queries, keys = broadcast(op.sequences, op.query_tokens, op.key_tokens)
            return 2.0 * sequences * (queries + keys) * op.n_heads * op.head_dim * stored_bytes(op.dtype)
        case MlaModule():
            sequences, tokens, _, context = broadcast(op.sequences, op.tokens, op.pairs, op.context_tokens)
            rows, keys = (sequences, context) if op.stage == "decode" else (tokens, context + tokens)
            latent = keys * (op.kv_lora_rank + op.rope_head_dim) * stored_bytes(op.kv_dtype)
            return mla_weights(op) * stored_bytes(op.dtype) + latent + 2.0 * rows * op.hidden_size * ACTIVATION_BYTES
        case LinearAttentionScan():
            tokens, sequences = broadcast(op.tokens, op.sequences)
            state = 2.0 * sequences * op.n_heads * op.key_head_dim * op.value_head_dim * STATE_BYTES
            return state + 2.0 * tokens * op.n_heads * (op.key_head_dim + op.value_head_dim) * ACTIVATION_BYTES
        case Elementwise():
            return broadcast(op.tokens)[0] * op.bytes_per_token
        case Collective():
            return 2.0 * broadcast(op.message_bytes)[0]  # read once, written once
        case Matmul():
            m, n, k, batch = broadcast(op.m, op.n, op.k, op.batch)
            return stored_bytes(op.dtype) * (batch * m * (k + n) + n * k * (1.0 if op.shared else batch))
        case Convolution():
            parameters = prod(numbers(op.window)) * op.in_channels * op.out_channels / op.groups
            image = op.in_channels * prod(numbers(op.input)) + op.out_channels * prod(numbers(op.output))
            return stored_bytes(op.dtype) * (broadcast(op.batch)[0] * image + parameters)
        case Streaming():
            _, _, read, written = broadcast(op.elements, op.width, op.read_bytes, op.written_bytes)
            return read + written
        case HostLaunch():
            return 0.0 * broadcast(op.kernels)[0]
        case _:
            raise TypeError(f"no bytes for {type(op).__name__}")
