"""llm-d: Deployments of model servers and the values of its router's Helm chart (llm-d/llm-d, guides/)."""

from __future__ import annotations

from typing import Any, Final

from planner.deploy.disaggregated import DisaggregatedServing
from planner.deploy.files import DeploymentFiles, to_yaml
from planner.deploy.images import SIDECAR
from planner.deploy.serving import PORT, Serving
from planner.deploy.targets.kubernetes import notes
from planner.deploy.targets.pods import Json, deployment, engine_container, engine_pod, forward_step, secret_step

_CHART: Final = "oci://ghcr.io/llm-d/charts/llm-d-router-standalone"

_CHART_VERSION: Final = "v0"

_GATEWAY_API_CRDS: Final = (
    "https://github.com/kubernetes-sigs/gateway-api-inference-extension/releases/download/v1.5.0/v1-manifests.yaml"
)

_PREDICTED: Final = "llm-d's router chooses replicas by load and cached prefixes; the plan assumes round robin"

_PREDICTED_APART: Final = (
    "llm-d's router chooses the least busy prefill and decode servers; the plan assumes round robin"
)

_NETWORK: Final = (
    "KV blocks go from pod to pod over the network; the plan assumes both pods on one node. Give the pods the RDMA "
    "devices of the cluster; otherwise NIXL uses TCP, and TTFT is higher than predicted"
)

#: Port of a decode server behind its sidecar, and port on which servers exchange the addresses of KV blocks.
_BEHIND: Final = 8200

_HANDSHAKE: Final = 5600

#: Every prompt is computed on a prefill server (llm-d/llm-d, guides/pd-disaggregation/router), without the guide's
#: affinity to cached prefixes, which needs a rate measured on the cluster.
_PAIRING: Final = """\
apiVersion: llm-d.ai/v1
kind: EndpointPickerConfig
plugins:
- type: always-disagg-pd-decider
- type: disagg-profile-handler
  parameters:
    deciders:
      prefill: always-disagg-pd-decider
- type: prefill-filter
- type: decode-filter
- type: inflight-load-producer
- type: token-load-scorer
- type: active-request-scorer
- type: max-score-picker
schedulingProfiles:
- name: prefill
  plugins:
  - pluginRef: prefill-filter
  - pluginRef: token-load-scorer
  - pluginRef: max-score-picker
- name: decode
  plugins:
  - pluginRef: decode-filter
  - pluginRef: active-request-scorer
  - pluginRef: max-score-picker
"""


def write(s: Serving) -> DeploymentFiles:
    """Return modelserver.yaml and router.values.yaml."""
    labels = {"llm-d.ai/guide": s.name, "llm-d.ai/model": s.name, "llm-d.ai/role": "decode"}
    pod = engine_pod(s, engine_container(s, s.listening().words))
    files = {
        "modelserver.yaml": to_yaml(deployment(s.name, labels, s.replicas, pod)),
        "router.values.yaml": to_yaml(_router(s)),
    }
    remarks = [*notes(s), *([_PREDICTED] if s.replicas > 1 else [])]
    return DeploymentFiles(files, _steps(s, [s.name]), "http://localhost:8000", remarks)


def write_apart(a: DisaggregatedServing) -> DeploymentFiles:
    """Return the files of two Deployments: prefill servers, and decode servers behind a sidecar."""
    made = [deployment(f"{s.name}-{s.resolved.role}", _labels(s), s.replicas, _half(s)) for s in a.halves]
    plugins = {"pluginsConfigFile": "pd-config.yaml", "pluginsCustomConfig": {"pd-config.yaml": _PAIRING}}
    files = {"modelserver.yaml": to_yaml(*made), "router.values.yaml": to_yaml(_router(a.decode, plugins))}
    remarks = [*notes(a.decode), _NETWORK, _PREDICTED_APART]
    return DeploymentFiles(
        files, _steps(a.decode, [d["metadata"]["name"] for d in made]), "http://localhost:8000", remarks
    )


def _labels(s: Serving) -> Json:
    return {"llm-d.ai/guide": s.name, "llm-d.ai/model": s.name, "llm-d.ai/role": s.resolved.role}


def _half(s: Serving) -> Json:
    """Return a pod of one server; its keep-alive outlasts the idle connections of the sidecar."""
    decodes = s.resolved.role == "decode"
    port = _BEHIND if decodes else PORT
    container = engine_container(s, s.listening(port).words, port=port)
    own_address = {"fieldRef": {"fieldPath": "status.podIP"}}
    container["env"].append({"name": "VLLM_NIXL_SIDE_CHANNEL_HOST", "valueFrom": own_address})
    container["env"].append({"name": "VLLM_HTTP_TIMEOUT_KEEP_ALIVE", "value": "120"})
    container["ports"].append({"name": "nixl", "containerPort": _HANDSHAKE})
    pod = engine_pod(s, container)
    return pod | {"initContainers": [_sidecar()]} if decodes else pod


def _sidecar() -> Json:
    """Return the sidecar: an init container that always restarts, so that it runs as long as the pod."""
    flags = [f"--port={PORT}", f"--vllm-port={_BEHIND}", "--kv-connector=nixlv2", "--secure-proxy=false"]
    return {
        "name": "routing-proxy",
        "image": SIDECAR,
        "args": flags,
        "ports": [{"name": "sidecar", "containerPort": PORT}],
        "restartPolicy": "Always",
        "securityContext": {"allowPrivilegeEscalation": False, "runAsNonRoot": True},
    }


def _steps(s: Serving, deployments: list[str]) -> list[str]:
    steps = [f"kubectl apply -f {_GATEWAY_API_CRDS}", secret_step()]
    steps.append(f"helm install {s.name} {_CHART} --version {_CHART_VERSION} -f router.values.yaml")
    steps.append("kubectl apply -f modelserver.yaml")
    steps += [f"kubectl rollout status deployment/{name} --timeout=60m" for name in deployments]
    return [*steps, forward_step(f"{s.name}-epp")]


def _router(s: Serving, plugins: Json | None = None) -> dict[str, Any]:
    """Return the endpoint picker, by default with its default plugins, and the client port of its Envoy."""
    port = {"name": "http", "port": 80, "protocol": "TCP", "targetPort": 8081}
    servers = {"protocol": "http", "matchLabels": {"llm-d.ai/guide": s.name}}  # their port is 8000 by default
    return {
        "router": {
            "extraServicePorts": [port],
            "epp": {"replicas": 1, **(plugins or {"pluginsConfigFile": "default-plugins.yaml"})},
            "inferencePool": {"failureMode": "FailOpen"},
            "modelServers": servers,
        }
    }
