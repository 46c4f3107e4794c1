"""How wrong the fitted models are on shapes they have not seen: grouped cross-validation, never random rows."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from calibration.cost import Array
from calibration.families import FAMILIES
from calibration.family import FamilyModel, HeldOut, held_out
from calibration.row_operators import operators_of
from catalogs.hardware import Accelerator

if TYPE_CHECKING:
    import pandas as pd

N_FOLDS: Final = 5

#: Rows of one group are held out together.
GROUPS: Final[dict[str, tuple[str, ...]]] = {
    "gemm": ("n", "k"),
    "prefill_attention": ("n_heads", "n_kv_heads"),
    "decode_attention": ("n_heads", "n_kv_heads"),
}

#: Rows held out together as "beyond": what the model says past the end of a shorter grid.
BEYOND: Final[dict[str, Callable[[pd.DataFrame], pd.Series[bool]]]] = {
    "gemm": lambda rows: (rows.n > 12288) | (rows.k > 12288),
    "prefill_attention": lambda rows: rows.tokens / rows.chunks > 8192,
    "decode_attention": lambda rows: rows.context_tokens / rows.sequences > 16384,
}


def predict(model: FamilyModel, rows: pd.DataFrame, accelerator: Accelerator) -> Array:
    """Seconds of every row (n,)."""
    seconds = np.zeros(len(rows))
    for op, index in operators_of(model.family, rows):
        seconds[index] = model.cost(op, accelerator)[0]
    return seconds


def cross_validate(family: str, rows: pd.DataFrame, accelerator: Accelerator) -> list[HeldOut]:
    """Held-out errors of one family: "inside" from N_FOLDS folds of whole groups, "beyond" from one cut at the edge."""
    rows = _as_engine(family, rows)
    fold = _folds(family, rows)
    predicted = np.full(len(rows), np.nan)
    for f in range(N_FOLDS):
        test = fold == f
        if test.any() and not test.all():
            model = FAMILIES[family].fit(rows[~test], accelerator)
            predicted[test] = predict(model, rows[test].reset_index(drop=True), accelerator)
    done = np.isfinite(predicted)
    measured = rows.seconds.to_numpy(float)
    out = [held_out(family, "inside", predicted[done], measured[done])] if done.any() else []
    return out + _beyond(family, rows, accelerator)


def _beyond(family: str, rows: pd.DataFrame, accelerator: Accelerator) -> list[HeldOut]:
    far = BEYOND[family](rows).to_numpy(bool) if family in BEYOND else np.zeros(len(rows), dtype=bool)
    if not far.any() or far.all():
        return []
    model = FAMILIES[family].fit(rows[~far], accelerator)
    test = rows[far].reset_index(drop=True)
    return [held_out(family, "beyond", predict(model, test, accelerator), test.seconds.to_numpy(float))]


def notes(family: str, model: FamilyModel, rows: pd.DataFrame, accelerator: Accelerator) -> list[str]:
    """One line per check of the model's form on rows it was not fitted on."""
    if "window_tokens" not in rows.columns:
        return []
    windowed = rows[rows.window_tokens > 0].reset_index(drop=True)
    if windowed.empty:
        return []
    e = held_out(family, "windowed", predict(model, windowed, accelerator), windowed.seconds.to_numpy(float))
    return [
        f"sliding-window rows (not fitted): n {e.n}, median {e.median_abs:.1%}, p90 {e.p90_abs:.1%}, bias {e.bias:+.1%}"
    ]


def _as_engine(family: str, rows: pd.DataFrame) -> pd.DataFrame:
    """Rows an engine would see: the fastest kernel of a shape, no windowed attention (reported apart)."""
    if "window_tokens" in rows.columns:
        return rows[rows.window_tokens == 0].reset_index(drop=True)
    if family == "gemm":
        rows = rows[(rows.n >= 64) & (rows.k >= 64)]
        return rows.loc[rows.groupby(["dtype", "m", "n", "k"]).seconds.idxmin()].reset_index(drop=True)
    return rows.reset_index(drop=True)


def _folds(family: str, rows: pd.DataFrame) -> npt.NDArray[np.int64]:
    """Fold of each row by a hash of its group: the same on every machine."""
    columns = list(GROUPS[family])
    names = rows[columns].astype(str).agg("/".join, axis=1)
    code = {name: zlib.crc32(name.encode()) % N_FOLDS for name in names.unique()}
    return names.map(code).to_numpy(np.int64)
