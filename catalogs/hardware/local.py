"""The hardware `local`: this machine as its GPU driver or /proc describes it.

Its speeds are those that `calibrate` measured on this machine (a small file of the user), else estimates.
"""

from __future__ import annotations

import importlib
import os
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import PositiveFloat

from catalogs.errors import InputError
from catalogs.hardware import files
from catalogs.hardware.host_copies import with_host_copies
from catalogs.hardware.measured import MeasuredFacts
from catalogs.hardware.specs import Accelerator, Hardware, Node
from catalogs.units import GIGA, KIB, MEGA, MIB, TERA

#: Dense tensor flops per cycle and multiprocessor by compute capability, fp16/bf16 with fp32 accumulation
#: (NVIDIA architecture whitepapers); GeForce halves 8.9 and 12.0. fp32: 128 (64 before 8.6, but 128 from 9.0).
_TENSOR_FLOPS_PER_CYCLE = {(7, 0): 1024, (7, 5): 1024, (8, 0): 2048, (8, 6): 1024, (8, 9): 1024, (9, 0): 4096}

#: The same of devices with a newer major version of the compute capability (10: B200, 12: GeForce RTX 50).
_BLACKWELL_FLOPS_PER_CYCLE = {10: 8192, 12: 1024}

#: fp32 flops per cycle and core by the widest vector unit: lanes x 2 (fused multiply-add) x 1 unit, a floor.
_VECTOR_FLOPS_PER_CYCLE = {"avx512f": 32, "avx2": 16, "avx": 8, "sve": 16, "asimd": 8, "sse2": 8}

#: Frequency of a CPU of which /proc/cpuinfo states none, Hz. A judgement: low for a server, so that the
#: roofline stays on the safe side.
_ASSUMED_HZ = 2.0 * GIGA

_BANDWIDTH_PER_CORE = 5 * GIGA  # bytes/s; low for server memory, so that the roofline stays on the safe side

#: Most memory bandwidth that is assumed of a CPU, bytes/s. A judgement, low for server memory, as for
#: `_BANDWIDTH_PER_CORE`.
_BANDWIDTH_MOST = 200 * GIGA


@dataclass(frozen=True, slots=True)
class Cpu:
    """The processors of this machine as /proc describes them, for the conservative roofline."""

    model: str
    cores: int
    hertz: float
    flags: frozenset[str]
    memory_bytes: float


def local_hardware() -> Hardware:
    """Return this machine: its GPUs where a driver answers, else its CPU cores and memory.

    The notices state where its peaks come from.
    """
    return with_host_copies(with_measured_peaks(_gpus() or cpu_hardware(read_cpu())))


def with_measured_peaks(hardware: Hardware) -> Hardware:
    """Return `hardware` with the peaks that `calibrate` measured on this machine in place of estimates."""
    unit = hardware.accelerator
    measured = MeasuredPeaks.find(unit.full_name) if unit.name == "local" else None
    if measured is None:
        return hardware
    note = f"local is {unit.full_name}: peaks measured {measured.as_of} by calibrate"
    return replace(hardware, node=replace(hardware.node, accelerator=measured.applied(unit)), notices=(note,))


def read_cpu(proc: Path = Path("/proc")) -> Cpu:
    """Return the cores this process may use, their clock and vector flags, and the memory.

    Raises:
        InputError: `proc` cannot be read.
    """
    try:
        info, memory = (proc / "cpuinfo").read_text(), (proc / "meminfo").read_text()
    except OSError as e:
        rule = f"the CPU and memory of this machine cannot be read ({e.strerror})"
        raise InputError(rule, "local", hint="name the hardware") from None
    model = re.search(r"^(?:model name|Processor)\s*:\s*(.+)$", info, re.M)
    clocks = [float(m) for m in re.findall(r"^cpu MHz\s*:\s*([\d.]+)", info, re.M)]
    flags = re.search(r"^(?:flags|Features)\s*:\s*(.+)$", info, re.M)
    total = re.search(r"^MemTotal:\s*(\d+) kB", memory, re.M)
    if total is None:
        raise InputError("the memory of this machine cannot be read", "local", hint="name the hardware")
    return Cpu(
        model=model[1].strip() if model else "unknown CPU",
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1),
        hertz=min(clocks) * MEGA if clocks else _ASSUMED_HZ,
        flags=frozenset(flags[1].split()) if flags else frozenset(),
        memory_bytes=float(total[1]) * KIB,
    )


