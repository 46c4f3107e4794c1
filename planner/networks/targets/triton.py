"""The model configuration that serves a plan of a network with Triton.

Source: Triton's model configuration (docs.nvidia.com/deeplearning/triton-inference-server, "Model Configuration" and
"Batchers").
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from catalogs.errors import InputError
from catalogs.hardware.catalog import parse_hardware
from catalogs.launch.images import ContainerDevice
from planner.networks.schema import JobBlock, NetworkPlan

#: What Triton's model configuration needs and a network file does not hold.
_MISSING: Final = "# add `backend` (or `platform`), `input` and `output` of your exported model"


def triton_files(job: JobBlock, plan: NetworkPlan) -> dict[str, str]:
    """Return the model configuration: the instances of the plan on each of its GPUs, or on the CPU.

    Raises:
        InputError: Triton has no instances for this kind of accelerator.
    """
    keys = plan.deployment
    name = re.sub(r"[^A-Za-z0-9_-]+", "-", job.network)
    lines = [f'name: "{name}"', _MISSING, f"max_batch_size: {keys['max_batch']}"]
    lines += ["instance_group [", f"  {{ count: {keys['instances']}, {_kind(keys)} }}", "]"]
    if keys["max_batch"] > 1:
        delay_us = round(1e6 * keys["queue_delay_s"])
        sizes = ", ".join(map(str, keys["preferred_batches"]))
        lines.append("dynamic_batching {")
        lines += [f"  preferred_batch_size: [ {sizes} ]"] if sizes else []
        lines += [f"  max_queue_delay_microseconds: {delay_us}"] if delay_us else []
        lines.append("}")
    return {f"model_repository/{name}/config.pbtxt": "\n".join([*lines, ""])}


def _kind(keys: Mapping[str, Any]) -> str:
    """Return the kind and the devices of a group of instances."""
    unit = parse_hardware(str(keys["hardware"])).accelerator
    maker = ContainerDevice.of(unit).maker
    if maker == "cpu":
        return "kind: KIND_CPU"
    if maker not in ("nvidia", "amd"):
        raise InputError(
            "Triton has instances for CPUs and for GPUs of NVIDIA and AMD", unit.full_name, "--hw l4, h100"
        )
    gpus = ", ".join(str(i) for i in range(keys["replicas"]))
    return f"kind: KIND_GPU, gpus: [ {gpus} ]"


def notes(_: NetworkPlan) -> list[str]:
    """Return what the files do not contain."""
    return ["config.pbtxt has the batcher and the instances; the inputs of your exported model are yours to add"]
