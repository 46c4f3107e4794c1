"""The container image of an engine version on a kind of device."""

from __future__ import annotations

from typing import Final

from planner.deploy.device import Maker

#: Repositories whose tags are vLLM's releases (docs.vllm.ai, deployment with Docker).
_VLLM: Final[dict[Maker, str]] = {
    "nvidia": "vllm/vllm-openai",
    "amd": "vllm/vllm-openai-rocm",
    "cpu": "vllm/vllm-openai-cpu",
}
#: The last release of each SGLang version of the catalog (pypi.org/project/sglang).
_SGLANG: Final = {"0.5": "v0.5.23"}
_SGLANG_SUFFIX: Final[dict[Maker, str]] = {"nvidia": "", "amd": "-rocm", "cpu": "-xeon"}
#: llama.cpp builds every commit; its images of servers have moving tags (docs/docker.md).
_LLAMA: Final[dict[Maker, str]] = {"nvidia": "server-cuda", "amd": "server-rocm", "cpu": "server"}
#: Triton with its vLLM backend; the vLLM inside is the container's own.
TRITON: Final = "nvcr.io/nvidia/tritonserver:26.07-vllm-python-py3"
#: Beside each decode server of llm-d: has prompts computed by the prefill server the router chose (llm-d/llm-d-router).
SIDECAR: Final = "ghcr.io/llm-d/llm-d-router-disagg-sidecar:v0.9.0"
#: nginx as the round-robin router; `resolve` in upstreams needs 1.27.3.
ROUTER: Final = "nginx:1.28"


def image_of(family: str, version: str, maker: Maker) -> str:
    """Of the engine's own project."""
    if family == "vllm":
        return f"{_VLLM[maker]}:v{version}" + (".0" if version.count(".") == 1 else "")
    if family == "sglang":
        return f"lmsysorg/sglang:{_SGLANG.get(version, 'v' + version)}{_SGLANG_SUFFIX[maker]}"
    return f"ghcr.io/ggml-org/llama.cpp:{_LLAMA[maker]}"
