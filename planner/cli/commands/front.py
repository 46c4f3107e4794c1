"""`plan front`: what trades against what."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from planner.cli.options import (
    HARDWARE_HELP,
    MODEL_HELP,
    SEARCH,
    Budget,
    Cloud,
    Engine,
    Grid,
    JsonTo,
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


def front(
    model: Annotated[str, typer.Option(help=MODEL_HELP)],
    hw: Annotated[str, typer.Option(help=HARDWARE_HELP)],
    axes: Annotated[
        str, typer.Option(help="Two or three of cost, energy, carbon and latencies such as ttft.p99, tpot.mean.")
    ] = "cost,ttft.p99",
    slo: Annotated[list[str] | None, typer.Option(help="METRIC.STAT=LIMIT every point must hold; repeat.")] = None,
    workload: Annotated[str, typer.Option(help="Name, trace file or YAML file.")] = "chat",
    rate: Annotated[float | None, typer.Option(help="Requests per second (default: a ladder of loads).")] = None,
    precision: Precisions = None,
    max_usd_per_hour: Budget = None,
    price: Price = None,
    price_reading: PriceReading = "cheapest",
    cloud: Cloud = None,
    region: Region = None,
    grid: Grid = None,
    engine: Engine = "vllm",
    trials: Annotated[int, typer.Option(help="Points to simulate at most.", rich_help_panel=SEARCH)] = 60,
    seed: Seed = 0,
    study: StudyFile = None,
    storage: Storage = None,
    json_file: JsonTo = None,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="A page with the front as a chart.")] = None,
) -> None:
    """The Pareto front of deployments and loads: what nothing beats in every objective; exit status 1 if nothing holds.

    plan front --model llama3.1-8b --hw h100x8 --axes cost,ttft.p99
    """
    from catalogs.io.output_files import check_targets, write_whole
    from catalogs.ui.entry_point import INTERRUPTED
    from planner.cli.screens.pareto import show
    from planner.evaluation.multi_hardware import open_evaluator
    from planner.problem.request import PlanRequest
    from planner.problem.slo import parse_slos
    from planner.problem.tariff import Tariff
    from planner.search.pareto_search import asked_slos, make_front
    from planner.search.pareto_space import parse_axes
    from planner.search.progress import front_progress

    wanted = parse_axes(axes)
    limits = parse_slos(slo) if slo else ()
    names = {axis.name for axis in wanted}
    request = PlanRequest(
        model=model,
        hardware=hw,
        slos=asked_slos(wanted, limits),
        workload=workload,
        requests_per_s=rate,
        objective="energy" if names & {"energy", "carbon"} else "cost",
        precisions=listed(precision),
        engine=engine,
        trials=trials,
        seed=seed,
        study=study,
        storage=storage,
        tariff=Tariff(price, price_reading, cloud, region, grid),
        max_usd_per_hour=max_usd_per_hour,
    )
    check_targets(json_file, None, study, html)
    if html is not None:
        from catalogs.ui.html_page import need_plotly

        need_plotly()
    world = open_evaluator(request)
    try:
        with front_progress() as tell:
            found = make_front(request, world, wanted, limits, tell)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        raise typer.Exit(INTERRUPTED) from None
    if html is not None:
        from catalogs.ui.html_page import render
        from planner.report.pareto_page import front_page

        write_whole(html, [render(front_page(found))])
    put(found.document(), json_file, lambda: show(found))
    raise typer.Exit(INTERRUPTED if found.result.interrupted else 0 if found.members else 1)
