"""Terminal output of whole-model measurements and of the errors of the predictors."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
from rich.table import Table

from calibration.whole_models.study import CHOSEN, OutOfFoldPredictions, WholeModelStudy
from catalogs.ui.terminal import open_console, text_table
from catalogs.ui.words import percent

HEAD = ("model", "batch", "measured", "skipped", "first token s", "per token ms", "peak GB", "GB/s", "GFLOP/s")

ERROR_HEAD = ("target", "held out", "best estimator", "rows", "R2", "aim", "MAPE", "p90", "worst")


def show(rows: pd.DataFrame, found: WholeModelStudy | None, notes: Sequence[str] = ()) -> None:
    """Print the measured rows and the errors of the predictors to stdout; without a study, only the rows."""
    console = open_console()
    console.print(_measured(rows))
    if found is not None:
        console.print(_errors(found))
    for note in (*(found.notes if found is not None else ()), *notes):
        console.print(f"  {note}")


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
        _line(t.target.name if held.by == "configuration" else "", held, t.target.r2_goal)
        for t in found.targets
        for held in (t.by_configuration, t.by_model)
        if held is not None
    ]
    return text_table(ERROR_HEAD, lines, 3, "Predicted against measured, held out")


def _line(target: str, held: OutOfFoldPredictions, goal: float | None) -> list[str]:
    s = held.score()
    best = next(x.estimator for x in held.scores if x.estimator != CHOSEN)
    aim = f"{goal:.2f} {'met' if s.r2 >= goal else 'missed'}" if target and goal is not None else ""
    errors = [percent(s.mape, 1), percent(s.p90, 1), percent(s.worst)]
    return [target, f"{held.by}s", best, str(s.n), f"{s.r2:.3f}", aim, *errors]
