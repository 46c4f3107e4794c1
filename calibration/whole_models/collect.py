"""`calibrate models`: point after point until the budget is spent, each row on disk before the next starts."""

from __future__ import annotations

import importlib.metadata
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from calibration.profile.local_run import default_folder, progress, this_machine
from calibration.profile.machine.device import ProfiledDevice, open_device
from calibration.profile.run import ProgressReporter, start
from calibration.profile.session import manifest
from calibration.profile.session.session import Row, Session
from calibration.whole_models import table
from calibration.whole_models.physics import least_bytes, roofline_s, sizes, terms
from calibration.whole_models.plan import FREE_SHARE, Decision, PlannedPoint, SessionLimits, decide
from calibration.whole_models.subjects import DEFAULTS, RandomWeightModel, load_subject
from calibration.whole_models.workers import Answer, Workers
from calibration.whole_models.workloads import BATCHES, MAX_INPUT, MAX_OUTPUT, Point, points
from catalogs.hardware.specs import Accelerator

DTYPES: Final = {"cpu": "fp32", "cuda": "fp16"}  # what Hugging Face users run: CPUs compute fp32, checkpoints are fp16

FAMILY: Final = "whole_model"

PATIENCE: Final = 6.0  # times the predicted seconds after which a point counts as stuck

LEAST_PATIENCE_S: Final = 120.0

FOLDER_PREFIX: Final = "models-"


@dataclass(frozen=True, slots=True)
class CollectOptions:
    """What the command line says."""

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
    """A finished session: every point once, measured or not."""

    folder: Path
    rows: tuple[Row, ...]
    facts: manifest.Manifest


class PointMeasurer(Protocol):
    """What turns a point into the measured part of a row: workers.Workers, or a stand-in of a test."""

    def measure(self, point: Point, repeats_s: float, memory_bytes: float, limit_s: float) -> Answer: ...

    def free_bytes(self, model: str) -> float: ...


def collect_models(options: CollectOptions) -> Collected:
    """Measure whole models on this machine into a folder, or go on with an unfinished session there.

    InputError for unknown models, impossible options, a folder of another machine, or a full disk.
    """
    subjects = {s.name: s for s in map(load_subject, options.names)}
    device = open_device(options.device, options.threads)
    unit, dtype = this_machine("local", device), DTYPES[device.kind]
    longest = MAX_OUTPUT[device.kind] if options.max_output is None else options.max_output
    asked = points(list(subjects), options.batches, options.max_input, longest, options.seed)
    candidates = [candidate(subjects[p.model], p, unit, dtype, device) for p in asked]
    facts = _facts(options, device, unit, dtype, subjects)
    folder = options.out or default_folder(FOLDER_PREFIX + unit.name)
    with progress(options.budget_s) as told:
        session = start(folder, facts, told)
        table.check_whole_models(session.rows, folder)
        with Workers(subjects, device, dtype) as workers:
            rows = collect(candidates, session, workers, options.budget_s, told)
    done = facts | {"finished_at": manifest.now(), "counts": counts(rows)}
    table.write(rows, folder)
    manifest.write(folder, done)
    return Collected(folder, tuple(rows), done)


def collect(
    candidates: Sequence[PlannedPoint], session: Session, bench: PointMeasurer, budget_s: float, told: ProgressReporter
) -> list[Row]:
    """Measure what the budget allows; returns one row per candidate and every older row of the session.

    Each decision knows the rows before it in the order, and no others: resumed, a session decides as it did before.
    On an interrupt (or a full disk) the rows so far, and the rest as skipped, are written as tables before it goes on.
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
            choice = decide(c, seen, SessionLimits(budget_s, spent_s, bench.free_bytes(c.point.model)))
            if not choice.measure:
                skipped[c.point.key] = _skipped(c, choice)
                continue
            session.append(_measured(c, choice, bench, budget_s))
            seen.append(session.rows[-1])
            _tell(session.rows[-1], session.spent_s, told)
    except BaseException:
        late = {c.point.key: _skipped(c, Decision(False, "the session was cut short", 0.0, 0.0)) for c in candidates}
        table.write(_all(candidates, session.rows, late | skipped), session.folder)
        raise
    return _all(candidates, session.rows, skipped)


def candidate(
    subject: RandomWeightModel, point: Point, unit: Accelerator, dtype: str, device: ProfiledDevice
) -> PlannedPoint:
    """A point with everything known before it is measured."""
    found = sizes(subject.spec, dtype) | terms(subject.spec, point, dtype)
    found |= {"roofline_s": roofline_s(found, unit, dtype), "least_bytes": least_bytes(found)}
    head: dict[str, Any] = {"key": point.key, "family": FAMILY, "role": "fit", "model": point.model}
    head |= {"architecture": subject.kind, "workload": point.workload, "batch": point.batch}
    head |= {"input_tokens": point.input_tokens, "output_tokens": point.output_tokens}
    head |= {"dtype": dtype, "device": device.kind, "threads": device.threads}
    return PlannedPoint(point, head | found)


def counts(rows: Sequence[Row]) -> dict[str, int]:
    """Rows by status, and how many of the measured ones were disturbed."""
    found = {s: sum(r["status"] == s for r in rows) for s in ("ok", "skipped", "oom", "error")}
    return found | {"contended": sum(bool(r.get("contended")) for r in rows if r["status"] == "ok")}


def _cheapest_first(candidates: Sequence[PlannedPoint]) -> list[PlannedPoint]:
    """The cheapest point of each model goes first, so that the others' cost is known; then the random order."""
    first: dict[str, PlannedPoint] = {}
    for c in candidates:
        best = first.get(c.point.model)
        if best is None or c.columns["roofline_s"] < best.columns["roofline_s"]:
            first[c.point.model] = c
    chosen = {c.point.key for c in first.values()}
    return [*first.values(), *(c for c in candidates if c.point.key not in chosen)]


def _measured(c: PlannedPoint, choice: Decision, bench: PointMeasurer, budget_s: float) -> Row:
    free = bench.free_bytes(c.point.model)
    limits = SessionLimits(budget_s, 0.0, free)
    begin = time.perf_counter()
    patience = max(PATIENCE * choice.seconds, LEAST_PATIENCE_S)
    found = dict(bench.measure(c.point, limits.repeats_s, FREE_SHARE * free, patience))
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
    """Rows in the order measured, then the skipped ones: every candidate exactly once."""
    done = {r["key"] for r in rows}
    return [*rows, *(skipped[c.point.key] for c in candidates if c.point.key not in done)]


def _tell(row: Row, spent_s: float, told: ProgressReporter) -> None:
    if row["status"] != "ok":
        told.line(f"{row['status']}: {row['key']}: {row['reason']}")
    told.step(spent_s, row["key"])


def _facts(
    options: CollectOptions,
    device: ProfiledDevice,
    unit: Accelerator,
    dtype: str,
    subjects: dict[str, RandomWeightModel],
) -> manifest.Manifest:
    facts = manifest.describe(unit.name, device, options.budget_s, options.seed)
    facts["libraries"]["transformers"] = _version("transformers")
    models = {s.name: {"source": s.source, "config": s.config} for s in subjects.values()}
    plan = {"batches": list(options.batches), "max_input": options.max_input, "max_output": options.max_output}
    return facts | {"kind": FAMILY, "dtype": dtype, "models": models, "plan": plan}


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
