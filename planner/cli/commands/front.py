"""The command `plan front`: the Pareto front of deployments and loads."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from planner.cli.derived_options import GivenRequest, takes_request
from planner.cli.options import JsonTo, write_result

if TYPE_CHECKING:
    from planner.problem.request import PlanRequest
    from planner.problem.slo import Slo
    from planner.search.pareto_space import ParetoAxis


#: Request keys of a front; it has no users, no load over time, and no replica failures.
KEYS: Final = (
    "model", "hardware", "slo", "workload", "input_tokens", "output_tokens", "rate",
    "confidence", "precisions", "max_usd_per_hour", "engine", "seed",
    "tariff.usd_per_hour", "tariff.reading", "tariff.cloud", "tariff.region", "tariff.grid",
    "search.trials", "search.study",
)  # fmt: skip


@takes_request("plan front", KEYS)
def front(
    given: GivenRequest,
    axes: Annotated[
        str,
        typer.Option(
            help="Objectives: two or three of cost, energy, carbon, and latencies such as ttft.p99, tpot.mean."
        ),
    ] = "cost,ttft.p99",
    json_file: JsonTo = None,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write an HTML page with a chart of the front.")
    ] = None,
) -> None:
    """Find the Pareto front of deployments and loads; exit status 1 if no deployment meets the limits.

    plan front --model llama3.1-8b --hw h100x8 --axes cost,ttft.p99
    """
    from catalogs.io.output_files import check_targets, write_atomically
    from catalogs.ui.entry_point import Interrupted
    from planner.cli.screens.studies import show_front
    from planner.evaluation.multi_hardware import open_evaluator
    from planner.pipeline import kept_words
    from planner.search.pareto_search import make_front
    from planner.search.pareto_space import parse_axes
    from planner.search.progress import front_progress

    wanted = parse_axes(axes)
    request, limits = front_request(given.keys(), wanted)
    check_targets(json_file, None, request.search.journal, html)
    if html is not None:
        from catalogs.ui.html_page import need_plotly

        need_plotly()
    evaluator = open_evaluator(request)
    try:
        with front_progress() as progress:
            found = make_front(request, evaluator, wanted, limits, progress)
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


def front_request(keys: dict[str, Any], axes: tuple[ParetoAxis, ...]) -> tuple[PlanRequest, tuple[Slo, ...]]:
    """Return the request of a front, and the limits that every point on it must meet.

    Args:
        keys: Keys of a request by dotted name.
        axes: The axes of the front.

    Raises:
        InputError: A key is invalid, or plan front does not take it.
    """
    from catalogs.errors import InputError, nearest_name
    from planner.problem.scenario import request_of_keys
    from planner.problem.slo import parse_slos
    from planner.search.pareto_search import observed_slos

    for name in keys:
        if name not in KEYS:
            raise InputError("plan front has no such key", name, nearest_name(name, KEYS))
    limits = parse_slos([keys["slo"]] if isinstance(keys["slo"], str) else keys["slo"]) if keys.get("slo") else ()
    names = {axis.name for axis in axes}
    keys = keys | {
        "slo": observed_slos(axes, limits),
        "objective": "energy" if names & {"energy", "carbon"} else "cost",
    }
    return request_of_keys(keys), limits
