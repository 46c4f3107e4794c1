"""The profile itself: shape after shape until the budget is spent, every row on disk before the next starts."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from calibration.profile.kernels import drift_reference
from calibration.profile.kernels.registry import SHARES
from calibration.profile.peaks import measured, shape_of
from calibration.profile.session import manifest
from calibration.profile.session.session import Row, Session
from calibration.profile.session.shape import Shape
from calibration.profile.shapes.next_shape import ShapeQueues
from catalogs.errors import InputError
from catalogs.hardware.specs import Accelerator

TOO_MANY: Final = 25  # failures in a row: a GPU that faulted once fails for ever

#: Faults after which a CUDA context answers nothing but the same error.
STICKY: Final = (
    "illegal memory access",
    "device-side assert",
    "unspecified launch failure",
    "misaligned address",
    "illegal instruction",
    "uncorrectable ECC",
    "has fallen off the bus",
)

LONGEST_SHARE: Final = 0.02  # of the budget that one shape may be expected to take

REPEATS: Final = 4.0  # warm-up and samples that a long shape needs at least

EFFICIENCY: Final = 0.4  # of the roofline, to guess how long a shape takes before any like it was measured


class ShapeMeasurer(Protocol):
    """What turns a shape into a row: profile/measure.py, or a stand-in of a test."""

    def row(self, shape: Shape) -> Row: ...


@dataclass(frozen=True, slots=True)
class ProfileJob:
    """What to profile: machine shapes first, then the most informative of `shapes` until budget_s is spent."""

    accelerator: Accelerator
    machine: list[Shape]
    shapes: list[Shape]
    budget_s: float
    cache_bytes: float
    reference_dtype: str = "bf16"  # of the product that shows drift
    at_once: Callable[[], list[Row]] | None = None  # rows that are measured together: collectives
    first: frozenset[str] = frozenset()  # keys of shapes of the user's own models, before all others


@dataclass(frozen=True, slots=True)
class ProgressReporter:
    """Where progress goes: line(text) for what happens once, step(spent_s, what) after every row."""

    line: Callable[[str], None]
    step: Callable[[float, str], None]


def profile(job: ProfileJob, session: Session, bench: ShapeMeasurer, told: ProgressReporter) -> dict[str, Any]:
    """Measure until the budget is spent or nothing is left; returns counts by what became of the shapes.

    Goes on after the rows the session holds. KeyboardInterrupt passes through: rows measured so far are on disk.
    """
    done = {r["key"] for r in session.rows}
    for shape in job.machine:
        if shape.key not in done:
            _measure(shape, session, bench, told)
    if job.at_once is not None and not any(r["family"] == "collective" for r in session.rows):
        for row in job.at_once():
            session.append(row)
    accelerator = measured(job.accelerator, _machine_rows(session), job.cache_bytes)
    choice = ShapeQueues.of(job.shapes, SHARES, job.first)
    long = [s.key for s in job.shapes if _guess_s(s, accelerator) * REPEATS > LONGEST_SHARE * job.budget_s]
    choice.drop(long)
    for row in session.rows:
        _observe(choice, row, job.shapes, accelerator)
    ends_s = time.monotonic() + job.budget_s - session.spent_s  # choosing takes time too
    while session.spent_s < job.budget_s and time.monotonic() < ends_s:
        if drift_reference.due(session.rows):
            _measure(drift_reference.reference(session.rows, job.reference_dtype), session, bench, told)
            continue
        chosen = choice.next()
        if chosen is None:
            break
        row = _measure(chosen, session, bench, told)
        _observe(choice, row, job.shapes, accelerator)
        _stop_if_broken(session.rows)
    return _counts(session.rows, choice, len(long))


def start(folder: Path, facts: manifest.Manifest, told: ProgressReporter) -> Session:
    """Open a session's folder; InputError where it holds a profile of something else."""
    session = Session.open(folder, told.line)
    old = manifest.read(folder)
    if old is not None and session.rows:
        other = manifest.mismatch(old, facts)
        if other is not None:
            raise InputError(f"the folder holds another profile: {other}", str(folder), "another --out")
        told.line(f"going on after {len(session.rows)} rows in {folder}")
    else:
        manifest.write(folder, facts)
    return session


def _measure(shape: Shape, session: Session, bench: ShapeMeasurer, told: ProgressReporter) -> Row:
    row = bench.row(shape)
    session.append(row)
    if row["status"] != "ok":
        told.line(f"{row['status']}: {shape.key.replace('/fit/', ' ')}: {row.get('reason', '')}")
    told.step(session.spent_s, f"{shape.queue}")
    return row


def _stop_if_broken(rows: list[Row]) -> None:
    """Raises InputError after a fault that no later shape of this process survives. The shape that caused it is a row,
    so the same command goes on behind it."""
    reason = str(rows[-1].get("reason", ""))
    if rows[-1]["status"] == "error" and any(w in reason for w in STICKY):
        raise InputError(f"the device faulted ({len(rows)} rows are kept, the same command goes on)", reason)
    if len(rows) >= TOO_MANY and all(r["status"] == "error" for r in rows[-TOO_MANY:]):
        raise InputError(f"the last {TOO_MANY} shapes failed, the device may be broken", reason)


def _machine_rows(session: Session) -> list[Row]:
    return [r for r in session.rows if r["family"] == "peak"]


def _guess_s(shape: Shape, accelerator: Accelerator) -> float:
    return shape.roofline_s(accelerator) / EFFICIENCY


def _observe(choice: ShapeQueues, row: Row, shapes: list[Shape], accelerator: Accelerator) -> None:
    """Note a row; after one that ran out of memory, larger ones of its queue are left out."""
    shape = shape_of(row)
    bound = shape.roofline_s(accelerator)
    good = row["status"] == "ok" and bound > 0
    choice.observe(row["key"], row["elapsed_s"], math.log(row["seconds"] / bound) if good else math.nan)
    if row["status"] == "oom":
        size = shape.bytes(accelerator)
        choice.drop([s.key for s in shapes if s.queue == shape.queue and s.bytes(accelerator) >= size])


def _counts(rows: list[Row], choice: ShapeQueues, n_long: int) -> dict[str, Any]:
    by_status = {s: sum(r["status"] == s for r in rows) for s in ("ok", "oom", "skipped", "error")}
    contended = sum(bool(r.get("contended")) for r in rows)
    return {
        **by_status,
        "contended": contended,
        "not_reached": len(choice.left),
        "longer_than_the_budget_allows": n_long,
        "measuring_s": round(float(sum(r["elapsed_s"] for r in rows)), 1),
    }
