"""What a container asks for to get the planned accelerators."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from catalogs.hardware import Accelerator

Maker = Literal["nvidia", "amd", "cpu"]

#: nvidia.com/gpu.product, as GPU feature discovery makes it of the driver's name (spaces become dashes).
_PRODUCTS: Final = {
    "a10": "NVIDIA-A10",
    "a10g": "NVIDIA-A10G",
    "a100-40gb": "NVIDIA-A100-SXM4-40GB",
    "a100-80gb": "NVIDIA-A100-SXM4-80GB",
    "b200": "NVIDIA-B200",
    "h100": "NVIDIA-H100-80GB-HBM3",
    "h100-nvl": "NVIDIA-H100-NVL",
    "h100-pcie": "NVIDIA-H100-PCIe",
    "h200": "NVIDIA-H200",
    "h200-nvl": "NVIDIA-H200-NVL",
    "l4": "NVIDIA-L4",
    "l40": "NVIDIA-L40",
    "l40s": "NVIDIA-L40S",
    "t4": "Tesla-T4",
}
#: accelerator_type of Ray (ray.util.accelerators), where it has a name for it.
_RAY: Final = {
    "a10g": "A10G",
    "a100-40gb": "A100-40G",
    "a100-80gb": "A100-80G",
    "b200": "B200",
    "h100": "H100",
    "h200": "H200",
    "l4": "L4",
    "l40s": "L40S",
    "t4": "T4",
    "mi300x": "AMD-Instinct-MI300X-OAM",
    "mi325x": "AMD-Instinct-MI325X-OAM",
}


@dataclass(frozen=True, slots=True)
class Device:
    """One kind of accelerator as schedulers of containers know it."""

    maker: Maker
    resource: str | None  # of Kubernetes; None on CPUs
    product: str | None  # a node's nvidia.com/gpu.product; None where no name is known
    ray_type: str | None

    @classmethod
    def of(cls, accelerator: Accelerator) -> Device:
        if accelerator.kind == "cpu":
            return cls("cpu", None, None, None)
        whole, _, part = accelerator.name.partition(":")
        if whole.startswith("mi"):
            return cls("amd", "amd.com/gpu", None, _RAY.get(whole))
        resource = f"nvidia.com/mig-{part}" if part else "nvidia.com/gpu"
        return cls("nvidia", resource, None if part else _PRODUCTS.get(whole), None if part else _RAY.get(whole))
