"""Copies between host and accelerator by page size: from measured rows to the rates of swap space and KV offload."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from calibration.profile.peaks import host_copies
from catalogs.deployments.resolution.optional_blocks import resolve_offload
from catalogs.deployments.schema import Deployment
from catalogs.errors import InputError
from catalogs.hardware.catalog import parse_hardware
from catalogs.hardware.host_copies import HostCopies, copy_rates, with_host_copies
from catalogs.hardware.specs import Hardware
from catalogs.units import GIB

MIB = 2**20


def row(kind: str, size: int, gb_per_s: float | None) -> dict[str, Any]:
    found: dict[str, Any] = {"family": "pages", "kind": kind, "message_bytes": size}
    if gb_per_s is None:
        return found | {"status": "skipped", "reason": "the system grants no such pages"}
    return found | {"status": "ok", "seconds": size / gb_per_s / 1e9}


#: Rates in GB/s as a GPU has them: up to 24 from the host and 20 to it, and no reserved pages.
ROWS = [
    row("host to device, 4 KB pages", MIB, 6.0),
    row("host to device, 4 KB pages", 64 * MIB, 21.0),
    row("device to host, 4 KB pages", 64 * MIB, 18.0),
    row("host to device, 2 MB transparent pages", 64 * MIB, 24.0),
    row("device to host, 2 MB transparent pages", 64 * MIB, 20.0),
    row("host to device, 2 MB reserved pages", 64 * MIB, None),
    row("device to host, 2 MB reserved pages", 64 * MIB, None),
    row("host to device, 1 GB reserved pages", 64 * MIB, None),
    row("device to host, 1 GB reserved pages", 64 * MIB, None),
]


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Hardware:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    hardware = parse_hardware("h100x1")
    host_copies(hardware.accelerator.full_name, "2026-01-01", "a test", ROWS).save()
    return with_host_copies(hardware)


def test_the_rate_is_that_of_the_largest_copy_of_each_page_size(measured: Hardware) -> None:
    assert copy_rates(measured.node, None) == copy_rates(measured.node, "4KB") == pytest.approx((18e9, 21e9))
    assert copy_rates(measured.node, "2MB") == pytest.approx((20e9, 24e9))
    with pytest.raises(InputError, match=r"1GB were not measured.*grants no such pages.*nearest.*4KB, 2MB"):
        copy_rates(measured.node, "1GB")


def test_what_was_not_measured_is_the_rate_of_the_link() -> None:
    node = parse_hardware("h100x1").node
    assert copy_rates(node, None) == (node.host_bytes_per_s, node.host_bytes_per_s)
    with pytest.raises(InputError, match="hardware: local only"):
        copy_rates(node, "2MB")


def test_offload_uses_them(measured: Hardware) -> None:
    def tiers(**keys: Any) -> tuple[float, float]:
        offload = {"host_gib": 10.0, **keys}
        deployment = Deployment.model_validate(
            {"model": "llama3.1-8b", "engine": "vllm", "hardware": "h100x1", "kv_offload": offload}
        )
        found = resolve_offload(deployment, measured, 1)
        assert found is not None
        again = resolve_offload(
            deployment.model_copy(update={"kv_offload": type(deployment.kv_offload).model_validate(found.as_written)}),
            measured,
            1,
        )
        assert again == found  # what is written gives the same rates again
        return (
            found.host_bytes_per_s,
            found.host_bytes_per_s if found.to_host_bytes_per_s is None else found.to_host_bytes_per_s,
        )

    assert tiers() == pytest.approx((21e9, 18e9))
    assert tiers(host_pages="2MB") == pytest.approx((24e9, 20e9))
    assert tiers(host_gib_per_s=5.0) == pytest.approx((5 * GIB, 5 * GIB))
    assert tiers(host_gib_per_s=5.0, to_host_gib_per_s=4.0) == pytest.approx((5 * GIB, 4 * GIB))
    with pytest.raises(InputError, match="not both"):
        tiers(host_pages="2MB", host_gib_per_s=5.0)


def test_rates_of_another_machine_do_not_count(measured: Hardware) -> None:
    other = parse_hardware("a100-80gbx1")
    assert with_host_copies(other) == other
    HostCopies.path().write_text("machine: 3\n")
    with pytest.raises(InputError, match="delete the file"):
        with_host_copies(measured)


def test_on_a_cpu_a_copy_counts_for_both_directions() -> None:
    rows = [row("host to host, 4 KB pages", 64 * MIB, 9.0), row("host to host, 1 GB reserved pages", 64 * MIB, None)]
    rates = host_copies("a cpu", "2026-01-01", "a test", rows).rates()
    node = replace(parse_hardware("h100x1").node, host_copies=rates)
    assert copy_rates(node, "4KB") == pytest.approx((9e9, 9e9))
    with pytest.raises(InputError, match="no such copy"):
        copy_rates(node, "2MB")
