"""Decode attention: utilisation of the roofline by sequences, key-value heads, group size and context, and skew.

Flash-decoding kernels split work by (sequence, key-value head) and split long contexts among blocks, so heads or
contexts beyond the grid count as more sequences. A sliding window only shortens the context. Uneven batches take t =
t(mean) + alpha (t(max) - t(mean)).

Between two measured contexts time is linear: a start-up time plus the bytes. With every second context of the H100
table left out, this is wrong by 0.4 % in the median and 6.0 % in the mean; a power of context by 2.4 and 7.2 %.
Past the longest measured context of a batch, its bytes take the best rate of the group size: the tables end at a
product of sequences and context that large batches of a served model exceed tenfold.

Tables time one kernel repeatedly. Where the same GPU was also profiled inside an engine (`with_engine_rows`), the model
keeps the extra time of its batches by streams (sequences x key-value heads) and context. Head configurations that were
left out are then predicted within 1.6 to 3.2 % in the median, and within 4.5 to 7.1 % without (RTX PRO 6000).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np
import numpy.typing as npt

from calibration.families.base import Parts, best_streaming, operators
from calibration.families.grid import InterpolationGrid, groups_by, pack_grids, unpack_grids
from calibration.operators.cost import INTERPOLATED, ROOFLINE, broadcast
from calibration.operators.flops_and_bytes import ACTIVATION_BYTES, bytes_moved
from calibration.operators.operators import DecodeAttention
from calibration.operators.roofline import compute_s, memory_s, roofline_s
from catalogs.arrays import FloatArray, bracket
from catalogs.hardware.specs import Accelerator

if TYPE_CHECKING:
    import pandas as pd


#: Sample-weighted mean of `alpha` at prefill chunk 0 in LLMServingSim's skew_fit tables (0.045-0.09 over RTX 4090 and
#: RTX PRO 6000, three models), used for all accelerators.
DEFAULT_SKEW_ALPHA: Final = 0.06

#: Multiple of the second-level cache up to which repeated launches of one kernel find part of a batch's keys and values
#: in it. A judgement: `_cold_s` then removes a bias of -12 to -24 % against LLMServingSim's rows and Vidur's.
COLD: Final = 2.0

#: Share of the distance between two nodes below which a value lies on a node; only rounding makes it differ from 0.
ON_NODE: Final = 1e-6

#: Query heads for each head of keys and values at which the grids have nodes: the group sizes of usual models.
GROUP_NODES: Final = (1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 12.0, 16.0, 32.0, 64.0)


@dataclass(frozen=True, slots=True)
class DecodeAttentionModel:
    """The model of decode attention.

    `grids` hold log utilisation on (log sequences, log n_kv_heads, log2 group, log context) by "head_dim/kv dtype".
    """

    grids: dict[str, InterpolationGrid]
    floors_s: dict[str, float]
    skew_alpha: float = DEFAULT_SKEW_ALPHA
    writes_cache: bool = False  # whether the rows include the kernel that writes new keys and values to the cache
    family: str = "decode_attention"

    def cost(self, op: DecodeAttention, accelerator: Accelerator) -> tuple[FloatArray, FloatArray]:
        """Return (seconds, origin) in the broadcast shape of sequences, context_tokens and max_context_tokens."""
        sequences, context, longest = broadcast(op.sequences, op.context_tokens, op.max_context_tokens)
        even, origin = self._even(op, sequences, context, accelerator)
        if self.skew_alpha <= 0.0 or bool(np.all(longest * sequences <= context * (1 + 1e-9))):
            return even, origin
        worst, _ = self._even(op, sequences, np.maximum(longest * sequences, context), accelerator)
        return even + self.skew_alpha * np.maximum(worst - even, 0.0), origin

    def _even(
        self, op: DecodeAttention, sequences: FloatArray, context: FloatArray, accelerator: Accelerator
    ) -> tuple[FloatArray, FloatArray]:
        key, borrowed = nearest_head(self.grids, op.head_dim, op.kv_dtype)
        mean = np.maximum(context / np.maximum(sequences, 1.0), 1.0)
        group = np.full(mean.shape, np.log2(max(op.n_heads / op.n_kv_heads, 1.0)))
        # A context past the longest measured one counts as the same bytes in more streams, as kernels split long
        # contexts among blocks. The same holds for key-value heads past the largest measured count.
        _, kv_axis, _, context_axis = self.grids[key].axes
        log_kv = np.full(mean.shape, np.log(op.n_kv_heads))
        surplus = np.maximum(np.log(mean) - context_axis[-1], 0.0) + np.maximum(log_kv - kv_axis[-1], 0.0)
        at = [np.log(np.maximum(sequences, 1.0)) + surplus, np.minimum(log_kv, kv_axis[-1]), group]
        inside = np.minimum(np.log(mean), context_axis[-1])
        # past the grid: the factor of additional streams
        longer = np.exp(np.maximum(np.log(mean) - context_axis[-1], 0.0))
        nodes, share = context_nodes(context_axis, inside)
        log_u, origins = self.grids[key].at([*(np.broadcast_to(a, nodes.shape) for a in at), nodes])
        each = replace(op, sequences=sequences, context_tokens=sequences * np.exp(nodes) * longer)
        both = _per_key_s(each, accelerator) / np.exp(log_u)
        seconds = np.maximum(both[0] + share * (both[1] - both[0]), self.floors_s[key])
        origin = np.where(share > 0.5, origins[1], origins[0])
        origin = np.where(np.minimum(share, 1.0 - share) > ON_NODE, np.maximum(origin, INTERPOLATED), origin)
        origin = np.where(surplus > 0, ROOFLINE, origin)
        sized = replace(op, sequences=sequences, context_tokens=np.maximum(context, sequences))
        seconds = np.maximum(seconds, roofline_s(sized, accelerator))
        return seconds, np.where(borrowed, ROOFLINE, origin)

    def with_engine_rows(self, rows: pd.DataFrame, accelerator: Accelerator) -> Self:
        """Return the model with its grids slowed down to match `rows`, batches that were timed inside an engine.

        The correction depends on streams and context, and applies to all head configurations of a head size.
        """
        grids = dict(self.grids)
        for (head_dim, kv_dtype), table in groups_by(rows[rows.window_tokens == 0], "head_dim", "kv_dtype"):
            key = f"{head_dim}/{kv_dtype}"
            if key in grids:
                longer = self._longer(table, accelerator)
                s, kv, _, c = np.meshgrid(*grids[key].axes, indexing="ij")
                values = grids[key].values - longer.at([s + kv, c])[0]
                grids[key] = replace(grids[key], values=values).rising(1.0).rising(1.0, 0)
        return replace(self, grids=grids)

    def _longer(self, table: pd.DataFrame, accelerator: Accelerator) -> InterpolationGrid:
        """Return log(measured / modelled seconds) as a grid over (log streams, log context)."""
        seconds, points, values = table.seconds.to_numpy(float), [], []
        for op, index in operators(DecodeAttention, table):
            n, context = broadcast(op.sequences, op.context_tokens)
            values.append(np.log(seconds[index] / self.cost(op, accelerator)[0]))
            points.append(np.stack([np.log(n * op.n_kv_heads), np.log(context / n)], axis=1))
        at = np.concatenate(points)
        axes = [np.log(2.0) * np.unique(np.round(at[:, d] / np.log(2.0))) for d in range(2)]
        return InterpolationGrid.from_points(axes, at, np.concatenate(values))

    def to_parts(self) -> Parts:
        """Return readable facts and arrays that `from_parts` reads."""
        facts = {"tables": list(self.grids), "floors_s": self.floors_s, "skew_alpha": self.skew_alpha}
        return facts | {"writes_cache": self.writes_cache}, pack_grids(self.grids)

    @classmethod
    def from_parts(cls, facts: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[Any]]) -> Self:
        """Return the model in facts and arrays."""
        floors_s, writes = dict(facts["floors_s"]), bool(facts.get("writes_cache", False))
        return cls(unpack_grids(facts["tables"], arrays), floors_s, float(facts["skew_alpha"]), writes)

    @classmethod
    def fit(cls, rows: pd.DataFrame, accelerator: Accelerator) -> Self:
        """Fit the rows without a window; rows with a window, which is a shorter context, only validate."""
        grids, floors = {}, {}
        plain = cold_rows(rows[(rows.window_tokens == 0) & (rows.n_heads >= rows.n_kv_heads)], accelerator)
        for (head_dim, kv_dtype), table in groups_by(plain, "head_dim", "kv_dtype"):
            key = f"{head_dim}/{kv_dtype}"
            grids[key] = _fit_grid(table, accelerator)
            floors[key] = float(table.seconds.min())
        writes = "writes_cache" in rows.columns and bool(rows["writes_cache"].all())
        return cls(grids, floors, writes_cache=writes)


def context_nodes(axis: FloatArray, log_context: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the two nodes around each context, shape (2, ...), and the share of the upper one.

    Both nodes are the same where the axis has one node, and the first node where the context is shorter than the axis.
    """
    low, _ = bracket(axis, log_context)
    nodes = np.stack([axis[low], axis[np.minimum(low + 1, len(axis) - 1)]])
    start, end = np.exp(nodes)
    share = (np.exp(log_context) - start) / np.maximum(end - start, 1e-30)
    return nodes, np.where(end > start, np.clip(share, 0.0, 1.0), 0.0)


