"""Triton Inference Server with its vLLM backend: a model repository and its OpenAI-compatible frontend."""

from __future__ import annotations

import json
import shlex
from typing import Any

from planner.deploy.files import DeploymentFiles
from planner.deploy.images import TRITON
from planner.deploy.serving import Serving


def write(s: Serving) -> DeploymentFiles:
    """model_repository/NAME and serve.sh. model.json holds the keywords of vLLM's AsyncEngineArgs."""
    keywords: dict[str, Any] = {"model": s.model, **s.arguments.keywords}
    folder = f"model_repository/{s.name}"
    files = {
        f"{folder}/config.pbtxt": _config(s.replicas),
        f"{folder}/1/model.json": json.dumps(keywords, indent=2) + "\n",
        "serve.sh": _script(s),
    }
    notes = [f"{TRITON} contains its own version of vLLM; the plan is for {s.resolved.engine.version}"]
    steps = ["export HF_TOKEN=...   # for gated models", "./serve.sh"]
    return DeploymentFiles(files, steps, "http://localhost:9000", notes, token_prompts=False)


def _config(replicas: int) -> str:
    """KIND_MODEL: the backend places itself, on the accelerators vLLM takes."""
    return f'backend: "vllm"\ninstance_group [\n  {{\n    count: {replicas}\n    kind: KIND_MODEL\n  }}\n]\n'


def _script(s: Serving) -> str:
    gpus = ",".join(str(i) for i in range(s.accelerators))
    run = ["docker", "run", "--rm", "--shm-size=16g", "-p", "9000:9000", "--gpus", f'"device={gpus}"']
    text = shlex.join(run) + ' -e HF_TOKEN -v "$HOME/.cache/huggingface:/root/.cache/huggingface"'
    text += ' -v "$PWD/model_repository:/models:ro" -w /opt/tritonserver/python/openai'
    frontend = f"python3 openai_frontend/main.py --model-repository /models --tokenizer {shlex.quote(s.model)}"
    lines = ["#!/usr/bin/env bash", "set -euo pipefail", 'cd "$(dirname "$0")"']
    return "\n".join([*lines, f"{text} \\", f"  {TRITON} \\", f"  {frontend}", ""])
