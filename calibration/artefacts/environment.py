"""The machine and the software of a run, as /proc, /sys, the GPU driver and the packages describe them.

A fact that cannot be read is listed with the reason under `not_measured`.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import platform
import re
import subprocess
import sys
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, Final

from catalogs.io.yaml_files import DATA
from catalogs.ui.installation import DISTRIBUTION, own_version
from catalogs.units import GIB

#: Facts of the firmware below /sys/class/dmi/id. Serial numbers are left out.
_FIRMWARE: Final = ("sys_vendor", "product_name", "board_name", "bios_vendor", "bios_version", "bios_date")

#: What nvidia-smi reports of each GPU: names of `nvidia-smi --help-query-gpu`.
_GPU_FACTS: Final = (
    *("name", "driver_version", "vbios_version", "memory.total", "power.limit", "mig.mode.current", "ecc.mode.current"),
    *("clocks.max.sm", "clocks.max.mem", "clocks.current.sm", "clocks.current.memory", "pcie.link.gen.current"),
)

#: Seconds within which nvidia-smi must answer. A judgement: it is slow where the driver must wake up first.
_DRIVER_TIMEOUT_S: Final = 20.0


def environment() -> dict[str, Any]:
    """Return the facts of this machine and its software."""
    missing: dict[str, str] = {}
    firmware = {name: text for name in _FIRMWARE if (text := _text(f"/sys/class/dmi/id/{name}").strip())}
    if not firmware:
        missing["firmware"] = "/sys/class/dmi/id cannot be read"
    gpus = _gpus(missing)
    clocks = _clocks()
    if clocks is None:
        missing["clocks"] = "neither cpufreq nor /proc/cpuinfo states a frequency"
    return {
        "firmware": firmware,
        "cpu": _cpu(),
        "memory_gib": _memory_gib(),
        "clocks": clocks,
        **system_facts(),
        "libc": " ".join(platform.libc_ver()),
        "command_line_of_kernel": _text("/proc/cmdline").strip() or None,
        "gpus": gpus,
        "packages": packages(),
        "not_measured": missing,
    }


def system_facts() -> dict[str, Any]:
    """Return the operating system: its kernel, its name, Python, the container, huge pages and the governor."""
    transparent = re.search(r"\[(.*?)\]", _text("/sys/kernel/mm/transparent_hugepage/enabled"))
    reserved = sorted(Path("/sys/kernel/mm/hugepages").glob("hugepages-*/nr_hugepages"))
    return {
        "kernel": platform.release(),
        "os": _os_name(),
        "python": sys.version.split()[0],
        "container": _container(),
        "hugepages": {
            "transparent": transparent[1] if transparent else None,
            "reserved": {f.parent.name: f.read_text().strip() for f in reserved},
        },
        "governor": _text("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor").strip() or None,
    }


def packages() -> dict[str, str]:
    """Return the version of every installed package, in alphabetical order; of several, the one that is imported."""
    found: dict[str, str] = {}
    for each in importlib.metadata.distributions():  # in the order of the search path
        found.setdefault((each.metadata["Name"] or "").lower(), each.version)
    return {name: found[name] for name in sorted(found) if name}


def program() -> dict[str, Any]:
    """Return which version of this program runs: its distribution, its commit, and the digests of code and catalog."""
    root = Path(__file__).resolve().parent.parent.parent
    return {
        "distribution": DISTRIBUTION,
        "version": own_version(),
        "commit": _commit(root),
        "code_sha256": _tree_digest(root, ("catalogs", "calibration", "simulator", "planner"), ".py"),
        "catalog_sha256": _tree_digest(DATA.parent, (DATA.name,), ""),
    }


@cache
def _tree_digest(root: Path, folders: tuple[str, ...], ending: str) -> str:
    """Return a digest of the names and contents of all files below some folders."""
    digest = hashlib.sha256()
    for folder in folders:
        for path in sorted((root / folder).rglob(f"*{ending}")):
            if path.is_file() and "__pycache__" not in path.parts:
                digest.update(f"{path.relative_to(root)}\0".encode())
                digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def _commit(root: Path) -> str | None:
    """Return the commit of a checkout, with "+" if files differ from it; None for an installed package."""
    if not (root / ".git").exists():
        return None
    try:
        head = subprocess.run(
            ["git", "-C", str(root), "describe", "--always", "--abbrev=40", "--dirty=+", "--match="],
            capture_output=True,
            text=True,
            timeout=_DRIVER_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return head.stdout.strip() or None


def _cpu() -> dict[str, Any]:
    info = _text("/proc/cpuinfo")
    fields = dict(re.findall(r"^([^\t:\n]+)\s*:\s*(.*)$", info, re.MULTILINE))
    return {
        "model": fields.get("model name"),
        "microcode": fields.get("microcode"),
        "cores": os.cpu_count(),
        "cores_allowed": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
        "numa_nodes": len(list(Path("/sys/devices/system/node").glob("node[0-9]*"))) or None,
    }


def _memory_gib() -> float | None:
    found = re.search(r"^MemTotal:\s*(\d+) kB", _text("/proc/meminfo"), re.MULTILINE)
    return round(int(found[1]) * 1024 / GIB, 2) if found else None


def _clocks() -> dict[str, float] | None:
    """Return the frequencies of the first core, MHz: the present one, and the limits where cpufreq states them."""
    base = "/sys/devices/system/cpu/cpu0/cpufreq"
    names = {"current_mhz": "scaling_cur_freq", "least_mhz": "scaling_min_freq", "most_mhz": "scaling_max_freq"}
    found = {name: int(text) / 1e3 for name, file in names.items() if (text := _text(f"{base}/{file}").strip())}
    stated = re.search(r"^cpu MHz\s*:\s*([\d.]+)", _text("/proc/cpuinfo"), re.MULTILINE)
    if stated:
        found.setdefault("current_mhz", float(stated[1]))
    return found or None


def _gpus(missing: dict[str, str]) -> list[dict[str, str]]:
    """Return the facts of each GPU; where there are none, the reason is entered in `missing`."""
    try:
        done = subprocess.run(
            ["nvidia-smi", f"--query-gpu={','.join(_GPU_FACTS)}", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            timeout=_DRIVER_TIMEOUT_S,
            check=False,
        )
    except FileNotFoundError:
        missing["gpus"] = "there is no nvidia-smi"
        return []
    except (OSError, subprocess.TimeoutExpired) as error:
        missing["gpus"] = f"nvidia-smi does not answer ({type(error).__name__})"
        return []
    if done.returncode:
        missing["gpus"] = f"nvidia-smi ends with status {done.returncode}"
        return []
    rows = [[cell.strip() for cell in line.split(",")] for line in done.stdout.splitlines() if line.strip()]
    return [dict(zip(_GPU_FACTS, row, strict=False)) for row in rows]


def _os_name() -> str | None:
    with suppress(OSError):
        return platform.freedesktop_os_release().get("PRETTY_NAME")
    return None


def _container() -> str | None:
    if Path("/.dockerenv").exists():
        return "docker"
    groups = _text("/proc/1/cgroup")
    return next((w for w in ("kubepods", "docker", "containerd", "podman", "lxc") if w in groups), None)


def _text(path: str) -> str:
    with suppress(OSError):
        return Path(path).read_text(encoding="utf-8", errors="replace")
    return ""
