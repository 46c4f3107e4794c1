"""Pods, Deployments and Services for the targets on Kubernetes, as plain dictionaries of the published schemas."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

from catalogs.launch.images import ROUTER
from planner.deploy.serving import HEALTH, PORT, Serving
from planner.deploy.targets.compose import ROUTER_CONTAINER_PORT, nginx_config

TOKEN_SECRET: Final = "hf-token"

TOKEN_KEY: Final = "HF_TOKEN"

#: Where the images of engines keep models from Hugging Face.
_CACHE: Final = "/root/.cache/huggingface"

#: Seconds after which a start is considered as failed; a start may include the download of the weights.
_START_S: Final = 3600

#: Seconds between two startup probes of a pod: the default of Kubernetes.
_PERIOD_S: Final = 10

Json = dict[str, Any]


def secret_step() -> str:
    """Return the command that stores the Hugging Face token; pods start without it, for models that need none."""
    return f"kubectl create secret generic {TOKEN_SECRET} --from-literal={TOKEN_KEY}=$HF_TOKEN   # for gated models"


def forward_step(name: str, port: int = 80) -> str:
    """Return the command that forwards port 8000 of this machine to a service."""
    return f"kubectl port-forward service/{name} 8000:{port} &   # for a benchmark from this machine"


def requirements(s: Serving) -> list[str]:
    """Return what the pods of a replica require of the cluster, one sentence each."""
    taint = {"nvidia": "nvidia.com/gpu", "amd": "amd.com/gpu"}.get(s.device.maker)
    label = f"nvidia.com/gpu.product={s.device.product}"
    found = [f"pods need nodes with the label {label} (GPU feature discovery)"] if s.device.product else []
    found += [f"pods tolerate the taint {taint}, which GPU nodes often have"] if taint else []
    if keeps_weights(s):
        found.append(
            "the weights are on a volume of the default storage class; pods on several nodes need one that "
            "supports ReadWriteMany"
        )
    if s.family == "llama.cpp":
        found.append("pods mount the persistent volume claim `models`, which holds the GGUF file")
    return found


def environment(s: Serving) -> list[Json]:
    """Return the environment variables of an engine: the optional Hugging Face token, and those of its arguments."""
    token = {"secretKeyRef": {"name": TOKEN_SECRET, "key": TOKEN_KEY, "optional": True}}
    own = [{"name": name, "value": value} for name, value in s.arguments.environment.items()]
    return [{"name": TOKEN_KEY, "valueFrom": token}, *own]


def resources(s: Serving) -> Json:
    """Return the accelerators of one pod; they cannot be overcommitted, so the requests equal these limits."""
    return {"limits": {s.device.resource: str(s.accelerators_per_pod)}} if s.device.resource else {}


def placement(s: Serving) -> Json:
    """Return the nodes on which pods may run: those with the planned accelerators, and those tainted for them.

    There is no selector where the accelerators have no known label.
    """
    chosen: Json = {"nodeSelector": {"nvidia.com/gpu.product": s.device.product}} if s.device.product else {}
    taint = {"nvidia": "nvidia.com/gpu", "amd": "amd.com/gpu"}.get(s.device.maker)
    if taint is None:
        return chosen
    return chosen | {"tolerations": [{"key": taint, "operator": "Exists", "effect": "NoSchedule"}]}


#: Space for the weights relative to their size: a download is complete before its parts are removed.
_SPACE: Final = 1.25

WEIGHTS_FILE: Final = "weights.yaml"


def keeps_weights(s: Serving) -> bool:
    """Return True if the weights are a repository, which a volume can keep; GGUF files and folders are elsewhere."""
    return s.family != "llama.cpp" and not s.model.startswith("/")


def claim_name(s: Serving) -> str:
    """Return the name of the volume claim for the weights."""
    return f"{s.name}-weights"


def weights(s: Serving, pods_in_all: int) -> list[Json]:
    """Return the volume claim for the weights, and the job that downloads them once for all pods.

    Args:
        s: One kind of replica.
        pods_in_all: The pods that mount the volume; several may run on different nodes.
    """
    model = s.resolved.model
    gib = math.ceil(_SPACE * model.weight_bytes(s.resolved.weight_dtype) / 2**30)
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": claim_name(s)},
        "spec": {
            "accessModes": ["ReadWriteMany" if pods_in_all > 1 else "ReadWriteOnce"],
            "resources": {"requests": {"storage": f"{gib}Gi"}},
        },
    }
    token = {"secretKeyRef": {"name": TOKEN_SECRET, "key": TOKEN_KEY, "optional": True}}
    container = {
        "name": "download",
        "image": s.image,
        "command": ["hf", "download", s.model],
        "env": [{"name": TOKEN_KEY, "valueFrom": token}],
        "volumeMounts": [{"name": "weights", "mountPath": _CACHE}],
    }
    volume = {"name": "weights", "persistentVolumeClaim": {"claimName": claim_name(s)}}
    pod = {**placement(s), "restartPolicy": "OnFailure", "containers": [container], "volumes": [volume]}
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": f"{s.name}-download"},
        "spec": {"backoffLimit": 4, "template": {"spec": pod}},
    }
    return [claim, job]


def weights_steps(s: Serving) -> list[str]:
    """Return the commands that download the weights to their volume."""
    wait = f"kubectl wait job/{s.name}-download --for=condition=Complete --timeout=120m"
    return [f"kubectl apply -f {WEIGHTS_FILE}", wait]


def engine_pod(s: Serving, command: Sequence[str], serves: bool = True, port: int = PORT) -> Json:
    """Return the specification of a pod with one engine.

    The ranks of a node exchange data through shared memory. The weights are on a volume, which a job has filled before.
    Clients send nothing before the model is loaded, and a busy replica is not restarted.

    Args:
        s: The replica.
        command: The command of the engine in this pod.
        serves: Whether the pod answers clients; the workers of a replica that spans nodes do not.
        port: Port of the engine.
    """
    folder = _CACHE
    volume: Json = {"persistentVolumeClaim": {"claimName": claim_name(s)}}
    if s.family == "llama.cpp":
        folder, volume = "/models", {"persistentVolumeClaim": {"claimName": "models", "readOnly": True}}
    elif not keeps_weights(s):
        volume = {"emptyDir": {}}
    container: Json = {"name": "engine", "image": s.image, "command": list(command), "env": environment(s)}
    if serves:
        get = {"path": HEALTH, "port": port}
        container |= {
            "ports": [{"name": "http", "containerPort": port}],
            "startupProbe": {"httpGet": get, "periodSeconds": _PERIOD_S, "failureThreshold": _START_S // _PERIOD_S},
            "readinessProbe": {"httpGet": get, "periodSeconds": 5, "timeoutSeconds": 5},
            "livenessProbe": {"httpGet": get, "periodSeconds": 30, "timeoutSeconds": 30, "failureThreshold": 5},
        }
    mounts = [{"name": "shm", "mountPath": "/dev/shm"}, {"name": "weights", "mountPath": folder}]
    shared_memory = {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "16Gi"}}
    return {
        **placement(s),
        "containers": [container | {"resources": resources(s), "volumeMounts": mounts}],
        "volumes": [shared_memory, {"name": "weights", **volume}],
        "terminationGracePeriodSeconds": 120,
    }


def deployment(name: str, labels: Json, replicas: int, pod: Json) -> Json:
    """Return a Deployment of equal pods."""
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


def stateful_set(name: str, labels: Json, replicas: int, pod: Json) -> Json:
    """Return a StatefulSet of equal pods, each with a stable address behind the headless service of the same name."""
    made = deployment(name, labels, replicas, pod)
    return made | {
        "kind": "StatefulSet",
        "spec": {"serviceName": name, "podManagementPolicy": "Parallel", **made["spec"]},
    }


def client_services(s: Serving, engine_labels: Json) -> list[Json]:
    """Return the objects behind the service that clients use, which has the name of the plan.

    It is the service of the only replica, or of nginx in front of several. The name of a headless service stands for
    all replicas that are ready.
    """
    if s.replicas == 1:
        return [service(s.name, engine_labels, 80, PORT)]
    engines, name = f"{s.name}-engines", f"{s.name}-router"
    upstream = f"{engines}.${{POD_NAMESPACE}}.svc.cluster.local:{PORT}"
    config = nginx_config([upstream], ROUTER_CONTAINER_PORT, "${NGINX_LOCAL_RESOLVERS}")
    container = {
        "name": "nginx",
        "image": ROUTER,
        "env": [
            {"name": "NGINX_ENTRYPOINT_LOCAL_RESOLVERS", "value": "1"},
            {"name": "POD_NAMESPACE", "valueFrom": {"fieldRef": {"fieldPath": "metadata.namespace"}}},
        ],
        "ports": [{"name": "http", "containerPort": ROUTER_CONTAINER_PORT}],
        "readinessProbe": {"httpGet": {"path": HEALTH, "port": ROUTER_CONTAINER_PORT}, "periodSeconds": 5},
        "volumeMounts": [{"name": "config", "mountPath": "/etc/nginx/templates"}],
    }
    pod: Json = {"containers": [container], "volumes": [{"name": "config", "configMap": {"name": name}}]}
    return [
        service(engines, engine_labels, PORT, PORT, {"clusterIP": "None"}),
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": name},
            "data": {"default.conf.template": config},
        },
        deployment(name, {"app": name}, 1, pod),
        service(s.name, {"app": name}, 80, ROUTER_CONTAINER_PORT),
    ]


def service(name: str, selector: Json, port: int, target: int, more: Json | None = None) -> Json:
    """Return a service in front of the selected pods; `more` are further keys of its specification."""
    spec = {**(more or {}), "selector": selector, "ports": [{"name": "http", "port": port, "targetPort": target}]}
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": spec}
