"""The `machine` commands of `calibrate`: sample the machine while a command runs, and show what a trace holds."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Annotated, Any

import typer

from catalogs.errors import InputError
from catalogs.io.output_files import check_targets, write_json
from catalogs.ui.shared_options import JsonFile, command_group
from catalogs.ui.words import parse_duration, percent, with_sign

app = command_group(
    help="Record what the machine does while a command runs, and show what disturbed it.",
    no_args_is_help=True,
)

Folder = Annotated[Path, typer.Argument(metavar="DIR", help="The folder of the trace.")]

#: Disturbances and signals on the screen.
_SHOWN = 8


@app.command()
def record(
    folder: Folder,
    command: Annotated[list[str], typer.Argument(metavar="-- COMMAND ...", help="The command to run and observe.")],
    period: Annotated[str, typer.Option(metavar="TIME", help="Time between samples, at most 1s.")] = "0.5s",
) -> None:
    """Sample the machine while a command runs, for example an engine or `calibrate run`; exit with its status."""
    from calibration.machine_trace.folder import check_new_trace, write_trace
    from calibration.machine_trace.sampler import MachineSampler, family_of

    period_s = parse_duration(period)
    if not 0.05 <= period_s <= 1.0:
        raise InputError("the time between samples is from 0.05 s to 1 s", period, "0.5s")
    check_new_trace(folder)
    started: list[int] = []
    with MachineSampler(lambda: family_of(started), period_s) as sampler:
        begins_s = sampler.now_s()
        try:
            with subprocess.Popen(command) as process:
                started.append(process.pid)
                status = process.wait()
        except OSError as error:
            raise InputError(f"the command cannot be started ({error.strerror})", command[0]) from None
        sampler.add_phase(" ".join(command)[:80], begins_s, sampler.now_s())
    write_trace(folder, sampler.trace, ())
    typer.echo(f"{folder}: {len(sampler.trace.at_s)} samples", err=True)
    if status:
        raise typer.Exit(status if 0 < status < 256 else 1)


@app.command()
def add(
    folder: Folder,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Trace of Nsight Systems or torch's profiler.")],
    at: Annotated[
        str | None, typer.Option(metavar="TIME", help="Start of FILE in the trace; default: by the clock.")
    ] = None,
) -> None:
    """Add what a profiler recorded meanwhile (kernels, copies, operators, sampled metrics) as signals of a trace."""
    from calibration.importers.profilers.read import read_profiler_trace
    from calibration.machine_trace.folder import read_trace, write_trace
    from calibration.machine_trace.from_profiler import with_profiler

    trace, requests = read_trace(folder)
    found = with_profiler(trace, read_profiler_trace(file), None if at is None else _start(at))
    write_trace(folder, found, requests)
    names = ", ".join(sorted(found.values.keys() - trace.values.keys()))
    typer.echo(f"{folder}: added {names}", err=True)


@app.command()
def show(
    folder: Folder,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the page of the trace.")] = None,
    json_file: JsonFile = None,
) -> None:
    """Show disturbances, the signals during the slowest requests, and what to change, with the largest gain of each."""
    from calibration.machine_trace.advice import measured_copies, page_fault_costs
    from calibration.machine_trace.folder import document, read_trace

    check_targets(json_file, html=html)
    trace, requests = read_trace(folder)
    found = document(trace, requests, page_fault_costs(), measured_copies())
    if html is not None:
        from calibration.report.machine_page import write_page

        write_page(trace, requests, found, html)
    if json_file != "-":
        _print(found)
    if json_file is not None:
        write_json(found, json_file)


def _start(text: str) -> float:
    """Return the seconds of a start, which may be 0, unlike a duration."""
    return 0.0 if text.strip().lower() in ("0", "0s") else parse_duration(text)


def _print(found: dict[str, Any]) -> None:
    from calibration.machine_trace.readings import moment_text, value_text

    used = f"sampling used {found['sampler_cores']:.2g} cores"
    typer.echo(f"{found['samples']} samples in {found['duration_s']:.0f} s, {found['requests']} requests; {used}")
    for each in found["disturbances"][:_SHOWN]:
        span = f"{moment_text(each['start_s'])} to {moment_text(each['end_s'])}"
        size = f"{value_text(each['extreme'], each['unit'])}, usually {value_text(each['usual'], each['unit'])}"
        typer.echo(f"  {span}  {each['means']} ({each['signal']}): {size}")
    if not found["disturbances"]:
        typer.echo("  no signal left its usual range")
    if found["slow_from_s"] is not None:
        typer.echo(f"while the slowest requests were served ({found['slow_from_s'] * 1e3:,.0f} ms or more):")
        for each in found["while_slow"][:_SHOWN]:
            unit = each["unit"]
            values = f"{value_text(each['slow'], unit)}, otherwise {value_text(each['rest'], unit)}"
            typer.echo(f"  {each['signal']:24} {values} ({with_sign(each['effect'], 1)} deviations)")
    for each in found["advice"]:
        typer.echo(f"gain at most {percent(each['gain'], 1)}: {each['change']}: {each['because']}")
    if not found["advice"]:
        typer.echo("nothing to change: no signal allows for a gain of half a percent")
    for name, why in found["not_measured"].items():
        typer.echo(f"not measured: {name}: {why}")
