"""The predictor that results from a study: predictor.json, in the folder of the rows from which it is refitted on use.

The fitted trees themselves are not stored, because a pickle runs code when it is read and depends on the version of the
library, and arrays of a hundred trees are not readable. The rows are few and are kept anyway. Fitting them takes
seconds and gives the same predictor every time (fixed seeds). The JSON document holds the best estimator for each
target, its held-out errors, its weights where it has weights, and the hash of the rows, by which a refit from other
rows is detected.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd

from calibration.whole_models import table
from calibration.whole_models.estimators import Estimator, estimator
from calibration.whole_models.features import NEEDED
from calibration.whole_models.study import OutOfFoldPredictions, WholeModelStudy, usable
from catalogs.arrays import FloatArray
from catalogs.errors import InputError
from catalogs.io.output_files import write_json

PREDICTOR_NAME: Final = "predictor.json"

SCHEMA_VERSION: Final = 1

DIGITS: Final = 9  # significant digits of hashed numbers, which are equal in CSV and parquet files


@dataclass(frozen=True, slots=True)
class Predictor:
    """The fitted estimator of each target."""

    fitted: dict[str, Estimator]

    def predict(self, rows: pd.DataFrame) -> dict[str, FloatArray]:
        """Predict every target for rows with the columns features.NEEDED and least_bytes, as by `collect.candidate`.

        Returns:
            One array per target, Shape (rows,).

        Raises:
            InputError: If a column is missing.
        """
        lacking = [c for c in (*NEEDED, "least_bytes") if c not in rows]
        if lacking:
            raise InputError("rows to predict lack a column", lacking[0])
        return {name: model.predict(rows) for name, model in self.fitted.items()}


def document(found: WholeModelStudy) -> dict[str, Any]:
    """Return the document of predictor.json and of the option --json."""
    n = {s: int((found.rows["status"] == s).sum()) for s in ("ok", "skipped", "oom", "error")}
    return {
        "schema_version": SCHEMA_VERSION,
        "rows": n | {"used": len(found.used)},
        "rows_sha256": rows_hash(found.used),
        "notes": list(found.notes),
        "targets": {
            t.target.name: {
                "title": t.target.title,
                "unit": t.target.unit,
                "winner": t.winner,
                "learned": fit(found.used, {t.target.name: t.winner}).fitted[t.target.name].facts(),
                "reach_r2": t.target.r2_goal,
                "met": t.met,
                "held_out_configurations": _held(t.by_configuration),
                "held_out_models": _held(t.by_model) if t.by_model is not None else None,
                "importance": [{"feature": i.feature, "added_error": _rounded(i.added_error)} for i in t.importance],
            }
            for t in found.targets
        },
    }


def save(found: WholeModelStudy, folder: Path) -> Path:
    """Write predictor.json into the folder of the rows and return its path.

    Raises:
        InputError: If the file cannot be written.
    """
    write_json(document(found), str(folder / PREDICTOR_NAME))
    return folder / PREDICTOR_NAME


def load(folder: Path) -> Predictor:
    """Return the predictor of a folder, refitted from its rows.

    Raises:
        InputError: If there is no predictor, or the rows are not those on which it was chosen.
    """
    try:
        facts = json.loads((folder / PREDICTOR_NAME).read_text(encoding="utf-8"))
        winners = {name: str(t["winner"]) for name, t in facts["targets"].items()}
    except (OSError, ValueError, KeyError, TypeError):
        rule = "no predictor of whole models in this folder"
        raise InputError(rule, str(folder), hint="run calibrate models --predict-only") from None
    used, _ = usable(table.read_rows(folder))
    if rows_hash(used) != facts.get("rows_sha256"):
        raise InputError("the rows changed since the predictor was chosen", str(folder), hint="give --predict-only")
    return fit(used, winners)


def fit(used: pd.DataFrame, winners: dict[str, str]) -> Predictor:
    """Fit an estimator for each target to all rows that hold the target.

    Args:
        used: Rows to fit.
        winners: Name of the estimator, by target.
    """
    fitted = {}
    for target, name in winners.items():
        mine = used[used[target].notna() & (used[target] > 0)]
        fitted[target] = estimator(name, target)
        fitted[target].fit(mine, mine[target].to_numpy(np.float64))
    return Predictor(fitted)


def rows_hash(rows: pd.DataFrame) -> str:
    """Return the SHA-256 of the keys and measured values of rows, in the order of the keys."""
    wanted = ["key", "total_s", "prefill_s", "decode_s_per_token", "peak_memory_bytes"]
    lines = (
        f"{key} " + " ".join(f"{v:.{DIGITS}g}" for v in values)
        for key, *values in rows[wanted].sort_values("key").itertuples(index=False)
    )
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _held(found: OutOfFoldPredictions) -> dict[str, Any]:
    worst = found.worst[["key", "actual", "chosen", "error"]].to_dict("records")
    return {
        "scores": [{name: _rounded(value) for name, value in s.to_dict().items()} for s in found.scores],
        "worst": [{str(name): _rounded(value) for name, value in row.items()} for row in worst],
    }


def _rounded(value: Any) -> Any:
    """Return a number with six digits, None for one that is not finite, and a text as it is."""
    if isinstance(value, str):
        return value
    return float(f"{value:.6g}") if np.isfinite(value) else None
