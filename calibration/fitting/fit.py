"""Rows -> bundle: gate every table, fit every family, measure the held-out error, write both files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from calibration.bundles.files import FittedFamily, write_bundle
from calibration.families.base import held_out
from calibration.families.decode_attention import DecodeAttentionModel, cold_rows
from calibration.families.prefill_attention import PrefillAttentionModel
from calibration.families.registry import FAMILIES
from calibration.fitting.validate import as_engine, check, check_mixed, cross_validate, line, notes, predict
from calibration.rows.dataset import rows_sha256
from calibration.rows.physics_check import gate
from catalogs.errors import InputError
from catalogs.hardware.specs import Accelerator

if TYPE_CHECKING:
    import pandas as pd


LICENCES: Final = {
    "aiconfigurator": "Apache-2.0",
    "aisimulate": "Apache-2.0",
    "LLMServingSim": "MIT",
    "vidur": "MIT",
    "apex_plus": "MIT",
}


def fit_family(family: str, rows: pd.DataFrame, accelerator: Accelerator) -> FittedFamily:
    """Gate, fit and cross-validate the rows of one family."""
    kept, report = gate(family, rows, accelerator)
    if kept.empty:
        raise InputError(f"no {family} row obeys the peaks of {accelerator.name}", f"{len(rows)} rows")
    model = FAMILIES[family].fit(kept, accelerator)
    errors = [e.to_dict() for e in cross_validate(family, _in_step(family, kept, accelerator), accelerator)]
    return FittedFamily(model, report.to_dict(), rows_sha256(kept), errors, notes(model, kept, accelerator))


def _in_step(family: str, rows: pd.DataFrame, accelerator: Accelerator) -> pd.DataFrame:
    """What the model is asked to meet: of decode attention, batches that do not sit in the cache."""
    return cold_rows(as_engine(family, rows), accelerator) if family == "decode_attention" else rows


def fit_bundle(
    tables: dict[str, pd.DataFrame],
    accelerator: Accelerator,
    folder: Path,
    others: dict[tuple[str, str], pd.DataFrame] | None = None,
) -> Path:
    """Fit every family that has a model and rows; write the bundle to `folder`; returns bundle.json's path.

    others: rows of other sources by (family, source), which only check the fit.
    """
    fitted = {f: fit_family(f, rows, accelerator) for f, rows in sorted(tables.items()) if f in FAMILIES}
    if not fitted:
        raise InputError("no rows of a family that has a model", ", ".join(tables), ", ".join(FAMILIES))
    for (family, source), rows in (others or {}).items():
        _check_with(fitted, family, source, rows, accelerator)
    sources = sources_of({f: tables[f] for f in fitted})
    version = sources_of({"": tables[max(fitted, key=lambda f: len(tables[f]))]})[-1]["version"]
    return write_bundle(folder, accelerator.name, version, sources, fitted)


def _check_with(
    fitted: dict[str, FittedFamily], family: str, source: str, rows: pd.DataFrame, accelerator: Accelerator
) -> None:
    prefill, decode = fitted.get("prefill_attention"), fitted.get("decode_attention")
    if family == "mixed_attention" and prefill and decode and isinstance(prefill.model, PrefillAttentionModel):
        prefill.notes.extend(check_mixed(prefill.model, decode.model, rows, accelerator))
    elif decode and family == "decode_attention" and "inside_engine" in rows and bool(rows["inside_engine"].all()):
        fitted[family] = _met_engine(decode, source, rows, accelerator)
    elif family in fitted:
        fitted[family].notes.extend(check(fitted[family].model, f"against {source}", rows, accelerator))


def _met_engine(fitted: FittedFamily, source: str, rows: pd.DataFrame, accelerator: Accelerator) -> FittedFamily:
    """With what batches take longer inside an engine; notes how the model meets them without, and unseen ones with."""
    plain = fitted.model
    if not isinstance(plain, DecodeAttentionModel):
        return fitted
    rows = rows.reset_index(drop=True)
    heads = rows.groupby(["n_heads", "n_kv_heads"]).ngroup()
    predicted = np.zeros(len(rows))
    for held in sorted(heads.unique()):
        others = plain.with_engine_rows(rows[heads != held], accelerator)
        predicted[heads == held] = predict(others, rows[heads == held].reset_index(drop=True), accelerator)
    error = held_out("decode_attention", "all", predicted, rows.seconds.to_numpy(float))
    found = [
        *check(plain, f"table alone against {source}", rows, accelerator),
        line("with these rows, each head configuration left out in turn", error),
    ]
    return replace(fitted, model=plain.with_engine_rows(rows, accelerator), notes=[*fitted.notes, *found])


def sources_of(tables: dict[str, pd.DataFrame]) -> list[dict[str, str]]:
    """The distinct `source` texts of rows ("project@commit what engine version"), as records."""
    texts = sorted({str(t) for rows in tables.values() for t in rows["source"].unique()})
    out = []
    for text in texts:
        words = text.split()
        commit = words[0].partition("@")[2]
        version = words[words.index("vllm") + 1] if "vllm" in words[:-1] else ""
        licence = next((v for k, v in LICENCES.items() if k.lower() in text.lower()), "")
        out.append({"name": text, "licence": licence, "commit": commit, "version": version})
    return out
