"""Prefill attention: causal attention of prompt chunks after some context, with grouped heads that share keys.

On a CPU a chunk with context takes two calls, one over the context and a causal one over the chunk, which are merged by
their log-sums, because torch's CPU kernel has no causal mask aligned to the lower right. On CUDA it takes one call with
that mask.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from calibration.profile.kernels.inputs import input_sets, random
from calibration.profile.machine.device import ProfiledDevice
from calibration.profile.machine.timing import Work
from calibration.profile.session.shape import Shape


def work(shape: Shape, device: ProfiledDevice) -> Work:
    """Return attention over equal chunks of q = tokens / chunks new tokens.

    The context follows from the number of query-key pairs per chunk: pairs = q (context + q / 2).
    """
    chunks, heads, kv_heads, head_dim = (int(shape[c]) for c in ("chunks", "n_heads", "n_kv_heads", "head_dim"))
    rows = int(shape["tokens"]) // chunks
    context = round(float(shape["pairs"]) / chunks / rows - rows / 2)
    dtype = device.sixteen_bit(str(shape["kv_dtype"]))
    if shape["window_tokens"]:
        return _windowed(shape, device, dtype)
    sets = input_sets(device, 2.0 * dtype.itemsize * chunks * head_dim * (kv_heads * (rows + context) + heads * rows))
    size = (chunks, kv_heads, heads // kv_heads, rows, context, head_dim)
    make = _cuda if device.is_cuda else _cpu
    merged = context > 0 and not device.is_cuda
    return Work([make(device, size, dtype) for _ in sets], "sdpa" + (", context and chunk merged" if merged else ""))


def _windowed(shape: Shape, device: ProfiledDevice, dtype: Any) -> Work:
    """Return attention over a whole prompt with a sliding window as a mask.

    torch has no kernel that skips the keys outside the window.
    """
    heads, kv_heads, head_dim, rows = (int(shape[c]) for c in ("n_heads", "n_kv_heads", "head_dim", "tokens"))
    torch = device.torch
    q = random(device, (1, heads, rows, head_dim), dtype)
    k, v = (random(device, (1, kv_heads, rows, head_dim), dtype) for _ in "kv")
    seen = torch.ones(rows, rows, dtype=torch.bool, device=device.kind).tril_()
    mask = seen & ~seen.tril(-int(shape["window_tokens"]))
    attention = torch.nn.functional.scaled_dot_product_attention
    call = lambda: attention(q, k, v, attn_mask=mask, enable_gqa=heads > kv_heads)  # noqa: E731
    return Work([call], "sdpa, window by mask")


def _cuda(device: ProfiledDevice, size: tuple[int, ...], dtype: Any) -> Callable[[], object]:
    chunks, kv_heads, group, rows, context, head_dim = size
    attention = device.torch.nn.functional.scaled_dot_product_attention
    q = random(device, (chunks, kv_heads * group, rows, head_dim), dtype)
    k, v = (random(device, (chunks, kv_heads, rows + context, head_dim), dtype) for _ in "kv")
    if not context:
        return lambda: attention(q, k, v, is_causal=True, enable_gqa=group > 1)
    bias = importlib.import_module("torch.nn.attention.bias")
    mask = bias.causal_lower_right(rows, rows + context)
    return lambda: attention(q, k, v, attn_mask=mask, enable_gqa=group > 1)


def _cpu(device: ProfiledDevice, size: tuple[int, ...], dtype: Any) -> Callable[[], object]:
    chunks, kv_heads, group, rows, context, head_dim = size
    streams = chunks * kv_heads
    q = random(device, (streams, group, rows, head_dim), dtype)
    own = [random(device, (streams, 1, rows, head_dim), dtype).expand(-1, group, -1, -1) for _ in "kv"]
    if not context:
        attention = device.torch.nn.functional.scaled_dot_product_attention
        return lambda: attention(q, *own, is_causal=True)
    earlier = [random(device, (streams, 1, context, head_dim), dtype).expand(-1, group, -1, -1) for _ in "kv"]
    torch = device.torch
    attention = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu

    def run() -> object:
        a, sum_a = attention(q, *earlier, 0.0, False)
        b, sum_b = attention(q, *own, 0.0, True)
        share = torch.sigmoid(sum_a - sum_b).unsqueeze(-1).to(a.dtype)
        return torch.lerp(b, a, share)

    return run
