"""A Gaussian process of the error of estimates, which predicts the error at points that were not simulated.

Its scale, its length and its linear share are not fixed but drawn, weighted by how well each choice explains the
simulated points: with few samples, a single best choice is too confident.

The gain (`benchmarks/search_proof.py`, docs/search.md; 100 searches of held-out spaces, a fifth of the points each):
96 found the whole front within 2 % with this correction, 72 with the guess alone, 32 with Optuna's TPE and 7 with its
NSGA-II.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Final

import numpy as np
import numpy.typing as npt

from catalogs.arrays import FloatArray

# The choices of the parameters, of which the simulated points weigh every combination: judgements that only have to
# span what occurs. `python benchmarks/search_proof.py` measures what the correction with them finds.

#: Choices of the standard deviation of the logarithm of true over estimated values: from 3 % to a factor of 1.6.
_SCALES: Final = (0.03, 0.06, 0.12, 0.25, 0.5)

#: Choices of the correlation length, in units of the typical distance of two points.
_LENGTHS: Final = (1.5, 3.0, 6.0)

#: Choices of the share of the variance that is linear in the features.
_LINEAR: Final = (0.0, 0.5)

#: Choices of the standard deviation of the part that even a very similar point does not predict: microseconds decide
#: which requests share a step.
_OWN: Final = (0.004, 0.012, 0.03)

#: Centre of the log-normal prior of the scale, an error of 15 % of the estimate; its deviation is a factor of e. A
#: judgement that counts little once a few points are simulated.
_SCALE_PRIOR: Final = 0.15

#: Length, linear share, scale and own part before any point was simulated: middle choices, with a large scale so that
#: no point seems certain. A judgement.
_FIRST: Final = (3.0, 0.5, 0.3, 0.012)

#: Largest logarithm above the median that counts, a factor of 2. A judgement: an overloaded run is far later than
#: estimated, by an amount that is irrelevant for other runs.
_LATE: Final = 0.7


def standard(features: FloatArray) -> FloatArray:
    """Return features with columns of mean 0 and deviation 1; constant columns are 0. Shape (n, m)."""
    spread = features.std(axis=0)
    return np.asarray((features - features.mean(axis=0)) / np.where(spread > 1e-9, spread, 1.0), np.float64)


def kernel(a: FloatArray, b: FloatArray, length: float, linear: float) -> FloatArray:
    """Return the covariance of standard features: a squared exponential, a linear part and a common offset.

    Shape (len(a), len(b)).
    """
    m = max(a.shape[1], 1)
    inner = a @ b.T
    square = (a**2).sum(axis=1)[:, None] + (b**2).sum(axis=1)[None, :] - 2 * inner
    curved = np.exp(-np.maximum(square, 0.0) * (8 / m) / (2 * length**2))
    return np.asarray((1 - linear) * curved + linear * inner / m + 1.0, np.float64)


def normal_draws(mean: FloatArray, covariance: FloatArray, n: int, rng: np.random.Generator) -> FloatArray:
    """Return `n` joint normal draws, without directions of negligible variance. Shape (n, points)."""
    values, vectors = np.linalg.eigh(covariance)
    kept = values > max(values.max() * 1e-6, 1e-12)
    noise = rng.standard_normal((n, int(kept.sum()))) * np.sqrt(values[kept])
    return np.asarray(mean + noise @ vectors[:, kept].T, np.float64)


class ResidualModel:
    """A Gaussian process of the logarithm of true over estimated values.

    It is made of standard features `z` of shape (points, m), the indices `seen` of the simulated points, and the
    `values` at these points.
    """

    def __init__(self, z: FloatArray, seen: Sequence[int], values: FloatArray, noise: FloatArray) -> None:
        self._z, self._seen = z, z[list(seen)]
        self._values = np.minimum(values, np.median(values) + _LATE) if len(values) else values
        self._noise = noise
        self._choices = list(product(_LENGTHS, _LINEAR, _SCALES, _OWN)) if len(values) else [_FIRST]
        self._likely = self._weigh()

    def _weigh(self) -> FloatArray:
        """Return the probability of each choice of parameters."""
        if len(self._choices) == 1:
            return np.ones(1)
        logs = []
        for length, linear, scale, own in self._choices:
            lower = np.linalg.cholesky(self._among(length, linear, scale, own))
            white = np.linalg.solve(lower, self._values)
            fit = -0.5 * float(white @ white) - float(np.log(np.diag(lower)).sum())
            logs.append(fit - 0.5 * np.log(scale / _SCALE_PRIOR) ** 2)
        weights = np.exp(np.array(logs) - max(logs))
        return np.asarray(weights / weights.sum(), np.float64)

    def _among(self, length: float, linear: float, scale: float, own: float) -> FloatArray:
        alone = np.diag(self._noise**2 + own**2)
        return np.asarray(scale**2 * kernel(self._seen, self._seen, length, linear) + alone, np.float64)

    def expect(self) -> tuple[FloatArray, FloatArray]:
        """Return mean and standard deviation by the likeliest choice, each of shape (points,)."""
        length, linear, scale, own = self._choices[int(np.argmax(self._likely))]
        across = scale**2 * kernel(self._z, self._seen, length, linear)
        prior = scale**2 * ((1 - linear) + linear * (self._z**2).mean(axis=1) + 1.0)
        if not len(self._values):
            return np.zeros(len(self._z)), np.sqrt(prior)
        weights = np.linalg.solve(self._among(length, linear, scale, own), across.T).T
        variance = prior - (weights * across).sum(axis=1)
        return np.asarray(weights @ self._values), np.sqrt(np.maximum(variance, 0.0) + own**2)

    def draw(self, at: npt.NDArray[np.int64], n: int, doubt: float, rng: np.random.Generator) -> FloatArray:
        """Return `n` joint draws of shape (n, len(at)); `doubt` is a factor on the remaining deviation."""
        counts, z, found = rng.multinomial(n, self._likely), self._z[at], []
        for (length, linear, scale, own), count in zip(self._choices, counts, strict=True):
            if not count:
                continue
            mean, open_ = np.zeros(len(at)), scale**2 * kernel(z, z, length, linear)
            if len(self._values):
                across = scale**2 * kernel(z, self._seen, length, linear)
                weights = np.linalg.solve(self._among(length, linear, scale, own), across.T).T
                mean, open_ = weights @ self._values, open_ - weights @ across.T
            own_part = own * rng.standard_normal((int(count), len(at)))
            found.append(normal_draws(mean, doubt**2 * open_, int(count), rng) + doubt * own_part)
        return np.asarray(rng.permutation(np.concatenate(found)), np.float64)
