"""Plain Kubernetes: the engines, their weights on a volume, and a router in front of several.

The router of replicas is nginx; the router of prefill and decode servers is that of the engine, which needs the
addresses of their pods, so that these are in StatefulSets.
"""

from __future__ import annotations

from planner.deploy.files import DeploymentFiles, to_yaml
from planner.deploy.serving import Serving
from planner.deploy.targets import autoscaling, disaggregation, pods
from planner.deploy.targets.pods import Json


def write(*pools: Serving) -> DeploymentFiles:
    """Return engine.yaml and service.yaml, and the files of the weights and of autoscaling."""
    s, disaggregated = pools[-1], len(pools) > 1
    found = disaggregation.names(pools)
    labels: list[Json] = [{"app": name} for name in found]
    made, extra, notes = [], [], pods.requirements(s)
    for pool, name, chosen in zip(pools, found, labels, strict=True):
        pod = pods.engine_pod(pool, pool.listening().words)
        if disaggregated:
            made.append(pods.stateful_set(name, chosen, pool.replicas, disaggregation.connected(pool, pod)))
            extra.append(disaggregation.headless(name, chosen))
        else:
            made.append(pods.deployment(name, chosen, pool.replicas, pod))
    services = [*extra, *disaggregation.router(pools, found)] if disaggregated else pods.client_services(s, labels[0])
    files = {"engine.yaml": to_yaml(*made), "service.yaml": to_yaml(*services)}
    steps = [pods.secret_step()]
    if pods.keeps_weights(s):
        files[pods.WEIGHTS_FILE] = to_yaml(*pods.weights(s, sum(pool.replicas for pool in pools)))
        steps += pods.weights_steps(s)
    steps += ["kubectl apply -f engine.yaml -f service.yaml"]
    kind = "statefulset" if disaggregated else "deployment"
    steps += [f"kubectl rollout status {kind}/{name} --timeout=60m" for name in found]
    # The router of prefill and decode servers knows fixed addresses, so only equal replicas are scaled.
    scaled = [] if disaggregated else autoscaling.autoscaled(pools, made, labels)
    return disaggregation.finished(pools, files, steps, notes, scaled)
