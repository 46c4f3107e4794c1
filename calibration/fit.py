"""Rows -> bundle: gate every table, fit every family, measure the held-out error, write both files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from calibration.bundle_file import FittedFamily, write_bundle
from calibration.dataset import rows_sha256
from calibration.families import FAMILIES
from calibration.families.prefill_attention import PrefillAttentionModel
from calibration.gate import gate
from calibration.validate import check, check_mixed, cross_validate, notes
from catalogs.errors import InputError
from catalogs.hardware import Accelerator

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
    errors = [e.to_dict() for e in cross_validate(family, kept, accelerator)]
    return FittedFamily(model, report.to_dict(), rows_sha256(kept), errors, notes(model, kept, accelerator))


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
    elif family in fitted:
        fitted[family].notes.extend(check(fitted[family].model, f"against {source}", rows, accelerator))


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
