"""Which neighbour's calibration stands in for unmeasured hardware: the same utilisation, its own roofline."""

from __future__ import annotations

from typing import Final

from catalogs.hardware.specs import Accelerator

#: Hardware without tables -> measured neighbour of the same architecture. Nothing transfers across architectures.
NEIGHBOUR: Final[dict[str, str]] = {
    "a100-40gb": "a100-80gb",
    "a100-40gb-pcie": "a100-80gb",
    "a100-80gb-pcie": "a100-80gb",
    "h100-pcie": "h100",
    "h100-nvl": "h100",
    "h200-nvl": "h200",
    "b300": "b200",
    "gb200": "b200",
    "gb200-nvl72": "b200",
    "l40": "l40s",
    "rtxpro6000-workstation": "rtxpro6000",
}


def candidates(accelerator: Accelerator) -> list[tuple[str, str | None]]:
    """(bundle name, printed rule or None for its own), best first."""
    name, parent = accelerator.name, accelerator.name.split(":")[0]
    rule = "utilisation measured on {} applied to the roofline of " + accelerator.name
    found: list[tuple[str, str | None]] = [(name, None)]
    if parent != name:
        found.append((parent, f"transferred: {rule.format(parent)} (MIG slice)"))
    if parent in NEIGHBOUR:
        found.append((NEIGHBOUR[parent], f"transferred: {rule.format(NEIGHBOUR[parent])}"))
    return found
