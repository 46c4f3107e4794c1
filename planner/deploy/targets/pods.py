"""Pods: what the Kubernetes targets have in common. Objects are plain dictionaries of the published schemas."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from planner.deploy.images import ROUTER
from planner.deploy.serving import PORT, Serving
from planner.deploy.targets.compose import nginx_config

TOKEN_SECRET: Final = "hf-token"

TOKEN_KEY: Final = "HF_TOKEN"

ROUTER_PORT: Final = 8080

_PRODUCT_LABEL: Final = "nvidia.com/gpu.product"

#: Weights may be downloaded first: a start is given up after so many seconds.
_START_S: Final = 3600

_PERIOD_S: Final = 10

Json = dict[str, Any]


def secret_step() -> str:
    """How the token gets there. It is optional in the pods: models that need none start without it."""
    return f"kubectl create secret generic {TOKEN_SECRET} --from-literal={TOKEN_KEY}=$HF_TOKEN   # for gated models"


def environment(s: Serving) -> list[Json]:
    token = {"secretKeyRef": {"name": TOKEN_SECRET, "key": TOKEN_KEY, "optional": True}}
    own = [{"name": name, "value": value} for name, value in s.arguments.environment.items()]
    return [{"name": TOKEN_KEY, "valueFrom": token}, *own]


def resources(s: Serving) -> Json:
    """Accelerators of one pod; they cannot be overcommitted, so requests equal limits."""
    if s.device.resource is None:
        return {}
    return {"limits": {s.device.resource: str(s.accelerators_per_pod)}}


def probes(s: Serving, port: int = PORT) -> Json:
    """Nothing is sent before the model is loaded; a replica that is merely busy is not restarted."""
    get = {"path": s.health, "port": port}
    return {
        "startupProbe": {"httpGet": get, "periodSeconds": _PERIOD_S, "failureThreshold": _START_S // _PERIOD_S},
        "readinessProbe": {"httpGet": get, "periodSeconds": 5, "timeoutSeconds": 5},
        "livenessProbe": {"httpGet": get, "periodSeconds": 30, "timeoutSeconds": 30, "failureThreshold": 5},
    }


def engine_container(s: Serving, command: Sequence[str], serves: bool = True, port: int = PORT) -> Json:
    """serves: whether it answers clients (workers of a replica that spans nodes do not)."""
    mounts = [{"name": "shm", "mountPath": "/dev/shm"}]
    folder = "/models" if s.family == "llama.cpp" else "/root/.cache/huggingface"
    mounts.append({"name": "weights", "mountPath": folder})
    found: Json = {"name": "engine", "image": s.image, "command": list(command), "env": environment(s)}
    if serves:
        found["ports"] = [{"name": "http", "containerPort": port}]
        found |= probes(s, port)
    return found | {"resources": resources(s), "volumeMounts": mounts}


def engine_pod(s: Serving, container: Json) -> Json:
    """Shared memory for the ranks of a node; weights are kept as long as the pod is."""
    volumes: list[Json] = [{"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "16Gi"}}]
    if s.family == "llama.cpp":
        volumes.append({"name": "weights", "persistentVolumeClaim": {"claimName": "models", "readOnly": True}})
    else:
        volumes.append({"name": "weights", "emptyDir": {}})
    selector = {"nodeSelector": {_PRODUCT_LABEL: s.device.product}} if s.device.product else {}
    return {**selector, "containers": [container], "volumes": volumes, "terminationGracePeriodSeconds": 120}


def service(name: str, selector: Json, port: int, target: int | str, headless: bool = False) -> Json:
    spec: Json = {"selector": selector, "ports": [{"name": "http", "port": port, "targetPort": target}]}
    if headless:
        spec = {"clusterIP": "None", **spec}
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": spec}


def deployment(name: str, labels: Json, replicas: int, pod: Json) -> Json:
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "labels": labels},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": pod},
        },
    }


def router_objects(s: Serving, engines: str) -> list[Json]:
    """nginx in front of the headless service `engines`, whose name stands for all ready replicas."""
    name, labels = f"{s.name}-router", {"app": f"{s.name}-router"}
    config = nginx_config(
        [f"{engines}.${{POD_NAMESPACE}}.svc.cluster.local:{PORT}"], ROUTER_PORT, "${NGINX_LOCAL_RESOLVERS}"
    )
    data = {"default.conf.template": config}
    config_map: Json = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}
    env: list[Json] = [
        {"name": "NGINX_ENTRYPOINT_LOCAL_RESOLVERS", "value": "1"},
        {"name": "POD_NAMESPACE", "valueFrom": {"fieldRef": {"fieldPath": "metadata.namespace"}}},
    ]
    container: Json = {
        "name": "nginx",
        "image": ROUTER,
        "env": env,
        "ports": [{"name": "http", "containerPort": ROUTER_PORT}],
        "readinessProbe": {"httpGet": {"path": s.health, "port": ROUTER_PORT}, "periodSeconds": 5},
        "volumeMounts": [{"name": "config", "mountPath": "/etc/nginx/templates"}],
    }
    pod: Json = {"containers": [container], "volumes": [{"name": "config", "configMap": {"name": name}}]}
    return [config_map, deployment(name, labels, 1, pod)]


def front(s: Serving, engine_labels: Json) -> list[Json]:
    """What clients reach as service `NAME`: the one replica, or the router before several."""
    if s.replicas == 1:
        return [service(s.name, engine_labels, 80, PORT)]
    engines = f"{s.name}-engines"
    router = {"app": f"{s.name}-router"}
    return [
        service(engines, engine_labels, PORT, PORT, headless=True),
        *router_objects(s, engines),
        service(s.name, router, 80, ROUTER_PORT),
    ]


def forward_step(name: str, port: int = 80) -> str:
    return f"kubectl port-forward service/{name} 8000:{port} &   # for a benchmark from this machine"
