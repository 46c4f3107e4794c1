"""Memory-bound kernels as torch runs them one by one; an engine that fuses them is faster, which its rows would show.

Weights, caches and tables are rotated through memory; activations are not, since the kernel before has just written
them. Sizes follow from bytes_per_token by the accounting of the simulator's layers, which counts 16-bit activations: in
a profile for models served in fp32 the kernels run in fp32 on as many values.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from calibration.operators.operators import GREEDY_BYTES_PER_LOGIT
from calibration.profile.kernels.inputs import cycle, own, random
from calibration.profile.machine.device import ProfiledDevice
from calibration.profile.machine.timing import Work
from calibration.profile.session.shape import Shape

ACT: Final = 2.0  # bytes of a 16-bit activation

SAMPLING_BYTES: Final = 26.0  # per word of the vocabulary: read, scale, softmax, draw

ROUTING_BYTES: Final = 6.0  # per expert: 16-bit logits, fp32 scores

TOP_K: Final = 8

CACHE_ROWS: Final = 8192  # tokens of the key-value cache that rows are scattered into

TABLE_ROWS: Final = 16384  # rows of the embedding table

OVER_VOCAB: Final = ("sampling", "greedy")  # kinds whose width is the vocabulary

#: kind -> bytes per token of one unit of width.
BYTES_PER_WIDTH: Final[dict[str, float]] = {
    "norm": 4 * ACT,
    "activation": 3 * ACT,
    "rotary": 2 * ACT,
    "kv_write": 2 * ACT,
    "embedding": 2 * ACT,
    "sampling": SAMPLING_BYTES,
    "greedy": float(GREEDY_BYTES_PER_LOGIT),
    "routing": ROUTING_BYTES,
}


def work(shape: Shape, device: ProfiledDevice) -> Work:
    """The kernels of one kind on `tokens` rows."""
    kind, tokens = str(shape["kind"]), int(shape["tokens"])
    width = max(int(float(shape["bytes_per_token"]) / BYTES_PER_WIDTH[kind]), 2)
    dtype = device.sixteen_bit(device.activation)
    label = f"torch eager {kind}, {device.activation}"
    if kind in ("kv_write", "embedding"):
        rows = CACHE_ROWS if kind == "kv_write" else TABLE_ROWS
        sets = cycle(device, width * rows * float(dtype.itemsize))
        return Work([MAKERS[kind](device, tokens, width, dtype) for _ in sets], label)
    cycle(device, 8.0 * tokens * width)  # refuses what does not fit
    return Work([MAKERS[kind](device, tokens, width, dtype)], label, graph=kind not in OVER_VOCAB)


def _norm(device: ProfiledDevice, tokens: int, width: int, dtype: Any) -> Callable[[], object]:
    """Residual add, then RMS norm; layer norm on a CPU, where torch has one fused kernel for it and none for RMS."""
    functional = device.torch.nn.functional
    x, residual = random(device, (tokens, width), dtype), own(device, (tokens, width), dtype)
    weight = random(device, (width,), dtype)
    norm = functional.rms_norm if device.is_cuda else functional.layer_norm
    return lambda: norm(residual.add_(x, alpha=1e-4), (width,), weight)


def _activation(device: ProfiledDevice, tokens: int, width: int, dtype: Any) -> Callable[[], object]:
    silu = device.torch.nn.functional.silu
    x = random(device, (tokens, 2 * width), dtype)
    return lambda: silu(x[:, :width]).mul_(x[:, width:])


def _rotary(device: ProfiledDevice, tokens: int, width: int, dtype: Any) -> Callable[[], object]:
    torch = device.torch
    half = max(width // 2, 1)
    x = random(device, (tokens, 2 * half), dtype)
    cos, sin = random(device, (tokens, half), dtype), random(device, (tokens, half), dtype)

    def run() -> object:
        a, b = x[:, :half], x[:, half:]
        return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)

    return run


def _kv_write(device: ProfiledDevice, tokens: int, width: int, dtype: Any) -> Callable[[], object]:
    torch = device.torch
    cache, rows = own(device, (CACHE_ROWS, width), dtype), random(device, (tokens, width), dtype)
    slots = torch.randperm(max(CACHE_ROWS, tokens), device=device.kind)[:tokens] % CACHE_ROWS
    return lambda: cache.index_copy_(0, slots, rows)


def _embedding(device: ProfiledDevice, tokens: int, width: int, dtype: Any) -> Callable[[], object]:
    torch = device.torch
    table = random(device, (TABLE_ROWS, width), dtype)
    ids = torch.randint(TABLE_ROWS, (tokens,), device=device.kind)
    return lambda: torch.nn.functional.embedding(ids, table)


def _sampling(device: ProfiledDevice, tokens: int, width: int, dtype: Any) -> Callable[[], object]:
    """Scale, softmax, draw by exponential noise: no sort, as engines draw without top-k."""
    torch = device.torch
    logits = random(device, (tokens, width), dtype)

    def run() -> object:
        p = torch.softmax(logits.float().div_(0.8), dim=-1)
        return p.div_(torch.empty_like(p).exponential_()).argmax(dim=-1)

    return run


def _greedy(device: ProfiledDevice, tokens: int, width: int, dtype: Any) -> Callable[[], object]:
    logits = random(device, (tokens, width), dtype)
    return lambda: logits.float().argmax(dim=-1)


def _routing(device: ProfiledDevice, tokens: int, width: int, dtype: Any) -> Callable[[], object]:
    torch = device.torch
    logits = random(device, (tokens, width), dtype)
    return lambda: torch.softmax(logits.float(), dim=-1).topk(min(TOP_K, width), dim=-1)


MAKERS: Final[dict[str, Callable[[ProfiledDevice, int, int, Any], Callable[[], object]]]] = {
    "norm": _norm,
    "activation": _activation,
    "rotary": _rotary,
    "kv_write": _kv_write,
    "embedding": _embedding,
    "sampling": _sampling,
    "greedy": _greedy,
    "routing": _routing,
}
