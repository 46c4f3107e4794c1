"""`plan --model M --slo S --hw H`: the main job."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from catalogs.ui.entry_point import INTERRUPTED
from planner.cli.options import (
    CHOICE,
    HARDWARE_HELP,
    LOAD,
    MODEL_HELP,
    OUTPUT,
    POWER,
    PRICE,
    SEARCH,
    Budget,
    Cloud,
    Engine,
    Grid,
    Precisions,
    Price,
    PriceReading,
    Region,
    Seed,
    Storage,
    StudyFile,
    listed,
    put,
)

if TYPE_CHECKING:
    from planner.answer.schema import Answer
    from planner.problem.request import PlanRequest


def plan(
    context: typer.Context,
    model: Annotated[str | None, typer.Option(help=MODEL_HELP)] = None,
    slo: Annotated[
        list[str] | None, typer.Option(help="METRIC.STAT=LIMIT, e.g. ttft.p99=2s; repeat or use commas.")
    ] = None,
    hw: Annotated[str | None, typer.Option(help=HARDWARE_HELP)] = None,
    max_usd_per_hour: Budget = None,
    workload: Annotated[str | None, typer.Option(help="Name, trace file or YAML file (default: chat).")] = None,
    rate: Annotated[
        float | None,
        typer.Option(help="Requests per second it must carry (default: all it can).", rich_help_panel=LOAD),
    ] = None,
    trace: Annotated[
        str | None,
        typer.Option(
            metavar="W", help="Workload whose own rate changes with time, instead of both.", rich_help_panel=LOAD
        ),
    ] = None,
    users: Annotated[
        int | None, typer.Option(help="Users at once it must serve, instead of a rate.", rich_help_panel=LOAD)
    ] = None,
    think_time: Annotated[
        float, typer.Option(help="Seconds a user waits between answer and next request.", rich_help_panel=LOAD)
    ] = 0.0,
    survive: Annotated[
        str | None,
        typer.Option(
            metavar="N|node", help="Replicas (or nodes) whose loss the objectives must survive.", rich_help_panel=LOAD
        ),
    ] = None,
    objective: Annotated[
        str, typer.Option(help="cost, energy, carbon, throughput, goodput or latency.", rich_help_panel=CHOICE)
    ] = "cost",
    precision: Precisions = None,
    also: Annotated[
        list[str] | None,
        typer.Option(help="Wider: disaggregated, pipelines, context, wide-experts; commas.", rich_help_panel=CHOICE),
    ] = None,
    speculative: Annotated[
        str | None,
        typer.Option(
            metavar="KEY=VALUE,..", help="Drafts, too: method=ngram,k=3,acceptance=0.6.", rich_help_panel=CHOICE
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="A key of deployment.yaml all have; repeat.", rich_help_panel=CHOICE
        ),
    ] = None,
    price: Price = None,
    price_reading: PriceReading = "cheapest",
    cloud: Cloud = None,
    region: Region = None,
    commitment: Annotated[
        str, typer.Option(help="on-demand, spot, reserved-1y or reserved-3y.", rich_help_panel=PRICE)
    ] = "on-demand",
    discount: Annotated[
        float | None,
        typer.Option(metavar="SHARE", help="Yours off on-demand for that commitment, e.g. 0.4.", rich_help_panel=PRICE),
    ] = None,
    spot_interruptions: Annotated[
        float | None,
        typer.Option(
            metavar="PER_HOUR", help="How often a spot instance is taken, by your records.", rich_help_panel=PRICE
        ),
    ] = None,
    spot_recovery: Annotated[
        float | None,
        typer.Option(metavar="S", help="Until its replacement serves (default: a cold start).", rich_help_panel=PRICE),
    ] = None,
    owned: Annotated[
        str | None,
        typer.Option(
            metavar="K=V,..|FILE", help="Owned hardware: capex, years, power-price, ...", rich_help_panel=PRICE
        ),
    ] = None,
    requests_per_user_day: Annotated[
        float | None,
        typer.Option(
            metavar="N", help="Requests of a user a day: gives the cost of a user-month.", rich_help_panel=PRICE
        ),
    ] = None,
    nodes_per_rack: Annotated[
        int | None, typer.Option(metavar="N", help="For the power of a rack.", rich_help_panel=POWER)
    ] = None,
    carbon_hours: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="CSV of gco2e_per_kwh by hour or timestamp, of your grid.", rich_help_panel=POWER
        ),
    ] = None,
    power_cap_w: Annotated[
        list[str] | None,
        typer.Option(metavar="W", help="Also under these power limits; repeat or use commas.", rich_help_panel=POWER),
    ] = None,
    grid: Grid = None,
    engine: Engine = "vllm",
    trials: Annotated[int, typer.Option(help="Candidates to simulate at most.", rich_help_panel=SEARCH)] = 40,
    seed: Seed = 0,
    study: StudyFile = None,
    storage: Storage = None,
    workers: Annotated[
        int | None,
        typer.Option(metavar="N", help="Processes on this machine (default: one a core).", rich_help_panel=SEARCH),
    ] = None,
    distributed: Annotated[
        str | None,
        typer.Option(help="Simulate on a Ray cluster: ray://HOST:PORT, ray://local or auto.", rich_help_panel=SEARCH),
    ] = None,
    json: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Write the answer as JSON; - writes it to stdout.", rich_help_panel=OUTPUT),
    ] = None,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the report as a page, too.", rich_help_panel=OUTPUT)
    ] = None,
    deployment_out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the chosen deployment, for `simulate`.", rich_help_panel=OUTPUT),
    ] = None,
) -> None:
    """plan --model llama3.1-405b --slo p99=2s --hw h100x8"""
    if context.invoked_subcommand is not None:
        return
    from catalogs.errors import InputError
    from catalogs.io.output_files import check_targets
    from planner.problem.accounting import Accounting
    from planner.problem.demand import NOTHING, FailureTolerance
    from planner.problem.load_curve import peak_of
    from planner.problem.overrides import Overrides
    from planner.problem.request import PlanRequest
    from planner.problem.slo import parse_slos
    from planner.problem.tariff import Tariff

    for name, value in (("model", model), ("hw", hw)):
        if not value:
            raise InputError(f"--{name} is needed", None, "plan --model llama3.1-405b --slo p99=2s --hw h100x8")
    request = PlanRequest(
        model=model or "",
        hardware=hw or "",
        slos=parse_slos(slo or []),
        workload=trace or workload or "chat",
        requests_per_s=rate if trace is None else peak_of(trace, workload, rate, users),
        over_time=trace is not None,
        objective=objective,
        precisions=listed(precision),
        also=listed(also),
        fixed=Overrides.parse(settings or []),
        speculative=speculative,
        engine=engine,
        trials=trials,
        seed=seed,
        study=study,
        storage=storage,
        tariff=Tariff(price, price_reading, cloud, region, grid, commitment, discount),
        max_usd_per_hour=max_usd_per_hour,
        users=users,
        think_s=think_time,
        spare=NOTHING if survive is None else FailureTolerance.parse(survive),
        accounts=Accounting.parse(
            owned,
            carbon_hours,
            power_cap_w or [],
            spot_interruptions=spot_interruptions,
            spot_recovery_s=spot_recovery,
            requests_per_user_day=requests_per_user_day,
            nodes_per_rack=nodes_per_rack,
        ),
    )
    check_targets(json, deployment_out, study, html)
    if html is not None:  # said before the search, not after it
        from catalogs.ui.html_page import need_plotly
        from planner.answer.capabilities import need_readable_kinds

        need_plotly()
        need_readable_kinds("report", request.also)
    raise typer.Exit(_answered(request, AnswerOutputs(json, deployment_out, html), distributed, workers))


@dataclass(frozen=True, slots=True)
class AnswerOutputs:
    """Where the answer goes: json to a file or stdout, the chosen deployment, the report; None: nowhere."""

    json_to: str | None
    deployment_to: Path | None
    html_to: Path | None

    def put(self, answer: Answer) -> None:
        """All of it, and the screen unless stdout is taken."""
        from planner.cli.screens.plan import show

        if self.deployment_to is not None and answer.best is not None:
            _write_deployment(answer.best.deployment, self.deployment_to)
        put(answer.document(), self.json_to, lambda: show(answer))
        if self.html_to is not None:
            from planner.report.write import write_report

            write_report(answer, self.html_to, None)


def _write_deployment(deployment: dict[str, Any], path: Path) -> None:
    import yaml

    from catalogs.io.output_files import write_whole

    again = deployment | {"kv_blocks": None}  # computed from memory again, as here
    write_whole(path, [yaml.safe_dump(again, sort_keys=False)])


def _answered(request: PlanRequest, written: AnswerOutputs, distributed: str | None, workers: int | None) -> int:
    """The exit status: 0 feasible, 1 not, 130 interrupted."""
    from planner.plan import ask, kept_words

    try:
        answer = ask(request, distributed, workers)
    except KeyboardInterrupt:
        print(f"interrupted{kept_words(request)}", file=sys.stderr)
        return INTERRUPTED
    written.put(answer)
    if answer.interrupted:
        print(f"interrupted: the best found so far is the answer{kept_words(request)}", file=sys.stderr)
        return INTERRUPTED
    return 0 if answer.feasible else 1
