"""The `calibrate` command: import and measure rows, fit them into bundles, and report the errors."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from calibration.commands.compare import compare
from calibration.commands.exporting import export
from calibration.commands.importing import import_
from calibration.commands.models import models
from calibration.commands.report import report
from calibration.commands.tiny_model import tiny_model
from catalogs.errors import InputError
from catalogs.io.output_files import check_targets, write_json
from catalogs.ui.entry_point import run_command

if TYPE_CHECKING:
    from calibration.bundles.files import BundleFacts
    from calibration.profile.local_run import ProfileOptions, ProfileResult
    from catalogs.hardware.specs import Accelerator


app = typer.Typer(
    help="Measure or import operator times of an accelerator, fit them, check the fit and show it.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Hardware = Annotated[str, typer.Option("--hw", metavar="NAME", help="Hardware name of the catalog, such as h100.")]

Tables = Annotated[
    Path, typer.Option(metavar="DIR", help="Folder of public tables: aiconfigurator/, llmservingsim/, …")
]

Out = Annotated[Path, typer.Option(metavar="DIR", help="Folder to write.")]

JsonFile = Annotated[str | None, typer.Option("--json", metavar="FILE", help="Write JSON to FILE, or - for stdout.")]

app.command("import")(import_)

app.command()(export)

app.command()(compare)

app.command()(report)

app.command()(models)

app.command("tiny-model")(tiny_model)


@app.command()
def fit(
    rows: Annotated[Path, typer.Argument(metavar="ROWS", help="Folder of FAMILY.parquet files.")],
    hw: Hardware,
    out: Out,
) -> None:
    """Fit rows into a bundle, with its held-out errors."""
    from calibration.fitting.fit import fit_bundle
    from calibration.rows.dataset import read_rows
    from catalogs.hardware.catalog import parse_hardware

    path = fit_bundle(read_rows(rows), parse_hardware(hw).accelerator, out)
    typer.echo(str(path))
    _print_errors(_facts(path))


Budget = Annotated[str, typer.Option(metavar="TIME", help="Measuring time, such as 5m or 90s.")]

ProfileOut = Annotated[
    Path | None, typer.Option("--out", metavar="DIR", help="Folder of the profile; an interrupted one is continued.")
]

Device = Annotated[str | None, typer.Option(metavar="KIND", help="cpu or cuda; default: the GPU if there is one.")]

Threads = Annotated[int | None, typer.Option(metavar="N", help="CPU threads of the engine; default: all cores.")]

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

Seed = Annotated[int, typer.Option(metavar="N", help="Seed of the order and of the held-out shapes.")]


@app.command()
def profile(
    hw: Hardware = "local",
    budget: Budget = "5m",
    out: ProfileOut = None,
    device: Device = None,
    threads: Threads = None,
    model: ProfileModels = None,
    dtype: ProfileDtype = None,
    dry_run: DryRun = False,
    kernels: Kernels = False,
    seed: Seed = 0,
) -> None:
    """Measure operator times on this machine and write the rows; nothing is installed."""
    from calibration.profile.local_run import ProfileOptions, budget_s

    options = ProfileOptions(hw, budget_s(budget), out, device, threads, seed, tuple(model or ()), dtype)
    if dry_run:
        _plan(options)
        return
    done = _profile(options)
    from calibration.profile.session.tables import write_measured
    from calibration.profile.torch_profiler import write_kernels

    if kernels:
        typer.echo(str(write_kernels(done)))
    typer.echo(str(write_measured(done.session.rows, done.folder / "measured.parquet")))


@app.command()
def run(
    hw: Hardware = "local",
    budget: Budget = "5m",
    out: ProfileOut = None,
    device: Device = None,
    threads: Threads = None,
    model: ProfileModels = None,
    dtype: ProfileDtype = None,
    dry_run: DryRun = False,
    json_file: JsonFile = None,
) -> None:
    """Profile this machine, fit, show the held-out errors, and install the calibration for plan and simulate."""
    from calibration.profile.local_run import ProfileOptions, budget_s, fit_and_install

    check_targets(json_file)
    options = ProfileOptions(hw, budget_s(budget), out, device, threads, models=tuple(model or ()), dtype=dtype)
    if dry_run:
        _plan(options)
        return
    done = _profile(options)
    from calibration.profile.dry_run import machine_lines

    bundle, installed, peaks = fit_and_install(done)
    facts = _facts(bundle)
    if json_file != "-":
        _print_peaks(done.accelerator)
        for text in machine_lines(done.session.rows):
            typer.echo(text)
        _print_errors(facts)
        for text in facts.notices:
            typer.echo(f"  {text}")
        kept = (
            f"not installed: the calibration in use was not disturbed; `calibrate import --bundle {bundle.parent}` does"
        )
        typer.echo(f"installed: {installed}" + (f", {peaks}" if peaks else "") if installed else kept)
    page = _page(done.folder)
    if json_file is not None:
        errors = _error_lines({f: [e.model_dump() for e in r.held_out] for f, r in facts.families.items()})
        document = {
            "schema_version": 1,
            "profile": str(done.folder),
            "installed": str(installed) if installed else None,
            "report": page,
            "counts": done.counts,
            "peak_flops": done.accelerator.peak_flops,
            "memory_bandwidth_bytes_per_s": done.accelerator.memory_bandwidth_bytes_per_s,
            "machine": machine_lines(done.session.rows),
            "drift": done.facts.get("drift") or None,
            "errors": errors,
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
        facts = {n: list(pair) for n, pair in found.facts.items()}
        write_json({"schema_version": 1, "differ": facts, "times": [t.to_dict() for t in found.times]}, json_file)


@app.command()
def validate(
    bundle: Annotated[str, typer.Argument(metavar="BUNDLE", help="Hardware name, or the folder of a bundle.")],
    rows: Annotated[Path | None, typer.Option(metavar="DIR", help="Also predict these rows.")] = None,
    max_error: Annotated[float, typer.Option(metavar="X", help="Largest median relative error that passes.")] = 0.15,
    json_file: JsonFile = None,
) -> None:
    """Check a bundle's hashes and its held-out errors; exit 1 where a median exceeds the limit."""
    from calibration.bundles.bundle import bundle_folder
    from calibration.fitting.validate import validate_bundle

    found = validate_bundle(bundle_folder(bundle), rows)
    missed = [e["family"] for e in found if e["median_abs_rel_error"] > max_error]
    document = {"schema_version": 1, "max_error": max_error, "met": not missed, "errors": found}
    if json_file != "-":
        _print_lines(found)
        typer.echo(
            f"over {max_error:.0%}: {', '.join(sorted(set(missed)))}" if missed else f"all within {max_error:.0%}"
        )
    if json_file is not None:
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
    from catalogs.hardware.catalog import parse_hardware

    path = Path(name)
    if (path / "bundle.json").is_file():
        facts = _facts(path)
        bundle = load_bundle(parse_hardware(facts.hardware).accelerator, path)
    else:
        bundle = load_bundle(parse_hardware(name).accelerator)
    document = {
        "schema_version": 1,
        "bundle": bundle.name,
        "notices": [*bundle.notices, *bundle.uncalibrated],
        "provenance": bundle.provenance,
    }
    if json_file != "-":
        typer.echo(bundle.name)
        for source in bundle.provenance.get("sources", []):
            typer.echo(f"  source: {source['name']} {source['licence']}".rstrip())
        _print_lines(_error_lines(bundle.provenance.get("held_out", {})))
        for notice in (*bundle.notices, *bundle.uncalibrated):
            typer.echo(f"  {notice}")
    if json_file is not None:
        write_json(document, json_file)