def nearest_head(tables: Mapping[str, Any], head_dim: int, kv_dtype: str) -> tuple[str, bool]:
    """Return (table for a head, whether it is borrowed): own dtype first, then bf16; the nearest head dimension."""
    dtype = "bf16" if kv_dtype == "fp16" else kv_dtype
    if f"{head_dim}/{dtype}" in tables:
        return f"{head_dim}/{dtype}", False
    same = [t for t in tables if t.endswith(f"/{dtype}")] or [t for t in tables if t.endswith("/bf16")] or list(tables)
    return min(same, key=lambda t: abs(np.log(int(t.split("/")[0]) / head_dim))), True


def _fit_grid(table: pd.DataFrame, accelerator: Accelerator) -> InterpolationGrid:
    seconds, u_log, points, each_s = table.seconds.to_numpy(float), [], [], []
    for op, index in operators(DecodeAttention, table):
        sequences, context = broadcast(op.sequences, op.context_tokens)
        keys_s = _per_key_s(op, accelerator)
        each_s.append(keys_s / (context * op.n_kv_heads))
        u_log.append(np.log(np.minimum(keys_s / seconds[index], 1.0)))
        group = np.full(len(index), np.log2(max(op.n_heads / op.n_kv_heads, 1.0)))
        log_kv = np.full(len(index), np.log(float(op.n_kv_heads)))
        points.append(np.stack([np.log(sequences), log_kv, group, np.log(context / sequences)], axis=1))
    at, values, of_key_s = np.concatenate(points), np.concatenate(u_log), np.concatenate(each_s)
    kept = group_nodes(at[:, 2])
    at, values, of_key_s = at[kept], values[kept], of_key_s[kept]
    axes = [np.unique(at[:, d]) for d in range(4)]
    # A head configuration that was not measured behaves like the average configuration with the same number of streams.
    by_streams = np.column_stack([at[:, 0] + at[:, 1], at[:, 2], at[:, 3]])
    streams = np.log(2.0) * np.unique(np.round(by_streams[:, 0] / np.log(2.0)))
    of_group = [at[:, 2] == group for group in axes[2]]
    best = np.array([values[rows].max() for rows in of_group])
    key_s = np.array([of_key_s[rows][0] for rows in of_group])[:, None] * np.exp(axes[3])
    extended = partial(_longer_contexts, best=best, start_s=float(seconds.min()))
    pooled = InterpolationGrid.from_points(
        [streams, axes[2], axes[3]],
        by_streams,
        values,
        extended=lambda known: extended(np.exp(streams)[:, None, None] * key_s, known=known),
    )
    grid = InterpolationGrid.from_points(
        axes,
        at,
        values,
        lambda s, kv, g, c: pooled.at([s + kv, g, c])[0],
        lambda known: extended(np.exp(axes[0][:, None] + axes[1])[..., None, None] * key_s, known=known),
    )
    return grid.rising(1.0).rising(1.0, 0)


