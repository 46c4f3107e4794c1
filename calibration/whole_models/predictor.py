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
from calibration.whole_models.regression_terms import NEEDED
from calibration.whole_models.study import OutOfFoldPredictions, WholeModelStudy, usable
from catalogs.arrays import FloatArray
from catalogs.errors import InputError
from catalogs.io.output_files import write_json

PREDICTOR_NAME: Final = "predictor.json"

SCHEMA_VERSION: Final = 2

DIGITS: Final = 9  # significant digits of hashed numbers, which are equal in CSV and parquet files


class NoPredictorError(InputError):
    """A folder of rows holds no predictor, or one of other rows; a study of the rows writes it."""


@dataclass(frozen=True, slots=True)
class Predictor:
    """The fitted estimator of each target.

    Attributes:
        fitted: The estimators, by the name of the target.
        used: The rows to which they are fitted.
        facts: The document of predictor.json.
        by: "configuration" for models among the rows, "model" for others; a key of folds.BY.
    """

    fitted: dict[str, Estimator]
    used: pd.DataFrame
    facts: dict[str, Any]
    by: str

    def held_out(self, target: str) -> dict[str, Any]:
        """Return the errors of a target on rows of groups that the fit had not seen, as predictor.json holds them."""
        found: dict[str, Any] = self.facts["targets"][target][HELD_OUT[self.by]]
        return found

    def winner(self, target: str) -> str:
        """Return the name of the estimator of a target."""
        return str(self.held_out(target)["winner"])

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


#: Keys of predictor.json for the errors on held-out groups, by the key of folds.BY.
HELD_OUT: Final = {"configuration": "held_out_configurations", "model": "held_out_models"}


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
                "learned": fitted(found.used, t.target.name, t.winner).facts(),
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


def load(folder: Path, by: str = "configuration") -> Predictor:
    """Return the predictor of a folder, refitted from its rows.

    Args:
        folder: The folder of a session.
        by: "configuration" to predict models among the rows, "model" to predict others.

    Raises:
        NoPredictorError: If there is no predictor, or the rows are not those on which it was chosen.
        InputError: If the rows cannot be read, or are of one model only and another is to be predicted.
    """
    try:
        facts = json.loads((folder / PREDICTOR_NAME).read_text(encoding="utf-8"))
        version = facts["schema_version"]
    except (OSError, ValueError, KeyError, TypeError):
        rule = "no predictor of whole models in this folder"
        raise NoPredictorError(rule, str(folder), hint="run calibrate models --predict-only") from None
    used, _ = usable(table.read_rows(folder))
    if rows_hash(used) != facts.get("rows_sha256") or version != SCHEMA_VERSION:
        rule = "the rows or the program changed since the predictor was chosen"
        raise NoPredictorError(rule, str(folder), hint="give --predict-only")
    return refitted(facts, used, by)


def refitted(facts: dict[str, Any], used: pd.DataFrame, by: str) -> Predictor:
    """Return the predictor that a document describes, fitted to the rows on which it was chosen.

    Raises:
        InputError: If the rows are of one model only and another is to be predicted.
    """
    targets = facts["targets"]
    if any(t[HELD_OUT[by]] is None for t in targets.values()):
        only = ", ".join(sorted(used["model"].unique()))
        raise InputError("the rows are of one model, so no other can be predicted", only, hint="measure more models")
    models = {name: fitted(used, name, str(t[HELD_OUT[by]]["winner"])) for name, t in targets.items()}
    return Predictor(models, used, facts, by)


def fitted(used: pd.DataFrame, target: str, name: str) -> Estimator:
    """Return an estimator by its name, fitted to all rows that hold the target."""
    mine = used[used[target].notna() & (used[target] > 0)]
    model = estimator(name, target)
    model.fit(mine, mine[target].to_numpy(np.float64))
    return model


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
        "winner": found.best,
        "interval_factor": _rounded(found.interval_factor),
        "interval_coverage": None if found.interval_coverage is None else _rounded(found.interval_coverage),
        "scores": [{name: _rounded(value) for name, value in s.to_dict().items()} for s in found.scores],
        "worst": [{str(name): _rounded(value) for name, value in row.items()} for row in worst],
    }


def _rounded(value: Any) -> Any:
    """Return a number with six digits, None for one that is not finite, and a text as it is."""
    if isinstance(value, str):
        return value
    return float(f"{value:.6g}") if np.isfinite(value) else None
