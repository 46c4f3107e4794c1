"""The `verify` command of `calibrate`. It needs the simulator, so this package adds it to that command."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from calibration.commands.main import app
from catalogs.errors import InputError
from catalogs.io.output_files import check_targets, make_folder, write_atomically, write_json
from catalogs.ui.entry_point import run_command

if TYPE_CHECKING:
    from calibration.serve.clients import Client
    from calibration.serve.engines import ServedLimits
    from simulator.verify.session import Verification


_ENGINES = "vllm or llama.cpp, started and stopped by this command; transformers, in this process."

_MODEL = "Folder of a Hugging Face model; default: a small model with random weights."


@app.command()
def verify(
    engine: Annotated[str, typer.Option(metavar="NAME", help=_ENGINES)] = "vllm",
    model: Annotated[Path | None, typer.Option(metavar="DIR", help=_MODEL)] = None,
    python: Annotated[
        Path | None, typer.Option(metavar="PATH", help="Python interpreter of vLLM's environment.")
    ] = None,
    server: Annotated[Path | None, typer.Option(metavar="PATH", help="The llama-server program of llama.cpp.")] = None,
    endpoint: Annotated[
        str | None, typer.Option(metavar="URL", help="A running OpenAI-compatible server, local or hosted.")
    ] = None,
    deployment: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The deployment.yaml of the endpoint.")
    ] = None,
    served: Annotated[
        str | None, typer.Option(metavar="NAME", help="Model name at the endpoint; default: its first.")
    ] = None,
    tokenizer: Annotated[
        str | None, typer.Option(metavar="NAME", help="Tokenizer of the endpoint's model: a folder or hub name.")
    ] = None,
    key_env: Annotated[
        str | None, typer.Option(metavar="VARIABLE", help="Environment variable with the endpoint's API key.")
    ] = None,
    input_tokens: Annotated[
        int, typer.Option(metavar="N", help="Mean prompt length; requests vary from half to one and a half of it.")
    ] = 128,
    output_tokens: Annotated[int, typer.Option(metavar="N", help="Mean output length, with the same variation.")] = 32,
    requests: Annotated[int, typer.Option(metavar="N", help="Requests of each trial.")] = 100,
    repeats: Annotated[int, typer.Option(metavar="N", help="Repeats of each trial; their spread is the noise.")] = 3,
    rate: Annotated[
        list[float] | None, typer.Option(metavar="R", help="Requests per second; repeatable. Default: three rates.")
    ] = None,
    threads: Annotated[
        int | None, typer.Option(metavar="N", help="Threads of the engine on a CPU; default: all cores but one.")
    ] = None,
    dtype: Annotated[str, typer.Option(metavar="T", help="Data type of weights and cache: fp32, bf16, fp16.")] = "fp32",
    port: Annotated[int | None, typer.Option(metavar="P", help="Port of the engine; default: a free one.")] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder for logs and results; default: with your profiles.")
    ] = None,
    install: Annotated[
        bool | None,
        typer.Option(help="Let plan and simulate use the measured host times; default: yes, except for an endpoint."),
    ] = None,
    docs: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Insert the judged lines between the marks of this page.")
    ] = None,
    json_file: Annotated[
        str | None, typer.Option("--json", metavar="FILE", help="Write JSON to FILE, or - for stdout.")
    ] = None,
) -> None:
    """Serve a model with a real engine, replay requests with a real client, and compare with the simulation."""
    from simulator.verify.engines import STARTERS, EngineChoice
    from simulator.verify.session import VerificationEffort
    from simulator.verify.session import verify as compare
    from simulator.verify.trials import MeanLengths, TrialSize

    check_targets(json_file, docs)
    if engine not in STARTERS:
        raise InputError("this engine cannot be started", engine, ", ".join(STARTERS))
    if requests < 10 or repeats < 2:
        raise InputError("a comparison needs at least 10 requests and 2 repeats", f"{requests}, {repeats}", "100, 3")
    if min(input_tokens, output_tokens) < 4:
        raise InputError(
            "a request needs at least 4 input and 4 output tokens", f"{input_tokens}, {output_tokens}", "128, 32"
        )
    effort = VerificationEffort(TrialSize(MeanLengths(input_tokens, output_tokens), requests), repeats, _rates(rate))
    limits = _limits(dtype, threads)
    folder = make_folder(out or _default_folder("endpoint" if endpoint else engine))
    if endpoint is not None:
        from simulator.verify.engines import endpoint as running

        subject = running(endpoint, deployment, served, tokenizer, key_env)
        client = _bench(python)
    else:
        subject, client = STARTERS[engine](EngineChoice(model or _tiny_model(), limits, python, server, port))
    if docs is not None:
        from simulator.verify.screen import check_place

        check_place(docs, subject.deployment.engine)
    found = compare(subject, client, effort, folder, lambda text: typer.echo(text, err=True))
    # Times through a network are not host times, so those of an endpoint are installed only on request.
    _tell(found, folder, json_file, docs, endpoint is None if install is None else install)
    if found.missed(found.judged):
        raise typer.Exit(1)


def _tell(found: Verification, folder: Path, json_file: str | None, docs: Path | None, install: bool) -> None:
    """Keep, install and show a comparison; it is kept first, so that a later failure does not lose the measurement."""
    from calibration.bundles.engine_calibration import save
    from simulator.verify.screen import document, place, print_verification

    write_json(document(found), str(folder / "verify.json"))
    if install:
        kept = "not installed: other processes used the machine"
        typer.echo(kept if found.contended else f"installed: {save(found.calibration)}", err=True)
    if json_file != "-":
        print_verification(found)
    if docs is not None:
        write_atomically(docs, [place(found, docs.read_text(encoding="utf-8"))])
    if json_file is not None:
        write_json(document(found), json_file)


def _bench(python: Path | None) -> Client:
    from calibration.serve.clients import VllmBench
    from calibration.serve.engines import find_vllm

    return VllmBench(find_vllm(python))


def _rates(given: list[float] | None) -> tuple[float, ...]:
    """Return the rates of the open loops, each of which is a trial.

    Raises:
        InputError: A rate is not positive and finite, or is given twice.
    """
    rates = tuple(given or ())
    for i, rate in enumerate(rates):
        if not 0.0 < rate < float("inf"):
            raise InputError("a rate in requests per second must be above zero", rate, "2")
        if f"{rate:g}" in [f"{r:g}" for r in rates[:i]]:
            raise InputError("each rate must be given only once", rate)
    return rates


def _limits(dtype: str, threads: int | None) -> ServedLimits:
    import os
    from dataclasses import replace

    from simulator.verify.engines import SHORT_LIMITS

    cores = len(os.sched_getaffinity(0))
    if threads is not None and not 1 <= threads <= cores:
        raise InputError("threads must be between 1 and the number of cores of this process", threads, str(cores))
    return replace(SHORT_LIMITS, weight_dtype=dtype, threads=threads or max(1, cores - 1))


def _tiny_model() -> Path:
    from calibration.serve.tiny_model import TINY_NAME, write_tiny_model
    from catalogs.io.yaml_files import user_folder

    return write_tiny_model(user_folder("models") / TINY_NAME)


def _default_folder(engine: str) -> Path:
    import time

    from catalogs.io.yaml_files import user_folder

    return user_folder("verifications") / f"{engine}-{time.strftime('%Y%m%d-%H%M%S')}"


def main(args: list[str] | None = None) -> None:
    """Run `calibrate` with all of its commands, as the entry point of the console script."""
    sys.exit(run_command("calibrate", app, args))


if __name__ == "__main__":
    main()
