"""Peak memory of one run: the growth of the process's memory during the run, plus the weights.

On CUDA the growth comes from torch's allocator. On a CPU it comes from the kernel's high-water mark of resident memory
(VmHWM), which writing 5 to /proc/self/clear_refs resets to the present value (proc(5)). Two sources of error are
excluded:

- Freed memory that malloc keeps resident would hide the memory that the next run needs. Each point therefore runs in a
  separate process, forked from one that holds the weights. Before the run malloc returns free memory to the kernel, and
  during the run every block of 64 KiB or more is a separate mapping, which is returned to the kernel when it is freed
  (mallopt(3)). Page faults make such a run slower, so it is never timed.
- Libraries allocate memory when they are first used. A small run precedes the measured one.

The weights are counted as the bytes of the model's distinct parameters and buffers: they are resident, shared with the
parent process, before the count begins.
"""

from __future__ import annotations

import gc
import resource
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from calibration.profile.machine.allocator import TIGHT, USUAL, set_thresholds
from calibration.profile.machine.energy import DEVICE_MEMORY, Meter
from catalogs.units import KIB

STATUS: Final = Path("/proc/self/status")

CLEAR_REFS: Final = Path("/proc/self/clear_refs")


@dataclass(frozen=True, slots=True)
class Peak:
    """Growth of memory during a run.

    `growth_bytes` is the peak beyond the memory held before the run. It is None, with `unavailable_reason` set, where
    it cannot be measured. `nvml_growth_bytes` is the growth of the GPU's memory in use as its driver counts it, which
    includes what torch's allocator reserves and the workspaces of libraries; it is None where NVML is not readable.
    """

    growth_bytes: float | None
    method: str
    unavailable_reason: str = ""
    nvml_growth_bytes: float | None = None


def model_bytes(model: Any) -> float:
    """Return the bytes of a model's distinct parameters and buffers; tied weights count once."""
    found = {}
    for tensor in (*model.parameters(), *model.buffers()):
        store = tensor.untyped_storage()
        found[store.data_ptr()] = store.nbytes()
    return float(sum(found.values()))


def peak_on_cuda(run: Callable[[], object], torch: Any, meter: Meter) -> Peak:
    """Measure a run by torch.cuda.max_memory_allocated, which counts live tensors, and by NVML.

    NVML is sampled while the run lasts and once after it, when torch's allocator still holds everything it reserved.
    """
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    before, used_before = torch.cuda.memory_allocated(), meter.sample().get(DEVICE_MEMORY)
    torch.cuda.reset_peak_memory_stats()
    with meter.sampling() as sensors:
        run()
        torch.cuda.synchronize()
    growth = float(torch.cuda.max_memory_allocated() - before)
    used = [s[DEVICE_MEMORY] for s in sensors.samples if DEVICE_MEMORY in s]
    by_driver = max(used) - used_before if used and used_before is not None else None
    return Peak(growth, "torch.cuda.max_memory_allocated", nvml_growth_bytes=by_driver)


def peak_on_cpu(run: Callable[[], object]) -> Peak:
    """Measure a run by VmHWM; afterwards malloc has the USUAL thresholds, as after some use."""
    gc.collect()
    tight = set_thresholds(*TIGHT)
    try:
        CLEAR_REFS.write_text("5")
        before = status_bytes("VmRSS")
        run()
        peak = status_bytes("VmHWM")
    except (OSError, KeyError) as error:
        run()
        return Peak(None, "", f"no peak memory: the kernel's high-water mark is not readable ({error})")
    finally:
        set_thresholds(*USUAL)
    return Peak(peak - before, "VmHWM, own mappings" if tight else "VmHWM")


def status_bytes(name: str, status: Path = STATUS) -> float:
    """Return a line of /proc/self/status in bytes.

    Raises:
        OSError: If the file cannot be read.
        KeyError: If there is no such line.
    """
    for line in status.read_text(encoding="ascii", errors="replace").splitlines():
        if line.startswith(f"{name}:"):
            return float(line.split()[1]) * KIB
    raise KeyError(name)


def limit(more_bytes: float) -> None:
    """Limit the further memory of this process (RLIMIT_DATA).

    Beyond the limit an allocation fails, so that the kernel does not kill a process to free memory.
    """
    try:
        most = int(status_bytes("VmData") + more_bytes)
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        resource.setrlimit(resource.RLIMIT_DATA, (most if hard < 0 else min(most, hard), hard))
    except (OSError, KeyError, ValueError):
        return
