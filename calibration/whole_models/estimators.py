"""Four ways to predict a positive target of a point from its row."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np

from calibration.families.nonnegative import nonnegative
from calibration.whole_models.features import PHYSICS, log_features, physical_terms
from catalogs.arrays import FloatArray

if TYPE_CHECKING:
    import pandas as pd


TREES: Final = 100

STAGES: Final = 200

SMOOTH: Final = (  # (length of the kernel in standard deviations of the features, ridge), tried on the training rows
    *((3.0, 0.01), (3.0, 0.1), (6.0, 0.01), (6.0, 0.1), (12.0, 0.01), (12.0, 0.1), (12.0, 1.0)),
)


class Estimator(Protocol):
    """Fits rows of NEEDED columns to a positive target; predicts it for other rows."""

    def fit(self, rows: pd.DataFrame, target: FloatArray) -> None: ...

    def predict(self, rows: pd.DataFrame) -> FloatArray: ...

    def facts(self) -> dict[str, Any]:
        """What it learned, readable, as far as it can be written down."""
        ...


@dataclass(slots=True)
class Forest:
    """Random forest of the logarithm over log features: what the literature uses. Cannot go beyond what it saw."""

    model: Any = None

    def fit(self, rows: pd.DataFrame, target: FloatArray) -> None:
        from sklearn.ensemble import RandomForestRegressor

        self.model = RandomForestRegressor(TREES, max_features=0.5, random_state=0)
        self.model.fit(log_features(rows), np.log(target))

    def predict(self, rows: pd.DataFrame) -> FloatArray:
        found: FloatArray = np.exp(self.model.predict(log_features(rows)))
        return found

    def facts(self) -> dict[str, Any]:
        return {"trees": TREES}


@dataclass(slots=True)
class Boosting:
    """Gradient-boosted trees of the logarithm over log features."""

    model: Any = None

    def fit(self, rows: pd.DataFrame, target: FloatArray) -> None:
        from sklearn.ensemble import GradientBoostingRegressor

        self.model = GradientBoostingRegressor(
            n_estimators=STAGES, learning_rate=0.08, max_depth=3, subsample=0.7, max_features=0.5, random_state=0
        )
        self.model.fit(log_features(rows), np.log(target))

    def predict(self, rows: pd.DataFrame) -> FloatArray:
        found: FloatArray = np.exp(self.model.predict(log_features(rows)))
        return found

    def facts(self) -> dict[str, Any]:
        return {"stages": STAGES}


@dataclass(slots=True)
class LinearPhysics:
    """Non-negative weights of physical terms, fitted to relative errors: seconds per operation, per byte, per call."""

    target_name: str
    weights: FloatArray = field(default_factory=lambda: np.zeros(0))

    def fit(self, rows: pd.DataFrame, target: FloatArray) -> None:
        self.weights = nonnegative(physical_terms(rows, self.target_name), target)

    def predict(self, rows: pd.DataFrame) -> FloatArray:
        found: FloatArray = np.maximum(physical_terms(rows, self.target_name) @ self.weights, 1e-12)
        return found

    def facts(self) -> dict[str, Any]:
        return {"weights": dict(zip(PHYSICS[self.target_name], self.weights.tolist(), strict=True))}


@dataclass(slots=True)
class UtilisationEstimator:
    """Physics times a smooth factor: how much of what the physics promises this kind of point gets, interpolated.

    The logarithm of actual over physics is a kernel ridge (squared exponential over standardised log features), which
    falls back to the physics far from every measured point. Kernel length and ridge by leave-one-out error, in closed
    form, on the training rows alone.
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
        self.physics = LinearPhysics(self.target_name)
        self.physics.fit(rows, target)
        residual = np.log(target / self.physics.predict(rows))
        x = log_features(rows).to_numpy(np.float64)
        spread = _floats(x.std(axis=0))
        self.mean = _floats(x.mean(axis=0))
        self.scale = _floats(np.where(spread > 1e-9, spread, np.inf))  # a feature that never changed says nothing
        self.points = _floats((x - self.mean) / self.scale)
        tried = [(self._leave_one_out(length, ridge, residual), length, ridge) for length, ridge in SMOOTH]
        _, self.length, self.ridge = min(tried)
        k = _kernel(self.points, self.points, self.length)
        self.factors = _floats(np.linalg.solve(k + self.ridge * np.eye(len(k)), residual))

    def _leave_one_out(self, length: float, ridge: float, residual: FloatArray) -> float:
        inverse = np.linalg.inv(_kernel(self.points, self.points, length) + ridge * np.eye(len(residual)))
        return float(np.mean(((inverse @ residual) / np.diag(inverse)) ** 2))

    def predict(self, rows: pd.DataFrame) -> FloatArray:
        x = (log_features(rows).to_numpy(np.float64) - self.mean) / self.scale
        found: FloatArray = self.physics.predict(rows) * np.exp(_kernel(x, self.points, self.length) @ self.factors)
        return found

    def facts(self) -> dict[str, Any]:
        return self.physics.facts() | {"kernel_length": self.length, "ridge": self.ridge}


@dataclass(slots=True)
class PerSecond:
    """A rate as its work over predicted seconds: bandwidth is as predictable as the latency, no more."""

    seconds: Estimator

    def fit(self, rows: pd.DataFrame, target: FloatArray) -> None:
        self.seconds.fit(rows, rows["least_bytes"].to_numpy(np.float64) / target)

    def predict(self, rows: pd.DataFrame) -> FloatArray:
        found: FloatArray = rows["least_bytes"].to_numpy(np.float64) / self.seconds.predict(rows)
        return found

    def facts(self) -> dict[str, Any]:
        return {"work": "least_bytes", "seconds": self.seconds.facts()}


NAMES: Final = ("random forest", "gradient boosting", "linear physics", "utilisation")


def estimator(name: str, target: str) -> Estimator:
    """A new, unfitted estimator of a target of study.TARGETS."""
    if target == "bandwidth_bytes_per_s" and name in ("linear physics", "utilisation"):
        return PerSecond(estimator(name, "total_s"))
    makers: dict[str, Callable[[], Estimator]] = {
        "random forest": Forest,
        "gradient boosting": Boosting,
        "linear physics": lambda: LinearPhysics(target),
        "utilisation": lambda: UtilisationEstimator(target),
    }
    return makers[name]()


def _floats(values: Any) -> FloatArray:
    found: FloatArray = np.asarray(values, dtype=np.float64)
    return found


def _kernel(a: FloatArray, b: FloatArray, length: float) -> FloatArray:
    gap = np.maximum(np.sum(a**2, axis=1)[:, None] + np.sum(b**2, axis=1)[None, :] - 2.0 * a @ b.T, 0.0)
    found: FloatArray = np.exp(-0.5 * gap / length**2)
    return found
