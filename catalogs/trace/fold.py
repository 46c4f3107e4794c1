"""Folding of repeated sequences: equal layers become one body with a number of repetitions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Final

#: The longest body that is looked for, in operators.
LONGEST_BODY: Final = 4000


@dataclass(frozen=True, slots=True)
class Fold:
    """A body that repeats; leaves are positions in the sequence, those of its first repetition."""

    times: int
    items: tuple[int | Fold, ...]


def fold(sequence: Sequence[Hashable], start: int = 0) -> tuple[int | Fold, ...]:
    """Return the positions of a sequence with its repetitions folded, inner ones included.

    At each place the repetition that saves most is taken.

    Args:
        sequence: What is folded.
        start: The position of the first element.
    """
    places: dict[Hashable, list[int]] = defaultdict(list)
    for i, item in enumerate(sequence):
        places[item].append(i)
    found: list[int | Fold] = []
    i = 0
    while i < len(sequence):
        length, times = _best(sequence, i, places[sequence[i]])
        if times > 1:
            found.append(Fold(times, fold(sequence[i : i + length], start + i)))
            i += length * times
        else:
            found.append(start + i)
            i += 1
    return tuple(found)


def _best(sequence: Sequence[Hashable], i: int, places: Sequence[int]) -> tuple[int, int]:
    """Return the length and the times of the repetition at i that saves most; (1, 1) for none."""
    best, saved = (1, 1), 0
    for j in places:
        length = j - i
        if length <= 0:
            continue
        if length > LONGEST_BODY or i + 2 * length > len(sequence):
            break
        if sequence[i:j] != sequence[j : j + length]:
            continue
        times = 2
        while sequence[i:j] == sequence[i + times * length : j + times * length]:
            times += 1
        if (times - 1) * length > saved:
            best, saved = (length, times), (times - 1) * length
    return best
