"""The command `catalog import-launch`: the deployment that a script or manifest starts."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from catalogs.io.output_files import check_targets, write_atomically, write_json
from catalogs.ui.shared_options import JsonFile


def import_launch(
    launch_file: Annotated[
        Path, typer.Argument(metavar="FILE", help="A shell script, or YAML: Kubernetes, Dynamo, Docker Compose.")
    ],
    hw: Annotated[str | None, typer.Option(help="Hardware, such as h100x8, where the file does not name it.")] = None,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", metavar="FILE", help="Write deployment.yaml here, not to stdout.")
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Set a key of deployment.yaml; repeatable.")
    ] = None,
    env: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="Value of a variable in the file; repeatable.")
    ] = None,
    service: Annotated[str | None, typer.Option(help="Server to read, by its name or number in the file.")] = None,
    json_file: JsonFile = None,
) -> None:
    """Read the commands that start an engine as a deployment, with a note for every flag."""
    from catalogs.io.yaml_loader import dump_yaml
    from catalogs.launch.reading.read import parse_variables, read_launch_file

    check_targets(json_file, out)
    read = read_launch_file(launch_file, hw, settings or [], parse_variables(env or []), service)
    if json_file is not None:
        write_json(read.document(), json_file)
    if out is not None:
        write_atomically(out, [dump_yaml(read.keys)])
    elif json_file != "-":
        print(dump_yaml(read.keys), end="")
    for note in read.notes if out is not None else read.important:
        print(note.line, file=sys.stderr)
