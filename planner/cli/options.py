"""Options that several subcommands share, and the function that writes the result of a subcommand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from catalogs.ui.shared_options import options_of

#: Heading of the output options in `--help`.
OUTPUT: Final = "Output"

#: Value of --json that selects stdout.
STDOUT: Final = "-"

AnswerPath = Annotated[Path, typer.Argument(metavar="ANSWER.json", help="Answer written by plan --json.")]


def refuse_network_answer(answer: Path) -> Path:
    """Refuse the answer for a network before missing options are reported, and return the path of another one.

    Raises:
        InputError: The file is the answer for a network.
    """
    from catalogs.errors import InputError
    from catalogs.io.json_files import read_json
    from planner.sections.full_answer import refuse_network

    try:
        data = read_json(answer, "cannot read the answer")
    except InputError:
        return answer  # the command itself states what is wrong
    refuse_network(data, str(answer))
    return answer


#: The answer of commands that do not take one for a network, which is refused at once.
LanguageModelAnswerPath = Annotated[
    Path,
    typer.Argument(
        metavar="ANSWER.json", help="Answer written by plan --json.", is_eager=True, callback=refuse_network_answer
    ),
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


JsonTo = Annotated[
    str | None, options_of(OUTPUT)("FILE", "Write JSON to FILE, or - for stdout.", "--json", callback=writable)
]


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
