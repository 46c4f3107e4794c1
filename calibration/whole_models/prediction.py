"""Latency and peak memory of a model that need not have been measured, from the rows of a session on this machine.

A model among the rows is predicted by the estimators that were best on held-out configurations, and its errors are
those on configurations that the fit had not seen. Any other model is predicted by the estimators that were best on
held-out models, and its errors are those on models that the fit had not seen.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd

from calibration.profile.session import manifest
from calibration.whole_models.folds import groups
from calibration.whole_models.intervals import CONFIDENCE
from calibration.whole_models.physics import MachineRates, architecture, known_columns
from calibration.whole_models.predictor import Predictor
from calibration.whole_models.regression_terms import log_features
from calibration.whole_models.study import CHOSEN, TARGETS, PredictionTarget
from calibration.whole_models.subjects import model_name
from calibration.whole_models.workloads import FEWEST_OUTPUT, OWN_OUTPUT, Point, workload_named
from catalogs.arrays import FloatArray
from catalogs.errors import InputError
from catalogs.models.catalog import load_model
from catalogs.models.spec import ModelSpec
from catalogs.ui.charts import si_text
from catalogs.ui.words import gigabytes

NEAREST: Final = 3  # measured rows that are shown

#: Columns in which a point is compared with the range of the measured rows, and their names in a notice.
RANGES: Final = {
    "batch": "batch",
    "input_tokens": "input tokens",
    "output_tokens": "output tokens",
    "params": "parameters",
    "prefill_flops": "operations of the prefill",
    "kv_cache_bytes": "bytes of KV cache",
}

BEYOND: Final = 1.01  # factor beyond the range that counts as outside of it


@dataclass(frozen=True, slots=True)
class PredictionQuestion:
    """The model and the point to predict."""

    spec: ModelSpec
    point: Point


@dataclass(frozen=True, slots=True)
class TargetPrediction:
    """The prediction of one target with its 90 % interval.

    `errors` holds the errors on held-out rows and `coverage` the share of these in an interval that follows from the
    others; it is None where there were too few groups.
    """

    target: PredictionTarget
    value: float
    low: float
    high: float
    estimator: str
    errors: Mapping[str, Any]
    coverage: float | None


@dataclass(frozen=True, slots=True)
class WholeModelPrediction:
    """The answer of `calibrate predict`.

    Attributes:
        question: What was predicted.
        columns: The columns of the row that the point would have.
        measured_model: Whether the model is among the rows.
        targets: The predictions.
        nearest: The measured rows that are most similar, most similar first, with column `distance`.
        used: The rows to which the estimators are fitted.
        machine: The machine on which the rows were measured.
        notices: Sentences about extrapolation and memory.
    """

    question: PredictionQuestion
    columns: Mapping[str, Any]
    measured_model: bool
    targets: tuple[TargetPrediction, ...]
    nearest: pd.DataFrame
    used: pd.DataFrame
    machine: MachineRates
    notices: tuple[str, ...]


def question(
    model: str, workload: str, batch: int, input_tokens: int | None = None, output_tokens: int | None = None
) -> PredictionQuestion:
    """Return the question for a model by name or path, with the workload's typical lengths where none are given.

    Raises:
        InputError: If the model or the workload is unknown, or a number is too small.
    """
    chosen = workload_named(workload)
    prompt = chosen.typical_input if input_tokens is None else input_tokens
    output = chosen.output_tokens(prompt, OWN_OUTPUT) if output_tokens is None else output_tokens
    for name, value, least in (("batch", batch, 1), ("input", prompt, 1), ("output", output, FEWEST_OUTPUT)):
        if value < least:
            raise InputError(f"the {name} must be at least {least}", value, str(least))
    spec = load_model(model)
    return PredictionQuestion(spec, Point(model_name(model, spec), chosen.name, batch, prompt, output))


def session_rates(folder: Path) -> MachineRates:
    """Return the rates of the machine on which a session was measured.

    Raises:
        InputError: If the manifest lacks them, because an older version wrote it.
    """
    facts = (manifest.read(folder) or {}).get("roofline")
    if not isinstance(facts, dict):
        hint = f"continue the session: calibrate models --out {folder}"
        raise InputError("the manifest of this session lacks the rates of its machine", str(folder), hint=hint)
    try:
        return MachineRates(**facts)
    except TypeError:
        raise InputError("the rates in the manifest of this session are damaged", str(folder)) from None


def scheme(rows: pd.DataFrame, asked: PredictionQuestion) -> str:
    """Return "configuration" where the model is among the measured rows with the same sizes, else "model"."""
    mine = rows[(rows["model"] == asked.point.model) & (rows["status"] == "ok")]
    return "configuration" if (mine["params"] == asked.spec.n_params).any() else "model"


def predict(asked: PredictionQuestion, predictor: Predictor, machine: MachineRates) -> WholeModelPrediction:
    """Predict every target of a point."""
    used = predictor.used
    columns = known_columns(asked.spec, asked.point, machine, str(used["dtype"].iloc[0]))
    row = pd.DataFrame([columns])
    values = predictor.predict(row)
    targets = tuple(
        _with_interval(t, float(values[t.name][0]), predictor) for t in TARGETS if t.name in predictor.fitted
    )
    distances, usual = _distances(used, row, predictor.by)
    order = np.argsort(distances, kind="stable")[:NEAREST]
    nearest = used.iloc[order].assign(distance=distances[order])
    notices = [*_beyond(used, columns), *_unlike(asked.spec, used)]
    if not notices and distances[order[0]] > usual:
        notices = ["extrapolates: no row is as near as held-out rows were to others, so the interval may be too narrow"]
    notices += _memory(targets, machine) + _positions(asked) + _disturbed(used)
    known = predictor.by == "configuration"
    return WholeModelPrediction(asked, columns, known, targets, nearest, used, machine, tuple(notices))


def document(found: WholeModelPrediction, folder: Path) -> dict[str, Any]:
    """Return the answer as JSON data."""
    point, used = found.question.point, found.used
    shown = ["key", "total_s", "prefill_s", "decode_s_per_token", "peak_memory_bytes", "distance"]
    return {
        "schema_version": 1,
        "model": point.model,
        "architecture": architecture(found.question.spec),
        "workload": point.workload,
        "batch": point.batch,
        "input_tokens": point.input_tokens,
        "output_tokens": point.output_tokens,
        "dtype": found.columns["dtype"],
        "measured_model": found.measured_model,
        "held_out": "configurations" if found.measured_model else "models",
        "confidence": CONFIDENCE,
        "predictions": {
            t.target.name: {
                "title": t.target.title,
                "unit": t.target.unit,
                "value": t.value,
                "low": t.low,
                "high": t.high,
                "estimator": t.estimator,
                "errors": dict(t.errors),
                "interval_coverage": t.coverage,
            }
            for t in found.targets
        },
        "nearest": [
            {name: None if isinstance(v, float) and np.isnan(v) else v for name, v in row.items()}
            for row in found.nearest[shown].to_dict("records")
        ],
        "rows": {
            "folder": str(folder),
            "machine": found.machine.full_name,
            "used": len(used),
            "models": sorted(used["model"].unique()),
        },
        "notices": list(found.notices),
    }


def _with_interval(target: PredictionTarget, value: float, predictor: Predictor) -> TargetPrediction:
    held = predictor.held_out(target.name)
    factor = float(held["interval_factor"])
    errors = next(s for s in held["scores"] if s["estimator"] == CHOSEN)
    winner = predictor.winner(target.name)
    return TargetPrediction(target, value, value / factor, value * factor, winner, errors, held["interval_coverage"])


def _distances(used: pd.DataFrame, row: pd.DataFrame, by: str) -> tuple[FloatArray, float]:
    """Return the distance of a row from each used row, and the largest that a used row has to those of other groups.

    Features are logarithms, in standard deviations of the used rows. The first result has Shape (rows,).
    """
    x = log_features(used).to_numpy(np.float64)
    mean, spread = x.mean(axis=0), x.std(axis=0)
    varies = spread > 1e-9
    points = ((x - mean) / np.where(varies, spread, 1.0))[:, varies]
    mine = ((log_features(row).to_numpy(np.float64) - mean) / np.where(varies, spread, 1.0))[:, varies]
    labels = np.array(groups(used, by))
    usual = [
        float(np.min(np.linalg.norm(points[labels != label] - point, axis=1)))
        for label, point in zip(labels.tolist(), points, strict=True)
    ]
    return np.asarray(np.linalg.norm(points - mine, axis=1), dtype=np.float64), max(usual)


def _beyond(used: pd.DataFrame, columns: Mapping[str, Any]) -> list[str]:
    """Return a notice that names the sizes outside the range of the measured rows."""
    outside = []
    for column, name in RANGES.items():
        low, high, value = float(used[column].min()), float(used[column].max()), float(columns[column])
        if not low / BEYOND <= value <= high * BEYOND:
            outside.append(f"{_count(value)} {name} (measured: {_count(low)} to {_count(high)})")
    if not outside:
        return []
    return [f"extrapolates: {'; '.join(outside)}; the interval was checked within the measured range only"]


def _count(value: float) -> str:
    """Return a count as text: "4,000", "1.5 T"."""
    return f"{value:,.0f}" if value < 1e5 else si_text(value, "").strip()


def _unlike(spec: ModelSpec, used: pd.DataFrame) -> list[str]:
    """Return notices about an architecture of which no row was measured."""
    found = []
    if architecture(spec) not in set(used["architecture"]):
        found.append(f"extrapolates: no {architecture(spec)} model was measured")
    if any(g.idle_params(spec.hidden_size) > 0 for g in spec.groups):
        found.append("extrapolates: weights of a mixture of experts are counted as read by one token, for any batch")
    return found


def _disturbed(used: pd.DataFrame) -> list[str]:
    """Return a notice where rows are used that were measured while other processes used the machine."""
    n = int(used["contended"].sum())
    return [f"{n} of {len(used)} rows were measured while other processes used the machine"] if n else []


def _memory(targets: Sequence[TargetPrediction], machine: MachineRates) -> list[str]:
    peak = next((t for t in targets if t.target.name == "peak_memory_bytes"), None)
    if peak is None or peak.value <= machine.memory_bytes:
        return []
    needed, there = gigabytes(peak.value), gigabytes(machine.memory_bytes)
    return [f"it does not fit: {needed} are needed, and the machine has {there}"]


def _positions(asked: PredictionQuestion) -> list[str]:
    """Return a notice where the sequence is longer than the model accepts."""
    most, point = asked.spec.max_position_tokens, asked.point
    longest = max(point.input_tokens, point.output_tokens)
    if not asked.spec.is_encoder_decoder:
        longest = point.input_tokens + point.output_tokens
    if not most or longest <= most:
        return []
    return [f"{point.model} accepts {most:,} tokens, and this point has {longest:,}"]
