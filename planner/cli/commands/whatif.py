"""The command `plan whatif`: the planned deployment with changes."""

from __future__ import annotations

from typing import Annotated

import typer

from planner.cli.options import Alternative, AnswerPath, JsonTo, write_result


def whatif(
    answer: AnswerPath,
    rate: Annotated[str | None, typer.Option(help="Requests per second, or a factor on the planned rate: x2.")] = None,
    hw: Annotated[str | None, typer.Option(help="Other hardware for the same deployment, e.g. h200x8.")] = None,
    workload: Annotated[str | None, typer.Option(help="Workload: name, trace file or YAML file.")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Set a key of deployment.yaml; repeatable.")
    ] = None,
    alternative: Alternative = 0,
    json_file: JsonTo = None,
) -> None:
    """Simulate the planned deployment with changes; exit status 1 if an objective is missed.

    plan whatif ANSWER.json --rate x2 --hw h200x8 --set kv_dtype=fp8
    """
    from catalogs.errors import InputError
    from catalogs.ui.terminal import progress_bar
    from planner.answer.schema import chosen
    from planner.cli.screens.studies import show_whatif
    from planner.problem.overrides import parse_keys
    from planner.sections.full_answer import read_answer
    from planner.studies.whatif import Changes, parse_rate
    from planner.studies.whatif import what_if as change

    if not (rate or hw or workload or settings):
        raise InputError("nothing is changed", hint="give --rate x2, --hw h200x8, --workload W or --set KEY=VALUE")
    read = read_answer(answer)
    plan = chosen("whatif", read, alternative)
    per_s = None if rate is None else parse_rate(rate, plan.requests_per_s or 0.0)
    changes = Changes(per_s, hw, workload, parse_keys(settings or []))
    with progress_bar("whatif") as progress:
        progress("the changed deployment")
        found = change(read, plan, changes)
    write_result(found.document(), json_file, lambda: show_whatif(found))
    raise typer.Exit(1 if found.breaks else 0)
