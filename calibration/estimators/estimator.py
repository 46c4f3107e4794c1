"""The compared estimators; each is a function of training rows that returns a function of unseen rows.

- physics: the shipped model of the family (calibration/families).
- random forest, gradient boosting: scikit-learn regressors of log seconds on the features of features.py.
- linear physics: seconds = a * time at peak arithmetic + b * time at full bandwidth + c * rows + d, no term negative
  (non-negative least squares on relative errors), one set of terms per dtype or kind.
- physics + residual: the shipped model times a boosted correction of its errors, learned from predictions on training
  groups that it was not fitted to, and applied only within the range of the training sizes.

Learned parts train on at most `most_rows` of the rows, drawn at random, so that a comparison takes minutes. Physics is
always fitted to all rows, as it is when it is shipped.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import numpy as np
import pandas as pd

from calibration.estimators.row_encoding import ROW_COUNT, Encoder, physics, words_of
from calibration.families.nonnegative import nonnegative
from calibration.families.registry import FAMILIES
from calibration.fitting.cross_validation import out_of_fold, predict
from catalogs.arrays import FloatArray
from catalogs.hardware.specs import Accelerator

Predict = Callable[[pd.DataFrame], FloatArray]

Fit = Callable[[str, pd.DataFrame, Accelerator], Predict]

SHIPPED: Final = "physics"

SEED: Final = 0

TREES: Final = 40

MOST_ROWS: Final = 20_000

ROUNDS: Final = 200

RESIDUAL_ROUNDS: Final = 100

SLACK: Final = 1e-6  # of log2 sizes, in the test whether a row lies in the trained range


def fit_physics(family: str, rows: pd.DataFrame, accelerator: Accelerator) -> Predict:
    """Fit the shipped model of a family; it predicts the seconds of other rows."""
    model = FAMILIES[family].fit(rows, accelerator)
    return lambda unseen: predict(model, unseen.reset_index(drop=True), accelerator)


def fit_trees(
    family: str, rows: pd.DataFrame, accelerator: Accelerator, make: Callable[[], Any], most_rows: int
) -> Predict:
    """Fit the regressor that `make` returns to the logarithms of the seconds."""
    regressor, encoder = make(), Encoder.of(family, rows, accelerator)
    train(regressor, encoder.encode(rows), np.log(rows.seconds.to_numpy(float)), most_rows)
    return lambda unseen: np.exp(regress(regressor, encoder.encode(unseen)))


def forest() -> Any:
    """Return a random forest with the settings of this package."""
    from sklearn.ensemble import RandomForestRegressor

    return RandomForestRegressor(TREES, min_samples_leaf=1, max_features=0.7, random_state=SEED)


def boosted(rounds: int) -> Any:
    """Return a boosting regressor with the settings of this package."""
    from sklearn.ensemble import HistGradientBoostingRegressor

    return HistGradientBoostingRegressor(
        max_iter=rounds, learning_rate=0.1, max_leaf_nodes=63, early_stopping=False, random_state=SEED
    )


def train(regressor: Any, x: FloatArray, y: FloatArray, most_rows: int) -> None:
    """Fit a regressor on at most `most_rows` rows of x, shape (n, d), and y, shape (n,).

    The fit uses one thread: on a busy machine the threads of a boosted fit wait for each other, which takes many times
    as long.
    """
    from threadpoolctl import threadpool_limits

    drawn = np.random.default_rng(SEED).permutation(len(y))[:most_rows]
    with threadpool_limits(1):
        regressor.fit(x[drawn], y[drawn])


def regress(regressor: Any, x: FloatArray) -> FloatArray:
    """Return the regressor's predictions for x, shape (n, d), as an array of shape (n,)."""
    from threadpoolctl import threadpool_limits

    with threadpool_limits(1):
        return np.asarray(regressor.predict(x), dtype=np.float64)


def fit_linear_physics(family: str, rows: pd.DataFrame, accelerator: Accelerator) -> Predict:
    """Fit non-negative terms by non-negative least squares on relative errors, one set per combination of words.

    Combinations that were not trained on use the set of all rows.
    """
    keys = _word_keys(family, rows)
    terms, seconds = _terms(family, rows, accelerator), rows.seconds.to_numpy(float)
    weights = {"": nonnegative(terms, seconds)}
    weights |= {k: nonnegative(terms[keys == k], seconds[keys == k]) for k in np.unique(keys)}

    def answer(unseen: pd.DataFrame) -> FloatArray:
        chosen = np.stack([weights.get(k, weights[""]) for k in _word_keys(family, unseen)])
        total: FloatArray = (_terms(family, unseen, accelerator) * chosen).sum(axis=1)
        return np.maximum(total, 1e-9)

    return answer


def _terms(family: str, rows: pd.DataFrame, accelerator: Accelerator) -> FloatArray:
    per_row = rows[ROW_COUNT[family]].to_numpy(float)
    return np.column_stack([physics(family, rows, accelerator)[:, 3:], per_row, np.ones(len(rows))])


def _word_keys(family: str, rows: pd.DataFrame) -> np.ndarray[Any, np.dtype[np.str_]]:
    keys = np.full(len(rows), "all", dtype=object)
    for column in words_of(family):
        keys = keys + "/" + rows[column].astype(str).to_numpy(object)
    return keys.astype(str)


def fit_residual(family: str, rows: pd.DataFrame, accelerator: Accelerator, most_rows: int) -> Predict:
    """Fit the shipped model times a learned correction, which applies inside the trained range."""
    rows = rows.reset_index(drop=True)
    base, unseen_s = fit_physics(family, rows, accelerator), out_of_fold(family, rows, accelerator)
    known = np.isfinite(unseen_s)
    if known.sum() < 20:
        return base
    encoder, model = Encoder.of(family, rows, accelerator), boosted(RESIDUAL_ROUNDS)
    seen = encoder.encode(rows)
    low, high = seen.min(axis=0) - SLACK, seen.max(axis=0) + SLACK
    miss = np.log(rows.seconds.to_numpy(float)[known] / unseen_s[known])
    train(model, np.column_stack([seen[known], np.log2(unseen_s[known])]), miss, most_rows)

    def answer(unseen: pd.DataFrame) -> FloatArray:
        seconds, x = base(unseen), encoder.encode(unseen)
        inside = ((x >= low) & (x <= high)).all(axis=1)
        correction = np.exp(regress(model, np.column_stack([x, np.log2(seconds)])))
        return np.where(inside, seconds * correction, seconds)

    return answer


ESTIMATORS: Final = (SHIPPED, "random forest", "gradient boosting", "linear physics", "physics + residual")


def estimators(most_rows: int = MOST_ROWS) -> dict[str, Fit]:
    """Return every estimator by name, in the order of ESTIMATORS."""
    fits: list[Fit] = [
        fit_physics,
        partial(fit_trees, make=forest, most_rows=most_rows),
        partial(fit_trees, make=partial(boosted, ROUNDS), most_rows=most_rows),
        fit_linear_physics,
        partial(fit_residual, most_rows=most_rows),
    ]
    return dict(zip(ESTIMATORS, fits, strict=True))