def cpu_hardware(cpu: Cpu) -> Hardware:
    """Return a conservative roofline of a CPU.

    The peak is cores x clock x one vector unit, the memory bandwidth 5 GB/s per core and at most 200 GB/s.
    """
    width = next((v for flag, v in _VECTOR_FLOPS_PER_CYCLE.items() if flag in cpu.flags), 4)
    fp32 = cpu.cores * cpu.hertz * width
    bandwidth = min(cpu.cores * _BANDWIDTH_PER_CORE, _BANDWIDTH_MOST)
    peak = {"fp32": fp32, "bf16": fp32 * (2 if {"avx512_bf16", "bf16"} & cpu.flags else 1)}
    if "amx_bf16" in cpu.flags:
        peak["bf16"] = fp32 * 16
    flops = f"{cpu.cores} cores x {cpu.hertz / GIGA:.2f} GHz x {width} fp32 flops per cycle"
    source = f"{flops}, {bandwidth / GIGA:.0f} GB/s"
    unit = Accelerator(
        name="local",
        full_name=cpu.model,
        memory_bytes=cpu.memory_bytes,
        memory_bandwidth_bytes_per_s=bandwidth,
        peak_flops=peak,
        tdp_w=4.0 * cpu.cores,  # about 350 W for a 96-core socket
        idle_w=1.0 * cpu.cores,
        kind="cpu",
        architecture="cpu",
        source=f"conservative estimate: {source}",
    )
    node = Node(unit, 1, "none", bandwidth, 1.25 * GIGA, host_idle_w=30.0, host_w_per_accelerator=10.0)
    note = f"local hardware is uncalibrated: {source}; run `calibrate` to measure it"
    return Hardware("local", node, 1, 1, (note,))


def _gpus() -> Hardware | None:
    """Return the first kind of GPU that the NVIDIA driver lists, or None without a driver, library or GPU."""
    try:
        pynvml: Any = importlib.import_module("pynvml")  # optional: comes with the calibration extra
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    try:
        count = pynvml.nvmlDeviceGetCount()
        return gpu_hardware(pynvml, count) if count else None
    except pynvml.NVMLError:
        return None
    finally:
        pynvml.nvmlShutdown()


def gpu_hardware(nvml: Any, count: int) -> Hardware:
    """Return the GPUs, or the MIG instance, that a driver with `count` GPUs shows; `nvml` is the module pynvml."""
    handles = [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(count)]
    raw_names = [nvml.nvmlDeviceGetName(handle) for handle in handles]  # bytes in old versions of pynvml
    driver_names = [name.decode() if isinstance(name, bytes) else name for name in raw_names]
    alike = sum(n == driver_names[0] for n in driver_names)
    file = next(
        (f for n in files.hardware_file_names() if driver_names[0] in (f := files.read_hardware_file(n)).driver_names),
        None,
    )
    if file is None:
        unit = _unlisted_gpu(nvml, handles[0], driver_names[0])
        node = Node(unit, alike, "pcie4", 32 * GIGA, 12.5 * GIGA, host_idle_w=400.0, host_w_per_accelerator=60.0)
        origin = "peaks estimated from its clocks; run `calibrate` to measure it"
        return Hardware("local", node, alike, 1, (f"{driver_names[0]} is not in the catalog: {origin}",))
    profile = _mig_profile(nvml, handles[0])
    if profile in file.mig:  # a program sees one instance, whatever number there is
        note = f"local is a MIG instance {profile} of {file.name}: calibrate run measures its utilisation"
        return Hardware("local", files.build_mig_node(file, profile), 1, 1, (note,))
    alike = min(alike, file.node.max_accelerators)
    note = f"local is {alike} x {file.name} ({driver_names[0]})"
    return Hardware("local", files.build_node(file, alike), alike, 1, (note,))


