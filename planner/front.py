"""The Pareto front of a space, found by simulating little of it: a cheap guess corrected by what was simulated.

Every point has a closed-form guess of its objectives. What was simulated tells how wrong the guess is, point by point,
and a Gaussian process says how wrong it must be expected to be elsewhere, and how surely. The next point simulated is
the one that may lie furthest ahead of the front found so far; the search ends when no other may lie ahead of it. What
is on the front was simulated: nothing is reported on a guess.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
Objectives = tuple[float, ...]  # positive, lower is better; inf: does not hold
Measure = Callable[[int], Objectives]
Tell = Callable[[int, int], None]  # (simulated, at most)

#: A point is ahead where it is better by more than this share: differences below are not looked for.
RESOLVED: Final = 0.005
#: Standard deviations by which a guess may be better than expected.
SIGMAS: Final = 2.0
#: Of the logarithm of simulated over guessed: before much was simulated, at least, and what a twin leaves open.
_PRIOR_SD: Final = 0.2
_LEAST_SD: Final = 0.03
_NUGGET: Final = 0.05  # of the standard deviation
_FEW: Final = 5
#: A run that falls behind is later than guessed by far more than one that keeps up: how far says nothing of those.
_LATE: Final = 0.7
_MAD: Final = 1.4826  # from the median deviation to a standard deviation
#: Whether a point holds (+1) or not (-1): standard deviation of that around the guess.
_HOLD_SD: Final = 0.7


@dataclass(slots=True)
class Front:
    """measured: objectives of every point simulated, by index, in order. exhausted: no other may lie ahead."""

    measured: dict[int, Objectives] = field(default_factory=dict)
    exhausted: bool = False

    @property
    def members(self) -> list[int]:
        """Indices on the front, in order of the first objective; of equal points the first simulated."""
        found: list[int] = []
        for i, values in self.measured.items():
            if np.isfinite(values).all() and not any(_beats(v, values, j < i) for j, v in self.measured.items()):
                found.append(i)
        return sorted(found, key=lambda i: self.measured[i])


def _beats(a: Objectives, b: Objectives, earlier: bool) -> bool:
    """Whether a dominates b; of equals the earlier."""
    no_worse = all(x <= y for x, y in zip(a, b, strict=True))
    return no_worse and (a != b or earlier)


@dataclass(frozen=True, slots=True)
class FrontSearch:
    """guesses: (n, objectives). features: (n, m), what makes points alike; exact: objectives whose guess is true;
    holds: (n,) in -1..1, whether a point is guessed to hold at all. seed: draws the first point, of the guessed front.
    """

    guesses: FloatArray
    features: FloatArray
    holds: FloatArray
    exact: tuple[bool, ...]
    most: int
    seed: int = 0

    def run(self, measure: Measure, tell: Tell | None = None) -> Front:
        """Simulate at most `most` points. KeyboardInterrupt ends it: what was found stands."""
        front = Front()
        kernel = _kernel(_standard(self.features))
        try:
            while len(front.measured) < min(self.most, len(self.guesses)):
                chosen = self._next(front, kernel)
                if chosen is None:
                    front.exhausted = True
                    break
                front.measured[chosen] = measure(chosen)
                if tell is not None:
                    tell(len(front.measured), self.most)
        except KeyboardInterrupt:
            pass
        if len(front.measured) == len(self.guesses):
            front.exhausted = True
        return front

    def _next(self, front: Front, kernel: FloatArray) -> int | None:
        """Of the points that may lie ahead the one expected furthest ahead; None where none may."""
        mean, sd = self._expected(front, kernel)
        hold, hold_sd = self._holding(front, kernel)
        if not front.measured:
            guessed = Front({i: tuple(v) for i, v in enumerate(self.guesses) if self.holds[i] > 0}).members
            return int(np.random.default_rng(self.seed).choice(guessed or len(self.guesses)))
        held = np.log(np.array([front.measured[i] for i in front.members]).reshape(-1, len(self.exact)))
        seen = list(front.measured)
        for doubt in (SIGMAS, 2 * SIGMAS):  # what is left of the budget goes to what was thought unlikely
            may = (_ahead(mean - doubt * sd, held) > RESOLVED) & (hold + doubt * hold_sd > 0)
            may[seen] = False
            if may.any():
                break
        else:
            return None
        expected = _ahead(mean, held) - 2.0 * np.clip(-hold, 0.0, 1.0)  # doubtful ones later
        return int(np.argmax(np.where(may, expected, -np.inf)))

    def _expected(self, front: Front, kernel: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Mean and standard deviation of the logarithms of the objectives, each (n, objectives)."""
        logs = np.log(self.guesses)
        mean, sd = logs.copy(), np.zeros_like(logs)
        seen = [i for i, values in front.measured.items() if np.isfinite(values).all()]
        for k in (k for k, known in enumerate(self.exact) if not known):
            residual = np.log(np.array([front.measured[i][k] for i in seen])) - logs[seen, k]
            centre = float(np.median(residual)) if seen else 0.0
            off = np.minimum(residual - centre, _LATE)
            scale = _PRIOR_SD if len(seen) < _FEW else max(_MAD * float(np.median(np.abs(off))), _LEAST_SD)
            shift, spread = _regress(kernel, seen, off)
            mean[:, k] += centre + shift
            sd[:, k] = scale * spread
        return mean, sd

    def _holding(self, front: Front, kernel: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Whether points hold, +1 or -1, expected; and how surely that is known."""
        seen = list(front.measured)
        found = np.array([1.0 if np.isfinite(front.measured[i]).all() else -1.0 for i in seen])
        shift, spread = _regress(kernel, seen, found - self.holds[seen])
        return self.holds + shift, _HOLD_SD * spread


def _ahead(logs: FloatArray, held: FloatArray) -> FloatArray:
    """By how much each row is better than every member of the front in its best objective; inf without a front."""
    if not len(held):
        return np.asarray(1e3 - logs.sum(axis=1), np.float64)
    lead: FloatArray = np.asarray(np.max(held[None, :, :] - logs[:, None, :], axis=2), np.float64)
    return np.asarray(np.min(lead, axis=1), np.float64)


def _regress(kernel: FloatArray, seen: Sequence[int], values: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Gaussian process regression of values around zero: (n,) mean, and standard deviation in units of the prior's."""
    if not len(seen):
        return np.zeros(len(kernel)), np.ones(len(kernel))
    among = kernel[np.ix_(seen, seen)] + _NUGGET**2 * np.eye(len(seen))
    across = kernel[:, seen]
    weights = np.linalg.solve(among, across.T).T  # (n, seen)
    variance = np.clip(1.0 - (weights * across).sum(axis=1), 0.0, None) + _NUGGET**2
    return np.asarray(weights @ values), np.sqrt(variance)


def _standard(features: FloatArray) -> FloatArray:
    spread = features.std(axis=0)
    return np.asarray((features - features.mean(axis=0)) / np.where(spread > 0, spread, 1.0))


def _kernel(z: FloatArray) -> FloatArray:
    """Squared exponential, two standard deviations of every feature long; one between a point and itself."""
    square = ((z[:, None, :] - z[None, :, :]) ** 2).sum(axis=2)
    return np.asarray(np.exp(-square / (2 * 2.0**2)), np.float64)
