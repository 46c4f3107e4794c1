"""The `simulate` command: simulate one deployment with one workload."""

from __future__ import annotations

import catalogs.ui.quiet_start  # noqa: F401

# isort: split

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from catalogs.errors import InputError
from catalogs.io.output_files import check_targets
from catalogs.ui.entry_point import run_command
from catalogs.ui.shared_options import (
    DEFAULT_WORKLOAD,
    FROM_COMMAND_HELP,
    INPUT_TOKENS_HELP,
    OUTPUT_TOKENS_HELP,
    WORKLOAD_HELP,
    VersionFlag,
    command_group,
    option,
    options_of,
)

if TYPE_CHECKING:
    from pydantic import BaseModel

    from catalogs.deployments.schema import Deployment


app = command_group()


_deployment, _load = options_of("Deployment"), options_of("Load")
_analysis, _output = options_of("Analysis"), options_of("Output")

_ROUTER = "Replaces the deployment's router: round_robin, least_outstanding, ... or '{random: {seed: 1}}'."

_SERIES = "Write queue, running, KV use, power and tokens over time: .parquet or .csv."

_JSON = "Write the summary as JSON; - writes only the JSON to stdout."

_CONCURRENCY = "Clients that each send the next request after the answer to their last; replaces the arrivals."
_COMPLEXITY = "Show end-to-end latency by request length: parts, fit, per token, 4 x 4 bins."

_COMPARE = "Compare with another run at equal complexity: the CSV of its requests, or a load client's result."

_SET = "Set a key of deployment.yaml after --from-command is read; repeatable."

_STALENESS = "Seconds between updates of the router's view of replicas."


@app.command()
def simulate(
    deployment: Annotated[
        Path | None, typer.Argument(metavar="DEPLOYMENT.yaml", help="File with the keys of the deployment.")
    ] = None,
    from_command: Annotated[str | None, _deployment("COMMAND", FROM_COMMAND_HELP)] = None,
    hw: Annotated[str | None, _deployment("H", "Hardware of --from-command, such as h100x8.")] = None,
    settings: Annotated[list[str] | None, _deployment("KEY=VALUE", _SET, "--set")] = None,
    router: Annotated[str | None, _deployment("NAME", _ROUTER)] = None,
    router_staleness: Annotated[float | None, _deployment("S", _STALENESS, min=0.0)] = None,
    workload: Annotated[str | None, _load("W", WORKLOAD_HELP, show_default=DEFAULT_WORKLOAD)] = None,
    rate: Annotated[float | None, _load("R", "Requests per second; default: the rate of the workload.")] = None,
    requests: Annotated[int | None, _load("N", "Number of requests; default: that of the workload.", min=1)] = None,
    concurrency: Annotated[int | None, _load("N", _CONCURRENCY, min=1)] = None,
    input_tokens: Annotated[int | None, _load("N", INPUT_TOKENS_HELP, min=1)] = None,
    output_tokens: Annotated[int | None, _load("N", OUTPUT_TOKENS_HELP, min=1)] = None,
    seed: Annotated[int | None, _load("N", "Random seed; default: that of the workload.", min=0)] = None,
    explain: Annotated[bool, _analysis(None, "Show where time went and what limited the run.", "--explain")] = False,
    complexity: Annotated[bool, _analysis(None, _COMPLEXITY, "--complexity")] = False,
    compare: Annotated[Path | None, _analysis("FILE", _COMPARE)] = None,
    json_file: Annotated[str | None, _output("OUT.json", _JSON, "--json")] = None,
    requests_out: Annotated[Path | None, _output("OUT.csv", "Write one row per request, in workload order.")] = None,
    chrome_trace: Annotated[Path | None, _output("T.json", "Write a trace for Perfetto.")] = None,
    trace_window: Annotated[str | None, _output("A..B", "Part of the run in the trace: 10s..20s.")] = None,
    time_series: Annotated[Path | None, _output("FILE", _SERIES)] = None,
    time_step: Annotated[float, _output("S", "Seconds between rows of the time series.")] = 1.0,
    artefact: Annotated[Path | None, _output("DIR", "Keep the run with all of its inputs in a new folder.")] = None,
    processes: Annotated[int | None, option("N", "Processes to use where replicas do not interact.", min=1)] = None,
    version: VersionFlag = False,
) -> None:
    """Simulate how a deployment serves a workload: latencies, throughput, power and where the time goes."""
    given = dict(locals())
    from catalogs.deployments.network_deployment import NetworkDeployment, load_any_deployment
    from catalogs.workloads.limits import check_rate

    if artefact is not None and deployment is None:
        rule = "an artefact keeps a deployment file; catalog import-launch writes one"
        raise InputError(rule, "--artefact", "DEPLOYMENT.yaml")
    if artefact is not None:
        from simulator.cli.recorded import simulate_recorded

        check_targets(json_file, requests_out, chrome_trace, time_series)
        simulate_recorded(artefact, simulate, {name: given[name] for name in given if name != "artefact"})
        return
    if rate is not None:
        check_rate(rate, "--rate")
        if concurrency is not None:
            both = f"--concurrency {concurrency}", f"--rate {rate:g}"
            raise InputError("one of --concurrency and --rate is the load, not both", " ".join(both), " or ".join(both))
    check_targets(json_file, requests_out, chrome_trace, time_series)
    if deployment is not None:
        refuse_command(from_command, hw, settings)
        named: Deployment | NetworkDeployment = load_any_deployment(deployment)
    else:
        named = commanded(from_command, hw, settings or [])
    written = with_router(named, router, router_staleness)
    if isinstance(written, NetworkDeployment):
        from simulator.cli.jobs import refuse_options, simulate_network

        refuse_options(
            {
                "--chrome-trace": chrome_trace,
                "--trace-window": trace_window,
                "--time-series": time_series,
                "--explain": explain,
                "--concurrency": concurrency,
                "--complexity": complexity,
                "--compare": compare,
                "--input-tokens": input_tokens,
                "--output-tokens": output_tokens,
                "--processes": processes,
            }
        )
        simulate_network(written, workload, seed, requests, rate, json_file, requests_out)
        return
    from simulator.cli.outputs import RequestedOutputs
    from simulator.cli.requests import RequestedLoad, simulate_requests

    load = RequestedLoad(workload, rate, requests, concurrency, input_tokens, output_tokens, seed)
    by_length = complexity or json_file is not None
    views = RequestedOutputs(chrome_trace, trace_window, time_series, time_step, explain, compare, by_length)
    simulate_requests(written, load, views, json_file, requests_out, complexity, processes)


