"""Terminal output of whole-model measurements, of the errors of the predictors, and of one prediction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from rich.table import Table

from calibration.whole_models.physics import architecture
from calibration.whole_models.prediction import TargetPrediction, WholeModelPrediction
from calibration.whole_models.study import OutOfFoldPredictions, WholeModelStudy
from catalogs.ui.terminal import open_console, show_lines, text_table
from catalogs.ui.words import human_s, percent

HEAD = ("model", "batch", "measured", "skipped", "first token s", "per token ms", "peak GB", "GB/s", "GFLOP/s")

ERROR_HEAD = ("target", "left out", "best estimator", "R2", "MAE", "RMSE", "median", "p90", "worst")

PREDICTION_HEAD = ("predicted", "value", "90 % interval", "R2", "MAE", "RMSE", "median", "p90")

NEAREST_HEAD = ("nearest measured rows", "workload", "batch", "input", "output", "latency", "peak memory")


def show(rows: pd.DataFrame, found: WholeModelStudy | None, notes: Sequence[str] = ()) -> None:
    """Print the measured rows and the errors of the predictors to stdout; without a study, only the rows."""
    console = open_console()
    console.print(_measured(rows))
    if found is not None:
        console.print(_errors(found))
        console.print(f"  {_aims(found)}")
    for note in (*(found.notes if found is not None else ()), *notes):
        console.print(f"  {note}")


def show_prediction(found: WholeModelPrediction, folder: Path) -> None:
    """Print one prediction, the errors on held-out rows, the nearest measured rows and the notices to stdout."""
    spec, point, used = found.question.spec, found.question.point, found.used
    size = f"{spec.n_params / 1e6:,.0f} million parameters"
    known = "among the measured models" if found.measured_model else "not among the measured models"
    lengths = f"{point.input_tokens} tokens in, {point.output_tokens} out"
    models = ", ".join(sorted(used["model"].unique()))
    show_lines(
        [
            ("Model", f"{point.model}: {architecture(spec)}, {size}, {found.columns['dtype']}; {known}"),
            ("Point", f"{point.workload}, batch {point.batch}, {lengths}"),
            ("Rows", f"{len(used)} of {models} on {found.machine.full_name}, in {folder}"),
            *(("Notice", text) for text in found.notices),
        ],
        bold=("Notice",),
    )
    what = "configurations (model, workload, batch)" if found.measured_model else "whole models"
    console = open_console()
    title = f"\nErrors are of rows whose {what} were left out of the fit"
    console.print(text_table(PREDICTION_HEAD, [_prediction_line(t) for t in found.targets], 1, title))
    console.print(f"  estimators: {', '.join(f'{t.target.short} {t.estimator}' for t in found.targets)}")
    covered = ", ".join(f"{t.target.short} {percent(t.coverage)}" for t in found.targets if t.coverage is not None)
    if covered:
        console.print(f"  held-out rows inside an interval from the other groups: {covered}")
    console.print(text_table(NEAREST_HEAD, [_nearest_line(row) for _, row in found.nearest.iterrows()], 2, ""))


def value_text(value: float, unit: str) -> str:
    """Return a value of a target with its unit."""
    if unit == "s":
        return human_s(value)
    scaled, prefix = (value / 1e9, "G") if value >= 1e9 else (value / 1e6, "M")
    return f"{scaled:.3g} {prefix}{unit}"


def _prediction_line(t: TargetPrediction) -> list[str]:
    low, high = value_text(t.low, t.target.unit), value_text(t.high, t.target.unit)
    if low.split()[1] == high.split()[1]:
        low = low.split()[0]
    value = value_text(t.value, t.target.unit)
    return [t.target.short, value, f"{low} to {high}", *_error_cells(t.errors, t.target.unit)[:-1]]


def _nearest_line(row: pd.Series[Any]) -> list[str]:
    memory = row["peak_memory_bytes"]
    cells = [str(row[c]) for c in ("model", "workload", "batch", "input_tokens", "output_tokens")]
    return [*cells, human_s(row["total_s"]), "–" if pd.isna(memory) else value_text(memory, "B")]


def _measured(rows: pd.DataFrame) -> Table:
    """Return a table with a line per model and batch: number of points, latencies and memory."""
    lines = []
    for (model, batch), mine in rows.groupby(["model", "batch"], sort=False):
        ok = mine[mine["status"] == "ok"]
        values = [ok["prefill_s"], ok["decode_s_per_token"] * 1e3, ok["peak_memory_bytes"] / 1e9]
        values += [ok["bandwidth_bytes_per_s"] / 1e9, ok["flops_per_s"] / 1e9]
        cells = ["–" if v.dropna().empty else f"{v.median():.3g}" for v in values]
        lines.append([str(model), str(batch), str(len(ok)), str(len(mine) - len(ok)), *cells])
    return text_table(HEAD, lines, 1, "Whole models, random weights: medians over workloads and lengths")


def _errors(found: WholeModelStudy) -> Table:
    """Return a table with a line per target: the held-out errors of the chosen estimator and the best estimator."""
    lines = [
        _line(t.target.short if held.by == "configuration" else "", held, t.target.unit)
        for t in found.targets
        for held in (t.by_configuration, t.by_model)
        if held is not None
    ]
    return text_table(ERROR_HEAD, lines, 3, f"Predicted against measured, held out: {len(found.used)} rows")


def _line(target: str, held: OutOfFoldPredictions, unit: str) -> list[str]:
    return [target, f"{held.by}s", held.best, *_error_cells(held.score().to_dict(), unit)]


def _error_cells(errors: Mapping[str, Any], unit: str) -> list[str]:
    """Return R2, MAE, RMSE, and the median, the ninth decile and the worst of the relative errors."""
    r2 = "–" if errors["r2"] is None else f"{errors['r2']:.3f}"
    sizes = [value_text(errors[name], unit) for name in ("mae", "rmse")]
    return [r2, *sizes, percent(errors["median"], 1), percent(errors["p90"], 1), percent(errors["worst"])]


def _aims(found: WholeModelStudy) -> str:
    """Return a sentence on the aims for R2 on held-out configurations."""
    parts = [
        f"{t.target.short} {t.target.r2_goal:.2f} {'met' if t.met else 'missed'}"
        for t in found.targets
        if t.target.r2_goal is not None
    ]
    return f"aims for R2 on configurations: {', '.join(parts)}"
