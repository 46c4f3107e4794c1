"""Import the server log of `vllm serve --enable-logging-iteration-details`: one row per engine step.

The line (vllm/v1/metrics/loggers.py, 0.32 and 0.33; 0.14 and later lack the cache usage):
    (APIServer pid=1) INFO 11-20 12:16:47 [loggers.py:199] Engine 000: Iteration(1): 1 context requests, 179 context
    tokens, 1 generation requests, 1 generation tokens, iteration elapsed time: 101.46 ms, CPU KV cache usage: 1.8%

The elapsed time is the engine core's wall time around scheduling, model and bookkeeping of the step, in ms. A request
counts as context until it has its first output token. Steps marked (dummy) keep data-parallel ranks in step and hold no
request.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

from calibration.importers.parsing import EngineSteps
from catalogs.errors import InputError

if TYPE_CHECKING:
    import pandas as pd


_COUNTS: Final = ("index", "context_requests", "context_tokens", "generation_requests", "generation_tokens")

COLUMNS: Final = ("at_s", "engine", *_COUNTS, "seconds", "kv_usage_fraction")

#: Digits of a count, so that it fits arrays of 64-bit integers; also of milliseconds.
MOST_DIGITS: Final = 18

_START: Final = re.compile(r"Iteration\(\d*")

_COLOUR: Final = re.compile(r"\x1b\[[0-9;]*m")

_STAMP: Final = re.compile(r"(?:(\d{4})-)?(\d\d)-(\d\d)[ T](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,6}))?")

_STEP: Final = re.compile(
    r"(?:Engine (?P<engine>\d+): )?Iteration\((?P<index>\d+)\): (?P<context_requests>\d+) context requests, "
    r"(?P<context_tokens>\d+) context tokens, (?P<generation_requests>\d+) generation requests, "
    r"(?P<generation_tokens>\d+) generation tokens, iteration elapsed time: (?P<ms>\d+(?:\.\d+)?) ms"
    r"(?P<dummy> \(dummy\))?(?:, \w+ KV cache usage: (?P<kv>\d+(?:\.\d+)?)%)?"
)

_LEAP_YEAR: Final = 2024  # lines carry no year, and February 29 must parse

#: Seconds of a leap year.
_YEAR_S: Final = 366 * 86400.0


def read_iteration_log(path: Path) -> EngineSteps:
    """Read the steps of a server log: one row per step in the order logged, with the columns COLUMNS.

    at_s counts whole seconds from the time stamp of the first step and is NaN without one.

    Raises:
        InputError: The log cannot be read or has no complete step.
    """
    import pandas as pd

    left_out: Counter[str] = Counter()
    rows: list[dict[str, float]] = []
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            for line in file:
                _take(_COLOUR.sub("", line), rows, left_out)
    except OSError as error:
        raise InputError(f"server log cannot be read ({type(error).__name__})", str(path)) from None
    if not rows:
        found = "; ".join(f"{n} {why}" for why, n in left_out.items()) or "no such line"
        rule = f"no engine steps in this log ({found})"
        raise InputError(rule, str(path), hint="record with vllm serve --enable-logging-iteration-details")
    steps = pd.DataFrame(rows, columns=list(COLUMNS))
    steps = steps.astype(dict.fromkeys(("engine", *_COUNTS), int))
    from_first_s = steps["at_s"] - next((s for s in steps["at_s"] if not math.isnan(s)), 0.0)
    steps["at_s"] = from_first_s.mask(from_first_s < -_YEAR_S / 2, from_first_s + _YEAR_S)  # over New Year
    notes = [f"left out {n:,} {why}" for why, n in sorted(left_out.items())]
    return EngineSteps(steps, "engine steps", (*notes, *_order_notes(steps)))


def _take(line: str, rows: list[dict[str, float]], left_out: Counter[str]) -> None:
    starts = len(_START.findall(line))
    found = list(_STEP.finditer(line)) if starts else []
    if starts > len(found):
        left_out["malformed or truncated lines"] += starts - len(found)
    stamp = _stamp(line) if found else float("nan")
    for match in found:
        why = _fault(match)
        if why is not None:
            left_out[why] += 1
        else:
            rows.append(_row(match, stamp))


def _fault(match: re.Match[str]) -> str | None:
    if match["dummy"]:
        return "dummy steps"
    if any(len(match[name]) > MOST_DIGITS for name in (*_COUNTS, "ms")) or len(match["engine"] or "") > MOST_DIGITS:
        return "steps with a number that no counter reaches"
    if float(match["ms"]) <= 0:
        return "steps that took no time"
    context, generation = int(match["context_requests"]), int(match["generation_requests"])
    tokens, generated = int(match["context_tokens"]), int(match["generation_tokens"])
    if context + generation == 0 or tokens < context or generated < generation:
        return "steps with fewer tokens than requests"
    return None


def _row(match: re.Match[str], stamp: float) -> dict[str, float]:
    kv_usage = float(match["kv"]) / 100 if match["kv"] else float("nan")
    own = {"engine": int(match["engine"] or 0), "seconds": float(match["ms"]) * 1e-3, "kv_usage_fraction": kv_usage}
    return {name: int(match[name]) for name in _COUNTS} | own | {"at_s": stamp}


def _stamp(line: str) -> float:
    """Return the time stamp of a line in seconds from an arbitrary start; NaN without one."""
    match = _STAMP.search(line)
    if match is None:
        return float("nan")
    year, month, day, hour, minute, second, fraction = match.groups()
    try:
        at = datetime(int(year or _LEAP_YEAR), int(month), int(day), int(hour), int(minute), int(second))
    except ValueError:
        return float("nan")
    return (at - datetime(2000, 1, 1)).total_seconds() + float(f"0.{fraction or 0}")


def _order_notes(steps: pd.DataFrame) -> list[str]:
    """Return notes on steps that are missing and engines that restarted, by the index that each engine counts."""
    missing = restarts = 0
    for _, own in steps.groupby("engine", sort=True):
        gaps = own["index"].diff().dropna()
        missing += int((gaps[gaps > 1] - 1).sum())
        restarts += int((gaps <= 0).sum())
    notes = [f"{missing:,} steps are not in the log"] if missing else []
    return [*notes, f"the engine started again {restarts} times"] if restarts else notes
