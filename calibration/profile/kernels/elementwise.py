"""Memory-bound kernels as torch runs them one by one.

An engine that fuses these kernels is faster, which rows measured in the engine would show. Weights, caches and tables
are rotated through memory; activations are not, because the preceding kernel has just written them. Sizes follow from
bytes_per_token by the accounting of the simulator's layers, which counts 16-bit activations. In a profile for models
served in fp32, the kernels run in fp32 on the same number of values.
"""

from __future__ import annotations

from typing import Any, Final

from calibration.operators.flops_and_bytes import ACTIVATION_BYTES
from calibration.operators.operators import GREEDY_BYTES_PER_LOGIT, SAMPLING_BYTES_PER_LOGIT
from calibration.profile.kernels.inputs import input_sets, random, writable_random
from calibration.profile.machine.device import ProfiledDevice
from calibration.profile.machine.timing import Call, Work
from calibration.profile.session.shape import Shape

ACT: Final = float(ACTIVATION_BYTES)

ROUTING_BYTES: Final = 6.0  # per expert: 16-bit logits, fp32 scores

#: Experts that each token chooses in the measured kernel. A judgement: a usual number.
TOP_K: Final = 8

#: Rows of the tables that are read or written at a few rows: tokens of the key-value cache, and embeddings.
TABLE_ROWS: Final = {"kv_write": 8192, "embedding": 16384}

OVER_VOCAB: Final = ("sampling", "greedy")  # kinds with the vocabulary size as width

#: Bytes per token of one unit of width, by kind.
BYTES_PER_WIDTH: Final[dict[str, float]] = {
    "norm": 4 * ACT,
    "activation": 3 * ACT,
    "rotary": 2 * ACT,
    "kv_write": 2 * ACT,
    "embedding": 2 * ACT,
    "sampling": float(SAMPLING_BYTES_PER_LOGIT),
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
    if kind in TABLE_ROWS:
        sets = input_sets(device, width * TABLE_ROWS[kind] * float(dtype.itemsize))
        return Work([_call(kind, device, tokens, width, dtype) for _ in sets], label)
    input_sets(device, 8.0 * tokens * width)  # this raises DoesNotFit for inputs that are too large
    return Work([_call(kind, device, tokens, width, dtype)], label, graph=kind not in OVER_VOCAB)


def _call(kind: str, device: ProfiledDevice, tokens: int, width: int, dtype: Any) -> Call:
    """Return a call of the kernels of one kind.

    A norm adds the residual first. On a CPU it is a layer norm, because torch has a fused CPU kernel for that norm and
    none for the RMS norm. Sampling is scaling, softmax and a draw by exponential noise, without a sort, as engines
    sample without top-k.
    """
    torch, functional = device.torch, device.torch.nn.functional
    if kind == "embedding":
        table = random(device, (TABLE_ROWS[kind], width), dtype)
        ids = torch.randint(TABLE_ROWS[kind], (tokens,), device=device.kind)
        return lambda: functional.embedding(ids, table)
    if kind == "kv_write":
        n_slots = TABLE_ROWS[kind]
        cache, rows = writable_random(device, (n_slots, width), dtype), random(device, (tokens, width), dtype)
        slots = torch.randperm(max(n_slots, tokens), device=device.kind)[:tokens] % n_slots
        return lambda: cache.index_copy_(0, slots, rows)
    if kind == "activation":
        x, silu = random(device, (tokens, 2 * width), dtype), functional.silu
        return lambda: silu(x[:, :width]).mul_(x[:, width:])
    if kind == "rotary":
        half = max(width // 2, 1)
        x = random(device, (tokens, 2 * half), dtype)
        cos, sin = random(device, (tokens, half), dtype), random(device, (tokens, half), dtype)

        def rotate() -> object:
            a, b = x[:, :half], x[:, half:]
            return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)

        return rotate
    x = random(device, (tokens, width), dtype)
    if kind == "norm":
        residual, weight = writable_random(device, (tokens, width), dtype), random(device, (width,), dtype)
        norm = functional.rms_norm if device.is_cuda else functional.layer_norm
        return lambda: norm(residual.add_(x, alpha=1e-4), (width,), weight)
    if kind == "greedy":
        return lambda: x.float().argmax(dim=-1)
    if kind == "routing":
        return lambda: torch.softmax(x.float(), dim=-1).topk(min(TOP_K, width), dim=-1)

    def sample() -> object:
        p = torch.softmax(x.float().div_(0.8), dim=-1)
        return p.div_(torch.empty_like(p).exponential_()).argmax(dim=-1)

    return sample
