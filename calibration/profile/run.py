"""The profiling loop: it measures shapes until the budget is spent and writes each row before the next shape."""

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

MAX_CONSECUTIVE_ERRORS: Final = 25  # the profile stops after this many errors, because a faulted GPU does not recover

#: Faults after which every call to a CUDA context fails with the same error.
STICKY_FAULTS: Final = (
    "illegal memory access",
    "device-side assert",
    "unspecified launch failure",
    "misaligned address",
    "illegal instruction",
    "uncorrectable ECC",
    "has fallen off the bus",
)

#: Shapes expected to take a larger share of the budget are left out. A judgement: fifty shapes at least fit into a
#: budget.
LONGEST_SHARE: Final = 0.02

REPEATS: Final = 4.0  # executions that a long shape needs at least, with its warm-up

EFFICIENCY: Final = 0.4  # fraction of the roofline assumed to estimate the time of an unmeasured shape


class ShapeMeasurer(Protocol):
    """An object that measures a shape as a row, as `measure.ShapeTimer` does."""

    def row(self, shape: Shape) -> Row:
        """Return the row of a shape, with a status and a reason where it failed."""
        ...


@dataclass(frozen=True, slots=True)
class ProfileJob:
    """The shapes to profile: first `machine`, then the most informative of `shapes` until `budget_s` is spent."""

    accelerator: Accelerator
    machine: list[Shape]
    shapes: list[Shape]
    budget_s: float
    cache_bytes: float
    reference_dtype: str = "bf16"  # the dtype of the reference product that shows drift
    at_once: Callable[[], list[Row]] | None = None  # measures the rows of collectives together
    first: frozenset[str] = frozenset()  # keys of the shapes of the user's models, which are measured first


@dataclass(frozen=True, slots=True)
class ProgressReporter:
    """Callbacks that report progress: `line(text)` for a single event, `step(spent_s, what)` after every row."""

    line: Callable[[str], None]
    step: Callable[[float, str], None]


def profile(job: ProfileJob, session: Session, measurer: ShapeMeasurer, reporter: ProgressReporter) -> dict[str, Any]:
    """Measure until the budget is spent or no shape is left, and return the number of shapes by outcome.

    A session that already holds rows is resumed. KeyboardInterrupt passes through, and the rows measured so far are on
    disk.

    Raises:
        InputError: If a row cannot be written, or the device has faulted.
    """
    done = {r["key"] for r in session.rows}
    for shape in job.machine:
        if shape.key not in done:
            _measure(shape, session, measurer, reporter)
    if job.at_once is not None and not any(r["family"] == "collective" for r in session.rows):
        for row in job.at_once():
            session.append(row)
    accelerator = measured(job.accelerator, [r for r in session.rows if r["family"] == "peak"], job.cache_bytes)
    choice = ShapeQueues.of(job.shapes, SHARES, job.first)
    most_s = LONGEST_SHARE * job.budget_s
    long = [s.key for s in job.shapes if s.roofline_s(accelerator) / EFFICIENCY * REPEATS > most_s]
    choice.drop(long)
    for row in session.rows:
        _observe(choice, row, job.shapes, accelerator)
    ends_s = time.monotonic() + job.budget_s - session.spent_s  # choosing the next shape takes time as well
    while session.spent_s < job.budget_s and time.monotonic() < ends_s:
        if drift_reference.due(session.rows):
            _measure(drift_reference.reference(session.rows, job.reference_dtype), session, measurer, reporter)
        elif (chosen := choice.next()) is not None:
            _observe(choice, _measure(chosen, session, measurer, reporter), job.shapes, accelerator)
            _stop_if_broken(session.rows)
        else:
            break
    return _counts(session.rows, choice, len(long))


def start(folder: Path, facts: manifest.Manifest, reporter: ProgressReporter) -> Session:
    """Open a session's folder, or resume the profile in it.

    Raises:
        InputError: If the folder holds another profile, or cannot be used.
    """
    session = Session.open(folder, reporter.line)
    old = manifest.read(folder)
    if old is not None and session.rows:
        if (other := manifest.mismatch(old, facts)) is not None:
            raise InputError(f"the folder holds another profile: {other}", str(folder), hint="choose another --out")
        reporter.line(f"resuming after {len(session.rows)} rows in {folder}")
    else:
        manifest.write(folder, facts)
    return session


def _measure(shape: Shape, session: Session, measurer: ShapeMeasurer, reporter: ProgressReporter) -> Row:
    row = measurer.row(shape)
    session.append(row)
    if row["status"] != "ok":
        reporter.line(f"{row['status']}: {shape.key.replace('/fit/', ' ')}: {row.get('reason', '')}")
    reporter.step(session.spent_s, shape.queue)
    return row


def _stop_if_broken(rows: list[Row]) -> None:
    """Raise InputError after a fault from which this process cannot recover.

    The shape that caused the fault is recorded as a row, so the same command resumes after it.
    """
    reason = str(rows[-1].get("reason", ""))
    if rows[-1]["status"] == "error" and any(w in reason for w in STICKY_FAULTS):
        raise InputError(f"the device faulted ({len(rows)} rows are kept; run the same command to resume)", reason)
    if len(rows) >= MAX_CONSECUTIVE_ERRORS and all(r["status"] == "error" for r in rows[-MAX_CONSECUTIVE_ERRORS:]):
        raise InputError(f"the last {MAX_CONSECUTIVE_ERRORS} shapes failed, the device may be broken", reason)


def _observe(choice: ShapeQueues, row: Row, shapes: list[Shape], accelerator: Accelerator) -> None:
    """Record a row; after a shape that ran out of memory, drop the larger shapes of its queue."""
    shape = shape_of(row)
    bound = shape.roofline_s(accelerator)
    is_good = row["status"] == "ok" and bound > 0
    choice.observe(row["key"], row["elapsed_s"], math.log(row["seconds"] / bound) if is_good else math.nan)
    if row["status"] == "oom":
        size = shape.bytes(accelerator)
        choice.drop([s.key for s in shapes if s.queue == shape.queue and s.bytes(accelerator) >= size])


def _counts(rows: list[Row], choice: ShapeQueues, n_long: int) -> dict[str, Any]:
    return {
        **{s: sum(r["status"] == s for r in rows) for s in ("ok", "oom", "skipped", "error")},
        "contended": sum(bool(r.get("contended")) for r in rows),
        "not_reached": len(choice.left),
        "longer_than_the_budget_allows": n_long,
        "measuring_s": round(float(sum(r["elapsed_s"] for r in rows)), 1),
    }
