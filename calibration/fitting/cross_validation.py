"""Errors of the fitted models on unseen shapes: cross-validation by whole groups, never by random rows."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from calibration.bundles.bundle import load_bundle
from calibration.bundles.files import read_bundle
from calibration.families.base import FamilyModel, HeldOutErrors, held_out
from calibration.families.prefill_attention import PrefillAttentionModel
from calibration.families.registry import FAMILIES
from calibration.rows.dataset import operators_of, read_rows
from calibration.rows.physics_check import gate
from catalogs.arrays import FloatArray
from catalogs.hardware.catalog import parse_hardware
from catalogs.hardware.specs import Accelerator
from catalogs.ui.words import percent
from catalogs.units import MIB

#: Folds of a cross-validation. A judgement: the usual number; each fold fits all models again.
N_FOLDS: Final = 5

#: Columns that define a group: whole shapes, head configurations, architectures or kinds. The rows of a group are held
#: out together.
GROUPS: Final[dict[str, tuple[str, ...]]] = {
    "gemm": ("n", "k"),
    "prefill_attention": ("n_heads", "n_kv_heads"),
    "decode_attention": ("n_heads", "n_kv_heads"),
    "moe": ("hidden_size", "intermediate_size", "n_experts", "experts_per_token"),
    "noncausal_attention": ("n_heads",),
    "mla": ("n_heads", "sequences"),
    "linear_attention": ("n_heads",),
    "elementwise": ("kind", "bytes_per_token"),
    "collective": ("kind", "ranks", "message_bytes"),
    "matmul": ("n", "k"),
    "convolution": ("in_channels", "out_channels", "window", "stride"),
    "streaming": ("operator", "elements"),
    "host_launch": ("kind",),
}

#: The columns that define a group where a table has one head configuration: all rows of one length.
LENGTH: Final[dict[str, Callable[[pd.DataFrame], pd.Series[float]]]] = {
    "prefill_attention": lambda rows: rows.tokens / rows.chunks,
    "decode_attention": lambda rows: rows.context_tokens / rows.sequences,
}

#: The rows held out as "beyond", which test the extrapolation past the end of a shorter grid.
BEYOND: Final[dict[str, Callable[[pd.DataFrame], pd.Series[bool]]]] = {
    "gemm": lambda rows: (rows.n > 12288) | (rows.k > 12288),
    "prefill_attention": lambda rows: rows.tokens / rows.chunks > 8192,
    "decode_attention": lambda rows: rows.context_tokens / rows.sequences > 16384,
    "moe": lambda rows: rows.tokens > 4096,
    "noncausal_attention": lambda rows: rows.key_tokens > 8192,
    "mla": lambda rows: (rows.tokens + rows.context_tokens) / rows.sequences > 8192,
    "collective": lambda rows: rows.message_bytes > 64 * MIB,
    "elementwise": lambda rows: rows.tokens * rows.bytes_per_token > 64 * MIB,
}


def predict(model: FamilyModel, rows: pd.DataFrame, accelerator: Accelerator) -> FloatArray:
    """Return the predicted seconds of every row, shape (n,)."""
    seconds = np.zeros(len(rows))
    for op, index in operators_of(model.family, rows):
        seconds[index] = model.cost(op, accelerator)[0]
    return seconds


def cross_validate(family: str, rows: pd.DataFrame, accelerator: Accelerator) -> list[HeldOutErrors]:
    """Return the held-out errors of one family.

    "inside" comes from N_FOLDS folds of whole groups, "beyond" from one cut at the edge of the grid.
    """
    rows = as_engine(family, rows)
    predicted, far = out_of_fold(family, rows, accelerator), beyond(family, rows)
    done = np.isfinite(predicted)
    measured = rows.seconds.to_numpy(float)
    out = [held_out(family, "inside", predicted[done], measured[done])] if done.any() else []
    if far.any() and not far.all():
        out.append(held_out(family, "beyond", _unseen_s(family, rows, far, accelerator), measured[far]))
    return out


def out_of_fold(family: str, rows: pd.DataFrame, accelerator: Accelerator) -> FloatArray:
    """Return the seconds of each row, shape (n,), by a model fitted without the fold of the row.

    They are NaN where no such fit is possible. The index of `rows` counts from 0.
    """
    fold, predicted = folds(family, rows), np.full(len(rows), np.nan)
    for f in np.unique(fold):
        test = fold == f
        if not test.all():
            predicted[test] = _unseen_s(family, rows, test, accelerator)
    return predicted


def _unseen_s(family: str, rows: pd.DataFrame, test: npt.NDArray[np.bool_], accelerator: Accelerator) -> FloatArray:
    """Return the seconds of the rows in the mask `test` by a model fitted to the others."""
    model = FAMILIES[family].fit(rows[~test].reset_index(drop=True), accelerator)
    return predict(model, rows[test].reset_index(drop=True), accelerator)


def beyond(family: str, rows: pd.DataFrame) -> npt.NDArray[np.bool_]:
    """Return a mask, shape (n,), of rows past the end of the shorter grid that checks a family's extrapolation."""
    return BEYOND[family](rows).to_numpy(bool) if family in BEYOND else np.zeros(len(rows), dtype=bool)


