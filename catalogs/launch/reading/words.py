"""The words after a program as flags with values, parsed as the engine's own parser does."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from catalogs.engines.flags import Flag, FlagTable
from catalogs.errors import InputError
from catalogs.launch.reading.shell import is_output

_NUMBER: Final = re.compile(r"-\d+(\.\d+)?$")

#: Factors of the endings of numbers in vLLM's options: small letters are decimal, capital ones binary.
_SUFFIXES: Final = {"k": 10**3, "m": 10**6, "g": 10**9, "K": 2**10, "M": 2**20, "G": 2**30}


@dataclass(frozen=True, slots=True)
class GivenFlag:
    """One flag of a command.

    Attributes:
        flag: The row of the table; None if the engine has no such flag.
        written: The flag as it is written.
        values: Its values: none for a switch, several only for a list.
        negated: Whether it is written with `--no-`.
        path: The keys of `--json.key.key value`.
    """

    flag: Flag | None
    written: str
    values: tuple[str, ...] = ()
    negated: bool = False
    path: tuple[str, ...] = ()

    @property
    def value(self) -> str:
        """Return the value; "" for a switch."""
        return " ".join(self.values)

    @property
    def text(self) -> str:
        """Return the flag with its value."""
        return " ".join((self.written, *self.values))

    def integer(self) -> int:
        """Return the value as an integer; vLLM's suffixes are accepted: 16k is 16,000, and 16K is 16,384.

        Raises:
            InputError: The value is no integer.
        """
        number = re.fullmatch(r"(\d+(?:\.\d+)?)([kmgKMG])", self.value)
        try:
            if number:
                return int(float(number[1]) * _SUFFIXES[number[2]])
            return int(self.value)
        except ValueError:
            raise InputError(f"{self.written} needs an integer", self.value, hint=self._hint()) from None

    def number(self) -> float:
        """Return the value as a number.

        Raises:
            InputError: The value is no number.
        """
        try:
            return float(self.value)
        except ValueError:
            raise InputError(f"{self.written} needs a number", self.value, hint=self._hint()) from None

    def _hint(self) -> str | None:
        """Return how to state a value that is the output of another command; None for any other value."""
        known = "commands are not run: assign it to a variable and give --env NAME=VALUE, or write the value"
        return known if is_output(self.value) else None

    def mapping(self) -> dict[str, Any]:
        """Return the JSON value, or the one key of it that `--json.key value` states.

        Raises:
            InputError: The value is no JSON mapping.
        """
        found: Any
        try:
            found = json.loads(self.value)
        except ValueError:
            found = self.value
        for key in reversed(self.path):
            found = {key: found}
        if not isinstance(found, dict):
            raise InputError(f"{self.written} needs a JSON mapping", self.value, '{"key": value}')
        return found


def parse_words(words: Sequence[str], table: FlagTable) -> tuple[list[GivenFlag], list[str]]:
    """Return the flags of a command and its other words.

    Raises:
        InputError: An abbreviation fits several flags, or a flag has no value.
    """
    return _Words(list(words), table).parse()


@dataclass(slots=True)
class _Words:
    words: list[str]
    table: FlagTable
    at: int = 0

    def parse(self) -> tuple[list[GivenFlag], list[str]]:
        given, others = [], []
        while self.at < len(self.words):
            word = self.words[self.at]
            self.at += 1
            if word.startswith("-") and len(word) > 1 and not _NUMBER.match(word):
                given.append(self._flag(word))
            else:
                others.append(word)
        return given, others

    def _flag(self, word: str) -> GivenFlag:
        level = re.fullmatch(r"-O=?(.+)", word)
        if level and "-O" in self.table.flags and not level[1].startswith("."):
            return GivenFlag(self.table.flags["-O"], word, (level[1],))
        name, equals, value = word.partition("=")
        name, *path = name.split(".") if self.table.dotted else [name]
        if self.table.underscores and name.startswith("--"):
            name = "--" + name[2:].replace("_", "-")
        flag, negated = self._find(name)
        if flag is None:
            return GivenFlag(None, name, (value,) if equals else self._loose())
        if flag.bare:
            return GivenFlag(flag, word, (value,) if equals else (), negated)
        keys = tuple(key.rstrip("+") for key in path)
        if equals:
            return GivenFlag(flag, word.partition("=")[0], (value,), path=keys)
        return GivenFlag(flag, word, self._values(flag, word), path=keys)

    def _find(self, name: str) -> tuple[Flag | None, bool]:
        flags = self.table.flags
        if name in flags:
            return flags[name], False
        positive = "--" + name.removeprefix("--no-")
        if name.startswith("--no-") and positive in flags and flags[positive].takes == "switch":
            return flags[positive], True
        if self.table.style != "argparse" or not name.startswith("--"):
            return None, False
        fits = {(f.name, False): f for spelling, f in flags.items() if spelling.startswith(name)}
        if name.startswith("--no-"):
            spelled = ((s, f) for s, f in flags.items() if f.takes == "switch" and s.startswith(positive))
            fits |= {(f.name, True): f for _, f in spelled}
        if len(fits) > 1:
            rule = f"an abbreviation must fit one flag, not {', '.join(sorted(n for n, _ in fits)[:4])}"
            raise InputError(rule, name, min(n for n, _ in fits))
        return next(((flag, key[1]) for key, flag in fits.items()), (None, False))

    def _values(self, flag: Flag, word: str) -> tuple[str, ...]:
        if flag.takes == "list":
            return tuple(self._until_flag())
        following = self.words[self.at : self.at + 1]
        is_flag = bool(following) and following[0].startswith("-") and not _NUMBER.match(following[0])
        if flag.takes == "optional" and (not following or is_flag):
            return ()
        if not following or (is_flag and self._find(following[0].partition("=")[0])[0] is not None):
            raise InputError("a flag needs a value", word, f"{word} VALUE")
        self.at += 1
        return (following[0],)

    def _until_flag(self) -> Iterator[str]:
        while self.at < len(self.words):
            word = self.words[self.at]
            if word.startswith("-") and not _NUMBER.match(word):
                return
            self.at += 1
            yield word

    def _loose(self) -> tuple[str, ...]:
        """Return the word after an unknown flag if it looks like its value."""
        following = self.words[self.at : self.at + 1]
        if not following or following[0].startswith("-"):
            return ()
        self.at += 1
        return (following[0],)
