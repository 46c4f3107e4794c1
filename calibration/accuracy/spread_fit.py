"""Learns stated errors from whole runs: the spread of each engine and statistic, and how it differs between regimes.

The intervals are conformal: the k-th of n scores stands at level k / (n + 1), rounded outwards. One more exchangeable
run then lies between levels a and b with a probability of at least b - a, for levels that n runs reach (Vovk et al.
2005; Lei et al. 2018). The scores are scaled by the spread of each run ("locally weighted"; Lei et al. 2018, section
5.2).

**Factors of regimes.** Each engine has runs of a few models only, so a spread of its own for each generation and kind
of layers would follow the models that happen to be in it. The factor of a regime is therefore shrunk twice, as in a
hierarchical model (Gelman et al., Bayesian Data Analysis, chapter 5): what runs of all engines show of similar
statistics counts by n / (n + SHARED_MODELS), with n the models in that regime, and how one engine differs from it by
n / (n + OWN_MODELS). Without a model in it, a regime has the spread of all runs.

**Widening.** Runs of one model resemble each other, so runs of another model lie outside the interval more often than
exchangeable runs would. `widening` leaves each model out and returns by how much all intervals must grow to hold.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from calibration.accuracy.regime import UNKNOWN, Regime
from calibration.accuracy.stated_error import COVERAGE, LEVELS, Group, spread_of
from catalogs.arrays import BoolArray, FloatArray

#: Fewest runs whose order statistics reach 5 and 95 % (levels 1/20 and 19/20). With fewer runs, a Student's t interval
#: for one more run is used.
LEAST_CONFORMAL: Final = 19

#: Models in a regime from which its shared factor counts by half. A judgement: each engine has closed-loop runs of
#: three to six models only (docs/accuracy.md); `python benchmarks/stated_error.py` checks the coverage of models that
#: were left out.
SHARED_MODELS: Final = 4

#: Models of one engine in a regime from which the difference from the shared factor counts by half. A judgement: twice
#: as many, because a difference of two factors is less certain than one; checked as `SHARED_MODELS`.
OWN_MODELS: Final = 8

#: Quantile of the learned waiting shares below which a share counts as that quantile. A judgement: hardly any run shows
#: the error there.
_LEAST_WAITING: Final = 0.05

#: Least spread of the logarithm that a fit may find. A judgement: equal runs would otherwise give an infinite
#: likelihood.
_LEAST_SPREAD: Final = 0.01

#: Least ratio of the deviations of a regime to those of all runs. A judgement against the logarithm of 0.
_LEAST_RATIO: Final = 0.05

#: The properties of a regime that have factors, in the order in which they are learned.
_PROPERTIES: Final = ("generation", "layers")

#: Statistics of which a regime has the same shared factor.
_SIMILAR: Final = {"tpot": "token", "itl": "token", "e2e": "token", "power": "power", "j_per_token": "power"}


@dataclass(frozen=True, slots=True, eq=False)
class RunSet:
    """Whole runs of one engine and statistic.

    Attributes:
        engine: The engine of all runs.
        metric: The statistic.
        source: The origin of the runs.
        log_ratios: log(measured / simulated). Shape (n,).
        operator_errors: Expected error of each run from its operators alone. Shape (n,).
        waiting_shares: Share of each statistic that is waiting, of shape (n,); None: the error does not depend on it.
        operator_weight: Weight of the operator errors in the spread of a run.
        regimes: The regime of each run; empty: not known.
        models: The model of each run; empty: not known.
    """

    engine: str
    metric: Any
    source: str
    log_ratios: FloatArray
    operator_errors: FloatArray
    waiting_shares: FloatArray | None = None
    operator_weight: float = 1.0
    regimes: tuple[Regime, ...] = ()
    models: tuple[str, ...] = ()

    @property
    def n(self) -> int:
        """Return the number of runs."""
        return len(self.log_ratios)

    def values(self, name: str) -> list[str]:
        """Return a property of the regime of each run; "" where it is not known."""
        return [getattr(regime, name) for regime in self.regimes] or [""] * self.n

    def weights(self) -> FloatArray:
        """Return the weight of each run in a factor: runs of one model in one regime count as the root of their number.

        They are neither independent nor all the same. Shape (n,).
        """
        cells = list(zip(self.models or [""] * self.n, self.regimes or [UNKNOWN] * self.n, strict=True))
        counts = Counter(cells)
        return np.array([counts[cell] ** -0.5 for cell in cells])

    def picked(self, kept: BoolArray) -> RunSet:
        """Return the set with the kept runs only. `kept` has shape (n,)."""
        numbers = np.flatnonzero(kept).tolist()
        return replace(
            self,
            log_ratios=self.log_ratios[kept],
            operator_errors=self.operator_errors[kept],
            waiting_shares=None if self.waiting_shares is None else self.waiting_shares[kept],
            regimes=tuple(self.regimes[i] for i in numbers) if self.regimes else (),
            models=tuple(self.models[i] for i in numbers) if self.models else (),
        )


def fit_group(
    engine: str,
    metric: Any,
    log_ratios: FloatArray,
    operator_errors: FloatArray,
    source: str,
    waiting_shares: FloatArray | None = None,
    operator_weight: float = 1.0,
) -> Group:
    """Return the group of runs of unknown regimes; the arguments are those of a `RunSet`, with arrays of shape (n,).

    Raises:
        ValueError: There are fewer than 2 runs.
    """
    return fit([RunSet(engine, metric, source, log_ratios, operator_errors, waiting_shares, operator_weight)])[0]


def fit(sets: Sequence[RunSet], widen: float = 1.0) -> list[Group]:
    """Return the groups of sets of runs, whose regimes share factors.

    With fewer than LEAST_CONFORMAL runs, the scores of a group are those of a Student's t prediction interval.

    Args:
        sets: One for each engine and statistic.
        widen: Factor on the scores of sets with at least LEAST_CONFORMAL runs, see `widening`.

    Raises:
        ValueError: A set has fewer than 2 runs.
    """
    spreads = [_Spread.of(runs) for runs in sets]
    found: list[Group] = []
    for runs, about_all, factors in zip(sets, spreads, _factors(sets, spreads), strict=True):
        of_runs = _run_factors(runs, factors)
        spread = replace(about_all, centre=float(np.median(runs.log_ratios / of_runs)))
        at = _scores_at_levels(spread.scores(runs, of_runs), runs.n, widen)
        kept = {name: round(getattr(spread, name), 4) for name in ("centre", "typical", "waiting", "least_waiting")}
        kept |= {f"by_{name}": {key: round(f, 4) for key, f in factors[name].items()} for name in _PROPERTIES}
        kept["n_by_regime"] = dict(sorted(Counter(r.key for r in runs.regimes if r.key).items()))
        about = {"engine": runs.engine, "metric": runs.metric, "n": runs.n, "source": runs.source}
        found.append(Group(**about, **kept, operator_weight=runs.operator_weight, scores=at))
    return found


def widening(sets: Sequence[RunSet]) -> float:
    """Return the least factor, at least 1, on all scores with which intervals of level COVERAGE hold for new models.

    Each model is left out of all sets in turn. A set counts the same whatever its number of runs. The factor is 1
    where no set has several models.
    """
    needed: list[FloatArray] = []
    weights: list[FloatArray] = []
    for model in sorted({model for runs in sets for model in runs.models}):
        others = [runs.picked(np.array([m != model for m in runs.models], dtype=bool)) for runs in sets]
        pairs = [(runs, rest) for runs, rest in zip(sets, others, strict=True) if rest.n >= LEAST_CONFORMAL]
        for (runs, _), group in zip(pairs, fit([rest for _, rest in pairs]), strict=True):
            mine = runs.picked(np.array([m == model for m in runs.models], dtype=bool))
            needed.append(_distances(mine, group))
            weights.append(np.full(mine.n, 1.0 / runs.n))
    if not needed:
        return 1.0
    all_needed, all_weights = np.concatenate(needed), np.concatenate(weights)
    order = np.argsort(all_needed)
    shares = np.cumsum(all_weights[order]) / all_weights.sum()
    return max(1.0, float(all_needed[order][np.searchsorted(shares, COVERAGE)]))


def _distances(runs: RunSet, group: Group) -> FloatArray:
    """Return how far runs lie from the centre of their group, over the end of its interval there. Shape (n,)."""
    shares = np.ones(runs.n) if runs.waiting_shares is None else runs.waiting_shares
    ends = np.interp([(1 - COVERAGE) / 2, (1 + COVERAGE) / 2], LEVELS, group.scores)
    factors = np.array([group.factor(regime) for regime in runs.regimes or [UNKNOWN] * runs.n])
    spreads = spread_of(
        group.typical,
        group.waiting,
        np.clip(shares, group.least_waiting, 1.0),
        group.operator_weight * runs.operator_errors,
    )
    scores = (runs.log_ratios / factors - group.centre) / np.maximum(spreads, 1e-9)
    low, high = min(float(ends[0]), -1e-9), max(float(ends[1]), 1e-9)
    return np.asarray(np.where(scores < 0, scores / low, scores / high), dtype=np.float64)


# ---- the spread of one set


@dataclass(frozen=True, slots=True, eq=False)
class _Spread:
    """The parameters of the spread of a set, and the spread of each run before its factor, of shape (n,)."""

    centre: float
    typical: float
    waiting: float
    least_waiting: float
    of_runs: FloatArray

    @classmethod
    def of(cls, runs: RunSet) -> _Spread:
        if runs.n < 2:
            raise ValueError(f"{runs.engine} {runs.metric}: {runs.n} runs are too few to estimate a spread")
        centre, weighted = float(np.median(runs.log_ratios)), runs.operator_weight * runs.operator_errors
        deviations = np.abs(runs.log_ratios - centre)
        few = runs.n < LEAST_CONFORMAL
        if runs.waiting_shares is None or few:
            typical = float(np.std(runs.log_ratios, ddof=1)) if few else float(np.median(deviations))
            return cls(centre, typical, 0.0, 0.0, spread_of(typical, 0.0, 0.0, weighted))
        least = float(np.quantile(runs.waiting_shares, _LEAST_WAITING))
        shares = np.maximum(runs.waiting_shares, least)
        typical, waiting = _spread_by_waiting(deviations, weighted, shares)
        return cls(centre, typical, waiting, least, spread_of(typical, waiting, shares, weighted))

    def scores(self, runs: RunSet, factors: FloatArray) -> FloatArray:
        """Return the score of every run, given the factor of its regime. Shapes (n,)."""
        found: FloatArray = (runs.log_ratios / factors - self.centre) / np.maximum(self.of_runs, 1e-9)
        return found


def _scores_at_levels(scores: FloatArray, n: int, widen: float) -> tuple[float, ...]:
    """Return the scores at LEVELS that hold for one more run."""
    scores, levels = np.sort(scores), np.array(LEVELS)
    if n < LEAST_CONFORMAL:
        from scipy.stats import t

        at = scores.mean() + t.ppf(levels, n - 1) * scores.std(ddof=1) * math.sqrt(1.0 + 1.0 / n)
    else:
        exact = levels * (n + 1)
        rank = np.where(levels < 0.5, np.floor(exact + 1e-9), np.ceil(exact - 1e-9))
        at = scores[np.clip(rank, 1, n).astype(np.int64) - 1]
        at[levels == 0.5] = 0.0  # the centre is the median
        at = at * widen
    return tuple(round(float(s), 4) for s in at)


def _spread_by_waiting(deviations: FloatArray, operator_errors: FloatArray, shares: FloatArray) -> tuple[float, float]:
    """Return the `typical` and the `waiting` of a group of runs, all arguments of shape (n,).

    They have the largest likelihood if the logarithms have a Laplace distribution, whose tails are heavier than those
    of a normal one. The growth with waiting is never negative, so a longer queue never narrows an interval.
    """
    from scipy.optimize import minimize

    def negative_log_likelihood(found: FloatArray) -> tuple[float, FloatArray]:
        base = found[0] + found[1] * shares
        spreads = np.hypot(base, operator_errors)
        slope = (1.0 - deviations / spreads) * base / spreads**2  # derivative by `base`
        return float(np.mean(np.log(spreads) + deviations / spreads)), np.array([slope.mean(), (slope * shares).mean()])

    mean = max(float(deviations.mean()), _LEAST_SPREAD)
    starts = ((mean, 0.0), (mean / 2, mean / 2 / max(float(shares.mean()), 1e-9)), (_LEAST_SPREAD, mean))
    bounds = ((_LEAST_SPREAD, None), (0.0, None))
    fits = [minimize(negative_log_likelihood, start, method="L-BFGS-B", jac=True, bounds=bounds) for start in starts]
    best = min(fits, key=lambda fit: float(fit.fun))
    return float(best.x[0]), float(best.x[1])


# ---- the factors of regimes

_Factors = dict[str, dict[str, float]]  # by property of a regime, and its value


def _factors(sets: Sequence[RunSet], spreads: Sequence[_Spread]) -> list[_Factors]:
    """Return the factors of each set."""
    found: list[_Factors] = [{name: {} for name in _PROPERTIES} for _ in sets]
    kinds = [_SIMILAR.get(runs.metric, runs.metric) for runs in sets]
    learned = [i for i, runs in enumerate(sets) if runs.regimes and runs.n >= LEAST_CONFORMAL]
    for name in _PROPERTIES:
        for kind in dict.fromkeys(kinds[i] for i in learned):
            mine = [i for i in learned if kinds[i] == kind]
            parts = [_Deviations.of(sets[i], spreads[i], _run_factors(sets[i], found[i]), name) for i in mine]
            for i, factors in zip(mine, _shrunk(parts), strict=True):
                found[i][name] = factors
    return found


def _run_factors(runs: RunSet, factors: _Factors) -> FloatArray:
    """Return the factor of every run. Shape (n,)."""
    found = np.ones(runs.n)
    for name, by_value in factors.items():
        found *= [by_value.get(value, 1.0) for value in runs.values(name)]
    return found


@dataclass(frozen=True, slots=True, eq=False)
class _Deviations:
    """The deviations of a set over the mean of all of its runs, with their weights, by one property of the regime."""

    relative: FloatArray
    weights: FloatArray
    values: FloatArray
    models: FloatArray

    @classmethod
    def of(cls, runs: RunSet, spread: _Spread, factors: FloatArray, name: str) -> _Deviations:
        deviations, weights = np.abs(spread.scores(runs, factors)), runs.weights()
        relative = deviations / max(float(np.average(deviations, weights=weights)), 1e-9)
        return cls(relative, weights, np.array(runs.values(name)), np.array(runs.models or [""] * runs.n))

    def at(self, value: str) -> _Deviations:
        here = self.values == value
        return _Deviations(self.relative[here], self.weights[here], self.values[here], self.models[here])


def _shrunk(parts: Sequence[_Deviations]) -> list[dict[str, float]]:
    """Return the factors of each set by value: what all sets show, times how the set differs from it, both shrunk."""
    factors: list[dict[str, float]] = [{} for _ in parts]
    for value in sorted({str(value) for part in parts for value in part.values} - {""}):
        here = [part.at(value) for part in parts]
        shared = _log_factor(here, 0.0, SHARED_MODELS)
        for own, by_value in zip(here, factors, strict=True):
            by_value[value] = math.exp(shared + _log_factor([own], shared, OWN_MODELS))
    return factors


def _log_factor(parts: Sequence[_Deviations], beyond: float, models: int) -> float:
    """Return the logarithm of the mean deviation less `beyond`, shrunk by the number of models; 0 without runs."""
    relative, weights = (np.concatenate([getattr(part, name) for part in parts]) for name in ("relative", "weights"))
    if not len(relative):
        return 0.0
    n = len({str(model) for part in parts for model in part.models})
    return n / (n + models) * (math.log(max(float(np.average(relative, weights=weights)), _LEAST_RATIO)) - beyond)
