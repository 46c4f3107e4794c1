"""Rows -> bundle: gate every table, fit every family, measure the held-out error, write both files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from calibration.bundle_file import FittedFamily, write_bundle
from calibration.dataset import rows_sha256
from calibration.families import FAMILIES
from calibration.gate import gate
from calibration.validate import cross_validate, notes
from catalogs.errors import InputError
from catalogs.hardware import Accelerator

if TYPE_CHECKING:
    import pandas as pd


def fit_family(family: str, rows: pd.DataFrame, accelerator: Accelerator) -> FittedFamily:
    """Gate, fit and cross-validate the rows of one family."""
    kept, report = gate(family, rows, accelerator)
    if kept.empty:
        raise InputError(f"no {family} row obeys the peaks of {accelerator.name}", f"{len(rows)} rows")
    model = FAMILIES[family].fit(kept, accelerator)
    errors = [e.to_dict() for e in cross_validate(family, kept, accelerator)]
    return FittedFamily(model, report.to_dict(), rows_sha256(kept), errors, notes(family, model, kept, accelerator))


def fit_bundle(tables: dict[str, pd.DataFrame], accelerator: Accelerator, folder: Path) -> Path:
    """Fit every family that has a model and rows; write the bundle to `folder`; returns bundle.json's path."""
    fitted = {f: fit_family(f, rows, accelerator) for f, rows in sorted(tables.items()) if f in FAMILIES}
    if not fitted:
        raise InputError("no rows of a family that has a model", ", ".join(tables), ", ".join(FAMILIES))
    sources = sources_of({f: tables[f] for f in fitted})
    version = next((s["version"] for s in sources if s["version"]), "")
    return write_bundle(folder, accelerator.name, version, sources, fitted)


def sources_of(tables: dict[str, pd.DataFrame]) -> list[dict[str, str]]:
    """The distinct `source` texts of rows ("project@commit what engine version"), as records."""
    licences = {"aiconfigurator": "Apache-2.0", "LLMServingSim": "MIT", "vidur": "MIT", "nccl-tests": "MIT"}
    texts = sorted({str(t) for rows in tables.values() for t in rows["source"].unique()})
    out = []
    for text in texts:
        project = text.split()[0]
        name, _, commit = project.partition("@")
        words = text.split()
        version = words[words.index("vllm") + 1] if "vllm" in words[:-1] else ""
        out.append({"name": text, "licence": licences.get(name, ""), "commit": commit, "version": version})
    return out
