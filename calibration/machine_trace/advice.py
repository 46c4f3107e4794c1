"""Advice on what to change in the system or in the engine, ranked by the gain that a trace allows for.

A gain is an upper bound: the share of the engine's time that the cause took, as the signals state it. Each rule reads
its signals only where the engine ran. To add a rule, write its function and enter it in RULES.
"""

from __future__ import annotations

import mmap
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from calibration.machine_trace.readings import PAGE_BYTES
from calibration.machine_trace.sampler import MachineTrace
from catalogs.arrays import FloatArray
from catalogs.errors import InputError
from catalogs.hardware.catalog import parse_hardware
from catalogs.hardware.host_copies import PAGE_SIZES
from catalogs.hardware.specs import HostCopyRate
from catalogs.ui.words import percent
from catalogs.units import GIGA

#: Gains below this share are not worth a change. A judgement: half a per cent is less than two runs differ by.
LEAST_GAIN: Final = 0.005

#: An engine that moves fewer bytes per second does not use a disk.
_LEAST_TRAFFIC: Final = 1e6

#: Cores from which a process counts as using its whole core, and those that the rest of an engine uses at least.
_FULL_CORE, _LEAST_CORES = 0.9, 0.1

#: Cores above which the engine counts as running. A judgement: an idle engine polls.
_BUSY_CORES: Final = 0.02

#: Bytes touched by the measurement of a page fault.
_TOUCHED_BYTES: Final = 64 * 2**20

#: Bytes of a huge page: those of x86-64, and of Arm with pages of 4 KiB.
_HUGE_PAGE_BYTES: Final = 2 * 2**20


@dataclass(frozen=True, slots=True)
class Advice:
    """A change with the share of the engine's time that it saves at most.

    Attributes:
        change: The change.
        gain: Share of the engine's time, 0 to 1.
        because: What the signals show.
    """

    change: str
    gain: float
    because: str


@dataclass(frozen=True, slots=True)
class PageFaultCosts:
    """Seconds of a page fault that finds memory, by the size of the page; None for a size that is not available."""

    small_s: float
    huge_s: float | None


def page_fault_costs() -> PageFaultCosts:
    """Measure the first touch of new memory on this machine, in pages of the usual size and in huge pages."""
    small_s = _touch_s(huge=False) / (_TOUCHED_BYTES / PAGE_BYTES)
    if not hasattr(mmap, "MADV_HUGEPAGE"):
        return PageFaultCosts(small_s, None)
    huge_s = _touch_s(huge=True) / (_TOUCHED_BYTES / _HUGE_PAGE_BYTES)
    # without huge pages the second measurement takes as long for every byte as the first
    given = huge_s / _HUGE_PAGE_BYTES < 0.8 * small_s / PAGE_BYTES
    return PageFaultCosts(small_s, huge_s if given else None)


def _touch_s(huge: bool) -> float:
    """Return the shortest time to touch every page of new memory once."""
    times = []
    for _ in range(3):
        with mmap.mmap(-1, _TOUCHED_BYTES) as memory:
            if huge:
                memory.madvise(mmap.MADV_HUGEPAGE)
            elif hasattr(mmap, "MADV_NOHUGEPAGE"):
                memory.madvise(mmap.MADV_NOHUGEPAGE)
            view = np.frombuffer(memory, dtype=np.uint8)
            began_s = time.perf_counter()
            view[::PAGE_BYTES].sum()
            view = np.empty(0, dtype=np.uint8)  # releases the memory before it is closed
            times.append(time.perf_counter() - began_s)
    return min(times)


