"""Readings of the machine and of a group of processes: counters and gauges by name, from /proc, /sys and the driver.

Names have the form GROUP.WHAT or GROUP.DEVICE.WHAT. Counters rise, and their increase over time is shown; everything
else is a gauge. Sources: proc(5), and Documentation/accounting/psi.rst and Documentation/admin-guide/iostats.rst of the
Linux kernel.
"""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from calibration.profile.machine.contention import TICK_S, processor_s, stat_fields
from calibration.profile.machine.counters import SECTOR_BYTES, VIRTUAL_DISKS

PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class Quantity:
    """The unit and the meaning of a named reading.

    Attributes:
        unit: The unit of the shown values: of the increase per second for a counter.
        counter: Whether the value rises, so that its increase is shown.
        words: The meaning.
        scale: Factor from the value that is read to the unit.
    """

    unit: str
    counter: bool
    words: str
    scale: float = 1.0


_VMSTAT: Final = {
    "pgfault": ("faults.all", Quantity("1/s", True, "page faults of the machine")),
    "pgmajfault": ("faults.major", Quantity("1/s", True, "page faults that read a disk")),
    "pswpin": ("swap.in", Quantity("B/s", True, "bytes read back from swap", PAGE_BYTES)),
    "pswpout": ("swap.out", Quantity("B/s", True, "bytes written to swap", PAGE_BYTES)),
    "pgsteal_kswapd": ("reclaim.background", Quantity("B/s", True, "memory reclaimed in the background", PAGE_BYTES)),
    "pgsteal_direct": ("reclaim.direct", Quantity("B/s", True, "memory reclaimed by waiting processes", PAGE_BYTES)),
    "thp_fault_alloc": ("hugepages.allocated", Quantity("1/s", True, "huge pages given at a fault")),
    "thp_fault_fallback": ("hugepages.refused", Quantity("1/s", True, "faults that found no huge page")),
    "numa_hit": ("numa.hits", Quantity("1/s", True, "pages taken from the wanted NUMA node")),
    "numa_miss": ("numa.misses", Quantity("1/s", True, "pages taken from another NUMA node")),
}

_MEMINFO: Final = {
    "MemAvailable": ("memory.available", Quantity("B", False, "memory that can be used without swapping")),
    "AnonHugePages": ("hugepages.transparent", Quantity("B", False, "memory in transparent huge pages")),
    "HugePages_Free": ("hugepages.free", Quantity("pages", False, "reserved huge pages that are free")),
    "Dirty": ("memory.dirty", Quantity("B", False, "memory that waits to be written to a disk")),
}

_CPU: Final = {
    "cpu.busy": Quantity("cores", True, "cores in use, by all processes and the hypervisor"),
    "cpu.iowait": Quantity("cores", True, "cores that are idle while a disk works"),
    "cpu.steal": Quantity("cores", True, "cores that the hypervisor gave to other machines"),
    "cpu.switches": Quantity("1/s", True, "context switches"),
}

_GROUP: Final = {
    "engine.cpu": Quantity("cores", True, "cores that the processes use"),
    "engine.run_queue": Quantity("cores", True, "threads of the processes that are ready and wait for a core"),
    "engine.faults": Quantity("1/s", True, "page faults of the processes"),
    "engine.major_faults": Quantity("1/s", True, "page faults of the processes that read a disk"),
    "engine.switches": Quantity("1/s", True, "context switches that the threads made by waiting"),
    "engine.preemptions": Quantity("1/s", True, "context switches that the kernel forced on the threads"),
    "engine.read": Quantity("B/s", True, "bytes that the processes read from disks"),
    "engine.written": Quantity("B/s", True, "bytes that the processes wrote to disks"),
    "engine.api_busiest": Quantity("cores", True, "cores that the busiest API process uses; it can use one at most"),
    "engine.memory": Quantity("B", False, "resident memory of the processes"),
    "engine.threads": Quantity("threads", False, "threads of the processes"),
    "others.cpu": Quantity("cores", True, "cores that other processes use"),
}