def notes(model: FamilyModel, rows: pd.DataFrame, accelerator: Accelerator) -> list[str]:
    """Return a note on rows of the fitted table that the fit left out: sliding windows."""
    if "window_tokens" not in rows.columns:
        return []
    return check(model, "sliding-window rows, not fitted", rows[rows.window_tokens > 0], accelerator)


def check(model: FamilyModel, what: str, rows: pd.DataFrame, accelerator: Accelerator) -> list[str]:
    """Return one line on the model's error on `rows` that it was not fitted on.

    The list is empty where there are no rows.
    """
    if rows.empty:
        return []
    rows = rows.reset_index(drop=True)
    return [line(what, held_out(model.family, "all", predict(model, rows, accelerator), rows.seconds.to_numpy(float)))]


def line(what: str, e: HeldOutErrors) -> str:
    """Return one line of text about errors, which starts with `what`."""
    return (
        f"{what}: n {e.n}, median {percent(e.median_abs, 1)}, p90 "
        f"{percent(e.p90_abs, 1)}, bias {percent(e.bias, 1, signed=True)}"
    )


def check_mixed(
    prefill: PrefillAttentionModel, decode: FamilyModel, rows: pd.DataFrame, accelerator: Accelerator
) -> list[str]:
    """Compare a step with prefill and decodes to the sum of its two parts, for both ways to price the decodes."""
    parts = rows.reset_index(drop=True)
    n, pairs = parts.sequences, parts.context_tokens + 0.5 * parts.sequences
    own = predict(prefill, parts, accelerator)
    alone = predict(decode, parts, accelerator)
    as_chunks = predict(prefill, parts.assign(chunks=n, tokens=n, pairs=pairs), accelerator)
    found = {"a decode kernel of their own": alone, "prefill chunks of one token": as_chunks}
    errors = {how: held_out("mixed", "all", own + p, parts.seconds.to_numpy(float)) for how, p in found.items()}
    return [line(f"mixed steps, decodes priced as {how}", e) for how, e in errors.items()]


def errors_on(path: Path, rows: Path) -> list[dict[str, Any]]:
    """Return the errors of a bundle on the rows of a folder, by family."""
    accelerator = parse_hardware(read_bundle(path)[0].hardware).accelerator
    bundle, found = load_bundle(accelerator, path), []
    for family, table in read_rows(rows).items():
        if family in bundle.models:
            kept = as_engine(family, gate(family, table, accelerator)[0])
            seconds = predict(bundle.models[family], kept, accelerator)
            errors = held_out(family, "rows", seconds, kept.seconds.to_numpy(float))
            found.append({"family": family, **errors.to_dict()})
    return found


def as_engine(family: str, rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows that an engine would run: the fastest kernel of each shape, without windowed attention."""
    if "window_tokens" in rows.columns:
        return rows[rows.window_tokens == 0].reset_index(drop=True)
    if family == "gemm":
        rows = rows[(rows.n >= 64) & (rows.k >= 64)]
        return rows.loc[rows.groupby(["dtype", "m", "n", "k"]).seconds.idxmin()].reset_index(drop=True)
    return rows.reset_index(drop=True)


def folds(family: str, rows: pd.DataFrame) -> npt.NDArray[np.int64]:
    """Return the fold of each row, shape (n,), from a hash of its group that is the same on every machine.

    With few groups each is a fold. A table with one head configuration holds out whole lengths instead.
    """
    names = rows[list(GROUPS[family])].astype(str).agg("/".join, axis=1)
    if names.nunique() == 1 and family in LENGTH:
        names = LENGTH[family](rows).round().astype(str)
    few = names.nunique() <= 2 * N_FOLDS
    code = {n: i if few else zlib.crc32(n.encode()) % N_FOLDS for i, n in enumerate(sorted(names.unique()))}
    return names.map(code).to_numpy(np.int64)
