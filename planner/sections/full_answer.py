"""An answer with its sections: the class that `plan --json` writes and that every command reads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError, create_model

from catalogs.errors import InputError
from planner.answer.schema import SCHEMA_VERSION, Answer
from planner.problem.scenario import known_keys
from planner.sections.registry import SECTIONS

HOW: Final = "plan ... --json ANSWER.json"

#: `Answer` with one optional key for each section, of the section's own type.
FullAnswer: Final[type[Answer]] = create_model(
    "FullAnswer",
    __base__=Answer,
    __doc__="The whole answer of `plan --json`.",
    **{section.name: (section.schema | None, None) for section in SECTIONS},  # type: ignore[call-overload]
)


def read_answer(path: Path) -> Answer:
    """Read an answer of `plan --json` with its sections.

    Raises:
        InputError: The file is no answer, or one of another version.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"cannot read the answer ({error.strerror})", str(path), HOW) from None
    except ValueError:
        raise InputError("an answer is a JSON file", str(path), HOW) from None
    return parse_answer(data, str(path))


def parse_answer(data: object, where: str = "answer") -> Answer:
    """Read an answer from its JSON data; `where` names it in an error.

    Raises:
        InputError: The data is no answer, or one of another version.
    """
    if not isinstance(data, dict) or not {"schema_version", "request", "feasible", "search"} <= set(data):
        raise InputError("not an answer of `plan --json`", where, HOW)
    if data["schema_version"] != SCHEMA_VERSION:
        rule = f"{where}: an answer of schema_version {SCHEMA_VERSION} is needed; plan again with this version"
        raise InputError(rule, data["schema_version"], str(SCHEMA_VERSION))
    if "reproduce" not in data:
        raise InputError("this answer does not say how to make it again; plan again with this version", where, HOW)
    try:
        whole = data | {"request": _request_block(data)}
        return FullAnswer.model_validate_json(json.dumps(whole))  # strict types as JSON has them
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        given = first["input"] if isinstance(first["input"], str | int | float) else None
        raise InputError(f"{where}: {place}: {first['msg']}", given, HOW) from None


def _request_block(data: dict[str, Any]) -> Any:
    """Return the request block; a block without trials and tariff gets those that `reproduce` holds."""
    block, again = data["request"], data["reproduce"]
    if not isinstance(block, dict) or not isinstance(again, dict):
        return block
    beside = {"tariff": again.get("tariff", {}), "search": {"trials": again.get("trials", 1)}}
    return known_keys(beside | block)
