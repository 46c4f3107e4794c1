"""Memory-bound kernels as torch runs them one by one.

An engine that fuses these kernels is faster, which rows measured in the engine would show. Weights, caches and tables
are rotated through memory; activations are not, because the preceding kernel has just written them. Sizes follow from
bytes_per_token by the accounting of the simulator's layers, which counts 16-bit activations. In a profile for models
served in fp32, the kernels run in fp32 on the same number of values.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from calibration.operators.operators import GREEDY_BYTES_PER_LOGIT
from calibration.profile.kernels.inputs import input_sets, random, writable_random
from calibration.profile.machine.device import ProfiledDevice
from calibration.profile.machine.timing import Work
from calibration.profile.session.shape import Shape

ACT: Final = 2.0  # Bytes of a 16-bit activation.

SAMPLING_BYTES: Final = 26.0  # Per vocabulary entry: read, scale, softmax, draw.

ROUTING_BYTES: Final = 6.0  # Per expert: 16-bit logits, fp32 scores.

TOP_K: Final = 8

CACHE_ROWS: Final = 8192  # Tokens of the key-value cache into which rows are written.

TABLE_ROWS: Final = 16384  # Rows of the embedding table.

OVER_VOCAB: Final = ("sampling", "greedy")  # Kinds with the vocabulary size as width.

#: Bytes per token of one unit of width, by kind.
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
    """Return the kernels of one kind on `tokens` rows.

    Raises:
        DoesNotFit: If the inputs do not fit in the device's memory.
    """
    kind, tokens = str(shape["kind"]), int(shape["tokens"])
    width = max(int(float(shape["bytes_per_token"]) / BYTES_PER_WIDTH[kind]), 2)
    dtype = device.sixteen_bit(device.activation)
    label = f"torch eager {kind}, {device.activation}"
    if kind in ("kv_write", "embedding"):
        rows = CACHE_ROWS if kind == "kv_write" else TABLE_ROWS
        sets = input_sets(device, width * rows * float(dtype.itemsize))
        return Work([MAKERS[kind](device, tokens, width, dtype) for _ in sets], label)
    input_sets(device, 8.0 * tokens * width)  # This raises DoesNotFit for inputs that are too large.
    return Work([MAKERS[kind](device, tokens, width, dtype)], label, graph=kind not in OVER_VOCAB)


def _norm(device: ProfiledDevice, tokens: int, width: int, dtype: Any) -> Callable[[], object]:
    """Return a residual addition and an RMS norm.

    On a CPU it is a layer norm, for which torch has a fused kernel there, unlike for the RMS norm.
    """
    functional = device.torch.nn.functional
    x, residual = random(device, (tokens, width), dtype), writable_random(device, (tokens, width), dtype)
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
    cache, rows = writable_random(device, (CACHE_ROWS, width), dtype), random(device, (tokens, width), dtype)
    slots = torch.randperm(max(CACHE_ROWS, tokens), device=device.kind)[:tokens] % CACHE_ROWS
    return lambda: cache.index_copy_(0, slots, rows)


def _embedding(device: ProfiledDevice, tokens: int, width: int, dtype: Any) -> Callable[[], object]:
    torch = device.torch
    table = random(device, (TABLE_ROWS, width), dtype)
    ids = torch.randint(TABLE_ROWS, (tokens,), device=device.kind)
    return lambda: torch.nn.functional.embedding(ids, table)


def _sampling(device: ProfiledDevice, tokens: int, width: int, dtype: Any) -> Callable[[], object]:
    """Return scaling, softmax and a draw by exponential noise, without a sort, as engines sample without top-k."""
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
