"""Plain Kubernetes: a Deployment of engines, and nginx as the round-robin router before several."""

from __future__ import annotations

from planner.deploy.files import DeploymentFiles, to_yaml
from planner.deploy.serving import Serving
from planner.deploy.targets.pods import deployment, engine_container, engine_pod, forward_step, front, secret_step


def write(s: Serving) -> DeploymentFiles:
    """engine.yaml and service.yaml, for `kubectl apply -f .`."""
    labels = {"app": s.name}
    pod = engine_pod(s, engine_container(s, s.listening().words))
    files = {
        "engine.yaml": to_yaml(deployment(s.name, labels, s.replicas, pod)),
        "service.yaml": to_yaml(*front(s, labels)),
    }
    steps = [secret_step(), "kubectl apply -f engine.yaml -f service.yaml"]
    steps += [f"kubectl rollout status deployment/{s.name} --timeout=60m", forward_step(s.name)]
    return DeploymentFiles(files, steps, "http://localhost:8000", notes(s))


def notes(s: Serving) -> list[str]:
    """Return the requirements on the cluster."""
    found = []
    if s.device.product:
        found.append(
            f"pods need nodes with the label nvidia.com/gpu.product={s.device.product} (GPU feature discovery)"
        )
    if s.family == "llama.cpp":
        found.append("pods mount the persistent volume claim `models`, which holds the GGUF file")
    return found
