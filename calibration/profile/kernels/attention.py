"""Attention: of prompt chunks and of decode batches with grouped query heads that share keys, and linear attention.

In prefill, a chunk attends causally after some context. On a CPU a chunk with context takes two calls, one over the
context and a causal one over the chunk, which are merged by their log-sums, because torch's CPU kernel has no causal
mask aligned to the lower right. On CUDA it takes one call with that mask.

In decode, there is one query per sequence over its cached keys. The query heads that share a key-value head are folded
into query rows, so that keys are read once, as in the kernels of engines. A batch with one long sequence runs as one
call for that sequence and one call for the others; a kernel that mixes lengths may be faster. Keys are contiguous,
whereas the paged cache of an engine adds a block table.

Linear attention has a gated state per head, which is updated token by token or chunk by chunk. Decode computes
state = decay x state + key x value and reads the state with the query, over fp32 states that are rotated through
memory. Prefill runs chunks of CHUNK tokens, with causal products within a chunk and the running state between chunks.
An engine's fused kernel passes over the state fewer times, so on a GPU these rows are shown but not fitted.
"""

from __future__ import annotations

import importlib
from typing import Any, Final

from calibration.operators.network_operators import TORCH_ATTENTION, TORCH_ATTENTION_MASKED
from calibration.profile.kernels.inputs import ActivationSets, Unavailable, input_sets, random, writable_random
from calibration.profile.machine.device import ProfiledDevice
from calibration.profile.machine.timing import Call, Work
from calibration.profile.session.shape import Shape

#: Tokens of a chunk of linear attention: that of the kernels of flash-linear-attention.
CHUNK: Final = 64


