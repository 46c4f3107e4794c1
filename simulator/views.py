"""What a user asked to see of a run beyond its summary: a trace, a time series, an explanation."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from catalogs.errors import InputError

if TYPE_CHECKING:
    from simulator.journal import Journal
    from simulator.run_record import Run

_UNITS: Final = {"": 1.0, "s": 1.0, "ms": 1e-3, "m": 60.0, "min": 60.0, "h": 3600.0}
_TIME: Final = re.compile(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*([a-z]*)\s*")


@dataclass(frozen=True, slots=True)
class Views:
    """trace_window: (from, to) seconds, or None for all of it."""

    chrome_trace: Path | None
    trace_window: tuple[float, float] | None
    time_series: Path | None
    time_step_s: float
    explain: bool

    @classmethod
    def of(
        cls, chrome_trace: Path | None, window: str | None, time_series: Path | None, step_s: float, explain: bool
    ) -> Views:
        """Raises InputError for a window that is none, or one without a trace, and a series of an unknown kind."""
        if window is not None and chrome_trace is None:
            raise InputError("--trace-window is the part of a trace to write", window, "with --chrome-trace T.json")
        if time_series is not None and time_series.suffix not in (".parquet", ".csv"):
            name = f"{time_series.stem or 'series'}.parquet"
            raise InputError("a time series is a .parquet or a .csv file", str(time_series), name)
        if not 0.0 < step_s < float("inf"):
            raise InputError("a time series needs a finite step above 0 s", step_s, "1.0")
        return cls(chrome_trace, None if window is None else parse_window(window), time_series, step_s, explain)

    def journal(self) -> Journal | None:
        """What the run must note for them; None for nothing."""
        if self.chrome_trace is None and self.time_series is None and not self.explain:
            return None
        from simulator.journal import Journal

        return Journal()

    def show(self, run: Run, document: dict[str, Any]) -> list[str]:
        """Write the files, add the explanation to the document; what must be said about them."""
        notices = []
        if self.chrome_trace is not None:
            from simulator.chrome_trace import Window, write_chrome_trace

            notices += write_chrome_trace(run, self.chrome_trace, Window(*self.trace_window or ()))
        if self.time_series is not None:
            from simulator.time_series import write_time_series

            write_time_series(run, self.time_series, self.time_step_s)
        if self.explain:
            from simulator.explain import explain

            document["explain"] = explain(run)
        return notices


def parse_window(text: str) -> tuple[float, float]:
    """ "10s..20s" in seconds; bare numbers are seconds, an end left out is the run's. Raises InputError."""
    ends = text.split("..")
    if len(ends) != 2 or not text.strip(" ."):
        raise InputError("a trace window is FROM..TO", text, "10s..20s")
    from_s = _seconds(ends[0], text) if ends[0].strip() else 0.0
    to_s = _seconds(ends[1], text) if ends[1].strip() else float("inf")
    if not to_s > from_s:
        raise InputError("a trace window ends after it begins", text, "10s..20s")
    return from_s, to_s


def _seconds(text: str, window: str) -> float:
    found = _TIME.fullmatch(text)
    if found is None or found[2] not in _UNITS:
        raise InputError("a trace window is FROM..TO, times like 10s, 1.5m or 200ms", window, "10s..20s")
    return float(found[1]) * _UNITS[found[2]]
