"""The command `calibrate fit`: rows fitted into a bundle."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from calibration.cli.options import Hardware
from calibration.cli.screen import show_errors


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
    from catalogs.ui.progress import status_line

    with status_line("fitting the rows"):
        path = fit_bundle(read_rows(rows), parse_hardware(hw).accelerator, out)
    typer.echo(str(path))
    show_errors(read_bundle(path)[0].held_out)
