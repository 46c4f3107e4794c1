"""Read files of engine steps: a server log, or a benchmark of single forwards."""

from __future__ import annotations

from pathlib import Path

from calibration.importers.forward_bench import read_forward_bench
from calibration.importers.iteration_log import read_iteration_log
from calibration.importers.parsing import EngineSteps
from catalogs.errors import InputError


def read_steps(path: Path) -> EngineSteps:
    """Read a server log or a forward benchmark.

    Raises:
        InputError: The file is unreadable or holds no step.
    """
    try:
        with path.open("rb") as file:
            start = file.read(64).lstrip()
    except (OSError, ValueError) as error:
        raise InputError(f"file of engine steps cannot be read ({type(error).__name__})", str(path)) from None
    if start[:1] == b"[" and start[1:].lstrip()[:1] in (b"{", b"]", b""):
        return read_forward_bench(path)
    return read_iteration_log(path)
