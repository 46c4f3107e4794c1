"""The one door for files of engine steps: a server log, or a benchmark of single forwards."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from calibration.importers.forward_bench import read_forward_bench
from calibration.importers.iteration_log import read_iteration_log
from catalogs.errors import InputError

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True)
class EngineSteps:
    """rows: one per step, with `seconds` and the batch's contents (iteration_log.py, forward_bench.py say which
    columns); what: the rows' noun; notes: what was left out, in words."""

    rows: pd.DataFrame
    what: str
    notes: tuple[str, ...]


def read_steps(path: Path) -> EngineSteps:
    """A file of either kind, recognised by its content. InputError where it is unreadable or holds no step."""
    try:
        with path.open("rb") as file:
            start = file.read(64).lstrip()
    except OSError as error:
        raise InputError(f"file of engine steps cannot be read ({type(error).__name__})", str(path)) from None
    if start[:1] == b"[" and start[1:].lstrip()[:1] in (b"{", b"]", b""):
        bench = read_forward_bench(path)
        return EngineSteps(bench.rows, "forwards", bench.notes)
    log = read_iteration_log(path)
    return EngineSteps(log.steps, "engine steps", log.notes)
