"""The command `calibrate validate`: the held-out errors of a bundle against a limit."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from calibration.cli.options import BundleName
from calibration.cli.screen import show_errors
from catalogs.io.output_files import write_json
from catalogs.ui.shared_options import JsonFile
from catalogs.ui.words import percent


def validate(
    bundle: BundleName,
    rows: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder of rows to predict as well (needs the extra data).")
    ] = None,
    max_error: Annotated[float, typer.Option(metavar="X", help="Largest median relative error that passes.")] = 0.15,
    json_file: JsonFile = None,
) -> None:
    """Check a bundle's hashes and its held-out errors; exit status 1 if a median exceeds the limit."""
    from calibration.bundles.bundle import bundle_folder, load_bundle
    from calibration.bundles.files import read_bundle
    from catalogs.hardware.catalog import parse_hardware

    folder = bundle_folder(bundle)
    facts, _ = read_bundle(folder)  # checks the hashes
    load_bundle(parse_hardware(facts.hardware).accelerator, folder)  # refuses tables that lack a part
    found = [e for e in facts.held_out if e["region"] == "inside"]
    if rows is not None:  # needs pandas, which the recorded errors do not
        from calibration.fitting.cross_validation import errors_on
        from catalogs.ui.progress import status_line

        with status_line("predicting the rows"):
            found += errors_on(folder, rows)
    missed = sorted({e["family"] for e in found if e["median_abs_rel_error"] > max_error})
    if json_file != "-":
        show_errors(found)
        typer.echo(f"over {percent(max_error)}: {', '.join(missed)}" if missed else f"all within {percent(max_error)}")
    if json_file is not None:
        document = {"schema_version": 1, "max_error": max_error, "met": not missed, "errors": found}
        write_json(document, json_file)
    if missed:
        raise typer.Exit(1)
