"""The command `plan` without a subcommand: plan a deployment."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from catalogs.ui.entry_point import Interrupted
from catalogs.ui.shared_options import VersionFlag
from planner.cli.derived_options import GivenRequest, takes_request
from planner.cli.options import OUTPUT, write_result

if TYPE_CHECKING:
    from planner.problem.request import PlanRequest


@takes_request("plan")
def plan(
    context: typer.Context,
    given: GivenRequest,
    json: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Write the answer as JSON; - writes it to stdout.", rich_help_panel=OUTPUT),
    ] = None,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the report as an HTML page.", rich_help_panel=OUTPUT)
    ] = None,
    deployment_out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the recommended deployment, for `simulate`.", rich_help_panel=OUTPUT),
    ] = None,
    version: VersionFlag = False,  # noqa: ARG001 - its callback prints it
) -> None:
    """Plan a deployment, and write it to the requested outputs.

    The exit status is 0 for a feasible request, 1 for an infeasible one, and 130 for an interrupted search.
    """
    if context.invoked_subcommand is not None:
        return
    from catalogs.deployments.network_deployment import is_network, refuse_misspelled_network
    from catalogs.errors import InputError
    from catalogs.io.output_files import check_targets, write_atomically
    from planner.problem.scenario import request_of_keys

    keys = given.keys()
    if is_network(str(keys.get("model") or "")):
        if keys.get("agents") is not None:
            raise InputError("agents send requests to a language model, and this network is not one", keys["model"])
        plan_of_network(keys, json, html, deployment_out)
        return
    if keys.get("model"):
        refuse_misspelled_network(str(keys["model"]))
    request = request_of_keys(keys)
    if request.agents is not None:
        plan_of_agents(request, json, html, deployment_out)
        return
    check_targets(json, deployment_out, request.search.journal, html=html)
    if html is not None:  # fail before the search, not after it
        from catalogs.ui.html_page import need_plotly

        need_plotly()
    from planner.cli.screens.plan import show
    from planner.pipeline import kept_words
    from planner.pipeline import plan as plan_deployment

    try:
        answer = plan_deployment(request)
    except KeyboardInterrupt:
        raise Interrupted(kept_words(request)) from None
    if deployment_out is not None and answer.best is not None:
        from catalogs.io.yaml_loader import dump_yaml

        deployment = answer.best.deployment | {"kv_blocks": None}  # `simulate` computes it from the memory model
        write_atomically(deployment_out, [dump_yaml(deployment)])
    write_result(answer.document(), json, lambda: show(answer))
    if html is not None:
        from planner.report.write import write_report

        write_report(answer, html, None)
    if answer.interrupted:
        raise Interrupted(f": the best deployment found so far is recommended{kept_words(request)}")
    raise typer.Exit(0 if answer.feasible else 1)


def plan_of_agents(request: PlanRequest, json_to: str | None, html: Path | None, deployment_out: Path | None) -> None:
    """Plan for a number of agents at work, and write the answer to the requested outputs."""
    from catalogs.io.output_files import check_targets, write_atomically

    check_targets(json_to, deployment_out, html=html)
    from catalogs.ui.progress import status_line
    from planner.agents.plan import plan_agents
    from planner.agents.screen import show_agents

    try:
        with status_line("plan for agents") as progress:
            answer = plan_agents(request, progress)
    except KeyboardInterrupt:
        raise Interrupted("") from None
    if deployment_out is not None and answer.feasible:
        from catalogs.io.yaml_loader import dump_yaml

        write_atomically(deployment_out, [dump_yaml(answer.best.deployment)])
    write_result(answer.document(), json_to, lambda: show_agents(answer))
    if html is not None:
        from planner.agents.page import write_page

        write_page(answer, html)
    raise typer.Exit(0 if answer.feasible else 1)


def plan_of_network(keys: dict[str, Any], json_to: str | None, html: Path | None, deployment_out: Path | None) -> None:
    """Plan a network that is not a language model, and write the answer to the requested outputs."""
    from catalogs.io.output_files import check_targets, write_atomically
    from planner.networks.request import network_request

    request = network_request(keys)
    if html is not None:  # fail before the search, not after it
        from catalogs.ui.html_page import need_plotly

        need_plotly()
    check_targets(json_to, deployment_out, request.search.journal, html=html)
    from catalogs.ui.progress import counted_progress
    from planner.networks.plan import plan_network
    from planner.networks.screen import show_network

    try:
        with counted_progress("search") as progress:
            answer = plan_network(request, lambda done, planned: progress(done, planned, ""))
    except KeyboardInterrupt:
        raise Interrupted("") from None
    if deployment_out is not None and answer.best is not None:
        from catalogs.io.yaml_loader import dump_yaml

        write_atomically(deployment_out, [dump_yaml(answer.best.deployment)])
    write_result(answer.document(), json_to, lambda: show_network(answer))
    if html is not None:
        from planner.networks.report.page import write_page

        write_page(answer, html)
    if answer.search.interrupted:
        raise Interrupted(": the best deployment found so far is recommended")
    raise typer.Exit(0 if answer.feasible else 1)
