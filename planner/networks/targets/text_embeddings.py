"""The files that serve an embedding or reranking plan with text-embeddings-inference: a script, and Kubernetes.

Sources: the options of `text-embeddings-router` and the table of images in the README and the documentation of
huggingface/text-embeddings-inference 1.9. One server runs on each accelerator. It forms batches by tokens: it takes
waiting requests in order until `--max-batch-tokens` or `--max-batch-requests`, and never waits for more.
"""

from __future__ import annotations

import re
import shlex
from typing import Any, Final

from catalogs.errors import InputError
from catalogs.hardware.catalog import parse_hardware
from catalogs.hardware.specs import Accelerator
from catalogs.launch.images import ContainerDevice
from catalogs.networks.names import load_names
from planner.deploy.files import bash_script, to_yaml
from planner.deploy.targets.pods import deployment, service
from planner.networks.job import TEXT_FAMILIES
from planner.networks.schema import JobBlock, NetworkPlan

_REPOSITORY: Final = "ghcr.io/huggingface/text-embeddings-inference"

_VERSION: Final = "1.9"

#: The prefix of the image's tag by architecture.
_PREFIXES: Final = {"turing": "turing-", "ada": "89-", "hopper": "hopper-"}

#: Accelerators whose image is not that of their architecture's other members; None on Arm hosts, which have no image.
_OWN_PREFIXES: Final[dict[str, str | None]] = {
    "a100": "",
    "a30": "",
    "b200": "100-",
    "b300": "100-",
    "gb200": None,
    "dgx": None,
}

_AMPERE: Final = "86-"

_BLACKWELL: Final = "120-"

#: The number formats that it computes in, by those of a plan.
_DTYPES: Final = {"bf16": "float16", "fp16": "float16", "fp32": "float32", "tf32": "float32"}

#: Port of the first server of a script, and of the service.
_PORT: Final = 8080

#: Port of the server in a pod.
_POD_PORT: Final = 80

Json = dict[str, Any]


def text_embedding_files(job: JobBlock, plan: NetworkPlan) -> dict[str, str]:
    """Return the script for one machine and the objects for Kubernetes.

    Raises:
        InputError: The network is no embedding or reranking network, or the plan has what the server lacks.
    """
    keys, unit = plan.deployment, parse_hardware(str(plan.deployment["hardware"])).accelerator
    _check(job, keys)
    options, image = server_options(job, keys), image_of(unit)
    return {
        "serve.sh": bash_script(_servers(keys["replicas"], image, options, unit), "One server for each replica."),
        "kubernetes.yaml": to_yaml(*_objects(job.network, keys["replicas"], image, options, unit)),
    }


def server_options(job: JobBlock, keys: Json) -> list[str]:
    """Return the options of one server: as many tokens and requests in a batch as the plan has."""
    tokens = job.sizes.get("tokens", 512)
    model = load_names().hf_id(job.network) or job.network
    found = {
        "--model-id": model,
        "--dtype": _DTYPES[keys["precision"]],
        "--max-batch-tokens": keys["max_batch"] * tokens,
        "--max-batch-requests": keys["max_batch"],
    }
    return [text for option, value in found.items() for text in (option, str(value))]


def image_of(unit: Accelerator) -> str:
    """Return the image for an accelerator.

    Raises:
        InputError: The project publishes no image for it.
    """
    if unit.kind == "cpu":
        return f"{_REPOSITORY}:cpu-{_VERSION}"
    chip = unit.name.partition(":")[0].split("-")[0]
    prefixes = {**_PREFIXES, "ampere": _AMPERE, "blackwell": _BLACKWELL}
    prefix = _OWN_PREFIXES.get(chip, prefixes.get(unit.architecture))
    if prefix is None:
        raise InputError("text-embeddings-inference has no image for this accelerator", unit.full_name, "l4, h100")
    return f"{_REPOSITORY}:{prefix}{_VERSION}"


def notes(plan: NetworkPlan) -> list[str]:
    """Return what differs from the plan, one sentence each."""
    keys, found = plan.deployment, []
    if keys["precision"] == "bf16":
        found.append("the server has no bf16: it computes in float16, at the same rates of the tensor cores")
    if keys["queue_delay_s"]:
        delay = f"{1e3 * keys['queue_delay_s']:g} ms"
        found.append(
            f"the server starts a batch at once: the plan's queueing delay of {delay} has no counterpart, and "
            "batches are smaller at low loads"
        )
    found.append(
        f"the plan was sized with the batches of {keys['engine']} and the kernels of torch; those of the server are "
        "not simulated"
    )
    return found


def _check(job: JobBlock, keys: Json) -> None:
    if job.family not in TEXT_FAMILIES:
        rule = f"text-embeddings-inference serves networks of {' and '.join(TEXT_FAMILIES)}"
        raise InputError(rule, job.family, "--target triton")
    if keys["precision"] not in _DTYPES:
        rule = f"text-embeddings-inference computes in {', '.join(sorted(set(_DTYPES.values())))}"
        raise InputError(rule, keys["precision"], "--precisions bf16")
    if keys["instances"] > 1:
        rule = "text-embeddings-inference runs one instance on an accelerator"
        raise InputError(rule, keys["instances"], "plan --set max_instances=1")


def _servers(replicas: int, image: str, options: list[str], unit: Accelerator) -> list[str]:
    lines = []
    for i in range(replicas):
        run = ["docker", "run", "--detach", "--rm", "--publish", f"{_PORT + i}:{_POD_PORT}"]
        run += [] if unit.kind == "cpu" else ["--gpus", f'"device={i}"']
        mount = '-v "$HOME/.cache/huggingface:/data" -e HF_TOKEN'
        lines.append(f"{shlex.join(run)} {mount} {image} \\\n  {shlex.join(options)}")
    last = _PORT + replicas - 1
    lines.append(f"# balance the requests over the ports {_PORT} to {last}" if replicas > 1 else f"# port {_PORT}")
    return lines


def _objects(network: str, replicas: int, image: str, options: list[str], unit: Accelerator) -> list[Json]:
    """Return a Deployment of one pod for each replica, and the Service in front of them."""
    name = re.sub(r"[^a-z0-9]+", "-", network.lower()).strip("-")[:40].strip("-")
    device, labels = ContainerDevice.of(unit), {"app": name}
    get = {"path": "/health", "port": _POD_PORT}
    token = {"secretKeyRef": {"name": "hf-token", "key": "HF_TOKEN", "optional": True}}
    container: Json = {
        "name": "server",
        "image": image,
        "args": options,
        "env": [{"name": "HF_TOKEN", "valueFrom": token}],
        "ports": [{"name": "http", "containerPort": _POD_PORT}],
        "startupProbe": {"httpGet": get, "periodSeconds": 10, "failureThreshold": 60},
        "readinessProbe": {"httpGet": get, "periodSeconds": 5},
        "livenessProbe": {"httpGet": get, "periodSeconds": 30, "failureThreshold": 5},
        "volumeMounts": [{"name": "weights", "mountPath": "/data"}],
    }
    if device.resource:
        container["resources"] = {"limits": {device.resource: "1"}}
    pod: Json = {"containers": [container], "volumes": [{"name": "weights", "emptyDir": {}}]}
    if device.product:
        pod["nodeSelector"] = {"nvidia.com/gpu.product": device.product}
    if device.resource:
        pod["tolerations"] = [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]
    return [deployment(name, labels, replicas, pod), service(name, labels, _POD_PORT, _POD_PORT)]
