"""Options that several commands take, each in one place: its name, its help and under which heading it stands.

Where a command's result goes: JSON to a file or stdout, and to the screen unless stdout is taken.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Final

import typer

#: Under which heading `--help` shows an option.
LOAD: Final = "Load"

CHOICE: Final = "Choice"

PRICE: Final = "Price"

POWER: Final = "Power and carbon"

SEARCH: Final = "Search"

OUTPUT: Final = "Output"

# ---- a question

MODEL_HELP: Final = "Alias, Hugging Face id, or a directory with a config.json."

HARDWARE_HELP: Final = "Hardware: h100x8, 2*h100x8, local; several with commas; or any."

Precisions = Annotated[
    list[str] | None, typer.Option(help="Weight dtypes to choose from; native is one.", rich_help_panel=CHOICE)
]

Engine = Annotated[str, typer.Option(help="Serving engine.", rich_help_panel=CHOICE)]

Budget = Annotated[float | None, typer.Option(help="Budget, US dollars per hour.", rich_help_panel=CHOICE)]

Price = Annotated[
    float | None, typer.Option(help="US dollars per hour of all the hardware named.", rich_help_panel=PRICE)
]

PriceReading = Annotated[str, typer.Option(help="cheapest, median, list or spot.", rich_help_panel=PRICE)]

Cloud = Annotated[str | None, typer.Option(help="Take the price of this cloud.", rich_help_panel=PRICE)]

Region = Annotated[str | None, typer.Option(help="Take the price of this region.", rich_help_panel=PRICE)]

Grid = Annotated[
    str | None, typer.Option(help="Where the electricity comes from (default: us).", rich_help_panel=POWER)
]

Seed = Annotated[int, typer.Option(help="Seed of workload and search.", rich_help_panel=SEARCH)]

StudyFile = Annotated[
    Path | None, typer.Option(help="Journal file: keeps the search, resumes and shares it.", rich_help_panel=SEARCH)
]

Storage = Annotated[
    str | None, typer.Option(help="The same in any Optuna storage, e.g. sqlite:///s.db.", rich_help_panel=SEARCH)
]

# ---- an answer, and what is written

AnswerPath = Annotated[Path, typer.Argument(metavar="ANSWER.json", help="What plan --json wrote.")]

Alternative = Annotated[int, typer.Option(metavar="N", help="Of alternative N of the answer instead.")]

JsonTo = Annotated[str | None, typer.Option("--json", metavar="FILE", help="JSON to FILE, or - for stdout.")]


def listed(texts: list[str] | None) -> tuple[str, ...]:
    """Of an option that is repeated or has commas."""
    return tuple(part.strip() for text in texts or [] for part in text.split(","))


STDOUT = "-"


def put(document: dict[str, Any], json_to: str | None, show: Callable[[], None]) -> None:
    """json_to: a file, STDOUT (and then nothing else is printed there) or None. Raises InputError where it cannot be
    written."""
    from catalogs.io.output_files import write_json

    if json_to is not None:
        write_json(document, json_to)
    if json_to != STDOUT:
        show()