def _longer_contexts(keys_s: FloatArray, best: FloatArray, start_s: float, known: FloatArray) -> FloatArray:
    """Return log utilisation with the contexts past the last known one of each batch added.

    Starting the blocks of a large batch takes time, which the bytes of other blocks hide: a batch takes the longer of
    its last known time and the time of its bytes at the best rate, after the time of the smallest batch.

    Args:
        keys_s: The part of the roofline that grows with context. Shape (..., g, c).
        best: The highest log utilisation by group size. Shape (g,).
        start_s: The time of the smallest batch.
        known: Log utilisation, NaN where unknown. Shape (..., g, c).
    """
    last = known.shape[-1] - 1 - np.argmax(np.isfinite(known)[..., ::-1], axis=-1)[..., None]
    seconds_at_last = np.take_along_axis(keys_s / np.exp(known), last, axis=-1)
    seconds = np.maximum(seconds_at_last, start_s + keys_s / np.exp(best)[:, None])
    return np.where(np.arange(known.shape[-1]) > last, np.log(keys_s / seconds), known)


def _per_key_s(op: DecodeAttention, accelerator: Accelerator) -> FloatArray:
    """Return the part of the roofline that grows with context, so that time never falls with context."""
    queries = 2.0 * broadcast(op.sequences)[0] * op.n_heads * op.head_dim * ACTIVATION_BYTES
    keys = bytes_moved(op, accelerator) - queries
    return np.maximum(compute_s(op, accelerator), keys / accelerator.memory_bandwidth_bytes_per_s)


