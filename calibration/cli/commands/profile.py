"""The command `calibrate profile`: operator times measured on this machine, written as rows."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from calibration.cli.options import (
    Budget,
    Device,
    DryRun,
    Hardware,
    Machine,
    Out,
    ProfileDtype,
    ProfileModels,
    Seed,
    Threads,
)

if TYPE_CHECKING:
    from calibration.profile.local_run import ProfileOptions, ProfileResult

Kernels = Annotated[bool, typer.Option("--kernels", help="Also trace one shape per family: kernels.csv, .parquet.")]


def profile(
    hw: Hardware = "local",
    budget: Budget = "5m",
    out: Out = None,
    device: Device = None,
    threads: Threads = None,
    model: ProfileModels = None,
    dtype: ProfileDtype = None,
    dry_run: DryRun = False,
    kernels: Kernels = False,
    machine: Machine = None,
    seed: Seed = 0,
) -> None:
    """Measure operator times on this machine and write the rows; nothing is installed."""
    from calibration.profile.local_run import ProfileOptions, budget_s

    options = ProfileOptions(hw, budget_s(budget), out, device, threads, seed, tuple(model or ()), dtype)
    done = profiled(options, dry_run, machine)
    from calibration.profile.session.tables import write_measured
    from calibration.profile.torch_profiler import write_kernels

    if kernels:
        typer.echo(str(write_kernels(done)))
    typer.echo(str(write_measured(done.session.rows, done.folder / "measured.parquet")))


def profiled(options: ProfileOptions, dry_run: bool, machine: Path | None) -> ProfileResult:
    """Profile this machine, and record what it does into the folder `machine`.

    With `dry_run`, list the shapes to measure and end the command.
    """
    from calibration.profile.dry_run import plan, plan_lines
    from calibration.profile.local_run import limit_s, prepare, run_profile

    if dry_run:
        _, _, job = prepare(options)
        for text in plan_lines(plan(job, limit_s(options.budget_s)), job):
            typer.echo(text)
        raise typer.Exit
    done = run_profile(options) if machine is None else _recorded(machine, lambda: run_profile(options))
    counts = ", ".join(f"{n} {what.replace('_', ' ')}" for what, n in done.counts.items() if n)
    typer.echo(f"{done.folder}: {counts}", err=True)
    return done


def _recorded(folder: Path, run: Callable[[], ProfileResult]) -> ProfileResult:
    """Run a profile while the machine is sampled, and write the trace with one phase for each family of shapes.

    Raises:
        InputError: The folder holds a trace already.
    """
    from calibration.machine_trace.folder import check_new_trace
    from calibration.machine_trace.sampler import MachineSampler, profile_phases
    from calibration.report.machine_page import write_trace_and_page

    check_new_trace(folder)
    with MachineSampler(lambda: {os.getpid()}) as sampler:
        done = run()
    trace = sampler.trace
    phases = profile_phases(done.session.rows, trace.began_unix_s or 0.0)
    write_trace_and_page(folder, replace(trace, phases=phases), ())
    return done
