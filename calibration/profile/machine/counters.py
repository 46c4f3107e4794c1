"""Counters of the operating system and the processor: cache misses, disk bytes and network bytes.

Cache misses come from the processor's counters through perf_event_open(2), the system call that `perf stat` uses. The
kernel (perf_event_paranoid) or a virtual machine may not allow it. Disk and network bytes are those of the machine.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

#: Number of the system call perf_event_open on Linux, by architecture.
SYSCALL: Final = {"x86_64": 298, "aarch64": 241}

HARDWARE: Final = 0  # PERF_TYPE_HARDWARE

EVENTS: Final = {"instructions": 1, "cache_references": 2, "cache_misses": 3}  # linux/perf_event.h

ATTRIBUTE_BYTES: Final = 64  # PERF_ATTR_SIZE_VER0

#: Flag bits: include children (threads started later), exclude the kernel and the hypervisor.
FLAGS: Final = (1 << 1) | (1 << 5) | (1 << 6)

SECTOR_BYTES: Final = 512  # /proc/diskstats counts in this unit on every device.

VIRTUAL_DISKS: Final = ("loop", "ram", "dm-", "md", "zram")


@dataclass(frozen=True, slots=True)
class Counters:
    """The open counters of this process; without any, `files` is empty and `unavailable_reason` is set."""

    files: dict[str, int]
    unavailable_reason: str = ""

    def read(self) -> dict[str, int]:
        """Return the counts since the counters were opened, by name."""
        return {name: struct.unpack("<q", os.read(fd, 8))[0] for name, fd in self.files.items()}


def open_counters() -> Counters:
    """Open the processor's counters; call this before torch starts its threads, so that they are counted."""
    number = SYSCALL.get(platform.machine())
    if number is None or platform.system() != "Linux":
        return Counters({}, f"no cache misses: perf_event_open is not supported on {platform.machine()}")
    libc = ctypes.CDLL(None, use_errno=True)
    files: dict[str, int] = {}
    for name, config in EVENTS.items():
        fields = struct.pack("<IIQQQQQ", HARDWARE, ATTRIBUTE_BYTES, config, 0, 0, 0, FLAGS)
        fd = libc.syscall(number, fields.ljust(ATTRIBUTE_BYTES, b"\0"), 0, -1, -1, 0)
        if fd < 0:
            code = ctypes.get_errno()
            for opened in files.values():
                os.close(opened)
            return Counters({}, f"no cache misses: {_reason(code)}")
        files[name] = fd
    return Counters(files)


def _reason(code: int) -> str:
    if code in (errno.EACCES, errno.EPERM):
        return "the kernel does not allow it (perf_event_paranoid)"
    if code in (errno.ENOENT, errno.ENODEV, errno.EOPNOTSUPP):
        return "this machine has no such counters, like most virtual machines"
    return os.strerror(code)


def traffic(proc: Path = Path("/proc")) -> dict[str, int]:
    """Return the disk and network bytes of the machine since boot, by name.

    Disk bytes are those of whole disks; network bytes are those of every device except the loopback. Counts that /proc
    does not provide are left out.
    """
    found: dict[str, int] = {}
    with suppress(OSError, ValueError, IndexError):
        disks = [line.split() for line in (proc / "diskstats").read_text().splitlines()]
        names = {d[2] for d in disks if not d[2].startswith(VIRTUAL_DISKS)}
        whole = [d for d in disks if d[2] in names and not any(d[2] != n and d[2].startswith(n) for n in names)]
        found["disk_read_bytes"] = sum(int(d[5]) for d in whole) * SECTOR_BYTES
        found["disk_written_bytes"] = sum(int(d[9]) for d in whole) * SECTOR_BYTES
    with suppress(OSError, ValueError, IndexError):
        cards = [line.partition(":") for line in (proc / "net" / "dev").read_text().splitlines()[2:]]
        fields = [rest.split() for name, _, rest in cards if name.strip() != "lo"]
        found["network_received_bytes"] = sum(int(f[0]) for f in fields)
        found["network_sent_bytes"] = sum(int(f[8]) for f in fields)
    return found


def since(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    """Return the increase of every count that both readings hold."""
    return {n: after[n] - before[n] for n in after if n in before}
