"""Manifests that start servers: Kubernetes objects, Dynamo's graphs, and files of Docker Compose."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from catalogs.errors import InputError
from catalogs.launch.images import RESOURCES, accelerator_of_product
from catalogs.launch.reading.lines import LaunchLine, server_of, started_by
from catalogs.launch.reading.shell import read_script

#: Names of resources that count accelerators: those of device plug-ins, and "gpu" of Dynamo's graphs.
_RESOURCES: Final = (*RESOURCES.values(), "gpu.intel.com/i915", "gpu")

#: Labels of nodes that name the accelerator.
_PRODUCT_LABELS: Final = (
    "nvidia.com/gpu.product",
    "cloud.google.com/gke-accelerator",
    "amd.com/gpu.product-name",
    "gpu.nvidia.com/model",
    "gpu.nvidia.com/class",
    "karpenter.k8s.aws/instance-gpu-name",
)

#: Kinds of objects that hold pods, with the path to the pod's template.
_POD_PATHS: Final[Mapping[str, tuple[str, ...]]] = {
    "Pod": (),
    "Deployment": ("template",),
    "StatefulSet": ("template",),
    "ReplicaSet": ("template",),
    "DaemonSet": ("template",),
    "Job": ("template",),
}

_ROLES: Final = {"prefill": "prefill", "decode": "decode"}


def manifest_lines(documents: list[Any]) -> list[LaunchLine]:
    """Return the commands that start servers in the documents of one file.

    Raises:
        InputError: No object of the file starts a server that is known.
    """
    objects = [d for d in documents if isinstance(d, dict)]
    objects = [item for d in objects for item in (d.get("items", []) if d.get("kind") == "List" else [d])]
    files: dict[str, str] = {}
    for found in objects:
        if found.get("kind") == "ConfigMap":
            files |= {str(name): str(text) for name, text in (found.get("data") or {}).items()}
    lines = [line for found in objects for line in _object(found)]
    if not lines:
        kinds = ", ".join(dict.fromkeys(str(d.get("kind", "a file of Compose")) for d in objects)) or "nothing"
        rule = "a manifest must start vLLM, SGLang, TensorRT-LLM or llama.cpp in a pod, a graph or a service"
        raise InputError(rule, kinds, "a Deployment, a LeaderWorkerSet, a DynamoGraphDeployment or services")
    return [replace(line, files={**files, **line.files}) for line in lines]


def _object(found: dict[str, Any]) -> Iterator[LaunchLine]:
    kind, spec = str(found.get("kind", "")), found.get("spec") or {}
    name = str((found.get("metadata") or {}).get("name", ""))
    if not kind and isinstance(found.get("services"), dict):
        for service, block in found["services"].items():
            yield from _service(str(service), block or {})
    elif kind == "DynamoGraphDeployment":
        yield from _graph(spec)
    elif kind == "LeaderWorkerSet":
        group = spec.get("leaderWorkerTemplate") or {}
        template = group.get("leaderTemplate") or group.get("workerTemplate") or {}
        for line in _pod(template.get("spec") or {}, name):
            yield replace(line, replicas=int(spec.get("replicas", 1)), nodes=int(group.get("size", 1)))
    elif kind in _POD_PATHS:
        pod: Any = found
        for part in ("spec", *_POD_PATHS[kind]):
            pod = pod.get(part) or {}
        pod = pod.get("spec") or {} if _POD_PATHS[kind] else pod
        for line in _pod(pod, name):
            yield replace(line, replicas=int(spec.get("replicas", 1)) if _POD_PATHS[kind] else 1)


def _graph(spec: dict[str, Any]) -> Iterator[LaunchLine]:
    """Yield the workers of a graph: `services` by name, or the list `components` of newer versions."""
    services = [(str(name), block or {}) for name, block in (spec.get("services") or {}).items()]
    services += [(str(block.get("name", "")), block) for block in spec.get("components") or []]
    for name, block in services:
        template = block.get("podTemplate") or {}
        extra = block.get("extraPodSpec") or {}
        pod = dict(template.get("spec") or extra)
        main = extra.get("mainContainer")
        if isinstance(main, dict):
            limits = (block.get("resources") or {}).get("limits") or (block.get("resources") or {}).get("requests")
            own = {**main, "resources": {"limits": limits or {}}, "name": name}
            own["env"] = [*(block.get("envs") or []), *(main.get("env") or [])]
            pod["containers"] = [own]
        kind = str(block.get("subComponentType") or block.get("type") or "")
        nodes = int((block.get("multinode") or {}).get("nodeCount", 1))
        for line in _pod(pod, name):
            role = _ROLES.get(kind, "") or _role_of_name(name)
            yield replace(line, name=name, replicas=int(block.get("replicas", 1)), nodes=nodes, role=role)


def _role_of_name(name: str) -> str:
    return next((role for role in _ROLES if role in name.lower()), "")


def _pod(pod: dict[str, Any], name: str) -> Iterator[LaunchLine]:
    """Yield the servers of a pod."""
    label = _accelerator(pod)
    for container in pod.get("containers") or []:
        resources = container.get("resources") or {}
        limits = (resources.get("requests") or {}) | (resources.get("limits") or {})
        counts = [int(value) for key, value in limits.items() if key in _RESOURCES or "/mig-" in str(key)]
        slices = [str(key).rpartition("/mig-")[2] for key in limits if "/mig-" in str(key)]
        environment = {
            str(e["name"]): str(e["value"]) for e in container.get("env") or [] if e.get("value") is not None
        }
        words = [str(word) for word in (*(container.get("command") or []), *(container.get("args") or []))]
        for line in _container(words, environment, str(container.get("image") or "")):
            role = line.role or _role_of_name(name)
            yield replace(
                line,
                name=str(container.get("name") or name),
                gpus=sum(counts) if counts else line.gpus,
                accelerator=f"{label}:{slices[0]}" if label and slices else label,
                role=role if role and ("disagg" in " ".join(words) or "kv_role" in " ".join(words)) else "",
            )


def _container(words: list[str], environment: Mapping[str, str], image: str) -> Iterator[LaunchLine]:
    """Yield the servers of a container; $(NAME) stands for a variable, and the image may start the server itself."""
    expanded = [re.sub(r"\$\((\w+)\)", lambda m: environment.get(m[1], m[0]), word) for word in words]
    found = started_by(expanded, environment, image)
    if not found and len(expanded) == 1 and " " in expanded[0]:  # a whole command line in one word
        for command in read_script(expanded[0], environment).commands:
            found += started_by(command.words, {**environment, **command.environment}, image)
    if not found and server_of(image) and not expanded:
        found = started_by(("--model", environment.get("MODEL", "")), environment, image)
    yield from (replace(line, image=image or line.image) for line in found)


def _accelerator(pod: dict[str, Any]) -> str:
    """Return the accelerator that a pod's node selector or affinity names, or ""."""
    labels: dict[str, str] = {str(k): str(v) for k, v in (pod.get("nodeSelector") or {}).items()}
    affinity = ((pod.get("affinity") or {}).get("nodeAffinity") or {}).get(
        "requiredDuringSchedulingIgnoredDuringExecution"
    ) or {}
    for term in affinity.get("nodeSelectorTerms") or []:
        for match in term.get("matchExpressions") or []:
            if match.get("operator") == "In" and match.get("values"):
                labels.setdefault(str(match.get("key")), str(match["values"][0]))
    for label in _PRODUCT_LABELS:
        if label in labels:
            return accelerator_of_product(labels[label])
    return ""


