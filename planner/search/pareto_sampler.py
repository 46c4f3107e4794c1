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
from planner.search.optuna_study import Params, is_abandoned, space_of

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

_LEAST: Final = 1e-12  # smaller values count as this in logarithms

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


def best_balance(front: Sequence[tuple[float, ...]]) -> int | None:
    """Return the position of the point of a front that is nearest to the best value of every objective.

    The logarithms of each objective are scaled from 0 at the best value on the front to 1 at the worst; the distance is
    Euclidean. Of equally near points, the first is returned; an empty front has none. This is the compromise solution
    of Yu, "A class of solutions for group decision problems", Management Science 19(8), 1973.
    """
    if not front:
        return None
    logs = np.log(np.maximum(np.array(front), _LEAST))
    least, spread = logs.min(axis=0), np.ptp(logs, axis=0)
    scaled = (logs - least) / np.where(spread > 0, spread, 1.0)
    return int(np.argmin(np.round(np.sqrt((scaled**2).sum(axis=1)), 12)))


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
        z, held = standard(self.features), [i for i, sample in samples.items() if sample.holds]
        residuals = {k: self._residual(z, samples, held, k) for k, known in enumerate(self.known) if not known}
        values = np.array([samples[i].values for i in members(samples)]).reshape(-1, len(self.known))
        front = np.asarray(np.log(np.maximum(values, _LEAST)), np.float64)
        at = np.flatnonzero(free)
        if len(at) > SHORT_LIST:
            at = self._short_list(at, residuals, front)
        keeps_up = self._keeps_up(z, samples, at)
        for doubt in DOUBTS:
            counts = np.zeros(len(at))
            for draw in self._posterior_draws(at, residuals, keeps_up, doubt, rng):
                ahead = np.flatnonzero((_lead(draw, front) > RESOLVED) & (draw[:, 0] < _NEVER))
                counts[ahead[_undominated(draw[ahead])]] += 1
            if counts.max() > 0:
                return int(at[np.argmax(counts + 0.01 * rng.random(len(at)))])
        return None if held else int(np.argmax(np.where(free, self.holds, -np.inf)))  # no point keeps up: least loaded

    def _residual(self, z: FloatArray, samples: Mapping[int, ParetoSample], held: list[int], k: int) -> ResidualModel:
        """Return the model of the error of the estimates of one objective."""
        values = np.log(np.array([max(samples[i].values[k], _LEAST) for i in held])) - np.log(self.guesses[held, k])
        return ResidualModel(z, held, values, np.array([SHORT_SD * samples[i].pruned for i in held]))

    def _short_list(self, at: np.ndarray, residuals: Mapping[int, ResidualModel], front: FloatArray) -> np.ndarray:
        """Return those points of `at` that may lie furthest ahead of the front."""
        optimistic = np.log(self.guesses)
        for k, residual in residuals.items():
            mean, sd = residual.expect()
            optimistic[:, k] += mean - 2 * sd
        lead = _lead(optimistic[at], front) - 2.0 * np.clip(-self.holds[at], 0.0, 1.0)
        return np.asarray(at[np.argsort(-lead, kind="stable")[:SHORT_LIST]])

    def _posterior_draws(
        self,
        at: np.ndarray,
        residuals: Mapping[int, ResidualModel],
        keeps_up: tuple[FloatArray, FloatArray],
        doubt: float,
        rng: np.random.Generator,
    ) -> FloatArray:
        """Return draws of the logarithms of all objectives. Shape (DRAWS, len(at), objectives)."""
        draws = np.repeat(np.log(self.guesses[at])[None], DRAWS, axis=0)
        for k, residual in residuals.items():
            draws[:, :, k] += residual.draw(at, DRAWS, doubt, rng)
        mean, covariance = keeps_up
        draws[normal_draws(mean, doubt**2 * covariance, DRAWS, rng) <= 0] = _NEVER
        return np.asarray(draws, np.float64)

    def _keeps_up(
        self, z: FloatArray, samples: Mapping[int, ParetoSample], at: np.ndarray
    ) -> tuple[FloatArray, FloatArray]:
        """Return mean and covariance of whether each point of `at` keeps up (above zero) or not."""
        seen = list(samples)
        mean, covariance = self.holds[at], _alike(z[at], z[at])
        if seen:
            off = np.array([1.0 if samples[i].holds else -1.0 for i in seen]) - self.holds[seen]
            across = _alike(z[at], z[seen])
            among = _alike(z[seen], z[seen]) + 0.01 * np.eye(len(seen))
            weights = np.linalg.solve(among, across.T).T
            mean, covariance = mean + weights @ off, covariance - weights @ across.T
        return mean, covariance


def _alike(a: FloatArray, b: FloatArray) -> FloatArray:
    """Return the covariance of whether points keep up. Shape (len(a), len(b))."""
    return np.asarray(_HOLD_SD**2 * (kernel(a, b, _HOLD_LENGTH, 0.0) - 1.0), np.float64)


def _lead(logs: FloatArray, found: FloatArray) -> FloatArray:
    """Return each row's smallest lead over the rows of `found`; infinite if there are none. Shape (n,).

    The lead over one row is that in the objective with the largest lead.
    """
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
    """Proposes the points of a finite set, each once.

    `exhausted` is set once no posterior draw puts an unsimulated point on the front.
    """

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
