"""Engines that `verify` starts itself: what each is told and which client drives it. A function and a line for each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from calibration.serve import engines
from calibration.serve.clients import Client, Target, VllmBench
from calibration.serve.engines import SERVED_NAME, ServedLimits
from calibration.serve.server import free_port
from catalogs.deployment import Deployment
from catalogs.errors import InputError
from catalogs.hardware import parse_hardware
from simulator.verify.subject import Subject

SHORT_LIMITS: Final = ServedLimits(32, 512, 1024, 32, 1024, prefix_caching=False, weight_dtype="fp32", threads=1)


@dataclass(frozen=True, slots=True)
class Choice:
    """What a user may choose. python: of vLLM's environment; server: llama.cpp's; None finds them, or a free port."""

    model: Path  # folder of a Hugging Face model
    limits: ServedLimits
    python: Path | None = None
    server: Path | None = None
    port: int | None = None


def vllm(choice: Choice) -> tuple[Subject, Client]:
    """vLLM on this machine, driven by its own load client."""
    python = engines.find_vllm(choice.python)
    on_cpu = parse_hardware("local").accelerator.kind == "cpu"
    launch = engines.vllm(python, choice.model, choice.port or free_port(), choice.limits, on_cpu)
    target = Target(launch.url, SERVED_NAME, str(choice.model))
    return Subject(_deployment("vllm", choice), target, launch, True), VllmBench(python)


def llama_cpp(choice: Choice) -> tuple[Subject, Client]:
    """llama.cpp's server here, serving the same weights converted to GGUF, in fp32; driven by vLLM's client."""
    from calibration.serve.gguf_file import write_gguf

    if choice.limits.weight_dtype != "fp32":
        raise InputError("llama.cpp is served the weights in fp32 here", choice.limits.weight_dtype, "fp32")
    program, python = engines.find_llama_server(choice.server), engines.find_vllm(choice.python)
    weights = write_gguf(choice.model, choice.model / "model.gguf")
    launch = engines.llama_cpp(program, weights, choice.port or free_port(), choice.limits)
    target = Target(launch.url, SERVED_NAME, str(choice.model))
    return Subject(_deployment("llama.cpp", choice), target, launch, False), VllmBench(python)


def transformers(choice: Choice) -> tuple[Subject, Client]:
    """transformers' continuous batching in this process: no server, and the client is the engine."""
    from calibration.serve.transformers_engine import InProcess

    return transformers_subject(choice), InProcess.load(choice.model, choice.limits)


def transformers_subject(choice: Choice) -> Subject:
    """What that engine runs; `choice.model` may then be a name of the catalog."""
    target = Target("", SERVED_NAME, str(choice.model))
    return Subject(_deployment("transformers", choice), target, None, True)


STARTERS: Final[dict[str, Callable[[Choice], tuple[Subject, Client]]]] = {
    "vllm": vllm,
    "llama.cpp": llama_cpp,
    "transformers": transformers,
}


def _deployment(engine: str, choice: Choice) -> Deployment:
    told = asdict(choice.limits)
    del told["threads"]
    return Deployment(
        model=str(choice.model),
        engine=engine,
        hardware="local",
        kv_dtype=choice.limits.weight_dtype,
        sampling="greedy",
        **{**told, "kv_blocks": choice.limits.kv_blocks or None},
    )
