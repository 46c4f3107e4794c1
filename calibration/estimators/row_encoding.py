"""The features of a row for learned estimators: log2 of its sizes and of its physics, and words as 0/1 columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import pandas as pd

from calibration.operators.flops_and_bytes import bytes_moved, flops
from calibration.operators.roofline import compute_s, memory_s, roofline_s
from calibration.rows.dataset import OPERATOR_COLUMNS, operators_of
from catalogs.arrays import FloatArray
from catalogs.hardware.specs import Accelerator

WORDS: Final = ("dtype", "kv_dtype", "kind", "stage", "graph", "kernel")

PHYSICS: Final = ("flops", "bytes", "roofline")

#: The count that a per-row cost multiplies, by family.
ROW_COUNT: Final = {
    "gemm": "m",
    "moe": "tokens",
    "prefill_attention": "tokens",
    "decode_attention": "sequences",
    "noncausal_attention": "query_tokens",
    "mla": "tokens",
    "linear_attention": "tokens",
    "elementwise": "tokens",
    "collective": "ranks",
    "matmul": "m",
    "convolution": "batch",
    "streaming": "elements",
    "host_launch": "kernels",
}


def words_of(family: str) -> list[str]:
    """Return the columns of a family that are names, not sizes."""
    return [c for c in OPERATOR_COLUMNS[family] if c in WORDS]


def physics(family: str, rows: pd.DataFrame, accelerator: Accelerator) -> FloatArray:
    """Return the physics of rows, shape (n, 5).

    Columns: operations, bytes, roofline seconds, seconds at peak arithmetic, seconds at full bandwidth (of the link for
    a collective).
    """
    out = np.zeros((len(rows), 5))
    for op, index in operators_of(family, rows.reset_index(drop=True)):
        bound = roofline_s(op, accelerator)
        moving = bound if family == "collective" else memory_s(op, accelerator)
        columns = (flops(op), bytes_moved(op, accelerator), bound, compute_s(op, accelerator), moving)
        for i, column in enumerate(columns):
            out[index, i] = column
    return out


@dataclass(frozen=True, slots=True)
class Encoder:
    """An encoder of rows into numbers, shape (n, len(names)).

    Words that were not in the rows of its construction become all zeros.
    """

    family: str
    accelerator: Accelerator
    words: tuple[tuple[str, str], ...]  # (column, value)

    @classmethod
    def of(cls, family: str, rows: pd.DataFrame, accelerator: Accelerator) -> Encoder:
        """Return the encoder for the words and sizes in `rows`."""
        found = [(c, v) for c in words_of(family) for v in sorted(rows[c].astype(str).unique())]
        return cls(family, accelerator, tuple(found))

    @property
    def sizes(self) -> tuple[str, ...]:
        """Return the columns of the family that are sizes; the others are words."""
        return tuple(c for c in OPERATOR_COLUMNS[self.family] if c not in WORDS)

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of the columns that `encode` returns."""
        return (*self.sizes, *PHYSICS, *(f"{c} {v}" for c, v in self.words))

    def encode(self, rows: pd.DataFrame) -> FloatArray:
        """Return rows as numbers, shape (n, len(names))."""
        sizes = np.log2(np.maximum(rows[list(self.sizes)].to_numpy(float), 0.25))
        physical = np.log2(np.maximum(physics(self.family, rows, self.accelerator)[:, :3], 1e-12))
        words = [(rows[c].astype(str) == v).to_numpy(float)[:, None] for c, v in self.words]
        return np.concatenate([sizes, physical, *words], axis=1)
