"""Comparison of estimators on held-out rows of whole models; a report needs nothing else.

`study(rows)` compares the estimators of estimators.py by cross-validation that holds out whole (model, workload, batch)
configurations, and again by one that holds out whole models, which is harder. Within each fold the estimator is chosen
by a second, inner cross-validation of the same kind on the training rows, so the errors of CHOSEN are independent of
the rows on which they are measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Final

import numpy as np
import pandas as pd

from calibration.fitting.scores import EstimatorScore, log_rmse, score
from calibration.profile.session.tables import CLEAN_SHARE
from calibration.whole_models.estimators import NAMES, Estimator, estimator
from calibration.whole_models.folds import Fold, grouped_folds, groups
from calibration.whole_models.intervals import interval_coverage, interval_factor
from calibration.whole_models.regression_terms import LENGTHS, NEEDED
from catalogs.errors import InputError

CHOSEN: Final = "chosen"  # the name of the nested choice among the estimators

#: Rows that cross-validation needs at least. A judgement: with fewer, a fold would hold out about three rows or less.
FEWEST: Final = 20

#: Folds of the cross-validation. A judgement: each holds out a sixth of the configurations.
FOLDS: Final = 6

#: Folds of the inner cross-validation that chooses the estimator. A judgement of cost: it runs within each outer fold.
INNER_FOLDS: Final = 3

#: Number of the worst rows that a study names.
WORST: Final = 10

#: Orders in which a column is shuffled in each fold, over which its importance is averaged. A judgement of
#: cost: each predicts the held-out rows of the fold again.
SHUFFLES: Final = 3


@dataclass(frozen=True, slots=True)
class PredictionTarget:
    """A column to predict; `r2_goal` is the intended R2 on held-out configurations, if any.

    `title` names it in sentences, and `short` in tables of a terminal.
    """

    name: str
    title: str
    short: str
    unit: str
    r2_goal: float | None = None


TARGETS: Final = (
    PredictionTarget("total_s", "Latency of a whole generation", "latency", "s", 0.95),
    PredictionTarget("prefill_s", "Time to the first token", "first token", "s", 0.95),
    PredictionTarget("decode_s_per_token", "Time per further token", "per token", "s", 0.95),
    PredictionTarget("peak_memory_bytes", "Peak memory", "peak memory", "B", 0.98),
    PredictionTarget("bandwidth_bytes_per_s", "Achieved bandwidth", "bandwidth", "B/s"),
)


@dataclass(frozen=True, slots=True)
class OutOfFoldPredictions:
    """Out-of-fold predictions of one target, with groups held out by `by` ("configuration" or "model").

    Attributes:
        by: The key of folds.BY that defines the groups.
        predictions: One row per used row (index into WholeModelStudy.rows) with columns key, model, architecture,
            workload, batch, input_tokens, output_tokens, group, fold, actual, and one column per estimator and CHOSEN.
            These hold the prediction of a fit to rows of other groups.
        scores: One score per estimator and CHOSEN; the one with the least error of logarithms is first.
        worst: The WORST rows of `predictions` by relative error of CHOSEN, with column error.
        interval_factor: The factor of the interval around a prediction for a new group; see intervals.py.
        interval_coverage: The share of rows in an interval from the other groups alone, or None for too few groups.
    """

    by: str
    predictions: pd.DataFrame
    scores: tuple[EstimatorScore, ...]
    worst: pd.DataFrame
    interval_factor: float
    interval_coverage: float | None

    def score(self, name: str = CHOSEN) -> EstimatorScore:
        """Return the score of an estimator, by default of the nested choice."""
        return next(s for s in self.scores if s.estimator == name)

    @property
    def best(self) -> str:
        """Return the name of the estimator with the least error of logarithms."""
        return next(s.estimator for s in self.scores if s.estimator != CHOSEN)


@dataclass(frozen=True, slots=True)
class ColumnImportance:
    """Error of logarithms that is added when a column of held-out rows is shuffled: mean and spread over shuffles.

    The rows are predicted by the winner, fitted without them. Work columns follow from the lengths, so their importance
    must be read together with that of the lengths and not as a cause.
    """

    feature: str
    added_error: float
    spread: float


@dataclass(frozen=True, slots=True)
class TargetStudy:
    """The study of one target.

    A predictor uses the best estimator on held-out configurations for models that were measured, and the best on
    held-out models for others. `by_model` is None where only one model was measured.
    """

    target: PredictionTarget
    by_configuration: OutOfFoldPredictions
    by_model: OutOfFoldPredictions | None
    importance: tuple[ColumnImportance, ...]

    @property
    def winner(self) -> str:
        """Return the best estimator on held-out configurations."""
        return self.by_configuration.best

    def held_out(self, by: str) -> OutOfFoldPredictions | None:
        """Return the predictions with groups held out by `by`, a key of folds.BY."""
        return self.by_configuration if by == "configuration" else self.by_model

    @property
    def met(self) -> bool | None:
        """Return whether CHOSEN reaches the goal for R2 on held-out configurations, or None where there is no goal."""
        goal = self.target.r2_goal
        return None if goal is None else self.by_configuration.score().r2 >= goal


@dataclass(frozen=True, slots=True)
class WholeModelStudy:
    """The results of a study.

    `rows` are all rows of the session as made by `table.frame`, including skipped and failed ones. `used` are the
    measured rows that were studied, without contended ones where enough others remain. `notes` are sentences about the
    rows that were left out.
    """

    rows: pd.DataFrame
    used: pd.DataFrame
    targets: tuple[TargetStudy, ...]
    notes: tuple[str, ...]


def study(
    rows: pd.DataFrame, estimators: Sequence[str] = NAMES, targets: Sequence[PredictionTarget] = TARGETS
) -> WholeModelStudy:
    """Compare the estimators on held-out rows of a session (table.read_rows).

    The result is deterministic: equal rows give equal results.

    Raises:
        InputError: If there are fewer than FEWEST measured rows.
    """
    used, notes = usable(rows)
    found, missing = [], []
    for target in targets:
        mine = used[used[target.name].notna() & (used[target.name] > 0)]
        if len(mine) < FEWEST:
            missing.append(f"{target.title}: not studied, because only {len(mine)} rows hold it")
            continue
        found.append(_study_target(mine, target, estimators))
    return WholeModelStudy(rows, used, tuple(found), (*notes, *missing))


def usable(rows: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
    """Select the rows to fit.

    Returns:
        The rows, and sentences about the rows that were left out.

    Raises:
        InputError: If a column is missing, or there are fewer than FEWEST measured rows.
    """
    ok = rows[rows["status"] == "ok"]
    lacking = [c for c in NEEDED if c not in rows]
    if lacking:
        raise InputError("these rows are not rows of whole models: a column is missing", lacking[0])
    if len(ok) < FEWEST:
        raise InputError(f"a study requires at least {FEWEST} measured rows", len(ok), hint="give a longer --budget")
    clean = ok[~ok["contended"].astype(bool)]
    n = len(ok) - len(clean)
    notes = [f"{len(rows) - len(ok)} of {len(rows)} points were skipped or failed"] if len(rows) > len(ok) else []
    if n == 0:
        return ok, notes
    enough = len(clean) >= max(CLEAN_SHARE * len(ok), FEWEST)
    end = " and left out" if enough else ", which are too many to leave out"
    notes.append(f"{n} of {len(ok)} measured rows were disturbed by other processes{end}")
    return clean if enough else ok, notes


def _study_target(rows: pd.DataFrame, target: PredictionTarget, estimators: Sequence[str]) -> TargetStudy:
    folds = grouped_folds(rows, "configuration", FOLDS)
    ours = _held_out(rows, target.name, estimators, "configuration", folds)
    by_model = None
    if rows["model"].nunique() > 1:
        by_model = _held_out(rows, target.name, estimators, "model", grouped_folds(rows, "model", FOLDS))
    return TargetStudy(target, ours, by_model, _importance(rows, target.name, ours.best, folds))


def _held_out(
    rows: pd.DataFrame, target: str, names: Sequence[str], by: str, folds: Sequence[Fold]
) -> OutOfFoldPredictions:
    out = rows[["key", "model", "architecture", "workload", *LENGTHS]].copy()
    out["group"], out["actual"] = groups(rows, by), rows[target].to_numpy(np.float64)
    fold_of, columns = np.zeros(len(rows), dtype=np.int64), {n: np.zeros(len(rows)) for n in (*names, CHOSEN)}
    for number, (train, test) in enumerate(folds):
        fold_of[test] = number
        best = choose_estimator(rows.iloc[train], target, names, by)
        for name in names:
            columns[name][test] = _fitted(rows.iloc[train], target, name).predict(rows.iloc[test])
        columns[CHOSEN][test] = columns[best][test]
    out["fold"] = fold_of
    out = out.assign(**columns)
    actual = out["actual"].to_numpy(np.float64)
    scored = sorted(columns, key=lambda n: log_rmse(actual, columns[n]))
    error = np.abs(columns[CHOSEN] / actual - 1.0)
    worst = out.assign(error=error).sort_values("error", ascending=False).head(WORST)
    in_groups = actual, columns[CHOSEN], out["group"].to_numpy(np.str_)
    scores = tuple(score(n, actual, columns[n]) for n in scored)
    return OutOfFoldPredictions(by, out, scores, worst, interval_factor(*in_groups), interval_coverage(*in_groups))


def choose_estimator(rows: pd.DataFrame, target: str, names: Sequence[str] = NAMES, by: str = "configuration") -> str:
    """Return the estimator with the least error by cross-validation on these rows alone.

    Whole configurations are held out, or whole models where `by` is "model" and the rows are of several models.
    """
    if len(names) == 1:
        return names[0]
    folds = grouped_folds(rows, by if rows["model"].nunique() > 1 else "configuration", INNER_FOLDS, seed=1)
    found = pd.DataFrame(0.0, index=range(len(rows)), columns=list(names))
    for (train, test), name in product(folds, names):
        found.loc[test, name] = _fitted(rows.iloc[train], target, name).predict(rows.iloc[test])
    actual = rows[target].to_numpy(np.float64)
    return min(names, key=lambda n: log_rmse(actual, found[n].to_numpy()))


def _fitted(train: pd.DataFrame, target: str, name: str) -> Estimator:
    model = estimator(name, target)
    model.fit(train, train[target].to_numpy(np.float64))
    return model


def _importance(rows: pd.DataFrame, target: str, name: str, folds: Sequence[Fold]) -> tuple[ColumnImportance, ...]:
    """Return the permutation importance of columns on held-out rows, most important first."""
    rng = np.random.default_rng(0)
    features = [c for c in NEEDED if rows[c].nunique() > 1]
    added: dict[str, list[float]] = {c: [] for c in features}
    for train, test in folds:
        model, held = _fitted(rows.iloc[train], target, name), rows.iloc[test]
        actual = held[target].to_numpy(np.float64)
        base = log_rmse(actual, model.predict(held))
        for column, _ in product(features, range(SHUFFLES)):
            mixed = held.assign(**{column: rng.permutation(held[column].to_numpy())})
            added[column].append(log_rmse(actual, model.predict(mixed)) - base)
    found = [ColumnImportance(c, float(np.mean(v)), float(np.std(v))) for c, v in added.items()]
    return tuple(sorted(found, key=lambda i: -i.added_error))
