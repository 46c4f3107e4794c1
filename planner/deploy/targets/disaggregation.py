"""Prefill and decode servers on Kubernetes: what their pods need, and the engine's router in front of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from catalogs.launch.images import ENGINE_ROUTER
from planner.deploy.files import DeploymentFiles, to_yaml
from planner.deploy.local_servers import BOOTSTRAP, HANDSHAKE, ServerAddress, router_package, router_words
from planner.deploy.serving import PORT, Serving
from planner.deploy.targets import autoscaling, pods
from planner.deploy.targets.compose import ROUTER_CONTAINER_PORT
from planner.deploy.targets.pods import Json

NETWORK: Final = (
    "KV blocks go from pod to pod over the network; the plan assumes both pods on one node. Give the pods the RDMA "
    "devices of the cluster; otherwise NIXL uses TCP, and TTFT is higher than predicted"
)


def names(pools: Sequence[Serving]) -> list[str]:
    """Return the name of the object that holds the replicas of each kind."""
    return [s.name if len(pools) == 1 else f"{s.name}-{s.resolved.role}" for s in pools]


def connected(s: Serving, pod: Json) -> Json:
    """Return the pod with the address at which the other servers reach its KV blocks."""
    (container,) = pod["containers"]
    if s.family == "vllm":
        host = {"name": "VLLM_NIXL_SIDE_CHANNEL_HOST", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
        container["env"].append(host)
        container["ports"].append({"name": "nixl", "containerPort": HANDSHAKE})
    elif s.resolved.role == "prefill":
        container["ports"].append({"name": "bootstrap", "containerPort": BOOTSTRAP})
    return pod


def router(pools: Sequence[Serving], found: Sequence[str]) -> list[Json]:
    """Return the Deployment of the router and the service for clients, which has the name of the plan.

    `found` are the names of the objects that hold the replicas of each kind; their pods have stable addresses.
    """
    name = f"{pools[-1].name}-router"
    install = f"pip install --no-cache-dir {router_package(pools[-1].family)}"
    command = " ".join(router_words(list(_addresses(pools, found)), pools[-1].family, ROUTER_CONTAINER_PORT))
    container = {
        "name": "router",
        "image": ENGINE_ROUTER,
        "command": ["sh", "-c", f"{install} && exec {command}"],
        "ports": [{"name": "http", "containerPort": ROUTER_CONTAINER_PORT}],
        "readinessProbe": {"tcpSocket": {"port": ROUTER_CONTAINER_PORT}, "periodSeconds": 5},
    }
    deployed = pods.deployment(name, {"app": name}, 1, {"containers": [container]})
    return [deployed, pods.service(pools[-1].name, {"app": name}, 80, ROUTER_CONTAINER_PORT)]


def finished(
    pools: Sequence[Serving], files: dict[str, str], steps: list[str], notes: list[str], scaled: Sequence[Json]
) -> DeploymentFiles:
    """Return the files of one target, with what it needs for autoscaling and to reach prefill and decode servers.

    `scaled` are the objects that scale the replicas, if any.
    """
    s, disaggregated = pools[-1], len(pools) > 1
    if scaled:
        files[autoscaling.FILE] = to_yaml(*scaled)
        steps, notes = [*steps, autoscaling.STEP], [*notes, autoscaling.NOTE]
    notes += [NETWORK] if disaggregated else []
    tokens = s.family == "vllm" or not disaggregated  # sglang-router refuses prompts that are token ids
    return DeploymentFiles(files, [*steps, pods.forward_step(s.name)], notes, token_prompts=tokens)


def headless(name: str, labels: Json) -> Json:
    """Return the service that gives each pod of a StatefulSet an address of its own."""
    more = {"clusterIP": "None", "publishNotReadyAddresses": True}
    return pods.service(name, labels, PORT, PORT, more)


def _addresses(pools: Sequence[Serving], found: Sequence[str]) -> Iterator[ServerAddress]:
    """Yield the address of each server: its pod has the name of its object and a number."""
    for s, name in zip(pools, found, strict=True):
        for i in range(s.replicas):
            yield ServerAddress(f"http://{name}-{i}.{name}:{PORT}", s.resolved.role == "prefill", BOOTSTRAP)
