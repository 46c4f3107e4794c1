"""The command `catalog list`: the entries of a kind in brief."""

from __future__ import annotations

from typing import Annotated

import typer

from catalogs.cli.options import KindName
from catalogs.cli.screen import print_rows
from catalogs.io.output_files import check_targets, write_json
from catalogs.ui.shared_options import JsonFile


def list_(
    kind: KindName,
    json_file: JsonFile = None,
    match: Annotated[str | None, typer.Option(help="Only entries that contain this text.")] = None,
) -> None:
    """List every entry of a kind in brief, with units and source."""
    from catalogs.cli.describe import catalog_kind

    check_targets(json_file)
    rows = catalog_kind(kind).rows()
    if match is not None:
        rows = [row for row in rows if any(match.lower() in str(value).lower() for value in row.values())]
    if json_file is not None:
        write_json({"schema_version": 1, "kind": kind.lower(), "entries": rows}, json_file)
    if json_file != "-":
        print_rows(kind, rows)
