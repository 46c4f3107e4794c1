"""The command `calibrate run`: profile this machine, fit the rows and install the calibration."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from calibration.cli.commands.profile import profiled
from calibration.cli.options import (
    AllowContended,
    Budget,
    Device,
    DryRun,
    Hardware,
    Machine,
    Out,
    ProfileDtype,
    ProfileModels,
    Threads,
)
from calibration.cli.screen import show_errors
from catalogs.errors import InputError
from catalogs.io.output_files import check_targets, write_json
from catalogs.ui.shared_options import JsonFile

if TYPE_CHECKING:
    from calibration.profile.local_run import Installation


def run(
    hw: Hardware = "local",
    budget: Budget = "5m",
    out: Out = None,
    device: Device = None,
    threads: Threads = None,
    model: ProfileModels = None,
    dtype: ProfileDtype = None,
    dry_run: DryRun = False,
    allow_contended: AllowContended = False,
    machine: Machine = None,
    json_file: JsonFile = None,
) -> None:
    """Profile this machine, fit, show the held-out errors, and install the calibration for plan and simulate.

    Nothing is installed, and the exit status is 1, if most rows were measured while other processes used the machine.
    """
    from calibration.profile.local_run import ProfileOptions, budget_s, fit_and_install

    check_targets(json_file)
    options = ProfileOptions(hw, budget_s(budget), out, device, threads, models=tuple(model or ()), dtype=dtype)
    done = profiled(options, dry_run, machine)
    from calibration.bundles.files import read_bundle
    from calibration.profile.dry_run import machine_lines
    from catalogs.ui.progress import status_line

    with status_line("fitting the rows"):
        made = fit_and_install(done, allow_contended)
    facts, unit = read_bundle(made.bundle)[0], done.accelerator
    if json_file != "-":
        rates = ", ".join(f"{d} {f / 1e12:.3g} TFLOP/s" for d, f in unit.peak_flops.items())
        typer.echo(f"{unit.full_name}: {rates}, memory {unit.memory_bandwidth_bytes_per_s / 1e9:.3g} GB/s")
        for text in machine_lines(done.session.rows):
            typer.echo(text)
        show_errors(facts.held_out)
        for text in facts.notices:
            typer.echo(f"  {text}")
        typer.echo(
            f"installed: {made.folder}" + (f", {made.peaks}" if made.peaks else "") if made.folder else _kept(made)
        )
    page = _page(done.folder)
    if json_file is not None:
        document = {
            "schema_version": 1,
            "profile": str(done.folder),
            "installed": str(made.folder) if made.folder else None,
            "not_installed": made.why_not or None,
            "report": page,
            "counts": done.counts,
            "peak_flops": unit.peak_flops,
            "memory_bandwidth_bytes_per_s": unit.memory_bandwidth_bytes_per_s,
            "machine": machine_lines(done.session.rows),
            "drift": done.facts.get("drift") or None,
            "errors": facts.held_out,
            "notices": facts.notices,
        }
        write_json(document, json_file)
    if made.folder is None:
        raise typer.Exit(1)


def _kept(made: Installation) -> str:
    """Return why a bundle is not installed, and what the user can do."""
    again = "end the other processes and profile again into another folder"
    anyway = "--allow-contended installs such a profile"
    return f"not installed: {made.why_not}; the calibration in use is unchanged: {again}, or {anyway}"


def _page(folder: Path) -> str | None:
    """Write the profile's page into its folder and print its path on stderr.

    Return None, with a line on how to install plotly, where plotly is missing.
    """
    from calibration.report.write import write_report

    try:
        page = str(write_report(str(folder), folder / "report.html"))
    except InputError as error:
        typer.echo(f"no report: {error}", err=True)
        return None
    typer.echo(f"report: {page}", err=True)
    return page
