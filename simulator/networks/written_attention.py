"""Attention that no fused kernel runs: two products, and a softmax over scores that pass through memory.

Two backends write it out. `math` is torch's own way (`_scaled_dot_product_attention_math` in
ATen/native/transformers/attention.cpp), which it takes where the inputs fit no fused kernel: since 2.5 it computes
16-bit inputs in fp32, and finds rows without any key after the softmax (`_safe_softmax`). `eager`, as transformers
calls it, is a module's own Python: a scaled product, the mask added, a softmax, a product, all in the format of the
network. A compiler fuses what lies between the two products into one kernel; the scores are written before it and after
it all the same.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from catalogs.networks.network import SizedOperator
from catalogs.networks.shapes import AttentionShape, ElementShape, GemmShape, Kind
from simulator.networks.execution import Execution

MATH: Final = "math"

EAGER: Final = "eager"

#: Backends whose attention is written out.
WRITTEN_OUT: Final = (MATH, EAGER)

#: Backends that leave the choice to torch, which takes `math` where the inputs fit no fused kernel.
TORCH_CHOOSES: Final = (None, "sdpa")

#: The format of scores in `math`, where inputs have 16 bits.
ACCUMULATED: Final = "fp32"

ACCUMULATED_BYTES: Final = 4


def runs_unfused(op: SizedOperator, execution: Execution) -> bool:
    """Return whether an operator is attention without a fused kernel. TensorRT finds attention by its pattern."""
    if not isinstance(op.shape, AttentionShape):
        return False
    if execution.attention_backend in WRITTEN_OUT:
        return True
    chosen_by_torch = execution.mode != "tensorrt" and execution.attention_backend in TORCH_CHOOSES
    return bool(op.shape.unfused) and chosen_by_torch


def written_out(op: SizedOperator, execution: Execution) -> tuple[SizedOperator, ...]:
    """Return the operators that compute an attention in parts, or the operator itself where a kernel does."""
    shape = op.shape
    if not isinstance(shape, AttentionShape) or not runs_unfused(op, execution):
        return (op,)
    own = execution.activation_bytes
    in_fp32 = execution.attention_backend != EAGER and own < ACCUMULATED_BYTES
    size, dtype = (ACCUMULATED_BYTES, ACCUMULATED) if in_fp32 else (own, op.dtype)
    pairs = shape.batch * shape.heads
    queries, keys = pairs * shape.queries * shape.head_dim, pairs * shape.keys * shape.head_dim
    values, result = pairs * shape.keys * shape.value_dim, pairs * shape.queries * shape.value_dim
    scores = pairs * shape.queries * shape.keys
    mask = max(op.read_bytes - own * (queries + keys + values), 0) if shape.masked else 0
    if shape.causal and not shape.masked:
        mask = own * shape.queries * shape.keys

    def moving(kind: Kind, operator: str, elements: int, read: int, written: int) -> SizedOperator:
        return replace(
            op,
            kind=kind,
            operator=operator,
            shape=ElementShape(elements),
            read_bytes=read,
            written_bytes=written,
            dtype=dtype,
        )

    def product(n: int, k: int, read: int, written: int) -> SizedOperator:
        gemm = GemmShape(shape.queries, n, k, pairs)
        return replace(op, kind="gemm", operator="bmm", shape=gemm, read_bytes=read, written_bytes=written, dtype=dtype)

    parts: list[SizedOperator] = []
    if in_fp32:
        parts += [moving("copy", "_to_copy", n, own * n, size * n) for n in (queries, keys, values)]
    scaled = (queries, keys) if execution.attention_backend != EAGER else (queries,)
    parts += [moving("pointwise", "mul", n, size * n, size * n) for n in scaled]
    parts.append(product(shape.keys, shape.head_dim, size * (queries + keys), size * scores))
    if execution.mode != "eager":
        parts.append(moving("softmax", "_softmax", scores, size * scores + mask, size * scores))
    else:
        if mask:
            parts.append(moving("pointwise", "add", scores, size * scores + mask, size * scores))
        parts.append(moving("softmax", "_softmax", scores, size * scores, size * scores))
        if execution.attention_backend != EAGER:
            rows = pairs * shape.queries
            parts.append(moving("pointwise", "eq", scores, size * scores, scores))
            parts.append(moving("reduction", "all", rows, scores, rows))
            parts.append(moving("pointwise", "where", scores, size * scores + rows, size * scores))
    parts.append(product(shape.value_dim, shape.keys, size * (scores + values), size * result))
    if in_fp32:
        parts.append(moving("copy", "_to_copy", result, size * result, own * result))
    return tuple(parts)


def scores_bytes(op: SizedOperator, execution: Execution) -> float:
    """Return the bytes of scores, before and after the softmax, that live at once where attention is written out."""
    if not isinstance(op.shape, AttentionShape) or not runs_unfused(op, execution):
        return 0.0
    own = execution.activation_bytes
    size = own if execution.attention_backend == EAGER else max(own, ACCUMULATED_BYTES)
    return 2.0 * size * op.shape.batch * op.shape.heads * op.shape.queries * op.shape.keys
