"""llm-d: Deployments of model servers and the values of its router's Helm chart (llm-d/llm-d, guides/)."""

from __future__ import annotations

from typing import Final

from catalogs.launch.images import SIDECAR
from planner.deploy.files import DeploymentFiles, to_yaml
from planner.deploy.local_servers import HANDSHAKE
from planner.deploy.serving import PORT, Serving
from planner.deploy.targets import autoscaling, pods
from planner.deploy.targets.disaggregation import NETWORK
from planner.deploy.targets.pods import Json

_CHART: Final = "oci://ghcr.io/llm-d/charts/llm-d-router-standalone"

_CHART_VERSION: Final = "v0"

_GATEWAY_API_CRDS: Final = (
    "https://github.com/kubernetes-sigs/gateway-api-inference-extension/releases/download/v1.5.0/v1-manifests.yaml"
)

_PREDICTED: Final = "llm-d's router chooses replicas by load and cached prefixes; the plan assumes round robin"

_PREDICTED_DISAGGREGATED: Final = (
    "llm-d's router chooses the least busy prefill and decode servers; the plan assumes round robin"
)

#: Port of a decode server behind its sidecar.
_BEHIND: Final = 8200

#: Plugins of each profile, which filter, score and pick servers.
_PROFILES: Final = {
    "prefill": ("prefill-filter", "token-load-scorer", "max-score-picker"),
    "decode": ("decode-filter", "active-request-scorer", "max-score-picker"),
}

#: Every prompt is computed on a prefill server (llm-d/llm-d, guides/pd-disaggregation/router), without the guide's
#: affinity to cached prefixes, which needs a rate measured on the cluster.
_PAIRING: Final[Json] = {
    "apiVersion": "llm-d.ai/v1",
    "kind": "EndpointPickerConfig",
    "plugins": [
        {"type": "always-disagg-pd-decider"},
        {"type": "disagg-profile-handler", "parameters": {"deciders": {"prefill": "always-disagg-pd-decider"}}},
        *({"type": name} for name in ("prefill-filter", "decode-filter", "inflight-load-producer")),
        *({"type": name} for name in ("token-load-scorer", "active-request-scorer", "max-score-picker")),
    ],
    "schedulingProfiles": [
        {"name": profile, "plugins": [{"pluginRef": name} for name in plugins]}
        for profile, plugins in _PROFILES.items()
    ],
}


def write(*pools: Serving) -> DeploymentFiles:
    """Return modelserver.yaml and router.values.yaml, for replicas or for prefill and decode servers."""
    s, disaggregated = pools[-1], len(pools) > 1
    made = [_deployment(pool, disaggregated) for pool in pools]
    plugins: Json = {"pluginsConfigFile": "default-plugins.yaml"}
    if disaggregated:
        config = {"pd-config.yaml": to_yaml(_PAIRING)}
        plugins = {"pluginsConfigFile": "pd-config.yaml", "pluginsCustomConfig": config}
    router = {
        "extraServicePorts": [{"name": "http", "port": 80, "protocol": "TCP", "targetPort": 8081}],
        "epp": {"replicas": 1, **plugins},
        "inferencePool": {"failureMode": "FailOpen"},
        "modelServers": {
            "protocol": "http",
            "matchLabels": {"llm-d.ai/guide": s.name},
        },  # their port is 8000 by default
    }
    steps = [
        f"kubectl apply -f {_GATEWAY_API_CRDS}",
        pods.secret_step(),
        *(pods.weights_steps(s) if pods.keeps_weights(s) else []),
        f"helm install {s.name} {_CHART} --version {_CHART_VERSION} -f router.values.yaml",
        "kubectl apply -f modelserver.yaml",
        *(f"kubectl rollout status deployment/{d['metadata']['name']} --timeout=60m" for d in made),
        pods.forward_step(f"{s.name}-epp"),
    ]
    differences = [NETWORK, _PREDICTED_DISAGGREGATED] if disaggregated else [_PREDICTED] if s.replicas > 1 else []
    files = {"modelserver.yaml": to_yaml(*made), "router.values.yaml": to_yaml({"router": router})}
    if pods.keeps_weights(s):
        files[pods.WEIGHTS_FILE] = to_yaml(*pods.weights(s, sum(pool.replicas for pool in pools)))
    labels = [d["spec"]["template"]["metadata"]["labels"] for d in made]
    scaled = autoscaling.autoscaled(pools, made, labels)
    if scaled:
        files[autoscaling.FILE] = to_yaml(*scaled)
        steps, differences = [*steps, autoscaling.STEP], [*differences, autoscaling.NOTE]
    return DeploymentFiles(files, steps, [*pods.requirements(s), *differences])


def _deployment(s: Serving, disaggregated: bool) -> Json:
    """Return the Deployment of replicas, or of one half of a plan with prefill and decode servers.

    A decode server is behind a sidecar; its keep-alive outlasts the idle connections of the sidecar.
    """
    role = s.resolved.role if disaggregated else "decode"
    labels = {"llm-d.ai/guide": s.name, "llm-d.ai/model": s.name, "llm-d.ai/role": role}
    if not disaggregated:
        return pods.deployment(s.name, labels, s.replicas, pods.engine_pod(s, s.listening().words))
    port = _BEHIND if role == "decode" else PORT
    pod = pods.engine_pod(s, s.listening(port).words, port=port)
    (container,) = pod["containers"]
    container["env"] += [
        {"name": "VLLM_NIXL_SIDE_CHANNEL_HOST", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        {"name": "VLLM_HTTP_TIMEOUT_KEEP_ALIVE", "value": "120"},
    ]
    container["ports"].append({"name": "nixl", "containerPort": HANDSHAKE})
    return pods.deployment(f"{s.name}-{role}", labels, s.replicas, pod | (_SIDECAR if role == "decode" else {}))


#: The sidecar of a decode server: an init container that always restarts, so that it runs as long as the pod.
_SIDECAR: Final[Json] = {
    "initContainers": [
        {
            "name": "routing-proxy",
            "image": SIDECAR,
            "args": [f"--port={PORT}", f"--vllm-port={_BEHIND}", "--kv-connector=nixlv2", "--secure-proxy=false"],
            "ports": [{"name": "sidecar", "containerPort": PORT}],
            "restartPolicy": "Always",
            "securityContext": {"allowPrivilegeEscalation": False, "runAsNonRoot": True},
        }
    ]
}
