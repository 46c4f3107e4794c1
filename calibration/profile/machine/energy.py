"""Energy from hardware counters: NVML's total energy on a GPU, RAPL on a CPU.

Where a counter cannot be read, no energy is reported.
"""

from __future__ import annotations

import importlib
import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from calibration.profile.machine.device import ProfiledDevice
from calibration.profile.machine.timing import Timing

RAPL: Final = Path("/sys/class/powercap")

#: Time between two readings of a sensor, seconds: the sensors advance every 20 to 100 ms.
POLL_S: Final = 0.05

WINDOW_S: Final = 0.25  # the counters advance every 20 to 100 ms, so shorter windows would measure the counter


DEVICE_MEMORY: Final = "device_memory_bytes"  # the sample of a GPU's memory in use, by all processes


@dataclass(frozen=True, slots=True)
class Meter:
    """The energy counter and the sensors of a device.

    `joules()` returns the energy used so far; None means that there is no counter. `sample()` returns the present
    clocks, temperature and utilisation by name; what cannot be read is left out.
    """

    joules: Callable[[], float] | None
    sample: Callable[[], dict[str, float]]
    unavailable_reason: str = ""
    polls: bool = False  # whether sampling does not disturb the measured work; true of a GPU's driver, not of a CPU

    @contextmanager
    def sampling(self) -> Iterator[MeterSamples]:
        """Sample the sensors every POLL_S in a `with` block, or once at its end where polling disturbs the work."""
        found, is_over = MeterSamples(), threading.Event()

        def poll() -> None:
            while not is_over.wait(POLL_S):
                found.samples.append(self.sample())

        thread = threading.Thread(target=poll, daemon=True)
        if self.polls:
            thread.start()
        try:
            yield found
        finally:
            is_over.set()
            if self.polls:
                thread.join()
            found.samples.append(self.sample())

    def watts(self, timing: Timing, limit_s: float) -> float | None:
        """Return the mean power in watts while the work is repeated for a window.

        The result is None without a counter, or where one execution takes longer than `limit_s`.
        """
        if self.joules is None or timing.replay is None or timing.replay_s > limit_s:
            return None
        before, start = self.joules(), time.perf_counter()
        for _ in range(math.ceil(WINDOW_S / max(timing.replay_s, 1e-6))):
            timing.replay()
        spent = self.joules() - before  # on a GPU this waits until the work is done
        return spent / (time.perf_counter() - start) if spent > 0 else None


@dataclass(slots=True)
class MeterSamples:
    """Samples of a meter; the last one was taken after the measured work had ended."""

    samples: list[dict[str, float]] = field(default_factory=list)

    @property
    def mean(self) -> dict[str, float]:
        """Return the mean of every quantity by name, over the samples taken during the work where there are any."""
        during = self.samples[:-1] or self.samples
        values = {n: [s[n] for s in during if n in s] for n in sorted({n for s in during for n in s})}
        return {n: round(sum(v) / len(v), 4) for n, v in values.items()}


def open_meter(device: ProfiledDevice) -> Meter:
    """Return the meter of a device."""
    return _nvml(device) if device.is_cuda else _rapl()


def _rapl(root: Path = RAPL) -> Meter:
    counters = []
    for file in sorted(root.glob("intel-rapl:[0-9]/energy_uj")):
        with suppress(OSError, ValueError):
            int(file.read_text())
            counters.append(file)
    if not counters:
        return Meter(None, _cpu_sample, "no power: this CPU's energy counter (RAPL) is not readable")
    return Meter(lambda: sum(int(c.read_text()) for c in counters) * 1e-6, _cpu_sample)


def _cpu_sample() -> dict[str, float]:
    found: dict[str, float] = {}
    with suppress(OSError, ValueError):
        text = Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace")
        if mhz := [float(line.partition(":")[2]) for line in text.splitlines() if line.startswith("cpu MHz")]:
            found["clock_mhz"] = round(sum(mhz) / len(mhz), 1)
        zones = Path("/sys/class/thermal").glob("thermal_zone*/temp")
        if celsius := [int(zone.read_text()) / 1e3 for zone in zones]:
            found["temperature_c"] = max(celsius)
    return found


def _handle(nvml: Any, torch: Any) -> Any:
    """Return NVML's handle of torch's GPU, found by UUID because CUDA_VISIBLE_DEVICES renumbers GPUs for torch only."""
    index = torch.cuda.current_device()
    with suppress(nvml.NVMLError, TypeError, AttributeError):  # an old torch reports none; that of a MIG slice differs
        return nvml.nvmlDeviceGetHandleByUUID(f"GPU-{torch.cuda.get_device_properties(index).uuid}".encode())
    return nvml.nvmlDeviceGetHandleByIndex(index)


def _nvml(device: ProfiledDevice) -> Meter:
    try:
        nvml: Any = importlib.import_module("pynvml")
        nvml.nvmlInit()
        handle = _handle(nvml, device.torch)
    except Exception as error:
        return Meter(None, dict, f"no power: NVML is not available ({error})")

    def sample() -> dict[str, float]:
        with suppress(nvml.NVMLError):
            use = nvml.nvmlDeviceGetUtilizationRates(handle)
            return {
                "clock_mhz": float(nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)),
                "memory_clock_mhz": float(nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM)),
                "temperature_c": float(nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)),
                "device_use": float(use.gpu) / 100.0,
                "device_power_w": float(nvml.nvmlDeviceGetPowerUsage(handle)) / 1e3,
                "memory_use": float(use.memory) / 100.0,
                DEVICE_MEMORY: float(nvml.nvmlDeviceGetMemoryInfo(handle).used),
            }
        return {}

    def joules() -> float:
        device.torch.cuda.synchronize()
        return float(nvml.nvmlDeviceGetTotalEnergyConsumption(handle)) * 1e-3

    try:
        joules()
    except nvml.NVMLError as error:
        return Meter(None, sample, f"no power: the GPU has no energy counter ({error})", polls=True)
    return Meter(joules, sample, polls=True)
