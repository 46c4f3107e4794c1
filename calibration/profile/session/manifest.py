"""The manifest of a profile: the machine and software it was measured on, for audits and comparisons."""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

from calibration.profile.machine.device import ProfiledDevice
from catalogs.errors import InputError
from catalogs.io.output_files import write_json

MANIFEST_NAME: Final = "manifest.json"

SCHEMA_VERSION: Final = 1

LIBRARIES: Final = ("torch", "numpy", "pandas", "pyarrow", "nvidia-ml-py", "psutil", "triton", "llm-capacity-planner")

#: Facts that must be equal for a session to be resumed.
IDENTITY: Final = (
    *("hardware", "device", "cpu.model", "cpu.threads", "gpu.name", "libraries.torch", "seed"),
    "activation_dtype",
)

Manifest = dict[str, Any]


def describe(hardware: str, device: ProfiledDevice, budget_s: float, seed: int) -> Manifest:
    """Return the manifest of a profile that starts now.

    It reads /proc, /sys and the GPU driver. Facts that cannot be read are None.
    """
    return {
        "schema_version": SCHEMA_VERSION,
        "hardware": hardware,
        "device": device.kind,
        "budget_s": budget_s,
        "seed": seed,
        "started_at": now(),
        "finished_at": None,
        "cpu": _cpu(device),
        "memory_gib": round(device.memory_bytes / 2**30, 2),
        "gpu": _gpu() if device.is_cuda else None,
        "cuda": device.torch.version.cuda,
        "torch_config": device.torch.__config__.show().splitlines()[0] if hasattr(device.torch, "__config__") else None,
        **_system(),
        "libraries": {name: _version(name) for name in LIBRARIES},
    }


def now() -> str:
    """Return the present UTC time in ISO format, in whole seconds."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def write(folder: Path, manifest: Manifest) -> None:
    """Write a manifest into `folder`.

    Raises:
        InputError: If the file cannot be written.
    """
    write_json(manifest, str(folder / MANIFEST_NAME))


def read(folder: Path) -> Manifest | None:
    """Return the manifest in `folder`, or None where there is none.

    Raises:
        InputError: If the manifest is damaged.
    """
    path = folder / MANIFEST_NAME
    if not path.is_file():
        return None
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise InputError("the profile's manifest cannot be read", str(path)) from None
    if not isinstance(found, dict):
        raise InputError("the profile's manifest is not an object", str(path))
    return found


def mismatch(old: Manifest, new: Manifest) -> str | None:
    """Return a description of the first fact of IDENTITY that differs, or None where a session can be resumed."""
    a, b = flat(old), flat(new)
    name = next((n for n in IDENTITY if a.get(n) != b.get(n)), None)
    return None if name is None else f"{name} was {a.get(name)}, is {b.get(name)} now"


def flat(tree: Any, prefix: str = "") -> dict[str, Any]:
    """Return the leaves of nested objects by their keys joined with dots."""
    if not isinstance(tree, dict):
        return {prefix: tree}
    out: dict[str, Any] = {}
    for key, value in tree.items():
        out |= flat(value, f"{prefix}.{key}" if prefix else str(key))
    return out


def _cpu(device: ProfiledDevice) -> dict[str, Any]:
    info = _text("/proc/cpuinfo")
    fields = dict(part.partition(":")[::2] for part in info.split("\n\n")[0].splitlines() if ":" in part)
    fields = {k.strip(): v.strip() for k, v in fields.items()}
    return {
        "model": fields.get("model name") or fields.get("Processor") or platform.processor(),
        "cores": os.cpu_count(),
        "cores_used": len(device.cores),
        "threads": device.threads,
        "last_level_cache_mib": round(device.cache_bytes / 2**20, 2) if not device.is_cuda else None,
        "numa_nodes": len(list(Path("/sys/devices/system/node").glob("node[0-9]*"))) or None,
        "flags": sorted((fields.get("flags") or fields.get("Features") or "").split()),
        "capability": device.torch.backends.cpu.get_cpu_capability(),
    }


def _system() -> dict[str, Any]:
    huge = {f.name: f.joinpath("nr_hugepages").read_text().strip() for f in _huge_folders()}
    return {
        "kernel": platform.release(),
        "os": _os_name(),
        "python": sys.version.split()[0],
        "container": _container(),
        "hugepages": {
            "transparent": _chosen(_text("/sys/kernel/mm/transparent_hugepage/enabled")),
            "reserved": huge,
        },
        "governor": _text("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor").strip() or None,
    }


def _huge_folders() -> list[Path]:
    return sorted(f for f in Path("/sys/kernel/mm/hugepages").glob("hugepages-*") if (f / "nr_hugepages").is_file())


def _chosen(text: str) -> str | None:
    return text[text.find("[") + 1 : text.find("]")] if "[" in text else None


def _os_name() -> str | None:
    lines = (line.partition("=")[::2] for line in _text("/etc/os-release").splitlines())
    return next((v.strip('"') for k, v in lines if k == "PRETTY_NAME"), None)


def _container() -> str | None:
    if Path("/.dockerenv").exists():
        return "docker"
    words = _text("/proc/1/cgroup")
    return next((w for w in ("kubepods", "docker", "containerd", "podman", "lxc") if w in words), None)


def _text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _gpu() -> dict[str, Any]:
    """Return driver, clocks, limits and topology from NVML, or only torch's name of the GPU where NVML is missing."""
    torch = importlib.import_module("torch")
    facts: dict[str, Any] = {"name": torch.cuda.get_device_name(0), "count": torch.cuda.device_count()}
    try:
        nvml = importlib.import_module("pynvml")
        nvml.nvmlInit()
    except Exception:
        return facts
    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(0)
        facts["driver"] = _str(nvml.nvmlSystemGetDriverVersion())
        facts["memory_gib"] = round(nvml.nvmlDeviceGetMemoryInfo(handle).total / 2**30, 2)
        facts["sm_clock_max_mhz"] = nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_SM)
        facts["power_limit_w"] = nvml.nvmlDeviceGetPowerManagementLimit(handle) / 1e3
        facts["ecc"] = nvml.nvmlDeviceGetEccMode(handle)[0]
    except nvml.NVMLError:
        pass
    finally:
        nvml.nvmlShutdown()
    return facts | {"topology": _topology()}


def _topology() -> list[str] | None:
    try:
        done = subprocess.run(["nvidia-smi", "topo", "-m"], capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.splitlines() or None


def _str(text: str | bytes) -> str:
    return text.decode() if isinstance(text, bytes) else text
