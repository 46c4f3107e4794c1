"""The command `plan whatif`: the planned deployment with changes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from planner.cli.options import Alternative, JsonTo, write_result


def whatif(
    answer: Annotated[
        Path | None, typer.Argument(metavar="[ANSWER.json]", help="Answer written by plan --json.")
    ] = None,
    rate: Annotated[str | None, typer.Option(help="Requests per second, or a factor on the planned rate: x2.")] = None,
    hw: Annotated[str | None, typer.Option(help="Other hardware for the same deployment, e.g. h200x8.")] = None,
    workload: Annotated[str | None, typer.Option(help="Workload: name, trace file or YAML file.")] = None,
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
    from catalogs.launch.reading.read import read_command
    from catalogs.ui.terminal import progress_bar
    from planner.answer.schema import chosen
    from planner.cli.screens.studies import show_whatif
    from planner.improve.study import request_for
    from planner.problem.overrides import parse_keys
    from planner.problem.scenario import request_of_keys
    from planner.sections.full_answer import read_answer
    from planner.studies.whatif import Changes, parse_rate, what_if_today
    from planner.studies.whatif import what_if as change

    if not (rate or hw or (workload and from_command is None) or settings):
        raise InputError("nothing is changed", hint="give --rate x2, --hw h200x8, --workload W or --set KEY=VALUE")
    if (answer is None) == (from_command is None):
        raise InputError("plan whatif needs an answer or a start command", hint="ANSWER.json or --from-command COMMAND")
    changed = parse_keys(settings or [])
    if from_command is None:
        for name, value in (("--command-hw", command_hw), ("--command-rate", command_rate), ("--slo", slo)):
            if value is not None:
                raise InputError(f"{name} belongs to --from-command; an answer has its own", value)
        assert answer is not None
        read = read_answer(answer)
        plan = chosen("whatif", read, alternative)
        per_s = None if rate is None else parse_rate(rate, plan.requests_per_s or 0.0)
        with progress_bar("whatif") as progress:
            progress("the changed deployment")
            found = change(read, plan, Changes(per_s, hw, workload, changed))
    else:
        per_s = None if rate is None else parse_rate(rate, command_rate or 0.0)
        with progress_bar("whatif") as progress:
            progress("the present and the changed deployment")
            started = read_command(from_command, command_hw)
            load = {"slo": slo, "workload": workload, "rate": command_rate}
            request = request_of_keys(request_for(started, load))
            found = what_if_today(started.deployment, request, Changes(per_s, hw, None, changed))
    write_result(found.document(), json_file, lambda: show_whatif(found))
    raise typer.Exit(1 if found.breaks else 0)
