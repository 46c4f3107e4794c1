"""Read the answer for a network from its file."""

from __future__ import annotations

import json
from pathlib import Path

from pydantic import ValidationError

from catalogs.errors import InputError
from catalogs.io.json_files import read_json
from planner.networks.schema import SCHEMA_VERSION, NetworkAnswer
from planner.problem.key_definition import input_error

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
    if not isinstance(data, dict) or data.get("kind") != KIND:
        return None
    if data.get("schema_version") != SCHEMA_VERSION:
        rule = f"{path}: schema_version {SCHEMA_VERSION} is required; plan again with this version"
        raise InputError(rule, data.get("schema_version"), str(SCHEMA_VERSION))
    block = {key: value for key, value in data.get("request", {}).items() if value is not None}
    try:
        # validated as JSON, whose lists stand for the tuples of the strict types
        return NetworkAnswer.model_validate_json(json.dumps(data | {"request": block}))
    except ValidationError as error:
        raise input_error(NetworkAnswer, error, str(path)) from None
