"""Triton Inference Server with its vLLM backend: a model repository and its OpenAI-compatible frontend."""

from __future__ import annotations

import json
import shlex
from typing import Any

from catalogs.launch.images import TRITON
from planner.deploy.files import DeploymentFiles, bash_script
from planner.deploy.serving import Serving


def write(s: Serving) -> DeploymentFiles:
    """Return serve.sh and model_repository/NAME, whose model.json holds the keywords of vLLM's AsyncEngineArgs.

    KIND_MODEL: the backend places itself, on the accelerators that vLLM takes.
    """
    keywords: dict[str, Any] = {"model": s.model, **s.arguments.keywords}
    group = f"instance_group [\n  {{\n    count: {s.replicas}\n    kind: KIND_MODEL\n  }}\n]\n"
    gpus = ",".join(str(i) for i in range(s.accelerators))
    run = ["docker", "run", "--rm", "--shm-size=16g", "-p", "9000:9000", "--gpus", f'"device={gpus}"']
    mounts = '-v "$HOME/.cache/huggingface:/root/.cache/huggingface" -v "$PWD/model_repository:/models:ro"'
    script = [
        f"{shlex.join(run)} -e HF_TOKEN {mounts} -w /opt/tritonserver/python/openai \\",
        f"  {TRITON} \\",
        f"  python3 openai_frontend/main.py --model-repository /models --tokenizer {shlex.quote(s.model)}",
    ]
    folder = f"model_repository/{s.name}"
    files = {
        f"{folder}/config.pbtxt": f'backend: "vllm"\n{group}',
        f"{folder}/1/model.json": json.dumps(keywords, indent=2) + "\n",
        "serve.sh": bash_script(script),
    }
    notes = [f"{TRITON} contains its own version of vLLM; the plan is for {s.resolved.engine.version}"]
    steps = ["export HF_TOKEN=...   # for gated models", "./serve.sh"]
    return DeploymentFiles(files, steps, notes, "http://localhost:9000", token_prompts=False)