_PATTERNS: Final = {
    r"psi\.(cpu|memory|io)": Quantity("share", True, "share of the time in which a task waits for it", 1e-6),
    r"disk\..*\.read": Quantity("B/s", True, "bytes read from the disk"),
    r"disk\..*\.written": Quantity("B/s", True, "bytes written to the disk"),
    r"disk\..*\.busy": Quantity("share", True, "share of the time in which the disk works", 1e-3),
    r"net\..*\.(received|sent)": Quantity("B/s", True, "bytes over the network interface"),
    r"clock\..*": Quantity("MHz", False, "clock of the cores"),
    r"power\..*": Quantity("W", True, "power", 1e-6),
    r"perf\..*": Quantity("1/s", True, "events of the processor's counters"),
    r"gpu\.\d+\.utilisation": Quantity("%", False, "share of the time in which a kernel runs"),
    r"gpu\.\d+\.memory": Quantity("B", False, "memory in use on the GPU"),
    r"gpu\.\d+\.clock": Quantity("MHz", False, "clock of the multiprocessors"),
    r"gpu\.\d+\.power": Quantity("W", False, "power of the GPU"),
    r"gpu\.\d+\.(received|sent)": Quantity("B/s", False, "bytes over PCIe"),
    # of the traces of profilers
    r"gpu\.\d+\.kernels": Quantity("kernels", True, "kernels at work on the GPU"),
    r"gpu\.\d+\.launches": Quantity("1/s", True, "kernels that started"),
    r"gpu\.\d+\.copied\.(to_device|to_host|on_device)": Quantity("B/s", True, "bytes that copies moved"),
    r"gpu\.\d+\.sampled\..*": Quantity("%", False, "metric that Nsight Systems sampled"),
    r"operators\.running": Quantity("threads", True, "threads inside an operator of torch"),
}

_KNOWN: Final[dict[str, Quantity]] = dict(_VMSTAT.values()) | dict(_MEMINFO.values()) | _CPU | _GROUP


def quantity(name: str) -> Quantity:
    """Return what a name means.

    Raises:
        KeyError: There is no such name.
    """
    if name in _KNOWN:
        return _KNOWN[name]
    for pattern, found in _PATTERNS.items():
        if re.fullmatch(pattern, name):
            return found
    raise KeyError(name)


def value_text(value: float, unit: str) -> str:
    """Return a value with its unit, in thousands, millions or billions where it is large."""
    if unit == "1/s":
        return f"{value:.3g} per s" if abs(value) < 1e3 else f"{value:,.0f} per s"
    for factor, prefix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= factor and unit not in ("share", "cores"):
            return f"{value / factor:.3g} {prefix}{unit}"
    return f"{value:.3g} {unit}"


def moment_text(at_s: float) -> str:
    """Return a time of a trace as minutes and seconds."""
    return f"{int(at_s // 60)}:{at_s % 60:04.1f}"


