"""The measuring loop of `calibrate models`.

It measures points until the budget is spent and writes each row before the next point.
"""

from __future__ import annotations

import importlib.metadata
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, Protocol

from calibration.profile.local_run import default_folder, progress, this_machine
from calibration.profile.machine.device import ProfiledDevice, open_device
from calibration.profile.run import ProgressReporter, start
from calibration.profile.session import manifest
from calibration.profile.session.session import Row, Session
from calibration.whole_models import table
from calibration.whole_models.physics import MachineRates, known_columns
from calibration.whole_models.point_decision import FREE_SHARE, Decision, PlannedPoint, SessionLimits, decide
from calibration.whole_models.subjects import DEFAULTS, RandomWeightModel, load_subject
from calibration.whole_models.workers import WorkerReply, Workers
from calibration.whole_models.workloads import BATCHES, MAX_INPUT, MAX_OUTPUTS, Point, points

DTYPES: Final = {"cpu": "fp32", "cuda": "fp16"}  # usual for Hugging Face: CPUs compute fp32, checkpoints are fp16

FAMILY: Final = "whole_model"

#: Multiple of the predicted seconds after which a point counts as hung. A judgement: far above the error of a
#: prediction, even of the first ones, which know the roofline only.
TIMEOUT_FACTOR: Final = 6.0

#: Least seconds after which a point counts as hung. A judgement: the first run of a model also loads its kernels.
LEAST_TIMEOUT_S: Final = 120.0

FOLDER_PREFIX: Final = "models-"


@dataclass(frozen=True, slots=True)
class CollectOptions:
    """The options of `calibrate models`."""

    names: tuple[str, ...] = DEFAULTS
    budget_s: float = 900.0
    batches: tuple[int, ...] = BATCHES
    max_input: int = MAX_INPUT
    out: Path | None = None
    device: str | None = None
    threads: int | None = None
    max_output: int | None = None
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Collected:
    """A finished session with every point once, measured or not."""

    folder: Path
    rows: tuple[Row, ...]
    facts: manifest.Manifest


class PointMeasurer(Protocol):
    """Measures a point as the measured part of a row; implemented by `workers.Workers`."""

    def measure(self, point: Point, repeats_s: float, memory_bytes: float, limit_s: float) -> WorkerReply:
        """Return the measured columns of a point; see `Workers.measure`."""
        ...

    def free_bytes(self, model: str) -> float:
        """Return the bytes of memory that a run of a model may use."""
        ...


def collect_models(options: CollectOptions) -> Collected:
    """Measure whole models on this machine into a folder, or resume an unfinished session there.

    Raises:
        InputError: If a model is unknown, an option is invalid, the folder belongs to another machine, or the disk is
            full.
    """
    subjects = {s.name: s for s in map(load_subject, options.names)}
    device = open_device(options.device, options.threads)
    unit, dtype = this_machine("local", device), DTYPES[device.kind]
    rates = MachineRates.of(unit)
    limits = MAX_OUTPUTS[device.kind] if options.max_output is None else (options.max_output,)
    requested = points(list(subjects), options.batches, options.max_input, limits, options.seed)
    candidates = [candidate(subjects[p.model], p, rates, dtype, device) for p in requested]
    models = {s.name: {"source": s.source, "config": s.config} for s in subjects.values()}
    plan = {"batches": list(options.batches), "max_input": options.max_input, "max_output": options.max_output}
    facts = manifest.describe(unit.name, device, options.budget_s, options.seed)
    facts |= {"kind": FAMILY, "dtype": dtype, "models": models, "plan": plan, "roofline": asdict(rates)}
    facts["libraries"]["transformers"] = None
    with suppress(importlib.metadata.PackageNotFoundError):
        facts["libraries"]["transformers"] = importlib.metadata.version("transformers")
    folder = options.out or default_folder(FOLDER_PREFIX + unit.name)
    with progress(options.budget_s) as reporter:
        session = start(folder, facts, reporter)
        table.check_whole_models(session.rows, folder)
        with Workers(subjects, device, dtype) as workers:
            rows = collect(candidates, session, workers, options.budget_s, reporter)
    done = facts | {"finished_at": manifest.now(), "counts": counts(rows)}
    table.write(rows, folder)
    manifest.write(folder, done)
    return Collected(folder, tuple(rows), done)


