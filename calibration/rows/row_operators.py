"""Rows back into operators: one operator of array fields per group of rows that share the scalar fields."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from calibration.operators.operators import OPERATOR_OF, Operator
from calibration.rows.dataset import OPERATOR_COLUMNS

if TYPE_CHECKING:
    import pandas as pd


#: Fields that may be arrays; all others are one value per operator.
ARRAY_FIELDS = {
    "m",
    "n",
    "k",
    "tokens",
    "chunks",
    "pairs",
    "sequences",
    "context_tokens",
    "max_context_tokens",
    "message_bytes",
}


def operators_of(family: str, rows: pd.DataFrame) -> Iterator[tuple[Operator, npt.NDArray[np.int64]]]:
    """(operator with array fields, positions of its rows) for every combination of scalar fields in `rows`."""
    kind = OPERATOR_OF[family]
    columns = OPERATOR_COLUMNS[family]
    scalars = [c for c in columns if c not in ARRAY_FIELDS]
    whole = {(): np.arange(len(rows))}
    groups = rows.reset_index(drop=True).groupby(scalars, sort=True).indices if scalars else whole
    for key, index in groups.items():
        values = dict(zip(scalars, key if isinstance(key, tuple) else (key,), strict=True))
        values = {c: v.item() if isinstance(v, np.generic) else v for c, v in values.items()}
        if "window_tokens" in values:
            values["window_tokens"] = values["window_tokens"] or None
        arrays = {c: rows[c].to_numpy(float)[index] for c in columns if c in ARRAY_FIELDS}
        known = {f.name for f in fields(kind)}
        yield kind(**{c: v for c, v in {**values, **arrays}.items() if c in known}), np.asarray(index)
