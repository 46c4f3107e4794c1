"""The predictor a study ends in: predictor.json, readable, beside the rows it is refitted from on use.

Why not the fitted trees themselves: a pickle runs code when it is read and breaks with the library's version, and
arrays of a hundred trees say nothing to a reader. The rows are few, are kept anyway, and fit in seconds to the same
predictor every time (fixed seeds). The JSON holds which estimator won for each target, its held-out errors, its weights
where it has some, and the hash of the rows, so that nobody refits from others unnoticed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from calibration.whole_models import table
from calibration.whole_models.estimators import Estimator, estimator
from calibration.whole_models.features import NEEDED
from calibration.whole_models.study import OutOfFoldPredictions, TargetStudy, WholeModelStudy, usable
from catalogs.arrays import FloatArray
from catalogs.errors import InputError
from catalogs.io.output_files import write_json

if TYPE_CHECKING:
    import pandas as pd


PREDICTOR_NAME: Final = "predictor.json"

SCHEMA_VERSION: Final = 1

DIGITS: Final = 9  # of numbers that are hashed: CSV and parquet agree on these


@dataclass(frozen=True, slots=True)
class Predictor:
    """Fitted estimators by target."""

    fitted: dict[str, Estimator]

    def predict(self, rows: pd.DataFrame) -> dict[str, FloatArray]:
        """Target -> one value per row, for rows with the columns features.NEEDED and least_bytes, as
        collect.candidate makes them. InputError where one is missing."""
        lacking = [c for c in (*NEEDED, "least_bytes") if c not in rows]
        if lacking:
            raise InputError("rows to predict lack a column", lacking[0])
        return {name: model.predict(rows) for name, model in self.fitted.items()}


def document(found: WholeModelStudy) -> dict[str, Any]:
    """What predictor.json and --json hold."""
    n = {s: int((found.rows["status"] == s).sum()) for s in ("ok", "skipped", "oom", "error")}
    return {
        "schema_version": SCHEMA_VERSION,
        "rows": n | {"used": len(found.used)},
        "rows_sha256": rows_hash(found.used),
        "notes": list(found.notes),
        "targets": {t.target.name: _target(t, found.used) for t in found.targets},
    }


def save(found: WholeModelStudy, folder: Path) -> Path:
    """Write predictor.json into the folder of the rows. InputError where it cannot be written."""
    write_json(document(found), str(folder / PREDICTOR_NAME))
    return folder / PREDICTOR_NAME


def load(folder: Path) -> Predictor:
    """The predictor of a folder, refitted from its rows. InputError where there is none, or the rows are not those the
    predictor was chosen on."""
    try:
        facts = json.loads((folder / PREDICTOR_NAME).read_text(encoding="utf-8"))
        winners = {name: str(t["winner"]) for name, t in facts["targets"].items()}
    except (OSError, ValueError, KeyError, TypeError):
        raise InputError("no predictor of whole models here", str(folder), "calibrate models --predict-only") from None
    used, _ = usable(table.read_rows(folder))
    if rows_hash(used) != facts.get("rows_sha256"):
        raise InputError("the rows changed since the predictor was chosen", str(folder), "--predict-only, to refit")
    return fit(used, winners)


def fit(used: pd.DataFrame, winners: dict[str, str]) -> Predictor:
    """Estimators fitted to all rows that hold their target."""
    fitted = {}
    for target, name in winners.items():
        mine = used[used[target].notna() & (used[target] > 0)]
        fitted[target] = estimator(name, target)
        fitted[target].fit(mine, mine[target].to_numpy(np.float64))
    return Predictor(fitted)


def rows_hash(rows: pd.DataFrame) -> str:
    """SHA-256 of keys and measured values, in the order of the keys."""
    wanted = ["key", "total_s", "prefill_s", "decode_s_per_token", "peak_memory_bytes"]
    lines = (
        f"{key} " + " ".join(f"{v:.{DIGITS}g}" for v in values)
        for key, *values in rows[wanted].sort_values("key").itertuples(index=False)
    )
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _target(t: TargetStudy, used: pd.DataFrame) -> dict[str, Any]:
    facts = fit(used, {t.target.name: t.winner}).fitted[t.target.name].facts()
    return {
        "title": t.target.title,
        "unit": t.target.unit,
        "winner": t.winner,
        "learned": facts,
        "reach_r2": t.target.reach,
        "met": t.met,
        "held_out_configurations": _held(t.by_configuration),
        "held_out_models": _held(t.by_model) if t.by_model is not None else None,
        "importance": [{"feature": i.feature, "added_error": _number(i.added_error)} for i in t.importance],
    }


def _held(found: OutOfFoldPredictions) -> dict[str, Any]:
    columns = ("key", "actual", "chosen", "error")
    worst: Sequence[Any] = list(found.worst[list(columns)].itertuples(index=False))
    return {
        "scores": [{k: v if isinstance(v, str) else _number(v) for k, v in s.to_dict().items()} for s in found.scores],
        "worst": [{c: v if isinstance(v, str) else _number(v) for c, v in zip(columns, w, strict=True)} for w in worst],
    }


def _number(value: float) -> float | None:
    return float(f"{value:.6g}") if np.isfinite(value) else None
