"""Reading of JSON from users and other programs, with limits that any real document respects.

Python's reader accepts more than JSON: NaN, integers that no array can hold, and escapes of unpaired surrogates, which
no file can hold. It fails on deep nesting with an error of its own.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from catalogs.errors import InputError, shortened, shown_value
from catalogs.io.input_files import MOST_DIGITS, MOST_LEVELS, read_text

_LONG_NUMBER: Final = re.compile(rf"[0-9]{{{MOST_DIGITS + 1}}}")


def load_json(text: str) -> Any:
    """Return the value of a JSON text as `json.loads` does, with one kind of error.

    Raises:
        json.JSONDecodeError: The text is not JSON, is nested too deeply, or has an integer of too many digits.
    """
    try:
        # The check of every integer is slow, so only a text with a long run of digits gets it.
        return json.loads(text, parse_int=_short_integer) if _LONG_NUMBER.search(text) else json.loads(text)
    except RecursionError:
        raise json.JSONDecodeError("nested too deeply", text, 0) from None


def parse_json(text: str, where: str, finite: bool = True) -> Any:
    """Return the value of a JSON document; with `finite`, no number may be infinite or NaN.

    Raises:
        InputError: The text is not JSON, or breaks one of the limits; the message begins with `where`.
    """
    try:
        found = load_json(text)
    except json.JSONDecodeError as error:
        raise InputError(f"{where} is not valid JSON (line {error.lineno}: {error.msg})") from None
    check_values(found, f"{where} is not valid JSON", finite)
    return found


def read_json(path: Path, what: str = "", finite: bool = True) -> Any:
    """Return the value of a JSON file; with `finite`, no number may be infinite or NaN.

    Raises:
        InputError: The file cannot be read, is not JSON, or breaks one of the limits.
    """
    return parse_json(read_text(path, what or f"cannot read {shortened(path.name)}"), str(path), finite)


def check_values(value: Any, where: str, finite: bool = True) -> None:
    """Check a structure of JSON values: its depth, and that its numbers and texts can be written again.

    Raises:
        InputError: A value breaks a limit; the message begins with `where` and names the value.
    """
    level = [value]
    for _ in range(MOST_LEVELS + 1):
        if not level:
            return
        inner: list[Any] = []
        for item in level:
            if isinstance(item, dict):
                inner.extend(item.keys())
                inner.extend(item.values())
            elif isinstance(item, list):
                inner.extend(item)
            elif finite and isinstance(item, float) and not math.isfinite(item):
                raise InputError(f"{where}: numbers must be finite", item)
            elif isinstance(item, str) and not item.isascii() and not _is_unicode(item):
                raise InputError(f"{where}: a text has half of a character (an unpaired surrogate)", item)
        level = inner
    raise InputError(f"{where}: more than {MOST_LEVELS} levels of nesting")


def _is_unicode(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _short_integer(text: str) -> int:
    if len(text) > MOST_DIGITS + 1:  # and a sign
        raise json.JSONDecodeError(f"an integer has more than {MOST_DIGITS} digits: {shown_value(text[:20])}", text, 0)
    return int(text)


def dotted(block: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return a block in which `{"usage": {"prompt_tokens": 5}}` is the key `usage.prompt_tokens`.

    An empty block inside stays a value of its own key. Every key begins with `prefix`.
    """
    found: dict[str, Any] = {}
    for key, value in block.items():
        inside = isinstance(value, Mapping) and value
        found |= dotted(value, f"{prefix}{key}.") if inside else {f"{prefix}{key}": value}
    return found
