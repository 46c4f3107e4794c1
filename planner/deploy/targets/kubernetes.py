"""Plain Kubernetes: a Deployment of engines, and nginx as the round-robin router in front of several."""

from __future__ import annotations

from planner.deploy.files import DeploymentFiles, to_yaml
from planner.deploy.serving import Serving
from planner.deploy.targets import pods


def write(s: Serving) -> DeploymentFiles:
    """Return engine.yaml and service.yaml, for `kubectl apply -f .`."""
    labels = {"app": s.name}
    engines = pods.deployment(s.name, labels, s.replicas, pods.engine_pod(s, s.listening().words))
    files = {"engine.yaml": to_yaml(engines), "service.yaml": to_yaml(*pods.client_services(s, labels))}
    steps = [pods.secret_step(), "kubectl apply -f engine.yaml -f service.yaml"]
    steps += [f"kubectl rollout status deployment/{s.name} --timeout=60m", pods.forward_step(s.name)]
    return DeploymentFiles(files, steps, pods.requirements(s))
