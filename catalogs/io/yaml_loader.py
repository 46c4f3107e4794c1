"""A safe YAML loader (JSON is valid YAML) with limits that any configuration respects, and one kind of error.

PyYAML keeps the last of two equal keys, expands aliases without end, recurses once per level of nesting, and raises
errors of Python for values that look like a number or a date and are none. Here each of these is a `YAMLError` with
the line.
"""

from __future__ import annotations

import re
from typing import Any, Final, NoReturn

import yaml
from yaml.constructor import ConstructorError

from catalogs.io.input_files import MOST_DIGITS, MOST_LEVELS

#: Characters that a file may have; the largest catalog file has a hundredth.
MOST_CHARACTERS: Final = 1_000_000

#: Values that a file may have, where each alias counts with everything that it stands for.
MOST_VALUES: Final = 300_000

#: Keys of one mapping.
MOST_KEYS: Final = 5_000

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _StrictLoader(_Loader):  # type: ignore[misc]
    """The safe loader with the rules of this module."""

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """Return the value of a node; a value of the wrong form is an error of YAML with its line."""
        try:
            return super().construct_object(node, deep)
        except (ValueError, ArithmeticError, LookupError, AttributeError, TypeError) as error:
            kind = node.tag.rpartition(":")[2]
            _refuse(f"not a valid {kind} ({error})" if isinstance(error, ValueError) else f"not a valid {kind}", node)


def _refuse(problem: str, node: yaml.Node) -> NoReturn:
    raise ConstructorError(None, None, problem, node.start_mark)


def _mapping(loader: Any, node: yaml.MappingNode) -> dict[Any, Any]:
    """Return a mapping whose keys are single values, each written once."""
    written: set[str] = set()
    if len(node.value) > MOST_KEYS:
        _refuse(f"more than {MOST_KEYS:,} keys in one mapping", node)
    for key, _ in node.value:
        if not isinstance(key, yaml.ScalarNode):
            _refuse("a key must be a single value", key)
        if key.tag == "tag:yaml.org,2002:merge":
            continue
        if key.value in written:
            _refuse(f"key {key.value!r} is written twice", key)
        written.add(key.value)
    loader.flatten_mapping(node)
    return {loader.construct_object(k, deep=True): loader.construct_object(v, deep=True) for k, v in node.value}


def _integer(loader: Any, node: yaml.ScalarNode) -> Any:
    if len(node.value) > MOST_DIGITS:
        _refuse(f"an integer has more than {MOST_DIGITS} digits", node)
    return loader.construct_yaml_int(node)


_StrictLoader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)
_StrictLoader.add_constructor("tag:yaml.org,2002:int", _integer)

#: Numbers such as 1e-6 and 1.5e3, which YAML 1.2 and JSON have and YAML 1.1 reads as text.
_EXPONENT: Final = re.compile(r"[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$")

_FLOAT: Final = ("tag:yaml.org,2002:float", _EXPONENT, [*"-+0123456789"])

_StrictLoader.add_implicit_resolver(*_FLOAT)


class StrictDumper(yaml.SafeDumper):
    """The writer for the loader: a text that the loader would read as a number is quoted."""


StrictDumper.add_implicit_resolver(*_FLOAT)


def dump_yaml(value: Any) -> str:
    """Return a value as YAML text that `load_yaml` reads back, with the keys in their order."""
    text: str = yaml.dump(value, Dumper=StrictDumper, sort_keys=False)
    return text


def load_yaml(text: str) -> Any:
    """Return the value of a YAML text.

    Raises:
        yaml.YAMLError: The text is not YAML, holds a value of the wrong form, or breaks one of the limits.
    """
    _check_text(text)
    return yaml.load(text, Loader=_StrictLoader)


def load_documents(text: str) -> list[Any]:
    """Return the values of a YAML text with any number of documents, which keeps the limits as a whole.

    Raises:
        yaml.YAMLError: The text is not YAML, holds a value of the wrong form, or breaks one of the limits.
    """
    _check_text(text)
    return list(yaml.load_all(text, Loader=_StrictLoader))


def _check_text(text: str) -> None:
    """Check the limits of a text before any value is built."""
    if len(text) > MOST_CHARACTERS:
        raise yaml.YAMLError(f"longer than {MOST_CHARACTERS:,} characters")
    if not text.isascii() and any("\ud800" <= character <= "\udfff" for character in text):
        raise yaml.YAMLError("half of a character (an unpaired surrogate)")
    _check_events(text)


def _check_events(text: str) -> None:
    """Check nesting and expanded size before any value is built; the parser itself does not recurse."""
    sizes: dict[str, int] = {}  # values under each finished anchor, with aliases expanded
    levels: list[tuple[str | None, int]] = []  # of each open collection: its anchor, and the values before it
    values = 0
    for event in yaml.parse(text, Loader=_Loader):
        if isinstance(event, yaml.AliasEvent):
            if event.anchor not in sizes:
                _refuse_event(f"alias {event.anchor!r} stands for nothing, or for itself", event)
            values += sizes[event.anchor]
        elif isinstance(event, yaml.ScalarEvent):
            values += 1
            if event.anchor is not None:
                sizes[event.anchor] = 1
        elif isinstance(event, yaml.CollectionStartEvent):
            levels.append((event.anchor, values))
            values += 1
            if event.anchor is not None:
                sizes.pop(event.anchor, None)
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, before = levels.pop()
            if anchor is not None:
                sizes[anchor] = values - before
        if len(levels) > MOST_LEVELS:
            _refuse_event(f"more than {MOST_LEVELS} levels of nesting", event)
        if values > MOST_VALUES:
            _refuse_event(f"more than {MOST_VALUES:,} values, counting what aliases stand for", event)


def _refuse_event(problem: str, event: Any) -> NoReturn:
    raise ConstructorError(None, None, problem, event.start_mark)
