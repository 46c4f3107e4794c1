"""Read the answer for a network from its file, or from its JSON data."""

from __future__ import annotations

import json
from pathlib import Path

from pydantic import ValidationError

from catalogs.errors import InputError
from catalogs.io.json_files import read_json
from planner.answer.answer_schema import Answer
from planner.networks.schema import SCHEMA_VERSION, NetworkAnswer, NetworkPlan
from planner.problem.key_definition import input_error
from planner.sections.full_answer import parse_answer, read_answer

#: The value of the key `kind` of such an answer.
KIND = "network"


def read_network_answer(path: Path) -> NetworkAnswer | None:
    """Return the answer for a network in a file of `plan --json`; None if the file is not of a network.

    Raises:
        InputError: The file has another schema version, or is damaged.
    """
    try:
        data = read_json(path, "cannot read the answer")
    except InputError:
        return None  # the reader of other answers states what is wrong
    return parse_network_answer(data, str(path))


def parse_network_answer(data: object, where: str = "answer") -> NetworkAnswer | None:
    """Return the answer for a network from its JSON data; None if the data is not of a network.

    Raises:
        InputError: The data has another schema version, or is damaged; `where` is its name in the message.
    """
    if not isinstance(data, dict) or data.get("kind") != KIND:
        return None
    if data.get("schema_version") != SCHEMA_VERSION:
        rule = f"{where}: schema_version {SCHEMA_VERSION} is required; plan again with this version"
        raise InputError(rule, data.get("schema_version"), str(SCHEMA_VERSION))
    written = data.get("request")
    block = {key: value for key, value in (written if isinstance(written, dict) else {}).items() if value is not None}
    try:
        # validated as JSON, whose lists stand for the tuples of the strict types
        return NetworkAnswer.model_validate_json(json.dumps(data | {"request": block}))
    except ValidationError as error:
        raise input_error(NetworkAnswer, error, where) from None


def any_answer(data: object, where: str = "answer") -> Answer | NetworkAnswer:
    """Return the answer for a language model or for a network from its JSON data; `where` is its name in errors.

    Raises:
        InputError: The data is no such answer, or has another schema version.
    """
    return parse_network_answer(data, where) or parse_answer(data, where)


def read_any_answer(path: Path) -> Answer | NetworkAnswer:
    """Return the answer for a language model or for a network in a file of `plan --json`.

    Raises:
        InputError: The file cannot be read, is not an answer, or has another schema version.
    """
    return read_network_answer(path) or read_answer(path)


def chosen_plan(command: str, answer: NetworkAnswer, alternative: int = 0) -> NetworkPlan:
    """Return the best plan of an answer, or an alternative by its number from 1.

    Raises:
        InputError: The answer has no such plan.
    """
    if not answer.plans:
        why = answer.infeasible.binding_constraint if answer.infeasible else "no reason recorded"
        raise InputError(f"this answer has no plan, so there is nothing for plan {command}: {why}")
    if not 0 <= alternative < len(answer.plans):
        rule = f"the answer has {len(answer.plans) - 1} alternatives, numbered from 1"
        raise InputError(rule, alternative, str(len(answer.plans) - 1))
    return answer.plans[alternative]
