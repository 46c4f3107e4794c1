"""Intervals of predictions from held-out errors, where the errors of one group (a model, a configuration) are related.

The logarithms of actual over predicted are modelled as a random effect of the group plus an independent error of the
row, both with mean zero (Higgins, Thompson and Spiegelhalter 2009, "A re-evaluation of random-effects meta-analysis",
section 3.4, with a known mean). A new group draws both parts again, so the interval is wider than the spread of all
errors where few groups were measured: with four models, Student's t has four degrees of freedom.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
from scipy.stats import t as student_t

from catalogs.arrays import FloatArray

#: Probability that a stated interval holds the true value: that of all stated errors (`COVERAGE`).
CONFIDENCE: Final = 0.9

#: Groups from which an interval can be checked by leaving one out.
FEWEST_GROUPS: Final = 3


def interval_factor(actual: FloatArray, predicted: FloatArray, groups: npt.NDArray[np.str_]) -> float:
    """Return the factor of the interval for a row of a new group, from out-of-fold predictions.

    The interval reaches from the prediction divided by the factor to the prediction times the factor.

    Args:
        actual: Measured values, Shape (rows,).
        predicted: Predictions by fits to other groups, Shape (rows,).
        groups: The group of each row, Shape (rows,).
    """
    errors = np.log(actual / predicted)
    names, index = np.unique(groups, return_inverse=True)
    sizes = np.bincount(index)
    means = np.bincount(index, weights=errors) / sizes
    within = float(np.sum((errors - means[index]) ** 2)) / max(len(errors) - len(names), 1)
    between = float(np.mean(means**2))
    quantile = float(student_t.ppf(0.5 + CONFIDENCE / 2, len(names)))
    return float(np.exp(quantile * np.sqrt(between + within)))


def interval_coverage(actual: FloatArray, predicted: FloatArray, groups: npt.NDArray[np.str_]) -> float | None:
    """Return the share of rows within an interval that follows from the errors of the other groups alone.

    All arrays have Shape (rows,), as in `interval_factor`. The result is None for fewer than FEWEST_GROUPS groups.
    """
    names = np.unique(groups)
    if len(names) < FEWEST_GROUPS:
        return None
    inside = np.zeros(len(actual), dtype=np.bool_)
    for name in names:
        mine = groups == name
        factor = interval_factor(actual[~mine], predicted[~mine], groups[~mine])
        inside[mine] = np.abs(np.log(actual[mine] / predicted[mine])) <= np.log(factor)
    return float(np.mean(inside))
