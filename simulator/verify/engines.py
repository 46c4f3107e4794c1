"""Engines that `verify` starts itself: what each is told and which client drives it. A function and a line for each.

What is verified: a deployment as the simulator reads it, and the server that runs it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Final
from urllib.request import Request, urlopen

from calibration.serve import engines
from calibration.serve.clients import CLIENTS_KEY, Client, Endpoint, VllmBench
from calibration.serve.engines import SERVED_NAME, ServedLimits
from calibration.serve.server import Launch, free_port
from catalogs.deployments.schema import Deployment, load_deployment
from catalogs.errors import InputError
from catalogs.hardware.catalog import parse_hardware

SHORT_LIMITS: Final = ServedLimits(32, 512, 1024, 32, 1024, prefix_caching=False, weight_dtype="fp32", threads=1)


@dataclass(frozen=True, slots=True)
class EngineChoice:
    """What a user may choose. python: of vLLM's environment; server: llama.cpp's; None finds them, or a free port."""

    model: Path  # folder of a Hugging Face model
    limits: ServedLimits
    python: Path | None = None
    server: Path | None = None
    port: int | None = None


def vllm(choice: EngineChoice) -> tuple[EngineSubject, Client]:
    """vLLM on this machine, driven by its own load client."""
    python = engines.find_vllm(choice.python)
    on_cpu = parse_hardware("local").accelerator.kind == "cpu"
    launch = engines.vllm(python, choice.model, choice.port or free_port(), choice.limits, on_cpu)
    target = Endpoint(launch.url, SERVED_NAME, str(choice.model))
    return EngineSubject(_deployment("vllm", choice), target, launch, True), VllmBench(python)


def llama_cpp(choice: EngineChoice) -> tuple[EngineSubject, Client]:
    """llama.cpp's server here, serving the same weights converted to GGUF, in fp32; driven by vLLM's client."""
    from calibration.serve.gguf_file import write_gguf

    if choice.limits.weight_dtype != "fp32":
        raise InputError("llama.cpp is served the weights in fp32 here", choice.limits.weight_dtype, "fp32")
    program, python = engines.find_llama_server(choice.server), engines.find_vllm(choice.python)
    weights = write_gguf(choice.model, choice.model / "model.gguf")
    launch = engines.llama_cpp(program, weights, choice.port or free_port(), choice.limits)
    target = Endpoint(launch.url, SERVED_NAME, str(choice.model))
    return EngineSubject(_deployment("llama.cpp", choice), target, launch, False), VllmBench(python)


def transformers(choice: EngineChoice) -> tuple[EngineSubject, Client]:
    """transformers' continuous batching in this process: no server, and the client is the engine."""
    from calibration.serve.transformers_engine import TransformersEngine

    return transformers_subject(choice), TransformersEngine.load(choice.model, choice.limits)


def transformers_subject(choice: EngineChoice) -> EngineSubject:
    """What that engine runs; `choice.model` may then be a name of the catalog."""
    target = Endpoint("", SERVED_NAME, str(choice.model))
    return EngineSubject(_deployment("transformers", choice), target, None, True)


@dataclass(frozen=True, slots=True)
class EngineSubject:
    """`launch` is None for a server that the user runs. `keeps_log`: its log tells every engine step."""

    deployment: Deployment
    target: Endpoint
    launch: Launch | None
    keeps_log: bool


STARTERS: Final[dict[str, Callable[[EngineChoice], tuple[EngineSubject, Client]]]] = {
    "vllm": vllm,
    "llama.cpp": llama_cpp,
    "transformers": transformers,
}


def _deployment(engine: str, choice: EngineChoice) -> Deployment:
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


def endpoint(
    url: str, deployment: Path | None, served: str | None, tokenizer: str | None, key_env: str | None
) -> EngineSubject:
    """A server that somebody runs, hosted or not. InputError where it does not answer, or what it runs is not said."""
    if deployment is None:
        raise InputError("the simulator must know what the endpoint runs", url, "--deployment FILE.yaml")
    written = load_deployment(deployment)
    base = url.rstrip("/").removesuffix("/v1")
    if not base.startswith(("http://", "https://")):
        raise InputError("an endpoint is a URL", url, f"http://{url}")
    key = Endpoint(base, "", "", key_env).environment().get(CLIENTS_KEY)
    names = _served_names(base, key)
    if served is not None and served not in names:
        raise InputError("the endpoint serves no such model", served, ", ".join(names[:3]))
    name = served or names[0]
    return EngineSubject(
        written, Endpoint(base, name, tokenizer or _tokenizer(written.model, name), key_env), None, False
    )


def _tokenizer(model: str, served: str) -> str:
    """The model's own folder, else the name it is served by, which clients look up."""
    return model if Path(model).is_dir() else served


def _served_names(base: str, key: str | None) -> list[str]:
    asked = Request(f"{base}/v1/models", headers={"Authorization": f"Bearer {key}"} if key else {})
    try:
        with urlopen(asked, timeout=10.0) as answer:
            names = [str(entry["id"]) for entry in json.load(answer)["data"]]
    except (OSError, HTTPException, ValueError, KeyError, TypeError) as error:
        raise InputError(f"the endpoint does not list its models ({error})", f"{base}/v1/models") from None
    if not names:
        raise InputError("the endpoint serves no model", base)
    return names


def engine_version(target: Endpoint) -> str:
    """What the server says of its version; "" where it says nothing."""
    for path, key in (("/version", "version"), ("/props", "build_info")):
        try:
            with urlopen(target.url + path, timeout=5.0) as answer:
                return str(json.load(answer).get(key, ""))
        except (OSError, HTTPException, ValueError, AttributeError):
            continue
    return ""
