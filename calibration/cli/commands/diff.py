"""The command `calibrate diff`: two profiles compared."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from catalogs.io.output_files import write_json
from catalogs.ui.shared_options import JsonFile


def diff(
    a: Annotated[Path, typer.Argument(metavar="A", help="Folder of a profile.")],
    b: Annotated[Path, typer.Argument(metavar="B", help="Folder of another profile.")],
    json_file: JsonFile = None,
) -> None:
    """Compare two profiles: their machines, versions, and times of the shapes in both."""
    from calibration.profile.session.difference import compare

    found = compare(a, b, lambda text: typer.echo(text, err=True))
    if json_file != "-":
        for name, (left, right) in found.facts.items():
            typer.echo(f"  {name}: {left} | {right}")
        for t in found.times:
            typer.echo(f"  {t.family:18} n {t.n:>6,}  B/A median {t.median:.3f}  p10 {t.p10:.3f}  p90 {t.p90:.3f}")
    if json_file is not None:
        write_json({"schema_version": 1, "differ": found.facts, "times": [t.to_dict() for t in found.times]}, json_file)
