"""Peak memory of one run: what the process held at most beyond what it held before, plus the weights.

On CUDA torch's allocator counts. On a CPU the kernel counts: the high-water mark of resident memory (VmHWM), set back
to the present by writing 5 to /proc/self/clear_refs (proc(5)). Two things would make that a lie, and are kept out:

- Freed memory that malloc keeps resident hides what the next run needs. Each point runs in a process of its own, forked
  from one that holds the weights; before the run malloc gives back what it can, and during it every block of 64 KiB or
  more is its own mapping, returned to the kernel when freed (mallopt(3)). Page faults make such a run slower: it is
  never the one that is timed.
- Libraries grow while they are first used. A small run goes before, outside the count.

The weights are counted as the bytes of the model's distinct parameters and buffers: they are resident, shared with the
parent process, before the count begins.
"""

from __future__ import annotations

import ctypes
import gc
import resource
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from catalogs.units import KIB, MIB

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # malloc.h

TIGHT: Final = (64 * KIB, 128 * KIB)  # (own mapping from, top of the heap kept)

USUAL: Final = (32 * MIB, 64 * MIB)  # where malloc's own rule ends after large blocks were freed once

STATUS: Final = Path("/proc/self/status")

CLEAR_REFS: Final = Path("/proc/self/clear_refs")


@dataclass(frozen=True, slots=True)
class Peak:
    """growth_bytes: beyond what was held before the run; None, with why_not, where nothing counts it."""

    growth_bytes: float | None
    method: str
    why_not: str = ""


def model_bytes(model: Any) -> float:
    """Bytes of the distinct parameters and buffers; tied weights count once."""
    found = {}
    for tensor in (*model.parameters(), *model.buffers()):
        store = tensor.untyped_storage()
        found[store.data_ptr()] = store.nbytes()
    return float(sum(found.values()))


def peak_on_cuda(run: Callable[[], object], torch: Any) -> Peak:
    """By torch.cuda.max_memory_allocated: live tensors, not what the allocator holds in reserve."""
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    run()
    torch.cuda.synchronize()
    return Peak(float(torch.cuda.max_memory_allocated() - before), "torch.cuda.max_memory_allocated")


def peak_on_cpu(run: Callable[[], object]) -> Peak:
    """By VmHWM. Leaves malloc with USUAL thresholds, as it is after some use."""
    gc.collect()
    tight = set_malloc(*TIGHT)
    try:
        CLEAR_REFS.write_text("5")
        before = status_bytes("VmRSS")
        run()
        peak = status_bytes("VmHWM")
    except (OSError, KeyError) as error:
        run()
        return Peak(None, "", f"no peak memory: the kernel's high-water mark is not readable ({error})")
    finally:
        set_malloc(*USUAL)
    return Peak(peak - before, "VmHWM, own mappings" if tight else "VmHWM")


def set_malloc(mapping_bytes: int, trim_bytes: int) -> bool:
    """Set both thresholds and give back free memory; False where the C library has no such call."""
    try:
        libc = ctypes.CDLL(None)
        done = libc.mallopt(M_MMAP_THRESHOLD, mapping_bytes) and libc.mallopt(M_TRIM_THRESHOLD, trim_bytes)
        libc.malloc_trim(0)
    except (OSError, AttributeError):
        return False
    return bool(done)


def status_bytes(name: str, status: Path = STATUS) -> float:
    """A line of /proc/self/status in bytes. OSError where unreadable, KeyError where there is no such line."""
    for line in status.read_text(encoding="ascii", errors="replace").splitlines():
        if line.startswith(f"{name}:"):
            return float(line.split()[1]) * KIB
    raise KeyError(name)


def limit(more_bytes: float) -> None:
    """Let this process allocate so much more and then fail, rather than have the kernel kill somebody (RLIMIT_DATA)."""
    try:
        most = int(status_bytes("VmData") + more_bytes)
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        resource.setrlimit(resource.RLIMIT_DATA, (most if hard < 0 else min(most, hard), hard))
    except (OSError, KeyError, ValueError):
        return
