"""The files that start a plan of a network: a deployment for `simulate`, and the configuration of its engine.

Embedding and reranking networks are also served by text-embeddings-inference (text_embeddings.py) and by vLLM's pooling
runner (pooling_runner.py).

Sources: Triton's model configuration (docs.nvidia.com/deeplearning/triton-inference-server, "Model Configuration" and
"Batchers"), and the command line of SGLang-Diffusion (docs.sglang.io, "SGLang diffusion CLI" and "Parallelism").
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from catalogs.errors import InputError
from catalogs.io.yaml_loader import dump_yaml
from planner.deploy.files import MARK, bash_script, write_folder
from planner.deploy.targets.registry import TEXT_EMBEDDINGS
from planner.networks import pooling_runner, text_embeddings
from planner.networks.job import TEXT_FAMILIES
from planner.networks.schema import NetworkAnswer, NetworkPlan
from planner.networks.service import POOLING

TRITON: Final = "triton"

SGLANG: Final = "sglang"

#: The first port of the servers that a script starts.
_PORT: Final = 30000

#: The targets that start each engine of plans, the usual one first.
_TARGETS: Final = {
    "triton": (TRITON, TEXT_EMBEDDINGS, POOLING),
    "sglang-diffusion": (SGLANG,),
    "vllm": (POOLING, TEXT_EMBEDDINGS),
}

#: What Triton's model configuration needs and a network file does not hold.
_MISSING: Final = "# add `backend` (or `platform`), `input` and `output` of your exported model"


@dataclass(frozen=True, slots=True)
class NetworkPackage:
    """The files of a deployment by path, with notes."""

    target: str
    files: dict[str, str]
    notes: tuple[str, ...]

    def document(self) -> dict[str, Any]:
        """Return the document of `plan deploy --json`."""
        return {"target": self.target, "files": sorted(self.files), "notes": list(self.notes)}


def usual_target(plan: NetworkPlan) -> str:
    """Return the target that starts the engine of a plan."""
    return _TARGETS[str(plan.deployment["engine"])][0]


def pack_network(answer: NetworkAnswer, target: str, alternative: int = 0) -> NetworkPackage:
    """Return the files that start a plan of a network.

    Raises:
        InputError: The answer has no such plan, or another target starts its engine.
    """
    if not 0 <= alternative < len(answer.plans):
        why = "" if answer.infeasible is None else f": {answer.infeasible.binding_constraint}"
        raise InputError(f"this answer has {len(answer.plans)} plans{why}", alternative, "0" if answer.plans else None)
    plan = answer.plans[alternative]
    engine = str(plan.deployment["engine"])
    targets = _targets(answer, engine)
    if target not in targets:
        raise InputError(f"this plan is for {engine}", f"--target {target}", f"--target {' or '.join(targets)}")
    files = {"deployment.yaml": dump_yaml(plan.deployment)}
    if target == TEXT_EMBEDDINGS:
        files |= text_embeddings.text_embedding_files(answer.job, plan)
    elif target == POOLING:
        files |= pooling_runner.pooling_files(answer.job, plan)
    else:
        files |= _triton(answer, plan) if target == TRITON else _sglang(plan)
    files[MARK] = json.dumps(plan.document(), indent=1, allow_nan=False) + "\n"
    notes = [f"simulate deployment.yaml --rate {plan.requests_per_s:g} repeats the figures of the plan", *plan.notices]
    if target == TRITON:
        notes.append(
            "config.pbtxt has the batcher and the instances; the inputs of your exported model are yours to add"
        )
    elif target == TEXT_EMBEDDINGS:
        notes += text_embeddings.notes(plan)
    elif target == POOLING:
        notes += pooling_runner.notes(plan)
    else:
        notes.append("MODEL is the repository or folder of the weights in the layout of diffusers")
    return NetworkPackage(target, files, tuple(notes))


def _targets(answer: NetworkAnswer, engine: str) -> tuple[str, ...]:
    """Return the targets that start the engine of a plan; only some networks are served as text embeddings."""
    found = _TARGETS.get(engine, (TRITON,))
    serves = answer.job.family in TEXT_FAMILIES
    return tuple(target for target in found if target not in (TEXT_EMBEDDINGS, POOLING) or serves)


def write_network_deployment(
    answer: NetworkAnswer, target: str, folder: Path, alternative: int = 0, force: bool = False
) -> NetworkPackage:
    """Write the files that start a plan of a network into a folder, and return them.

    Raises:
        InputError: The answer has no such plan, the target cannot start it, or the folder cannot be written.
    """
    package = pack_network(answer, target, alternative)
    write_folder(folder, package.files, force)
    return package


def _triton(answer: NetworkAnswer, plan: NetworkPlan) -> dict[str, str]:
    """Return the model configuration: one instance on each accelerator of the plan."""
    keys = plan.deployment
    name = re.sub(r"[^A-Za-z0-9_-]+", "-", answer.job.network)
    gpus = ", ".join(str(i) for i in range(keys["replicas"]))
    lines = [f'name: "{name}"', _MISSING, f"max_batch_size: {keys['max_batch']}"]
    lines += ["instance_group [", f"  {{ count: {keys['instances']}, kind: KIND_GPU, gpus: [ {gpus} ] }}", "]"]
    if keys["max_batch"] > 1:
        delay_us = round(1e6 * keys["queue_delay_s"])
        sizes = ", ".join(map(str, keys["preferred_batches"]))
        lines.append("dynamic_batching {")
        lines += [f"  preferred_batch_size: [ {sizes} ]"] if sizes else []
        lines += [f"  max_queue_delay_microseconds: {delay_us}"] if delay_us else []
        lines.append("}")
    return {f"model_repository/{name}/config.pbtxt": "\n".join([*lines, ""])}


def _sglang(plan: NetworkPlan) -> dict[str, str]:
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
