"""The `endpoint` command of `calibrate`: measure a served model of which only the address is known."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, get_args

import typer

from catalogs.errors import InputError, nearest_name
from catalogs.io.output_files import check_targets, write_json
from catalogs.ui.shared_options import options_of
from catalogs.ui.words import parse_duration

if TYPE_CHECKING:
    from simulator.endpoint.identification import Identification
    from simulator.endpoint.measurement import EndpointMeasurement, MeasuringPlan
    from simulator.endpoint.target import EndpointTarget

#: Most requests of a level. A judgement: a limit against a typing error that costs money.
MOST_REQUESTS: Final = 10_000

#: Highest concurrency of a level. A judgement: endpoints refuse more, and the client of one process would limit it.
MOST_CONCURRENCY: Final = 256

_ENGINES: Final = "Engines to compare with; default: vllm, sglang, trtllm, llama.cpp, transformers."

_load, _server, _identity = options_of("Load"), options_of("Server"), options_of("Identification")
_prices, _output = options_of("Prices"), options_of("Output")


def endpoint(
    url: Annotated[str, typer.Argument(metavar="URL", help="Address of the server, such as http://localhost:8000/v1.")],
    form: Annotated[str, _server("NAME", "Form of the requests: chat, completions or vertex.")] = "chat",
    served: Annotated[str | None, _server("NAME", "Model name at the endpoint; default: its first.")] = None,
    key_env: Annotated[str | None, _server("VARIABLE", "Environment variable with the endpoint's API key.")] = None,
    extra: Annotated[str | None, _server("JSON", "Further keys of each request: '{\"ignore_eos\": true}'.")] = None,
    stream: Annotated[bool, _server(None, "Ask for the text token by token.")] = True,
    timeout: Annotated[str, _server("TIME", "Limit of each reply.")] = "60s",
    prompt: Annotated[str | None, _load("TEXT", "Send this text, and print the answer.")] = None,
    workload: Annotated[str | None, _load("W", "Workload with the lengths of the requests: a name or a file.")] = None,
    concurrency: Annotated[str, _load("N,N", "Requests under way at once, one number for each level.")] = "1,4,16",
    requests: Annotated[int, _load("N", "Requests of each level, at least.")] = 15,
    output_tokens: Annotated[int, _load("N", "The most tokens of an answer to --prompt.")] = 128,
    limit: Annotated[str, _load("TIME", "Limit of the whole measurement.")] = "10m",
    seed: Annotated[int, _load("N", "Seed of lengths and words.")] = 0,
    identify: Annotated[bool, _identity(None, "Find hardware and engines that would have these latencies.")] = True,
    model: Annotated[
        str | None, _identity("NAME|DIR", "The served model in the catalog; default: that of the served name.")
    ] = None,
    hw: Annotated[str | None, _identity("H,H", "Hardware to compare with; default: all of the catalog.")] = None,
    engine: Annotated[str | None, _identity("E,E", _ENGINES)] = None,
    usd_per_million_input: Annotated[float | None, _prices("USD", "Price of a million tokens of prompts.")] = None,
    usd_per_million_output: Annotated[float | None, _prices("USD", "Price of a million generated tokens.")] = None,
    usd_per_hour: Annotated[float | None, _prices("USD", "Price of the machines behind the endpoint.")] = None,
    machine: Annotated[
        Path | None, _output("DIR", "Sample this machine during the measurement (for calibrate machine show DIR).")
    ] = None,
    json_file: Annotated[str | None, _output("FILE", "Write JSON to FILE, or - for stdout.", "--json")] = None,
) -> None:
    """Measure a served model by its address, and find the hardware and engine that would have these latencies."""
    check_targets(json_file)
    from calibration.serve.reply_statistics import TokenPrices
    from simulator.endpoint import report
    from simulator.endpoint.target import EndpointChoice, connect

    tariff = TokenPrices(*(_price(p) for p in (usd_per_million_input, usd_per_million_output, usd_per_hour)))
    plan = _plan(prompt, workload, concurrency, requests, output_tokens, timeout, limit, seed)
    choice = EndpointChoice(url, _form(form), served, key_env, stream, _extra(extra))
    names = _names(hw), _engines(engine)
    known = _model(model)
    target = connect(choice, min(plan.reply_s, 10.0))
    found = _measured(target, plan) if machine is None else _recorded(machine, target, plan)
    identified, why = _identified(found, known, names, identify)
    document = report.document(found, tariff, identified, why)
    if json_file != "-":
        report.show(document)
    if json_file is not None:
        write_json(document, json_file)
    if found.failures:
        raise typer.Exit(1)


def _measured(target: EndpointTarget, plan: MeasuringPlan) -> EndpointMeasurement:
    """Return a measurement, while stderr shows how much of it is done."""
    from catalogs.ui.progress import counted_progress
    from simulator.endpoint.measurement import measure

    with counted_progress("endpoint") as tell:
        return measure(target, plan, tell)


def _recorded(folder: Path, target: EndpointTarget, plan: MeasuringPlan) -> EndpointMeasurement:
    """Return a measurement, while the machine and the processes of the server are sampled into a folder.

    Raises:
        InputError: The server is not on this machine, or the folder holds a trace already.
    """
    from calibration.machine_trace.folder import check_new_trace
    from calibration.machine_trace.sampler import ApiProcesses, MachineSampler, pids_of_port
    from calibration.report.machine_page import write_trace_and_page

    if not target.on_this_machine:
        raise InputError("only this machine can be recorded, and the server is not on it", target.server.host)
    check_new_trace(folder)
    pids, api = pids_of_port(target.server.port), ApiProcesses(lambda: target.server.port)
    with MachineSampler(lambda: pids, api_pids=api) as sampler:
        found = _measured(target, plan)
    requests = []
    for level in found.levels:
        shift_s = level.began_s - sampler.began_s
        ends = [s.end_s for s in level.load.sent if s.end_s is not None]
        sampler.add_phase(f"{level.concurrency} at once", shift_s, shift_s + max(ends, default=0.0))
        for sent in level.load.sent:
            if sent.reply is not None and sent.end_s is not None:
                start_s, first_s = shift_s + sent.sent_s, sent.reply.ttft_s
                times = {"start_s": start_s, "end_s": shift_s + sent.end_s, "latency_s": sent.reply.e2e_s}
                first = {} if first_s is None else {"first_token_s": start_s + first_s}
                requests.append({**times, **first, "concurrency": level.concurrency})
    write_trace_and_page(folder, sampler.trace, requests)
    return found


def _plan(
    prompt: str | None,
    workload: str | None,
    concurrency: str,
    requests: int,
    output_tokens: int,
    timeout: str,
    limit: str,
    seed: int,
) -> MeasuringPlan:
    """Return what is sent.

    Raises:
        InputError: An option has no valid value, or two of them exclude each other.
    """
    from catalogs.workloads.workload import load_workload
    from simulator.endpoint.measurement import MeasuringPlan

    if prompt is not None and workload is not None:
        raise InputError("requests have either a prompt or the lengths of a workload", workload, "--prompt alone")
    if prompt is not None and not prompt.strip():
        raise InputError("a prompt must not be empty", repr(prompt), "'Hello'")
    if not 1 <= requests <= MOST_REQUESTS:
        raise InputError(f"a level has 1 to {MOST_REQUESTS:,} requests", requests, "15")
    if output_tokens < 1:
        raise InputError("an answer has at least one token", output_tokens, "128")
    if seed < 0:
        raise InputError("the seed must not be negative", seed, "0")
    drawn = None if workload is None else load_workload(workload)
    if drawn is not None and drawn.sends_media:
        raise InputError(
            "the endpoint command sends text only, and this workload has images, videos or audio", workload, "chat"
        )
    return MeasuringPlan(
        prompt,
        drawn,
        output_tokens,
        requests,
        _levels(concurrency),
        seed,
        _limit_s("--timeout", timeout),
        _limit_s("--limit", limit),
    )


def _levels(text: str) -> tuple[int, ...]:
    """Return the numbers of requests under way at once.

    Raises:
        InputError: One of them is not such a number, or is given twice.
    """
    try:
        found = tuple(int(part) for part in text.split(","))
    except ValueError:
        raise InputError("concurrency is a list of whole numbers", text, "1,4,16") from None
    if not all(1 <= n <= MOST_CONCURRENCY for n in found):
        raise InputError(f"concurrency is from 1 to {MOST_CONCURRENCY}", text, "1,4,16")
    if len(set(found)) < len(found):
        raise InputError("each concurrency must be given only once", text, ",".join(map(str, dict.fromkeys(found))))
    return found


def _limit_s(name: str, text: str) -> float:
    """Return a limit of time in seconds.

    Raises:
        InputError: It is no positive time.
    """
    found = parse_duration(text)
    if not 0 < found <= 86_400:
        raise InputError(f"{name} must be more than zero and at most a day", text, "60s")
    return found


def _price(usd: float | None) -> float | None:
    if usd is not None and not 0 <= usd < 1e9:
        raise InputError("a price in dollars must not be negative", usd, "0.5")
    return usd


def _form(text: str) -> Any:
    from calibration.serve.streaming_client import RequestForm

    if text not in get_args(RequestForm):
        raise InputError("unknown form of requests", text, nearest_name(text, get_args(RequestForm)) or "chat")
    return text


def _extra(text: str | None) -> dict[str, Any]:
    """Return further keys of each request.

    Raises:
        InputError: The text is not a JSON object.
    """
    try:
        found = json.loads(text or "{}")
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise InputError("further keys of requests are a JSON object", text, '{"ignore_eos": true}')
    return found


def _names(text: str | None) -> list[str]:
    """Return names of hardware without counts.

    Raises:
        InputError: A name is unknown.
    """
    from catalogs.hardware.catalog import parse_hardware

    names = [part.strip() for part in (text or "").split(",") if part.strip()]
    found = [parse_hardware(name) for name in names]
    return list(dict.fromkeys("local" if f.text == "local" else f.accelerator.name for f in found))


def _engines(text: str | None) -> list[str]:
    """Return names of engines.

    Raises:
        InputError: A name is unknown.
    """
    from catalogs.engines.files import load_engine

    names = [part.strip() for part in (text or "").split(",") if part.strip()]
    for name in names:
        load_engine(name)
    return names


def _model(text: str | None) -> str | None:
    """Return the name of a model after a check that it is known.

    Raises:
        InputError: It is unknown.
    """
    if text is not None:
        from catalogs.models.catalog import load_model

        load_model(text)
    return text


def _identified(
    found: EndpointMeasurement, stated: str | None, among: tuple[list[str], list[str]], wanted: bool
) -> tuple[Identification | None, str]:
    """Return the candidates of the catalog, or the reason why there are none.

    Args:
        found: The measurement.
        stated: Name of the model as the user states it; None for the served name.
        among: Names of hardware and of engines; () for the default.
        wanted: Whether the user wants them.
    """
    from catalogs.models.catalog import load_model
    from catalogs.ui.progress import counted_progress
    from simulator.endpoint.identification import candidates, identify

    if not wanted:
        return None, "not compared, as requested"
    name = stated or found.target.settings.model
    if name is None:
        return None, "not compared, because the server does not name its model; give --model"
    try:
        if stated is None and os.path.exists(name) and not found.target.on_this_machine:
            raise InputError("the name of a distant server is not a path of this machine", name)
        model = load_model(name)
    except InputError:
        return None, f"not compared, because the catalog does not know the model {name!r}; give --model"
    hardware, engines = among
    chosen = list(candidates(hardware, engines, found.target.on_this_machine))
    try:
        with counted_progress("endpoint") as tell:
            return identify(found, model, name, chosen, tell), ""
    except InputError as error:
        return None, f"not compared: {error}"
