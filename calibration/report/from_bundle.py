"""Read the material of a report from a bundle, alone or with the rows that it was fitted on."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np
import pandas as pd

from calibration.bundles.bundle import load_bundle
from calibration.bundles.files import BundleFacts, read_bundle
from calibration.estimators.compare import engine_rows
from calibration.families.base import FamilyModel, HeldOutErrors
from calibration.families.registry import FAMILIES
from calibration.fitting.cross_validation import folds
from calibration.report.held_out import coverage, error_lines, importance, left_out, measured_frame, together
from calibration.report.material import EDGE, GROUP, CalibrationReport, FamilyLine, FieldImportance, peaks_text
from calibration.rows.dataset import read_rows
from catalogs.errors import InputError
from catalogs.hardware.catalog import parse_hardware
from catalogs.hardware.specs import Accelerator

REGIONS: Final = {"inside": GROUP, "all": GROUP, "groups": GROUP, "beyond": EDGE}

NEEDS_ROWS: Final = (
    "predicted against measured times, residuals, and errors by size",
    "which field of a shape matters most",
    "every operator against the roofline",
    "power against utilisation",
)

ON_PURPOSE: Final = (
    "Some rows are predicted differently from their measurement on purpose, and count as error here: small shapes that "
    "a benchmark served from the cache (a real step streams its weights), and block-scaled fp8 products that were "
    "timed launch by launch (an engine replays them from a graph)."
)

NO_POWER: Final = (
    "The rows of this calibration hold no power readings; power comes from the shared model of power.json."
)


def read_bundle_material(path: Path, rows: Path | None) -> CalibrationReport:
    """Return the contents of a bundle, and with `rows` also the predictions of rows left out of new fits.

    `rows` is a folder of FAMILY.parquet files.

    Raises:
        InputError: The bundle or the rows cannot be read.
    """
    facts, _ = read_bundle(path)
    accelerator = parse_hardware(facts.hardware).accelerator
    bundle = load_bundle(accelerator, path)
    tables = read_rows(rows) if rows is not None else {}
    kept = {f: engine_rows(f, t, accelerator) for f, t in tables.items() if f in FAMILIES}
    kept = {f: t for f, t in kept.items() if len(t)}
    if rows is not None and not kept:
        raise InputError("no row obeys the peaks of this hardware", str(rows), accelerator.name)
    held = together(part for f, t in kept.items() for part in left_out(f, t, accelerator).values())
    errors = [
        FamilyLine(
            HeldOutErrors(f, REGIONS.get(e.region, e.region), e.n, e.median_abs_rel_error, e.p90_abs_rel_error, e.bias),
            record.rows.get("rows_in"),
        )
        for f, record in facts.families.items()
        for e in record.held_out
    ]
    dtypes = list(facts.families["gemm"].facts.get("dtypes", ())) if "gemm" in facts.families else ["bf16"]
    return CalibrationReport(
        title=f"Calibration of {accelerator.full_name}",
        subtitle=f"Operator times of {facts.engine} {facts.engine_version}".strip(),
        accelerator=accelerator,
        cards=_cards(facts, accelerator, kept),
        facts=[
            *(("source", f"{s.name} {s.licence}".strip()) for s in facts.sources),
            *([("driver", facts.driver)] if facts.driver else []),
        ],
        notices=[*bundle.notices, *bundle.uncalibrated],
        errors=errors if held is None else error_lines(held, {f: len(t) for f, t in kept.items()}, (GROUP, EDGE)),
        coverage=coverage(accelerator, dtypes, bundle.models),
        held=held,
        measured=together(measured_frame(f, t, accelerator) for f, t in kept.items()),
        importance=[i for f, t in kept.items() for i in _importance(f, t, accelerator)],
        no_power=NO_POWER,
        missing=list(NEEDS_ROWS) if not kept else [],
        remarks=[ON_PURPOSE] if kept else [],
    )


def _importance(family: str, rows: pd.DataFrame, accelerator: Accelerator) -> list[FieldImportance]:
    """Return the importance of fields on the first fold, for a fit without that fold."""
    fold = folds(family, rows)
    test = fold == np.unique(fold)[0]
    if test.all():
        return []
    model: FamilyModel = FAMILIES[family].fit(rows[~test].reset_index(drop=True), accelerator)
    return importance(model, rows[test].reset_index(drop=True), accelerator)


def _cards(facts: BundleFacts, accelerator: Accelerator, kept: dict[str, pd.DataFrame]) -> list[tuple[str, str]]:
    n_in = sum(r.rows.get("rows_in", 0) for r in facts.families.values())
    rejected = sum(v for r in facts.families.values() for k, v in r.rows.items() if k != "rows_in")
    rows = [("Rows in this report", f"{sum(len(t) for t in kept.values()):,}")] if kept else []
    return [
        ("Hardware", accelerator.full_name),
        ("Peak, TFLOP/s", peaks_text(accelerator)),
        ("Peak memory rate", f"{accelerator.memory_bandwidth_bytes_per_s / 1e9:,.0f} GB/s"),
        ("Rows fitted", f"{n_in - rejected:,}"),
        ("Rejected: faster than physics", f"{rejected:,}"),
        *rows,
    ]
