"""The script that serves an embedding or reranking plan with vLLM's pooling runner.

Sources: `--runner pooling` of vLLM 0.32 (vllm/config/model.py) and its documentation of pooling models. One server runs
on each accelerator. A step takes the waiting requests in order, up to `--max-num-seqs` and
`--max-num-batched-tokens`; a request ends with the step in which its text is computed. Texts longer than
`--max-model-len` are refused.
"""

from __future__ import annotations

import shlex
from typing import Any, Final

from catalogs.errors import InputError
from catalogs.hardware.catalog import parse_hardware
from catalogs.launch.images import ContainerDevice
from catalogs.networks.names import load_names
from planner.deploy.files import bash_script
from planner.networks.job import TEXT_FAMILIES
from planner.networks.job_service import POOLING
from planner.networks.schema import JobBlock, NetworkPlan

#: vLLM's names of the number formats that it computes such networks in.
_DTYPES: Final = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32", "tf32": "float32"}

#: The variable that selects the accelerators of a process, by the maker of the device.
_VISIBLE: Final = {"nvidia": "CUDA_VISIBLE_DEVICES", "amd": "HIP_VISIBLE_DEVICES"}

#: Port of the server: the default of `vllm serve`.
_PORT: Final = 8000


def pooling_files(job: JobBlock, plan: NetworkPlan) -> dict[str, str]:
    """Return the script that starts one server for each replica on one machine.

    Raises:
        InputError: The network is no embedding or reranking network, or the plan has what the server lacks.
    """
    keys = plan.deployment
    _check(job, keys)
    device = ContainerDevice.of(parse_hardware(str(keys["hardware"])).accelerator)
    command = ["vllm", "serve", *server_options(job, keys)]
    lines = []
    for i in range(keys["replicas"]):
        variable = _VISIBLE.get(device.maker)
        visible = f"{variable}={i} " if variable else ""
        lines.append(f"{visible}{shlex.join([*command, '--port', str(_PORT + i)])} &")
    last = _PORT + keys["replicas"] - 1
    lines += [f"# balance the requests over the ports {_PORT} to {last}"] if last > _PORT else []
    return {"serve.sh": bash_script([*lines, "wait"], "One server for each replica.")}


def server_options(job: JobBlock, keys: dict[str, Any]) -> list[str]:
    """Return the model and the options of one server: as many texts in a step as the plan has."""
    tokens = job.sizes.get("tokens", 512)
    found = {
        "--runner": "pooling",
        "--dtype": _DTYPES[keys["precision"]],
        "--max-model-len": tokens,
        "--max-num-seqs": keys["max_batch"],
        "--max-num-batched-tokens": keys["max_batch"] * tokens,
    }
    model = load_names().hf_id(job.network) or job.network
    return [model, *(text for option, value in found.items() for text in (option, str(value)))]


def notes(plan: NetworkPlan) -> list[str]:
    """Return what differs from the plan, one sentence each."""
    keys, found = plan.deployment, []
    if keys["queue_delay_s"]:
        delay = f"{1e3 * keys['queue_delay_s']:g} ms"
        found.append(f"vLLM starts a step at once: the plan's queueing delay of {delay} has no counterpart")
    if keys["engine"] != POOLING:
        found.append(
            f"the plan was sized with the batches of {keys['engine']}: `--set engine=vllm` plans those of vLLM"
        )
    found.append("texts are served with the kernels of torch in the plan; those of vLLM are not simulated")
    return found


def _check(job: JobBlock, keys: dict[str, Any]) -> None:
    if job.family not in TEXT_FAMILIES:
        rule = f"vLLM's pooling runner serves networks of {' and '.join(TEXT_FAMILIES)}"
        raise InputError(rule, job.family, "--target triton")
    if keys["precision"] not in _DTYPES:
        rule = "vLLM's pooling runner computes these networks in 16 or 32 bits"
        raise InputError(rule, keys["precision"], "--precision bf16")
    if keys.get("instances", 1) > 1:
        raise InputError("vLLM runs one instance on an accelerator", keys["instances"], "1")
