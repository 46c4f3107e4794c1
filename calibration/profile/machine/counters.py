"""What the operating system and the processor count while shapes are measured: cache misses, disk and network bytes.

Cache misses come from the processor's own counters by perf_event_open(2), the system call under `perf stat`: allowed or
not by the kernel (perf_event_paranoid) and by the virtual machine. Disk and network bytes are the whole machine's.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

SYSCALL: Final = {"x86_64": 298, "aarch64": 241}

HARDWARE: Final = 0  # PERF_TYPE_HARDWARE

EVENTS: Final = {"instructions": 1, "cache_references": 2, "cache_misses": 3}  # of linux/perf_event.h

ATTRIBUTE_BYTES: Final = 64  # PERF_ATTR_SIZE_VER0

#: Bits of the flags: count children (threads started later), leave the kernel and the hypervisor out.
FLAGS: Final = (1 << 1) | (1 << 5) | (1 << 6)

SECTOR_BYTES: Final = 512  # of /proc/diskstats, whatever the device's


@dataclass(frozen=True, slots=True)
class Counters:
    """Open counters of this process; `files` empty, and `why_not` said, where there are none."""

    files: dict[str, int]
    why_not: str = ""

    def read(self) -> dict[str, int]:
        """Counts since the start."""
        return {name: struct.unpack("<q", os.read(fd, 8))[0] for name, fd in self.files.items()}


def open_counters() -> Counters:
    """To be called before torch starts its threads, which are then counted too."""
    number = SYSCALL.get(platform.machine())
    if number is None or platform.system() != "Linux":
        return Counters({}, f"no cache misses: no perf_event_open known for {platform.machine()}")
    libc = ctypes.CDLL(None, use_errno=True)
    files: dict[str, int] = {}
    for name, config in EVENTS.items():
        attribute = struct.pack("<IIQQQQQ", HARDWARE, ATTRIBUTE_BYTES, config, 0, 0, 0, FLAGS).ljust(
            ATTRIBUTE_BYTES, b"\0"
        )
        fd = libc.syscall(number, attribute, 0, -1, -1, 0)
        if fd < 0:
            code = ctypes.get_errno()
            for opened in files.values():
                os.close(opened)
            return Counters({}, f"no cache misses: {_why(code)}")
        files[name] = fd
    return Counters(files)


def _why(code: int) -> str:
    if code in (errno.EACCES, errno.EPERM):
        return "the kernel does not allow it (perf_event_paranoid)"
    if code in (errno.ENOENT, errno.ENODEV, errno.EOPNOTSUPP):
        return "this machine has no such counters, as most virtual ones"
    return os.strerror(code)


def traffic(proc: Path = Path("/proc")) -> dict[str, int]:
    """Bytes read and written by whole disks, received and sent by every network device but the loopback, since boot;
    empty where /proc does not say."""
    found: dict[str, int] = {}
    try:
        disks = [line.split() for line in (proc / "diskstats").read_text().splitlines()]
        names = {d[2] for d in disks}
        whole = [d for d in disks if not any(d[2] != n and d[2].startswith(n) for n in names) and not _virtual(d[2])]
        found["disk_read_bytes"] = sum(int(d[5]) for d in whole) * SECTOR_BYTES
        found["disk_written_bytes"] = sum(int(d[9]) for d in whole) * SECTOR_BYTES
    except (OSError, ValueError, IndexError):
        pass
    try:
        cards = [line.partition(":") for line in (proc / "net" / "dev").read_text().splitlines()[2:]]
        fields = [rest.split() for name, _, rest in cards if name.strip() != "lo"]
        found["network_received_bytes"] = sum(int(f[0]) for f in fields)
        found["network_sent_bytes"] = sum(int(f[8]) for f in fields)
    except (OSError, ValueError, IndexError):
        pass
    return found


def _virtual(disk: str) -> bool:
    return disk.startswith(("loop", "ram", "dm-", "md", "zram"))


def since(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    """Differences of what both hold."""
    return {n: after[n] - before[n] for n in after if n in before}
