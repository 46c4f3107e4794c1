"""`calibrate tiny-model`: write the small model that `verify` serves by default."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def tiny_model(
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Folder to write; default: in your models.")] = None,
) -> None:
    """Write a Llama of 30 million random parameters with a tokenizer, and print its folder."""
    from calibration.serve.tiny_model import TINY_NAME, write_tiny_model
    from catalogs.io.yaml_files import user_folder

    typer.echo(str(write_tiny_model(out or user_folder("models") / TINY_NAME)))