@dataclass(frozen=True, slots=True)
class EngineTime:
    """The signals over the time in which the engine used a core.

    Attributes:
        signals: The signals of the trace by name. Each has shape (n - 1,).
    """

    signals: Mapping[str, FloatArray]

    def mean(self, name: str) -> float:
        """Return the mean of a signal in its unit; 0 if the trace does not have it."""
        values = self._while_busy(name)
        return float(values.mean()) if len(values) else 0.0

    def share_above(self, name: str, limit: float) -> float:
        """Return the share of the time in which a signal is above a limit; 0 if the trace does not have it."""
        values = self._while_busy(name)
        return float((values > limit).mean()) if len(values) else 0.0

    def _while_busy(self, name: str) -> FloatArray:
        """Return the values of a signal while the engine used a core, shape (any,); empty if there are none."""
        values, engine = self.signals.get(name), self.signals.get("engine.cpu")
        if values is None:
            return np.empty(0)
        return values[np.isfinite(values) & (engine > _BUSY_CORES if engine is not None else True)]

    def copied(self, to_device: bool) -> float:
        """Return the bytes per second that the busiest accelerator copies from the host, or to it."""
        for names in (("to_device", "to_host"), ("received", "sent")):
            pattern = rf"gpu\.\d+\.(copied\.)?{names[0] if to_device else names[1]}"
            found = [self.mean(name) for name in self.signals if re.fullmatch(pattern, name)]
            if found:
                return max(found)
        return 0.0

    @property
    def cores(self) -> float:
        """Return the cores that the engine used and waited for."""
        return self.mean("engine.cpu") + self.mean("engine.run_queue")


Rule = Callable[[EngineTime, PageFaultCosts], Advice | None]


def _competition(engine: EngineTime, _: PageFaultCosts) -> Advice | None:
    waits, others = engine.mean("engine.run_queue"), engine.mean("others.cpu")
    if engine.cores <= 0 or others < 0.1:
        return None
    why = f"its threads wait for {waits:.2g} cores while other processes use {others:.2g}"
    change = (
        "pin the engine to cores of its own (taskset, cpuset, VLLM_CPU_OMP_THREADS_BIND), or stop the other processes"
    )
    return Advice(change, waits / engine.cores, why)


def _threads(engine: EngineTime, _: PageFaultCosts) -> Advice | None:
    waits, others = engine.mean("engine.run_queue"), engine.mean("others.cpu")
    if engine.cores <= 0 or others >= 0.1:
        return None
    why = f"its own threads wait for {waits:.2g} cores, and other processes use none"
    change = "run fewer threads (OMP_NUM_THREADS, API processes) or give the engine more cores"
    return Advice(change, waits / engine.cores, why)


def _api_processes(engine: EngineTime, _: PageFaultCosts) -> Advice | None:
    """An API process runs on one core, and two of them share its work: of the time in which it is full, half is left.

    A server whose API and engine are one process (llama.cpp, transformers) has no such option.
    """
    busiest = engine.mean("engine.api_busiest")
    if engine.mean("engine.cpu") - busiest < _LEAST_CORES:
        return None
    full = engine.share_above("engine.api_busiest", _FULL_CORE)
    why = f"the busiest API process uses its whole core in {percent(full, 1)} of the time, {busiest:.2g} on average"
    return Advice("run more API processes (vLLM: --api-server-count), with a core for each", full / 2, why)


def _memory(engine: EngineTime, _: PageFaultCosts) -> Advice | None:
    share, major = engine.mean("psi.memory"), engine.mean("engine.major_faults")
    why = f"tasks wait for memory in {percent(share, 1)} of the time; {major:.3g} page faults a second read a disk"
    return Advice("free memory or add some: a smaller KV space, no swap, locked weights (mlock)", share, why)


def _disk(engine: EngineTime, _: PageFaultCosts) -> Advice | None:
    share, read = engine.mean("psi.io"), engine.mean("engine.read") + engine.mean("engine.written")
    if read < _LEAST_TRAFFIC and engine.mean("engine.major_faults") < 1.0:
        return None  # other processes wait for the disk, and the engine does not use it
    why = f"tasks wait for a disk in {percent(share, 1)} of the time; the engine moves {read / 1e6:.3g} MB/s"
    return Advice("keep logs, swap and offloaded blocks off this disk, or use a faster one", share, why)


