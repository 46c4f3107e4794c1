"""Attention without a causal mask: utilisation of arithmetic by query-head streams and length, by attention kernel.

The public tables time square problems: every one of `length` queries attends to all `length` keys. Two facts about
FlashAttention and its relatives (a block of TILE_ROWS query rows walks over all keys of its stream) carry them further:

- Lengths that differ. With more queries than keys, the problem runs as many blocks, each over as many keys, as the
  square problem of the key length with more streams: streams x tiles(queries) / tiles(keys). With fewer queries than
  keys, each block of the square problem of the query length walks `keys / queries` times as far. The time is at least
  that of the first rule, which counts whole blocks.
- Head dimensions. A kernel computes in a padded dimension, so its rate is that of the padded dimension times the used
  share. The paddings of FlashAttention 2 and 3 are those of their dispatch (`run_mha_fwd`). Those of FlashAttention 4
  and TensorRT-LLM are inferred: their rates at 72 and 80 agree only after division by the head dimension, and a padding
  to 128 gives 1.5 PFLOP/s at 128 on B200, where the authors of FlashAttention 4 publish 1.6. A head dimension that was
  not measured has origin 2.

A profile of networks also measures lengths that differ. The ratio of such a time to the first two rules is read between
the measured ones, in doublings of streams, queries and keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np
import numpy.typing as npt

from calibration.families.base import Parts, operators
from calibration.families.grid import InterpolationGrid, groups_by, pack_grids, unpack_grids
from calibration.families.scattered import ScatteredValues
from calibration.operators.cost import ROOFLINE, broadcast
from calibration.operators.operators import NonCausalAttention
from calibration.operators.roofline import compute_s, roofline_s
from catalogs.arrays import FloatArray
from catalogs.hardware.specs import Accelerator

if TYPE_CHECKING:
    import pandas as pd


TILE_ROWS: Final = 128.0

#: Highest share of the matrix units' peak that is assumed where the vector units do not bound attention.
MATRIX_SHARE: Final = 0.9

POWERS: Final = (16, 32, 64, 128, 256, 512)

#: Head dimensions that a kernel computes in.
PADDED_DIMS: Final[dict[str, tuple[int, ...]]] = {
    "fa2": (32, 64, 96, 128, 192, 256),
    "fa3": (64, 96, 128, 192, 256),
    "fa4": (64, 128, 192, 256),
    "trtllm": POWERS,
    "triton": POWERS,
    "sdpa": (32, 64, 96, 128, 192, 256),
    "sdpa_masked": (32, 64, 96, 128, 192, 256),
}


#: Kernels in the order in which engines prefer them, where the accelerator has several.
PREFERENCE: Final = ("fa4", "fa3", "fa2", "trtllm", "triton", "sdpa")

#: Rate of FlashAttention 2 without a mask over the rate at which the causal prompt table of the same accelerator
#: processes as many pairs; the median of L40S and RTX PRO 6000, which have both tables, at 4,096 to 32,768 tokens.
#: It stands in where an accelerator has only the causal table (A100, RTX 4090).
WITHOUT_MASK: Final = 1.25


@dataclass(frozen=True, slots=True)
class NonCausalAttentionModel:
    """Log utilisation on (log streams, log length), and the least measured seconds, both by table.

    The name of a table is "head_dim/kernel", with "/dtype" where that is not bf16. Some tables have, in `ratios`,
    log(measured / by the rules) at lengths that differ. The peaks are those of the matrix units (bf16) and of the
    vector units (fp32) of the measured accelerator.
    """

    grids: dict[str, InterpolationGrid]
    floors_s: dict[str, float]
    matrix_flops: float
    vector_flops: float
    ratios: dict[str, ScatteredValues] = field(default_factory=dict)
    family: str = field(default="noncausal_attention", init=False)

    def cost(self, op: NonCausalAttention, accelerator: Accelerator) -> tuple[FloatArray, FloatArray]:
        """Return (seconds, origin) in the broadcast shape of sequences, query_tokens and key_tokens."""
        seconds, origin = self.vector_bound(op, accelerator)
        if accelerator.flops_for("bf16") != self.matrix_flops:
            seconds = np.maximum(seconds, compute_s(op, accelerator) / MATRIX_SHARE)
            origin = np.full_like(origin, ROOFLINE)
        return np.maximum(seconds, roofline_s(op, accelerator)), origin

    def vector_bound(self, op: NonCausalAttention, accelerator: Accelerator) -> tuple[FloatArray, FloatArray]:
        """Return (seconds, origin) without regard to the peak of the accelerator's matrix units. Shape as `cost`."""
        sequences, queries, keys = broadcast(op.sequences, op.query_tokens, op.key_tokens)
        sequences, queries, keys = (np.maximum(x, 1.0) for x in (sequences, queries, keys))
        key, used, borrowed = self._table(op)
        matrix = self.vector_flops if _parts(key)[2] == "fp32" else self.matrix_flops
        peak = matrix * used * accelerator.flops_for("fp32") / self.vector_flops
        streams = sequences * op.n_heads
        wide = streams * np.ceil(queries / TILE_ROWS) / np.ceil(keys / TILE_ROWS)
        seconds, origin = self._square(key, wide, keys, op.head_dim, peak)
        narrow = queries < keys
        if narrow.any():
            floor = self.floors_s[key]
            own, own_origin = self._square(key, streams, queries, op.head_dim, peak)
            walked = floor + (own - floor) * keys / queries
            seconds = np.where(narrow, np.maximum(seconds, walked), seconds)
            origin = np.where(narrow, own_origin, origin)
        origin = np.where(queries == keys, origin, np.maximum(origin, 1.0))
        if key in self.ratios and not borrowed and (queries != keys).any():
            log_ratio, known = self.ratios[key].at(_lengths(streams, queries, keys).reshape(-1, 3))
            other = queries != keys
            seconds = np.where(other, seconds * np.exp(log_ratio.reshape(seconds.shape)), seconds)
            origin = np.where(other, known.reshape(seconds.shape), origin)
        return seconds, np.where(borrowed, ROOFLINE, origin)

    @property
    def kernels(self) -> list[str]:
        """Return the names of the kernels that were measured."""
        return sorted({_parts(name)[1] for name in self.grids})

    def covers(self, op: NonCausalAttention) -> bool:
        """Return whether the kernel of an operator was measured in its dtype."""
        return any(_parts(name)[1:] == (op.kernel, op.dtype) for name in self.grids)

    def joined(self, other: NonCausalAttentionModel) -> NonCausalAttentionModel:
        """Return the tables of both models of one accelerator; those of this model count where both have one."""
        grids, floors = {**other.grids, **self.grids}, {**other.floors_s, **self.floors_s}
        return replace(self, grids=grids, floors_s=floors, ratios={**other.ratios, **self.ratios})

    @property
    def preferred_kernel(self) -> str | None:
        """Return the measured kernel that engines prefer."""
        return next((kernel for kernel in PREFERENCE if kernel in self.kernels), None)

    def _table(self, op: NonCausalAttention) -> tuple[str, float, bool]:
        """Return (table, its utilisation's multiple for this head dimension, whether the kernel is another one)."""
        known = [_parts(name) for name in self.grids]
        kernel, dtype = min(
            {name[1:] for name in known}, key=lambda n: (n != (op.kernel, op.dtype), n[0] != op.kernel, n)
        )
        other = (kernel, dtype) != (op.kernel, op.dtype)
        dims = [dim for dim, *of in known if of == [kernel, dtype]]
        if op.head_dim in dims:
            return _name(op.head_dim, kernel, dtype), 1.0, other
        wanted = padded_dim(op.head_dim, kernel)
        near = min(dims, key=lambda d: (abs(np.log(padded_dim(d, kernel) / wanted)), -d))
        used = (op.head_dim / wanted) / (near / padded_dim(near, kernel))
        return _name(near, kernel, dtype), used, True

    def _square(
        self, key: str, streams: FloatArray, length: FloatArray, head_dim: int, peak_flops: float
    ) -> tuple[FloatArray, FloatArray]:
        """Return (seconds, origin) of `streams` heads of `length` queries and keys each. All have Shape (n,)."""
        log_u, origin = self.grids[key].at([np.log(streams), np.log(length)])
        work = 4.0 * streams * length**2 * head_dim
        return np.maximum(work / peak_flops / np.exp(log_u), self.floors_s[key]), origin

    def to_parts(self) -> Parts:
        """Return readable facts and arrays that `from_parts` reads."""
        peaks = {"matrix_flops": self.matrix_flops, "vector_flops": self.vector_flops}
        facts = {"tables": list(self.grids), "floors_s": self.floors_s, **peaks}
        arrays = pack_grids(self.grids)
        if self.ratios:
            facts["ratios"] = list(self.ratios)
            for i, found in enumerate(self.ratios.values()):
                arrays |= found.to_arrays(f"ratio{i}")
        return facts, arrays

    @classmethod
    def from_parts(cls, facts: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[Any]]) -> Self:
        """Return the model in facts and arrays."""
        peaks = float(facts["matrix_flops"]), float(facts["vector_flops"])
        ratios = {n: ScatteredValues.from_arrays(f"ratio{i}", arrays) for i, n in enumerate(facts.get("ratios", ()))}
        return cls(unpack_grids(facts["tables"], arrays), dict(facts["floors_s"]), *peaks, ratios)

    @classmethod
    def fit(cls, rows: pd.DataFrame, accelerator: Accelerator) -> Self:
        """Fit a grid to the square problems of each head dimension and kernel."""
        square = rows[rows.query_tokens == rows.key_tokens]
        grids, floors = {}, {}
        for (head_dim, kernel, dtype), table in groups_by(square, "head_dim", "kernel", "dtype"):
            key = _name(head_dim, kernel, dtype)
            grids[key] = _fit_grid(table.reset_index(drop=True), accelerator)
            floors[key] = float(table.seconds.min())
        plain = cls(grids, floors, accelerator.flops_for("bf16"), accelerator.flops_for("fp32"))
        return replace(plain, ratios=_fit_ratios(plain, rows[rows.query_tokens != rows.key_tokens], accelerator))


