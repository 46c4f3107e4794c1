"""The measured operator that stands for an operator of a traced network: one mapping for profiles and for prices.

Profiles measure exactly what the simulator prices, because both take the operator from here.
"""

from __future__ import annotations

from typing import Final

from calibration.operators.operators import Convolution, Matmul, NonCausalAttention, Streaming, extents
from catalogs.networks.network import SizedOperator
from catalogs.networks.shapes import AttentionShape, ConvolutionShape, GemmShape
from catalogs.units import DTYPE_BYTES

#: Names of torch's own attention (`scaled_dot_product_attention`) without and with a mask tensor.
TORCH_ATTENTION: Final = "sdpa"

TORCH_ATTENTION_MASKED: Final = "sdpa_masked"

STATISTICS_BYTES: Final = 8  # a norm writes a mean and a deviation in fp32 for each group of elements

NetworkOperator = Matmul | Convolution | NonCausalAttention | Streaming


def network_operator(op: SizedOperator, dtype: str) -> NetworkOperator | None:
    """Return the operator to measure or to price for one run of an operator of a network in eager mode.

    It is None for causal attention, which is priced as a prompt, and for attention that no fused kernel runs, which is
    priced by its parts.

    Args:
        op: The operator; its bytes are those of `dtype`.
        dtype: The dtype in which the network computes.
    """
    shape = op.shape
    match shape:
        case GemmShape():
            return Matmul(shape.m, shape.n, shape.k, shape.batch, int(op.weights > 0), dtype)
        case ConvolutionShape():
            return Convolution(
                shape.batch,
                shape.in_channels,
                shape.out_channels,
                shape.groups,
                extents(shape.kernel),
                extents(shape.input),
                extents(shape.output),
                extents(shape.stride),
                extents(shape.dilation),
                shape.transposed,
                dtype,
            )
        case AttentionShape():
            if shape.causal or shape.unfused:
                return None
            kernel = TORCH_ATTENTION_MASKED if shape.masked else TORCH_ATTENTION
            dim = (shape.head_dim + shape.value_dim) // 2
            return NonCausalAttention(shape.batch, shape.queries, shape.keys, shape.heads, dim, kernel, dtype)
    own = op.dtype or dtype
    size = DTYPE_BYTES.get(own, 4.0)
    read = op.read_bytes + round(op.weights * DTYPE_BYTES[dtype])
    return Streaming(op.kind, op.operator, shape.elements, _width(op, size), read, op.written_bytes, own)


def converts_nothing(op: SizedOperator) -> bool:
    """Return whether an operator is a conversion between dtypes that are equal in this execution, which torch skips.

    A network traced in bf16 converts norms to fp32; one that computes in fp32 launches nothing there.
    """
    return op.operator == "_to_copy" and op.read_bytes == op.written_bytes


def _width(op: SizedOperator, itemsize: float) -> int:
    """Return the elements that share a mean, from the statistics that a norm writes besides its result."""
    if op.kind != "normalisation":
        return 0
    groups = (op.written_bytes - op.shape.elements * itemsize) / STATISTICS_BYTES  # type: ignore[union-attr]
    return int(op.shape.elements / groups) if groups >= 1 else 0  # type: ignore[union-attr]
