"""The command `plan whatif`: the planned deployment, or one that runs today, with changes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from planner.cli.options import Alternative, JsonTo, write_result

if TYPE_CHECKING:
    from planner.networks.schema import NetworkAnswer
    from planner.studies.whatif import WhatIf


def whatif(
    answer: Annotated[Path | None, typer.Argument(metavar="ANSWER.json", help="Answer written by plan --json.")] = None,
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
    from_command: Annotated[
        str | None, typer.Option(metavar="COMMAND", help="Instead of an answer: the command that runs today.")
    ] = None,
    command_hw: Annotated[str | None, typer.Option(metavar="H", help="Hardware of --from-command.")] = None,
    command_rate: Annotated[
        float | None, typer.Option(metavar="R", help="Requests per second of --from-command (default: its capacity).")
    ] = None,
    slo: Annotated[
        list[str] | None, typer.Option(metavar="METRIC.STAT=LIMIT", help="Objective of --from-command; repeatable.")
    ] = None,
    json_file: JsonTo = None,
) -> None:
    """Simulate the planned deployment with changes; exit status 1 if an objective is missed.

    plan whatif ANSWER.json --rate x2 --hw h200x8 --set kv_dtype=fp8

    plan whatif --from-command "vllm serve M" --command-hw h100x1 --slo p99=2s --set kv_dtype=fp8
    """
    from catalogs.errors import InputError
    from planner.cli.screens.studies import show_whatif
    from planner.networks.answer_file import read_network_answer

    of_job = job is not None or steps is not None
    if not (rate or hw or (workload and from_command is None) or settings or of_job):
        raise InputError(
            "nothing is changed", hint="give --rate x2, --hw h200x8, --workload W, --job SIZES or --set KEY=VALUE"
        )
    if (answer is None) == (from_command is None):
        rule = "plan whatif needs an answer or a start command" + ("" if answer is None else ", not both")
        raise InputError(rule, hint="ANSWER.json or --from-command COMMAND")
    for_command = {"--command-hw": command_hw, "--command-rate": command_rate, "--slo": slo}
    given = next(((name, value) for name, value in for_command.items() if value is not None), None)
    if from_command is None and given is not None:
        raise InputError(f"{given[0]} belongs to --from-command; an answer has its own", given[1])
    of_network = None if answer is None else read_network_answer(answer)
    if of_network is None and of_job:
        raise InputError("a language model has no job sizes and no steps", job or steps, "--workload W")
    if of_network is not None:
        if workload is not None:
            raise InputError("a network has jobs, and no workload of tokens", workload, "--job SIZES")
        found = _of_network(of_network, alternative, (rate, hw, job, steps), settings or [])
    elif answer is not None:
        found = _of_answer(answer, alternative, (rate, hw, workload), settings or [])
    else:
        load = {"slo": slo, "workload": workload, "rate": command_rate}
        found = _of_command(from_command or "", command_hw, load, (rate, hw), settings or [])
    write_result(found.document(), json_file, lambda: show_whatif(found))
    raise typer.Exit(1 if found.breaks else 0)


def _of_answer(
    path: Path, alternative: int, given: tuple[str | None, str | None, str | None], settings: list[str]
) -> WhatIf:
    """Return the changed plan of an answer for a language model; `given` holds the rate, hardware and workload."""
    from catalogs.ui.progress import progress_bar
    from planner.answer.answer_schema import chosen
    from planner.problem.overrides import parse_keys
    from planner.sections.full_answer import read_answer
    from planner.studies.whatif import Changes, parse_rate, what_if

    rate, hw, workload = given
    answer = read_answer(path)
    plan = chosen("whatif", answer, alternative)
    per_s = None if rate is None else parse_rate(rate, plan.requests_per_s or 0.0)
    changes = Changes(per_s, hw, workload, parse_keys(settings))
    with progress_bar("whatif") as progress:
        progress("the changed deployment")
        return what_if(answer, plan, changes)


def _of_command(
    command: str,
    command_hw: str | None,
    load: Mapping[str, object],
    given: tuple[str | None, str | None],
    settings: list[str],
) -> WhatIf:
    """Return the changed deployment of a start command; `given` holds the changed rate and hardware."""
    from catalogs.errors import InputError
    from catalogs.launch.reading.read import read_command
    from catalogs.ui.progress import progress_bar
    from catalogs.workloads.limits import MOST_PLANNED_PER_S, check_rate
    from planner.improve.improver import request_for
    from planner.problem.overrides import parse_keys
    from planner.problem.scenario import request_of_keys
    from planner.studies.whatif import Changes, parse_rate, what_if_today

    rate, hw = given
    now = load["rate"]
    if now is not None:
        check_rate(now, "--command-rate", MOST_PLANNED_PER_S)
    elif rate is not None and rate[:1] in ("x", "X"):
        raise InputError("a factor needs the rate that it multiplies", rate, "--command-rate R, or --rate R")
    per_s = None if rate is None else parse_rate(rate, now if isinstance(now, float) else 0.0)
    changes = Changes(per_s, hw, None, parse_keys(settings))
    with progress_bar("whatif") as progress:
        progress("the present and the changed deployment")
        started = read_command(command, command_hw)
        return what_if_today(started.deployment, request_of_keys(request_for(started, load)), changes)


def _of_network(
    answer: NetworkAnswer,
    alternative: int,
    given: tuple[str | None, str | None, str | None, int | None],
    settings: list[str],
) -> WhatIf:
    """Return the changed plan of a network; `given` holds the rate, hardware, job and steps."""
    from catalogs.ui.progress import progress_bar
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
