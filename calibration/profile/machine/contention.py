"""Use of the processors by other processes during a measurement.

It is derived from /proc/stat and the processor time of this process, its children and an engine it started.
"""

from __future__ import annotations

import contextlib
import os
import resource
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

#: Share of the processors' time used by other processes above which a row counts as contended. A judgement: a
#: measurement may be late by as much.
CONTENDED: Final = 0.05

#: Cores used by other processes above which a measurement of an engine counts as contended. A judgement: an engine has
#: idle cores beside its own.
CONTENDED_CORES: Final = 0.2

#: Clock ticks of /proc/stat (10 ms each) below which a share cannot be resolved.
FEWEST_TICKS: Final = 10

TICK_S: Final = 1.0 / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class ContentionSample:
    """Counters at one moment, with times in seconds.

    `busy_s` is the time for which all processors were busy or stolen, and `own_s` the processor time of the
    measurement: of this process, of its finished children, and of the processes that are given by id. The other counts
    are those of this process.
    """

    at_s: float
    busy_s: float
    own_s: float
    page_faults: int = 0
    switches: int = 0

    def others_cores(self, later: ContentionSample) -> float:
        """Return the average number of cores that other processes kept busy until `later`."""
        wall_s = later.at_s - self.at_s
        return max(0.0, (later.busy_s - self.busy_s) - (later.own_s - self.own_s)) / wall_s if wall_s > 0 else 0.0


def usage(pids: Iterable[int] = ()) -> ContentionSample:
    """Read the counters; `busy_s` is 0 where /proc cannot be read.

    Args:
        pids: Running processes of the measurement. They must be the same at both moments that are compared.
    """
    own, children = (resource.getrusage(scope) for scope in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    own_s = own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime + sum(_cpu_s(pid) for pid in pids)
    faults, switches = own.ru_majflt + own.ru_minflt, own.ru_nvcsw + own.ru_nivcsw
    return ContentionSample(time.perf_counter(), busy_s(Path("/proc/stat")), own_s, faults, switches)


def busy_s(stat: Path) -> float:
    """Return the busy seconds of all processors since boot, or 0 where `stat` cannot be read.

    These are user, nice, system and interrupt time, and time stolen by the hypervisor.
    """
    with contextlib.suppress(OSError, ValueError), open(stat, encoding="ascii") as file:
        user, nice, system, _idle, _wait, irq, soft, stolen = (int(x) for x in file.readline().split()[1:9])
        return (user + nice + system + irq + soft + stolen) * TICK_S
    return 0.0


def stat_fields(stat: Path) -> list[str]:
    """Return the fields of /proc/PID/stat that follow the name of the program, which may contain spaces."""
    return stat.read_text().rpartition(")")[2].split()


def processor_s(fields: Sequence[str]) -> float:
    """Return the seconds that a process has used processors, in user and in system mode, from its `stat_fields`."""
    return (int(fields[11]) + int(fields[12])) * TICK_S


def others_share(before: ContentionSample, after: ContentionSample, n_cpus: int) -> float:
    """Return the share (0 to 1) of the time of `n_cpus` processors that other processes used between two moments.

    The result is -1 where the interval is too short to resolve a share.
    """
    if (after.at_s - before.at_s) * n_cpus < FEWEST_TICKS * TICK_S:
        return -1.0
    return min(before.others_cores(after) / n_cpus, 1.0)


def _cpu_s(pid: int) -> float:
    with contextlib.suppress(OSError, IndexError, ValueError):
        return processor_s(stat_fields(Path(f"/proc/{pid}/stat")))
    return 0.0
