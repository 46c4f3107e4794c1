"""Student's t distribution for whole degrees of freedom, in closed form.

The noise of a statistic over a few independent seeds has this distribution. The closed forms are equations 26.7.3 and
26.7.4 of Abramowitz and Stegun, *Handbook of Mathematical Functions* (1964): with theta = arctan(t / sqrt(v)), the
probability of a value between -t and t is a finite sum of powers of cos(theta). Importing scipy for it would take a
tenth of a second and 8 MB in every `plan` command.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from catalogs.arrays import FloatArray

#: Halvings of the search for a quantile: each determines one binary digit of the angle theta.
_HALVINGS: Final = 60


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
