"""The commands of `calibrate` that need the simulator: `verify`, and those of the sub-packages below this one."""

from __future__ import annotations

import catalogs.ui.quiet_start  # noqa: F401

# isort: split

import os
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from calibration.cli.main import app
from catalogs.errors import InputError
from catalogs.io.output_files import check_targets, make_folder, write_atomically, write_json
from catalogs.ui.entry_point import run_command
from catalogs.ui.shared_options import options_of
from simulator.endpoint.command import endpoint

if TYPE_CHECKING:
    from calibration.serve.clients import Client
    from simulator.verify.engines import EngineSubject
    from simulator.verify.session import Verification, VerificationEffort

app.command()(endpoint)

_ENGINES = "vllm or llama.cpp, started and stopped by this command; transformers, in this process."

_engine, _server = options_of("Engine that this command starts"), options_of("Server that runs already")
_load, _output = options_of("Load"), options_of("Output")


@app.command()
def verify(
    engine: Annotated[str, _engine("NAME", _ENGINES)] = "vllm",
    model: Annotated[
        Path | None, _engine("DIR", "Folder of a Hugging Face model; default: a small model with random weights.")
    ] = None,
    python: Annotated[Path | None, _engine("PATH", "Python interpreter of vLLM's environment.")] = None,
    server: Annotated[Path | None, _engine("PATH", "The llama-server program of llama.cpp.")] = None,
    threads: Annotated[int | None, _engine("N", "Threads of the engine on a CPU; default: all cores but one.")] = None,
    dtype: Annotated[str, _engine("T", "Data type of weights and cache: fp32, bf16, fp16.")] = "fp32",
    port: Annotated[int | None, _engine("P", "Port of the engine; default: a free one.")] = None,
    url: Annotated[
        str | None, _server("URL", "A running OpenAI-compatible server, local or hosted.", "--endpoint")
    ] = None,
    deployment: Annotated[Path | None, _server("FILE", "The deployment.yaml of the endpoint.")] = None,
    served: Annotated[str | None, _server("NAME", "Model name at the endpoint; default: its first.")] = None,
    tokenizer: Annotated[
        str | None, _server("NAME", "Tokenizer of the endpoint's model: a folder or hub name.")
    ] = None,
    key_env: Annotated[str | None, _server("VARIABLE", "Environment variable with the endpoint's API key.")] = None,
    input_tokens: Annotated[
        int, _load("N", "Mean prompt length; requests vary from half to one and a half of it.")
    ] = 128,
    output_tokens: Annotated[int, _load("N", "Mean output length, with the same variation.")] = 32,
    requests: Annotated[int, _load("N", "Requests of each trial.")] = 100,
    repeats: Annotated[int, _load("N", "Repeats of each trial; their spread is the noise.")] = 3,
    rate: Annotated[list[float] | None, _load("R", "Requests per second; repeatable. Default: three rates.")] = None,
    install: Annotated[
        bool | None,
        _output(None, "Let plan and simulate use the measured host times; default: yes, except for an endpoint."),
    ] = None,
    out: Annotated[Path | None, _output("DIR", "Folder for logs and results; default: with your profiles.")] = None,
    artefact: Annotated[
        Path | None, _output("DIR", "Keep the comparison with its rows and logs in a new folder.")
    ] = None,
    machine: Annotated[
        Path | None,
        _output("DIR", "Write what the machine did, with its page, into this folder; default: below --out."),
    ] = None,
    docs: Annotated[Path | None, _output("FILE", "Page to insert the comparison into, between its marks.")] = None,
    json_file: Annotated[str | None, _output("FILE", "Write JSON to FILE, or - for stdout.", "--json")] = None,
) -> None:
    """Serve a model with a real engine, replay requests with a real client, and compare with the simulation."""
    given = dict(locals())
    from calibration.artefacts.recording import check_new_folder
    from calibration.machine_trace.folder import check_new_trace
    from simulator.verify import screen
    from simulator.verify.session import verify as compare

    check_targets(json_file, docs)
    check_new_folder(artefact)
    check_new_trace(machine)
    _check_engine(engine)
    effort = _effort(input_tokens, output_tokens, requests, repeats, tuple(rate or ()))
    n_threads = _threads(threads)
    if url is not None:
        subject, client = _running(url, deployment, served, tokenizer, key_env, python)
    else:
        subject, client = _started(engine, model, dtype, n_threads, python, server, port)
    if docs is not None:
        screen.check_place(docs, subject.deployment.engine)
    folder = _results_folder(out, engine if url is None else "endpoint")
    found = compare(subject, client, effort, folder, lambda text: typer.echo(text, err=True), machine)
    # The result is written first, so that a later failure does not lose the measurement.
    write_json(screen.document(found), str(folder / "verify.json"))
    # Times through a network are not host times, so those of an endpoint are installed only on request.
    if url is None if install is None else install:
        _install(found)
    _show(found, docs, json_file)
    if artefact is not None:
        from simulator.verify.recorded import record

        record(artefact, found, folder, screen.document(found), given)
    if found.missed(found.judged):
        raise typer.Exit(1)


