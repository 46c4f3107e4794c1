"""The device that is profiled, seen through torch: what it computes, how much memory and cache it has."""

from __future__ import annotations

import importlib
import os
import warnings
from dataclasses import dataclass, field
from typing import Any, Final

from catalogs.errors import InputError
from catalogs.units import KIB, MIB

#: Types of matrix products in the order they are worth measuring.
CPU_DTYPES: Final = ("bf16", "fp32")

TORCH_DTYPES: Final = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32", "fp8": "float8_e4m3fn", "int8": "int8"}

INT8_CAPABILITY: Final = (7, 5)

INT8_FLAGS: Final = ("avx512_vnni", "avx_vnni")  # of CPUs whose int8 products are faster than their bf16 ones

FP8_CAPABILITY: Final = (8, 9)

BF16_CAPABILITY: Final = (8, 0)


@dataclass(frozen=True, slots=True)
class ProfiledDevice:
    """`kind` cpu or cuda; cache_bytes of the last level; memory_bytes of the device; threads torch uses on a CPU."""

    kind: str
    dtypes: tuple[str, ...]
    cache_bytes: float
    memory_bytes: float
    threads: int
    cores: tuple[int, ...]
    torch: Any
    activation: str = "bf16"  # of elementwise kernels: fp32 where models are served in fp32
    pool: dict[Any, Any] = field(default_factory=dict, compare=False)  # random values by dtype, see inputs.py

    @property
    def is_cuda(self) -> bool:
        return self.kind == "cuda"

    def dtype(self, name: str) -> Any:
        """The torch dtype of a name of ours."""
        return getattr(self.torch, TORCH_DTYPES[name])

    def sixteen_bit(self, name: str) -> Any:
        """The torch dtype of a name, fp16 in place of bf16 on devices without it."""
        return self.dtype("fp16" if name == "bf16" and "bf16" not in self.dtypes else name)

    def free_bytes(self) -> float:
        """Memory that may be allocated now."""
        if self.is_cuda:
            held = self.torch.cuda.memory_reserved() - self.torch.cuda.memory_allocated()  # freed, not yet given back
            return float(self.torch.cuda.mem_get_info()[0] + held)
        return self.host_free_bytes()

    def host_free_bytes(self) -> float:
        """Memory of the host that may be allocated now."""
        return _meminfo_bytes("MemAvailable")

    def synchronize(self) -> None:
        if self.is_cuda:
            self.torch.cuda.synchronize()


def load_torch() -> Any:
    """torch, imported when first needed. Raises InputError where it is not installed."""
    try:
        return importlib.import_module("torch")
    except ImportError as error:
        raise InputError("profiling needs torch: pip install '.[calibration]'", str(error)) from None


def open_device(kind: str | None = None, threads: int | None = None) -> ProfiledDevice:
    """The GPU where torch sees one, else the CPU with `threads` threads, one per core where not given.

    Raises InputError for another kind, for `cuda` without a GPU or with a bad driver, and for more threads than cores.
    """
    if kind not in (None, "cpu", "cuda"):
        raise InputError("a device is cpu or cuda", kind, "cpu")
    cores = _affinity()  # before torch starts threads, which may bind the main one to a core
    if threads is not None and not 1 <= threads <= len(cores):
        raise InputError("threads must be 1 to the number of cores this process may use", str(threads), str(len(cores)))
    _bind_threads(threads or len(cores))
    torch = load_torch()
    if kind == "cuda" or kind is None:
        found = _cuda_problem(torch)
        if found is None:
            return _cuda(torch, cores)
        if kind == "cuda" or _gpu_seen():
            raise InputError("no GPU to profile: torch cannot use one", found, "--device cpu" if kind else None)
    torch.set_num_threads(threads or len(cores))
    memory = _meminfo_bytes("MemTotal")
    dtypes = (*CPU_DTYPES, *(("int8",) if _multiplies_int8(torch) else ()))
    return ProfiledDevice("cpu", dtypes, last_level_cache_bytes(), memory, threads or len(cores), cores, torch)


def _bind_threads(threads: int) -> None:
    """Threads stay on their cores, as engines bind them; read by OpenMP when torch is loaded, left alone if set."""
    os.environ.setdefault("OMP_NUM_THREADS", str(threads))
    os.environ.setdefault("OMP_PROC_BIND", "close" if threads > 1 else "false")


def _cuda_problem(torch: Any) -> str | None:
    try:
        with warnings.catch_warnings():  # torch warns of an old driver; the error below says the same
            warnings.simplefilter("ignore")
            if not torch.cuda.is_available():
                torch.cuda.init()
                return "torch sees no CUDA device"
        torch.zeros(1, device="cuda").add_(1).item()
    except (RuntimeError, AssertionError) as error:  # driver too old, no driver, torch without CUDA, architecture
        return str(error).splitlines()[0]
    return None


def _gpu_seen() -> bool:
    """Whether the driver lists a GPU, which torch then should be able to use: not silently the CPU instead."""
    from catalogs.hardware.local import local_hardware

    return local_hardware().accelerator.kind != "cpu"


def _cuda(torch: Any, cores: tuple[int, ...]) -> ProfiledDevice:
    facts = torch.cuda.get_device_properties(0)
    capability = (facts.major, facts.minor)
    dtypes = ["bf16"] if capability >= BF16_CAPABILITY else ["fp16"]
    if capability >= FP8_CAPABILITY and hasattr(torch, "_scaled_mm"):
        dtypes.append("fp8")
    if capability >= INT8_CAPABILITY and hasattr(torch, "_int_mm"):
        dtypes.append("int8")
    dtypes += ["fp16", "fp32"] if capability >= BF16_CAPABILITY else ["fp32"]
    torch.backends.cuda.matmul.allow_tf32 = False  # fp32 rows are fp32
    cache = float(getattr(facts, "L2_cache_size", 0) or 64 * MIB)
    return ProfiledDevice("cuda", tuple(dtypes), cache, float(facts.total_memory), len(cores), cores, torch)


def _multiplies_int8(torch: Any) -> bool:
    try:
        with open("/proc/cpuinfo", encoding="ascii", errors="replace") as file:
            flags = next((line for line in file if line.startswith("flags")), "").split()
    except OSError:
        return False
    return hasattr(torch, "_int_mm") and any(f in flags for f in INT8_FLAGS)


def last_level_cache_bytes(root: str = "/sys/devices/system/cpu/cpu0/cache") -> float:
    """Largest cache the first core reaches; 32 MiB where the system does not say."""
    sizes = []
    for index in range(8):
        try:
            with open(f"{root}/index{index}/size", encoding="ascii") as file:
                sizes.append(float(file.read().strip().rstrip("K")) * KIB)
        except (OSError, ValueError):
            continue
    return max(sizes, default=32.0 * MIB)


def _affinity() -> tuple[int, ...]:
    if hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(os.cpu_count() or 1))


def _meminfo_bytes(name: str) -> float:
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            return next(float(line.split()[1]) * KIB for line in file if line.startswith(f"{name}:"))
    except (OSError, StopIteration):
        return 8e9
