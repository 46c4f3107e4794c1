"""Random inputs, rotated over enough sets that no cache holds them all."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

from calibration.profile.machine.device import ProfiledDevice

CACHE_MULTIPLE: Final = 2.0  # size of all input sets together, in multiples of the last-level cache

MOST_COPIES: Final = 512

BLOCK: Final = 1 << 22  # random values that are drawn; the pool repeats them

#: Size of the pool in multiples of an input, so that the keys and values of one call are distinct memory.
POOL_MULTIPLE: Final = 2

ALIGNED: Final = 64  # values between possible starts of inputs, so that inputs start at a cache line

FREE_SHARE: Final = 0.5  # share of the free memory that one shape may take


class DoesNotFit(Exception):
    """The error that a shape needs more memory than is free; its row has status "oom" and the profile continues."""


class Unavailable(Exception):
    """The error that this machine or its torch cannot run a shape; its row has status "skipped" and the reason."""


def input_sets(device: ProfiledDevice, set_bytes: float) -> range:
    """Return one index per input set of `set_bytes` bytes to rotate.

    Raises:
        DoesNotFit: If not even one set fits in the memory that a shape may take.
    """
    usable = FREE_SHARE * device.free_bytes()
    if set_bytes > usable:
        raise DoesNotFit(f"the shape needs {set_bytes / 1e9:.2g} GB, but only {usable / 1e9:.2g} GB may be used")
    wanted = int(CACHE_MULTIPLE * device.cache_bytes / max(set_bytes, 1.0)) + 1
    return range(max(1, min(wanted, MOST_COPIES, int(usable / max(set_bytes, 1.0)))))


def random(device: ProfiledDevice, shape: tuple[int, ...], dtype: Any = None) -> Any:
    """Return a read-only tensor of random values: the next part of the device's pool.

    The values are normally distributed and never zero, because zeros draw less power and kernels may skip them.
    """
    dtype = dtype or device.torch.bfloat16
    n = math.prod(shape)
    pool = device.pool.get(dtype)
    if pool is None or len(pool.values) < POOL_MULTIPLE * n:
        device.pool.pop(dtype, None)  # this frees the memory of the old pool first
        # At least the values that fill the rotated input sets of any shape smaller than the cache.
        least = int((CACHE_MULTIPLE + 1) * device.cache_bytes / dtype.itemsize) + BLOCK
        pool = device.pool[dtype] = InputPool(_drawn(device, max(POOL_MULTIPLE * n, least), dtype))
    return pool.take(n).view(shape)


def writable_random(device: ProfiledDevice, shape: tuple[int, ...], dtype: Any = None) -> Any:
    """Return a tensor of random values that may be written to."""
    return random(device, shape, dtype).clone()


@dataclass(slots=True)
class InputPool:
    """Random values that all shapes share, because drawing them for every shape would take longer than measuring."""

    values: Any
    cursor: int = 0

    def take(self, n: int) -> Any:
        """Return the next `n` values, starting again from the beginning where too few are left."""
        first = self.cursor if self.cursor + n <= len(self.values) else 0
        self.cursor = first + -(-n // ALIGNED) * ALIGNED
        return self.values[first : first + n]


def _drawn(device: ProfiledDevice, n: int, dtype: Any) -> Any:
    torch = device.torch
    block = torch.randn(BLOCK, device=device.kind).mul_(0.1).to(dtype)
    out = torch.empty(-(-n // BLOCK) * BLOCK, dtype=dtype, device=device.kind)
    out.view(-1, BLOCK).copy_(block)
    return out
