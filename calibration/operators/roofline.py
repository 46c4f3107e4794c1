"""The roofline time of every operator, the lower bound of any execution.

roofline_s = max(flops / peak flops of the dtype, bytes / memory bandwidth); a collective is bound by its link instead.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Final

import numpy as np

from calibration.operators.cost import broadcast
from calibration.operators.flops_and_bytes import bytes_moved, compute_dtype, flops
from calibration.operators.operators import (
    Collective,
    Convolution,
    DecodeAttention,
    Gemm,
    GroupedGemm,
    Matmul,
    MlaModule,
    NonCausalAttention,
    Operator,
    PrefillAttention,
)
from catalogs.arrays import FloatArray
from catalogs.errors import InputError
from catalogs.hardware.catalog import parse_hardware
from catalogs.hardware.specs import Accelerator

PCIE4_BYTES_PER_S: Final = 25e9  # achieved rate of PCIe 4.0 x16, used where the catalog has no link for an accelerator


@lru_cache(maxsize=256)
def link_bytes_per_s(accelerator_name: str, ranks: int | None = None) -> float:
    """Return the link bandwidth per accelerator in one direction, in bytes per second.

    It is the link of the accelerator's node in the catalog; PCIe 4.0 where that is unknown. Between `ranks` of a mesh,
    only the links that join them count.
    """
    try:
        node = parse_hardware(accelerator_name).node
    except InputError:
        return PCIE4_BYTES_PER_S
    return node.link_bytes_per_s if ranks is None else node.link_bytes_per_s_of(ranks)


@lru_cache(maxsize=64)
def link_name(accelerator_name: str) -> str:
    """Return the name of the link of an accelerator's node, such as "nvlink4"; "pcie4" where that is unknown."""
    try:
        return parse_hardware(accelerator_name).node.link_name
    except InputError:
        return "pcie4"


def padding_s(op: GroupedGemm, accelerator: Accelerator) -> FloatArray:
    """Return the least seconds that the rows without a token add, in the shape of `op.tokens`.

    Their arithmetic and their bytes add up, and both add to the time of the weights, because the products of a block do
    not hide behind reading its weights. The public times of this layout on H100 (vLLM pull request 13932, DeepSeek-V3,
    128 tokens) say so: the part in proportion to the width of the experts is 4.7 to 5.2 ms at full width, where reading
    the weights at full bandwidth takes 3.3 ms and the arithmetic of all rows at the peak 1.4 ms.
    """
    plain = replace(op, block_rows=0)
    arithmetic = compute_s(op, accelerator) - compute_s(plain, accelerator)
    return arithmetic + memory_s(op, accelerator) - memory_s(plain, accelerator)


def link_bytes(op: Collective) -> FloatArray:
    """Return the bytes that each rank sends over its link. Shape (n,), as the fields of `op`.

    A ring all-reduce sends 2 (r-1)/r of the message, its two halves (r-1)/r each, and a send the whole message.
    """
    (size,) = broadcast(op.message_bytes)
    share = (op.ranks - 1) / op.ranks
    return size * {"all_reduce": 2.0 * share, "send_recv": 1.0}.get(op.kind, share)


def math_dtype(op: Operator, accelerator: Accelerator) -> str:
    """Return the dtype with the peak that bounds the operator's arithmetic."""
    if isinstance(op, (Gemm, GroupedGemm, MlaModule, Matmul, Convolution, NonCausalAttention)):
        return compute_dtype(op.dtype, accelerator)
    if isinstance(op, (PrefillAttention, DecodeAttention)):
        return compute_dtype(op.kv_dtype, accelerator)
    return "bf16"


def compute_s(op: Operator, accelerator: Accelerator) -> FloatArray:
    """Return the seconds of the operator's arithmetic at peak FLOPS, in the broadcast shape of the fields."""
    return flops(op) / accelerator.flops_for(math_dtype(op, accelerator))


def memory_s(op: Operator, accelerator: Accelerator) -> FloatArray:
    """Return the seconds of the operator's bytes at full memory bandwidth, in the broadcast shape of the fields."""
    return bytes_moved(op, accelerator) / accelerator.memory_bandwidth_bytes_per_s


def roofline_s(op: Operator, accelerator: Accelerator) -> FloatArray:
    """Return the lower bound in seconds of any execution with operands in device memory, in the broadcast shape."""
    if isinstance(op, Collective):
        return link_bytes(op) / link_bytes_per_s(accelerator.name, op.ranks)
    return np.maximum(compute_s(op, accelerator), memory_s(op, accelerator))
