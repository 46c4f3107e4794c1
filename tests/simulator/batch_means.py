"""The confidence interval of the mean of values in a row, which are correlated."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy.stats import t as student

BATCHES = 25


def half_width(values: npt.NDArray[np.float64], confidence: float = 0.99) -> float:
    """Return half the width of the confidence interval of the mean, by batch means. Shape of values (n,)."""
    means = values[: len(values) // BATCHES * BATCHES].reshape(BATCHES, -1).mean(axis=1)
    return float(student.ppf(0.5 + confidence / 2, BATCHES - 1) * means.std(ddof=1) / np.sqrt(BATCHES))
