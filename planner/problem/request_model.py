"""The base of the models that a request is made of, and how a field describes its key and its option.

A field is described once: its key (the alias), its help (the description), and its command-line option
(`json_schema_extra=option(...)`). From this the JSON Schema is generated, and from the schema the command line, the
list of keys, and the command that repeats a request.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Annotated, Any, Final, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, PlainSerializer, ValidationError, WithJsonSchema

from catalogs.errors import InputError, nearest_name
from catalogs.ui.words import exact_duration, parse_duration

#: Headings under which `plan --help` and `plan keys` show what belongs together.
LOAD: Final = "Load"

CHOICE: Final = "Choice"

PRICE: Final = "Price"

POWER: Final = "Power and carbon"

SEARCH: Final = "Search"

#: What a field adds to its JSON Schema: see request_keys.py, which reads it.
OPTION: Final = "x-option"

FORMER_OPTIONS: Final = "x-former-options"

PANEL: Final = "x-panel"

OF_RUN: Final = "x-of-run"


def option(
    name: str | None = None,
    panel: str | None = None,
    *,
    metavar: str | None = None,
    former: Iterable[str] = (),
    value_of: str | None = None,
    of_run: bool = False,
) -> dict[str, Any]:
    """Return what a field says of its command-line option, for `json_schema_extra`.

    Args:
        name: The option that `--help` shows; None for a key that only `--set` and scenario files reach.
        former: Options that still work and print a notice naming the key.
        value_of: The key that takes the option's value, where the field itself is a switch that the option turns on.
        of_run: Whether the field says how a search is run, so that neither answers nor commands repeat it.
    """
    shown = {"name": name, "metavar": metavar, "value_of": value_of}
    found: dict[str, Any] = {OPTION: {k: v for k, v in shown.items() if v is not None}, PANEL: panel}
    found |= {FORMER_OPTIONS: list(former), OF_RUN: of_run}
    return {k: v for k, v in found.items() if v}


class RequestModel(BaseModel):
    """A frozen part of a request: keys are strict, and what breaks a rule is an InputError."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, populate_by_name=True)

    if not TYPE_CHECKING:  # type checkers see the fields

        def __init__(self, **values: Any) -> None:
            try:
                super().__init__(**values)
            except ValidationError as error:
                raise input_error(type(self), error) from None

    def replace(self, **changes: Any) -> Self:
        """Return the same with some fields changed, checked anew. Raises InputError."""
        return type(self)(**{name: getattr(self, name) for name in type(self).model_fields} | changes)


class _WrongValue(InputError):
    """A value of another type than its key's, which is dotted where models are nested."""

    def __init__(self, key: str, fault: str, value: object) -> None:
        self.key, self.fault = key, fault
        super().__init__(f"{key}: {fault}", value)


def input_error(model: type[BaseModel], error: ValidationError) -> InputError:
    """Return the first broken rule as an InputError: its own words where a rule of ours was broken."""
    first = error.errors(include_url=False)[0]
    key = ".".join(map(str, first["loc"]))
    ours = first.get("ctx", {}).get("error")
    if isinstance(ours, _WrongValue):
        return _WrongValue(f"{key}.{ours.key}", ours.fault, ours.value)
    if isinstance(ours, InputError):
        return ours
    if first["type"] == "extra_forbidden":
        known = [field.alias or name for name, field in model.model_fields.items()]
        return InputError("this is no key of a request", key, nearest_name(key, known))
    if first["type"] == "missing":
        return InputError(f"a request needs the key {key}")
    given = first["input"] if isinstance(first["input"], str | int | float) else type(first["input"]).__name__
    return _WrongValue(key, f"{first['msg'][:1].lower()}{first['msg'][1:]}", given)


# ---- values as people write them


def _number(value: object) -> object:
    """Text as a number; anything else, and text that is none, as it is."""
    if not isinstance(value, str):
        return value
    try:
        return float(value)
    except ValueError:
        return value


def _texts(value: object) -> object:
    """Text with commas, a list, or a list of texts with commas, as a tuple of texts."""
    if value is None:
        return ()
    if isinstance(value, str):
        return _split(value)
    if isinstance(value, list | tuple):
        return tuple(part for item in value for part in (_split(item) if isinstance(item, str) else (item,)))
    return value


def _split(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(","))


def _numbers(value: object) -> object:
    found = _texts((value,) if isinstance(value, int | float) else value)
    return tuple(map(_number, found)) if isinstance(found, tuple) else found


def _seconds(value: object) -> object:
    """ "2min" or a number of seconds."""
    number = _number(value)
    return parse_duration(number) if isinstance(number, str) else number


Number = Annotated[float, BeforeValidator(_number)]

Texts = Annotated[tuple[str, ...], BeforeValidator(_texts)]

Numbers = Annotated[tuple[float, ...], BeforeValidator(_numbers)]

Seconds = Annotated[
    float, BeforeValidator(_seconds), PlainSerializer(exact_duration), WithJsonSchema({"type": ["string", "number"]})
]


def read_by(parse: Callable[[Any], Any], write: Callable[[Any], Any], schema: dict[str, Any]) -> tuple[Any, ...]:
    """Return the metadata of a field that holds an object of ours: how it is read, written and described."""
    return BeforeValidator(parse), PlainSerializer(write), WithJsonSchema(schema)