def commanded(command: str | None, hardware: str | None, settings: list[str]) -> Deployment:
    """Return the deployment of a start command, and print the notes on its flags.

    Raises:
        InputError: There is no command, or it is invalid.
    """
    from catalogs.launch.reading.read import read_command

    if command is None:
        raise InputError("simulate needs a deployment", hint="give DEPLOYMENT.yaml or --from-command 'vllm serve ...'")
    read = read_command(command, hardware, settings)
    for note in read.important:
        print(f"simulate: {note.line}", file=sys.stderr)
    return read.deployment


def refuse_command(command: str | None, hardware: str | None, settings: list[str] | None) -> None:
    """Check that the options of a start command are not given together with a file.

    Raises:
        InputError: One of them is given.
    """
    for name, value in (("--from-command", command), ("--hw", hardware), ("--set", settings)):
        if value:
            rule = f"{name} belongs to a start command, and DEPLOYMENT.yaml is given"
            raise InputError(rule, value, hint="give either the file or --from-command")


AnyDeployment = TypeVar("AnyDeployment", bound="BaseModel")


def with_router(written: AnyDeployment, router: str | None, staleness_s: float | None) -> AnyDeployment:
    """Return the deployment with another router."""
    from catalogs.deployments.schema import check_staleness
    from catalogs.io.yaml_files import parse_yaml

    changes: dict[str, object] = {}
    if router is not None:
        changes["router"] = parse_yaml(router, "--router") if router.lstrip().startswith("{") else router
    if staleness_s is not None:
        try:
            changes["router_staleness_s"] = check_staleness(staleness_s)
        except ValueError as error:
            raise InputError(f"--router-staleness {error}", staleness_s, "0.05") from None
    return written.model_copy(update=changes)


def main(args: list[str] | None = None) -> None:
    """Run the command as the entry point of the console script."""
    sys.exit(run_command("simulate", app, args, last=True))


if __name__ == "__main__":
    main()