def _check_engine(engine: str) -> None:
    """Check that this command can start the engine.

    Raises:
        InputError: It cannot.
    """
    from simulator.verify import engines

    if engine not in engines.STARTERS:
        raise InputError("this engine cannot be started", engine, ", ".join(engines.STARTERS))


def _results_folder(out: Path | None, name: str) -> Path:
    """Return the folder for logs and results: `out`, or a new one with a name and the time in it."""
    from catalogs.io.yaml_files import user_folder

    return make_folder(out or user_folder("verifications") / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}")


def _running(
    endpoint: str,
    deployment: Path | None,
    served: str | None,
    tokenizer: str | None,
    key_env: str | None,
    python: Path | None,
) -> tuple[EngineSubject, Client]:
    """Return a running server by its URL, and the client that loads it.

    Raises:
        InputError: The server does not answer, its deployment is not given, or there is no vLLM for the client.
    """
    from calibration.serve.clients import VllmBench
    from calibration.serve.engines import find_vllm
    from simulator.verify import engines

    subject = engines.endpoint(endpoint, deployment, served, tokenizer, key_env)
    return subject, VllmBench(find_vllm(python))


def _started(
    engine: str,
    model: Path | None,
    dtype: str,
    n_threads: int,
    python: Path | None,
    server: Path | None,
    port: int | None,
) -> tuple[EngineSubject, Client]:
    """Return an engine that this command starts, and the client that loads it.

    Without a model, a small one with random weights is written, after a check that the engine can be started.

    Raises:
        InputError: The engine or the model cannot be used.
    """
    from calibration.serve.tiny_model import TINY_NAME, write_tiny_model
    from catalogs.io.yaml_files import user_folder
    from simulator.verify import engines

    limits = replace(engines.SHORT_LIMITS, weight_dtype=dtype, threads=n_threads)
    if model is not None:
        engines.check_model(model)
    engines.check_startable(engine, limits, python, server)
    model = model or write_tiny_model(user_folder("models") / TINY_NAME)
    return engines.STARTERS[engine](engines.EngineChoice(model, limits, python, server, port))


def _install(found: Verification) -> None:
    """Let plan and simulate use the measured host times, unless other processes used the machine."""
    from calibration.bundles.engine_calibration import save

    contended = "not installed: other processes used the machine"
    typer.echo(contended if found.contended else f"installed: {save(found.calibration)}", err=True)


def _effort(
    input_tokens: int, output_tokens: int, requests: int, repeats: int, rates: tuple[float, ...]
) -> VerificationEffort:
    """Return the requests, repeats and rates of the trials.

    Raises:
        InputError: A number is too small, or a rate is given twice.
    """
    from simulator.verify.session import VerificationEffort
    from simulator.verify.trials import MeanLengths, TrialSize

    if requests < 10 or repeats < 2:
        raise InputError("a comparison needs at least 10 requests and 2 repeats", f"{requests}, {repeats}", "100, 3")
    if min(input_tokens, output_tokens) < 4:
        rule = "a request needs at least 4 input and 4 output tokens"
        raise InputError(rule, f"{input_tokens}, {output_tokens}", "128, 32")
    for i, per_s in enumerate(rates):
        if not 0.0 < per_s < float("inf"):
            raise InputError("a rate in requests per second must be above zero", per_s, "2")
        if f"{per_s:g}" in [f"{earlier:g}" for earlier in rates[:i]]:
            raise InputError("each rate must be given only once", per_s)
    return VerificationEffort(TrialSize(MeanLengths(input_tokens, output_tokens), requests), repeats, rates)


def _threads(given: int | None) -> int:
    """Return the number of threads that an engine on a CPU uses: as given, or all cores of this process but one.

    Raises:
        InputError: The number is below one or above the cores of this process.
    """
    cores = len(os.sched_getaffinity(0))
    if given is not None and not 1 <= given <= cores:
        raise InputError("threads must be between 1 and the number of cores of this process", given, str(cores))
    return given or max(1, cores - 1)


def _show(found: Verification, docs: Path | None, json_file: str | None) -> None:
    """Print a verification, and write it into the page and the file of the options."""
    from simulator.verify import screen

    if json_file != "-":
        screen.print_verification(found)
    if docs is not None:
        write_atomically(docs, [screen.place(found, docs.read_text(encoding="utf-8"))])
    if json_file is not None:
        write_json(screen.document(found), json_file)


def main(args: list[str] | None = None) -> None:
    """Run `calibrate` with all of its commands, as the entry point of the console script."""
    sys.exit(run_command("calibrate", app, args, last=True))


if __name__ == "__main__":
    main()