def _service(name: str, block: dict[str, Any]) -> Iterator[LaunchLine]:
    """Yield the servers of a service of Compose."""
    given = block.get("environment") or {}
    pairs = given.items() if isinstance(given, dict) else (str(e).partition("=")[::2] for e in given)
    environment = {str(key): str(value) for key, value in pairs if value is not None}
    words = [*_words(block.get("entrypoint")), *_words(block.get("command"))]
    deploy = block.get("deploy") or {}
    reserved = ((deploy.get("resources") or {}).get("reservations") or {}).get("devices") or []
    gpus: int | None = None
    for device in reserved:
        if "gpu" in (device.get("capabilities") or []):
            ids, count = device.get("device_ids"), device.get("count")
            gpus = len(ids) if ids else int(count) if str(count).isdigit() else None
    for line in _container(words, environment, str(block.get("image") or "")):
        replicas = int(deploy.get("replicas") or block.get("scale") or 1)
        yield replace(line, name=name, gpus=gpus if gpus is not None else line.gpus, replicas=replicas)


def _words(value: Any) -> list[str]:
    if value is None:
        return []
    if isinstance(value, list):
        return [str(word) for word in value]
    commands = read_script(str(value)).commands
    return list(commands[0].words) if len(commands) == 1 else ["sh", "-c", str(value)]
