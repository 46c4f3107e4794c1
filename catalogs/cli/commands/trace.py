"""The command `catalog trace`: a torch module traced into a network file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from catalogs.cli.screen import print_record
from catalogs.io.output_files import check_targets


def trace(
    module: Annotated[
        str,
        typer.Argument(help="A shipped recipe, a class of transformers, diffusers or timm, or package.module:Class."),
    ],
    out: Annotated[Path, typer.Option(help="Network file to write (NAME.yaml).")],
    config: Annotated[Path | None, typer.Option(help="JSON or YAML configuration of the class.")] = None,
    inputs: Annotated[
        str | None, typer.Option(metavar="SPEC", help="Inputs as YAML, 'NAME: \\[batch, 3, height, width]', or a file.")
    ] = None,
    size: Annotated[
        list[str] | None, typer.Option(metavar="NAME=DEFAULT[:STEP[:MINIMUM]]", help="A size that the inputs use.")
    ] = None,
) -> None:
    """Trace a torch module without weights into a network file (extra `trace`)."""
    from catalogs.cli.describe import network_record
    from catalogs.trace.command import trace_command

    check_targets(None, out)
    network = trace_command(module, config, inputs, size or [], out)
    print_record(network_record(network))
