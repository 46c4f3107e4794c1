"""Host time per kernel of steps that run outside CUDA graphs, from published step times that did not follow the device.

    python benchmarks/launch_terms.py

Each line is somebody's measured step, far longer than the same step in a graph and the same for one token as for
hundreds: the host's pace. Divided by the kernels `simulator.layers.step` counts. The median is what vllm.yaml ships as
`kernel_launch_us`.
"""

from __future__ import annotations

from statistics import median

from catalogs.deployments.resolve import resolve
from catalogs.deployments.schema import Deployment
from simulator.layers.shard import Shard
from simulator.layers.step import step_launches

#: (source, deployment with the same layers, milliseconds of an eager step).
PUBLISHED = (
    (
        "vLLM issue 45709: Qwen3-30B-A3B TP4 on L20, decode of 8, compiled, no graphs (11.8 ms with)",
        Deployment(model="qwen3-30b-a3b", hardware="h100x4", tensor_parallel=4),
        34.4,
    ),
    (
        "vLLM issue 45709: the same on RTX 4090D (10.0 ms with)",
        Deployment(model="qwen3-30b-a3b", hardware="h100x4", tensor_parallel=4),
        35.2,
    ),
    (
        "SGLang pull request 12160: DeepSeek-V3, prefill of one token (23.1 ms with)",
        Deployment(model="deepseek-v3", hardware="h200x8", tensor_parallel=8),
        82.6,
    ),
    (
        "sfllm pull request 46: Qwen3-4B (layers as Qwen3-8B), prefill of 129 tokens (5.7 ms with)",
        Deployment(model="qwen3-8b", hardware="h100"),
        16.6,
    ),
)


def main() -> None:
    found = []
    for source, deployment, step_ms in PUBLISHED:
        launches = step_launches(Shard.of(resolve(deployment)))
        found.append(step_ms * 1e3 / launches)
        print(f"{found[-1]:5.1f} us for each of {launches} kernels   {source}")
    print(f"median {median(found):.1f} us")


if __name__ == "__main__":
    main()
