"""Container images of engine versions, and the accelerator names of container schedulers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, cast

from catalogs.hardware.specs import Accelerator

Maker = Literal["nvidia", "amd", "intel", "google", "cpu"]

#: Values of nvidia.com/gpu.product, which GPU feature discovery derives from the driver's name (spaces become dashes),
#: and of Ray's accelerator_type (ray.util.accelerators); None where there is none.
_LABELS: Final[dict[str, tuple[str | None, str | None]]] = {
    "a10": ("NVIDIA-A10", None),
    "a10g": ("NVIDIA-A10G", "A10G"),
    "a100-40gb": ("NVIDIA-A100-SXM4-40GB", "A100-40G"),
    "a100-80gb": ("NVIDIA-A100-SXM4-80GB", "A100-80G"),
    "b200": ("NVIDIA-B200", "B200"),
    "b300": ("NVIDIA-B300-SXM6-AC", None),
    "gb200": ("NVIDIA-GB200", None),
    "gb300": ("NVIDIA-GB300", None),
    "h100": ("NVIDIA-H100-80GB-HBM3", "H100"),
    "h100-nvl": ("NVIDIA-H100-NVL", None),
    "h100-pcie": ("NVIDIA-H100-PCIe", None),
    "h200": ("NVIDIA-H200", "H200"),
    "h200-nvl": ("NVIDIA-H200-NVL", None),
    "l4": ("NVIDIA-L4", "L4"),
    "l40": ("NVIDIA-L40", None),
    "l40s": ("NVIDIA-L40S", "L40S"),
    "t4": ("Tesla-T4", "T4"),
    "mi300x": (None, "AMD-Instinct-MI300X-OAM"),
    "mi308x": (None, None),
    "mi325x": (None, "AMD-Instinct-MI325X-OAM"),
    "mi355x": (None, None),
}


#: Kubernetes resources by maker, or by accelerator where a maker has several kinds: the device plug-ins of NVIDIA, AMD,
#: Intel's GPUs (the xe driver) and Gaudi, and of TPUs in GKE.
RESOURCES: Final = {
    "nvidia": "nvidia.com/gpu",
    "amd": "amd.com/gpu",
    "intel": "gpu.intel.com/xe",
    "gaudi3": "habana.ai/gaudi",
    "google": "google.com/tpu",
}


@dataclass(frozen=True, slots=True)
class ContainerDevice:
    """The names of one kind of accelerator in container schedulers; None if no name is known."""

    maker: Maker
    resource: str | None  # Kubernetes resource; None on CPUs
    product: str | None  # value of a node's label nvidia.com/gpu.product
    ray_type: str | None

    @classmethod
    def of(cls, accelerator: Accelerator) -> ContainerDevice:
        """Return the names of an accelerator."""
        if accelerator.kind == "cpu":
            return cls("cpu", None, None, None)
        whole, _, part = accelerator.name.partition(":")
        if part:
            return cls("nvidia", f"nvidia.com/mig-{part}", None, None)
        resource = RESOURCES[accelerator.name if accelerator.name in RESOURCES else accelerator.maker]
        return cls(cast("Maker", accelerator.maker), resource, *_LABELS.get(whole, (None, None)))


#: Other names of accelerators in labels of nodes: GKE's accelerators, and short names of node providers.
_OTHER_LABELS: Final[dict[str, str]] = {
    "nvidia-tesla-t4": "t4",
    "nvidia-l4": "l4",
    "nvidia-tesla-a100": "a100-40gb",
    "nvidia-a100-80gb": "a100-80gb",
    "nvidia-h100-80gb": "h100",
    "nvidia-h100-mega-80gb": "h100",
    "nvidia-h200-141gb": "h200",
    "nvidia-b200": "b200",
    "nvidia-gb200": "gb200",
    "nvidia-gb300": "gb300",
    "nvidia-b300": "b300",
    "h100_nvlink_80gb": "h100",
    "a100_nvlink_80gb": "a100-80gb",
    "h100": "h100",
    "h200": "h200",
    "b200": "b200",
    "gb200": "gb200",
    "l40s": "l40s",
    "a10g": "a10g",
    "t4": "t4",
    "l4": "l4",
}


def accelerator_of_product(label: str) -> str:
    """Return the accelerator of the catalog that a label of a node names, or "" for an unknown label."""
    folded = label.lower().removesuffix("-shared")
    known = {product.lower(): name for name, (product, _) in _LABELS.items() if product is not None}
    return known.get(folded) or _OTHER_LABELS.get(folded, "")


#: Repositories with one tag per vLLM release (docs.vllm.ai, deployment with Docker).
_VLLM: Final[dict[Maker, str]] = {
    "nvidia": "vllm/vllm-openai",
    "amd": "vllm/vllm-openai-rocm",
    "cpu": "vllm/vllm-openai-cpu",
}

#: The last release of each SGLang version of the catalog (pypi.org/project/sglang).
_SGLANG: Final = {"0.5": "v0.5.23"}

_SGLANG_SUFFIX: Final[dict[Maker, str]] = {"nvidia": "", "amd": "-rocm", "cpu": "-xeon"}

#: llama.cpp builds every commit; its server images have moving tags (docs/docker.md).
_LLAMA: Final[dict[Maker, str]] = {"nvidia": "server-cuda", "amd": "server-rocm", "cpu": "server"}

#: Triton with its vLLM backend; the vLLM inside is the container's own.
TRITON: Final = "nvcr.io/nvidia/tritonserver:26.07-vllm-python-py3"

#: Sidecar of each llm-d decode server, which forwards prompts to the selected prefill server (llm-d/llm-d-router).
SIDECAR: Final = "ghcr.io/llm-d/llm-d-router-disagg-sidecar:v0.9.0"

#: The image in which the routers of prefill and decode servers, which are Python packages, are installed.
ENGINE_ROUTER: Final = "python:3.12-slim"

#: nginx as the round-robin router; `resolve` in upstreams needs 1.27.3.
ROUTER: Final = "nginx:1.28"


#: Makers whose accelerators an engine runs on as a build or plug-in of its own, without one image per release.
_OWN_BUILDS: Final[dict[Maker, str]] = {"intel": "for Intel accelerators", "google": "for TPUs"}


def image_of(family: str, version: str, maker: Maker) -> str:
    """Return the image that the project of an engine publishes for a version and a device maker, else a description."""
    if maker in _OWN_BUILDS and family != "transformers-static":
        return f"a build of {family} {version} {_OWN_BUILDS[maker]}"
    if family == "vllm":
        return f"{_VLLM[maker]}:v{version}" + (".0" if version.count(".") == 1 else "")
    if family == "sglang":
        return f"lmsysorg/sglang:{_SGLANG.get(version, 'v' + version)}{_SGLANG_SUFFIX[maker]}"
    if family == "transformers-static":
        return "a Python environment with this product and transformers"
    if family == "trtllm":
        return f"nvcr.io/nvidia/tensorrt-llm/release:{version}" + (".0" if version.count(".") == 1 else "")
    return f"ghcr.io/ggml-org/llama.cpp:{_LLAMA[maker]}"
