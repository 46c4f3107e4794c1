"""Read the material of a report from a profile's folder, with new fits so that held-out shapes are unseen."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pandas as pd

from calibration.estimators.compare import engine_rows
from calibration.families.base import FamilyModel
from calibration.profile.peaks import measured
from calibration.profile.profile_bundle import FEWEST_FOR_GROUPS, fit_measured, notices, split_context_chunks
from calibration.profile.session import manifest
from calibration.profile.session.session import Row, Session
from calibration.profile.session.tables import Tables, tables
from calibration.report import held_out
from calibration.report.material import GROUP, OFF_GRID, CalibrationReport, FieldImportance, peaks_text
from calibration.rows.dataset import OPERATOR_COLUMNS
from calibration.rows.physics_check import gate
from catalogs.errors import InputError
from catalogs.hardware.catalog import parse_hardware
from catalogs.hardware.specs import Accelerator
from catalogs.ui.words import percent
from catalogs.units import GIB, MIB

UNKNOWN_BANDWIDTH: Final = 1e9  # replaced by the highest rate in the rows


def read_profile(folder: Path) -> CalibrationReport:
    """Return the material of a profile's report.

    Raises:
        InputError: The folder holds no profile, or no row of it can be fitted.
    """
    facts = manifest.read(folder)
    rows = Session.read(folder).rows if facts is not None else []
    if facts is None or not rows:
        raise InputError(
            "no profile here: no manifest.json or rows", str(folder), hint="give the --out of calibrate run"
        )
    accelerator = machine_of(facts, rows)
    found = tables(rows, "profile", facts["device"] == "cpu" or "bf16" in accelerator.peak_flops)
    fitted = {f: x for f in found.fit if (x := fit_measured(f, found, accelerator)) is not None}
    if not fitted:
        raise InputError("no measured row obeys the peaks of this machine", str(folder))
    models = {f: x.model for f, x in fitted.items()}
    held = _held(found, models, accelerator)
    dtypes = sorted({str(r["dtype"]) for r in rows if r["family"] == "gemm"})
    return CalibrationReport(
        title=f"Calibration of {accelerator.full_name}",
        subtitle=f"Measured {facts['started_at'][:16].replace('T', ' ')} UTC with torch {facts['libraries']['torch']}",
        accelerator=accelerator,
        cards=_cards(rows, accelerator, found),
        facts=_facts(facts),
        notices=notices(found, facts),
        errors=held_out.error_lines(held, {f: len(rows) for f, rows in found.fit.items()}, (OFF_GRID, GROUP)),
        coverage=held_out.coverage(accelerator, dtypes, models, int(facts.get("seed") or 0)),
        held=held,
        measured=_measured(rows, found, accelerator),
        importance=_importance(found, models, accelerator),
        no_power=str(facts.get("power") or "no power was recorded"),
    )


def machine_of(facts: manifest.Manifest, rows: list[Row]) -> Accelerator:
    """Return the accelerator that a profile was measured on, which may be another machine's."""
    name = str(facts["hardware"])
    if name != "local":
        return parse_hardware(name).accelerator
    cpu, gpu = facts.get("cpu") or {}, facts.get("gpu") or {}
    memory = float(gpu.get("memory_gib") or facts.get("memory_gib") or 0.0) * GIB
    kind = "cpu" if facts["device"] == "cpu" else "gpu"
    full_name = str((cpu if kind == "cpu" else gpu).get("model" if kind == "cpu" else "name") or "this machine")
    bare = Accelerator("local", full_name, memory, UNKNOWN_BANDWIDTH, {}, 0.0, 0.0, kind=kind)
    return measured(bare, rows, float(cpu.get("last_level_cache_mib") or 0.0) * MIB)


def _held(found: Tables, models: dict[str, FamilyModel], accelerator: Accelerator) -> pd.DataFrame | None:
    parts = []
    for family, model in models.items():
        if family in found.held_out:
            kept = gate(family, found.held_out[family], accelerator)[0]
            parts.append(held_out.off_grid(model, kept, found.fit[family], accelerator))
        rows, _ = split_context_chunks(family, found.fit[family], accelerator)
        if len(rows) >= FEWEST_FOR_GROUPS:
            tables_left_out = held_out.left_out(family, engine_rows(family, rows, accelerator), accelerator)
            parts += [tables_left_out[GROUP]] if GROUP in tables_left_out else []
    return held_out.together(parts)


def _measured(rows: list[Row], found: Tables, accelerator: Accelerator) -> pd.DataFrame:
    """Return every sound row, including those measured only as a check."""
    parts = []
    for family in found.fit:
        mine = [r for r in rows if r["family"] == family and r["status"] == "ok"]
        frame = pd.DataFrame(mine, columns=[*OPERATOR_COLUMNS[family], "seconds", "watts", "contended"])
        frame["watts"] = pd.to_numeric(frame["watts"], errors="coerce")
        parts.append(held_out.measured_frame(family, frame, accelerator))
    return pd.concat(parts, ignore_index=True)


def _importance(found: Tables, models: dict[str, FamilyModel], accelerator: Accelerator) -> list[FieldImportance]:
    shapes = {f: held_out.unseen(f, found.held_out[f], found.fit[f]) for f in models if f in found.held_out}
    return [field for f, rows in shapes.items() for field in held_out.importance(models[f], rows, accelerator)]


def _cards(rows: list[Row], accelerator: Accelerator, found: Tables) -> list[tuple[str, str]]:
    ok = sum(r["status"] == "ok" for r in rows)
    spent = sum(float(r["elapsed_s"]) for r in rows)
    kind = "Fastest seen" if accelerator.name == "local" else "Peak"
    return [
        ("Machine", accelerator.full_name),
        (f"{kind}, TFLOP/s", peaks_text(accelerator)),
        (f"{kind} memory rate", f"{accelerator.memory_bandwidth_bytes_per_s / 1e9:,.0f} GB/s"),
        ("Shapes measured", f"{ok:,} in {spent / 60:.1f} min"),
        ("Disturbed by other work", f"{percent(found.contended_share)} of shapes"),
        ("Failed or out of memory", f"{len(rows) - ok:,}"),
    ]


def _facts(facts: manifest.Manifest) -> list[tuple[str, str]]:
    flat = manifest.flat({k: v for k, v in facts.items() if k not in ("counts", "schema_version")})
    return [
        (k, ", ".join(map(str, v)) if isinstance(v, list) else str(v))
        for k, v in flat.items()
        if k not in ("cpu.flags", "gpu.topology") and v not in (None, "", [])
    ]
