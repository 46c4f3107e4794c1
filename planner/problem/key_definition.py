"""The base class of the models of a request, and the types and descriptions of their fields.

A field is described once, by `key(...)`: its help, its heading, and its command-line option. From this the JSON Schema
is generated, and from the schema the command line, the list of keys, and the command that repeats a request.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, ValidationError, WithJsonSchema

from catalogs.errors import InputError, nearest_name
from catalogs.io.yaml_files import nearest_choice, number_hint
from catalogs.ui.words import exact_duration, parse_duration
from catalogs.workloads.limits import MOST_COUNT, MOST_PLANNED_PER_S
from planner.problem.request_keys import request_keys

#: Headings under which `plan --help` and `plan keys` group the keys.
LOAD: Final = "Load"

CHOICE: Final = "Choice"

PRICE: Final = "Price"

POWER: Final = "Power and carbon"

SEARCH: Final = "Search"

#: Highest number of a request. It is far above any use, and products of such numbers stay finite.
MOST_NUMBER: Final = 1e12

#: Key of the JSON Schema of fields that concern only the run; see `key`.
RUN_ONLY: Final = "x-of-run"


def key(
    description: str,
    panel: str | None = None,
    option: str = "",
    metavar: str = "",
    alias: str | None = None,
    former: str | None = None,
    value_of: str | None = None,
    run_only: bool = False,
) -> Any:
    """Return the pydantic field of a key of a request, as metadata of its type; request_keys.py reads its JSON Schema.

    Args:
        description: The help text.
        panel: The heading under which help texts list the key.
        option: The option that `--help` shows, for example "--price". Without an option, only `--set` and scenario
            files can set the key.
        metavar: The placeholder of the value in help texts, for example "USD".
        alias: The key, if it differs from the name of the field.
        former: A former option, which still works and prints a notice that names the key.
        value_of: The key that takes the option's value, if the field itself is a switch that the option turns on.
        run_only: Whether the field concerns the run of a search only, so that neither answers nor commands repeat it.
    """
    shown = {"name": option, "metavar": metavar, "value_of": value_of}
    extra: dict[str, Any] = {
        "x-option": {part: text for part, text in shown.items() if text},
        "x-panel": panel,
        "x-former-options": [former] if former else None,
        RUN_ONLY: run_only,
    }
    return Field(alias=alias, description=description, json_schema_extra={k: v for k, v in extra.items() if v})


def refuse_if(broken: bool, rule: str, value: object, nearest: str) -> None:
    """Refuse a value if it breaks a rule.

    Raises:
        InputError: The rule is broken; the error names the value and the nearest valid choice.
    """
    if broken:
        raise InputError(rule, value, nearest)


def need_one_of(what: str, value: str, choices: Sequence[str]) -> None:
    """Refuse a value that is not one of the choices; the first choice is the usual one.

    Raises:
        InputError: The value is not one of them; the error names all of them and the nearest one.
    """
    if value not in choices:
        rule = f"{what} is one of {', '.join(choices)}"
        raise InputError(rule, value, nearest_name(value, choices, 0.6) or choices[0])


def check_precision(name: str, known: Sequence[str]) -> None:
    """Refuse a weight dtype that is not known; the first of the known ones is the usual one.

    Raises:
        InputError: It is none; the nearest has the same kind of number and the nearest number of bits.
    """
    found = re.fullmatch(r"([a-z]+)(\d{1,3})", name.lower())
    if name not in known and found is not None:
        kind, bits = found[1], int(found[2])
        alike = [dtype for dtype in known if dtype.rstrip("0123456789") == kind]
        near = min(alike, key=lambda dtype: abs(int(dtype.removeprefix(kind)) - bits), default=None)
        refuse_if(near is not None, f"a precision is one of {', '.join(known)}", name, near or known[0])
    need_one_of("a precision", name, known)


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
    """A value that its key does not take.

    Attributes:
        key: The key, dotted if models are nested.
        fault: The text that follows the key in the message.
    """

    def __init__(
        self, key: str, fault: str, value: object, nearest: str | None = None, hint: str | None = None
    ) -> None:
        self.key, self.fault = key, fault
        option = _option_of(key)
        super().__init__(f"{key}{f' ({option})' if option else ''}{fault}", value, nearest, hint)


def input_error(model: type[BaseModel], error: ValidationError, file: str = "") -> InputError:
    """Return the first broken rule as an InputError, unchanged if a validator of a request model raised one.

    If the data comes from a file, the message begins with the name of the file.
    """
    found = _first_fault(model, error, "the file" if file else "a request")
    return InputError(f"{file}: {found.rule}", found.value, found.nearest, found.hint) if file else found


def _first_fault(model: type[BaseModel], error: ValidationError, whole: str) -> InputError:
    """Return the first broken rule; `whole` stands for the data in the message."""
    first = error.errors(include_url=False)[0]
    key = ".".join(map(str, first["loc"]))
    ours = first.get("ctx", {}).get("error")
    if isinstance(ours, _WrongValue):
        return _WrongValue(f"{key}.{ours.key}", ours.fault, ours.value, ours.nearest, ours.hint)
    if isinstance(ours, InputError):
        return ours
    if first["type"] == "extra_forbidden":
        known = [field.alias or name for name, field in model.model_fields.items()]
        return InputError(f"{whole} has no such key", key, nearest_name(key, known))
    if first["type"] == "missing":
        return InputError(f"{whole} needs the key {key}")
    if first["type"] == "less_than_equal":
        if str(first["input"]).strip(" +-").lower() == "nan":
            return _WrongValue(key, " must be a number", first["input"], _usual_number(model, key))
        most = f"{first['ctx']['le']:,.0f}"
        return _WrongValue(key, f" must be at most {most}", first["input"], most.replace(",", ""))
    given = first["input"] if isinstance(first["input"], str | int | float) else _type_words(first["input"])
    rule = _RULES.get(first["type"], first["msg"])
    fault = f": {rule[:1].lower()}{rule[1:]}"
    return _WrongValue(key, fault, given, nearest_choice(first), number_hint(first))


def _type_words(value: object) -> str:
    """Return the type of a value of a file in words."""
    return "a list" if isinstance(value, list) else "a mapping" if isinstance(value, dict) else type(value).__name__


#: What is said of faults whose message at pydantic names a class of Python.
_RULES: Final = {
    "tuple_type": "input should be a text, or a list of texts",
    "is_instance_of": "input has no form that this key takes; `plan keys` describes it",
}


def _option_of(key: str) -> str | None:
    """Return the option that sets a key, if its name is another than that of the key (`--price`)."""
    option = request_keys()[key].option if key in request_keys() else None
    return None if option is None or option == f"--{key.replace('_', '-')}" else option


def _usual_number(model: type[BaseModel], key: str) -> str:
    """Return the default of a key, which is valid in any case, or 1 where its default is not a number."""
    default = next((field.default for name, field in model.model_fields.items() if key in (name, field.alias)), None)
    return f"{default:g}" if isinstance(default, float) else "1"


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


Number = Annotated[float, BeforeValidator(_number), Field(le=MOST_NUMBER)]

#: Requests per second.
Rate = Annotated[float, BeforeValidator(_number), Field(le=MOST_PLANNED_PER_S)]

#: A count.
Whole = Annotated[int, Field(le=MOST_COUNT)]

Texts = Annotated[tuple[str, ...], BeforeValidator(_texts)]

Numbers = Annotated[tuple[Annotated[float, Field(le=MOST_NUMBER)], ...], BeforeValidator(_numbers)]

Seconds = Annotated[
    float,
    BeforeValidator(_seconds),
    Field(le=MOST_NUMBER),
    PlainSerializer(exact_duration),
    WithJsonSchema({"type": ["string", "number"]}),
]


def read_by(parse: Callable[[Any], Any], write: Callable[[Any], Any], schema: dict[str, Any]) -> tuple[Any, ...]:
    """Return the metadata of a field with a custom type: its parser, its serializer and its JSON Schema."""
    return BeforeValidator(parse), PlainSerializer(write), WithJsonSchema(schema)
