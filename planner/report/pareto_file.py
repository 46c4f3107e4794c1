"""A front read back from its JSON (`plan front --json`), typed, and held against the answer it is shown beside."""

from __future__ import annotations

import json
from pathlib import Path

from pydantic import ValidationError

from catalogs.errors import InputError
from planner.answer.schema import Answer, same_model
from planner.search.pareto_search import SCHEMA_VERSION, FrontFile

HOW = "plan front ... --json FRONT.json"


def read_front(path: Path, answer: Answer) -> FrontFile:
    """Return a front from its file, for display with an answer.

    Raises:
        InputError: The file is not a front, its model, workload or engine differ from the answer, or it was made with
            another calibration of the same hardware.
    """
    try:
        text = path.read_text(encoding="utf-8")
        json.loads(text)
    except OSError as error:
        raise InputError(f"cannot read the front ({error.strerror})", str(path), HOW) from None
    except ValueError:
        raise InputError("a front is a JSON file", str(path), HOW) from None
    try:
        found = FrontFile.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        rule = f"not a front of `plan front --json`: {'.'.join(map(str, first['loc']))}: {first['msg']}"
        raise InputError(rule, str(path), HOW) from None
    if found.schema_version != SCHEMA_VERSION:
        raise InputError(f"a front of schema_version {SCHEMA_VERSION} is needed", found.schema_version, HOW)
    _check(found, answer, str(path))
    return found


def _check(found: FrontFile, answer: Answer, path: str) -> None:
    asked, ours = found.request, answer.request
    if not same_model(asked.model, ours.model):
        raise InputError(f"this front is of another model: the answer's is {ours.model}", asked.model, ours.model)
    for name in ("workload", "engine"):
        mine, its = getattr(ours, name), getattr(asked, name)
        if mine != its:
            raise InputError(f"this front is of another {name}: the answer's is {mine}", its, f"--{name} {mine}")
    made = answer.reproduce.calibration
    if asked.hardware == ours.hardware and found.calibration != made:
        rule = (
            f"this front was made with another calibration ({found.calibration}, the answer's is {made}): search again"
        )
        raise InputError(rule, path, HOW)
