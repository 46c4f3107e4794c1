"""Score every estimator on every family, on whole groups that it was not trained on and beyond a shortened grid."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pandas as pd

from calibration.estimators.estimator import MOST_ROWS, Fit, estimators
from calibration.estimators.row_encoding import physics
from calibration.estimators.score import HeldOutScore, score
from calibration.families.registry import FAMILIES
from calibration.fitting.cross_validation import as_engine, beyond, folds
from calibration.rows.physics_check import gate
from catalogs.errors import InputError
from catalogs.hardware.specs import Accelerator

Mask = npt.NDArray[np.bool_]


def splits(family: str, rows: pd.DataFrame) -> Iterator[tuple[str, Mask, Mask]]:
    """Return (region, rows to train on, rows to test with): the folds of validate.py, then the cut at the edge."""
    fold = folds(family, rows)
    masks = [("inside", fold == f) for f in np.unique(fold)] + [("beyond", beyond(family, rows))]
    yield from ((region, ~test, test) for region, test in masks if test.any() and not test.all())


def held_out_seconds(
    family: str, rows: pd.DataFrame, accelerator: Accelerator, fit: Fit
) -> dict[str, npt.NDArray[np.float64]]:
    """Return the predicted seconds by region, shape (n,), NaN where a row is not in the region's test rows."""
    found: dict[str, npt.NDArray[np.float64]] = {}
    for region, train, test in splits(family, rows):
        predict = fit(family, rows[train].reset_index(drop=True), accelerator)
        found.setdefault(region, np.full(len(rows), np.nan))[test] = predict(rows[test].reset_index(drop=True))
    return found


def engine_rows(family: str, rows: pd.DataFrame, accelerator: Accelerator) -> pd.DataFrame:
    """Return the rows to compare estimators on: physical ones, the fastest kernel of each shape, no windows."""
    return as_engine(family, gate(family, rows, accelerator)[0])


def compare_family(
    family: str, rows: pd.DataFrame, accelerator: Accelerator, fits: Mapping[str, Fit]
) -> list[HeldOutScore]:
    """Return the scores of one family by estimator and region; none where no row or only one group is left."""
    rows = engine_rows(family, rows, accelerator)
    if rows.empty:
        return []
    streamed = physics(family, rows, accelerator)[:, 1] > accelerator.cache_bytes
    out = []
    for name, fit in fits.items():
        for region, seconds in held_out_seconds(family, rows, accelerator, fit).items():
            done = np.isfinite(seconds)
            test = rows[done].reset_index(drop=True)
            out.append(score((family, name, region), test, seconds[done], streamed[done]))
    return out


def compare(
    tables: dict[str, pd.DataFrame],
    accelerator: Accelerator,
    families: Sequence[str] = (),
    most_rows: int = MOST_ROWS,
    notify: Callable[[str], None] = lambda _text: None,
) -> list[HeldOutScore]:
    """Return the scores of every family with a model and rows, or only of `families`.

    Raises:
        InputError: No family has a model and rows.
    """
    unknown = [f for f in families if f not in tables]
    if unknown:
        raise InputError("no rows of this operator family", unknown[0], ", ".join(sorted(tables)))
    out: list[HeldOutScore] = []
    for family in sorted(f for f in tables if f in FAMILIES and (not families or f in families)):
        notify(f"{accelerator.name} {family}: {len(tables[family]):,} rows")
        out += compare_family(family, tables[family], accelerator, estimators(most_rows))
    if not out:
        raise InputError("no rows of a family that has a model", ", ".join(tables), ", ".join(FAMILIES))
    return out
