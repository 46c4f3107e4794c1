"""Joules by a counter of the hardware: NVML's total energy on a GPU, RAPL on a CPU; absent where unreadable."""

from __future__ import annotations

import importlib
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from calibration.profile.device import Device
from calibration.profile.timing import Timing

RAPL: Final = Path("/sys/class/powercap")
WINDOW_S: Final = 0.25  # the counters move every 20 to 100 ms: shorter windows measure the counter


@dataclass(frozen=True, slots=True)
class Meter:
    """joules() counts up; sample() is what the device says now: clocks, temperature, use. Either may be missing."""

    joules: Callable[[], float] | None
    sample: Callable[[], dict[str, float]]
    why_not: str = ""

    def watts(self, timing: Timing, limit_s: float) -> float | None:
        """Mean power while the work is repeated for a window; None without a counter or where it takes too long."""
        if self.joules is None or timing.replay is None or timing.replay_s > limit_s:
            return None
        before, start = self.joules(), time.perf_counter()
        for _ in range(math.ceil(WINDOW_S / max(timing.replay_s, 1e-6))):
            timing.replay()
        spent = self.joules() - before  # on a GPU this waits until all is done
        return spent / (time.perf_counter() - start) if spent > 0 else None


def open_meter(device: Device) -> Meter:
    """The meter of a device."""
    return _nvml(device) if device.is_cuda else _rapl()


def _rapl(root: Path = RAPL) -> Meter:
    counters = []
    for folder in sorted(root.glob("intel-rapl:[0-9]")) if root.is_dir() else []:
        try:
            int((folder / "energy_uj").read_text())
            counters.append(folder / "energy_uj")
        except (OSError, ValueError):
            continue
    if not counters:
        return Meter(None, _cpu_sample, "no power: this CPU's energy counter (RAPL) is not readable")
    return Meter(lambda: sum(int(c.read_text()) for c in counters) * 1e-6, _cpu_sample)


def _cpu_sample() -> dict[str, float]:
    found: dict[str, float] = {}
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace")
        mhz = [float(line.partition(":")[2]) for line in text.splitlines() if line.startswith("cpu MHz")]
        if mhz:
            found["clock_mhz"] = round(sum(mhz) / len(mhz), 1)
        hot = [int((z / "temp").read_text()) / 1e3 for z in Path("/sys/class/thermal").glob("thermal_zone*")]
        if hot:
            found["temperature_c"] = max(hot)
    except (OSError, ValueError):
        pass
    return found


def _nvml(device: Device) -> Meter:
    try:
        nvml: Any = importlib.import_module("pynvml")
        nvml.nvmlInit()
        handle = nvml.nvmlDeviceGetHandleByIndex(device.torch.cuda.current_device())
    except Exception as error:
        return Meter(None, dict, f"no power: NVML is not available ({error})")

    def sample() -> dict[str, float]:
        try:
            return {
                "clock_mhz": float(nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)),
                "memory_clock_mhz": float(nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM)),
                "temperature_c": float(nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)),
                "device_use": float(nvml.nvmlDeviceGetUtilizationRates(handle).gpu) / 100.0,
                "device_memory_bytes": float(nvml.nvmlDeviceGetMemoryInfo(handle).used),
            }
        except nvml.NVMLError:
            return {}

    def joules() -> float:
        device.torch.cuda.synchronize()
        return float(nvml.nvmlDeviceGetTotalEnergyConsumption(handle)) * 1e-3

    try:
        joules()
    except nvml.NVMLError as error:
        return Meter(None, sample, f"no power: the GPU has no energy counter ({error})")
    return Meter(joules, sample)
