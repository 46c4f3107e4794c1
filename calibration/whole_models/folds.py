"""Which rows are held out together, and the check that nothing held out was trained on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from catalogs.errors import InputError

if TYPE_CHECKING:
    import pandas as pd


Positions = npt.NDArray[np.int64]

Fold = tuple[Positions, Positions]  # train, test

#: What makes two rows the same work, whatever the workload is called.
TWINS: Final = ("model", "batch", "input_tokens", "output_tokens")

BY: Final[dict[str, tuple[str, ...]]] = {"configuration": ("model", "workload", "batch"), "model": ("model",)}


class LeakError(AssertionError):
    """A fold trains on what it holds out."""


def groups(rows: pd.DataFrame, by: str) -> list[str]:
    """The group of each row: rows of one group are never split between training and test."""
    return ["/".join(str(v) for v in values) for values in rows[list(BY[by])].itertuples(index=False)]


def grouped_folds(rows: pd.DataFrame, by: str, n_folds: int, seed: int = 0) -> list[Fold]:
    """Folds that hold out whole groups, each row once. At most one fold per group; by model always one per group.

    InputError where there are fewer than two groups. Raises LeakError should a fold ever leak.
    """
    labels = np.array(groups(rows, by))
    names = sorted(set(labels.tolist()))
    if len(names) < 2:
        raise InputError(
            f"holding out by {by} needs at least two of them", len(names), "more models or a longer budget"
        )
    n = len(names) if by == "model" else min(n_folds, len(names))
    order = np.random.default_rng(seed).permutation(len(names))
    part = {names[i]: turn % n for turn, i in enumerate(order)}
    number = np.array([part[g] for g in labels.tolist()])
    folds = [(np.flatnonzero(number != k), np.flatnonzero(number == k)) for k in range(n)]
    check(rows, folds, by)
    return folds


def check(rows: pd.DataFrame, folds: Sequence[Fold], by: str) -> None:
    """Raises LeakError where a group, or the same work under another workload's name, is on both sides of a fold, or a
    row is not held out exactly once."""
    labels = np.array(groups(rows, by))
    work = np.array(["/".join(str(v) for v in t) for t in rows[list(TWINS)].itertuples(index=False)])
    for train, test in folds:
        for what, names in (("group", labels), ("work", work)):
            both = set(names[train].tolist()) & set(names[test].tolist())
            if both:
                raise LeakError(f"{what} on both sides of a fold: {sorted(both)[0]}")
    held = np.sort(np.concatenate([test for _, test in folds]))
    if not np.array_equal(held, np.arange(len(rows))):
        raise LeakError("a row is not held out exactly once")
