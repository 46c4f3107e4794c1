"""Prefill attention: utilisation of arithmetic by prompt length, query-head streams and group size, plus context.

Tables measure whole prompts (pairs = q^2 / 2). A chunk with context takes longer in one of two ways, which differ in
how the time of a single head grows with its prompt:

- Kernels that give a block of TILE_ROWS query rows all its keys in turn (FlashAttention 2, trtllm-gen): the time of one
  head is linear in prompt length, and the slope is the time per key. Every key of context adds it once per wave of
  blocks. The number of blocks that run at once ("lanes") follows from the saturated rate: rate = lanes x TILE_ROWS /
  slope. On RTX PRO 6000 that gives 187 lanes, and the chip has 188 multiprocessors.
- Kernels that split the keys among blocks (FlashAttention 3) are not linear. A chunk costs as much as the whole prompt
  with the same number of pairs, q' = sqrt(2 pairs / chunk), including the rows that do not fill a tile.

Where chunks after context were measured on the machine itself (a CPU's profile, `with_context`), neither is assumed: a
chunk is its own causal prompt plus a rectangle of rows by context at the utilisation measured for such rectangles.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np
import numpy.typing as npt

from calibration.families.base import Parts, operators
from calibration.families.decode_attention import group_nodes, nearest_head
from calibration.families.grid import InterpolationGrid, groups_by, pack_grids, unpack_grids
from calibration.operators.cost import ROOFLINE, broadcast
from calibration.operators.flops_and_bytes import compute_dtype
from calibration.operators.operators import PrefillAttention
from calibration.operators.roofline import compute_s, roofline_s
from catalogs.arrays import FloatArray
from catalogs.hardware.specs import Accelerator

if TYPE_CHECKING:
    import pandas as pd


TILE_ROWS: Final = 64.0

LEAST_EXTRA: Final = 0.05  # minimum share of a chunk's time for its context, against noise

#: Kernels of engines that run the decodes of a mixed step in a kernel of their own: FlashInfer's (BatchDecode), and
#: TensorRT-LLM's (attentionOp.cpp: enqueueContext, then enqueueGeneration), which other engines call too.
SEPARATE_DECODES: Final = ("flashinfer", "torch_flow", "trtllm")

LINE_TOKENS: Final = (512.0, 1024.0, 2048.0, 4096.0)


@dataclass(frozen=True, slots=True)
class Serial:
    """A kernel with blocks that walk their keys in turn.

    It has the seconds per key of a block, and the number of blocks that run at once.
    """

    seconds_per_key: float
    lanes: float
    joins_decodes: bool  # whether decodes of a mixed step run in this kernel (FlashAttention 2)

    def context_s(self, blocks: FloatArray, context: FloatArray) -> FloatArray:
        """Return the seconds that `context` keys add to `blocks` blocks. All have Shape (n,).

        Each key adds its time once per wave of blocks; the result lies between whole and fractional waves.
        """
        waves = blocks / self.lanes
        return np.maximum(0.5 * (waves + np.ceil(waves)), 1.0) * self.seconds_per_key * context


@dataclass(frozen=True, slots=True)
class PrefillAttentionModel:
    """The model of prefill attention.

    `grids` hold log utilisation on (log streams, log2 group, log length), and `serial` the linear kernels, both by
    "head_dim/kv dtype".
    """

    grids: dict[str, InterpolationGrid]
    floors_s: dict[str, float]
    serial: dict[str, Serial]
    peak_flops: float  # bf16, of the accelerator of the fit
    context: dict[str, InterpolationGrid] = field(default_factory=dict)  # log utilisation on (log rows, log context)
    family: str = "prefill_attention"

    def cost(self, op: PrefillAttention, accelerator: Accelerator) -> tuple[FloatArray, FloatArray]:
        """Return (seconds, origin) in the broadcast shape of chunks, tokens and pairs."""
        chunks, tokens, pairs = broadcast(op.chunks, op.tokens, op.pairs)
        chunks, tokens = np.maximum(chunks, 1.0), np.maximum(tokens, 1.0)
        key, borrowed = nearest_head(self.grids, op.head_dim, op.kv_dtype)
        # A window leaves fewer pairs than a whole prompt has: the same tokens and pairs count as shorter prompts.
        chunks = np.maximum(chunks, tokens**2 / np.maximum(2.0 * pairs, tokens))
        rows = np.maximum(tokens / chunks, 1.0)
        context = np.maximum(pairs / tokens - 0.5 * rows, 0.0)
        if key in self.context:
            seconds, origin = self._prompt(key, op, chunks, rows, accelerator)
            log_u, _ = self.context[key].at([np.log(rows), np.log(np.maximum(context, 1.0))])
            seconds = seconds + _rectangle_bound_s(op, tokens, context, accelerator) / np.exp(log_u)
        elif key in self.serial:
            blocks = chunks * op.n_heads * np.ceil(rows / TILE_ROWS)
            seconds, origin = self._prompt(key, op, chunks, rows, accelerator)
            relative = accelerator.flops_for("bf16") / self.peak_flops  # a transferred bundle has lanes in proportion
            seconds = seconds + self.serial[key].context_s(blocks / relative, context)
        else:
            fill = np.minimum(rows * max(op.n_heads / op.n_kv_heads, 1.0) / TILE_ROWS, 1.0)
            length = np.sqrt(rows * (2.0 * context / np.where(context > 0.01 * rows, fill, 1.0) + rows))
            seconds, origin = self._prompt(key, op, chunks, length, accelerator)
        seconds = np.maximum(seconds, roofline_s(op, accelerator))
        return seconds, np.where(borrowed, ROOFLINE, np.where(context > 0.01 * rows, np.maximum(origin, 1.0), origin))

    def with_context(self, rows: pd.DataFrame, accelerator: Accelerator) -> Self:
        """Return the model with rectangles fitted to `rows`, chunks after context."""
        tables = {
            f"{head_dim}/{kv_dtype}": part for (head_dim, kv_dtype), part in groups_by(rows, "head_dim", "kv_dtype")
        }
        found = {key: self._fit_context(key, part, accelerator) for key, part in tables.items() if key in self.grids}
        return replace(self, context=found)

    def _fit_context(self, key: str, table: pd.DataFrame, accelerator: Accelerator) -> InterpolationGrid:
        seconds, points, values = table.seconds.to_numpy(float), [], []
        for op, index in operators(PrefillAttention, table):
            chunks, tokens, pairs = broadcast(op.chunks, op.tokens, op.pairs)
            each = tokens / chunks
            context = pairs / tokens - 0.5 * each
            own, _ = self._prompt(key, op, chunks, each, accelerator)
            extra = np.maximum(seconds[index] - own, LEAST_EXTRA * seconds[index])
            points.append(np.stack([np.log(each), np.log(context)], axis=1))
            values.append(np.log(_rectangle_bound_s(op, tokens, context, accelerator) / extra))
        at = np.concatenate(points)
        return InterpolationGrid.from_points([np.unique(at[:, 0]), np.unique(at[:, 1])], at, np.concatenate(values))

    def joins_decodes(self, head_dim: int, kv_dtype: str) -> bool:
        """Return whether decodes in a step with prefill run as chunks of one token of the same unsplit kernel."""
        serial = self.serial.get(nearest_head(self.grids, head_dim, kv_dtype)[0])
        return serial is not None and serial.joins_decodes

    def _prompt(
        self, key: str, op: PrefillAttention, chunks: FloatArray, length: FloatArray, accelerator: Accelerator
    ) -> tuple[FloatArray, FloatArray]:
        """Return (seconds, origin) of whole prompts of `length` tokens."""
        group = np.full(length.shape, np.log2(max(op.n_heads / op.n_kv_heads, 1.0)))
        log_u, origin = self.grids[key].at([np.log(chunks * op.n_heads), group, np.log(length)])
        sized = replace(op, chunks=chunks, tokens=chunks * length, pairs=0.5 * chunks * length**2)
        return np.maximum(compute_s(sized, accelerator) / np.exp(log_u), self.floors_s[key]), origin

    def to_parts(self) -> Parts:
        """Return readable facts and arrays that `from_parts` reads."""
        arrays = pack_grids(self.grids | {f"context {key}": grid for key, grid in self.context.items()})
        serial = {k: asdict(v) for k, v in self.serial.items()}
        facts = {"tables": list(self.grids), "floors_s": self.floors_s, "serial": serial, "peak_flops": self.peak_flops}
        return facts | ({"context": list(self.context)} if self.context else {}), arrays

    @classmethod
    def from_parts(cls, facts: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[Any]]) -> Self:
        """Return the model in facts and arrays."""
        serial = {k: Serial(**v) for k, v in facts["serial"].items()}
        context = {t: InterpolationGrid.from_arrays(f"context {t}", arrays) for t in facts.get("context", ())}
        grids, peak_flops = unpack_grids(facts["tables"], arrays), float(facts["peak_flops"])
        return cls(grids, dict(facts["floors_s"]), serial, peak_flops, context)

    @classmethod
    def fit(cls, rows: pd.DataFrame, accelerator: Accelerator) -> Self:
        """Fit the grids to rows without window or context.

        Rows with context, where there are any, give the time per key.
        """
        grids, floors, serial = {}, {}, {}
        whole = (rows.pairs * rows.chunks * 2.0 / rows.tokens**2).between(0.98, 1.02)
        plain = rows[rows.window_tokens == 0]
        for (head_dim, kv_dtype), table in groups_by(plain, "head_dim", "kv_dtype"):
            key = f"{head_dim}/{kv_dtype}"
            grids[key] = _fit_grid(table[whole[table.index]], accelerator)
            floors[key] = float(table.seconds.min())
            if (found := _fit_serial(table)) is not None:
                serial[key] = found
        if 2 * len(serial) < len(grids):  # a linear fit in few tables is chance: one kernel runs most of them
            serial = {}
        return cls(grids, floors, serial, accelerator.flops_for("bf16"))


def _rectangle_bound_s(
    op: PrefillAttention, tokens: FloatArray, context: FloatArray, accelerator: Accelerator
) -> FloatArray:
    """Return the least seconds of `tokens` queries over `context` keys each; all of one shape."""
    work = 4.0 * tokens * context * op.n_heads * op.head_dim
    return work / accelerator.flops_for(compute_dtype(op.kv_dtype, accelerator))


def _fit_serial(table: pd.DataFrame) -> Serial | None:
    """Return the linear kernel of the fewest heads over prompt length, None where the line bends by more than 30 %.

    Where rows have context, the line is that of the shortest chunk over its context.
    """
    rows = table.tokens / table.chunks
    context = table.pairs / table.tokens - 0.5 * rows
    one = (table.chunks == 1) & (table.n_heads == table.n_heads.min())
    if (context > 1.0).any():
        one &= rows == rows[one & (context > 1.0)].min()
        least = table[one].groupby(context[one].round())["seconds"].min()
    else:
        least = table[one].groupby("tokens")["seconds"].min()
    marks = [q for q in LINE_TOKENS if q in least.index]
    if len(marks) < 3:
        return None
    slopes = [(least[b] - least[a]) / (b - a) for a, b in pairwise(marks)]
    typical = float(np.median(slopes))
    if typical <= 0 or max(slopes) > 1.3 * typical or min(slopes) < 0.7 * typical:
        return None
    work = table.pairs * table.n_heads
    rate = float((work / table.seconds)[work >= 0.3 * work.max()].quantile(0.9))
    kernels = set(table["kernel"].astype(str)) if "kernel" in table.columns else set()
    joins = not any(engine in kernel for kernel in kernels for engine in SEPARATE_DECODES)
    return Serial(typical, rate * typical / TILE_ROWS, joins)


def _fit_grid(table: pd.DataFrame, accelerator: Accelerator) -> InterpolationGrid:
    table = table.sort_values(["chunks", "tokens"], ascending=[True, False])
    seconds = table.groupby(["n_heads", "n_kv_heads", "chunks"])["seconds"].cummin().to_numpy(float)
    u_log, points = [], []
    for op, index in operators(PrefillAttention, table):
        chunks, tokens = broadcast(op.chunks, op.tokens)
        u_log.append(np.log(np.minimum(compute_s(op, accelerator) / seconds[index], 1.0)))
        group = np.full(len(index), np.log2(max(op.n_heads / op.n_kv_heads, 1.0)))
        points.append(np.stack([np.log(chunks * op.n_heads), group, np.log(tokens / chunks)], axis=1))
    at, values = np.concatenate(points), np.concatenate(u_log)
    kept = group_nodes(at[:, 1])
    at, values = at[kept], values[kept]
    return InterpolationGrid.from_points([np.unique(at[:, d]) for d in range(3)], at, values).rising(2.0)
