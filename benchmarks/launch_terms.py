"""Time that launches add to steps outside whole CUDA graphs, from published step times.

    python benchmarks/launch_terms.py

The first table is the host time per kernel of steps outside CUDA graphs, where step times did not follow the device.
Each line is somebody's measured step, far longer than the same step in a graph and the same for one token as for
hundreds: the host's pace. Divided by the kernels `simulator.layers.step` counts. The median is what vllm.yaml ships as
`kernel_launch_us`.

The second table is the time that a piecewise graph adds per layer: decodes of one model, once in piecewise graphs and
once in whole ones. Of several loads, the median counts. The median over the models is `piece_us`.
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

#: (source, layers, milliseconds of decode steps in piecewise graphs, the same in whole ones), by load or batch size.
PIECEWISE = (
    (
        "vLLM pull request 9715: a model of two small layers, batches of 1, 4, 16, 64 and 104",
        2,
        (0.0913, 0.1011, 0.1134, 0.2136, 0.1968),
        (0.0718, 0.0810, 0.0928, 0.1960, 0.1775),
    ),
    (
        "vLLM pull request 20059: Qwen2.5-1.5B, median ITL at 1, 5, 10, 20, 50 and 100 requests/s",
        28,
        (5.39, 5.56, 5.90, 6.31, 6.60, 6.80),
        (5.03, 5.00, 5.17, 5.66, 6.02, 6.19),
    ),
    (
        "vLLM pull request 20059: Qwen2.5-7B in 4 bits on A100, median ITL at 10 requests/s",
        28,
        (9.25,),
        (8.12,),
    ),
)


def main() -> None:
    found = []
    for source, deployment, step_ms in PUBLISHED:
        launches = step_launches(Shard.of(resolve(deployment)))
        found.append(step_ms * 1e3 / launches)
        print(f"{found[-1]:5.1f} us for each of {launches} kernels   {source}")
    print(f"median {median(found):.1f} us\n")
    pieces = []
    for source, layers, cut, whole in PIECEWISE:
        pieces.append(median(1e3 * (a - b) / layers for a, b in zip(cut, whole, strict=True)))
        print(f"{pieces[-1]:5.1f} us for each of {layers} layers   {source}")
    print(f"median {median(pieces):.1f} us")


if __name__ == "__main__":
    main()
