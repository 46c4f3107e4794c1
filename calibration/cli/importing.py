"""`calibrate import`: import operator tables, packages, result files, engine logs and exported bundles."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from calibration.cli.options import JsonFile, Tables
from catalogs.errors import InputError
from catalogs.io.output_files import check_targets, finite, write_json
from catalogs.ui.words import percent

if TYPE_CHECKING:
    from calibration.accuracy.measured_run import MeasuredRun


def import_(
    more: Annotated[list[Path] | None, typer.Argument(metavar="FILE", help="More files of --results.")] = None,
    tables: Tables = None,
    from_package: Annotated[
        bool, typer.Option("--from-package", help="Tables inside the installed aiconfigurator-core or aisimulate.")
    ] = False,
    results: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE…", help="Results of vllm bench serve, GuideLLM, AIPerf or inference-perf."),
    ] = None,
    steps: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Engine steps: vLLM's iteration log, or vllm bench forward's JSON."),
    ] = None,
    profiler: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Trace of Nsight Systems, Nsight Compute or torch's profiler.")
    ] = None,
    bundle: Annotated[
        Path | None, typer.Option(metavar="FILE|DIR", help="Install a bundle from `calibrate export`.")
    ] = None,
    hw: Annotated[str | None, typer.Option(metavar="NAME", help="Hardware of the tables, trace or bundle.")] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder for rows (tables, packages, steps and traces).")
    ] = None,
    json_file: JsonFile = None,
) -> None:
    """Import measurements: tables and profilers' traces into rows, clients' results into one table, a bundle into use.

    Give exactly one of --tables, --from-package, --results, --steps, --profiler and --bundle.
    Dropped rows are reported.
    """
    if more and not results:
        raise InputError("files without an option must follow --results", str(more[0]), "--results")
    given: dict[str, Any] = {"--tables": tables, "--from-package": from_package, "--results": results, "--steps": steps}
    given |= {"--profiler": profiler, "--bundle": bundle}
    chosen = [name for name, value in given.items() if value]
    if len(chosen) != 1:
        raise InputError("import takes one source at a time", " ".join(chosen) or None, ", ".join(given))
    check_targets(json_file)
    if results:
        lines, document = _results([*results, *(more or ())])
    elif steps:
        lines, document = _steps(steps, out)
    elif profiler:
        lines, document = _profiler(profiler, hw, out)
    elif bundle:
        lines, document = _bundle(bundle, hw)
    else:
        lines, document = _tables(tables, hw, out)
    if json_file != "-":
        for line in lines:
            typer.echo(line)
    if json_file is not None:
        write_json({"schema_version": 1, **document}, json_file)


#: The lines for the screen, and the document for --json.
Imported = tuple[list[str], dict[str, Any]]


def _results(files: list[Path]) -> Imported:
    from calibration.importers.load_clients.results import measured_runs

    runs = [run for file in files for run in measured_runs(file)]
    lines = [line for run in runs for line in _run_lines(run)]
    return lines, {"runs": [run_document(run) for run in runs]}


def _steps(file: Path, out: Path | None) -> Imported:
    from calibration.importers.engine_steps import read_steps
    from catalogs.io.output_files import atomic_folder

    found = read_steps(file)
    lines = [f"{file.name}: {len(found.rows):,} {found.what}, {found.rows['seconds'].sum():,.3g} s"]
    lines += [f"  {note}" for note in found.notes]
    document: dict[str, Any] = {"what": found.what, "rows": len(found.rows), "notes": list(found.notes)}
    if out is not None:
        with atomic_folder(out) as part:
            found.rows.to_parquet(part / "steps.parquet", index=False)
        document["path"] = str(out / "steps.parquet")
        lines.append(document["path"])
    return lines, document


#: Operators on the screen.
_SHOWN = 8


def _profiler(file: Path, hw: str | None, out: Path | None) -> Imported:
    from calibration.importers.parsing import gated
    from calibration.importers.profilers.read import read_profiler_trace
    from calibration.importers.profilers.rows import family_rows, operator_table
    from calibration.machine_trace.folder import write_trace
    from calibration.machine_trace.from_profiler import machine_trace_of
    from calibration.rows.dataset import write_rows
    from catalogs.hardware.catalog import parse_hardware
    from catalogs.io.output_files import atomic_folder

    trace = read_profiler_trace(file)
    operators, (tables, left_out) = operator_table(trace), family_rows(trace)
    notes, families = list(trace.notes), {}
    if hw is not None and tables:
        tables, reports = gated(tables, parse_hardware(hw).accelerator)
        families = {family: report.to_dict() for family, report in reports.items()}
    elif tables:
        notes.append("the rows are not checked against the peaks of an accelerator: give --hw NAME")
    notes += [f"{n} calls give no row: {why}" for why, n in sorted(left_out.items())]
    busy_s = sum(each.duration_s for each in trace.work)
    counts = f"{len(trace.calls):,} operator calls, {len(trace.work):,} kernels and copies"
    lines = [f"{file.name} ({trace.profiler}): {counts}, {trace.duration_s:.4g} s, accelerators at work {busy_s:.4g} s"]
    total_s = float(operators["own_seconds"].sum()) or 1.0
    for row in operators.head(_SHOWN).to_dict("records"):
        name = f"{row['operator'] or row['kernels']} {row['sizes']}".strip()
        share = f"{percent(row['own_seconds'] / total_s, 1)} of the time"
        lines.append(f"  {name[:80]}: {row['calls']:,} x {row['seconds'] * 1e6:,.4g} us, {share}")
    for family, rows in tables.items():
        families[family] = {**families.get(family, {}), "rows": len(rows)}
        lines.append(f"  rows of {family}: {len(rows):,}")
    lines += [f"  {note}" for note in notes]
    document: dict[str, Any] = {
        "profiler": trace.profiler,
        "calls": len(trace.calls),
        "device_work": len(trace.work),
        "duration_s": trace.duration_s,
        "families": families,
        "notes": notes,
    }
    if out is not None:
        with atomic_folder(out) as part:
            operators.to_parquet(part / "operators.parquet", index=False)
            if tables:
                write_rows(part / "rows", tables)
            if trace.has_times:
                write_trace(part, machine_trace_of(trace), ())
        document["path"] = str(out)
        lines.append(str(out))
    return lines, document


def _bundle(file: Path, hw: str | None) -> Imported:
    from calibration.bundles.archive import install_bundle

    installed = str(install_bundle(file, hw))
    return [f"installed: {installed}"], {"installed": installed}


def _tables(tables: Path | None, hw: str | None, out: Path | None) -> Imported:
    from calibration.importers.aiconfigurator_package import import_package
    from calibration.importers.parsing import gated
    from calibration.importers.public import import_public
    from calibration.rows.dataset import write_rows
    from catalogs.hardware.catalog import parse_hardware
    from catalogs.io.output_files import atomic_folder

    if hw is None or out is None:
        raise InputError("operator tables need a hardware name and an output folder", hint="give --hw NAME --out DIR")
    accelerator = parse_hardware(hw).accelerator
    name = accelerator.name
    kept, reports = gated(import_package(name) if tables is None else import_public(tables, name).fit, accelerator)
    with atomic_folder(out) as part:
        write_rows(part, kept)
    families: dict[str, Any] = {}
    lines = []
    for family, report in sorted(reports.items()):
        path = out / f"{family}.parquet" if family in kept else None
        families[family] = {**report.to_dict(), "rows": len(kept.get(family, ())), "path": path and str(path)}
        dropped = f"{report.over_peak_flops:,} over the peak rate, {report.over_bandwidth:,} over the memory bandwidth"
        lines.append(f"{path or family}: {families[family]['rows']:,} rows; dropped {dropped}")
    return lines, {"hardware": name, "families": families}


def _run_lines(run: MeasuredRun) -> Iterator[str]:
    """Yield a heading, a row per metric in milliseconds, and notes on dropped requests."""
    from calibration.accuracy.measured_run import METRICS, STATS

    rates = f"{run.requests_per_s:.3g} requests/s, {run.output_tokens_per_s:,.4g} output tokens/s"
    yield f"{run.source} ({run.client}): {run.n:,} requests, {run.n_failed:,} failed, {run.duration_s:,.1f} s, {rates}"
    yield "  milliseconds" + "".join(f"{stat:>11}" for stat in STATS)
    for metric in METRICS:
        values = [run.stat(metric, stat) * 1e3 for stat in STATS]
        yield f"  {metric:12}" + "".join(f"{'-' if math.isnan(v) else f'{v:,.2f}':>11}" for v in values)
    for note in run.notes:
        yield f"  {note}"


def run_document(run: MeasuredRun) -> dict[str, Any]:
    """Return everything on the screen as JSON data, in seconds; null where there is no value."""
    from calibration.accuracy.measured_run import METRICS, STATS

    names = ("client", "source", "n", "n_failed", "duration_s", "requests_per_s", "output_tokens_per_s")
    latencies = {f"{metric}_s": finite({s: run.stat(metric, s) for s in STATS}) for metric in METRICS}
    return {name: getattr(run, name) for name in names} | latencies | {"notes": list(run.notes)}
