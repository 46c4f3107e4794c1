"""The engines that `verify` can start: the deployment, server and client of each.

To add an engine, write its function here and enter it in STARTERS.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from calibration.importers.iteration_log import read_iteration_log
from calibration.serve import engines
from calibration.serve.clients import CLIENTS_KEY, Client, Endpoint, VllmBench
from calibration.serve.engines import SERVED_NAME, ServedLimits
from calibration.serve.llama_requests import read_burst_slots, read_single_request_steps
from calibration.serve.probe import BURST_INPUT_TOKENS
from calibration.serve.server import Launch, free_port
from catalogs.deployments.schema import Deployment, load_deployment
from catalogs.errors import InputError
from catalogs.hardware.catalog import parse_hardware
from catalogs.io.http import ServerUrl, get_json, plain_text
from catalogs.io.input_files import is_file
from simulator.endpoint.target import is_model_name
from simulator.schedulers.llama_cpp import count_passes

if TYPE_CHECKING:
    import pandas as pd

#: Longest version of an engine that is read, in characters.
_LONGEST_VERSION: Final = 80

#: Reads the steps of an engine from its log, in the columns of an iteration log; None if the log holds none.
StepsReader = Callable[[Path], "pd.DataFrame | None"]

#: Reads the passes over the weights of each burst of a probe, by the sizes of the bursts; () if the log does not tell.
PassesReader = Callable[[Path, tuple[int, ...]], tuple[int, ...]]

SHORT_LIMITS: Final = ServedLimits(32, 512, 1024, 32, 1024, prefix_caching=False, weight_dtype="fp32", threads=1)


@dataclass(frozen=True, slots=True)
class EngineChoice:
    """The choices of a user about an engine.

    Attributes:
        model: The folder of a Hugging Face model.
        limits: The limits of the engine.
        python: The interpreter of vLLM's environment; None searches for it.
        server: The server program of llama.cpp; None searches for it.
        port: The port of the server; None takes a free one.
    """

    model: Path
    limits: ServedLimits
    python: Path | None = None
    server: Path | None = None
    port: int | None = None


@dataclass(frozen=True, slots=True)
class EngineSubject:
    """The subject of a comparison: a deployment as the simulator reads it, and the server that runs it.

    `launch` is None if the user runs the server. `read_steps` reads the engine's steps from the server's log, and
    `read_passes` how often the decode steps of each burst of a probe read the weights; None if the log does not tell.
    """

    deployment: Deployment
    target: Endpoint
    launch: Launch | None
    read_steps: StepsReader | None = None
    read_passes: PassesReader | None = None


def engine_subject(
    engine: str, choice: EngineChoice, launch: Launch | None, read_steps: StepsReader | None = None
) -> EngineSubject:
    """Return the subject of an engine on this machine; `choice.model` may be a name of the catalog."""
    limits = asdict(choice.limits)
    del limits["threads"]
    deployment = Deployment(
        model=str(choice.model),
        engine=engine,
        hardware="local",
        kv_dtype=choice.limits.weight_dtype,
        sampling="greedy",
        **{**limits, "kv_blocks": choice.limits.kv_blocks or None},
    )
    target = Endpoint(launch.url if launch else "", SERVED_NAME, str(choice.model))
    return EngineSubject(deployment, target, launch, read_steps)


def check_model(folder: Path) -> None:
    """Check that a folder may hold a Hugging Face model.

    Raises:
        InputError: It does not, for example because the path is a name of the catalog.
    """
    if not is_file(folder / "config.json"):
        rule = "a model to serve is a folder with the config.json, weights and tokenizer of a Hugging Face model"
        raise InputError(rule, str(folder), hint="without --model, a small one with random weights is served")


def check_startable(engine: str, limits: ServedLimits, python: Path | None, server: Path | None) -> None:
    """Check that an engine has the data type, and that its programs and those of its client are installed.

    Raises:
        InputError: The engine cannot run with this data type here, or a program is missing.
    """
    _ = limits.torch_dtype  # raises where the weights are quantised
    if engine == "llama.cpp":
        if limits.weight_dtype != "fp32":
            raise InputError("verify runs llama.cpp with weights in fp32", limits.weight_dtype, "fp32")
        engines.find_llama_server(server)
    if engine != "transformers":
        engines.find_vllm(python)


def vllm(choice: EngineChoice) -> tuple[EngineSubject, Client]:
    """Return vLLM on this machine, driven by its own load client."""
    python = engines.find_vllm(choice.python)
    on_cpu = parse_hardware("local").accelerator.kind == "cpu"
    launch = engines.vllm(python, choice.model, choice.port or free_port(), choice.limits, on_cpu)
    return engine_subject("vllm", choice, launch, _iterations if launch.logs_steps else None), VllmBench(python)


def _iterations(log: Path) -> pd.DataFrame:
    """Return every step of vLLM's iteration log."""
    return read_iteration_log(log).rows


