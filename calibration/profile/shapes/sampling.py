"""Random choices of held-out shapes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeVar

import numpy as np

from calibration.profile.session.shape import Shape

Item = TypeVar("Item")

HELD_OUT_SHARE: Final = 0.2  # held-out shapes per shape to fit


def with_held_out(fit: list[Shape], odd: Callable[[int], list[Shape]]) -> list[Shape]:
    """`fit` and a share of held-out shapes drawn by `odd`; nothing where there is nothing to fit."""
    return [*fit, *odd(max(4, int(HELD_OUT_SHARE * len(fit))))] if fit else []


def pick(items: Sequence[Item], draw: np.random.Generator) -> Item:
    return items[int(draw.integers(len(items)))]


def between(low: float, high: float, draw: np.random.Generator) -> int:
    """A whole number, as likely in every doubling."""
    return round(float(np.exp(draw.uniform(np.log(low), np.log(high)))))
