"""Cross-validation folds that hold out whole groups of rows, and the check that no fold leaks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from catalogs.errors import InputError

Positions = npt.NDArray[np.int64]

Fold = tuple[Positions, Positions]  # positions of the training rows and of the test rows

#: Columns that identify the work of a row, whatever the name of its workload.
WORK_COLUMNS: Final = ("model", "batch", "input_tokens", "output_tokens")

BY: Final[dict[str, tuple[str, ...]]] = {"configuration": ("model", "workload", "batch"), "model": ("model",)}


class LeakError(AssertionError):
    """A fold trains on rows that it holds out."""


def groups(rows: pd.DataFrame, by: str) -> list[str]:
    """Return the group of each row; the rows of one group are never split between training and test."""
    return ["/".join(str(v) for v in values) for values in rows[list(BY[by])].itertuples(index=False)]


def grouped_folds(rows: pd.DataFrame, by: str, n_folds: int, seed: int = 0) -> list[Fold]:
    """Return folds that hold out whole groups, with each row held out once.

    Args:
        rows: Rows of whole models.
        by: "configuration" or "model", a key of BY.
        n_folds: Number of folds. There is at most one fold per group, and exactly one per model.
        seed: Seed of the assignment of groups to folds.

    Raises:
        InputError: If there are fewer than two groups.
        LeakError: If a fold leaks.
    """
    labels = np.array(groups(rows, by))
    names = sorted(set(labels.tolist()))
    if len(names) < 2:
        rule = f"holding out by {by} requires at least two {by}s"
        raise InputError(rule, len(names), hint="measure more models or give a longer budget")
    n = len(names) if by == "model" else min(n_folds, len(names))
    order = np.random.default_rng(seed).permutation(len(names))
    part = {names[i]: turn % n for turn, i in enumerate(order)}
    number = np.array([part[g] for g in labels.tolist()])
    folds = [(np.flatnonzero(number != k), np.flatnonzero(number == k)) for k in range(n)]
    check(rows, folds, by)
    return folds


def check(rows: pd.DataFrame, folds: Sequence[Fold], by: str) -> None:
    """Check that no fold leaks.

    Raises:
        LeakError: If a group, or the same work under another workload's name, is on both sides of a fold, or if a row
            is not held out exactly once.
    """
    labels = np.array(groups(rows, by))
    work = np.array(["/".join(str(v) for v in t) for t in rows[list(WORK_COLUMNS)].itertuples(index=False)])
    for train, test in folds:
        for what, names in (("group", labels), ("work", work)):
            both = set(names[train].tolist()) & set(names[test].tolist())
            if both:
                raise LeakError(f"{what} on both sides of a fold: {sorted(both)[0]}")
    held = np.sort(np.concatenate([test for _, test in folds]))
    if not np.array_equal(held, np.arange(len(rows))):
        raise LeakError("a row is not held out exactly once")
