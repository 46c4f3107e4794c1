"""The script that serves a plan of a diffusion model with SGLang-Diffusion.

Source: the command line of SGLang-Diffusion (docs.sglang.io, "SGLang diffusion CLI" and "Parallelism").
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import Final

from planner.deploy.files import bash_script
from planner.networks.schema import JobBlock, NetworkPlan

#: The first port of the servers that a script starts.
_PORT: Final = 30000


def sglang_files(_: JobBlock, plan: NetworkPlan) -> dict[str, str]:
    """Return the script that starts one server for each replica on one machine."""
    return {"serve.sh": bash_script(_servers(plan), "One server for each replica; balance the jobs over their ports.")}


def _servers(plan: NetworkPlan) -> Iterator[str]:
    keys = plan.deployment
    ranks = keys["ulysses"] * keys["ring"] * keys["guidance"]
    flags = {
        "--num-gpus": ranks,
        "--ulysses-degree": keys["ulysses"],
        "--ring-degree": keys["ring"],
        "--batching-max-size": keys["max_batch"],
        "--batching-delay-ms": round(1e3 * keys["queue_delay_s"]),
    }
    usual = {"--num-gpus": 1, "--ulysses-degree": 1, "--ring-degree": 1}
    usual |= {"--batching-max-size": 1, "--batching-delay-ms": 0}
    given = [text for flag, value in flags.items() if value != usual[flag] for text in (flag, str(value))]
    given += ["--enable-cfg-parallel"] if keys["guidance"] > 1 else []
    given += ["--enable-torch-compile", "true"] if keys["mode"] == "compiled" else []
    given += ["--use-fsdp-inference", "true"] if keys["shard_weights"] else []
    yield ': "${MODEL:?set MODEL to the repository or folder of the weights}"'
    for i in range(keys["replicas"]):
        gpus = ",".join(str(i * ranks + rank) for rank in range(ranks))
        options = shlex.join([*given, "--port", str(_PORT + i)])
        yield f'CUDA_VISIBLE_DEVICES={gpus} sglang serve --model-path "$MODEL" {options} &'
    yield "wait"


def notes(_: NetworkPlan) -> list[str]:
    """Return what the variable of the script stands for."""
    return ["MODEL is the repository or folder of the weights in the layout of diffusers"]
