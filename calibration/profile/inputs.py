"""Random inputs, in enough copies that no cache holds them all."""

from __future__ import annotations

from typing import Any, Final

from calibration.profile.device import Device

CACHE_MULTIPLE: Final = 2.0  # all copies together are this many times the last-level cache
MOST_COPIES: Final = 64
BLOCK: Final = 1 << 22  # values drawn; larger tensors repeat them, drawing costs more than multiplying
FREE_SHARE: Final = 0.5  # of the free memory that one shape may take


class DoesNotFit(Exception):
    """A shape needs more memory than there is: recorded, smaller ones go on."""


def copies(set_bytes: float, device: Device) -> int:
    """How many input sets of `set_bytes` to rotate. Raises DoesNotFit where not even one fits."""
    room = FREE_SHARE * device.free_bytes()
    if set_bytes > room:
        raise DoesNotFit(f"needs {set_bytes / 1e9:.2g} GB, {room / 1e9:.2g} GB may be used")
    wanted = int(CACHE_MULTIPLE * device.cache_bytes / max(set_bytes, 1.0)) + 1
    return max(1, min(wanted, MOST_COPIES, int(room / max(set_bytes, 1.0))))


def random(device: Device, shape: tuple[int, ...], dtype: Any = None) -> Any:
    """Normally distributed values, never zero everywhere: zeros draw less power and may be skipped."""
    torch = device.torch
    dtype = dtype or torch.bfloat16
    n = 1
    for size in shape:
        n *= size
    block = torch.randn(min(n, BLOCK), device=device.kind).mul_(0.1)
    block = block.to(dtype)
    if n <= BLOCK:
        return block.view(shape)
    out = torch.empty(n, dtype=dtype, device=device.kind)
    whole = n // BLOCK * BLOCK
    out[:whole].view(-1, BLOCK).copy_(block)
    out[whole:].copy_(block[: n - whole])
    return out.view(shape)


def cycle(device: Device, set_bytes: float) -> range:
    """One index per input set."""
    return range(copies(set_bytes, device))
