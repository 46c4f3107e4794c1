"""Linear attention in plain torch: a gated state per head, updated token by token or chunk by chunk.

Decode computes state = decay x state + key x value and reads the state with the query, over fp32 states that are
rotated through memory. Prefill runs chunks of CHUNK tokens, with causal products within a chunk and the running state
between chunks. An engine's fused kernel passes over the state fewer times, so on a GPU these rows are shown but not
fitted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from calibration.profile.kernels.inputs import input_sets, random, writable_random
from calibration.profile.machine.device import ProfiledDevice
from calibration.profile.machine.timing import Work
from calibration.profile.session.shape import Shape

CHUNK: Final = 64


def work(shape: Shape, device: ProfiledDevice) -> Work:
    """Return the scan of one layer."""
    names = ("tokens", "sequences", "n_heads", "key_head_dim", "value_head_dim")
    tokens, sequences, heads, key, value = (int(shape[c]) for c in names)
    if shape["stage"] == "decode":
        sets = input_sets(device, 4.0 * sequences * heads * key * value)
        return Work([_decode(device, sequences * heads, key, value) for _ in sets], "torch baddbmm over fp32 states")
    each = max(tokens // sequences, 1)
    input_sets(device, 16.0 * tokens * heads * (key + value))
    return Work([_prefill(device, sequences * heads, each, key, value)], f"torch, chunks of {CHUNK}")


def _decode(device: ProfiledDevice, streams: int, key: int, value: int) -> Callable[[], object]:
    torch = device.torch
    state = writable_random(device, (streams, key, value), torch.float32)
    q, k = (random(device, (streams, key, 1), torch.float32) for _ in "qk")
    v = random(device, (streams, 1, value), torch.float32)

    def run() -> object:
        state.baddbmm_(k, v, beta=0.99, alpha=0.01)
        return torch.bmm(q.transpose(1, 2), state)

    return run


def _prefill(device: ProfiledDevice, streams: int, tokens: int, key: int, value: int) -> Callable[[], object]:
    torch = device.torch
    n = -(-tokens // CHUNK)
    size = min(CHUNK, tokens)
    dtype = device.sixteen_bit(device.activation)
    q, k = (random(device, (streams * n, size, key), dtype) for _ in "qk")
    v = random(device, (streams * n, size, value), dtype)

    def run() -> object:
        inside = torch.bmm(torch.bmm(q, k.transpose(1, 2)).tril_(), v)
        states = torch.bmm(k.transpose(1, 2), v).view(streams, n, key, value)
        before = torch.cumsum(states, dim=1).sub_(states).view(streams * n, key, value)
        return inside.baddbmm_(q, before.to(dtype))

    return run
