"""Manifests that start servers: Kubernetes objects, Dynamo's graphs, files of Docker Compose, and Helm values."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from catalogs.errors import InputError
from catalogs.launch.images import RESOURCES, accelerator_of_product
from catalogs.launch.reading.blocks import count_under, list_under, mapping_under, mappings_under
from catalogs.launch.reading.custom_resources import PodGroup, pod_groups
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
    objects = [item for d in objects for item in (mappings_under(d, "items") if d.get("kind") == "List" else [d])]
    files: dict[str, str] = {}
    maps: dict[str, dict[str, str]] = {}
    for found in objects:
        if found.get("kind") == "ConfigMap":
            data = {str(name): str(text) for name, text in mapping_under(found, "data").items()}
            files |= data
            maps[str(mapping_under(found, "metadata").get("name", ""))] = data
    lines = [line for found in objects for line in _object(_with_config_maps(found, maps))]
    if not lines:
        kinds = ", ".join(dict.fromkeys(str(d.get("kind", "no kind and no services")) for d in objects)) or "nothing"
        rule = "a manifest must start vLLM, SGLang, TensorRT-LLM or llama.cpp in a pod, a graph or a service"
        raise InputError(rule, kinds, "a Deployment, a LeaderWorkerSet, a DynamoGraphDeployment or services")
    return [replace(line, files={**files, **line.files}) for line in lines]


def _with_config_maps(found: Any, maps: Mapping[str, Mapping[str, str]]) -> Any:
    """Return a part of a manifest in which the variables that ConfigMaps of the same file state have their values."""
    if isinstance(found, list):
        return [_with_config_maps(entry, maps) for entry in found]
    if not isinstance(found, dict):
        return found
    source = found.get("valueFrom")
    if isinstance(source, dict) and isinstance(source.get("configMapKeyRef"), dict):
        named = source["configMapKeyRef"]
        value = maps.get(str(named.get("name")), {}).get(str(named.get("key")))
        return found if value is None else {"name": found.get("name"), "value": value}
    whole = {key: _with_config_maps(value, maps) for key, value in found.items()}
    if found.get("envFrom"):
        names = [str(mapping_under(e, "configMapRef").get("name")) for e in mappings_under(found, "envFrom")]
        stated = [{"name": key, "value": value} for name in names for key, value in maps.get(name, {}).items()]
        whole["env"] = [*stated, *list_under(whole, "env")]
    return whole


def _object(found: dict[str, Any]) -> Iterator[LaunchLine]:
    for pods in pod_groups(found):
        yield from _group(pods)
    kind = str(found.get("kind", ""))
    name = str(mapping_under(found, "metadata").get("name", ""))
    if not kind and isinstance(found.get("services"), dict):
        services = found["services"]
        for service in services:
            yield from _service(str(service), mapping_under(services, service))
    elif kind == "DynamoGraphDeployment":
        yield from _graph(mapping_under(found, "spec"))
    elif kind == "LeaderWorkerSet":
        spec = mapping_under(found, "spec")
        group = mapping_under(spec, "leaderWorkerTemplate")
        template = mapping_under(group, "leaderTemplate") or mapping_under(group, "workerTemplate")
        nodes = count_under(group, "size")
        sets = {"LWS_GROUP_SIZE": str(nodes), "LWS_WORKER_INDEX": "0", "LWS_LEADER_ADDRESS": f"{name}-0"}
        for line in _pod(mapping_under(template, "spec"), name, sets):
            yield replace(line, replicas=count_under(spec, "replicas"), nodes=nodes)
    elif kind == "Pod":
        yield from _pod(mapping_under(found, "spec"), name)
    elif kind in _WITH_TEMPLATE:
        spec = mapping_under(found, "spec")
        for line in _pod(mapping_under(mapping_under(spec, "template"), "spec"), name):
            yield replace(line, replicas=count_under(spec, "replicas"))


def _graph(spec: dict[str, Any]) -> Iterator[LaunchLine]:
    """Yield the workers of a graph: `services` by name, or the list `components` of newer versions."""
    named = mapping_under(spec, "services")
    services = [(str(name), mapping_under(named, name)) for name in named]
    services += [(str(block.get("name", "")), block) for block in mappings_under(spec, "components")]
    for name, block in services:
        extra = mapping_under(block, "extraPodSpec")
        pod = dict(mapping_under(mapping_under(block, "podTemplate"), "spec") or extra)
        main = mapping_under(extra, "mainContainer")
        if main:
            resources = mapping_under(block, "resources")
            limits = mapping_under(resources, "limits") or mapping_under(resources, "requests")
            own = {**main, "resources": {"limits": limits}, "name": name}
            own["env"] = [*mappings_under(block, "envs"), *mappings_under(main, "env")]
            pod["containers"] = [own]
        kind = str(block.get("subComponentType") or block.get("type") or "")
        nodes, replicas = count_under(mapping_under(block, "multinode"), "nodeCount"), count_under(block, "replicas")
        for line in _pod(pod, name):
            role = kind if kind in _ROLES else _role_of_name(name)
            yield replace(line, name=name, replicas=replicas, nodes=nodes, role=role)


def _group(group: PodGroup) -> Iterator[LaunchLine]:
    """Yield the servers of equal pods."""
    for line in _pod(group.pod, group.name):
        yield replace(line, name=group.name, replicas=group.replicas, nodes=group.nodes, role=group.role or line.role)


def _role_of_name(name: str) -> str:
    return next((role for role in _ROLES if role in name.lower()), "")


def _pod(pod: dict[str, Any], name: str, sets: Mapping[str, str] | None = None) -> Iterator[LaunchLine]:
    """Yield the servers of a pod, whose controller sets the variables `sets`.

    An init container that is always restarted runs beside the others.
    """
    label = _accelerator(pod)
    beside = [c for c in mappings_under(pod, "initContainers") if c.get("restartPolicy") == "Always"]
    for container in [*mappings_under(pod, "containers"), *beside]:
        resources = mapping_under(container, "resources")
        limits = mapping_under(resources, "requests") | mapping_under(resources, "limits")
        counts = [count_under(limits, key) for key in limits if key in _RESOURCES or "/mig-" in str(key)]
        slices = [str(key).rpartition("/mig-")[2] for key in limits if "/mig-" in str(key)]
        variables = [e for e in mappings_under(container, "env") if e.get("value") is not None]
        environment = {**(sets or {}), **{str(e.get("name")): str(e["value"]) for e in variables}}
        words = [str(word) for key in ("command", "args") for word in list_under(container, key)]
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
    labels: dict[str, str] = {str(k): str(v) for k, v in mapping_under(pod, "nodeSelector").items()}
    affinity = mapping_under(mapping_under(pod, "affinity"), "nodeAffinity")
    for term in mappings_under(
        mapping_under(affinity, "requiredDuringSchedulingIgnoredDuringExecution"), "nodeSelectorTerms"
    ):
        for match in mappings_under(term, "matchExpressions"):
            values = list_under(match, "values")
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
    deploy = mapping_under(block, "deploy")
    gpus: int | None = None
    for device in mappings_under(mapping_under(mapping_under(deploy, "resources"), "reservations"), "devices"):
        if "gpu" in list_under(device, "capabilities"):
            ids, count = list_under(device, "device_ids"), str(device.get("count"))
            gpus = len(ids) if ids else int(count) if count.isdecimal() else None
    for line in _container(words, environment, str(block.get("image") or "")):
        replicas = count_under(deploy, "replicas") if "replicas" in deploy else count_under(block, "scale")
        yield replace(line, name=name, gpus=gpus if gpus is not None else line.gpus, replicas=replicas)


def _environment(block: dict[str, Any]) -> dict[str, str]:
    """Return the variables of a service of Compose, which are a mapping or a list of NAME=VALUE.

    Raises:
        InputError: They are something else.
    """
    given = block.get("environment")
    if isinstance(given, dict):
        return {str(name): str(value) for name, value in given.items() if value is not None}
    return {name: value for name, _, value in (str(e).partition("=") for e in list_under(block, "environment"))}


def _words(value: Any) -> list[str]:
    if value is None:
        return []
    if isinstance(value, list):
        return [str(word) for word in value]
    commands = read_script(str(value)).commands
    return list(commands[0].words) if len(commands) == 1 else ["sh", "-c", str(value)]