def _mig_profile(nvml: Any, handle: Any) -> str:
    """Return the profile of the first MIG instance of a GPU, such as "1g.10gb"; "" where it is not cut into any."""
    try:
        if nvml.nvmlDeviceGetMigMode(handle)[0] != nvml.NVML_DEVICE_MIG_ENABLE:
            return ""
        name = nvml.nvmlDeviceGetName(nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, 0))
    except nvml.NVMLError:  # most GPUs have no MIG
        return ""
    found = re.search(r"MIG (\d+g\.\d+gb)", name.decode() if isinstance(name, bytes) else name)
    return found[1] if found else ""


def _unlisted_gpu(nvml: Any, handle: Any, name: str) -> Accelerator:
    """Return a GPU that the catalog does not list, with the physical peaks of its board.

    Peak flops are cores x clock, and the bandwidth is memory clock x bus width.
    """
    capability: tuple[int, int] = tuple(nvml.nvmlDeviceGetCudaComputeCapability(handle))
    clock_hz = nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_SM) * MEGA
    memory_hz = nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_MEM) * MEGA
    cores = nvml.nvmlDeviceGetNumGpuCores(handle)
    per_sm = 64 if capability in ((7, 0), (7, 5), (8, 0)) else 128
    tensor = _TENSOR_FLOPS_PER_CYCLE.get(capability) or _BLACKWELL_FLOPS_PER_CYCLE.get(capability[0], 1024)
    half = 0.5 if "GeForce" in name and capability >= (8, 6) else 1.0
    bf16 = cores / per_sm * clock_hz * tensor * half
    peak = {"fp32": cores * 2 * clock_hz, "fp16": bf16} | ({"bf16": bf16} if capability >= (8, 0) else {})
    limit_w = nvml.nvmlDeviceGetPowerManagementLimit(handle) / 1e3
    return Accelerator(
        name="local",
        full_name=name,
        memory_bytes=float(nvml.nvmlDeviceGetMemoryInfo(handle).total),
        memory_bandwidth_bytes_per_s=memory_hz * 2 * nvml.nvmlDeviceGetMemoryBusWidth(handle) / 8,
        peak_flops=peak | ({"fp8": 2 * bf16} if capability >= (8, 9) else {}),
        tdp_w=limit_w,
        idle_w=0.12 * limit_w,
        architecture=f"sm{capability[0]}{capability[1]}",
        source="GPU driver: clocks, cores, bus width",
    )


class MeasuredPeaks(MeasuredFacts):
    """Measured peaks in the units of the hardware files."""

    FILE = "local.yaml"
    WHAT = "peaks"

    memory_bandwidth_gb_per_s: PositiveFloat
    last_level_cache_mib: float = 0.0
    peak_tflops: dict[str, PositiveFloat]

    @classmethod
    def of(cls, unit: Accelerator, as_of: str, source: str) -> MeasuredPeaks:
        """Return the measured peaks of an accelerator."""
        return cls(
            machine=unit.full_name,
            as_of=as_of,
            source=source,
            memory_bandwidth_gb_per_s=unit.memory_bandwidth_bytes_per_s / GIGA,
            last_level_cache_mib=unit.cache_bytes / MIB,
            peak_tflops={d: f / TERA for d, f in unit.peak_flops.items()},
        )

    def applied(self, unit: Accelerator) -> Accelerator:
        """Return `unit` with the measured peaks in place of its estimates."""
        return replace(
            unit,
            memory_bandwidth_bytes_per_s=self.memory_bandwidth_gb_per_s * GIGA,
            peak_flops={d: f * TERA for d, f in self.peak_tflops.items()},
            cache_bytes=self.last_level_cache_mib * MIB,
            source=f"measured {self.as_of}: {self.source}",
        )
