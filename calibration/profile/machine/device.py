"""The profiled device as torch reports it: its dtypes, memory and cache."""

from __future__ import annotations

import importlib
import os
import warnings
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from catalogs.errors import InputError
from catalogs.hardware.local import local_hardware, read_cpu
from catalogs.units import KIB, MIB

#: Dtypes of matrix products on a CPU, in the order of their importance.
CPU_DTYPES: Final = ("bf16", "fp32")

TORCH_DTYPES: Final = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32", "fp8": "float8_e4m3fn", "int8": "int8"}

#: Least compute capability of devices with tensor cores for int8 (Turing).
INT8_CAPABILITY: Final = (7, 5)

INT8_FLAGS: Final = ("avx512_vnni", "avx_vnni")  # CPUs with one of these multiply int8 faster than bf16

#: Least compute capability of devices with tensor cores for FP8 (Ada).
FP8_CAPABILITY: Final = (8, 9)

#: Least compute capability of devices with tensor cores for bf16 (Ampere).
BF16_CAPABILITY: Final = (8, 0)


@dataclass(frozen=True, slots=True)
class ProfiledDevice:
    """A CPU or GPU that is profiled.

    `kind` is "cpu" or "cuda". `cache_bytes` is the size of the last-level cache, `memory_bytes` that of the device's
    memory, and `threads` the number of threads that torch uses on a CPU.
    """

    kind: str
    dtypes: tuple[str, ...]
    cache_bytes: float
    memory_bytes: float
    threads: int
    cores: tuple[int, ...]
    torch: Any
    activation: str = "bf16"  # the dtype of elementwise kernels; fp32 where models are served in fp32
    pool: dict[Any, Any] = field(default_factory=dict, compare=False)  # random values by dtype (see kernels/inputs.py)

    @property
    def is_cuda(self) -> bool:
        """Return whether the device is a GPU."""
        return self.kind == "cuda"

    def dtype(self, name: str) -> Any:
        """Return the torch dtype of a dtype name."""
        return getattr(self.torch, TORCH_DTYPES[name])

    def sixteen_bit(self, name: str) -> Any:
        """Return the torch dtype of a dtype name, with fp16 in place of bf16 on devices without bf16."""
        return self.dtype("fp16" if name == "bf16" and "bf16" not in self.dtypes else name)

    def free_bytes(self) -> float:
        """Return the bytes of the device's memory that can be allocated now."""
        if not self.is_cuda:
            return self.host_free_bytes()
        cuda = self.torch.cuda
        return float(cuda.mem_get_info()[0] + cuda.memory_reserved() - cuda.memory_allocated())

    def host_free_bytes(self) -> float:
        """Return the bytes of host memory that can be allocated now."""
        try:
            with open("/proc/meminfo", encoding="ascii") as file:
                return next(float(line.split()[1]) * KIB for line in file if line.startswith("MemAvailable:"))
        except (OSError, StopIteration):
            return 8e9

    def synchronize(self) -> None:
        """Wait until a GPU has finished its work; do nothing on a CPU."""
        if self.is_cuda:
            self.torch.cuda.synchronize()


def load_torch() -> Any:
    """Import torch and return the module.

    Raises:
        InputError: If torch is not installed.
    """
    try:
        return importlib.import_module("torch")
    except ImportError as error:
        raise InputError("profiling needs torch: pip install '.[calibration]'", str(error)) from None


def open_device(kind: str | None = None, threads: int | None = None) -> ProfiledDevice:
    """Open the GPU where torch sees one, else the CPU with `threads` threads (by default one per core).

    Raises:
        InputError: If `kind` is another kind of device, if torch cannot use the GPU, or if there are fewer cores than
            threads.
    """
    if kind not in (None, "cpu", "cuda"):
        raise InputError("a device is cpu or cuda", kind, "cpu")
    # The cores are read before torch starts threads, which may bind the main thread to one of them.
    cores = tuple(sorted(os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)))
    if threads is not None and not 1 <= threads <= len(cores):
        raise InputError("threads must be 1 to the number of cores this process may use", str(threads), str(len(cores)))
    threads = threads or len(cores)
    # OpenMP binds its threads to cores, as engines do. It reads this when torch is loaded. Set values are kept.
    os.environ.setdefault("OMP_NUM_THREADS", str(threads))
    os.environ.setdefault("OMP_PROC_BIND", "close" if threads > 1 else "false")
    torch = load_torch()
    if kind != "cpu":
        found = _cuda_problem(torch)
        if found is None:
            return _cuda(torch, cores)
        # Where the driver lists a GPU that torch cannot use, the CPU must not silently replace it.
        if kind == "cuda" or local_hardware().accelerator.kind != "cpu":
            raise InputError("no GPU can be profiled: torch cannot use one", found, "--device cpu" if kind else None)
    torch.set_num_threads(threads)
    cpu = read_cpu()
    int8 = ("int8",) if hasattr(torch, "_int_mm") and not cpu.flags.isdisjoint(INT8_FLAGS) else ()
    return ProfiledDevice(
        "cpu", (*CPU_DTYPES, *int8), last_level_cache_bytes(), cpu.memory_bytes, threads, cores, torch
    )


def _cuda_problem(torch: Any) -> str | None:
    try:
        with warnings.catch_warnings():  # torch warns about an old driver, which the error below reports as well.
            warnings.simplefilter("ignore")
            if not torch.cuda.is_available():
                torch.cuda.init()
                return "torch sees no CUDA device"
        torch.zeros(1, device="cuda").add_(1).item()
    except (RuntimeError, AssertionError) as error:  # old or missing driver, torch without CUDA, unknown architecture
        return str(error).splitlines()[0]
    return None


def _cuda(torch: Any, cores: tuple[int, ...]) -> ProfiledDevice:
    facts = torch.cuda.get_device_properties(0)
    capability = (facts.major, facts.minor)
    dtypes = ["bf16"] if capability >= BF16_CAPABILITY else ["fp16"]
    if capability >= FP8_CAPABILITY and hasattr(torch, "_scaled_mm"):
        dtypes.append("fp8")
    if capability >= INT8_CAPABILITY and hasattr(torch, "_int_mm"):
        dtypes.append("int8")
    dtypes += ["fp16", "fp32"] if capability >= BF16_CAPABILITY else ["fp32"]
    torch.backends.cuda.matmul.allow_tf32 = False  # rows labelled fp32 must not be computed in TF32
    cache = float(getattr(facts, "L2_cache_size", 0) or 64 * MIB)
    return ProfiledDevice("cuda", tuple(dtypes), cache, float(facts.total_memory), len(cores), cores, torch)


def last_level_cache_bytes(root: str = "/sys/devices/system/cpu/cpu0/cache") -> float:
    """Return the bytes of the largest cache of the first core, or 32 MiB where the system does not report it."""
    sizes = []
    for file in Path(root).glob("index[0-7]/size"):
        with suppress(OSError, ValueError):
            sizes.append(float(file.read_text(encoding="ascii").strip().rstrip("K")) * KIB)
    return max(sizes, default=32.0 * MIB)
