"""The command `plan` without a subcommand: plan a deployment."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from catalogs.ui.entry_point import INTERRUPTED
from planner.cli.options import OUTPUT, put
from planner.cli.request_options import GivenRequest, takes_request

if TYPE_CHECKING:
    from planner.answer.schema import Answer
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
) -> None:
    """plan --model llama3.1-405b --slo p99=2s --hw h100x8."""
    if context.invoked_subcommand is not None:
        return
    from catalogs.io.output_files import check_targets

    request = given.request()
    check_targets(json, deployment_out, request.search.journal, html)
    if html is not None:  # fail before the search, not after it
        from catalogs.ui.html_page import need_plotly
        from planner.answer.capabilities import need_readable_kinds

        need_plotly()
        need_readable_kinds("report", request.extensions)
    raise typer.Exit(_answered(request, AnswerOutputs(json, deployment_out, html)))


@dataclass(frozen=True, slots=True)
class AnswerOutputs:
    """The destinations of an answer: its JSON, the recommended deployment, and the HTML report; None for none."""

    json_to: str | None
    deployment_to: Path | None
    html_to: Path | None

    def put(self, answer: Answer) -> None:
        """Write every output, and print the screen unless the JSON goes to stdout."""
        from planner.cli.screens.plan import show

        if self.deployment_to is not None and answer.best is not None:
            _write_deployment(answer.best.deployment, self.deployment_to)
        put(answer.document(), self.json_to, lambda: show(answer))
        if self.html_to is not None:
            from planner.report.write import write_report

            write_report(answer, self.html_to, None)


def _write_deployment(deployment: dict[str, Any], path: Path) -> None:
    import yaml

    from catalogs.io.output_files import write_atomically

    again = deployment | {"kv_blocks": None}  # `simulate` computes it from the memory model
    write_atomically(path, [yaml.safe_dump(again, sort_keys=False)])


def _answered(request: PlanRequest, written: AnswerOutputs) -> int:
    """Plan, write the outputs and return the exit status: 0 feasible, 1 infeasible, 130 interrupted."""
    from planner.pipeline import kept_words, plan

    try:
        answer = plan(request)
    except KeyboardInterrupt:
        print(f"interrupted{kept_words(request)}", file=sys.stderr)
        return INTERRUPTED
    written.put(answer)
    if answer.interrupted:
        print(f"interrupted: the best deployment found so far is recommended{kept_words(request)}", file=sys.stderr)
        return INTERRUPTED
    return 0 if answer.feasible else 1
