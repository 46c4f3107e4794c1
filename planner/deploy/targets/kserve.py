"""KServe's LLMInferenceService (serving.kserve.io/v1alpha2): its own templates start the engine, ours add the flags."""

from __future__ import annotations

import shlex
from typing import Any

from planner.deploy.files import DeploymentFiles, to_yaml
from planner.deploy.serving import Serving
from planner.deploy.targets.pods import TOKEN_KEY, TOKEN_SECRET, resources, secret_step

_PREDICTED = "KServe's scheduler chooses replicas by load and cached prefixes; the plan assumes round robin"


def write(s: Serving) -> DeploymentFiles:
    """llminferenceservice.yaml."""
    spec: dict[str, Any] = {"model": {"uri": f"hf://{s.model}", "name": s.model}, "replicas": s.replicas}
    if s.family == "sglang":
        spec = {"runtime": "kserve-llm-sglang", **spec}
    layout = s.resolved.layout
    spec["parallelism"] = {"tensor": layout.tensor_parallel}
    spec["router"] = {"scheduler": {}, "route": {}, "gateway": {}} if s.replicas > 1 else {"route": {}, "gateway": {}}
    spec["template"] = {"containers": [_container(s)]} | _selector(s)
    metadata = {"name": s.name, "annotations": {"serving.kserve.io/secretName": TOKEN_SECRET}}
    whole = {
        "apiVersion": "serving.kserve.io/v1alpha2",
        "kind": "LLMInferenceService",
        "metadata": metadata,
        "spec": spec,
    }
    steps = [secret_step(), "kubectl apply -f llminferenceservice.yaml"]
    steps.append(f"kubectl wait llminferenceservice/{s.name} --for=condition=Ready --timeout=60m")
    steps.append(f"export BASE_URL=$(kubectl get llminferenceservice {s.name} -o jsonpath='{{.status.url}}')")
    notes = [_PREDICTED] if s.replicas > 1 else []
    return DeploymentFiles({"llminferenceservice.yaml": to_yaml(whole)}, steps, "http://localhost:8000", notes)


def _container(s: Serving) -> dict[str, Any]:
    """Merged into the preset's container `main`, which downloads the model and names it."""
    token = {"secretKeyRef": {"name": TOKEN_SECRET, "key": TOKEN_KEY, "optional": True}}
    env: list[dict[str, Any]] = [{"name": TOKEN_KEY, "valueFrom": token}]
    env += [{"name": name, "value": value} for name, value in s.arguments.environment.items()]
    found: dict[str, Any] = {"name": "main", "image": s.image, "env": env, "resources": resources(s)}
    flags = [word for flag, value in s.arguments.flags if flag != "--model-path" for word in _pair(flag, value)]
    if s.family == "sglang":  # its preset is a plain command: arguments are appended
        return found | {"args": flags}
    env.append({"name": "VLLM_ADDITIONAL_ARGS", "value": shlex.join(flags)})
    return found


def _pair(flag: str, value: str | None) -> tuple[str, ...]:
    return (flag,) if value is None else (flag, value)


def _selector(s: Serving) -> dict[str, Any]:
    return {"nodeSelector": {"nvidia.com/gpu.product": s.device.product}} if s.device.product else {}
