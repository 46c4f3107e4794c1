"""The `simulate` command: simulate one deployment with one workload."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from catalogs.io.output_files import check_targets, write_json
from catalogs.ui.entry_point import run_command

if TYPE_CHECKING:
    from collections.abc import Iterable

    from catalogs.deployments.schema import Deployment
    from simulator.cluster.run import Run


#: Number of requests from which a run may use all cores.
LONG_RUN: Final = 50_000

app = typer.Typer(
    add_completion=False, pretty_exceptions_enable=False, context_settings={"help_option_names": ["-h", "--help"]}
)

_ROUTER = "Replaces the deployment's router: round_robin, least_outstanding, ... or '{random: {seed: 1}}'."


_SERIES = "Write queue, running, KV use, power and tokens over time: .parquet or .csv."

_JSON = "Write the summary as JSON; - writes only the JSON to stdout."


@app.command()
def simulate(
    deployment: Annotated[Path, typer.Argument(metavar="DEPLOYMENT.yaml", help="Model, engine, hardware, limits.")],
    workload: Annotated[str, typer.Option(metavar="W", help="Catalog name, trace file or workload YAML.")],
    json_file: Annotated[str | None, typer.Option("--json", metavar="OUT.json", help=_JSON)] = None,
    requests_out: Annotated[
        Path | None, typer.Option(metavar="OUT.csv", help="Write one row per request, in workload order.")
    ] = None,
    chrome_trace: Annotated[Path | None, typer.Option(metavar="T.json", help="Write a trace for Perfetto.")] = None,
    trace_window: Annotated[
        str | None, typer.Option(metavar="A..B", help="Part of the run in the trace: 10s..20s.")
    ] = None,
    time_series: Annotated[Path | None, typer.Option(metavar="FILE", help=_SERIES)] = None,
    time_step: Annotated[float, typer.Option(metavar="S", help="Seconds between rows of the time series.")] = 1.0,
    explain: Annotated[bool, typer.Option("--explain", help="Show where time went and what limited the run.")] = False,
    seed: Annotated[int | None, typer.Option(metavar="N", help="Random seed; default: that of the workload.")] = None,
    rate: Annotated[
        float | None, typer.Option(metavar="R", help="Requests per second; default: those of the workload.")
    ] = None,
    requests: Annotated[
        int | None, typer.Option(metavar="N", help="Number of requests; default: that of the workload.")
    ] = None,
    router: Annotated[str | None, typer.Option(metavar="NAME", help=_ROUTER)] = None,
    router_staleness: Annotated[
        float | None,
        typer.Option(metavar="S", min=0.0, help="Seconds between updates of the router's view of replicas."),
    ] = None,
    processes: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Processes to use where replicas do not interact.")
    ] = None,
) -> None:
    """Simulate how a deployment serves a workload: latencies, throughput, power and where the time goes."""
    from catalogs.deployments.schema import load_deployment
    from catalogs.errors import InputError
    from catalogs.workloads.workload import load_workload
    from simulator.cli import outputs
    from simulator.cli.outputs import RequestedOutputs
    from simulator.cluster.compiled import compile_fleet
    from simulator.cluster.serving import serving_options
    from simulator.cluster.simulate import simulate as run

    check_targets(json_file, requests_out, chrome_trace, time_series)
    views = RequestedOutputs.of(chrome_trace, trace_window, time_series, time_step, explain)
    written = _with_router(load_deployment(deployment), router, router_staleness)
    fleet = compile_fleet(written)
    options = serving_options(written, fleet)
    source = load_workload(workload)
    drawn = source.materialise(seed, requests, rate)
    journal = views.journal()
    if journal is not None and (processes or 1) > 1:
        rule = "--chrome-trace, --time-series and --explain need a run in one process"
        raise InputError(rule, f"--processes {processes}", "--processes 1")
    shared = 1 if journal is not None else processes or _cores(drawn.n)
    done = run(fleet, drawn, replace(options, seed=seed, processes=shared, journal=journal))
    document = outputs.document(done, written, source)
    rate_notice = source.rate_notice if rate is None else None
    shown = views.show(done, document)
    _notify([*document["notices"], *([rate_notice] if rate_notice else []), *_caveats(done), *shown])
    if requests_out is not None:
        outputs.write_csv(done, requests_out)
    if json_file is not None:
        write_json(document, json_file)
    if json_file != "-":
        from simulator.cli.screen import print_summary

        print_summary(document)


def _with_router(written: Deployment, router: str | None, staleness_s: float | None) -> Deployment:
    """Return the deployment with another router."""
    from catalogs.errors import InputError
    from catalogs.io.yaml_files import parse_yaml

    changes: dict[str, object] = {}
    if router is not None:
        changes["router"] = parse_yaml(router, "--router") if router.lstrip().startswith("{") else router
    if staleness_s is not None:
        if not staleness_s < float("inf"):
            raise InputError("--router-staleness must be finite", staleness_s, "0.05")
        changes["router_staleness_s"] = staleness_s
    return written.model_copy(update=changes)


def _cores(requests: int) -> int:
    """Return the number of processes worth starting."""
    return 1 if requests < LONG_RUN else len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1


def _notify(notices: Iterable[str]) -> None:
    for notice in dict.fromkeys(notices):
        print(f"simulate: {notice}", file=sys.stderr)


def _caveats(run: Run) -> list[str]:
    """Return what a reader of the results must know about this run."""
    from simulator.core.outcomes import STATUS

    lines = []
    for code, text in enumerate(STATUS):
        n = int((run.status == code).sum())
        if text.startswith(("rejected", "failed", "timed out")) and n:
            lines.append(f"{n} of {run.requests.n} requests {text}")
    if run.n_truncated:
        lines.append(f"{run.n_truncated} of {run.requests.n} requests truncated to max_model_len")
    n_done = int(run.completed.sum())
    if not n_done:
        lines.append("no request was completed, so there are no latencies")
    elif n_done < 100:
        lines.append(f"the p99 of {n_done} requests is close to their maximum; simulate more requests")
    return lines


def main(args: list[str] | None = None) -> None:
    """Run the command as the entry point of the console script."""
    sys.exit(run_command("simulate", app, args))


if __name__ == "__main__":
    main()
