"""The `calibrate` command: import and measure rows, fit them into bundles, and report the errors."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from calibration.cli import artefact, machine
from calibration.cli.compare import compare
from calibration.cli.importing import import_
from calibration.cli.models import models, predict
from calibration.cli.options import Budget, BundleName, Device, Hardware, JsonFile, Machine, Out, Seed, Threads
from catalogs.errors import InputError
from catalogs.io.output_files import check_targets, write_json
from catalogs.ui.entry_point import run_command
from catalogs.ui.shared_options import command_group, takes_version
from catalogs.ui.words import percent

if TYPE_CHECKING:
    from calibration.profile.local_run import ProfileOptions, ProfileResult


app = command_group(
    help="Measure or import operator times of an accelerator, fit them, check the fit and show it.",
    no_args_is_help=True,
)

app.callback()(takes_version)

app.command("import")(import_)

app.command()(compare)

app.add_typer(artefact.app, name="artefact")

app.add_typer(machine.app, name="machine")

app.command()(models)

app.command()(predict)


@app.command()
def export(
    bundle: BundleName,
    out: Annotated[Path, typer.Option(metavar="FILE.tar.gz|DIR", help="Archive or folder to write.")],
) -> None:
    """Copy a calibration with its sources after checking its hashes; `calibrate import --bundle` installs the copy."""
    from calibration.bundles.archive import export_bundle

    typer.echo(str(export_bundle(bundle, out)))


@app.command()
def report(
    source: Annotated[str, typer.Argument(metavar="BUNDLE|DIR", help="A profile or bundle folder, or hardware name.")],
    out: Annotated[Path, typer.Option(metavar="FILE", help="The page to write.")] = Path("report.html"),
    rows: Annotated[
        Path | None, typer.Option(metavar="DIR", help="The FAMILY.parquet files that a bundle was fitted to.")
    ] = None,
) -> None:
    """Write a self-contained page: errors on unseen shapes, roofline, power, coverage; or whole-model predictions."""
    check_targets(None, out)
    from calibration.report.write import write_report

    typer.echo(str(write_report(source, out, rows)))


@app.command()
def tiny_model(
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Folder to write; default: in your models.")] = None,
    architecture: Annotated[str, typer.Option(metavar="NAME", help="llama, qwen3 or mixtral.")] = "llama",
) -> None:
    """Write a model of some 30 million random parameters with a tokenizer, and print its folder."""
    from calibration.serve.tiny_model import TINY_NAME, TinyShape, write_tiny_model
    from catalogs.io.yaml_files import user_folder

    name = TINY_NAME.replace("llama", architecture)
    typer.echo(str(write_tiny_model(out or user_folder("models") / name, TinyShape(model_type=architecture))))


@app.command()
def fit(
    rows: Annotated[Path, typer.Argument(metavar="ROWS", help="Folder of FAMILY.parquet files.")],
    hw: Hardware,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder to write.")],
) -> None:
    """Fit rows into a bundle, with its held-out errors."""
    from calibration.bundles.files import read_bundle
    from calibration.fitting.fit import fit_bundle
    from calibration.rows.dataset import read_rows
    from catalogs.hardware.catalog import parse_hardware

    path = fit_bundle(read_rows(rows), parse_hardware(hw).accelerator, out)
    typer.echo(str(path))
    _print_errors(read_bundle(path)[0].held_out)


ProfileModels = Annotated[
    list[str] | None,
    typer.Option("--model", metavar="NAME|DIR", help="Measure this model's own shapes first; repeatable."),
]

ProfileDtype = Annotated[
    str | None,
    typer.Option("--dtype", metavar="TYPE", help="Dtype to serve these models in, such as fp32 on a CPU."),
]

DryRun = Annotated[
    bool, typer.Option("--dry-run", help="List the shapes to measure, with estimated times; measure nothing.")
]

Kernels = Annotated[bool, typer.Option("--kernels", help="Also trace one shape per family: kernels.csv, .parquet.")]


@app.command()
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
    done = _profile(options, dry_run, machine)
    from calibration.profile.session.tables import write_measured
    from calibration.profile.torch_profiler import write_kernels

    if kernels:
        typer.echo(str(write_kernels(done)))
    typer.echo(str(write_measured(done.session.rows, done.folder / "measured.parquet")))


@app.command()
def run(
    hw: Hardware = "local",
    budget: Budget = "5m",
    out: Out = None,
    device: Device = None,
    threads: Threads = None,
    model: ProfileModels = None,
    dtype: ProfileDtype = None,
    dry_run: DryRun = False,
    machine: Machine = None,
    json_file: JsonFile = None,
) -> None:
    """Profile this machine, fit, show the held-out errors, and install the calibration for plan and simulate."""
    from calibration.profile.local_run import ProfileOptions, budget_s, fit_and_install

    check_targets(json_file)
    options = ProfileOptions(hw, budget_s(budget), out, device, threads, models=tuple(model or ()), dtype=dtype)
    done = _profile(options, dry_run, machine)
    from calibration.bundles.files import read_bundle
    from calibration.profile.dry_run import machine_lines

    bundle, installed, peaks = fit_and_install(done)
    facts, unit = read_bundle(bundle)[0], done.accelerator
    if json_file != "-":
        rates = ", ".join(f"{d} {f / 1e12:.3g} TFLOP/s" for d, f in unit.peak_flops.items())
        typer.echo(f"{unit.full_name}: {rates}, memory {unit.memory_bandwidth_bytes_per_s / 1e9:.3g} GB/s")
        for text in machine_lines(done.session.rows):
            typer.echo(text)
        _print_errors(facts.held_out)
        for text in facts.notices:
            typer.echo(f"  {text}")
        kept = f"the calibration in use is unchanged; `calibrate import --bundle {bundle.parent}` installs it"
        done_text = f"installed: {installed}" + (f", {peaks}" if peaks else "")
        typer.echo(done_text if installed else f"not installed: {kept}")
    page = _page(done.folder)
    if json_file is not None:
        document = {
            "schema_version": 1,
            "profile": str(done.folder),
            "installed": str(installed) if installed else None,
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


@app.command()
def diff(
    a: Annotated[Path, typer.Argument(metavar="A", help="Folder of a profile.")],
    b: Annotated[Path, typer.Argument(metavar="B", help="Folder of another profile.")],
    json_file: JsonFile = None,
) -> None:
    """Compare two profiles: their machines, versions, and times of the shapes in both."""
    from calibration.profile.session.difference import compare

    found = compare(a, b, lambda text: typer.echo(text, err=True))
    if json_file != "-":
        for name, (left, right) in found.facts.items():
            typer.echo(f"  {name}: {left} | {right}")
        for t in found.times:
            typer.echo(f"  {t.family:18} n {t.n:>6,}  B/A median {t.median:.3f}  p10 {t.p10:.3f}  p90 {t.p90:.3f}")
    if json_file is not None:
        write_json({"schema_version": 1, "differ": found.facts, "times": [t.to_dict() for t in found.times]}, json_file)


@app.command()
def validate(
    bundle: BundleName,
    rows: Annotated[Path | None, typer.Option(metavar="DIR", help="Folder of rows to predict as well.")] = None,
    max_error: Annotated[float, typer.Option(metavar="X", help="Largest median relative error that passes.")] = 0.15,
    json_file: JsonFile = None,
) -> None:
    """Check a bundle's hashes and its held-out errors; exit status 1 if a median exceeds the limit."""
    from calibration.bundles.bundle import bundle_folder
    from calibration.fitting.cross_validation import validate_bundle

    found = validate_bundle(bundle_folder(bundle), rows)
    missed = sorted({e["family"] for e in found if e["median_abs_rel_error"] > max_error})
    if json_file != "-":
        _print_errors(found)
        typer.echo(f"over {percent(max_error)}: {', '.join(missed)}" if missed else f"all within {percent(max_error)}")
    if json_file is not None:
        document = {"schema_version": 1, "max_error": max_error, "met": not missed, "errors": found}
        write_json(document, json_file)
    if missed:
        raise typer.Exit(1)


