"""What several commands of `calibrate` print."""

from __future__ import annotations

from typing import Any

import typer

from catalogs.ui.words import percent


def show_errors(errors: list[dict[str, Any]]) -> None:
    """Print the held-out errors of a bundle, one line for each family and region."""
    for e in errors:
        size = (
            f"median {percent(e['median_abs_rel_error'], 1)}  p90 {percent(e['p90_abs_rel_error'], 1)} "
            f" bias {percent(e['bias'], 1, signed=True)}"
        )
        typer.echo(f"  {e['family']:18} {e['region']:7} n {e['n']:>7,}  {size}")