def _huge_pages(engine: EngineTime, costs: PageFaultCosts) -> Advice | None:
    faults = engine.mean("engine.faults")
    if costs.huge_s is None or engine.cores <= 0:
        return None
    saved_s = costs.small_s - costs.huge_s * PAGE_BYTES / _HUGE_PAGE_BYTES
    sizes = f"{costs.small_s * 1e6:.2g} µs in small pages, measured here"
    why = f"{faults:.3g} page faults a second at {sizes}"
    change = "use huge pages (transparent_hugepage=always, or madvise with an allocator that requests them)"
    return Advice(change, faults * saved_s / engine.cores, why)


def _steal(engine: EngineTime, _: PageFaultCosts) -> Advice | None:
    stolen, busy = engine.mean("cpu.steal"), engine.mean("cpu.busy")
    why = f"the hypervisor takes {stolen:.2g} of {busy:.2g} busy cores"
    return Advice("move to a machine whose cores are not shared", stolen / busy if busy > 0 else 0.0, why)


def _clocks(engine: EngineTime, _: PageFaultCosts) -> Advice | None:
    clock = engine.signals.get("clock.mean")
    if clock is None:
        return None
    mean, most = engine.mean("clock.mean"), float(np.nanmax(clock))
    why = f"the mean clock is {mean:.4g} MHz, the highest that was seen {most:.4g} MHz"
    return Advice("set the governor `performance`, and check power limit and cooling", 1 - mean / most, why)


def _numa(engine: EngineTime, _: PageFaultCosts) -> Advice | None:
    misses, hits = engine.mean("numa.misses"), engine.mean("numa.hits")
    why = f"{misses:.3g} of {hits + misses:.3g} pages a second come from another node"
    change = "bind the engine and its memory to one NUMA node (numactl --cpunodebind --membind)"
    return Advice(change, misses / (hits + misses) if misses > 0 else 0.0, why)


RULES: Final[tuple[Rule, ...]] = (
    *(_competition, _threads, _api_processes, _memory, _disk, _huge_pages, _steal, _clocks, _numa),
)


def measured_copies() -> tuple[HostCopyRate, ...]:
    """Return the rates of copies by page size that `calibrate run` measured on this machine; none without them."""
    try:
        return parse_hardware("local").node.host_copies
    except InputError:
        return ()


def copies_in_larger_pages(engine: EngineTime, copies: Sequence[HostCopyRate]) -> Advice | None:
    """Return the gain of larger pages of host memory for copies to and from accelerators; None where there is none.

    The bytes that an accelerator copies in each second would take less time at the rate that was measured with larger
    pages. Traces of profilers state the bytes of copies, others all bytes over PCIe, which include those between
    accelerators.
    """
    usual = {each.to_device: each.bytes_per_s for each in copies if each.pages == PAGE_SIZES[0]}
    gains = {}
    for pages in PAGE_SIZES[1:]:
        larger = {each.to_device: each.bytes_per_s for each in copies if each.pages == pages}
        gains[pages] = sum(
            engine.copied(to_device) * max(0.0, 1.0 / now - 1.0 / then)
            for to_device in (True, False)
            if (now := usual.get(to_device)) and (then := larger.get(to_device))
        )
    best = max(gains, key=lambda pages: gains[pages])
    moved = engine.copied(True) + engine.copied(False)
    why = f"accelerators copy {moved / GIGA:.2g} GB/s, and copies with pages of {best} were measured to be faster"
    return Advice(f"keep offloaded blocks in pages of {best} (kv_offload.host_pages)", min(gains[best], 1.0), why)


def advice(trace: MachineTrace, costs: PageFaultCosts, copies: Sequence[HostCopyRate] = ()) -> list[Advice]:
    """Return the changes that are worth it, the largest gain first.

    Args:
        trace: The trace.
        costs: Seconds of page faults.
        copies: Rates of copies between the host and an accelerator by page size, where they were measured.
    """
    engine = EngineTime(trace.signals())
    found = [*(rule(engine, costs) for rule in RULES), copies_in_larger_pages(engine, copies)]
    return sorted((each for each in found if each is not None and each.gain >= LEAST_GAIN), key=lambda each: -each.gain)