def _name(head_dim: int, kernel: str, dtype: str) -> str:
    return f"{head_dim}/{kernel}" + ("" if dtype == "bf16" else f"/{dtype}")


def _parts(name: str) -> tuple[int, str, str]:
    """Return the head dimension, kernel and dtype in the name of a table."""
    head_dim, kernel, *dtype = name.split("/")
    return int(head_dim), kernel, dtype[0] if dtype else "bf16"


def _lengths(streams: FloatArray, queries: FloatArray, keys: FloatArray) -> FloatArray:
    found: FloatArray = np.log2(np.stack([streams, queries, keys], axis=-1))
    return found


def _fit_ratios(
    plain: NonCausalAttentionModel, rows: pd.DataFrame, accelerator: Accelerator
) -> dict[str, ScatteredValues]:
    """Return log(measured / by the rules) of the rows with lengths that differ, by table."""
    points: dict[str, list[FloatArray]] = {}
    values: dict[str, list[FloatArray]] = {}
    rows = rows.reset_index(drop=True)
    seconds = rows.seconds.to_numpy(float)
    for op, index in operators(NonCausalAttention, rows):
        key = _name(op.head_dim, op.kernel, op.dtype)
        if key in plain.grids:
            ruled, _ = plain.vector_bound(op, accelerator)
            sequences, queries, keys = broadcast(op.sequences, op.query_tokens, op.key_tokens)
            points.setdefault(key, []).append(_lengths(sequences * op.n_heads, queries, keys))
            values.setdefault(key, []).append(np.log(seconds[index] / ruled))
    return {k: ScatteredValues.of(np.concatenate(points[k]), np.concatenate(values[k])) for k in points}


def padded_dim(head_dim: int, kernel: str) -> int:
    """Return the head dimension that a kernel computes in for heads of `head_dim`."""
    return next((d for d in PADDED_DIMS.get(kernel, POWERS) if d >= head_dim), head_dim)


def _fit_grid(table: pd.DataFrame, accelerator: Accelerator) -> InterpolationGrid:
    # A shorter problem may not take longer than a longer one: an engine could pad it.
    table = table.sort_values("key_tokens", ascending=False)
    seconds = table.groupby(["n_heads", "sequences"])["seconds"].cummin().sort_index().to_numpy(float)
    table = table.sort_index()
    points, values = [], []
    for op, index in operators(NonCausalAttention, table):
        sequences, length = broadcast(op.sequences, op.key_tokens)
        values.append(np.log(np.minimum(compute_s(op, accelerator) / seconds[index], 1.0)))
        points.append(np.stack([np.log(sequences * op.n_heads), np.log(length)], axis=1))
    at = np.concatenate(points)
    axes = [np.unique(at[:, d].round(9)) for d in range(2)]
    return InterpolationGrid.from_points(axes, at, np.concatenate(values)).rising(2.0)
