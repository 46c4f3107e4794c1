"""Prefill attention: utilisation of the roofline over equivalent prompt length, query-head streams and group size.

Tables measure whole prompts (pairs = q^2 / 2). A chunk with context is looked up at the prompt that holds as many pairs,
q' = sqrt(2 pairs / chunk), because the kernels walk the same tiles in another order, but its query rows fill tiles of
TILE_ROWS: a chunk shorter than a tile pays for a whole one. Never below the time to read its keys and values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np
import numpy.typing as npt

from calibration.cost import ROOFLINE, Array, broadcast
from calibration.families.decode_attention import GROUP_NODES, nearest_head
from calibration.family import Parts
from calibration.grid import Grid
from calibration.operators import PrefillAttention
from calibration.roofline import roofline_s
from catalogs.hardware import Accelerator

if TYPE_CHECKING:
    import pandas as pd

TILE_ROWS: Final = 64.0


@dataclass(frozen=True, slots=True)
class PrefillAttentionModel:
    """grids: log utilisation on (log streams, log2 group, log equivalent length) by "head_dim/kv dtype"."""

    grids: dict[str, Grid]
    floors_s: dict[str, float]
    family: str = "prefill_attention"

    def cost(self, op: PrefillAttention, accelerator: Accelerator) -> tuple[Array, Array]:
        """(seconds, origin) of the broadcast shape of chunks, tokens, pairs."""
        chunks, tokens, pairs = broadcast(op.chunks, op.tokens, op.pairs)
        key, borrowed = nearest_head(self.grids, op.head_dim, op.kv_dtype)
        count = np.maximum(chunks, 1.0)
        rows = np.maximum(tokens / count, 1.0)
        length = np.sqrt(2.0 * np.maximum(pairs / count, 0.5))
        padded = pairs * np.where(length > rows * 1.01, np.maximum(TILE_ROWS / rows, 1.0), 1.0)
        group = np.full(length.shape, np.log2(max(op.n_heads / op.n_kv_heads, 1.0)))
        log_u, origin = self.grids[key].at([np.log(count * op.n_heads), group, np.log(length)])
        bound = roofline_s(replace(op, chunks=count, tokens=tokens, pairs=padded), accelerator)
        seconds = np.maximum(bound / np.exp(log_u), self.floors_s[key])
        return seconds, np.where(borrowed, ROOFLINE, origin)

    def to_parts(self) -> Parts:
        arrays: dict[str, npt.NDArray[Any]] = {}
        for key, grid in self.grids.items():
            arrays |= grid.to_arrays(key)
        return {"tables": list(self.grids), "floors_s": self.floors_s}, arrays

    @classmethod
    def from_parts(cls, facts: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[Any]]) -> Self:
        return cls({t: Grid.from_arrays(t, arrays) for t in facts["tables"]}, dict(facts["floors_s"]))

    @classmethod
    def fit(cls, rows: pd.DataFrame, accelerator: Accelerator) -> Self:
        """Rows without window or context make the grids; the others validate the form."""
        grids, floors = {}, {}
        whole = (rows.pairs * rows.chunks * 2.0 / rows.tokens**2).between(0.98, 1.02)
        plain = rows[whole & (rows.window_tokens == 0)]
        for (head_dim, kv_dtype), table in plain.groupby(["head_dim", "kv_dtype"], sort=True):
            key = f"{head_dim}/{kv_dtype}"
            grids[key] = _fit_grid(table, int(head_dim), str(kv_dtype), accelerator)
            floors[key] = float(table.seconds.min())
        return cls(grids, floors)


def _fit_grid(table: pd.DataFrame, head_dim: int, kv_dtype: str, accelerator: Accelerator) -> Grid:
    u_log, points = [], []
    for (heads, kv_heads), rows in table.groupby(["n_heads", "n_kv_heads"], sort=True):
        rows = rows.sort_values(["chunks", "tokens"], ascending=[True, False])
        seconds = rows.groupby("chunks")["seconds"].cummin().to_numpy(float)
        chunks, tokens, pairs = (rows[c].to_numpy(float) for c in ("chunks", "tokens", "pairs"))
        op = PrefillAttention(chunks, tokens, pairs, int(heads), int(kv_heads), head_dim, kv_dtype)
        u_log.append(np.log(np.minimum(roofline_s(op, accelerator) / seconds, 1.0)))
        group = np.full(len(rows), np.log2(max(float(heads) / float(kv_heads), 1.0)))
        points.append(np.stack([np.log(chunks * heads), group, np.log(tokens / chunks)], axis=1))
    all_points, values = np.concatenate(points), np.concatenate(u_log)
    groups = np.log2(np.array(GROUP_NODES))
    present = np.min(np.abs(all_points[:, 1][:, None] - groups[None, :]), axis=0) < 1e-6
    groups = groups[present] if present.any() else np.unique(all_points[:, 1])
    kept = np.min(np.abs(all_points[:, 1][:, None] - groups[None, :]), axis=1) < 0.2
    streams = np.unique(all_points[kept, 0])
    return Grid.from_points([streams, groups, np.unique(all_points[kept, 2])], all_points[kept], values[kept])
