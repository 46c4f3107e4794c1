"""Fits a profile of this machine into a calibration bundle, checks it on the held-out shapes, and installs it."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from calibration.bundles.bundle import user_folder
from calibration.bundles.files import (
    ARRAYS_NAME,
    ENGINES_FOLDER,
    JSON_NAME,
    FittedFamily,
    Release,
    read_bundle,
    write_bundle,
    write_facts,
)
from calibration.families.base import held_out
from calibration.families.decode_attention import DecodeAttentionModel
from calibration.families.prefill_attention import PrefillAttentionModel
from calibration.families.registry import FAMILIES
from calibration.fitting.cross_validation import cross_validate, predict
from calibration.profile.kernels.drift_reference import NOTABLE
from calibration.profile.session.manifest import Manifest
from calibration.profile.session.session import Row
from calibration.profile.session.tables import Tables, tables, write_errors, write_measured
from calibration.rows.dataset import rows_sha256, write_rows
from calibration.rows.physics_check import gate
from catalogs.errors import InputError
from catalogs.hardware.specs import Accelerator
from catalogs.io.output_files import atomic_folder
from catalogs.ui.words import percent

if TYPE_CHECKING:
    import pandas as pd


#: Fewest rows of which whole groups are held out. A judgement: with fewer, too few rows would be left to fit.
FEWEST_FOR_GROUPS: Final = 40

CONTENDED_WARNING: Final = 0.1  # share of contended rows above which the bundle carries a notice

#: Share of contended rows above which a bundle is installed only if the user says so. A judgement: most of its rows.
MOST_CONTENDED: Final = 0.5

#: Part of the notice of a contended bundle, by which an installed bundle is recognised as contended.
DISTURBED: Final = "of the rows were measured while other processes used the machine"

#: The same part in bundles that earlier releases wrote.
DISTURBED_BEFORE: Final = "of the rows were measured while others used the machine"


def fit_profile(rows: list[Row], manifest: Manifest, accelerator: Accelerator, folder: Path) -> Path:
    """Write rows/, held_out/, measured.parquet and bundle/ under `folder` and return the path of bundle.json.

    Raises:
        InputError: If no family has rows that obey the accelerator's peaks, or the files cannot be written.
    """
    version = manifest["libraries"]["torch"]
    source = f"calibrate profile of {accelerator.full_name}, torch {version}, {manifest['started_at'][:10]}"
    found = tables(rows, source, manifest["device"] == "cpu" or "bf16" in accelerator.peak_flops)
    write_measured(rows, folder / "measured.parquet")
    with write_errors(folder):
        write_rows(folder / "rows", found.fit)
        write_rows(folder / "held_out", found.held_out)
    fitted = {f: fit for f in found.fit if f in FAMILIES and (fit := fit_measured(f, found, accelerator)) is not None}
    if not fitted:
        raise InputError("no measured row obeys the peak rates of this machine", str(folder))
    with write_errors(folder):
        path = write_bundle(folder / "bundle", accelerator.name, Release("torch", version), [{"name": source}], fitted)
    driver = (manifest.get("gpu") or {}).get("driver")
    update = {"driver": driver, "notices": notices(found, manifest)}
    write_facts(read_bundle(path)[0].model_copy(update=update), path)
    return path


def notices(found: Tables, manifest: Manifest) -> list[str]:
    """Return the notices that every answer based on this bundle must show."""
    lines = []
    if found.contended_share > CONTENDED_WARNING:
        families = ", ".join(found.contended_families)
        fitted = f" (families fitted on such rows: {families})" if families else ""
        lines.append(f"{percent(found.contended_share)} {DISTURBED}{fitted}: times may be too long")
    spread = (manifest.get("drift") or {}).get("spread", 0.0)
    if spread > NOTABLE:
        what = f"the time of a reference product varied by {percent(spread)} during profiling"
        lines.append(f"the machine was not steady: {what}")
    if manifest["device"] == "cpu":
        what = f"measured with {(manifest.get('cpu') or {}).get('threads')} threads of this CPU and torch's kernels"
        lines.append(f"{what}; run the engine with the same number of threads")
    return lines


def fit_measured(family: str, found: Tables, accelerator: Accelerator) -> FittedFamily | None:
    """Fit a family to its clean rows and check it on its held-out rows; return None where no row obeys the peaks."""
    gated, report = gate(family, found.fit[family], accelerator)
    kept, later = split_context_chunks(family, gated, accelerator)
    if kept.empty:
        return None
    model = FAMILIES[family].fit(kept, accelerator)
    if isinstance(model, PrefillAttentionModel) and accelerator.kind == "cpu":
        model = replace(model, serial={})  # torch's CPU kernel does not split the keys of a query between cores.
        if len(later):
            model = model.with_context(later, accelerator)
    remarks: list[str] = []
    if isinstance(model, DecodeAttentionModel) and family in found.check:
        model, remark = _with_skew(model, found.check[family], accelerator)
        remarks.append(remark)
    errors = []
    if family in found.held_out:  # random batch and context, and sizes that were not fitted
        rows = gate(family, found.held_out[family], accelerator)[0]
        if not rows.empty:
            error = held_out(family, "inside", predict(model, rows, accelerator), rows.seconds.to_numpy(float))
            errors.append(error.to_dict())
    if len(kept) >= FEWEST_FOR_GROUPS:
        lines = [e for e in cross_validate(family, kept, accelerator) if e.region == "inside"]
        errors += [replace(e, region="groups" if errors else "inside").to_dict() for e in lines]
    return FittedFamily(model, report.to_dict(), rows_sha256(kept), errors, remarks)


def split_context_chunks(
    family: str, rows: pd.DataFrame, accelerator: Accelerator
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Split the rows of a family into those of its grid and those of a separate term.

    Prefill attention on a CPU has such a term: chunks after context. Other families have none.

    Returns:
        The rows that the family's grid is fitted to and checked on, and the rows of the separate term.
    """
    if family != "prefill_attention" or accelerator.kind != "cpu":
        return rows, rows[:0]
    whole = (rows.pairs * rows.chunks * 2.0 / rows.tokens**2).between(0.98, 1.02)
    return rows[whole].reset_index(drop=True), rows[~whole].reset_index(drop=True)


