"""The command `calibrate report`: the page of a profile, a bundle or predictions of whole models."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from catalogs.io.output_files import check_targets


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
