"""Autoscaling of the engines on Kubernetes by the requests that they hold (KEDA, keda.sh/v1alpha1).

The metric is the number of running and waiting requests, as the engine reports it to Prometheus. KEDA keeps its mean
over the replicas at the number of the planned load. Unlike the utilisation of a GPU, which is high under any load, this
number grows with the queue. The planned number of replicas is the minimum, so the planned load never waits for a start.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from planner.deploy.serving import Serving
from planner.deploy.targets.pods import Json

FILE: Final = "autoscaling.yaml"

#: Names of the running and of the waiting requests in Prometheus, by family of engine: vllm/v1/metrics/loggers.py,
#: sglang/srt/observability/metrics_collector.py, llama.cpp tools/server (--metrics).
_REQUESTS: Final = {
    "vllm": ("vllm:num_requests_running", "vllm:num_requests_waiting"),
    "sglang": ("sglang:num_running_reqs", "sglang:num_queue_reqs"),
    "llama.cpp": ("llamacpp:requests_processing", "llamacpp:requests_deferred"),
}

#: Address of Prometheus where the Prometheus operator runs it in the namespace `monitoring`.
_PROMETHEUS: Final = "http://prometheus-operated.monitoring.svc:9090"

#: Highest number of replicas, relative to the planned number. A judgement: room for an error of the plan, and a bound
#: on the bill.
_MOST: Final = 2

#: Seconds of a lower load before a replica is stopped. A judgement: a restart loads the weights again, which takes
#: minutes for a large model.
_COOL_DOWN_S: Final = 600

STEP: Final = f"kubectl apply -f {FILE}   # optional: needs KEDA and the Prometheus operator"

NOTE: Final = (
    f"{FILE} adds replicas above the planned load and never goes below the planned number; change its serverAddress "
    "if Prometheus is not in the namespace monitoring, and the volume of a single replica to ReadWriteMany"
)


def autoscaled(pools: Sequence[Serving], targets: Sequence[Json], labels: Sequence[Json]) -> list[Json]:
    """Return the objects that scale the engines; none if the load of a replica is unknown.

    Args:
        pools: The kinds of replica.
        targets: The object that holds the replicas of each kind: a Deployment, StatefulSet or LeaderWorkerSet.
        labels: The labels of the pods of each kind that serve clients.
    """
    found: list[Json] = []
    for s, target, chosen in zip(pools, targets, labels, strict=True):
        if s.requests_held is not None:
            found += [_monitor(target["metadata"]["name"], chosen), _scaler(s, target)]
    return found


def _monitor(name: str, labels: Json) -> Json:
    """Return the object by which the Prometheus operator reads the metrics of the pods."""
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PodMonitor",
        "metadata": {"name": name},
        "spec": {
            "selector": {"matchLabels": labels},
            "podMetricsEndpoints": [{"port": "http", "path": "/metrics", "interval": "15s"}],
        },
    }


def _scaler(s: Serving, target: Json) -> Json:
    """Return the object that adds replicas if they hold more requests than under the planned load."""
    name, held = target["metadata"]["name"], max(s.requests_held or 0.0, 1.0)
    selector = f'{{pod=~"{name}-.*"}}'
    query = " + ".join(f"sum({metric}{selector})" for metric in _REQUESTS[s.family])
    trigger = {
        "type": "prometheus",
        "metricType": "AverageValue",
        "metadata": {"serverAddress": _PROMETHEUS, "query": query, "threshold": f"{held:.3g}"},
    }
    return {
        "apiVersion": "keda.sh/v1alpha1",
        "kind": "ScaledObject",
        "metadata": {"name": name},
        "spec": {
            "scaleTargetRef": {"apiVersion": target["apiVersion"], "kind": target["kind"], "name": name},
            "minReplicaCount": s.replicas,
            "maxReplicaCount": _MOST * s.replicas,
            "cooldownPeriod": _COOL_DOWN_S,
            "triggers": [trigger],
            "advanced": {
                "horizontalPodAutoscalerConfig": {
                    "behavior": {"scaleDown": {"stabilizationWindowSeconds": _COOL_DOWN_S}}
                }
            },
        },
    }
