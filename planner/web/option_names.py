"""Messages for clients of the API and of `plan mcp`, which write keys of JSON and no options of a command line.

The rules of a question are those of the command `plan`, so their messages may name its options.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, Final

from catalogs.errors import InputError
from planner.problem.request_keys import plan_keys

#: An option in a sentence, with the command before it and the placeholder of its value ("plan --users N").
_OPTION: Final = re.compile(r"(?:\bplan )?(?<![\w`-])(--[a-z]+(?:-[a-z]+)*)(?![\w-])(?: [A-Z][A-Z_]*\b)?")

#: A value in words of ours, which are not its user's: options that exclude each other.
_SEVERAL: Final = re.compile(r"--\S+( \S+)? and --")

#: A text that is a command; its options belong to it.
_COMMAND: Final = re.compile(r"`|(plan [a-z]+|calibrate|catalog|simulate|pip|curl|vllm) ")


@lru_cache(maxsize=1)
def key_names() -> Mapping[str, str]:
    """Return the key that each option of `plan` sets, former options included."""
    former = {option: key.name for key in plan_keys().values() for option in key.former_options}
    return former | {key.option: key.name for key in plan_keys().values() if key.option}


def in_keys(error: InputError, keys: Iterable[str] = ()) -> InputError:
    """Return an error that names the keys of a JSON body where `error` names options of `plan`.

    Args:
        error: The error.
        keys: Further keys of the body, which stand for the options of the same name.
    """
    names = {**{f"--{key.replace('_', '-')}": key for key in keys}, **key_names()}
    value = _worded(error.value, names) if _SEVERAL.match(str(error.value)) else error.value
    return InputError(_worded(error.rule, names), value, _nearest(error.nearest, names), _nearest(error.hint, names))


def _nearest(text: str | None, names: Mapping[str, str]) -> str | None:
    return None if text is None else _body(text) or _worded(text, names)


def _worded(text: object, names: Mapping[str, str]) -> str:
    """Return a text with keys in place of options; a command stays as it is."""
    if _COMMAND.match(str(text)):
        return str(text)
    return _OPTION.sub(lambda found: names.get(found[1], found[0]), str(text).replace(" --set ", " with "))


def _body(text: str) -> str | None:
    """Return the JSON body that asks what a command asks, such as "plan --model M --hw H"; None for another text."""
    if not text.startswith("plan --"):
        return None
    words = shlex.split(text)[1:]
    pairs = list(zip(words[::2], words[1::2], strict=False))
    if len(words) % 2 or len(pairs) < 2 or any(option not in key_names() for option, _ in pairs):
        return None
    return json.dumps({key_names()[option]: _value(key_names()[option], written) for option, written in pairs})


def _value(name: str, written: str) -> Any:
    """Return the value of a key that an option states as text."""
    kind = plan_keys()[name].kind
    if kind == "array":
        return written.split(",")
    return json.loads(written) if kind in ("number", "integer") else written
