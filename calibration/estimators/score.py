"""The errors of one estimator on unseen rows."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from calibration.fitting.scores import r_squared
from calibration.rows.dataset import OPERATOR_COLUMNS
from catalogs.arrays import FloatArray

#: Number of the worst rows that a score names.
N_WORST: Final = 3


@dataclass(frozen=True, slots=True)
class HeldOutScore:
    """Scores of one estimator on one region of a family.

    Relative errors are predicted / measured - 1; r2 is of seconds, r2_log of their logarithms. median_streamed is the
    median relative error over rows with operands larger than the second-level cache, NaN where there is none. The other
    rows were timed from the cache, which does not happen in an engine's step, and the shipped model does not follow
    them on purpose.
    """

    family: str
    estimator: str
    region: str  # "inside" or "beyond", see validate.py
    n: int
    mae_s: float
    rmse_s: float
    r2: float
    r2_log: float
    mape: float
    median_abs: float
    p90_abs: float
    bias: float
    median_streamed: float
    worst: list[dict[str, Any]]

    def to_dict(self) -> dict[str, Any]:
        """Return the scores as JSON data; values that are not finite become null."""
        return {k: None if isinstance(v, float) and not np.isfinite(v) else v for k, v in asdict(self).items()}


def score(
    label: tuple[str, str, str], rows: pd.DataFrame, predicted_s: FloatArray, streamed: npt.NDArray[np.bool_]
) -> HeldOutScore:
    """Score predictions, where `label` is (family, estimator, region).

    `rows`, `predicted_s` and `streamed` have n > 0 entries, the arrays shape (n,).
    """
    measured = rows.seconds.to_numpy(float)
    error = predicted_s / measured - 1.0
    size, difference = np.abs(error), predicted_s - measured
    return HeldOutScore(
        *label,
        n=len(rows),
        mae_s=float(np.abs(difference).mean()),
        rmse_s=float(np.sqrt((difference**2).mean())),
        r2=r_squared(measured, predicted_s),
        r2_log=r_squared(np.log(measured), np.log(predicted_s)),
        mape=float(size.mean()),
        median_abs=float(np.median(size)),
        p90_abs=float(np.quantile(size, 0.9)),
        bias=float(np.median(error)),
        median_streamed=float(np.median(size[streamed])) if streamed.any() else float("nan"),
        worst=[_worst(label[0], rows.iloc[int(i)], predicted_s[i]) for i in np.argsort(-size, kind="stable")[:N_WORST]],
    )


def _worst(family: str, row: pd.Series[Any], predicted_s: float) -> dict[str, Any]:
    shape = {c: row[c].item() if isinstance(row[c], np.generic) else row[c] for c in OPERATOR_COLUMNS[family]}
    plain = {c: int(v) if isinstance(v, float) and v.is_integer() else v for c, v in shape.items()}
    return {"shape": plain, "measured_s": float(row["seconds"]), "predicted_s": float(predicted_s)}