def _with_skew(
    model: DecodeAttentionModel, rows: pd.DataFrame, accelerator: Accelerator
) -> tuple[DecodeAttentionModel, str]:
    """Fit alpha in t = t(mean) + alpha (t(longest) - t(mean)) as the median over the uneven batches measured."""
    even, worst = (predict(replace(model, skew_alpha=alpha), rows, accelerator) for alpha in (0.0, 1.0))
    seconds = rows.seconds.to_numpy(float)
    usable = worst > 1.05 * even
    if not usable.any():
        return model, "uneven batches: none was measured, alpha is that of the public tables"
    alpha = float(np.clip(np.median((seconds - even)[usable] / (worst - even)[usable]), 0.0, 1.0))
    remark = f"uneven batches: alpha {alpha:.3f} from {int(usable.sum())} rows"
    return replace(model, skew_alpha=round(alpha, 4)), remark


def reason_against(bundle: Path, name: str, share: float) -> str | None:
    """Return why a contended bundle should not be installed for hardware of this name, in words; None if it may be.

    Args:
        bundle: The path of its bundle.json.
        name: The name of the hardware, under which a bundle may be installed already.
        share: The share of its rows that were contended.
    """
    old = user_folder() / name / JSON_NAME
    if _disturbed(bundle) and old.is_file() and not _disturbed(old):
        return f"{percent(share)} {DISTURBED}, and those of the calibration in use were not"
    return f"{percent(share)} {DISTURBED}" if share > MOST_CONTENDED else None


def _disturbed(bundle: Path) -> bool:
    return any(text in notice for notice in read_bundle(bundle)[0].notices for text in (DISTURBED, DISTURBED_BEFORE))


def install(bundle: Path, name: str) -> Path:
    """Copy a bundle atomically to the user's calibrations, keep host times there, and return its folder."""
    target = user_folder() / name
    with atomic_folder(target, replace=True, keep=(ENGINES_FOLDER,)) as part:
        for file in (JSON_NAME, ARRAYS_NAME):
            shutil.copy2(bundle.parent / file, part / file)
    return target
