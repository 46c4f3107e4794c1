"""Conditions on the lengths of requests, such as `in<1k,out>=256` of the objective `e2e[in<1k,out>=256].p99=5s`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from catalogs.arrays import BoolArray
from catalogs.errors import InputError
from catalogs.workloads.limits import MOST_COUNT

#: The sides of a request by their names in conditions, with their names in sentences.
SIDES: Final = {"in": "input", "out": "output"}

_BOUND: Final = re.compile(r"\s*(\w+)\s*(<=|>=|<|>)\s*(\d+(?:\.\d+)?)\s*([kKmM]?)\s*")

#: Factors of the endings of a number of tokens.
_THOUSANDS: Final = {"": 1, "k": 1_000, "m": 1_000_000}

_RULE: Final = (
    "a condition bounds in or out by <, <=, > or >= and whole tokens, such as in<1k or out>=256 (1k is 1,000)"
)

Lengths = npt.NDArray[np.int64] | npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class TokenBounds:
    """Bounds of one length in tokens: at least `least`, and below `below`; None is no bound."""

    least: int | None = None
    below: int | None = None

    def hold(self, tokens: Lengths) -> BoolArray:
        """Return whether each length is within the bounds. Shape (n,), as `tokens`."""
        held = np.ones(len(tokens), dtype=np.bool_)
        if self.least is not None:
            held &= tokens >= self.least
        if self.below is not None:
            held &= tokens < self.below
        return held

    def text(self, side: str) -> str:
        """Return the bounds as a condition on a side, in their canonical order; empty without bounds."""
        found = [f"{side}>={_number(self.least)}"] if self.least is not None else []
        return ",".join(found + ([f"{side}<{_number(self.below)}"] if self.below is not None else []))

    def words(self, side: str) -> str:
        """Return the bounds in words, such as "at least 256 output tokens"; empty without bounds."""
        if self.least is not None and self.below is not None:
            return f"{self.least:,} to {self.below - 1:,} {side} tokens"
        if self.least is not None:
            return f"at least {self.least:,} {side} tokens"
        return "" if self.below is None else f"fewer than {self.below:,} {side} tokens"


@dataclass(frozen=True, slots=True)
class LengthCondition:
    """A condition on the input and output tokens of requests.

    Attributes:
        input_tokens: Bounds of the prompt, whether its tokens are cached or not.
        output_tokens: Bounds of the output.
    """

    input_tokens: TokenBounds
    output_tokens: TokenBounds

    @classmethod
    def parse(cls, text: str) -> LengthCondition:
        """Return the condition that a text such as "in<1k,out>=256" describes.

        Raises:
            InputError: The text is not valid, bounds a length twice on one side, or leaves no length.
        """
        found: dict[str, dict[str, int]] = {side: {} for side in SIDES}
        for part in text.split(","):
            match = _BOUND.fullmatch(part)
            if match is None or match[1].lower() not in SIDES:
                raise InputError(_RULE, part.strip() or text, _nearest(part))
            tokens = float(match[3]) * _THOUSANDS[match[4].lower()]
            if tokens != int(tokens) or tokens > MOST_COUNT:
                raise InputError(_RULE, part.strip(), f"{match[1]}{match[2]}{min(int(tokens), MOST_COUNT)}")
            name, at = match[1].lower(), int(tokens) + (match[2] in ("<=", ">"))
            bound = "below" if match[2].startswith("<") else "least"
            if bound in found[name]:
                raise InputError("a condition bounds each length once from each side", text, f"{name}{match[2]}{at}")
            found[name][bound] = at
        for name, bounds in found.items():
            if bounds.get("below", MOST_COUNT + 2) <= max(bounds.get("least", 0), 1):
                rule = "a condition must leave lengths of at least one token"
                raise InputError(rule, text, f"{name}<{max(bounds.get('least', 0), 1) + 1}")
        return cls(*(TokenBounds(**found[side]) for side in SIDES))

    @property
    def text(self) -> str:
        """Return the canonical text: equal conditions have equal texts."""
        parts = (self.input_tokens.text("in"), self.output_tokens.text("out"))
        return ",".join(part for part in parts if part)

    @property
    def words(self) -> str:
        """Return the condition in words: "fewer than 1,000 input tokens and at least 256 output tokens"."""
        parts = (self.input_tokens.words(SIDES["in"]), self.output_tokens.words(SIDES["out"]))
        return " and ".join(part for part in parts if part)

    def holds(self, input_tokens: Lengths, output_tokens: Lengths) -> BoolArray:
        """Return whether each request fulfils the condition. All arrays have shape (n,)."""
        return self.input_tokens.hold(input_tokens) & self.output_tokens.hold(output_tokens)


def _number(tokens: int) -> str:
    """Return a number of tokens in its shortest exact form: 1000 gives "1k"."""
    for suffix, size in (("m", _THOUSANDS["m"]), ("k", _THOUSANDS["k"])):
        if tokens >= size and not tokens % size:
            return f"{tokens // size}{suffix}"
    return str(tokens)


def _nearest(part: str) -> str:
    """Return the nearest valid bound of a text that is none."""
    side = next((name for name in ("out", "in") if name in part.lower()), "in")
    sign = next((sign for sign in ("<=", ">=", "<", ">") if sign in part), "<")
    number = re.search(r"\d+", part)
    return f"{side}{sign}{number[0] if number else '1k'}"
