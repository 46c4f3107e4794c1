"""Random inputs and kept results, rotated over enough sets that no cache holds them all.

Weights come from memory on every device. Activations were just written by the preceding kernel. On a GPU its last-level
cache still holds them. On a CPU, the products of a network stream their weights and packed blocks through the cache of
the core meanwhile: after a product of BERT (128 x 768 x 3072 in fp32 on a Zen 4 core), `relu` over its 1.5 MB takes as
long as from memory, 0.17 ms, four times as long as over what the same kernel has just read.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from calibration.profile.machine.allocator import return_free_memory
from calibration.profile.machine.device import ProfiledDevice
from calibration.profile.machine.timing import Call

#: Size of all input sets together, in multiples of the last-level cache. A judgement: no set is then in the cache when
#: its turn comes.
CACHE_MULTIPLE: Final = 2.0

#: Most input sets of one shape. A judgement: small shapes would otherwise take thousands of tensors to exceed the
#: cache.
MOST_COPIES: Final = 512

BLOCK: Final = 1 << 22  # random values that are drawn; the pool repeats them

#: Size of the pool in multiples of an input, so that the keys and values of one call are distinct memory.
POOL_MULTIPLE: Final = 2

ALIGNED: Final = 64  # values between possible starts of inputs, so that inputs start at a cache line

#: Share of the free memory that one shape may take. A judgement: the workspaces of kernels and other programs need
#: memory too.
FREE_SHARE: Final = 0.5


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
    if set_bytes > usable and not device.is_cuda and return_free_memory():  # what malloc kept of earlier shapes
        usable = FREE_SHARE * device.free_bytes()
    if set_bytes > usable:
        raise DoesNotFit(f"the shape needs {set_bytes / 1e9:.2g} GB, but only {usable / 1e9:.2g} GB may be used")
    wanted = int(CACHE_MULTIPLE * device.cache_bytes / max(set_bytes, 1.0)) + 1
    return range(max(1, min(wanted, MOST_COPIES, int(usable / max(set_bytes, 1.0)))))


@dataclass(frozen=True, slots=True)
class ActivationSets:
    """The inputs that the preceding kernel has written, and the results: rotated on a CPU, the same ones on a GPU."""

    device: ProfiledDevice

    def sets(self, set_bytes: float) -> range:
        """Return one index per set of activations of `set_bytes` bytes.

        Raises:
            DoesNotFit: If not even one set fits in the memory that a shape may take.
        """
        found = input_sets(self.device, set_bytes)
        return found[:1] if self.device.is_cuda else found

    def random(self, shape: tuple[int, ...], dtype: Any) -> Callable[[], Any]:
        """Return what gives the next read-only tensor of random values: on a GPU the same one each time."""
        if not self.device.is_cuda:
            return lambda: random(self.device, shape, dtype)
        one = random(self.device, shape, dtype)
        return lambda: one

    def keeping(self, calls: Sequence[Call], result_bytes: float) -> Sequence[Call]:
        """Return the calls; on a CPU, each result is written to memory that has left the cache."""
        return calls if self.device.is_cuda else into_memory(calls, result_bytes, self.device)


def into_memory(calls: Iterable[Call], result_bytes: float, device: ProfiledDevice) -> list[Call]:
    """Return the calls so that they keep their last results, and each one is written to memory that has left the cache.

    In a network, other kernels have run since that memory was last used.
    """
    kept: deque[object] = deque(maxlen=len(input_sets(device, result_bytes)))

    def keeping(call: Call) -> Call:
        def run() -> object:
            result = call()
            kept.append(result)
            return result

        return run

    return [keeping(call) for call in calls]


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
