"""`calibrate export`: write a calibration to one file for another machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def export(
    bundle: Annotated[str, typer.Argument(metavar="BUNDLE", help="Hardware name, or the folder of a bundle.")],
    out: Annotated[Path, typer.Option(metavar="FILE.tar.gz|DIR", help="Archive or folder to write.")],
) -> None:
    """Copy a calibration with its sources after checking its hashes; `calibrate import --bundle` installs the copy."""
    from calibration.bundles.archive import export_bundle

    typer.echo(str(export_bundle(bundle, out)))