def prefill(shape: Shape, device: ProfiledDevice) -> Work:
    """Return attention over equal chunks of q = tokens / chunks new tokens.

    The context follows from the number of query-key pairs per chunk: pairs = q (context + q / 2).

    Raises:
        DoesNotFit: If the inputs do not fit in the device's memory.
    """
    chunks, tokens, heads, kv_heads, head_dim = shape.ints("chunks", "tokens", "n_heads", "n_kv_heads", "head_dim")
    rows = tokens // chunks
    context = round(float(shape["pairs"]) / chunks / rows - rows / 2)
    dtype = device.sixteen_bit(str(shape["kv_dtype"]))
    if shape["window_tokens"]:
        return _windowed(shape, device, dtype)
    sets = input_sets(device, 2.0 * dtype.itemsize * chunks * head_dim * (kv_heads * (rows + context) + heads * rows))
    size = (chunks, kv_heads, heads // kv_heads, rows, context, head_dim)
    make = _prefill_on_cuda if device.is_cuda else _prefill_on_cpu
    merged = context > 0 and not device.is_cuda
    return Work([make(device, size, dtype) for _ in sets], "sdpa" + (", context and chunk merged" if merged else ""))


def _windowed(shape: Shape, device: ProfiledDevice, dtype: Any) -> Work:
    """Return attention over a whole prompt with a sliding window as a mask.

    torch has no kernel that skips the keys outside the window.
    """
    heads, kv_heads, head_dim, rows = shape.ints("n_heads", "n_kv_heads", "head_dim", "tokens")
    torch = device.torch
    q = random(device, (1, heads, rows, head_dim), dtype)
    k, v = (random(device, (1, kv_heads, rows, head_dim), dtype) for _ in range(2))
    causal = torch.ones(rows, rows, dtype=torch.bool, device=device.kind).tril_()
    mask = causal & ~causal.tril(-int(shape["window_tokens"]))
    attention = torch.nn.functional.scaled_dot_product_attention
    return Work([lambda: attention(q, k, v, attn_mask=mask, enable_gqa=heads > kv_heads)], "sdpa, window by mask")


def _prefill_on_cuda(device: ProfiledDevice, size: tuple[int, ...], dtype: Any) -> Call:
    chunks, kv_heads, group, rows, context, head_dim = size
    attention = device.torch.nn.functional.scaled_dot_product_attention
    q = random(device, (chunks, kv_heads * group, rows, head_dim), dtype)
    k, v = (random(device, (chunks, kv_heads, rows + context, head_dim), dtype) for _ in range(2))
    if not context:
        return lambda: attention(q, k, v, is_causal=True, enable_gqa=group > 1)
    mask = importlib.import_module("torch.nn.attention.bias").causal_lower_right(rows, rows + context)
    return lambda: attention(q, k, v, attn_mask=mask, enable_gqa=group > 1)


def _prefill_on_cpu(device: ProfiledDevice, size: tuple[int, ...], dtype: Any) -> Call:
    chunks, kv_heads, group, rows, context, head_dim = size
    torch, streams = device.torch, chunks * kv_heads
    q = random(device, (streams, group, rows, head_dim), dtype)
    own = [random(device, (streams, 1, rows, head_dim), dtype).expand(-1, group, -1, -1) for _ in range(2)]
    if not context:
        attention = torch.nn.functional.scaled_dot_product_attention
        return lambda: attention(q, *own, is_causal=True)
    earlier = [random(device, (streams, 1, context, head_dim), dtype).expand(-1, group, -1, -1) for _ in range(2)]
    attention = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu

    def run() -> object:
        a, sum_a = attention(q, *earlier, 0.0, False)
        b, sum_b = attention(q, *own, 0.0, True)
        share = torch.sigmoid(sum_a - sum_b).unsqueeze(-1).to(a.dtype)
        return torch.lerp(b, a, share)

    return run


def lengths(sequences: int, context_tokens: int, longest: int) -> list[tuple[int, int]]:
    """Return (sequences, tokens per sequence) of the calls for a decode batch.

    A batch is even, or it has one sequence of `longest` tokens and the others share the remaining tokens equally.
    """
    if sequences == 1 or longest * sequences <= context_tokens:
        return [(sequences, max(context_tokens // sequences, 1))]
    return [(1, longest), (sequences - 1, max((context_tokens - longest) // (sequences - 1), 1))]


def decode(shape: Shape, device: ProfiledDevice) -> Work:
    """Return scaled dot-product attention in the shape's dtype, with fp16 on devices without bf16.

    Raises:
        DoesNotFit: If the inputs do not fit in the device's memory.
    """
    sequences, context, longest = shape.ints("sequences", "context_tokens", "max_context_tokens")
    heads, kv_heads, head_dim = shape.ints("n_heads", "n_kv_heads", "head_dim")
    batches = lengths(sequences, context, longest)
    dtype = device.sixteen_bit(str(shape["kv_dtype"]))
    attention = device.torch.nn.functional.scaled_dot_product_attention

    def call() -> Call:
        parts = [
            [random(device, (b * kv_heads, 1, rows, head_dim), dtype) for rows in (heads // kv_heads, n, n)]
            for b, n in batches
        ]

        def run() -> None:
            for q, k, v in parts:
                attention(q, k, v)

        return run

    sets = input_sets(device, 2.0 * context * kv_heads * head_dim * dtype.itemsize)
    label = "sdpa, query group folded" + (", one call per length" if len(batches) > 1 else "")
    return Work([call() for _ in sets], label)


def linear(shape: Shape, device: ProfiledDevice) -> Work:
    """Return the scan of one layer.

    Raises:
        DoesNotFit: If the inputs do not fit in the device's memory.
    """
    tokens, sequences = shape.ints("tokens", "sequences")
    heads, key, value = shape.ints("n_heads", "key_head_dim", "value_head_dim")
    if shape["stage"] == "decode":
        sets = input_sets(device, 4.0 * sequences * heads * key * value)
        return Work(
            [_scan_in_decode(device, sequences * heads, key, value) for _ in sets], "torch baddbmm over fp32 states"
        )
    input_sets(device, 16.0 * tokens * heads * (key + value))  # this raises DoesNotFit for inputs that are too large
    call = _scan_in_prefill(device, sequences * heads, max(tokens // sequences, 1), key, value)
    return Work([call], f"torch, chunks of {CHUNK}")


def _scan_in_decode(device: ProfiledDevice, streams: int, key: int, value: int) -> Call:
    torch = device.torch
    state = writable_random(device, (streams, key, value), torch.float32)
    q, k = (random(device, (streams, key, 1), torch.float32) for _ in range(2))
    v = random(device, (streams, 1, value), torch.float32)

    def run() -> object:
        state.baddbmm_(k, v, beta=0.99, alpha=0.01)
        return torch.bmm(q.transpose(1, 2), state)

    return run


def _scan_in_prefill(device: ProfiledDevice, streams: int, tokens: int, key: int, value: int) -> Call:
    torch = device.torch
    n = -(-tokens // CHUNK)
    size = min(CHUNK, tokens)
    dtype = device.sixteen_bit(device.activation)
    q, k = (random(device, (streams * n, size, key), dtype) for _ in range(2))
    v = random(device, (streams * n, size, value), dtype)

    def run() -> object:
        inside = torch.bmm(torch.bmm(q, k.transpose(1, 2)).tril_(), v)
        states = torch.bmm(k.transpose(1, 2), v).view(streams, n, key, value)
        before = torch.cumsum(states, dim=1).sub_(states).view(streams * n, key, value)
        return inside.baddbmm_(q, before.to(dtype))

    return run


def without_causal_mask(shape: Shape, device: ProfiledDevice) -> Work:
    """Return attention of every query to every key as networks call it, of heads that lie next to each other in memory.

    Raises:
        DoesNotFit: If the inputs do not fit in the device's memory.
        Unavailable: If the kernel is none of torch's.
    """
    kernel = str(shape["kernel"])
    if kernel not in (TORCH_ATTENTION, TORCH_ATTENTION_MASKED):
        raise Unavailable(f"only torch's own attention is measured, not {kernel}")
    sequences, queries, keys = shape.ints("sequences", "query_tokens", "key_tokens")
    heads, head_dim = shape.ints("n_heads", "head_dim")
    dtype = device.sixteen_bit(str(shape["dtype"]))
    width = float(dtype.itemsize * sequences * heads * head_dim)
    input_sets(device, 2.0 * width * (queries + keys))  # raises DoesNotFit for inputs that are too large
    activations = ActivationSets(device)
    first = activations.random((sequences, queries, heads, head_dim), dtype)
    further = activations.random((2, sequences, keys, heads, head_dim), dtype)
    mask = None
    if kernel == TORCH_ATTENTION_MASKED:  # one bias for each head, shared by the sequences
        mask = random(device, (1, heads, queries, keys), dtype).expand(sequences, -1, -1, -1)
    attention = device.torch.nn.functional.scaled_dot_product_attention

    def call() -> Call:
        q, (k, v) = first().transpose(1, 2), further().transpose(2, 3)
        return lambda: attention(q, k, v, attn_mask=mask)

    calls = [call() for _ in activations.sets(width * (queries + 2 * keys))]
    return Work(activations.keeping(calls, width * queries), kernel)
