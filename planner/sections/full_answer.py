"""The answer with its sections, as `plan --json` writes it and every command reads it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError, create_model

from catalogs.errors import InputError
from catalogs.io.input_files import nearest_file
from catalogs.io.json_files import read_json
from planner.answer.answer_schema import SCHEMA_VERSION, Answer
from planner.problem.key_definition import input_error
from planner.problem.scenario import known_keys
from planner.sections.registry import SECTIONS

HOW: Final = "write it with plan ... --json ANSWER.json"

#: Keys that tell an answer from other JSON documents.
_KEYS: Final = frozenset({"schema_version", "request", "feasible", "search"})

#: `Answer` with one optional key per section, of the type of the section.
FullAnswer: Final[type[Answer]] = create_model(
    "FullAnswer",
    __base__=Answer,
    __doc__="The whole answer of `plan --json`.",
    **{section.name: (section.schema | None, None) for section in SECTIONS},  # type: ignore[call-overload]
)


def read_answer(path: Path) -> Answer:
    """Read a file of `plan --json`, including its sections.

    Raises:
        InputError: The file cannot be read, is not an answer, or has another schema version.
    """
    try:
        data = read_json(path, "cannot read the answer")
    except InputError as error:
        raise InputError(error.rule, error.value, nearest_file(path, _is_answer), HOW) from None
    return parse_answer(data, str(path))


def _is_answer(path: Path) -> bool:
    """Return whether a file holds an answer of `plan --json`, of a language model or of a network."""
    try:
        data = read_json(path)
    except InputError:
        return False
    return isinstance(data, dict) and set(data) >= _KEYS and data.get("kind") != "agents"


def refuse_network(data: object, where: str) -> None:
    """Refuse the JSON data of an answer for a network, which some commands do not take.

    Raises:
        InputError: It is one; `where` is its name in the message.
    """
    if isinstance(data, dict) and data.get("kind") == "network":
        rule = "this command takes the answer for a language model, and this one is for a network"
        raise InputError(rule, where, hint="plan report, explain, compare, whatif and deploy take it")


def parse_answer(data: object, where: str = "answer") -> Answer:
    """Return the answer from its JSON data; `where` is its name in errors.

    Raises:
        InputError: The data is not an answer, is one for agents or a network, or has another schema version.
    """
    if isinstance(data, dict) and data.get("kind") == "agents":
        raise InputError("this command does not take an answer for agents (`plan --agents`)", where)
    if not isinstance(data, dict) or not set(data) >= _KEYS:
        raise InputError("not an answer of `plan --json`", where, hint=HOW)
    refuse_network(data, where)
    if data["schema_version"] != SCHEMA_VERSION:
        rule = f"{where}: schema_version {SCHEMA_VERSION} is required; plan again with this version"
        raise InputError(rule, data["schema_version"], str(SCHEMA_VERSION))
    if "reproduce" not in data:
        raise InputError("this answer has no block `reproduce`; plan again with this version", where, hint=HOW)
    try:
        # validated as JSON, whose lists stand for the tuples of the strict types
        return FullAnswer.model_validate_json(json.dumps(data | {"request": request_block(data)}))
    except ValidationError as error:
        raise input_error(FullAnswer, error, where) from None


def request_block(data: dict[str, Any]) -> Any:
    """Return the request of an answer, with keys that earlier versions wrote into `reproduce` only."""
    block, again = data["request"], data["reproduce"]
    if not isinstance(block, dict) or not isinstance(again, dict):
        return block
    return known_keys({"tariff": again.get("tariff", {}), "search": {"trials": again.get("trials", 1)}} | block)
