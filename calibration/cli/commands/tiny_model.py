"""The command `calibrate tiny-model`: a small model with random parameters, to verify an engine with."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def tiny_model(
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Folder to write; default: in your models.")] = None,
    architecture: Annotated[str, typer.Option(metavar="NAME", help="llama, qwen3 or mixtral.")] = "llama",
) -> None:
    """Write a model of some 30 million random parameters with a tokenizer, and print its folder."""
    from calibration.serve.tiny_model import TINY_NAME, TinyShape, write_tiny_model
    from catalogs.io.yaml_files import user_folder

    name = TINY_NAME.replace("llama", architecture)
    typer.echo(str(write_tiny_model(out or user_folder("models") / name, TinyShape(model_type=architecture))))
