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

#: Kinds of objects whose `spec.template` is that of their pods.
_WITH_TEMPLATE: Final = ("Deployment", "StatefulSet", "ReplicaSet", "DaemonSet", "Job")

_ROLES: Final = ("prefill", "decode")


def manifest_lines(documents: list[Any]) -> list[LaunchLine]:
    """Return the commands that start servers in the documents of one file.

    Raises:
        InputError: No object of the file starts a server that is known, or a part of one has the wrong form.
    """
    objects = [d for d in documents if isinstance(d, dict)]
    objects = [item for d in objects for item in (_blocks(d, "items") if d.get("kind") == "List" else [d])]
    files: dict[str, str] = {}
    for found in objects:
        if found.get("kind") == "ConfigMap":
            files |= {str(name): str(text) for name, text in _block(found, "data").items()}
    lines = [line for found in objects for line in _object(found)]
    if not lines:
        kinds = ", ".join(dict.fromkeys(str(d.get("kind", "a file of Compose")) for d in objects)) or "nothing"
        rule = "a manifest must start vLLM, SGLang, TensorRT-LLM or llama.cpp in a pod, a graph or a service"
        raise InputError(rule, kinds, "a Deployment, a LeaderWorkerSet, a DynamoGraphDeployment or services")
    return [replace(line, files={**files, **line.files}) for line in lines]


def _object(found: dict[str, Any]) -> Iterator[LaunchLine]:
    kind = str(found.get("kind", ""))
    name = str(_block(found, "metadata").get("name", ""))
    if not kind and isinstance(found.get("services"), dict):
        services = found["services"]
        for service in services:
            yield from _service(str(service), _block(services, service))
    elif kind == "DynamoGraphDeployment":
        yield from _graph(_block(found, "spec"))
    elif kind == "LeaderWorkerSet":
        spec = _block(found, "spec")
        group = _block(spec, "leaderWorkerTemplate")
        template = _block(group, "leaderTemplate") or _block(group, "workerTemplate")
        for line in _pod(_block(template, "spec"), name):
            yield replace(line, replicas=_count(spec, "replicas"), nodes=_count(group, "size"))
    elif kind == "Pod":
        yield from _pod(_block(found, "spec"), name)
    elif kind in _WITH_TEMPLATE:
        spec = _block(found, "spec")
        for line in _pod(_block(_block(spec, "template"), "spec"), name):
            yield replace(line, replicas=_count(spec, "replicas"))


def _graph(spec: dict[str, Any]) -> Iterator[LaunchLine]:
    """Yield the workers of a graph: `services` by name, or the list `components` of newer versions."""
    named = _block(spec, "services")
    services = [(str(name), _block(named, name)) for name in named]
    services += [(str(block.get("name", "")), block) for block in _blocks(spec, "components")]
    for name, block in services:
        extra = _block(block, "extraPodSpec")
        pod = dict(_block(_block(block, "podTemplate"), "spec") or extra)
        main = _block(extra, "mainContainer")
        if main:
            resources = _block(block, "resources")
            limits = _block(resources, "limits") or _block(resources, "requests")
            own = {**main, "resources": {"limits": limits}, "name": name}
            own["env"] = [*_blocks(block, "envs"), *_blocks(main, "env")]
            pod["containers"] = [own]
        kind = str(block.get("subComponentType") or block.get("type") or "")
        nodes, replicas = _count(_block(block, "multinode"), "nodeCount"), _count(block, "replicas")
        for line in _pod(pod, name):
            role = kind if kind in _ROLES else _role_of_name(name)
            yield replace(line, name=name, replicas=replicas, nodes=nodes, role=role)


def _role_of_name(name: str) -> str:
    return next((role for role in _ROLES if role in name.lower()), "")


