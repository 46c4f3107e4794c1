"""What `calibrate import` reads from each kind of source, and the lines and the document that it shows."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from catalogs.errors import InputError
from catalogs.io.output_files import finite
from catalogs.ui.words import percent

if TYPE_CHECKING:
    from calibration.accuracy.measured_run import MeasuredRun


#: The lines for the screen, and the document for --json.
Imported = tuple[list[str], dict[str, Any]]


def import_results(files: list[Path]) -> Imported:
    """Return the runs in the result files of load clients.

    Raises:
        InputError: A file cannot be read.
    """
    from calibration.importers.load_clients.results import measured_runs

    runs = [run for file in files for run in measured_runs(file)]
    lines = [line for run in runs for line in _run_lines(run)]
    return lines, {"runs": [run_document(run) for run in runs]}


def import_steps(file: Path, out: Path | None) -> Imported:
    """Read the steps of an engine, and write them into the folder `out`.

    Raises:
        InputError: The file cannot be read, or the folder cannot be written.
    """
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


def import_profiler(file: Path, hw: str | None, out: Path | None) -> Imported:
    """Read the trace of a profiler, and write its operators, rows and signals into the folder `out`.

    Raises:
        InputError: The trace cannot be read, the hardware is unknown, or the folder cannot be written.
    """
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
        lines.append(f"  {name[:80]}: {row['calls']:,} x {row['seconds'] * 1e6:,.4g} µs, {share}")
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


def import_bundle(file: Path, hw: str | None) -> Imported:
    """Install an exported bundle.

    Raises:
        InputError: The bundle is damaged, or belongs to other hardware.
    """
    from calibration.bundles.archive import install_bundle

    installed = str(install_bundle(file, hw))
    return [f"installed: {installed}"], {"installed": installed}


def import_tables(tables: Path | None, hw: str | None, out: Path | None) -> Imported:
    """Write the rows of public tables into the folder `out`; without `tables`, those of the installed package.

    Raises:
        InputError: The hardware or the folder is not given, or the tables have no rows of this hardware.
    """
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
