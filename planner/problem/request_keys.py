"""The keys of a request from its JSON Schema, used by command lines, scenario files and `plan keys`.

The schema is generated from `PlanRequest` (`python tools/write_schemas.py` writes it) and read from its file, because
importing the model takes longer than `plan --help` may.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

SCHEMA_FILE: Final = Path(__file__).resolve().parent.parent / "schemas" / "request.schema.json"

#: The schema of a request for a network (planner/networks/request.py), which the same command writes.
NETWORK_SCHEMA_FILE: Final = SCHEMA_FILE.with_name("network_request.schema.json")

#: The keys that `plan front` takes; it has no users, no load over time, and no replica failures.
FRONT_KEYS: Final = (
    "model", "hardware", "slo", "workload", "input_tokens", "output_tokens", "rate",
    "confidence", "precisions", "max_usd_per_hour", "engine", "seed",
    "tariff.usd_per_hour", "tariff.reading", "tariff.cloud", "tariff.region", "tariff.grid",
    "search.trials", "search.study",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class RequestKey:
    """One key of a request.

    Attributes:
        name: The name, dotted if the key is nested ("tariff.cloud").
        kind: The JSON type of the values that are not null.
        description: The help text.
        panel: The heading under which help texts list the key.
        default: The default value.
        option: The option that `--help` shows; None for a key that only `--set` and scenario files can set.
        metavar: The placeholder of the option's value.
        former_options: Former options, which still work and print a notice.
        value_of: The key that takes the option's value, if this key is a switch that the option turns on.
        run_only: Whether the key concerns the run only, so that neither answers nor commands repeat it.
    """

    name: str
    kind: str
    description: str
    panel: str | None
    default: object
    option: str | None
    metavar: str | None
    former_options: tuple[str, ...]
    value_of: str | None
    run_only: bool

    @property
    def help(self) -> str:
        """Return the description, followed by the default if there is one."""
        if self.default in (None, False, 0) or not isinstance(self.default, str | int | float):
            return self.description
        return f"{self.description.removesuffix('.')} (default: {self.default})."


@lru_cache(maxsize=1)
def request_keys() -> Mapping[str, RequestKey]:
    """Return every key by its name, in the order of the fields."""
    return _read(SCHEMA_FILE)


@lru_cache(maxsize=1)
def network_keys() -> Mapping[str, RequestKey]:
    """Return every key of a request for a network by its name."""
    return _read(NETWORK_SCHEMA_FILE)


@lru_cache(maxsize=1)
def plan_keys() -> Mapping[str, RequestKey]:
    """Return the keys that `plan` takes: those of language models, then those that only networks have."""
    return {**request_keys(), **network_keys(), **request_keys()}


def _read(file: Path) -> dict[str, RequestKey]:
    schema = json.loads(file.read_text(encoding="utf-8"))
    return {key.name: key for key in _keys(schema, schema["$defs"], "")}


def _keys(schema: dict[str, Any], parts: dict[str, Any], prefix: str) -> Iterator[RequestKey]:
    for name, field in schema["properties"].items():
        if field.get("readOnly"):
            continue  # derived from other keys: written, never read
        whole = prefix + name
        reference = field.get("$ref", "")
        if reference and "x-option" not in field:
            yield from _keys(parts[reference.rpartition("/")[2]], parts, f"{whole}.")
            continue
        shown = field.get("x-option", {})
        kinds = (choice.get("type", "object") for choice in field.get("anyOf", [field]))
        kind = next((kind for kind in kinds if kind != "null"), "string")
        yield RequestKey(
            name=whole,
            kind=kind if isinstance(kind, str) else "string",  # text is one of several types
            description=field["description"],
            panel=field.get("x-panel"),
            default=field.get("default"),
            option=shown.get("name"),
            metavar=shown.get("metavar"),
            former_options=tuple(field.get("x-former-options", ())),
            value_of=shown.get("value_of"),
            run_only=field.get("x-of-run", False),
        )
