"""The command `plan front`: the Pareto front of deployments and loads."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer

from planner.cli.derived_options import GivenRequest, takes_request
from planner.cli.options import JsonBeside, write_result
from planner.problem.request_keys import FRONT_KEYS

#: Help of options that mean something else here than in `plan`.
_HELP: Final = {
    "rate": "Requests per second of every point (default: up to eight loads of each deployment).",
    "model": "Model: alias, Hugging Face id, or path of a config.json.",
    "slo": "Limit that every point meets, METRIC.STAT=LIMIT, e.g. ttft.p99=2s; repeat or use commas.",
}


@takes_request("plan front", FRONT_KEYS, _HELP)
def front(
    given: GivenRequest,
    axes: Annotated[
        str,
        typer.Option(help="Two or three of cost, energy, carbon, and latencies such as ttft.p99, tpot.mean."),
    ] = "cost,ttft.p99",
    json_file: JsonBeside = None,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write an HTML page with a chart of the front.")
    ] = None,
) -> None:
    """Find the Pareto front of deployments and loads; exit status 1 if no deployment meets the limits.

    plan front --model llama3.1-8b --hw h100x8 --axes cost,ttft.p99
    """
    from catalogs.io.output_files import check_targets, write_atomically
    from catalogs.ui.entry_point import Interrupted
    from catalogs.ui.progress import counted_progress
    from planner.cli.screens.studies import show_front
    from planner.evaluation.multi_hardware import open_evaluator
    from planner.pipeline import kept_words
    from planner.problem.front import front_request, parse_axes
    from planner.search.pareto_answer import make_front

    wanted = parse_axes(axes)
    request, limits = front_request(given.keys(), wanted)
    check_targets(json_file, request.search.journal, html=html)
    if html is not None:
        from catalogs.ui.html_page import need_plotly

        need_plotly()
    evaluator = open_evaluator(request)
    try:
        with counted_progress("front") as progress:
            found = make_front(
                request,
                evaluator,
                wanted,
                limits,
                lambda done, most, n: progress(done, most, f"{n} points on the front"),
            )
    except KeyboardInterrupt:
        raise Interrupted(kept_words(request)) from None
    if html is not None:
        from catalogs.ui.html_page import render
        from planner.report.pareto_page import front_page

        write_atomically(html, [render(front_page(found))])
    write_result(found.document(), json_file, lambda: show_front(found))
    if found.result.interrupted:
        raise Interrupted(f": the front is that of the points simulated so far{kept_words(request)}")
    raise typer.Exit(0 if found.members else 1)
