"""`--hw local` without a driver: a conservative, stated roofline."""

from __future__ import annotations

from pathlib import Path

import pytest

from catalogs.errors import InputError
from catalogs.hardware.catalog import parse_hardware
from catalogs.hardware.local import Cpu, cpu_hardware, gpu_hardware, read_cpu


def cpu(flags: str, cores: int = 4) -> Cpu:
    return Cpu("test", cores, 2e9, frozenset(flags.split()), 16e9)


def test_roofline_is_cores_x_clock_x_width() -> None:
    a = cpu_hardware(cpu("avx2 avx")).accelerator
    assert a.flops_for("fp32") == 4 * 2e9 * 16
    assert a.memory_bandwidth_bytes_per_s == 20e9
    assert a.memory_bytes == 16e9


def test_wider_units_and_more_cores_are_faster() -> None:
    wide, narrow = (cpu_hardware(cpu(f)).accelerator.flops_for("bf16") for f in ("avx512f avx512_bf16", "avx512f"))
    assert wide == 2 * narrow
    assert cpu_hardware(cpu("amx_bf16 avx512f")).accelerator.flops_for("bf16") > wide
    assert cpu_hardware(cpu("avx2", 8)).accelerator.flops_for("fp32") == 8 * 2e9 * 16


def test_it_says_that_it_is_uncalibrated() -> None:
    notice = cpu_hardware(cpu("avx2")).notices[0]
    assert "uncalibrated" in notice
    assert "4 cores" in notice


def test_reads_proc(tmp_path: Path) -> None:
    (tmp_path / "cpuinfo").write_text("model name : Some CPU\ncpu MHz\t\t: 2500.5\nflags : avx2 fma\n")
    (tmp_path / "meminfo").write_text("MemTotal:       1048576 kB\n")
    found = read_cpu(tmp_path)
    assert (found.model, found.hertz, found.memory_bytes) == ("Some CPU", 2500.5e6, 2**30)
    assert found.flags == {"avx2", "fma"}


def test_unreadable_machine_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        read_cpu(tmp_path)


@pytest.mark.skipif(not Path("/proc/cpuinfo").exists(), reason="needs /proc")
def test_this_machine() -> None:
    h = parse_hardware("local")
    assert h.accelerator.memory_bytes > 1e8
    assert h.notices


class FakeDriver:
    """NVML as far as it is read, for an H100 that may be cut into instances."""

    NVML_DEVICE_MIG_ENABLE = 1

    class NVMLError(Exception):
        pass

    def __init__(self, mig: str | None) -> None:
        self.mig = mig

    def nvmlDeviceGetHandleByIndex(self, i: int) -> str:
        return f"gpu {i}"

    def nvmlDeviceGetName(self, handle: str) -> str:
        return f"NVIDIA H100 80GB HBM3 MIG {self.mig}" if handle == "instance" else "NVIDIA H100 80GB HBM3"

    def nvmlDeviceGetMigMode(self, _: str) -> list[int]:
        if self.mig is None:
            raise self.NVMLError("not supported")
        return [int(bool(self.mig)), int(bool(self.mig))]

    def nvmlDeviceGetMigDeviceHandleByIndex(self, _: str, i: int) -> str:
        assert i == 0
        return "instance"


def test_a_mig_instance_is_hardware_of_its_own() -> None:
    part, whole = gpu_hardware(FakeDriver("1g.10gb"), 1), gpu_hardware(FakeDriver(None), 1)
    assert part.accelerator.name == "h100:1g.10gb"
    assert part.n_accelerators == 1
    assert part.accelerator.memory_bytes < whole.accelerator.memory_bytes / 6
    assert part.accelerator == parse_hardware("h100:1g.10gb").accelerator
    assert gpu_hardware(FakeDriver(""), 1).accelerator == whole.accelerator
    assert gpu_hardware(FakeDriver("9g.99gb"), 1).accelerator == whole.accelerator  # unknown to the catalog
