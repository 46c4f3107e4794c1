"""Measured rates of copies between host memory and an accelerator by page size, in a file of the user's data folder.

`calibrate run` writes it, and the hardware `local` reads it. Swap space and KV offload copy at these rates. Engines
queue many copies, so a rate is that of the largest copy that was measured, not that of one small copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final, Literal

from pydantic import PositiveFloat

from catalogs.errors import InputError
from catalogs.hardware.measured import MeasuredFacts
from catalogs.hardware.specs import Hardware, HostCopyRate, Node
from catalogs.io.yaml_files import YamlBlock
from catalogs.units import GIGA

PageSize = Literal["4KB", "2MB", "1GB"]

#: Page sizes of host memory, the usual one first.
PAGE_SIZES: Final[tuple[PageSize, ...]] = ("4KB", "2MB", "1GB")


class HostCopy(YamlBlock):
    """One rate; null where it was not measured, with the reason."""

    pages: PageSize
    direction: Literal["to_device", "to_host"]
    gb_per_s: PositiveFloat | None = None
    reason: str = ""


class HostCopies(MeasuredFacts):
    """The rates of one machine, measured with its accelerator."""

    FILE = "host_copies.yaml"
    WHAT = "copies"

    copies: list[HostCopy]

    def rates(self) -> tuple[HostCopyRate, ...]:
        """Return the rates in bytes per second."""
        return tuple(
            HostCopyRate(c.pages, c.direction == "to_device", c.gb_per_s and c.gb_per_s * GIGA, c.reason)
            for c in self.copies
        )


def with_host_copies(hardware: Hardware) -> Hardware:
    """Return the hardware of this machine with the rates that were measured on it, if there are any.

    Raises:
        InputError: The file is damaged.
    """
    found = HostCopies.find(hardware.accelerator.full_name)
    if found is None:
        return hardware
    rates = found.rates()
    usual = [rate.bytes_per_s for rate in rates if rate.pages == PAGE_SIZES[0] and rate.bytes_per_s]
    node = replace(
        hardware.node, host_copies=rates, host_bytes_per_s=min(usual, default=hardware.node.host_bytes_per_s)
    )
    return replace(hardware, node=node)


def copy_rates(node: Node, pages: str | None) -> tuple[float, float]:
    """Return the bytes per second of copies from the accelerator to host memory, and back.

    Args:
        node: The node.
        pages: Page size of the host memory; None: the usual one, or the rate of the link where nothing was measured.

    Raises:
        InputError: Copies with this page size were not measured.
    """
    found = [_rate(node.host_copies, pages or PAGE_SIZES[0], to_device) for to_device in (False, True)]
    rates = [rate.bytes_per_s if rate is not None and rate.bytes_per_s else None for rate in found]
    if pages is not None and None in rates:
        reason = next((rate.reason for rate in found if rate is not None and rate.reason), "hardware: local only")
        measured = [p for p in PAGE_SIZES if all(_measured(node.host_copies, p, way) for way in (False, True))]
        rule = f"copies with pages of {pages} were not measured on this hardware ({reason})"
        raise InputError(rule, pages, ", ".join(measured) or "null", hint="calibrate run measures them on this machine")
    to_host, to_device = (node.host_bytes_per_s if rate is None else rate for rate in rates)
    return to_host, to_device


def _rate(rates: Sequence[HostCopyRate], pages: str, to_device: bool) -> HostCopyRate | None:
    return next((r for r in rates if (r.pages, r.to_device) == (pages, to_device)), None)


def _measured(rates: Sequence[HostCopyRate], pages: str, to_device: bool) -> bool:
    found = _rate(rates, pages, to_device)
    return found is not None and found.bytes_per_s is not None
