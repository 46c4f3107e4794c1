"""Terminal output of whole-model measurements and of the errors of the predictors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from calibration.whole_models.study import CHOSEN, OutOfFoldPredictions, WholeModelStudy
from catalogs.ui.terminal import open_console

if TYPE_CHECKING:
    import pandas as pd
    from rich.table import Table


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
    from rich.table import Table

    view = Table(title="Whole models, random weights: medians over workloads and lengths", title_justify="left")
    for name in (
        "model",
        "batch",
        "measured",
        "skipped",
        "first token s",
        "per token ms",
        "peak GB",
        "GB/s",
        "GFLOP/s",
    ):
        view.add_column(name, justify="left" if name == "model" else "right")
    for (model, batch), mine in rows.groupby(["model", "batch"], sort=False):
        ok = mine[mine["status"] == "ok"]
        values = [ok["prefill_s"], ok["decode_s_per_token"] * 1e3, ok["peak_memory_bytes"] / 1e9]
        values += [ok["bandwidth_bytes_per_s"] / 1e9, ok["flops_per_s"] / 1e9]
        cells = ["–" if v.dropna().empty else f"{v.median():.3g}" for v in values]
        view.add_row(str(model), str(batch), str(len(ok)), str(len(mine) - len(ok)), *cells)
    return view


def _errors(found: WholeModelStudy) -> Table:
    """Return a table with a line per target: the held-out errors of the chosen estimator and the best estimator."""
    from rich.table import Table

    view = Table(title="Predicted against measured, held out", title_justify="left")
    for name in ("target", "held out", "rows", "R2", "aim", "MAPE", "p90", "worst", "best estimator"):
        view.add_column(name, justify="left" if name in ("target", "held out", "best estimator") else "right")
    for t in found.targets:
        for held in (t.by_configuration, t.by_model):
            if held is not None:
                aim = t.target.r2_goal if held.by == "configuration" else None
                view.add_row(t.target.name if held.by == "configuration" else "", *_score(held, aim))
    return view


def _score(held: OutOfFoldPredictions, aim: float | None) -> list[str]:
    s = held.score()
    best = next(x.estimator for x in held.scores if x.estimator != CHOSEN)
    reached = "" if aim is None else f"{aim:.2f} {'met' if s.r2 >= aim else 'missed'}"
    errors = [f"{s.mape:.1%}", f"{s.p90:.1%}", f"{s.worst:.0%}"]
    return [f"{held.by}s", str(s.n), f"{s.r2:.3f}", reached, *errors, best]