def collect(
    candidates: Sequence[PlannedPoint],
    session: Session,
    measurer: PointMeasurer,
    budget_s: float,
    reporter: ProgressReporter,
) -> list[Row]:
    """Measure the candidates that the budget allows.

    Each decision depends only on the rows that precede it in the order, so a resumed session decides as it did before.
    On an interrupt or a full disk, the rows so far and the remaining points as skipped are written as tables, and the
    exception passes through.

    Args:
        candidates: The points to measure, in their order.
        session: The session that holds the rows.
        measurer: Measures a point.
        budget_s: Seconds that the session may take.
        reporter: Receives the progress.

    Returns:
        One row per candidate, and every older row of the session.
    """
    ours = {c.point.key for c in candidates}
    done = {r["key"]: r for r in session.rows}
    seen = [r for r in session.rows if r["key"] not in ours]
    skipped: dict[str, Row] = {}
    try:
        for c in _cheapest_first(candidates):
            if c.point.key in done:
                seen.append(done[c.point.key])
                continue
            spent_s = float(sum(r["elapsed_s"] for r in seen))
            choice = decide(c, seen, SessionLimits(budget_s, spent_s, measurer.free_bytes(c.point.model)))
            if not choice.measure:
                skipped[c.point.key] = _skipped(c, choice)
                continue
            row = _measured(c, choice, measurer, budget_s)
            session.append(row)
            seen.append(row)
            if row["status"] != "ok":
                reporter.line(f"{row['status']}: {row['key']}: {row['reason']}")
            reporter.step(session.spent_s, row["key"])
    except BaseException:
        late = {c.point.key: _skipped(c, Decision(False, "the session was interrupted", 0.0, 0.0)) for c in candidates}
        table.write(_all(candidates, session.rows, late | skipped), session.folder)
        raise
    return _all(candidates, session.rows, skipped)


def candidate(
    subject: RandomWeightModel, point: Point, rates: MachineRates, dtype: str, device: ProfiledDevice
) -> PlannedPoint:
    """Return a point with all columns that are known before it is measured."""
    head = {"family": FAMILY, "role": "fit", "device": device.kind, "threads": device.threads}
    return PlannedPoint(point, head | known_columns(subject.spec, point, rates, dtype))


def counts(rows: Sequence[Row]) -> dict[str, int]:
    """Return the number of rows by status, and of measured rows that were contended."""
    found = {s: sum(r["status"] == s for r in rows) for s in ("ok", "skipped", "oom", "error")}
    return found | {"contended": sum(bool(r.get("contended")) for r in rows if r["status"] == "ok")}


def _cheapest_first(candidates: Sequence[PlannedPoint]) -> list[PlannedPoint]:
    """Move the cheapest point of each model to the front, then the cheapest with each other batch size.

    The cost of the others can be predicted from them, and every batch size is measured before the budget is spent.
    """
    dearest_first = sorted(candidates, key=lambda c: float(c.columns["roofline_s"]), reverse=True)
    of_model = {c.point.model: c for c in dearest_first}
    of_batch = {(c.point.model, c.point.batch): c for c in dearest_first}
    others = sorted(of_batch.values(), key=lambda c: float(c.columns["roofline_s"]))
    first = {c.point.key: c for c in (*of_model.values(), *others)}
    return [*first.values(), *(c for c in candidates if c.point.key not in first)]


def _measured(c: PlannedPoint, choice: Decision, measurer: PointMeasurer, budget_s: float) -> Row:
    free, begin = measurer.free_bytes(c.point.model), time.perf_counter()
    repeats_s = SessionLimits(budget_s, 0.0, free).repeats_s
    timeout_s = max(TIMEOUT_FACTOR * choice.seconds, LEAST_TIMEOUT_S)
    found = dict(measurer.measure(c.point, repeats_s, FREE_SHARE * free, timeout_s))
    if found.get("total_s"):
        found["bandwidth_bytes_per_s"] = c.columns["least_bytes"] / found["total_s"]
    took = {"elapsed_s": max(found.get("elapsed_s", 0.0), round(time.perf_counter() - begin, 6))}
    return {**c.columns, **_expected(choice), "reason": "", **found, **took}


def _skipped(c: PlannedPoint, choice: Decision) -> Row:
    return {**c.columns, **_expected(choice), "status": "skipped", "reason": choice.reason, "elapsed_s": 0.0}


def _expected(choice: Decision) -> dict[str, float | None]:
    known = choice.seconds > 0.0
    return {
        "expected_point_s": round(choice.seconds, 3) if known else None,
        "expected_growth_bytes": round(choice.growth_bytes) if known else None,
    }


def _all(candidates: Sequence[PlannedPoint], rows: Sequence[Row], skipped: dict[str, Row]) -> list[Row]:
    """Return the rows in the order measured, then the skipped ones, with every candidate exactly once."""
    done = {r["key"] for r in rows}
    return [*rows, *(skipped[c.point.key] for c in candidates if c.point.key not in done)]
