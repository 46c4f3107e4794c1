"""The command `plan whatif`: the planned deployment with changes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from planner.cli.options import Alternative, AnswerPath, JsonTo, write_result

if TYPE_CHECKING:
    from planner.networks.schema import NetworkAnswer
    from planner.studies.whatif import WhatIf


def whatif(
    answer: AnswerPath,
    rate: Annotated[
        str | None, typer.Option(help="Requests (jobs) per second, or a factor on the planned rate: x2.")
    ] = None,
    hw: Annotated[str | None, typer.Option(help="Other hardware for the same deployment, e.g. h200x8.")] = None,
    workload: Annotated[str | None, typer.Option(help="Workload: name, trace file or YAML file.")] = None,
    job: Annotated[
        str | None, typer.Option(metavar="SIZES", help="Sizes of the job of a network, e.g. 1280x720x81.")
    ] = None,
    steps: Annotated[int | None, typer.Option(metavar="N", help="Denoising steps of the job of a network.")] = None,
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
    from planner.networks.answer_file import read_network_answer
    from planner.problem.overrides import parse_keys
    from planner.sections.full_answer import read_answer
    from planner.studies.whatif import Changes, parse_rate
    from planner.studies.whatif import what_if as change

    of_job = job is not None or steps is not None
    if not (rate or hw or workload or settings or of_job):
        raise InputError("nothing is changed", hint="give --rate x2, --hw h200x8, --workload W or --set KEY=VALUE")
    of_network = read_network_answer(answer)
    if of_network is not None:
        if workload is not None:
            raise InputError("a network has jobs, and no workload of tokens", workload, "--job SIZES")
        found = _of_network(of_network, alternative, (rate, hw, job, steps), settings or [])
        write_result(found.document(), json_file, lambda: show_whatif(found))
        raise typer.Exit(1 if found.breaks else 0)
    if of_job:
        raise InputError("a language model has no job sizes and no steps", job or steps, "--workload W")
    read = read_answer(answer)
    plan = chosen("whatif", read, alternative)
    per_s = None if rate is None else parse_rate(rate, plan.requests_per_s or 0.0)
    changes = Changes(per_s, hw, workload, parse_keys(settings or []))
    with progress_bar("whatif") as progress:
        progress("the changed deployment")
        found = change(read, plan, changes)
    write_result(found.document(), json_file, lambda: show_whatif(found))
    raise typer.Exit(1 if found.breaks else 0)


def _of_network(
    answer: NetworkAnswer,
    alternative: int,
    given: tuple[str | None, str | None, str | None, int | None],
    settings: list[str],
) -> WhatIf:
    """Return the changed plan of a network."""
    from catalogs.ui.terminal import progress_bar
    from planner.networks.answer_file import chosen_plan
    from planner.networks.studies.whatif import NetworkChanges, parse_changes, what_if_network
    from planner.studies.whatif import parse_rate

    rate, hw, job, steps = given
    plan = chosen_plan("whatif", answer, alternative)
    per_s = None if rate is None else parse_rate(rate, plan.requests_per_s)
    changes = NetworkChanges(per_s, hw, job, steps, parse_changes(settings))
    with progress_bar("whatif") as progress:
        progress("the changed deployment")
        return what_if_network(answer, plan, changes)
