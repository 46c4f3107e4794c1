"""Options that several commands of `catalog` share."""

from __future__ import annotations

from typing import Annotated

import typer

KindName = Annotated[
    str,
    typer.Argument(
        metavar="KIND", help="models, networks, hardware, engines, workloads, prices, grids, regions or calibrations"
    ),
]
