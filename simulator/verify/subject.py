"""What is verified: a deployment as the simulator reads it, and the server that runs it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Final
from urllib.request import Request, urlopen

from calibration.serve import engines
from calibration.serve.clients import CLIENTS_KEY, Target
from calibration.serve.engines import SERVED_NAME, Limits
from calibration.serve.server import Launch, free_port
from catalogs.deployment import Deployment, load_deployment
from catalogs.errors import InputError
from catalogs.hardware import parse_hardware

SHORT_LIMITS: Final = Limits(32, 512, 1024, 32, 1024, "fp32", 1)


@dataclass(frozen=True, slots=True)
class Subject:
    """`launch` is None for a server that the user runs. `keeps_log`: its log tells every engine step."""

    deployment: Deployment
    target: Target
    launch: Launch | None
    keeps_log: bool


def vllm_here(model: Path, python: Path | None, limits: Limits, port: int | None) -> Subject:
    """vLLM on this machine, serving the weights in the folder `model`."""
    on_cpu = parse_hardware("local").accelerator.kind == "cpu"
    launch = engines.vllm(engines.find_vllm(python), model, port or free_port(), limits, on_cpu)
    return Subject(_deployment("vllm", model, limits), Target(launch.url, SERVED_NAME, str(model)), launch, True)


def llama_cpp_here(model: Path, server: Path | None, limits: Limits, port: int | None) -> Subject:
    """llama.cpp's server on this machine, serving the same weights converted to GGUF, in fp32."""
    from calibration.serve.gguf_file import write_gguf

    if limits.weight_dtype != "fp32":
        raise InputError("llama.cpp is served the weights in fp32 here", limits.weight_dtype, "fp32")
    program = engines.find_llama_server(server)
    weights = write_gguf(model, model / "model.gguf")
    launch = engines.llama_cpp(program, weights, port or free_port(), limits)
    return Subject(_deployment("llama.cpp", model, limits), Target(launch.url, SERVED_NAME, str(model)), launch, False)


def transformers_here(model: str, limits: Limits) -> Subject:
    """transformers' continuous batching in this process: no server. `model` is a folder or a name of the catalog."""
    return Subject(_deployment("transformers", model, limits), Target("", SERVED_NAME, model), None, True)


def endpoint(
    url: str, deployment: Path | None, served: str | None, tokenizer: str | None, key_env: str | None
) -> Subject:
    """A server that somebody runs, hosted or not. InputError where it does not answer, or what it runs is not said."""
    if deployment is None:
        raise InputError("the simulator must know what the endpoint runs", url, "--deployment FILE.yaml")
    written = load_deployment(deployment)
    base = url.rstrip("/").removesuffix("/v1")
    if not base.startswith(("http://", "https://")):
        raise InputError("an endpoint is a URL", url, f"http://{url}")
    key = Target(base, "", "", key_env).environment().get(CLIENTS_KEY)
    names = _served_names(base, key)
    if served is not None and served not in names:
        raise InputError("the endpoint serves no such model", served, ", ".join(names[:3]))
    name = served or names[0]
    return Subject(written, Target(base, name, tokenizer or _tokenizer(written.model, name), key_env), None, False)


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


def engine_version(target: Target) -> str:
    """What the server says of its version; "" where it says nothing."""
    for path, key in (("/version", "version"), ("/props", "build_info")):
        try:
            with urlopen(target.url + path, timeout=5.0) as answer:
                return str(json.load(answer).get(key, ""))
        except (OSError, HTTPException, ValueError, AttributeError):
            continue
    return ""


def _deployment(engine: str, model: Path | str, limits: Limits) -> Deployment:
    return Deployment(
        model=str(model),
        engine=engine,
        hardware="local",
        weight_dtype=limits.weight_dtype,
        kv_dtype=limits.weight_dtype,
        max_num_seqs=limits.max_num_seqs,
        max_num_batched_tokens=limits.max_num_batched_tokens,
        max_model_len=limits.max_model_len,
        block_size=limits.block_size,
        kv_blocks=limits.kv_blocks,
        prefix_caching=False,
        sampling="greedy",
    )
