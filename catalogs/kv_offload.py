"""A second place for KV blocks: host memory, and a disk behind it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pydantic import BaseModel, ConfigDict, NonNegativeFloat, PositiveFloat

from catalogs.errors import InputError
from catalogs.units import GIB

if TYPE_CHECKING:
    from catalogs.deployment import Deployment
    from catalogs.hardware import Hardware

#: Of one data-centre NVMe drive, reading: PCIe 4 x4 drives list 6.5 to 7 GB/s. Nothing says which disk a node has.
DISK_BYTES_PER_S: Final = 6.5e9


class KvOffload(BaseModel):
    """`kv_offload` of deployment.yaml. Sizes are of one replica, as `--kv-offloading-size`; null rates: the node's."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    host_gib: PositiveFloat
    disk_gib: NonNegativeFloat = 0.0
    host_gib_per_s: PositiveFloat | None = None  # of each accelerator, one direction
    disk_gib_per_s: PositiveFloat | None = None  # of the replica, one direction


@dataclass(frozen=True, slots=True)
class OffloadTiers:
    """The same, every rate known. Bytes and bytes per second."""

    host_bytes: float
    disk_bytes: float
    host_bytes_per_s: float  # of each accelerator, one direction
    disk_bytes_per_s: float  # of the replica, one direction

    @property
    def as_written(self) -> dict[str, float]:
        """In the keys of deployment.yaml."""
        return {
            "host_gib": self.host_bytes / GIB,
            "disk_gib": self.disk_bytes / GIB,
            "host_gib_per_s": self.host_bytes_per_s / GIB,
            "disk_gib_per_s": self.disk_bytes_per_s / GIB,
        }


def tiers_of(deployment: Deployment, hardware: Hardware, replicas: int) -> OffloadTiers | None:
    """What a deployment asks for. InputError where hardware or host memory cannot have it."""
    asked = deployment.kv_offload
    if asked is None:
        return None
    if deployment.prefix_caching is False:
        raise InputError("KV offload finds blocks by their prefix", "prefix_caching: false", "prefix_caching: null")
    if hardware.accelerator.kind != "gpu":
        raise InputError("KV offload moves blocks from a GPU to its host", hardware.text, "kv_offload: null")
    check_host_memory("kv_offload.host_gib", asked.host_gib, hardware, replicas)
    rate = asked.host_gib_per_s
    return OffloadTiers(
        asked.host_gib * GIB,
        asked.disk_gib * GIB,
        hardware.node.host_bytes_per_s if rate is None else rate * GIB,
        DISK_BYTES_PER_S if asked.disk_gib_per_s is None else asked.disk_gib_per_s * GIB,
    )


def check_host_memory(key: str, gib: float, hardware: Hardware, replicas: int) -> None:
    """InputError where all replicas together ask for more than their hosts have, where that is known."""
    known = hardware.node.host_memory_bytes
    if known is None:
        return
    most = known * hardware.n_nodes / replicas / GIB
    if gib > most:
        raise InputError(
            f"{key} of {replicas} replica(s) is beyond the {known / GIB:.0f} GiB of host memory of each node",
            gib,
            f"{most:.0f}",
        )
