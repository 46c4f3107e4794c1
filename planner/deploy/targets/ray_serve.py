"""Ray Serve: a Serve config whose application is `ray.serve.llm:build_openai_app` (Ray 2.60)."""

from __future__ import annotations

from typing import Any, Final

from planner.deploy.files import DeploymentFiles, to_yaml
from planner.deploy.serving import Serving

_PREDICTED: Final = (
    "Ray Serve sends a request to the shorter queue of two random replicas; the plan assumes round robin"
)


def write(s: Serving) -> DeploymentFiles:
    """Return serve.yaml.

    Engine keywords are the flags of `vllm serve`; the token comes from the environment of the nodes.
    """
    # a very high max_ongoing_requests, so that requests queue in the engine, as planned, and not in Ray
    config: dict[str, Any] = {
        "model_loading_config": {"model_id": s.model, "model_source": s.model},
        "engine_kwargs": s.arguments.keywords,
        "deployment_config": {"num_replicas": s.replicas, "max_ongoing_requests": 100_000},
    }
    if s.device.ray_type:
        config["accelerator_type"] = s.device.ray_type
    if s.arguments.environment:
        config["runtime_env"] = {"env_vars": s.arguments.environment}
    application = {
        "name": s.name,
        "route_prefix": "/",
        "import_path": "ray.serve.llm:build_openai_app",
        "args": {"llm_configs": [config]},
    }
    options = {"host": "0.0.0.0", "port": 8000}
    whole = {"proxy_location": "EveryNode", "http_options": options, "applications": [application]}
    steps = [
        "export HF_TOKEN=...   # for gated models, on every node, before `ray start`",
        "serve deploy serve.yaml",
        "serve status   # until the application is RUNNING",
    ]
    notes = [f"needs a Ray cluster with ray[llm] and vLLM {s.resolved.engine.version} on its nodes"]
    notes += [_PREDICTED] if s.replicas > 1 else []
    return DeploymentFiles({"serve.yaml": to_yaml(whole)}, steps, notes)
