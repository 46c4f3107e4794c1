"""The `simulate` command: one deployment against one workload."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from catalogs.command import run_command
from catalogs.files import check_targets, write_json

if TYPE_CHECKING:
    from collections.abc import Iterable

    from simulator.run_record import Run

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

_JSON = "Summary as JSON; - writes it to stdout and nothing else there."


@app.command()
def simulate(
    deployment: Annotated[Path, typer.Argument(metavar="DEPLOYMENT.yaml", help="Model, engine, hardware, limits.")],
    workload: Annotated[str, typer.Option(metavar="W", help="Catalog name, trace file or workload YAML.")],
    json_file: Annotated[str | None, typer.Option("--json", metavar="OUT.json", help=_JSON)] = None,
    requests_out: Annotated[
        Path | None, typer.Option(metavar="OUT.csv", help="One row per request, in workload order.")
    ] = None,
    chrome_trace: Annotated[Path | None, typer.Option(metavar="T.json", help="Steps as a Chrome trace.")] = None,
    seed: Annotated[int | None, typer.Option(metavar="N", help="Instead of the workload's own seed.")] = None,
    rate: Annotated[float | None, typer.Option(metavar="R", help="Requests per second, instead of its own.")] = None,
    requests: Annotated[int | None, typer.Option(metavar="N", help="How many, instead of its own number.")] = None,
    router: Annotated[str, typer.Option(metavar="NAME", help="round_robin or least_outstanding.")] = "round_robin",
) -> None:
    """Simulate how a deployment serves a workload: latencies, throughput, power and where the time goes."""
    from catalogs.deployment import load_deployment
    from catalogs.workloads import load_workload
    from simulator import outputs
    from simulator.cluster import RunOptions
    from simulator.plant import build_fleet
    from simulator.simulate import run

    check_targets(json_file, requests_out, chrome_trace)
    written = load_deployment(deployment)
    fleet = build_fleet(written)
    asked = load_workload(workload)
    done = run(fleet, asked.materialise(seed, requests, rate), RunOptions(router=router, seed=seed))
    document = outputs.document(done, written, asked)
    rate_notice = asked.rate_notice if rate is None else None
    _notify([*document["notices"], *([rate_notice] if rate_notice else []), *_caveats(done)])
    if requests_out is not None:
        outputs.write_csv(done, requests_out)
    if chrome_trace is not None:
        from simulator.chrome_trace import write_chrome_trace

        write_chrome_trace(done, chrome_trace)
    if json_file is not None:
        write_json(document, json_file)
    if json_file != "-":
        from simulator.screen import print_summary

        print_summary(document)


def _notify(notices: Iterable[str]) -> None:
    for notice in dict.fromkeys(notices):
        print(f"simulate: {notice}", file=sys.stderr)


def _caveats(run: Run) -> list[str]:
    """What a reader of the numbers must know about this run."""
    from simulator.results import STATUS

    lines = []
    for code, text in enumerate(STATUS):
        n = int((run.status == code).sum())
        if text.startswith("rejected") and n:
            lines.append(f"{n} of {run.requests.n} requests {text}")
    n_done = int(run.completed.sum())
    if n_done < 100:
        lines.append(f"p99 of {n_done} requests is no more than their maximum; simulate more requests")
    return lines


def main(args: list[str] | None = None) -> None:
    """Entry point of the console script."""
    sys.exit(run_command("simulate", app, args))


if __name__ == "__main__":
    main()
