"""Use of the processors by other processes during a measurement.

It is derived from /proc/stat and the processor time of this process, its children and an engine it started.
"""

from __future__ import annotations

import contextlib
import os
import resource
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

#: Share of the processors' time used by other processes above which a row counts as contended.
CONTENDED: Final = 0.05

#: Cores used by other processes above which a measurement of an engine counts as contended.
CONTENDED_CORES: Final = 0.2

#: Clock ticks of /proc/stat (10 ms each) below which a share cannot be resolved.
FEWEST_TICKS: Final = 10

TICK_S: Final = 1.0 / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Usage:
    """Counters at one moment.

    `busy_s` is the time all processors were busy or stolen, `own_s` the processor time of this process, in seconds.
    """

    at_s: float
    busy_s: float
    own_s: float
    page_faults: int
    switches: int
    preemptions: int


def usage(stat: Path = Path("/proc/stat")) -> Usage:
    """Read the counters; `busy_s` is 0 where `stat` cannot be read."""
    own = resource.getrusage(resource.RUSAGE_SELF)
    own_s = own.ru_utime + own.ru_stime
    faults, switches = own.ru_majflt + own.ru_minflt, own.ru_nvcsw + own.ru_nivcsw
    return Usage(time.perf_counter(), busy_s(stat), own_s, faults, switches, own.ru_nivcsw)


def busy_s(stat: Path) -> float:
    """Return the busy seconds of all processors since boot.

    These are user, nice, system and interrupt time, and time stolen by the hypervisor.
    """
    try:
        with open(stat, encoding="ascii") as file:
            ticks = [int(x) for x in file.readline().split()[1:9]]
    except (OSError, ValueError):
        return 0.0
    user, nice, system, _idle, _wait, irq, soft, stolen = ticks
    return (user + nice + system + irq + soft + stolen) * TICK_S


def others_share(before: Usage, after: Usage, n_cpus: int) -> float:
    """Return the share (0 to 1) of the time of `n_cpus` processors that other processes used between two moments.

    The result is -1 where the interval is too short to resolve a share.
    """
    wall = after.at_s - before.at_s
    if wall * n_cpus < FEWEST_TICKS * TICK_S:
        return -1.0
    others = (after.busy_s - before.busy_s) - (after.own_s - before.own_s)
    return min(max(others / (wall * n_cpus), 0.0), 1.0)


@dataclass(frozen=True, slots=True)
class ContentionSample:
    """CPU seconds used until one moment, by all processes and by the measurement's own.

    The measurement's own processes are this process, its finished children, and the processes given by id.
    """

    at_s: float
    all_s: float
    own_s: float

    @classmethod
    def now(cls, pids: Iterable[int] = ()) -> ContentionSample:
        """Sample the CPU seconds used until now.

        Args:
            pids: Running processes of the measurement. They must be the same at both moments that are compared.
        """
        own = 0.0
        for scope in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN):
            used = resource.getrusage(scope)
            own += used.ru_utime + used.ru_stime
        return cls(time.monotonic(), busy_s(Path("/proc/stat")), own + sum(_cpu_s(pid) for pid in pids))

    def others_cores(self, later: ContentionSample) -> float:
        """Return the average number of cores that other processes kept busy until `later`."""
        wall = later.at_s - self.at_s
        return max(0.0, (later.all_s - self.all_s) - (later.own_s - self.own_s)) / wall if wall > 0 else 0.0


def _cpu_s(pid: int) -> float:
    with contextlib.suppress(OSError, IndexError, ValueError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) * TICK_S
    return 0.0
