"""Error measures of predictions on held-out rows."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np

from catalogs.arrays import FloatArray


@dataclass(frozen=True, slots=True)
class EstimatorScore:
    """Errors of one estimator on held-out rows.

    mae and rmse are in the target's unit; median, mape, p90 and worst are relative errors. r2 is of the values,
    r2_log of their logarithms, where a constant factor has the same weight at every size.
    """

    estimator: str
    n: int
    mae: float
    rmse: float
    r2: float
    r2_log: float
    median: float
    mape: float
    p90: float
    worst: float
    bias: float  # median of predicted / actual - 1

    def to_dict(self) -> dict[str, float | int | str]:
        """Return the scores as JSON data."""
        return asdict(self)


def score(estimator: str, actual: FloatArray, predicted: FloatArray) -> EstimatorScore:
    """Compare positive predicted and actual values, each of shape (n,).

    r2 is 1 - squared error over the spread around the mean: it is negative for predictions worse than the mean.
    """
    error = predicted - actual
    relative = np.abs(error) / actual
    return EstimatorScore(
        estimator,
        len(actual),
        float(np.mean(np.abs(error))),
        float(np.sqrt(np.mean(error**2))),
        r_squared(actual, predicted),
        r_squared(np.log(actual), np.log(np.maximum(predicted, 1e-12))),
        float(np.median(relative)),
        float(np.mean(relative)),
        float(np.quantile(relative, 0.9)),
        float(np.max(relative)),
        float(np.median(predicted / actual) - 1.0),
    )


def r_squared(actual: FloatArray, predicted: FloatArray) -> float:
    """Return R squared of two arrays of Shape (n,): 1 for perfect, 0 for the mean, NaN where all values are equal."""
    spread = float(np.sum((actual - actual.mean()) ** 2))
    return 1.0 - float(np.sum((predicted - actual) ** 2)) / spread if spread > 0 else float("nan")


def log_rmse(actual: FloatArray, predicted: FloatArray) -> float:
    """Return the root mean square of log(predicted / actual), which selects estimators.

    It is close to the typical relative error and has the same weight for small and large values. Both arrays have
    Shape (n,).
    """
    return float(np.sqrt(np.mean((np.log(np.maximum(predicted, 1e-12)) - np.log(actual)) ** 2)))
