"""Options that several commands of `calibrate` share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Hardware = Annotated[str, typer.Option("--hw", metavar="NAME", help="Hardware name of the catalog, such as h100.")]

BundleName = Annotated[str, typer.Argument(metavar="BUNDLE", help="Hardware name, or the folder of a bundle.")]

Tables = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Folder of public operator tables: aiconfigurator/, llmservingsim/, …"),
]

Budget = Annotated[str, typer.Option(metavar="TIME", help="Measuring time, such as 5m or 90s.")]

Out = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Folder to write; an interrupted session in it is continued.")
]

Device = Annotated[str | None, typer.Option(metavar="KIND", help="cpu or cuda; default: the GPU if there is one.")]

Threads = Annotated[int | None, typer.Option(metavar="N", help="CPU threads; default: all cores.")]

Machine = Annotated[
    Path | None, typer.Option("--machine", metavar="DIR", help="Write what the machine did, with its page.")
]

Seed = Annotated[int, typer.Option(metavar="N", help="Seed of the order and of what is drawn at random.")]

AllowContended = Annotated[
    bool,
    typer.Option("--allow-contended", help="Install also what was measured while other processes used the machine."),
]

ProfileModels = Annotated[
    list[str] | None,
    typer.Option("--model", metavar="NAME|DIR", help="Measure this model's own shapes first; repeatable."),
]

ProfileDtype = Annotated[
    str | None,
    typer.Option("--dtype", metavar="TYPE", help="Dtype to serve these models in, such as fp32 on a CPU."),
]

DryRun = Annotated[
    bool, typer.Option("--dry-run", help="List the shapes to measure, with estimated times; measure nothing.")
]
