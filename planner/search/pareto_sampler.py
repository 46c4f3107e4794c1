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
from itertools import compress
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
        n_requests: Simulated requests.
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

    @classmethod
    def of(cls, stored: Mapping[str, Any]) -> ParetoSample:
        """Return the sample that a study stored as JSON."""
        return cls(**{**stored, "values": tuple(stored["values"])})


def members(samples: Mapping[int, ParetoSample]) -> list[int]:
    """Return the indices on the front, in order of the first objective; of equal points, the first simulated."""
    first: dict[tuple[float, ...], int] = {}
    for i, sample in samples.items():
        if sample.holds and not sample.pruned:
            first.setdefault(sample.values, i)
    if not first:
        return []
    on_front = _undominated(np.array(list(first)))
    return [first[values] for values in sorted(compress(first, on_front))]


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

    def choose(self, samples: Mapping[int, ParetoSample], busy: Collection[int] = ()) -> int | None:
        """Return the point that is most likely on the front, or None; other workers simulate the points in `busy`.

        The result depends on the simulated points and the seed only, so a resumed search makes the same decisions.
        """
        free = np.ones(len(self.guesses), np.bool_)
        free[[*samples, *busy]] = False
        if not free.any():
            return None
        rng = np.random.default_rng([self.seed, len(samples), len(busy)])
        z = standard(self.features)
        at = self._short_list(z, samples, free)
        for doubt in DOUBTS:
            counts = self._counts(z, samples, at, doubt, rng)
            if counts.max() > 0:
                return int(at[np.argmax(counts + 0.01 * rng.random(len(at)))])
        if any(sample.holds for sample in samples.values()):
            return None
        return int(np.argmax(np.where(free, self.holds, -np.inf)))  # no point keeps up yet: the least loaded

    def _residual(self, z: FloatArray, samples: Mapping[int, ParetoSample], k: int) -> ResidualModel:
        seen = [i for i, sample in samples.items() if sample.holds]
        values = np.log(np.array([max(samples[i].values[k], 1e-12) for i in seen])) - np.log(self.guesses[seen, k])
        noise = np.array([SHORT_SD * samples[i].pruned for i in seen])
        return ResidualModel(z, seen, values, noise)

    def _short_list(self, z: FloatArray, samples: Mapping[int, ParetoSample], free: np.ndarray) -> np.ndarray:
        """Return the free points; if there are too many, those that may lie furthest ahead of the front."""
        at = np.flatnonzero(free)
        if len(at) <= SHORT_LIST:
            return at
        optimistic = np.log(self.guesses)
        for k in self._open:
            mean, sd = self._residual(z, samples, k).expect()
            optimistic[:, k] += mean - 2 * sd
        lead = _lead(optimistic[at], self._front_logs(samples)) - 2.0 * np.clip(-self.holds[at], 0.0, 1.0)
        return np.asarray(at[np.argsort(-lead, kind="stable")[:SHORT_LIST]])

    @property
    def _open(self) -> list[int]:
        return [k for k, known in enumerate(self.known) if not known]

    def _front_logs(self, samples: Mapping[int, ParetoSample]) -> FloatArray:
        """Return the logarithms of the values on the front so far. Shape (members, objectives)."""
        values = np.array([samples[i].values for i in members(samples)]).reshape(-1, len(self.known))
        return np.asarray(np.log(np.maximum(values, 1e-12)), np.float64)

    def _counts(
        self, z: FloatArray, samples: Mapping[int, ParetoSample], at: np.ndarray, doubt: float, rng: np.random.Generator
    ) -> FloatArray:
        """Return in how many draws each point of `at` is on the front and ahead of the front so far."""
        worlds = np.repeat(np.log(self.guesses[at])[None], DRAWS, axis=0)
        for k in self._open:
            worlds[:, :, k] += self._residual(z, samples, k).draw(at, DRAWS, doubt, rng)
        worlds[~self._holding(z, samples, at, doubt, rng)] = _NEVER
        found = self._front_logs(samples)
        counts = np.zeros(len(at))
        for world in worlds:
            ahead = np.flatnonzero((_lead(world, found) > RESOLVED) & (world[:, 0] < _NEVER))
            counts[ahead[_undominated(world[ahead])]] += 1
        return counts

    def _holding(
        self, z: FloatArray, samples: Mapping[int, ParetoSample], at: np.ndarray, doubt: float, rng: np.random.Generator
    ) -> np.ndarray:
        """Return whether each point keeps up in each draw. Shape (DRAWS, len(at))."""
        seen = list(samples)
        mean, open_ = self.holds[at], _alike(z[at], z[at])
        if seen:
            off = np.array([1.0 if samples[i].holds else -1.0 for i in seen]) - self.holds[seen]
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


_CONSTRAINT: Final = "keeps up and holds its limits"

_PRUNED: Final = "pruned"


class ParetoOptunaSampler(optuna.samplers.BaseSampler):
    """Proposes the points of a finite set, each once; `exhausted` is set if no draw had the last proposal ahead."""

    def __init__(self, guide: ParetoSampler, names: Sequence[str], points: Sequence[Params]) -> None:
        self._guide, self._names, self._points = guide, tuple(names), list(points)
        self._indices = {params: i for i, params in enumerate(points)}
        self._space = space_of(names, points)
        self.exhausted = False

    def infer_relative_search_space(self, study: optuna.Study, trial: FrozenTrial) -> dict[str, Any]:  # noqa: ARG002
        """Return the distributions of all parameters."""
        return self._space

    def sample_relative(self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, Any]) -> dict[str, Any]:  # noqa: ARG002
        """Return the parameters of the next point."""
        samples, busy = self._samples(study, trial)
        index = self._guide.choose(samples, busy)
        self.exhausted = index is None
        if index is None:
            index = next((i for i in range(len(self._points)) if i not in samples and i not in busy), 0)
        return dict(zip(self._names, self._points[index], strict=True))

    def sample_independent(self, study: Any, trial: Any, param_name: str, param_distribution: Any) -> Any:  # noqa: ARG002
        """Refuse a parameter that is not one of the front.

        Raises:
            ValueError: Always.
        """
        raise ValueError(f"a front is searched over its own parameters, not {param_name}")

    def tell(self, study: optuna.Study, trial: optuna.Trial, sample: ParetoSample) -> None:
        """Report a sample to Optuna: finite values of every objective, and the slack as a constraint."""
        trial.set_constraint(_CONSTRAINT, min(sample.slack, 1e9))
        if sample.pruned:
            trial.set_user_attr(_PRUNED, True)
        study.tell(trial, [min(v, 1e12) for v in sample.values])

    def _samples(self, study: optuna.Study, own: FrozenTrial) -> tuple[dict[int, ParetoSample], set[int]]:
        """Return the samples of finished trials by point, in the order of the trials, and the points of running trials.

        A trial that a dead process left is neither.
        """
        samples, busy = dict[int, ParetoSample](), set[int]()
        for trial in study.get_trials(deepcopy=False, states=(TrialState.COMPLETE, TrialState.RUNNING)):
            index = self._indices.get(tuple(trial.params.get(name, "") for name in self._names))
            if index is None or trial.number == own.number:
                continue
            if trial.state == TrialState.RUNNING:
                busy |= set() if is_abandoned(trial) else {index}
            elif index not in samples:
                slack = max(trial.constraints.values(), default=0.0)
                samples[index] = ParetoSample(tuple(trial.values), slack, 0, bool(trial.user_attrs.get(_PRUNED)))
        return samples, busy - set(samples)