@dataclass(slots=True)
class MachineReader:
    """Reads the machine; what it cannot read is entered in `not_measured` with the reason, once.

    Attributes:
        proc: The folder of the kernel's process information.
        sys: The folder of the kernel's devices.
        not_measured: Reason by group of names.
    """

    proc: Path = Path("/proc")
    sys: Path = Path("/sys")
    not_measured: dict[str, str] = field(default_factory=dict)
    _nvml: Any = None

    def open(self) -> None:
        """Open the GPU driver, and find out which sources this machine lacks."""
        if not (self.proc / "pressure").is_dir():
            self.not_measured["psi"] = "the kernel has no pressure stall information (CONFIG_PSI)"
        if not list((self.sys / "devices/system/cpu").glob("cpu[0-9]*/cpufreq/scaling_cur_freq")):
            self.not_measured["clock"] = "there is no cpufreq, as on most virtual machines"
        if not list((self.sys / "class/powercap").glob("intel-rapl:[0-9]/energy_uj")):
            self.not_measured["power"] = "there is no RAPL counter, as on most virtual machines"
        elif self._power() == {}:
            self.not_measured["power"] = "RAPL counters can be read by root only"
        if len(list((self.sys / "devices/system/node").glob("node[0-9]*"))) < 2:
            self.not_measured["numa"] = "this machine has one NUMA node or does not show its nodes"
        try:
            self._nvml = importlib.import_module("pynvml")
            self._nvml.nvmlInit()
        except Exception as error:  # NVML has an error class of its own, which is not importable without it
            self._nvml = None
            self.not_measured["gpu"] = f"the driver of NVIDIA GPUs does not answer ({type(error).__name__})"

    def read(self) -> dict[str, float]:
        """Return the present values by name, counters in the units of their source."""
        found: dict[str, float] = {}
        for part in (self._cpu, self._vmstat, self._meminfo, self._pressure, self._disks, self._network):
            with suppress(OSError, ValueError, IndexError):
                found |= part()
        return found | self._clocks() | self._power() | self._gpus()

    def _cpu(self) -> dict[str, float]:
        found: dict[str, float] = {}
        for line in (self.proc / "stat").read_text(encoding="ascii").splitlines():
            name, *values = line.split()
            if name == "cpu":
                user, nice, system, _idle, wait, irq, soft, stolen = (int(x) * TICK_S for x in values[:8])
                busy = user + nice + system + irq + soft + stolen
                found |= {"cpu.busy": busy, "cpu.iowait": wait, "cpu.steal": stolen}
            elif name == "ctxt":
                found["cpu.switches"] = float(values[0])
        return found

    def _vmstat(self) -> dict[str, float]:
        rows = (line.split() for line in (self.proc / "vmstat").read_text(encoding="ascii").splitlines())
        values = {name: float(value) for name, value in rows}
        return {_VMSTAT[name][0]: value for name, value in values.items() if name in _VMSTAT and self._keeps(name)}

    def _keeps(self, name: str) -> bool:
        return not (name.startswith("numa") and "numa" in self.not_measured)

    def _meminfo(self) -> dict[str, float]:
        found = {}
        for line in (self.proc / "meminfo").read_text(encoding="ascii").splitlines():
            name, _, rest = line.partition(":")
            if name in _MEMINFO:
                value, *unit = rest.split()
                found[_MEMINFO[name][0]] = float(value) * (1024.0 if unit == ["kB"] else 1.0)
        return found

    def _pressure(self) -> dict[str, float]:
        found = {}
        for name in ("cpu", "memory", "io"):
            some = re.search(r"^some .*total=(\d+)", _text(self.proc / "pressure" / name), re.MULTILINE)
            if some:
                found[f"psi.{name}"] = float(some[1])
        return found

    def _disks(self) -> dict[str, float]:
        found = {}
        rows = [line.split() for line in (self.proc / "diskstats").read_text(encoding="ascii").splitlines()]
        names = {row[2] for row in rows if not row[2].startswith(VIRTUAL_DISKS)}
        for row in rows:
            name = row[2]
            if name in names and not any(name != other and name.startswith(other) for other in names):
                found[f"disk.{name}.read"] = float(row[5]) * SECTOR_BYTES
                found[f"disk.{name}.written"] = float(row[9]) * SECTOR_BYTES
                found[f"disk.{name}.busy"] = float(row[12])
        return found

    def _network(self) -> dict[str, float]:
        found = {}
        for line in (self.proc / "net" / "dev").read_text(encoding="ascii").splitlines()[2:]:
            name, _, rest = line.partition(":")
            fields = rest.split()
            if any(fields[i] != "0" for i in (0, 8)):
                found[f"net.{name.strip()}.received"] = float(fields[0])
                found[f"net.{name.strip()}.sent"] = float(fields[8])
        return found

    def _clocks(self) -> dict[str, float]:
        files = (self.sys / "devices/system/cpu").glob("cpu[0-9]*/cpufreq/scaling_cur_freq")
        values = [int(text) / 1e3 for file in files if (text := _text(file).strip())]
        return {"clock.mean": sum(values) / len(values), "clock.least": min(values)} if values else {}

    def _power(self) -> dict[str, float]:
        found = {}
        for file in sorted((self.sys / "class/powercap").glob("intel-rapl:[0-9]/energy_uj")):
            if text := _text(file).strip():
                found[f"power.package{file.parent.name.rpartition(':')[2]}"] = float(text)
        return found

    def _gpus(self) -> dict[str, float]:
        nvml = self._nvml
        if nvml is None:
            return {}
        found: dict[str, float] = {}
        try:
            handles = [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount())]
        except nvml.NVMLError:
            return {}
        for i, handle in enumerate(handles):
            sources: dict[str, tuple[str, Callable[[Any], float]]] = {
                "utilisation": ("nvmlDeviceGetUtilizationRates", lambda rates: rates.gpu),
                "memory": ("nvmlDeviceGetMemoryInfo", lambda memory: memory.used),
                "power": ("nvmlDeviceGetPowerUsage", lambda milliwatts: milliwatts / 1e3),
            }
            for name, (function, value) in sources.items():
                with suppress(nvml.NVMLError):
                    found[f"gpu.{i}.{name}"] = float(value(getattr(nvml, function)(handle)))
            with suppress(nvml.NVMLError):
                found[f"gpu.{i}.clock"] = float(nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM))
            for name, kind in (("received", nvml.NVML_PCIE_UTIL_RX_BYTES), ("sent", nvml.NVML_PCIE_UTIL_TX_BYTES)):
                with suppress(nvml.NVMLError):
                    found[f"gpu.{i}.{name}"] = float(nvml.nvmlDeviceGetPcieThroughput(handle, kind)) * 1024.0
        return found


