"""Several timings of one kernel combined: public tables repeat some kernels for several releases of the engines.

A row of a table is one timing, and other work on the machine, or a device at a lower clock, only lengthens a timing. In
the H100 table of vLLM 0.24 about a tenth of the 16-bit products and of the attention over 16-bit caches take 12 to 16 %
longer than in the tables of other releases, and longer than larger shapes of the same table.

Products in bf16 run in cuBLAS for every engine (torch.nn.functional.linear), so every release times the same kernel.
Each release is scaled to the level of the release whose rows are improved, and the median counts. It predicts the rows
of a release that was left out, with up to 64 rows and more than 8 million weights, with a mean error of 2.0 to 2.9 % on
H100 and 1.5 to 3.4 % on H200; one release alone predicts them with 3.3 to 4.2 and 2.5 to 4.5 %
(`python tools/timing_noise.py`).

Decode attention of vLLM is FlashAttention 3 on Hopper, and the collectors of 0.14 and 0.24 time it alike, with the
kernel that writes new keys and values. With two timings the shorter counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import pandas as pd

from calibration.operators.operators import Gemm
from calibration.operators.roofline import compute_s, memory_s
from catalogs.arrays import BoolArray
from catalogs.hardware.specs import Accelerator

#: The dtype of the products that run in the same library for every engine.
SHARED_DTYPE: Final = "bf16"

#: With fewer timings of a shape than this, an outlier cannot be identified.
FEWEST_TIMINGS: Final = 3

#: A release that shares fewer shapes is not scaled, and so not used. A judgement: the median of their ratios is the
#: scale.
FEWEST_SHARED: Final = 20

#: The older release of vLLM that times decode attention like a newer one.
TIMED_ALIKE: Final = {"0.24.0": "0.14.0"}

_PRODUCT: Final = ["m", "n", "k"]
_DECODES: Final = [
    *("n_heads", "n_kv_heads", "head_dim", "kv_dtype", "window_tokens", "sequences", "context_tokens"),
]


def median_products(rows: pd.DataFrame, others: Sequence[pd.DataFrame], accelerator: Accelerator) -> pd.DataFrame:
    """Return rows of products with the median time of each bf16 shape over several releases.

    Each other release is scaled by the median ratio of the times of shapes that both have, separately for products that
    memory limits and for those that arithmetic limits. A shape with fewer than FEWEST_TIMINGS timings keeps its own.

    Args:
        rows: Rows of the release to improve, with the columns m, n, k, dtype and seconds.
        others: Rows of other releases on the same accelerator.
        accelerator: The accelerator of all rows.
    """
    own = _seconds(rows)
    if own.empty:
        return rows
    streams = _streams(own.index, accelerator)
    timings = [own]
    for other in others:
        theirs = _seconds(other).reindex(own.index)
        scaled = theirs * np.nan
        for part in (streams, ~streams):
            ratio = (own[part] / theirs[part]).dropna()
            if len(ratio) >= FEWEST_SHARED:
                scaled[part] = theirs[part] * ratio.median()
        timings.append(scaled)
    table = pd.concat(timings, axis=1)
    median = table.median(axis=1).where(table.notna().sum(axis=1) >= FEWEST_TIMINGS, own)
    return _with_seconds(rows, _PRODUCT, median, rows.dtype == SHARED_DTYPE)


def shorter_decodes(rows: pd.DataFrame, other: pd.DataFrame | None) -> pd.DataFrame:
    """Return rows of decode attention, each with the shorter of its time and the time of the same batch in `other`."""
    if other is None:
        return rows
    theirs = other.groupby(_DECODES)["seconds"].min()
    found = theirs.reindex(pd.MultiIndex.from_frame(rows[_DECODES])).to_numpy(float)
    return rows.assign(seconds=np.fmin(rows.seconds.to_numpy(float), found))


def _seconds(rows: pd.DataFrame) -> pd.Series[float]:
    """Return the least seconds of each bf16 shape, by (m, n, k)."""
    return rows[rows.dtype == SHARED_DTYPE].groupby(_PRODUCT)["seconds"].min()


def _streams(shapes: pd.Index[int], accelerator: Accelerator) -> BoolArray:
    """Return a mask of the shapes whose operands take longer to read than to multiply. Shape (shapes,)."""
    m, n, k = (shapes.get_level_values(name).to_numpy(float) for name in _PRODUCT)
    op = Gemm(m, n, k, SHARED_DTYPE)
    return np.asarray(memory_s(op, accelerator) > compute_s(op, accelerator), dtype=np.bool_)


def _with_seconds(
    rows: pd.DataFrame, shape: list[str], seconds: pd.Series[float], chosen: pd.Series[bool]
) -> pd.DataFrame:
    """Return rows in which the `chosen` ones have the seconds of their shape."""
    found = seconds.reindex(pd.MultiIndex.from_frame(rows[shape])).to_numpy(float)
    return rows.assign(seconds=np.where(chosen.to_numpy(dtype=bool), found, rows.seconds.to_numpy(float)))
