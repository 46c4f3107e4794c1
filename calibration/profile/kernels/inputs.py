"""Random inputs, in enough copies that no cache holds them all."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

from calibration.profile.machine.device import ProfiledDevice

CACHE_MULTIPLE: Final = 2.0  # all copies together are this many times the last-level cache

MOST_COPIES: Final = 512

BLOCK: Final = 1 << 22  # values drawn; the pool repeats them

APART: Final = 2  # times an input the pool holds: keys and values of one call must not be the same memory

ALIGNED: Final = 64  # values: inputs start at a cache line

FREE_SHARE: Final = 0.5  # of the free memory that one shape may take


class DoesNotFit(Exception):
    """A shape needs more memory than there is: recorded, smaller ones go on."""


class Unavailable(Exception):
    """What this machine or this torch cannot do, in one line: recorded as skipped."""


def copies(set_bytes: float, device: ProfiledDevice) -> int:
    """How many input sets of `set_bytes` to rotate. Raises DoesNotFit where not even one fits."""
    room = FREE_SHARE * device.free_bytes()
    if set_bytes > room:
        raise DoesNotFit(f"needs {set_bytes / 1e9:.2g} GB, {room / 1e9:.2g} GB may be used")
    wanted = int(CACHE_MULTIPLE * device.cache_bytes / max(set_bytes, 1.0)) + 1
    return max(1, min(wanted, MOST_COPIES, int(room / max(set_bytes, 1.0))))


def random(device: ProfiledDevice, shape: tuple[int, ...], dtype: Any = None) -> Any:
    """Normally distributed values, never zero: zeros draw less power and may be skipped. Read only: a view of the
    device's pool, the next part of it at every call."""
    torch = device.torch
    dtype = dtype or torch.bfloat16
    n = math.prod(shape)
    pool = device.pool.get(dtype)
    if pool is None or len(pool.values) < APART * n:
        device.pool.pop(dtype, None)  # its memory goes back first
        pool = device.pool[dtype] = InputPool(_drawn(device, max(APART * n, _least(device, dtype)), dtype))
    return pool.take(n).view(shape)


def own(device: ProfiledDevice, shape: tuple[int, ...], dtype: Any = None) -> Any:
    """Random values that may be written to."""
    return random(device, shape, dtype).clone()


@dataclass(slots=True)
class InputPool:
    """Random values that all shapes read: drawing them anew for every shape costs more than measuring it."""

    values: Any
    cursor: int = 0

    def take(self, n: int) -> Any:
        """The next n values, from the start again where too few are left."""
        first = self.cursor if self.cursor + n <= len(self.values) else 0
        self.cursor = first + -(-n // ALIGNED) * ALIGNED
        return self.values[first : first + n]


def _least(device: ProfiledDevice, dtype: Any) -> int:
    """Values that fill the rotated copies of any shape smaller than the cache."""
    return int((CACHE_MULTIPLE + 1) * device.cache_bytes / dtype.itemsize) + BLOCK


def _drawn(device: ProfiledDevice, n: int, dtype: Any) -> Any:
    torch = device.torch
    block = torch.randn(BLOCK, device=device.kind).mul_(0.1).to(dtype)
    n = -(-n // BLOCK) * BLOCK
    out = torch.empty(n, dtype=dtype, device=device.kind)
    out.view(-1, BLOCK).copy_(block)
    return out


def cycle(device: ProfiledDevice, set_bytes: float) -> range:
    """One index per input set."""
    return range(copies(set_bytes, device))
