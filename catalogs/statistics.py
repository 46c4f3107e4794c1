"""Statistics of samples that all packages state: mean, percentiles, intervals from resampled samples, and Student's t.

Percentiles interpolate linearly between order statistics. Intervals are those of independent samples: requests of one
run depend on each other, so that their true interval is wider.

The noise of a statistic over a few independent seeds has Student's t distribution. Its closed forms for whole degrees
of freedom are equations 26.7.3 and 26.7.4 of Abramowitz and Stegun, *Handbook of Mathematical Functions* (1964): with
theta = arctan(t / sqrt(v)), the probability of a value between -t and t is a finite sum of powers of cos(theta).
Importing scipy for it would take a tenth of a second and 8 MB in every `plan` command.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import numpy as np

from catalogs.arrays import FloatArray

#: Halvings of the search for a quantile of Student's t: each determines one binary digit of the angle theta.
_HALVINGS: Final = 60

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


def student_t_cdf(degrees: int, t: FloatArray) -> FloatArray:
    """Return the probability of a value of at most `t`. Shape (n,), as `t`; its elements may be infinite.

    Args:
        degrees: The degrees of freedom, at least 1.
        t: The values. Shape (n,).

    Raises:
        ValueError: There is not at least one degree of freedom.
    """
    if degrees < 1:
        raise ValueError(f"Student's t distribution has at least one degree of freedom, not {degrees}")
    return _below_angle(degrees, np.arctan(t / math.sqrt(degrees)))


def student_t_quantile(degrees: int, share: float) -> float:
    """Return the value that is exceeded with probability 1 - `share`, by bisection of its angle.

    Args:
        degrees: The degrees of freedom, at least 1.
        share: The probability of smaller values, between 0 and 1, both excluded.

    Raises:
        ValueError: The share is not between 0 and 1.
    """
    if not 0 < share < 1:
        raise ValueError(f"a quantile needs a share between 0 and 1, not {share}")
    low, high = -math.pi / 2, math.pi / 2
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if float(_below_angle(degrees, np.array(middle))) < share else (low, middle)
    return math.sqrt(degrees) * math.tan((low + high) / 2)


def _below_angle(degrees: int, theta: FloatArray) -> FloatArray:
    """Return the probability of values with a smaller angle than `theta`, in radians. Shape (n,), as `theta`."""
    sine, cosine = np.sin(theta), np.cos(theta)
    odd = degrees % 2 == 1
    # Terms of the sum: cos for odd degrees and 1 for even ones, and then two more powers of cos in each.
    term = cosine if odd else np.ones_like(cosine)
    total = np.zeros_like(cosine)
    for power in range(1 if odd else 0, degrees - 1, 2):
        total = total + term
        term = term * cosine**2 * (power + 1) / (power + 2)
    central = 2 / math.pi * (theta + sine * total) if odd else sine * total
    found: FloatArray = 0.5 + central / 2
    return found
