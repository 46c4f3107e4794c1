"""Who else used this machine while an engine and its client were measured."""

from __future__ import annotations

import contextlib
import resource
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from calibration.profile.machine.contention import TICK_S, busy_s

#: Cores of other processes above which a measurement is said to be contended.
CONTENDED_CORES: Final = 0.2


@dataclass(frozen=True, slots=True)
class ContentionSample:
    """CPU seconds used so far: by everybody, by us (this process, finished children, and the processes named)."""

    at_s: float
    all_s: float
    own_s: float

    @classmethod
    def now(cls, pids: Iterable[int] = ()) -> ContentionSample:
        """`pids`: processes of ours that still run, which must be the same at both moments that are compared."""
        own = 0.0
        for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN):
            used = resource.getrusage(who)
            own += used.ru_utime + used.ru_stime
        return cls(time.monotonic(), busy_s(Path("/proc/stat")), own + sum(_cpu_s(pid) for pid in pids))

    def others_cores(self, later: ContentionSample) -> float:
        """Cores that processes not ours kept busy until `later`, on average."""
        wall = later.at_s - self.at_s
        return max(0.0, (later.all_s - self.all_s) - (later.own_s - self.own_s)) / wall if wall > 0 else 0.0


def _cpu_s(pid: int) -> float:
    with contextlib.suppress(OSError, IndexError, ValueError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) * TICK_S
    return 0.0
