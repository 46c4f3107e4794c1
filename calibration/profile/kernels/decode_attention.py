"""Decode attention: one query per sequence over its cached keys, for even and uneven batches.

The query heads that share a key-value head are folded into query rows, so that keys are read once, as in the kernels of
engines. A batch with one long sequence runs as one call for that sequence and one call for the others; a kernel that
mixes lengths may be faster. Keys are contiguous, whereas the paged cache of an engine adds a block table.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from calibration.profile.kernels.inputs import input_sets, random
from calibration.profile.machine.device import ProfiledDevice
from calibration.profile.machine.timing import Work
from calibration.profile.session.shape import Shape


def lengths(sequences: int, context_tokens: int, longest: int) -> list[tuple[int, int]]:
    """Return (sequences, tokens per sequence) of the calls for a batch.

    A batch is even, or it has one sequence of `longest` tokens and the others share the remaining tokens equally.
    """
    if sequences == 1 or longest * sequences <= context_tokens:
        return [(sequences, max(context_tokens // sequences, 1))]
    return [(1, longest), (sequences - 1, max((context_tokens - longest) // (sequences - 1), 1))]


def work(shape: Shape, device: ProfiledDevice) -> Work:
    """Return scaled dot-product attention in the shape's dtype, with fp16 on devices without bf16."""
    names = ("sequences", "context_tokens", "max_context_tokens", "n_heads", "n_kv_heads", "head_dim")
    sequences, context, longest, heads, kv_heads, head_dim = (int(shape[c]) for c in names)
    batches = lengths(sequences, context, longest)
    dtype = device.sixteen_bit(str(shape["kv_dtype"]))
    sets = input_sets(device, 2.0 * context * kv_heads * head_dim * dtype.itemsize)
    group = heads // kv_heads
    calls = [_call(device, [(b * kv_heads, n) for b, n in batches], group, head_dim, dtype) for _ in sets]
    return Work(calls, "sdpa, query group folded" + (", one call per length" if len(batches) > 1 else ""))


def _call(
    device: ProfiledDevice, streams: list[tuple[int, int]], group: int, head_dim: int, dtype: Any
) -> Callable[[], object]:
    attention = device.torch.nn.functional.scaled_dot_product_attention
    parts = [
        (random(device, (s, 1, group, head_dim), dtype), *(random(device, (s, 1, n, head_dim), dtype) for _ in "kv"))
        for s, n in streams
    ]

    def run() -> None:
        for q, k, v in parts:
            attention(q, k, v)

    return run
