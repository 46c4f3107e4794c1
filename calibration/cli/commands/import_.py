"""The command `calibrate import`: measurements of others, imported as rows, tables and bundles."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from calibration.cli.importing import (
    import_bundle,
    import_profiler,
    import_results,
    import_steps,
    import_tables,
)
from calibration.cli.options import Tables
from catalogs.errors import InputError
from catalogs.io.output_files import check_targets, write_json
from catalogs.ui.shared_options import JsonFile


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
        lines, document = import_results([*results, *(more or ())])
    elif steps:
        lines, document = import_steps(steps, out)
    elif profiler:
        lines, document = import_profiler(profiler, hw, out)
    elif bundle:
        lines, document = import_bundle(bundle, hw)
    else:
        lines, document = import_tables(tables, hw, out)
    if json_file != "-":
        for line in lines:
            typer.echo(line)
    if json_file is not None:
        write_json({"schema_version": 1, **document}, json_file)