@app.command()
def show(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Hardware name, or the folder of a bundle.")],
    json_file: JsonFile = None,
) -> None:
    """Show a calibration: its sources, rows and errors, and what is not calibrated."""
    from calibration.bundles.bundle import load_bundle
    from calibration.bundles.files import read_bundle
    from catalogs.hardware.catalog import parse_hardware

    path = Path(name) if os.path.isfile(Path(name) / "bundle.json") else None
    hardware = read_bundle(path)[0].hardware if path else name
    bundle = load_bundle(parse_hardware(hardware).accelerator, path)
    notices = [*bundle.notices, *bundle.uncalibrated]
    if json_file != "-":
        typer.echo(bundle.name)
        for source in bundle.provenance.get("sources", []):
            typer.echo(f"  source: {source['name']} {source['licence']}".rstrip())
        held_out = bundle.provenance.get("held_out", {})
        _print_errors([{"family": family, **e} for family, errors in held_out.items() for e in errors])
        for notice in notices:
            typer.echo(f"  {notice}")
    if json_file is not None:
        document = {"schema_version": 1, "bundle": bundle.name, "notices": notices, "provenance": bundle.provenance}
        write_json(document, json_file)


def _profile(options: ProfileOptions, dry_run: bool, machine: Path | None) -> ProfileResult:
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


def _print_errors(errors: list[dict[str, Any]]) -> None:
    for e in errors:
        size = (
            f"median {percent(e['median_abs_rel_error'], 1)}  p90 {percent(e['p90_abs_rel_error'], 1)} "
            f" bias {percent(e['bias'], 1, signed=True)}"
        )
        typer.echo(f"  {e['family']:18} {e['region']:7} n {e['n']:>7,}  {size}")


def main(args: list[str] | None = None) -> None:
    """Run the command `calibrate` and exit with its status; `args` replace those of the process."""
    sys.exit(run_command("calibrate", app, args, last=True))


if __name__ == "__main__":
    main()
