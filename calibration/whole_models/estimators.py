"""Four estimators that predict a positive target of a point from its row."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import numpy as np
import pandas as pd

from calibration.families.nonnegative import nonnegative
from calibration.whole_models.regression_terms import PHYSICS, log_features, physical_terms
from catalogs.arrays import FloatArray
from catalogs.errors import InputError

TREES: Final = 100

STAGES: Final = 200

#: Candidates of (kernel length in standard deviations of the features, ridge), compared on the training rows.
SMOOTH: Final = (*((3.0, 0.01), (3.0, 0.1), (6.0, 0.01), (6.0, 0.1), (12.0, 0.01), (12.0, 0.1), (12.0, 1.0)),)


class Estimator(Protocol):
    """Fits a positive target to rows with the NEEDED columns and predicts it for other rows."""

    def fit(self, rows: pd.DataFrame, target: FloatArray) -> None:
        """Fit the estimator to the target of each row, Shape (rows,)."""
        ...

    def predict(self, rows: pd.DataFrame) -> FloatArray:
        """Return the predicted target of each row, Shape (rows,)."""
        ...

    def facts(self) -> dict[str, Any]:
        """Return the fitted parameters that can be written down."""
        ...


@dataclass(slots=True)
class LogTrees:
    """Trees of scikit-learn that predict the target's logarithm from log features, as used in the literature.

    They cannot extrapolate beyond the targets of their training rows.
    """

    model: Any
    settings: dict[str, Any]

    def fit(self, rows: pd.DataFrame, target: FloatArray) -> None:
        """Fit the estimator to the target of each row, Shape (rows,)."""
        self.model.fit(log_features(rows), np.log(target))

    def predict(self, rows: pd.DataFrame) -> FloatArray:
        """Return the predicted target of each row, Shape (rows,)."""
        return np.asarray(np.exp(self.model.predict(log_features(rows))), dtype=np.float64)

    def facts(self) -> dict[str, Any]:
        """Return the settings; fitted trees cannot be written down."""
        return self.settings


@dataclass(slots=True)
class LinearPhysics:
    """Linear model with non-negative weights of physical terms, such as seconds per operation, per byte and per call.

    The weights minimise relative errors.
    """

    target_name: str
    weights: FloatArray = field(default_factory=lambda: np.zeros(0))

    def fit(self, rows: pd.DataFrame, target: FloatArray) -> None:
        """Fit the estimator to the target of each row, Shape (rows,)."""
        self.weights = nonnegative(physical_terms(rows, self.target_name), target)

    def predict(self, rows: pd.DataFrame) -> FloatArray:
        """Return the predicted target of each row, Shape (rows,)."""
        return np.maximum(physical_terms(rows, self.target_name) @ self.weights, 1e-12)

    def facts(self) -> dict[str, Any]:
        """Return the fitted parameters that can be written down."""
        return {"weights": dict(zip(PHYSICS[self.target_name], self.weights.tolist(), strict=True))}


@dataclass(slots=True)
class UtilisationEstimator:
    """Linear physics times a smooth factor that interpolates the utilisation reached by measured points.

    The logarithm of actual over physics is a kernel ridge regression (squared exponential over standardised log
    features), which falls back to the physics far from every measured point. Kernel length and ridge minimise the
    leave-one-out error, computed in closed form on the training rows alone. `points` has Shape (rows, features),
    `factors` Shape (rows,).
    """

    target_name: str
    physics: LinearPhysics = field(init=False)
    mean: FloatArray = field(init=False)
    scale: FloatArray = field(init=False)
    points: FloatArray = field(init=False)
    factors: FloatArray = field(init=False)
    length: float = 0.0
    ridge: float = 0.0

    def fit(self, rows: pd.DataFrame, target: FloatArray) -> None:
        """Fit the estimator to the target of each row, Shape (rows,)."""
        self.physics = LinearPhysics(self.target_name)
        self.physics.fit(rows, target)
        residual = np.log(target / self.physics.predict(rows))
        x = log_features(rows).to_numpy(np.float64)
        spread, self.mean = x.std(axis=0), x.mean(axis=0)
        self.scale = np.where(spread > 1e-9, spread, np.inf)  # a constant feature carries no information
        self.points = (x - self.mean) / self.scale
        tried = [(self._leave_one_out(length, ridge, residual), length, ridge) for length, ridge in SMOOTH]
        _, self.length, self.ridge = min(tried)
        k = _kernel(self.points, self.points, self.length)
        self.factors = np.asarray(np.linalg.solve(k + self.ridge * np.eye(len(k)), residual), dtype=np.float64)

    def _leave_one_out(self, length: float, ridge: float, residual: FloatArray) -> float:
        inverse = np.linalg.inv(_kernel(self.points, self.points, length) + ridge * np.eye(len(residual)))
        return float(np.mean(((inverse @ residual) / np.diag(inverse)) ** 2))

    def predict(self, rows: pd.DataFrame) -> FloatArray:
        """Return the predicted target of each row, Shape (rows,)."""
        x = (log_features(rows).to_numpy(np.float64) - self.mean) / self.scale
        return self.physics.predict(rows) * np.exp(_kernel(x, self.points, self.length) @ self.factors)

    def facts(self) -> dict[str, Any]:
        """Return the fitted parameters that can be written down."""
        return self.physics.facts() | {"kernel_length": self.length, "ridge": self.ridge}


@dataclass(slots=True)
class PerSecond:
    """Estimator of a rate as its work over predicted seconds, so a rate is exactly as predictable as the latency."""

    seconds: Estimator

    def fit(self, rows: pd.DataFrame, target: FloatArray) -> None:
        """Fit the estimator to the target of each row, Shape (rows,)."""
        self.seconds.fit(rows, rows["least_bytes"].to_numpy(np.float64) / target)

    def predict(self, rows: pd.DataFrame) -> FloatArray:
        """Return the predicted target of each row, Shape (rows,)."""
        return rows["least_bytes"].to_numpy(np.float64) / self.seconds.predict(rows)

    def facts(self) -> dict[str, Any]:
        """Return the fitted parameters that can be written down."""
        return {"work": "least_bytes", "seconds": self.seconds.facts()}


NAMES: Final = ("random forest", "gradient boosting", "linear physics", "utilisation")


def estimator(name: str, target: str) -> Estimator:
    """Return a new, unfitted estimator by its name, for a target of `study.TARGETS`.

    Raises:
        InputError: If the estimator needs scikit-learn, and it is not installed.
    """
    if target == "bandwidth_bytes_per_s" and name in ("linear physics", "utilisation"):
        return PerSecond(estimator(name, "total_s"))
    if name in ("linear physics", "utilisation"):
        return LinearPhysics(target) if name == "linear physics" else UtilisationEstimator(target)
    try:
        from sklearn.ensemble import GradientBoostingRegressor, RandomForestRegressor
    except ImportError as error:
        raise InputError(f"{name} needs scikit-learn: pip install '.[calibration]'", str(error)) from None

    if name == "random forest":
        return LogTrees(RandomForestRegressor(TREES, max_features=0.5, random_state=0), {"trees": TREES})
    boosting = GradientBoostingRegressor(
        n_estimators=STAGES, learning_rate=0.08, max_depth=3, subsample=0.7, max_features=0.5, random_state=0
    )
    return LogTrees(boosting, {"stages": STAGES})


def _kernel(a: FloatArray, b: FloatArray, length: float) -> FloatArray:
    gap = np.maximum(np.sum(a**2, axis=1)[:, None] + np.sum(b**2, axis=1)[None, :] - 2.0 * a @ b.T, 0.0)
    return np.asarray(np.exp(-0.5 * gap / length**2), dtype=np.float64)
