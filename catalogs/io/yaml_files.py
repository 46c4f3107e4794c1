"""Reading of catalog files: strict YAML, errors of one line, and blocks of the form `{kind: {its keys}}`."""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar, get_args

import yaml
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from catalogs.errors import InputError, nearest_key, nearest_name, nearest_number, shortened
from catalogs.io.input_files import nearest_file, read_text
from catalogs.io.yaml_loader import MOST_CHARACTERS, load_documents, load_yaml

#: The folder of the shipped data.
DATA: Path = Path(__file__).resolve().parents[1] / "data"


def user_folder(kind: str) -> Path:
    """Return the folder of the user's own entries of a kind, which take precedence over the shipped ones."""
    import platformdirs

    return Path(platformdirs.user_data_dir("llm-capacity-planner", appauthor=False)) / kind


#: A fraction.
Share = Annotated[float, Field(ge=0, le=1)]

#: The seed of random draws.
Seed = Annotated[int, Field(ge=0, strict=True)]


class YamlBlock(BaseModel):
    """Base class of the blocks of YAML files, which have no unknown keys and no infinite numbers."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class StrictYamlBlock(YamlBlock):
    """Base class of the blocks whose types are exact: a string is not accepted as a number or a truth value."""

    model_config = ConfigDict(strict=True)


#: How pydantic calls the plain members of a union in the place of an error.
_PLAIN_FORMS: Final = ("str", "int", "float", "bool")

T = TypeVar("T")

M = TypeVar("M", bound=BaseModel)


def parse_yaml(text: str, where: str) -> dict[str, Any]:
    """Return the mapping in a YAML (or JSON) text.

    Raises:
        InputError: The text is not a valid mapping; the message names `where` and the line.
    """
    try:
        found = load_yaml(text)
    except yaml.YAMLError as error:
        raise _not_yaml(error, where) from None
    if found is None:
        raise InputError(f"{where} is empty: it must hold key: value pairs")
    if not isinstance(found, dict):
        raise InputError(f"{where} must hold key: value pairs", type(found).__name__)
    return found


def parse_documents(text: str, where: str) -> list[Any]:
    """Return the documents of a YAML (or JSON) text, of any type.

    Raises:
        InputError: The text is not valid YAML; the message names `where` and the line.
    """
    try:
        return load_documents(text)
    except yaml.YAMLError as error:
        raise _not_yaml(error, where) from None


def _not_yaml(error: yaml.YAMLError, where: str) -> InputError:
    """Return the error of a text that is not valid YAML, with the line where it is known."""
    mark = getattr(error, "problem_mark", None)
    line = f" line {mark.line + 1}" if mark is not None else ""
    return InputError(f"{where}{line} is not valid YAML: {getattr(error, 'problem', None) or error}")


def read_typed_yaml(path: Path) -> dict[str, Any]:
    """Return the mapping in a YAML file whose path the user of this machine has typed.

    Raises:
        InputError: The file cannot be read or is not a valid mapping; the message names the nearest existing file.
    """
    try:
        return read_yaml(path)
    except InputError as error:
        nearest = nearest_file(path)
        if nearest is None:
            raise
        raise InputError(error.rule, error.value, nearest, error.hint) from None


def read_yaml(path: Path) -> dict[str, Any]:
    """Return the mapping in a YAML file.

    Raises:
        InputError: The file cannot be read or is not a valid mapping.
    """
    return parse_yaml(read_text(path, f"cannot read {shortened(path.name)}", MOST_CHARACTERS), str(path))


def validate_as(cls: type[M], data: dict[str, Any], where: str) -> M:
    """Return `data` validated as `cls`; an unknown key is reported before a missing one, since a typo causes both.

    Raises:
        InputError: A rule is broken; the message names the first one, and the nearest key for an unknown key.
    """
    try:
        return cls.model_validate(data)
    except ValidationError as e:
        raise _first_error(cls, e, where) from None


def times(factor: float) -> AfterValidator:
    """Return an annotation that converts a number of a catalog file to SI by multiplying it by `factor`."""
    return AfterValidator(partial(operator.mul, factor))


def build_as(schema: TypeAdapter[T], data: dict[str, Any], where: str) -> T:
    """Return a dataclass with the values of a catalog file, checked and converted as its annotations state.

    The data is validated as JSON, where lists stand for tuples.

    Raises:
        InputError: A rule is broken; the message names the first one.
    """
    try:
        return schema.validate_json(json.dumps(data, default=str))
    except ValidationError as e:
        raise _first_error(None, e, where) from None


def _first_error(model: type[BaseModel] | None, error: ValidationError, where: str) -> InputError:
    errors = error.errors(include_url=False)
    unknown = [e for e in errors if e["type"] in ("extra_forbidden", "unexpected_keyword_argument")]
    first = (unknown or _inside_union(errors))[0]
    key = ".".join(map(str, first["loc"]))
    if unknown:
        *path, name = map(str, first["loc"])
        fields = _keys_at(model, path)
        near = nearest_key(name, fields) or nearest_name(name, fields)
        nearest = ".".join((*path, near)) if near else ", ".join(fields)
        return InputError(f"{where}: unknown key {key!r}", nearest=nearest or None)
    if first["type"] == "missing":
        return InputError(f"{where}: key {key!r} is missing")
    cause = first.get("ctx", {}).get("error")
    if isinstance(cause, InputError):
        rule = ": ".join(part for part in (where, key, cause.rule) if part)
        return InputError(rule, cause.value, cause.nearest, hint=cause.hint)
    message = first["msg"].removeprefix("Value error, ")  # pydantic's prefix before our messages
    message = message[:1].lower() + message[1:]
    return fault_error(": ".join(part for part in (where, key, message) if part), first)


def _keys_at(model: type[BaseModel] | None, path: Sequence[str]) -> list[str]:
    """Return the keys of the block that a path in a model leads to; none where the path does not name one block."""
    blocks = [] if model is None else [model]
    for name in path:
        annotations = [field.annotation for block in blocks for key, field in block.model_fields.items() if key == name]
        blocks = [block for annotation in annotations for block in _blocks_in(annotation)]
    return list(blocks[0].model_fields) if len(blocks) == 1 else []


def _blocks_in(annotation: Any) -> Iterator[type[BaseModel]]:
    """Yield the models that an annotation names, such as that of `Block | None`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from _blocks_in(part)


