"""Who else used the processors while a shape was measured, from /proc/stat and this process's own time."""

from __future__ import annotations

import os
import resource
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

#: Share of the processors' time that others may take before a row counts as contended.
CONTENDED: Final = 0.05

#: Below this many clock ticks of /proc/stat (10 ms each) a share is not resolved: the next rows are looked at together.
FEWEST_TICKS: Final = 10

TICK_S: Final = 1.0 / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Usage:
    """Counters at one moment: seconds all processors were busy or stolen, seconds of this process, faults, switches."""

    at_s: float
    busy_s: float
    own_s: float
    page_faults: int
    switches: int
    preemptions: int


def usage(stat: Path = Path("/proc/stat")) -> Usage:
    """The counters now; busy_s is 0 where `stat` cannot be read."""
    own = resource.getrusage(resource.RUSAGE_SELF)
    own_s = own.ru_utime + own.ru_stime
    faults, switches = own.ru_majflt + own.ru_minflt, own.ru_nvcsw + own.ru_nivcsw
    return Usage(time.perf_counter(), busy_s(stat), own_s, faults, switches, own.ru_nivcsw)


def busy_s(stat: Path) -> float:
    """Seconds of all processors in user, nice, system, interrupts and stolen by the hypervisor, since the start."""
    try:
        with open(stat, encoding="ascii") as file:
            ticks = [int(x) for x in file.readline().split()[1:9]]
    except (OSError, ValueError):
        return 0.0
    user, nice, system, _idle, _wait, irq, soft, stolen = ticks
    return (user + nice + system + irq + soft + stolen) * TICK_S


def others_share(before: Usage, after: Usage, n_cpus: int) -> float:
    """Share 0..1 of `n_cpus` processors' time that others used between two moments; -1 where too short to tell."""
    wall = after.at_s - before.at_s
    if wall * n_cpus < FEWEST_TICKS * TICK_S:
        return -1.0
    others = (after.busy_s - before.busy_s) - (after.own_s - before.own_s)
    return min(max(others / (wall * n_cpus), 0.0), 1.0)
