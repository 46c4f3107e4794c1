"""Fit a bundle to rows: check every table, fit every family, measure held-out errors, and write both files."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np
import pandas as pd

from calibration.bundles.files import FittedFamily, Release, write_bundle
from calibration.families.base import held_out
from calibration.families.decode_attention import DecodeAttentionModel, cold_rows
from calibration.families.prefill_attention import PrefillAttentionModel
from calibration.families.registry import FAMILIES
from calibration.fitting.cross_validation import as_engine, check, check_mixed, cross_validate, line, notes, predict
from calibration.importers.public import licence_of
from calibration.rows.dataset import rows_sha256
from calibration.rows.physics_check import gate
from catalogs.errors import InputError
from catalogs.hardware.specs import Accelerator

#: An engine and its version in the `source` text of a row.
_RELEASE: Final = re.compile(r"\b(vllm|sglang|trtllm) (\S+)|^(aiter)@(\S+)")


def fit_family(family: str, rows: pd.DataFrame, accelerator: Accelerator) -> FittedFamily:
    """Check, fit and cross-validate the rows of one family.

    Raises:
        InputError: No row respects the peaks of the accelerator.
    """
    kept, report = gate(family, rows, accelerator)
    if kept.empty:
        raise InputError(f"no {family} row obeys the peaks of {accelerator.name}", f"{len(rows)} rows")
    model = FAMILIES[family].fit(kept, accelerator)
    # Of decode attention the model must predict the batches of a step, which are not served from the cache.
    in_step = cold_rows(as_engine(family, kept), accelerator) if family == "decode_attention" else kept
    errors = [e.to_dict() for e in cross_validate(family, in_step, accelerator)]
    return FittedFamily(model, report.to_dict(), rows_sha256(kept), errors, notes(model, kept, accelerator))


def fit_bundle(
    tables: dict[str, pd.DataFrame],
    accelerator: Accelerator,
    folder: Path,
    others: dict[tuple[str, str], pd.DataFrame] | None = None,
) -> Path:
    """Fit every family that has a model and rows, write the bundle to `folder`, and return the path of bundle.json.

    Args:
        tables: Rows by family.
        accelerator: The measured accelerator.
        folder: Where to write.
        others: Rows of other sources by (family, source), which only check the fit.

    Raises:
        InputError: No family has both a model and rows that respect the peaks.
    """
    fitted = {f: fit_family(f, rows, accelerator) for f, rows in sorted(tables.items()) if f in FAMILIES}
    if not fitted:
        raise InputError("no rows of a family that has a model", ", ".join(tables), ", ".join(FAMILIES))
    for (family, source), rows in (others or {}).items():
        prefill, decode = fitted.get("prefill_attention"), fitted.get("decode_attention")
        if family == "mixed_attention" and prefill and decode and isinstance(prefill.model, PrefillAttentionModel):
            prefill.notes.extend(check_mixed(prefill.model, decode.model, rows, accelerator))
        elif decode and family == "decode_attention" and "inside_engine" in rows and bool(rows["inside_engine"].all()):
            fitted[family] = _with_engine_rows(decode, source, rows, accelerator)
        elif family in fitted:
            fitted[family].notes.extend(check(fitted[family].model, f"against {source}", rows, accelerator))
    sources = sources_of({f: tables[f] for f in fitted})
    most = tables[max(fitted, key=lambda f: len(tables[f]))]
    release = release_of(sources_of({"": most})[-1]["name"])
    return write_bundle(folder, accelerator.name, release, sources, fitted)


def _with_engine_rows(fitted: FittedFamily, source: str, rows: pd.DataFrame, accelerator: Accelerator) -> FittedFamily:
    """Return the family with the extra time of batches inside an engine added to its model.

    Its notes report the error of the model without these rows, and its error on head configurations that were left out.
    """
    plain = fitted.model
    if not isinstance(plain, DecodeAttentionModel):
        return fitted
    rows = rows.reset_index(drop=True)
    predicted = np.zeros(len(rows))
    for index in rows.groupby(["n_heads", "n_kv_heads"]).indices.values():
        others = plain.with_engine_rows(rows.drop(index), accelerator)
        predicted[index] = predict(others, rows.loc[index].reset_index(drop=True), accelerator)
    error = held_out("decode_attention", "all", predicted, rows.seconds.to_numpy(float))
    found = [
        *check(plain, f"table alone against {source}", rows, accelerator),
        line("with these rows, each head configuration left out in turn", error),
    ]
    return replace(fitted, model=plain.with_engine_rows(rows, accelerator), notes=[*fitted.notes, *found])


def release_of(text: str) -> Release:
    """Return the engine release that the `source` text of a row names; vLLM without a version where it names none."""
    found = _RELEASE.search(text)
    return Release(found[1] or found[3], found[2] or found[4]) if found else Release("vllm", "")


def sources_of(tables: dict[str, pd.DataFrame]) -> list[dict[str, str]]:
    """Return the distinct `source` texts of rows ("project@commit what engine version") as records."""
    texts = sorted({str(t) for rows in tables.values() for t in rows["source"].unique()})
    out = []
    for text in texts:
        commit = text.split()[0].partition("@")[2]
        version = release_of(text).version
        out.append({"name": text, "licence": licence_of(text), "commit": commit, "version": version})
    return out
