"""The command `calibrate show`: the sources, rows and errors of a calibration."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from calibration.cli.screen import show_errors
from catalogs.io.output_files import write_json
from catalogs.ui.shared_options import JsonFile


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
        show_errors([{"family": family, **e} for family, errors in held_out.items() for e in errors])
        for notice in notices:
            typer.echo(f"  {notice}")
    if json_file is not None:
        document = {"schema_version": 1, "bundle": bundle.name, "notices": notices, "provenance": bundle.provenance}
        write_json(document, json_file)
