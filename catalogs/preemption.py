"""What an engine does with a request whose blocks it needs: compute it again later, or keep them in host memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from catalogs.errors import InputError
from catalogs.kv_offload import check_host_memory
from catalogs.units import GIB

if TYPE_CHECKING:
    from catalogs.deployment import Deployment, Layout
    from catalogs.hardware import Hardware

#: vLLM V0's `--swap-space`, of each accelerator.
SWAP_SPACE_GIB: Final = 4.0


def swap_bytes_of(deployment: Deployment, hardware: Hardware, replicas: int, layout: Layout) -> float:
    """Swap space of each accelerator; 0 where preempted requests are computed again. InputError where the host has not
    so much."""
    if deployment.preemption != "swap":
        if deployment.swap_space_gib is not None:
            raise InputError("swap_space_gib goes with preemption: swap", deployment.swap_space_gib, "preemption: swap")
        return 0.0
    gib = SWAP_SPACE_GIB if deployment.swap_space_gib is None else deployment.swap_space_gib
    if not gib:
        raise InputError("preemption by swap needs swap space", "swap_space_gib: 0", f"{SWAP_SPACE_GIB:g}")
    check_host_memory("swap_space_gib x accelerators", gib * layout.accelerators, hardware, replicas)
    return gib * GIB
