"""How the C library's malloc treats freed memory on a CPU, which decides what a large buffer costs (mallopt(3)).

By default, glibc returns a large free block at the end of its heap to the kernel, and so takes the next buffer as fresh
pages, each of which faults and is zeroed: 1.8 us for 4 KiB on a virtual Zen 4 core, ten times as long as writing it.
Whether that happens depends on which small blocks lie behind the large ones, so equal passes of a network may fault
80,000 times or never. A server that keeps its memory has no such faults: jemalloc or tcmalloc, which PyTorch's
performance tuning guide and vLLM recommend on CPUs, or glibc with MALLOC_TRIM_THRESHOLD_=-1 MALLOC_MMAP_MAX_=0.
"""

from __future__ import annotations

import ctypes
from typing import Final

from catalogs.units import KIB, MIB

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_MMAP_MAX = -1, -3, -4  # malloc.h

USUAL_MAPPINGS: Final = 65536  # of which each holds one large block

NEVER: Final = -1  # as a threshold: the largest size

#: (Size of blocks with a separate mapping, size of the heap's top that is kept.)
TIGHT: Final = (64 * KIB, 128 * KIB)

#: The thresholds that malloc reaches by itself after large blocks were freed.
USUAL: Final = (32 * MIB, 64 * MIB)


def keep_freed_memory() -> bool:
    """Have malloc keep all memory that is freed, for the next buffer; `return_free_memory` returns it.

    Returns:
        Whether the C library supports it.
    """
    return _set({M_TRIM_THRESHOLD: NEVER, M_MMAP_MAX: 0})


def set_thresholds(mapping_bytes: int, trim_bytes: int) -> bool:
    """Set both thresholds of malloc and return free memory to the kernel.

    Returns:
        Whether the C library supports it.
    """
    done = _set({M_MMAP_MAX: USUAL_MAPPINGS, M_MMAP_THRESHOLD: mapping_bytes, M_TRIM_THRESHOLD: trim_bytes})
    return return_free_memory() and done


def return_free_memory() -> bool:
    """Return free memory to the kernel, whatever the thresholds.

    Returns:
        Whether the C library supports it.
    """
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (OSError, AttributeError):
        return False
    return True


def _set(values: dict[int, int]) -> bool:
    try:
        libc = ctypes.CDLL(None)
        done = [libc.mallopt(name, value) for name, value in values.items()]
    except (OSError, AttributeError):
        return False
    return all(done)
