"""Ray Serve: a Serve config whose application is `ray.serve.llm:build_openai_app` (Ray 2.60)."""

from __future__ import annotations

import json
from typing import Any, Final

from planner.deploy.files import DeploymentFiles, to_yaml
from planner.deploy.serving import Serving

_PREDICTED: Final = (
    "Ray Serve sends a request to the shorter queue of two random replicas; the plan assumes round robin"
)


def write(*pools: Serving) -> DeploymentFiles:
    """Return serve.yaml.

    Engine keywords are the flags of `vllm serve`; the token comes from the environment of the nodes.
    """
    s, configs = pools[-1], [_config(pool) for pool in pools]
    builder = "build_openai_app" if len(pools) == 1 else "build_pd_openai_app"
    arguments: dict[str, Any] = {"llm_configs": configs}
    if len(pools) > 1:
        arguments = dict(zip(("prefill_config", "decode_config"), configs, strict=True))
    application = {
        "name": s.name,
        "route_prefix": "/",
        "import_path": f"ray.serve.llm:{builder}",
        "args": arguments,
    }
    options = {"host": "0.0.0.0", "port": 8000}
    whole = {"proxy_location": "EveryNode", "http_options": options, "applications": [application]}
    steps = [
        "export HF_TOKEN=...   # for gated models, on every node, before `ray start`",
        "serve deploy serve.yaml",
        "serve status   # until the application is RUNNING",
    ]
    notes = [f"needs a Ray cluster with ray[llm] and vLLM {s.resolved.engine.version} on its nodes"]
    notes += [_PREDICTED] if max(pool.replicas for pool in pools) > 1 else []
    return DeploymentFiles({"serve.yaml": to_yaml(whole)}, steps, notes)


def _config(s: Serving) -> dict[str, Any]:
    """Return the LLMConfig of one kind of replica."""
    keywords = s.arguments.keywords
    if "kv_transfer_config" in keywords:  # JSON on a command line, a mapping in a file
        keywords["kv_transfer_config"] = json.loads(str(keywords["kv_transfer_config"]))
    # a very high max_ongoing_requests, so that requests queue in the engine, as planned, and not in Ray
    config: dict[str, Any] = {
        "model_loading_config": {"model_id": s.model, "model_source": s.model},
        "engine_kwargs": keywords,
        "deployment_config": {"num_replicas": s.replicas, "max_ongoing_requests": 100_000},
    }
    if s.device.ray_type:
        config["accelerator_type"] = s.device.ray_type
    if s.arguments.environment:
        config["runtime_env"] = {"env_vars": s.arguments.environment}
    return config