def _profile(options: ProfileOptions) -> ProfileResult:
    from calibration.profile.local_run import run_profile

    done = run_profile(options)
    counts = ", ".join(f"{n} {what.replace('_', ' ')}" for what, n in done.counts.items() if n)
    typer.echo(f"{done.folder}: {counts}", err=True)
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


def _plan(options: ProfileOptions) -> None:
    from calibration.profile.dry_run import plan, plan_lines
    from calibration.profile.local_run import limit_s, prepare

    _, _, job = prepare(options)
    for text in plan_lines(plan(job, limit_s(options.budget_s)), job):
        typer.echo(text)


def _print_peaks(accelerator: Accelerator) -> None:
    rates = ", ".join(f"{d} {f / 1e12:.3g} TFLOP/s" for d, f in accelerator.peak_flops.items())
    typer.echo(f"{accelerator.full_name}: {rates}, memory {accelerator.memory_bandwidth_bytes_per_s / 1e9:.3g} GB/s")


def _name(text: str) -> str:
    from catalogs.hardware.catalog import parse_hardware

    return parse_hardware(text).accelerator.name


def _facts(path: Path) -> BundleFacts:
    from calibration.bundles.files import read_bundle

    return read_bundle(path)[0]


def _print_errors(facts: BundleFacts) -> None:
    _print_lines(_error_lines({f: [e.model_dump() for e in r.held_out] for f, r in facts.families.items()}))


def _error_lines(held_out: dict[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    return [{"family": family, **e} for family, errors in held_out.items() for e in errors]


def _print_lines(errors: list[dict[str, Any]]) -> None:
    for e in errors:
        size = f"median {e['median_abs_rel_error']:.1%}  p90 {e['p90_abs_rel_error']:.1%}  bias {e['bias']:+.1%}"
        typer.echo(f"  {e['family']:18} {e['region']:7} n {e['n']:>7,}  {size}")


def main(args: list[str] | None = None) -> None:
    """Run the console script."""
    sys.exit(run_command("calibrate", app, args))


if __name__ == "__main__":
    main()
