"""The manifest of a profile: the machine and software it was measured on, for audits and comparisons."""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import os
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from calibration.artefacts.environment import system_facts
from calibration.profile.machine.device import ProfiledDevice
from catalogs.errors import InputError
from catalogs.hardware.local import read_cpu
from catalogs.io.output_files import write_json
from catalogs.units import GIB, MIB

MANIFEST_NAME: Final = "manifest.json"

#: Version of the form of the manifest.
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
        "memory_gib": round(device.memory_bytes / GIB, 2),
        "gpu": _gpu() if device.is_cuda else None,
        "cuda": device.torch.version.cuda,
        "torch_config": device.torch.__config__.show().splitlines()[0] if hasattr(device.torch, "__config__") else None,
        **system_facts(),
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
    leaves = [flat(value, f"{prefix}.{key}" if prefix else str(key)) for key, value in tree.items()]
    return {name: leaf for branch in leaves for name, leaf in branch.items()}


def _cpu(device: ProfiledDevice) -> dict[str, Any]:
    cpu = read_cpu()
    return {
        "model": cpu.model,
        "cores": os.cpu_count(),
        "cores_used": len(device.cores),
        "threads": device.threads,
        "last_level_cache_mib": round(device.cache_bytes / MIB, 2) if not device.is_cuda else None,
        "numa_nodes": len(list(Path("/sys/devices/system/node").glob("node[0-9]*"))) or None,
        "flags": sorted(cpu.flags),
        "capability": device.torch.backends.cpu.get_cpu_capability(),
    }


def _version(name: str) -> str | None:
    with suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version(name)
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
    with suppress(nvml.NVMLError):
        handle = nvml.nvmlDeviceGetHandleByIndex(0)
        facts["driver"] = nvml.nvmlSystemGetDriverVersion()
        facts["memory_gib"] = round(nvml.nvmlDeviceGetMemoryInfo(handle).total / GIB, 2)
        facts["sm_clock_max_mhz"] = nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_SM)
        facts["power_limit_w"] = nvml.nvmlDeviceGetPowerManagementLimit(handle) / 1e3
        facts["ecc"] = nvml.nvmlDeviceGetEccMode(handle)[0]
    nvml.nvmlShutdown()
    return facts | {"topology": _topology()}


def _topology() -> list[str] | None:
    try:
        done = subprocess.run(["nvidia-smi", "topo", "-m"], capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.splitlines() or None
