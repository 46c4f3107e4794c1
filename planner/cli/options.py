"""Options that several subcommands share, and the function that writes the result of a subcommand."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from catalogs.ui.shared_options import options_of

if TYPE_CHECKING:  # its import takes longer than the help page of a command may
    from planner.answer.answer_schema import Answer

#: Heading of the output options in `--help`.
OUTPUT: Final = "Output"

#: Value of --json that selects stdout.
STDOUT: Final = "-"

AnswerPath = Annotated[Path, typer.Argument(metavar="ANSWER.json", help="Answer written by plan --json.")]


@lru_cache(maxsize=1)
def language_model_answer(path: Path) -> Answer:
    """Return the answer in a file, which a command reads once.

    Raises:
        InputError: The file is no answer, or one for a network.
    """
    from planner.sections.full_answer import read_answer

    return read_answer(path)


def _read_at_once(path: Path) -> Path:
    """Read an answer before missing options are reported, and return its path."""
    language_model_answer.cache_clear()  # a program may run several commands
    language_model_answer(path)
    return path


#: The answer of commands that do not take one for a network; `language_model_answer` returns what was read.
LanguageModelAnswerPath = Annotated[
    Path,
    typer.Argument(metavar="ANSWER.json", help="Answer written by plan --json.", is_eager=True, callback=_read_at_once),
]

Alternative = Annotated[
    int, typer.Option(metavar="N", help="Plan of the answer: 0 is the recommended one, 1 the first alternative.")
]


def writable(json_to: str | None) -> str | None:
    """Check before long work that the target of --json can be written, and return it.

    Raises:
        InputError: The file cannot be written.
    """
    from catalogs.io.output_files import check_targets

    check_targets(json_to)
    return json_to


_json_option = partial(options_of(OUTPUT), "FILE", "Write JSON to FILE, or - for stdout.", "--json")

#: The option `--json` of commands that write nothing else.
JsonTo = Annotated[str | None, _json_option(callback=writable)]

#: The option `--json` of commands with further outputs, which they check together (`check_targets`).
JsonBeside = Annotated[str | None, _json_option()]


def write_result(document: dict[str, Any], json_to: str | None, show: Callable[[], None]) -> None:
    """Write a result as JSON, and print its screen unless the JSON goes to stdout.

    The screen is also printed if the file cannot be written, because a result may have taken minutes.

    Args:
        document: The result as JSON data.
        json_to: Path of a file, STDOUT, or None for no JSON.
        show: Prints the screen.

    Raises:
        InputError: The file cannot be written.
    """
    from catalogs.io.output_files import write_json

    try:
        if json_to is not None:
            write_json(document, json_to)
    finally:
        if json_to != STDOUT:
            show()
