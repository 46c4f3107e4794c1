"""The command `plan improve`: what to change in a deployment that runs today."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from catalogs.ui.shared_options import (
    FROM_COMMAND_HELP,
    INPUT_TOKENS_HELP,
    OUTPUT_TOKENS_HELP,
    WORKLOAD_HELP,
    options_of,
)
from planner.cli.options import OUTPUT, JsonBeside, write_result

_SET = "Correct a key of the deployment that was read; repeatable."

_today, _load = options_of("What runs today"), options_of("Load")
_wanted, _output = options_of("What is wanted"), options_of(OUTPUT)


def improve(
    from_command: Annotated[str | None, _today("COMMAND", FROM_COMMAND_HELP)] = None,
    launch: Annotated[Path | None, _today("FILE", "Script or manifest, instead of a command.")] = None,
    hw: Annotated[str | None, _today("H", "Hardware that the command runs on, such as h100x8.")] = None,
    settings: Annotated[list[str] | None, _today("KEY=VALUE", _SET, "--set")] = None,
    env: Annotated[
        list[str] | None, _today("NAME=VALUE", "Value of a variable in the command or file; repeatable.")
    ] = None,
    service: Annotated[str | None, _today("NAME", "Server to read, by its name or number in the file.")] = None,
    workload: Annotated[str | None, _load("W", WORKLOAD_HELP)] = None,
    rate: Annotated[float | None, _load("R", "Requests per second today (default: the highest it serves).")] = None,
    input_tokens: Annotated[int | None, _load("N", INPUT_TOKENS_HELP)] = None,
    output_tokens: Annotated[int | None, _load("N", OUTPUT_TOKENS_HELP)] = None,
    seed: Annotated[int, _load("N", "Seed of workload and search.", min=0)] = 0,
    slo: Annotated[
        list[str] | None, _wanted("METRIC.STAT=LIMIT", "Objective, e.g. ttft.p99=2s; repeat or use commas.")
    ] = None,
    confidence: Annotated[float | None, _wanted("P", "Probability with which each objective must be met.")] = None,
    objective: Annotated[
        str, _wanted("NAME", "Quantity to optimise: cost, energy, carbon, throughput, goodput or latency.")
    ] = "cost",
    other_hw: Annotated[list[str] | None, _wanted("H", "Other hardware to compare with; repeatable.")] = None,
    precision: Annotated[list[str] | None, _wanted("DTYPE", "Weight dtypes to choose from, e.g. native.")] = None,
    price: Annotated[float | None, _wanted("USD", "Your price of the hardware, per hour.")] = None,
    deployment_out: Annotated[Path | None, _output("FILE", "Write the improved deployment, for `simulate`.")] = None,
    json_file: JsonBeside = None,
) -> None:
    """Find what to change in a running deployment; exit status 1 if no change makes it meet the objectives.

    plan improve --from-command "vllm serve meta-llama/Llama-3.1-8B-Instruct --max-num-seqs 64" --hw h100x1 --slo p99=2s
    """
    from catalogs.errors import InputError
    from catalogs.io.output_files import check_targets, write_atomically
    from catalogs.launch.reading.read import parse_variables, read_command, read_launch_file
    from catalogs.ui.progress import progress_bar
    from planner.cli.screens.improve import show_improvement
    from planner.improve.improver import improve as study
    from planner.improve.improver import request_for
    from planner.problem.scenario import request_of_keys

    if (from_command is None) == (launch is None):
        raise InputError(
            "plan improve needs one start command", hint="give --from-command 'vllm serve ...' or --launch FILE"
        )
    check_targets(json_file, deployment_out)
    variables = parse_variables(env or [])
    if launch is not None:
        read = read_launch_file(launch, hw, settings or [], variables, service)
    else:
        read = read_command(str(from_command), hw, settings or [], variables, service)
    given: dict[str, Any] = {
        "slo": slo,
        "workload": workload,
        "rate": rate,
        "input_tokens": input_tokens,
        "output_tokens": output_tokens,
        "objective": objective,
        "confidence": confidence,
        "precisions": precision,
        "tariff.usd_per_hour": price,
        "seed": seed,
    }
    request = request_of_keys(request_for(read, given))
    with progress_bar("improve") as progress:
        found = study(str(launch or from_command), read, request, other_hw or [], progress)
    if deployment_out is not None and found.improved_deployment is not None:
        from catalogs.io.yaml_loader import dump_yaml

        write_atomically(deployment_out, [dump_yaml(found.improved_deployment)])
    write_result(found.document(), json_file, lambda: show_improvement(found))
    raise typer.Exit(0 if found.feasible else 1)
