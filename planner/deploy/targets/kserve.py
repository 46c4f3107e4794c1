"""KServe's LLMInferenceService (serving.kserve.io/v1alpha2): its templates start the engine with the plan's flags."""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import Any

from planner.deploy.files import DeploymentFiles, to_yaml
from planner.deploy.serving import Serving
from planner.deploy.targets.disaggregation import NETWORK
from planner.deploy.targets.pods import TOKEN_SECRET, environment, placement, resources, secret_step

_PREDICTED = "KServe's scheduler chooses replicas by load and cached prefixes; the plan assumes round robin"

_PREDICTED_DISAGGREGATED = (
    "KServe's scheduler chooses the prefill and decode servers by load; the plan assumes round robin"
)


def write(*pools: Serving) -> DeploymentFiles:
    """Return llminferenceservice.yaml; its key `prefill` has the prefill servers of a disaggregated plan."""
    s, disaggregated = pools[-1], len(pools) > 1
    routing: dict[str, Any] = {"route": {}, "gateway": {}}
    spec = {
        **({"runtime": "kserve-llm-sglang"} if s.family == "sglang" else {}),
        "model": {"uri": f"hf://{s.model}", "name": s.model},
        **_workload(s),
        **({"prefill": _workload(pools[0])} if disaggregated else {}),
        "router": {"scheduler": {}, **routing} if s.replicas > 1 or disaggregated else routing,
    }
    service = {
        "apiVersion": "serving.kserve.io/v1alpha2",
        "kind": "LLMInferenceService",
        "metadata": {"name": s.name, "annotations": {"serving.kserve.io/secretName": TOKEN_SECRET}},
        "spec": spec,
    }
    steps = [
        secret_step(),
        "kubectl apply -f llminferenceservice.yaml",
        f"kubectl wait llminferenceservice/{s.name} --for=condition=Ready --timeout=60m",
        f"export BASE_URL=$(kubectl get llminferenceservice {s.name} -o jsonpath='{{.status.url}}')",
    ]
    notes = [_PREDICTED] if s.replicas > 1 else []
    notes += [_PREDICTED_DISAGGREGATED, NETWORK] if disaggregated else []
    return DeploymentFiles({"llminferenceservice.yaml": to_yaml(service)}, steps, notes)


def _workload(s: Serving) -> dict[str, Any]:
    """Return the replicas of one kind."""
    return {
        "replicas": s.replicas,
        "parallelism": {"tensor": s.resolved.layout.tensor_parallel},
        "template": {"containers": [_container(s)]} | placement(s),
    }


def _container(s: Serving) -> dict[str, Any]:
    """Return what is merged into the preset's container `main`, which downloads the model and names it."""
    found: dict[str, Any] = {"name": "main", "image": s.image, "env": environment(s), "resources": resources(s)}
    flags = replace(s.arguments, flags=tuple(f for f in s.arguments.flags if f[0] != "--model-path")).flag_words
    if s.family == "sglang":  # its preset is a plain command: arguments are appended
        return found | {"args": flags}
    found["env"].append({"name": "VLLM_ADDITIONAL_ARGS", "value": shlex.join(flags)})
    return found
