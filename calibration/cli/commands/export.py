"""The command `calibrate export`: a calibration copied with its sources."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from calibration.cli.options import BundleName


def export(
    bundle: BundleName,
    out: Annotated[Path, typer.Option(metavar="FILE.tar.gz|DIR", help="Archive or folder to write.")],
) -> None:
    """Copy a calibration with its sources after checking its hashes; `calibrate import --bundle` installs the copy."""
    from calibration.bundles.archive import export_bundle

    typer.echo(str(export_bundle(bundle, out)))
