"""Find the Pareto front of a space with few simulations: closed-form estimates, corrected by simulated points.

Every point has a closed-form estimate of its objectives. The simulated points show the errors of the estimates, and a
Gaussian process (gaussian_process.py) predicts the errors at the other points. The sampler draws values of all points
from it and next simulates the point that is on the front in most draws. The search ends when no draw has a point ahead
of the front. Every reported point of the front was simulated.

The sampler is an Optuna sampler: storage, shared studies and resuming are Optuna's.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import optuna
from optuna.trial import FrozenTrial, TrialState

from catalogs.arrays import FloatArray
from planner.search.gaussian_process import ResidualModel, kernel, normal_draws, standard
from planner.search.study import Params, is_abandoned, space_of

#: A point is ahead if it is better by more than this share; smaller differences are ignored.
RESOLVED: Final = 0.02

#: Number of draws of all points, and the most points in a draw (the most promising if there are more).
DRAWS: Final = 64

SHORT_LIST: Final = 300

#: Factors on the deviation of draws: if no draw has a point ahead, the next larger factor is used.
DOUBTS: Final = (1.0, 2.0, 4.0)

#: Standard deviation of the difference between the logarithms of a short and a long run.
SHORT_SD: Final = 0.1

#: Whether a point keeps up (+1) or not (-1): standard deviation around the estimate, and its length.
_HOLD_SD: Final = 0.5

_HOLD_LENGTH: Final = 3.0

_NEVER: Final = 1e3  # logarithm of the values of a point that does not keep up


@dataclass(frozen=True, slots=True)
class ParetoSample:
    """The simulated result of one point.

    Attributes:
        values: Value of each objective, above zero; lower is better.
        slack: At most zero if the system keeps up and all limits are met.
        pruned: Whether a short run was far behind the front, so that no full run followed.
    """

    values: tuple[float, ...]
    slack: float
    n_requests: int
    pruned: bool = False

    @property
    def holds(self) -> bool:
        """Return whether the system keeps up and all limits are met."""
        return self.slack <= 0 and bool(np.isfinite(self.values).all())


def members(looks: Mapping[int, ParetoSample]) -> list[int]:
    """Return the indices on the front, in order of the first objective; of equal points, the first simulated."""
    found = [(i, look.values) for i, look in looks.items() if look.holds and not look.pruned]
    front = [
        (i, values)
        for n, (i, values) in enumerate(found)
        if not any(_beats(other, values, m < n) for m, (_, other) in enumerate(found) if m != n)
    ]
    return [i for i, values in sorted(front, key=lambda item: item[1])]


def _beats(a: tuple[float, ...], b: tuple[float, ...], earlier: bool) -> bool:
    """Return whether `a` dominates `b`; of equal points, the earlier dominates."""
    no_worse = all(x <= y for x, y in zip(a, b, strict=True))
    return no_worse and (a != b or earlier)


@dataclass(frozen=True)
class ParetoSampler:
    """Chooses the next point to simulate.

    Attributes:
        guesses: Estimated objectives. Shape (n, objectives).
        known: Objectives whose estimates are exact.
        features: What determines the errors of the other estimates. Shape (n, m).
        holds: Estimate in -1..1 of whether a point keeps up. Shape (n,).
    """

    guesses: FloatArray
    features: FloatArray
    holds: FloatArray
    known: tuple[bool, ...]
    seed: int = 0

    def choose(self, looks: Mapping[int, ParetoSample], busy: Collection[int] = ()) -> int | None:
        """Return the point that is most likely on the front, or None; other workers simulate the points in `busy`.

        The result depends on the simulated points and the seed only, so a resumed search makes the same decisions.
        """
        free = np.ones(len(self.guesses), np.bool_)
        free[[*looks, *busy]] = False
        if not free.any():
            return None
        rng = np.random.default_rng([self.seed, len(looks), len(busy)])
        z = standard(self.features)
        at = self._short_list(z, looks, free)
        for doubt in DOUBTS:
            counts = self._counts(z, looks, at, doubt, rng)
            if counts.max() > 0:
                return int(at[np.argmax(counts + 0.01 * rng.random(len(at)))])
        if any(look.holds for look in looks.values()):
            return None
        return int(np.argmax(np.where(free, self.holds, -np.inf)))  # no point keeps up yet: the least loaded

    def _residual(self, z: FloatArray, looks: Mapping[int, ParetoSample], k: int) -> ResidualModel:
        seen = [i for i, look in looks.items() if look.holds]
        values = np.log(np.array([max(looks[i].values[k], 1e-12) for i in seen])) - np.log(self.guesses[seen, k])
        noise = np.array([SHORT_SD * looks[i].pruned for i in seen])
        return ResidualModel(z, seen, values, noise)

    def _short_list(self, z: FloatArray, looks: Mapping[int, ParetoSample], free: np.ndarray) -> np.ndarray:
        """Return the free points; if there are too many, those that may lie furthest ahead of the front."""
        at = np.flatnonzero(free)
        if len(at) <= SHORT_LIST:
            return at
        hopeful = np.log(self.guesses)
        for k in self._open:
            mean, sd = self._residual(z, looks, k).expect()
            hopeful[:, k] += mean - 2 * sd
        lead = _lead(hopeful[at], self._logs(looks, members(looks)))
        lead = lead - 2.0 * np.clip(-self.holds[at], 0.0, 1.0)
        return np.asarray(at[np.argsort(-lead, kind="stable")[:SHORT_LIST]])

    @property
    def _open(self) -> list[int]:
        return [k for k, known in enumerate(self.known) if not known]

    def _logs(self, looks: Mapping[int, ParetoSample], which: list[int]) -> FloatArray:
        found = np.array([looks[i].values for i in which]).reshape(-1, len(self.known))
        return np.asarray(np.log(np.maximum(found, 1e-12)), np.float64)

    def _counts(
        self, z: FloatArray, looks: Mapping[int, ParetoSample], at: np.ndarray, doubt: float, rng: np.random.Generator
    ) -> FloatArray:
        """Return in how many draws each point of `at` is on the front and ahead of the front so far."""
        worlds = np.repeat(np.log(self.guesses[at])[None], DRAWS, axis=0)
        for k in self._open:
            worlds[:, :, k] += self._residual(z, looks, k).draw(at, DRAWS, doubt, rng)
        worlds[~self._holding(z, looks, at, doubt, rng)] = _NEVER
        found = self._logs(looks, members(looks))
        counts = np.zeros(len(at))
        for world in worlds:
            ahead = np.flatnonzero((_lead(world, found) > RESOLVED) & (world[:, 0] < _NEVER))
            counts[ahead[_undominated(world[ahead])]] += 1
        return counts

    def _holding(
        self, z: FloatArray, looks: Mapping[int, ParetoSample], at: np.ndarray, doubt: float, rng: np.random.Generator
    ) -> np.ndarray:
        """Return whether each point keeps up in each draw. Shape (DRAWS, len(at))."""
        seen = list(looks)
        mean, open_ = self.holds[at], _alike(z[at], z[at])
        if seen:
            off = np.array([1.0 if looks[i].holds else -1.0 for i in seen]) - self.holds[seen]
            across = _alike(z[at], z[seen])
            among = _alike(z[seen], z[seen]) + 0.01 * np.eye(len(seen))
            weights = np.linalg.solve(among, across.T).T
            mean, open_ = mean + weights @ off, open_ - weights @ across.T
        return np.asarray(normal_draws(mean, doubt**2 * open_, DRAWS, rng) > 0)


def _alike(a: FloatArray, b: FloatArray) -> FloatArray:
    """Return the covariance of whether points keep up. Shape (len(a), len(b))."""
    return np.asarray(_HOLD_SD**2 * (kernel(a, b, _HOLD_LENGTH, 0.0) - 1.0), np.float64)


def _lead(logs: FloatArray, found: FloatArray) -> FloatArray:
    """Return by how much each row is better than every row of `found` in its best objective; inf without any."""
    if not len(found):
        return np.full(len(logs), np.inf)
    return np.asarray((found[None] - logs[:, None]).max(axis=2).min(axis=1), np.float64)


def _undominated(logs: FloatArray) -> np.ndarray:
    """Return which rows no other row dominates; equal rows all count. Shape (n,)."""
    other = logs[None] - logs[:, None]  # [i, j]: how much worse j is than i
    beaten = np.all(other <= 0, axis=2) & np.any(other < 0, axis=2)
    return np.asarray(~np.any(beaten, axis=1))


CONSTRAINT = "keeps up and holds its limits"

PRUNED_KEY = "pruned"


class ParetoOptunaSampler(optuna.samplers.BaseSampler):
    """Proposes the points of a finite set, each once. exhausted: after a proposal that no drawn world asked for."""

    def __init__(self, guide: ParetoSampler, names: Sequence[str], points: Sequence[Params]) -> None:
        self._guide, self._names, self._points = guide, tuple(names), list(points)
        self._places = {params: i for i, params in enumerate(points)}
        self._space = space_of(names, points)
        self.exhausted = False

    def infer_relative_search_space(self, study: optuna.Study, trial: FrozenTrial) -> dict[str, Any]:  # noqa: ARG002
        """Return the distributions of all parameters."""
        return self._space

    def sample_relative(self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, Any]) -> dict[str, Any]:  # noqa: ARG002
        """Return the parameters of the next point."""
        looks, busy = self._told(study, trial)
        place = self._guide.choose(looks, busy)
        self.exhausted = place is None
        if place is None:
            place = next((i for i in range(len(self._points)) if i not in looks and i not in busy), 0)
        return dict(zip(self._names, self._points[place], strict=True))

    def sample_independent(self, study: Any, trial: Any, param_name: str, param_distribution: Any) -> Any:  # noqa: ARG002
        """Refuse a parameter that is not one of the front.

        Raises:
            ValueError: Always.
        """
        raise ValueError(f"a front is searched over its own parameters, not {param_name}")

    def _told(self, study: optuna.Study, own: FrozenTrial) -> tuple[dict[int, ParetoSample], set[int]]:
        """Return the looks of finished trials by point, in the order of their numbers, and the points of running ones.

        A trial that a dead process left is neither.
        """
        looks, busy = dict[int, ParetoSample](), set[int]()
        for trial in study.get_trials(deepcopy=False, states=(TrialState.COMPLETE, TrialState.RUNNING)):
            place = self._places.get(tuple(trial.params.get(name, "") for name in self._names))
            if place is None or trial.number == own.number:
                continue
            if trial.state == TrialState.RUNNING:
                if not is_abandoned(trial):
                    busy.add(place)
            elif place not in looks:
                slack = max(trial.constraints.values(), default=0.0)
                looks[place] = ParetoSample(tuple(trial.values), slack, 0, bool(trial.user_attrs.get(PRUNED_KEY)))
        return looks, busy - set(looks)
