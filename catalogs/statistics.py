"""Statistics of samples that all packages state: mean, percentiles, and intervals from resampled samples.

Percentiles interpolate linearly between order statistics. Intervals are those of independent samples: requests of one
run depend on each other, so that their true interval is wider.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import numpy as np

from catalogs.arrays import FloatArray

#: Percentiles of latencies by name.
QUANTILES: Final[Mapping[str, float]] = {"p50": 50.0, "p90": 90.0, "p95": 95.0, "p99": 99.0}


def statistics(values: FloatArray, quantiles: Mapping[str, float] = QUANTILES) -> dict[str, float | None]:
    """Return the mean and percentiles by name; all are None without values.

    Args:
        values: Shape (n,); NaN is left out.
        quantiles: Percentiles by name.
    """
    values = values[~np.isnan(values)]
    if not len(values):
        return dict.fromkeys(("mean", *quantiles))
    points = np.percentile(values, list(quantiles.values()))
    return {"mean": float(values.mean()), **dict(zip(quantiles, map(float, points), strict=True))}


def resampled_interval(
    samples: Sequence[FloatArray],
    statistic: Callable[..., FloatArray],
    level: float,
    resamples: int,
    rng: np.random.Generator,
    paired: bool = False,
) -> tuple[float, float]:
    """Return the interval of a statistic by the percentile bootstrap (Efron, Annals of Statistics 7(1), 1979).

    Args:
        samples: The samples of one or several groups. Each has shape (any,).
        statistic: Gets the resamples of each group, shape (resamples, any), and returns its values, shape (resamples,).
        level: Probability of the interval, equal on both sides.
        resamples: Number of resamples.
        rng: Source of the resamples.
        paired: Whether the groups hold values of the same things, which are then drawn together.
    """
    rows = [rng.integers(len(values), size=(resamples, len(values))) for values in samples]
    drawn = [values[rows[0 if paired else i]] for i, values in enumerate(samples)]
    low, high = np.quantile(statistic(*drawn), [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def mean_ratio(first: FloatArray, second: FloatArray) -> FloatArray:
    """Return mean(second) / mean(first) of resamples, both of shape (n, any), as shape (n,)."""
    return np.asarray(second.mean(axis=1) / first.mean(axis=1))
