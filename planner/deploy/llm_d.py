"""llm-d: a Deployment of model servers and the values of its router's Helm chart (llm-d/llm-d, guides/)."""

from __future__ import annotations

from typing import Any, Final

from planner.deploy.kubernetes import notes
from planner.deploy.pods import deployment, engine_container, engine_pod, forward_step, secret_step
from planner.deploy.serving import Serving
from planner.deploy.written import Written, to_yaml

_CHART: Final = "oci://ghcr.io/llm-d/charts/llm-d-router-standalone"
_CHART_VERSION: Final = "v0"
_GATEWAY_API_CRDS: Final = (
    "https://github.com/kubernetes-sigs/gateway-api-inference-extension/releases/download/v1.5.0/v1-manifests.yaml"
)
_PREDICTED: Final = "llm-d's router chooses replicas by load and cached prefixes, the plan round robin"


def write(s: Serving) -> Written:
    """modelserver.yaml and router.values.yaml."""
    labels = {"llm-d.ai/guide": s.name, "llm-d.ai/model": s.name, "llm-d.ai/role": "decode"}
    pod = engine_pod(s, engine_container(s, s.listening().words))
    files = {
        "modelserver.yaml": to_yaml(deployment(s.name, labels, s.replicas, pod)),
        "router.values.yaml": to_yaml(_router(s)),
    }
    steps = [f"kubectl apply -f {_GATEWAY_API_CRDS}", secret_step()]
    steps.append(f"helm install {s.name} {_CHART} --version {_CHART_VERSION} -f router.values.yaml")
    steps += ["kubectl apply -f modelserver.yaml", f"kubectl rollout status deployment/{s.name} --timeout=60m"]
    steps.append(forward_step(f"{s.name}-epp"))
    return Written(files, steps, "http://localhost:8000", [*notes(s), *([_PREDICTED] if s.replicas > 1 else [])])


def _router(s: Serving) -> dict[str, Any]:
    """The endpoint picker with its default plugins, and a port for clients on its Envoy."""
    port = {"name": "http", "port": 80, "protocol": "TCP", "targetPort": 8081}
    servers = {"protocol": "http", "matchLabels": {"llm-d.ai/guide": s.name}}  # their port is 8000 by default
    return {
        "router": {
            "extraServicePorts": [port],
            "epp": {"replicas": 1, "pluginsConfigFile": "default-plugins.yaml"},
            "inferencePool": {"failureMode": "FailOpen"},
            "modelServers": servers,
        }
    }