#: Beginnings of the types of pydantic's faults where a number is expected (int_parsing, int_from_float, float_type).
_NUMBER_FAULTS: Final = ("int_", "float_")


def _inside_union(errors: list[Any]) -> list[Any]:
    """Return the errors that concern the value as it is written, where the first one is of a plain form of a union.

    pydantic reports `str | Block` for a mapping first as "not a string", and then what is wrong inside the block.
    """
    *path, form = errors[0]["loc"] or ("",)
    if not path or not (str(form) in _PLAIN_FORMS or str(form).startswith("literal[")):
        return errors
    n = len(path)
    inside = [e for e in errors if len(e["loc"]) > n + 1 and list(e["loc"][:n]) == path]
    return [{**e, "loc": (*path, *e["loc"][n + 1 :])} for e in inside] or errors


def fault_error(rule: str, fault: Mapping[str, Any]) -> InputError:
    """Return the error of one of pydantic's faults, with its value and the nearest valid choice or a hint.

    Args:
        rule: The broken rule.
        fault: An element of `ValidationError.errors()`.
    """
    return InputError(rule, fault.get("input"), nearest_choice(fault), number_hint(fault))


def number_hint(fault: Mapping[str, Any]) -> str | None:
    """Return a hint for a value that has to be a number and is near to none; None for other faults of pydantic.

    The example is a small number, or a fraction where it need not be whole, because it is to be a valid choice.
    """
    kind = fault["type"]
    if not kind.startswith(_NUMBER_FAULTS) or nearest_choice(fault) is not None:
        return None
    return f"a number in digits, such as {8 if kind.startswith('int_') else 0.9}"


#: The bound that each of pydantic's faults names, and the step from it to the nearest valid whole number.
_BOUNDS: Final = {
    "less_than_equal": ("le", 0),
    "greater_than_equal": ("ge", 0),
    "less_than": ("lt", -1),
    "greater_than": ("gt", 1),
}


def nearest_choice(fault: Mapping[str, Any]) -> str | None:
    """Return the valid choice nearest to the value of pydantic's error, or None where no one is near.

    It is the bound that a number is beyond, of a few names the most similar one, or the number that a text begins with.
    """
    if fault["type"].startswith(_NUMBER_FAULTS):
        return nearest_number(fault["input"], is_whole=fault["type"].startswith("int_"))
    if fault["type"].startswith("bool_"):
        return "true or false"
    if fault["type"] == "literal_error":
        return nearest_name(str(fault["input"]), re.findall("'([^']*)'", fault["ctx"]["expected"]))
    name, step = _BOUNDS.get(fault["type"], ("", 0))
    bound = fault.get("ctx", {}).get(name)
    if bound is None or (step and not isinstance(bound, int)):  # no number is nearest to a bound that is excluded
        return None
    return f"{bound + step:.12g}"


def check_keys(model: type[M], data: object, where: str) -> M:
    """Return `data`, which has to be a mapping, validated as `model`.

    Raises:
        InputError: `data` is not a mapping, or breaks a rule of `model`.
    """
    if not isinstance(data, Mapping):
        keys = [name for name, field in model.model_fields.items() if field.annotation is not type(None)]
        raise InputError(f"{where} must hold the keys {', '.join(keys)}", data)
    return validate_as(model, dict(data), where)


def choose_kind(kinds: Mapping[str, type[M]], data: object, where: str) -> M:
    """Return the one kind that `data` names: `name`, `{name: null}` or `{name: {its keys}}`.

    A kind with a single required key has a short form: `{constant: 512}` for `{constant: {tokens: 512}}`, and
    `{quantiles: {0: 1, 1: 9}}` for `{quantiles: {table: {0: 1, 1: 9}}}`.

    Raises:
        InputError: `data` names no kind, several kinds or an unknown kind, or its keys break a rule.
    """
    pair = (data, None) if isinstance(data, str) else None
    if isinstance(data, Mapping) and len(data) == 1:
        pair = next(iter(data.items()))
    if pair is None:
        raise InputError(f"{where} must name exactly one of {', '.join(kinds)}", data)
    name, keys = pair
    if name not in kinds:
        raise InputError(f"{where}: unknown kind", name, nearest_name(str(name), kinds) or ", ".join(kinds))
    model = kinds[str(name)]
    required = [key for key, field in model.model_fields.items() if field.is_required()]
    if keys is not None and len(required) == 1 and (not isinstance(keys, Mapping) or _is_table(keys)):
        keys = {required[0]: keys}
    return check_keys(model, {} if keys is None else keys, f"{where}.{name}")


def _is_table(keys: Mapping[object, object]) -> bool:
    """Return whether the keys are numbers (strings in JSON), and so entries of a table rather than names of fields."""
    return bool(keys) and all(isinstance(k, int | float) or str(k)[:1] in "0123456789." for k in keys)