def group_nodes(log_group: FloatArray) -> npt.NDArray[np.bool_]:
    """Return a mask, shape (n,), of rows with a group size on a node of the grids; all rows where none is on a node."""
    distance = np.abs(log_group[:, None] - np.log2(np.array(GROUP_NODES))[None, :]).min(axis=1)
    kept = distance < 1e-6
    return kept if kept.any() else np.ones(len(kept), dtype=bool)


def cold_rows(rows: pd.DataFrame, accelerator: Accelerator) -> pd.DataFrame:
    """Return the rows without a window with the times that they have within a step.

    No batch is slower than one with a longer context, and none is read from the cache.
    """
    rows = rows.sort_values(["sequences", "context_tokens"], ascending=[True, False])
    batches = rows.groupby(["n_heads", "n_kv_heads", "head_dim", "kv_dtype", "sequences"])["seconds"]
    seconds, start = np.array(batches.cummin(), dtype=np.float64), batches.transform("min").to_numpy(float)
    for op, index in operators(DecodeAttention, rows):
        seconds[index] = np.maximum(seconds[index], _cold_s(op, seconds[index], start[index], accelerator))
    return rows.assign(seconds=seconds).sort_index()


def _cold_s(op: DecodeAttention, seconds: FloatArray, start: FloatArray, accelerator: Accelerator) -> FloatArray:
    """Return the least seconds of each batch, shape (n,), where keys and values must come from memory.

    In a step other layers pass through the second-level cache. The bound is the start-up time of the batch (its time at
    the shortest context) plus its bytes at the best measured rate. Batches of at least COLD times that cache were
    measured from memory, so for them the bound is the bytes alone.
    """
    moved = bytes_moved(op, accelerator)
    streamed = memory_s(op, accelerator) >= roofline_s(op, accelerator) * (1 - 1e-9)
    best = best_streaming(op, np.minimum(_per_key_s(op, accelerator) / seconds, 1.0), streamed, accelerator)
    return np.where(moved < COLD * accelerator.cache_bytes, start, 0.0) + _per_key_s(op, accelerator) / best