@dataclass(slots=True)
class ProcessReader:
    """Reads a group of processes whose members come and go; the counters of a process that ended keep their value."""

    proc: Path = Path("/proc")
    _last: dict[int, dict[str, float]] = field(default_factory=dict)
    _totals: dict[str, float] = field(default_factory=dict)

    def read(self, pids: Iterable[int]) -> dict[str, float]:
        """Return the values of the group by name. What a process did before its first reading does not count."""
        gauges = {"engine.memory": 0.0, "engine.threads": 0.0}
        for pid in pids:
            with suppress(OSError, ValueError, IndexError):
                now = self._one(pid)
                for name in gauges:
                    gauges[name] += now.pop(name)
                last = self._last.get(pid, now)
                for name, value in now.items():
                    self._totals[name] = self._totals.get(name, 0.0) + max(value - last.get(name, value), 0.0)
                self._last[pid] = now
        return self._totals | gauges if self._totals else {}

    def _one(self, pid: int) -> dict[str, float]:
        folder = self.proc / str(pid)
        fields = stat_fields(folder / "stat")
        found = {
            "engine.cpu": processor_s(fields),
            "engine.faults": float(fields[7]),
            "engine.major_faults": float(fields[9]),
            "engine.memory": float(fields[21]) * PAGE_BYTES,
            "engine.threads": float(fields[17]),
            "engine.run_queue": 0.0,
            "engine.switches": 0.0,
            "engine.preemptions": 0.0,
        }
        for task in (folder / "task").iterdir():
            with suppress(OSError, ValueError, IndexError):
                found["engine.run_queue"] += int((task / "schedstat").read_text().split()[1]) * 1e-9
                status = (task / "status").read_text()
                found["engine.switches"] += _count(status, "voluntary_ctxt_switches")
                found["engine.preemptions"] += _count(status, "nonvoluntary_ctxt_switches")
        text = _text(folder / "io")
        if text:
            found |= {"engine.read": _count(text, "read_bytes"), "engine.written": _count(text, "write_bytes")}
        return found


@dataclass(slots=True)
class BusiestProcessReader:
    """Reads the processor time of the busiest of some processes: the sum of the largest increase in each interval."""

    proc: Path = Path("/proc")
    _last: dict[int, float] = field(default_factory=dict)
    _total_s: float = 0.0

    def read(self, pids: Iterable[int]) -> dict[str, float]:
        """Return the value by its name; nothing without processes."""
        now = {pid: cpu_s for pid in pids if (cpu_s := self._cpu_s(pid)) is not None}
        rises = [cpu_s - self._last[pid] for pid, cpu_s in now.items() if pid in self._last]
        self._total_s += max(rises, default=0.0)
        self._last = now
        return {"engine.api_busiest": self._total_s} if now else {}

    def _cpu_s(self, pid: int) -> float | None:
        with suppress(OSError, ValueError, IndexError):
            return processor_s(stat_fields(self.proc / str(pid) / "stat"))
        return None


def _count(text: str, name: str) -> float:
    found = re.search(rf"^{name}:\s*(\d+)", text, re.MULTILINE)
    return float(found[1]) if found else 0.0


def _text(path: Path) -> str:
    with suppress(OSError):
        return path.read_text(encoding="utf-8", errors="replace")
    return ""