def _llama_passes(log: Path, sizes: tuple[int, ...]) -> tuple[int, ...]:
    """Return the passes of a decode step of each burst: only slots with neighbouring numbers share one."""
    slots = read_burst_slots(log, sizes, BURST_INPUT_TOKENS) or []
    return tuple(count_passes([(slot, 1) for slot in each], most=0) for each in slots)


def llama_cpp(choice: EngineChoice) -> tuple[EngineSubject, Client]:
    """Return llama.cpp's server on this machine with the same weights as fp32 GGUF, driven by vLLM's client.

    Raises:
        InputError: Another data type than fp32 is requested, or a program is missing.
    """
    from calibration.serve.gguf_file import write_gguf

    check_startable("llama.cpp", choice.limits, choice.python, choice.server)
    program, python = engines.find_llama_server(choice.server), engines.find_vllm(choice.python)
    weights = write_gguf(choice.model, choice.model / "model.gguf")
    launch = engines.llama_cpp(program, weights, choice.port or free_port(), choice.limits)
    subject = engine_subject("llama.cpp", choice, launch, read_single_request_steps)
    return replace(subject, read_passes=_llama_passes), VllmBench(python, new_connections=True)


def transformers(choice: EngineChoice) -> tuple[EngineSubject, Client]:
    """Return transformers' continuous batching in this process; there is no server, and the client is the engine."""
    from calibration.serve.transformers_engine import TransformersEngine

    return engine_subject("transformers", choice, None), TransformersEngine.load(choice.model, choice.limits)


STARTERS: Final[dict[str, Callable[[EngineChoice], tuple[EngineSubject, Client]]]] = {
    "vllm": vllm,
    "llama.cpp": llama_cpp,
    "transformers": transformers,
}


def endpoint(
    url: str, deployment: Path | None, served: str | None, tokenizer: str | None, key_env: str | None
) -> EngineSubject:
    """Return a running server, local or hosted.

    Raises:
        InputError: There is no deployment file, or the server does not answer or does not serve the model.
    """
    if deployment is None:
        raise InputError("an endpoint needs a deployment file", url, hint="give --deployment FILE.yaml")
    written = load_deployment(deployment)
    server = ServerUrl.parse(url, ("/v1",))
    if server.authorization is not None:  # load clients print their arguments, and the system shows them to everyone
        rule = "the URL of an endpoint must not contain a password, because load clients print it"
        raise InputError(rule, server.base, hint="put the key into an environment variable and give --key-env VARIABLE")
    base = server.base
    names = _served_names(server, Endpoint(base, "", "", key_env).environment().get(CLIENTS_KEY))
    if served is not None and served not in names:
        raise InputError("the endpoint does not serve this model", served, ", ".join(names[:3]))
    name = served or names[0]
    tokenizer = tokenizer or (written.model if Path(written.model).is_dir() else name)
    return EngineSubject(written, Endpoint(base, name, tokenizer, key_env), None)


def _served_names(server: ServerUrl, key: str | None) -> list[str]:
    """Return the names of the models of a server that can be arguments of a command.

    Raises:
        InputError: The server does not list its models.
    """
    address = f"{server.base}/v1/models"
    try:
        names = [entry["id"] for entry in get_json(address, server.headers(key))["data"]]
    except InputError as error:
        raise InputError(f"the endpoint does not list its models ({error.rule})", address) from None
    except (KeyError, TypeError):
        raise InputError("the endpoint does not list its models", address) from None
    usable = [name for name in names if isinstance(name, str) and is_model_name(name) and name[0] != "-"]
    if not usable:
        raise InputError("the endpoint does not serve any model", server.base)
    return usable


def engine_version(target: Endpoint) -> str:
    """Return the version that the server reports; empty if it reports none."""
    for path, key in (("/version", "version"), ("/props", "build_info")):
        try:
            document = get_json(target.url + path, timeout_s=5.0)
        except InputError:
            continue
        if isinstance(document, dict):
            return plain_text(document.get(key, ""), _LONGEST_VERSION)
    return ""