def _pod(pod: dict[str, Any], name: str) -> Iterator[LaunchLine]:
    """Yield the servers of a pod."""
    label = _accelerator(pod)
    for container in _blocks(pod, "containers"):
        resources = _block(container, "resources")
        limits = _block(resources, "requests") | _block(resources, "limits")
        counts = [_count(limits, key) for key in limits if key in _RESOURCES or "/mig-" in str(key)]
        slices = [str(key).rpartition("/mig-")[2] for key in limits if "/mig-" in str(key)]
        variables = [e for e in _blocks(container, "env") if e.get("value") is not None]
        environment = {str(e.get("name")): str(e["value"]) for e in variables}
        words = [str(word) for key in ("command", "args") for word in _list(container, key)]
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
    labels: dict[str, str] = {str(k): str(v) for k, v in _block(pod, "nodeSelector").items()}
    affinity = _block(_block(pod, "affinity"), "nodeAffinity")
    for term in _blocks(_block(affinity, "requiredDuringSchedulingIgnoredDuringExecution"), "nodeSelectorTerms"):
        for match in _blocks(term, "matchExpressions"):
            values = _list(match, "values")
            if match.get("operator") == "In" and values:
                labels.setdefault(str(match.get("key")), str(values[0]))
    for label in _PRODUCT_LABELS:
        if label in labels:
            return accelerator_of_product(labels[label])
    return ""


def _service(name: str, block: dict[str, Any]) -> Iterator[LaunchLine]:
    """Yield the servers of a service of Compose."""
    environment = _environment(block)
    words = [*_words(block.get("entrypoint")), *_words(block.get("command"))]
    deploy = _block(block, "deploy")
    gpus: int | None = None
    for device in _blocks(_block(_block(deploy, "resources"), "reservations"), "devices"):
        if "gpu" in _list(device, "capabilities"):
            ids, count = _list(device, "device_ids"), str(device.get("count"))
            gpus = len(ids) if ids else int(count) if count.isdecimal() else None
    for line in _container(words, environment, str(block.get("image") or "")):
        replicas = _count(deploy, "replicas") if "replicas" in deploy else _count(block, "scale")
        yield replace(line, name=name, gpus=gpus if gpus is not None else line.gpus, replicas=replicas)


def _environment(block: dict[str, Any]) -> dict[str, str]:
    """Return the variables of a service of Compose, which are a mapping or a list of NAME=VALUE.

    Raises:
        InputError: They are something else.
    """
    given = block.get("environment")
    if isinstance(given, dict):
        return {str(name): str(value) for name, value in given.items() if value is not None}
    return {name: value for name, _, value in (str(e).partition("=") for e in _list(block, "environment"))}


def _words(value: Any) -> list[str]:
    if value is None:
        return []
    if isinstance(value, list):
        return [str(word) for word in value]
    commands = read_script(str(value)).commands
    return list(commands[0].words) if len(commands) == 1 else ["sh", "-c", str(value)]


def _block(owner: Mapping[Any, Any], key: Any) -> dict[Any, Any]:
    """Return the mapping under a key; {} where it is missing or empty.

    Raises:
        InputError: The value is something else.
    """
    found = owner.get(key)
    if not found:
        return {}
    if not isinstance(found, dict):
        raise InputError(f"{key} of a manifest is a mapping", str(found), f"{key}: {{...}}")
    return found


def _list(owner: Mapping[Any, Any], key: str) -> list[Any]:
    """Return the list under a key; [] where it is missing or empty.

    Raises:
        InputError: The value is something else.
    """
    found = owner.get(key)
    if not found:
        return []
    if not isinstance(found, list):
        raise InputError(f"{key} of a manifest is a list", str(found), f"{key}: [...]")
    return found


def _blocks(owner: Mapping[Any, Any], key: str) -> list[dict[Any, Any]]:
    """Return the list of mappings under a key; [] where it is missing or empty.

    Raises:
        InputError: The value, or one of its entries, is something else.
    """
    found = _list(owner, key)
    wrong = next((entry for entry in found if not isinstance(entry, dict)), None)
    if wrong is not None:
        raise InputError(f"each entry of {key} in a manifest is a mapping", str(wrong), f"{key}: [{{...}}]")
    return found


def _count(owner: Mapping[Any, Any], key: Any) -> int:
    """Return the whole number under a key; 1 where it is missing.

    Raises:
        InputError: The value is something else.
    """
    found = owner.get(key)
    if found is None:
        return 1
    if isinstance(found, bool) or not str(found).isdecimal():
        raise InputError(f"{key} of a manifest is a whole number", str(found), "1")
    return int(found)
