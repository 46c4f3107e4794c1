"""The base class of the models of a request, and the description of each field's key and option.

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

#: Headings under which `plan --help` and `plan keys` group the keys.
LOAD: Final = "Load"

CHOICE: Final = "Choice"

PRICE: Final = "Price"

POWER: Final = "Power and carbon"

SEARCH: Final = "Search"

#: Keys that a field adds to its JSON Schema; request_keys.py reads them.
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
    """Return the description of a field's command-line option, for `json_schema_extra`.

    Args:
        name: The option that `--help` shows; None for a key that only `--set` and scenario files can set.
        panel: The heading under which help texts list the key.
        metavar: The placeholder of the option's value.
        former: Former options, which still work and print a notice that names the key.
        value_of: The key that takes the option's value, if the field itself is a switch that the option turns on.
        of_run: Whether the field concerns the run of a search only, so that neither answers nor commands repeat it.
    """
    shown = {"name": name, "metavar": metavar, "value_of": value_of}
    found: dict[str, Any] = {OPTION: {k: v for k, v in shown.items() if v is not None}, PANEL: panel}
    found |= {FORMER_OPTIONS: list(former), OF_RUN: of_run}
    return {k: v for k, v in found.items() if v}


class RequestModel(BaseModel):
    """A frozen part of a request; unknown keys and values that break a rule raise InputError."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, populate_by_name=True)

    if not TYPE_CHECKING:  # type checkers see the fields

        def __init__(self, **values: Any) -> None:
            try:
                super().__init__(**values)
            except ValidationError as error:
                raise input_error(type(self), error) from None

    def replace(self, **changes: Any) -> Self:
        """Return a validated copy with some fields changed.

        Raises:
            InputError: The changed values break a rule.
        """
        return type(self)(**{name: getattr(self, name) for name in type(self).model_fields} | changes)


class _WrongValue(InputError):
    """A value that has the wrong type for its key; the key is dotted if models are nested."""

    def __init__(self, key: str, fault: str, value: object) -> None:
        self.key, self.fault = key, fault
        super().__init__(f"{key}: {fault}", value)


def input_error(model: type[BaseModel], error: ValidationError) -> InputError:
    """Return the first broken rule as an InputError, unchanged if a validator of a request model raised one."""
    first = error.errors(include_url=False)[0]
    key = ".".join(map(str, first["loc"]))
    ours = first.get("ctx", {}).get("error")
    if isinstance(ours, _WrongValue):
        return _WrongValue(f"{key}.{ours.key}", ours.fault, ours.value)
    if isinstance(ours, InputError):
        return ours
    if first["type"] == "extra_forbidden":
        known = [field.alias or name for name, field in model.model_fields.items()]
        return InputError("a request has no such key", key, nearest_name(key, known))
    if first["type"] == "missing":
        return InputError(f"a request needs the key {key}")
    given = first["input"] if isinstance(first["input"], str | int | float) else type(first["input"]).__name__
    return _WrongValue(key, f"{first['msg'][:1].lower()}{first['msg'][1:]}", given)


# ---- values in user notation


def _number(value: object) -> object:
    """Return text as a number; other values, and text that is not a number, unchanged."""
    if not isinstance(value, str):
        return value
    try:
        return float(value)
    except ValueError:
        return value


def _texts(value: object) -> object:
    """Return text with commas, a list, or a list of such texts as a tuple of texts."""
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
    """Return the seconds of a duration such as "2min", or of a number."""
    number = _number(value)
    return parse_duration(number) if isinstance(number, str) else number


Number = Annotated[float, BeforeValidator(_number)]

Texts = Annotated[tuple[str, ...], BeforeValidator(_texts)]

Numbers = Annotated[tuple[float, ...], BeforeValidator(_numbers)]

Seconds = Annotated[
    float, BeforeValidator(_seconds), PlainSerializer(exact_duration), WithJsonSchema({"type": ["string", "number"]})
]


def read_by(parse: Callable[[Any], Any], write: Callable[[Any], Any], schema: dict[str, Any]) -> tuple[Any, ...]:
    """Return the metadata of a field with a custom type: its parser, its serializer and its JSON Schema."""
    return BeforeValidator(parse), PlainSerializer(write), WithJsonSchema(schema)
