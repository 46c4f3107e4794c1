"""The command `catalog show`: one entry in full."""

from __future__ import annotations

from typing import Annotated

import typer

from catalogs.cli.options import KindName
from catalogs.cli.screen import print_record
from catalogs.io.output_files import check_targets, write_json
from catalogs.ui.shared_options import JsonFile


def show(
    kind: KindName,
    name: Annotated[str, typer.Argument(help="Name of the entry; for prices, hardware such as h100x8.")],
    json_file: JsonFile = None,
) -> None:
    """Show one entry in full, with units and source."""
    from catalogs.cli.describe import catalog_kind

    check_targets(json_file)
    record = catalog_kind(kind).show(name)
    if json_file is not None:
        write_json({"schema_version": 1, "kind": kind.lower(), "entry": record}, json_file)
    if json_file != "-":
        print_record(record)
