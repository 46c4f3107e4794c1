"""The errors for invalid input and for outputs that cannot be written, and the search for the nearest valid name."""

from __future__ import annotations

import difflib
import errno
import math
import re
from collections.abc import Iterable
from typing import Final


class InputError(ValueError):
    """Invalid input, on one line: the broken rule, the offending value, and the nearest valid choice or a hint.

    Every command prints this line on stderr and exits with status 2, without a traceback.
    """

    def __init__(self, rule: str, value: object = None, nearest: str | None = None, hint: str | None = None) -> None:
        self.rule = rule
        self.value = value
        self.nearest = nearest
        self.hint = hint
        line = rule if value is None else f"{rule}: got {shown_value(value)}"
        line += f"; nearest valid choice: {nearest}" if nearest else ""
        line += f"; hint: {hint}" if hint else ""
        super().__init__(printable(" ".join(line.split())))


#: Errors of an output device: full, over quota or limit, failing, or closed.
DEVICE_ERRORS: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)


class OutputError(InputError):
    """A file that cannot be written because its device is full or failing; commands exit with status 74."""


#: Longest value that a message repeats, in characters.
LONGEST_VALUE: Final = 160

#: Longest name that is compared with the valid names, in characters; longer ones are similar to none.
LONGEST_NAME: Final = 200


def shown_value(value: object) -> str:
    """Return a value as a message repeats it: its literal, shortened where it is long.

    Args:
        value: Any value, also one that cannot be written out (an integer of 5,000 digits, a very deep list).
    """
    if isinstance(value, str | bytes):
        value = value[: LONGEST_VALUE + 1]
    try:
        text = repr(value)
    except (ValueError, RecursionError, OverflowError):  # more digits than Python prints, or too deep
        return f"a value of type {type(value).__name__} that is too large to print"
    return shortened(text)


def shortened(text: str) -> str:
    """Return text as a message repeats it: cut where it is long."""
    return text if len(text) <= LONGEST_VALUE else f"{text[:LONGEST_VALUE]}…"


def printable(text: str) -> str:
    """Return text with control characters and unpaired surrogates as escapes, since a file name may contain them."""
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def nearest_name(name: str, valid: Iterable[str], cutoff: float = 0.45) -> str | None:
    """Return the valid name most similar to `name`, or None where none is similar.

    Of equally similar names, one with the same letters in another order comes first.
    """
    if len(name) > LONGEST_NAME:
        return None
    by_folded = {v.lower(): v for v in valid}
    folded = name.lower()
    found = difflib.get_close_matches(folded, by_folded, n=3, cutoff=cutoff)

    def likeness(other: str) -> tuple[float, bool]:
        return difflib.SequenceMatcher(None, other, folded).ratio(), sorted(other) == sorted(folded)

    return by_folded[max(found, key=likeness)] if found else None


#: How similar a name is at least to one with another first word. A judgement: a name with one wrong letter.
LIKE_NAME: Final = 0.8

#: How similar the first words of two names of one family are at least. A judgement: "mistral" and "mixtral" are, "b"
#: and "v", or "trainium" and "trillium", are not.
_LIKE_FAMILY: Final = 0.8

#: Letters of the shortest first word that stands for those that begin with it, as "stable" for "stablediffusion".
_LEAST_LETTERS: Final = 3

#: A number at the beginning of a name.
_FIRST_NUMBER: Final = re.compile(r"[0-9]+")


def nearest_in_family(name: str, valid: Iterable[str], cutoff: float) -> str | None:
    """Return the valid name most similar to `name` whose first word is like its own, or which differs in few letters.

    The numbers of a series say little without its name: b100 is not v100, although three of four letters are equal.
    """
    names = list(valid)
    related = [other for other in names if alike(name, other)]
    return nearest_name(name, names, LIKE_NAME) or nearest_name(name, related, cutoff)


def alike(name: str, other: str) -> bool:
    """Return whether the first words of two names are alike, or one of the words is the beginning of the other.

    A name that begins with a number is like those that contain this number: 4090 is like rtx4090.
    """
    number = _FIRST_NUMBER.match(name.rsplit("/", 1)[-1].strip())
    if number is not None:
        return re.search(rf"(?<!\d){number[0]}(?!\d)", other) is not None
    short, long = sorted((_first_word(name), _first_word(other)), key=len)
    if not short:
        return not _first_word(name)
    begins = len(short) >= _LEAST_LETTERS and long.startswith(short)
    return begins or difflib.SequenceMatcher(None, short, long).ratio() >= _LIKE_FAMILY


def _first_word(name: str) -> str:
    """Return the letters with which a name begins, after a publisher; empty if it begins with a number."""
    letters = re.match(r"[a-z]*", name.lower().rsplit("/", 1)[-1].strip())
    return letters[0] if letters else ""


#: How similar a key is to the one that was meant, at least. Keys share words, so that less says little.
_LIKE_KEY: Final = 0.65


def nearest_key(name: str, valid: Iterable[str]) -> str | None:
    """Return the valid key that is written almost like `name` or has its initials, or None where there is none.

    "tp" are the initials of tensor_parallel; they count where they are those of exactly one key.
    """
    keys = list(valid)
    with_initials = [key for key in keys if "".join(word[:1] for word in key.split("_")) == name.lower()]
    return with_initials[0] if len(with_initials) == 1 else nearest_name(name, keys, _LIKE_KEY)


#: A number at the beginning of a text, behind the name of a kind ("fixed:100") or a dollar sign; digits may be grouped
#: ("1,000", "10_000"). A unit that changes no number may follow, or one that multiplies it: k, M or %.
_NUMBER: Final = re.compile(
    r"(?i:\s*(?:[a-z_]+\s*[:=]\s*)?\$?\s*(?P<number>(?:\d{1,3}(?:,\d{3})+|\d[\d_]*)(?:\.\d+)?(?:e[-+]?\d{1,3})?))"
    r"(?:\s*(?P<unit>%|k\b|M\b)|\s*(?i:usd|rps|qps)\b|(?![\w.]|,\d))"
)

#: What a number is multiplied by for the unit behind it.
_FACTORS: Final = {"%": 0.01, "k": 1e3, "M": 1e6}

#: Whole numbers up to this are written with all of their digits.
_MOST_WHOLE: Final = 1e15


def nearest_number(value: object, *, is_whole: bool) -> str | None:
    """Return the number that a value begins with, rounded if it has to be whole; None if there is none.

    A percentage of at least 1 % is the fraction, and no whole number; a smaller one may be meant as either.
    """
    found = _NUMBER.match(shortened(value if isinstance(value, str) else str(value)))
    if found is None:
        return None
    written, unit = float(found["number"].replace(",", "").replace("_", "")), found["unit"]
    if unit == "%" and (is_whole or written < 1):
        return None
    number = written * _FACTORS.get(unit, 1.0)
    if not math.isfinite(number) or (is_whole and abs(number) > _MOST_WHOLE):
        return None
    return str(round(number)) if is_whole else f"{number:.12g}"
