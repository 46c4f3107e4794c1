"""`calibrate import`: import operator tables, packages, result files, engine logs and exported bundles."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from catalogs.errors import InputError
from catalogs.io.output_files import check_targets, write_json

if TYPE_CHECKING:
    import pandas as pd

    from calibration.accuracy.measured_run import MeasuredRun


Tables = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Folder of public operator tables: aiconfigurator/, llmservingsim/, …"),
]

Package = Annotated[
    bool, typer.Option("--from-package", help="Tables inside the installed aiconfigurator-core or aisimulate.")
]

Results = Annotated[
    list[Path] | None,
    typer.Option(metavar="FILE…", help="Results of vllm bench serve, GuideLLM, AIPerf or inference-perf."),
]

Steps = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Engine steps: vLLM's iteration log, or vllm bench forward's JSON.")
]

BundleFile = Annotated[Path | None, typer.Option(metavar="FILE|DIR", help="Install a bundle from `calibrate export`.")]

More = Annotated[list[Path] | None, typer.Argument(metavar="[FILE]…", help="More files of --results.")]

Name = Annotated[str | None, typer.Option("--hw", metavar="NAME", help="Hardware of the tables or the bundle.")]

Out = Annotated[Path | None, typer.Option(metavar="DIR", help="Folder for rows (tables, packages and steps).")]

JsonFile = Annotated[str | None, typer.Option("--json", metavar="FILE", help="Write JSON to FILE, or - for stdout.")]


def import_(
    more: More = None,
    tables: Tables = None,
    from_package: Package = False,
    results: Results = None,
    steps: Steps = None,
    bundle: BundleFile = None,
    hw: Name = None,
    out: Out = None,
    json_file: JsonFile = None,
) -> None:
    """Import measurements: operator tables into rows, load clients' results into one table, a bundle into use.

    Give exactly one of --tables, --from-package, --results, --steps and --bundle. Dropped rows are reported.
    """
    if more and not results:
        raise InputError("files without an option must follow --results", str(more[0]), "--results")
    given = {"--tables": tables, "--from-package": from_package, "--results": results, "--steps": steps}
    chosen = [name for name, value in {**given, "--bundle": bundle}.items() if value]
    if len(chosen) != 1:
        raise InputError("import takes one source at a time", " ".join(chosen) or None, ", ".join([*given, "--bundle"]))
    check_targets(json_file)
    if results:
        document = _results([*results, *(more or ())], json_file)
    elif steps:
        document = _steps(steps, out, json_file)
    elif bundle:
        document = _bundle(bundle, hw, json_file)
    else:
        document = _tables(tables, hw, out, json_file)
    if json_file is not None:
        write_json({"schema_version": 1, **document}, json_file)


def _say(text: str, json_file: str | None) -> None:
    if json_file != "-":
        typer.echo(text)


def _results(files: list[Path], json_file: str | None) -> dict[str, Any]:
    from calibration.importers.results import measured_runs

    runs = [run for file in files for run in measured_runs(file)]
    for run in runs:
        for line in _run_lines(run):
            _say(line, json_file)
    return {"runs": [_run_document(run) for run in runs]}


def _steps(file: Path, out: Path | None, json_file: str | None) -> dict[str, Any]:
    from calibration.importers.results import read_steps
    from catalogs.io.output_files import atomic_folder

    found = read_steps(file)
    _say(f"{file.name}: {len(found.rows):,} {found.what}, {found.rows['seconds'].sum():,.3g} s", json_file)
    for note in found.notes:
        _say(f"  {note}", json_file)
    document: dict[str, Any] = {"what": found.what, "rows": len(found.rows), "notes": list(found.notes)}
    if out is not None:
        with atomic_folder(out) as part:
            found.rows.to_parquet(part / "steps.parquet", index=False)
        document["path"] = str(out / "steps.parquet")
        _say(document["path"], json_file)
    return document


def _bundle(file: Path, hw: str | None, json_file: str | None) -> dict[str, Any]:
    from calibration.bundles.archive import install_bundle

    installed = install_bundle(file, hw)
    _say(f"installed: {installed}", json_file)
    return {"installed": str(installed)}


def _tables(tables: Path | None, hw: str | None, out: Path | None, json_file: str | None) -> dict[str, Any]:
    from calibration.importers.parsing import gated
    from calibration.rows.dataset import write_rows
    from catalogs.hardware.catalog import parse_hardware
    from catalogs.io.output_files import atomic_folder

    if hw is None or out is None:
        raise InputError("operator tables need", "--hw" if hw is None else "--out", "--hw NAME --out DIR")
    accelerator = parse_hardware(hw).accelerator
    kept, reports = gated(_read_tables(tables, accelerator.name), accelerator)
    with atomic_folder(out) as part:
        write_rows(part, kept)
    families: dict[str, Any] = {}
    for family, report in sorted(reports.items()):
        path = out / f"{family}.parquet" if family in kept else None
        families[family] = {**report.to_dict(), "rows": len(kept.get(family, ())), "path": path and str(path)}
        dropped = f"{report.over_peak_flops:,} over the peak rate, {report.over_bandwidth:,} over the memory bandwidth"
        _say(f"{path or family}: {families[family]['rows']:,} rows; dropped {dropped}", json_file)
    return {"hardware": accelerator.name, "families": families}


def _read_tables(tables: Path | None, hardware: str) -> dict[str, pd.DataFrame]:
    if tables is None:
        from calibration.importers.aiconfigurator_package import import_package

        return import_package(hardware)
    from calibration.importers.public import import_public

    return import_public(tables, hardware).fit


def _run_lines(run: MeasuredRun) -> Iterator[str]:
    """Yield a heading, a row per metric in milliseconds, and notes on dropped requests."""
    from calibration.accuracy.measured_run import METRICS, STATS

    rates = f"{run.requests_per_s:.3g} requests/s, {run.output_tokens_per_s:,.4g} output tokens/s"
    yield f"{run.source} ({run.client}): {run.n:,} requests, {run.n_failed:,} failed, {run.duration_s:,.1f} s, {rates}"
    yield "  milliseconds" + "".join(f"{stat:>11}" for stat in STATS)
    for metric in METRICS:
        yield f"  {metric:12}" + "".join(f"{_milliseconds(run.stat(metric, stat)):>11}" for stat in STATS)
    for note in run.notes:
        yield f"  {note}"


def _run_document(run: MeasuredRun) -> dict[str, Any]:
    """Return everything on the screen as JSON data, in seconds; null where there is no value."""
    from calibration.accuracy.measured_run import METRICS, STATS

    return {
        "client": run.client,
        "source": run.source,
        "n": run.n,
        "n_failed": run.n_failed,
        "duration_s": run.duration_s,
        "requests_per_s": run.requests_per_s,
        "output_tokens_per_s": run.output_tokens_per_s,
        **{f"{m}_s": {s: _or_null(run.stat(m, s)) for s in STATS} for m in METRICS},
        "notes": list(run.notes),
    }


def _milliseconds(seconds: float) -> str:
    return "-" if math.isnan(seconds) else f"{seconds * 1e3:,.2f}"


def _or_null(value: float) -> float | None:
    return None if math.isnan(value) else value
