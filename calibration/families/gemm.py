"""Matrix products: utilisation of the roofline on a (log m, log n, log k) grid per dtype, with a launch floor.

Products in a real step read their weights from device memory. Utilisation learned from shapes that fitted in the
second-level cache during the benchmark is therefore clamped to the best utilisation of shapes too large for it. fp8
tables time the layer including its activation quantisation, so callers add no quantise operator for them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np
import numpy.typing as npt

from calibration.families.base import Parts, best_streaming
from calibration.families.fixed_tiles import FLASHINFER, LEAST_K, TABLED, layer_s
from calibration.families.grid import InterpolationGrid, groups_by, pack_grids, unpack_grids
from calibration.families.uncalibrated import UncalibratedModel
from calibration.operators.cost import ROOFLINE, broadcast
from calibration.operators.flops_and_bytes import stored_bytes
from calibration.operators.operators import Gemm
from calibration.operators.roofline import compute_s, memory_s, roofline_s
from catalogs.arrays import FloatArray
from catalogs.hardware.specs import Accelerator

if TYPE_CHECKING:
    import pandas as pd


SAME_AS: Final = {"fp16": "bf16"}

PROXY: Final = {"int8": "fp8", "fp8_block": "fp8"}  # the dtype that stands in where the dtype itself was not measured

#: Share of the arithmetic rate of bf16 that products with weights in fewer bits reach. A judgement: dequantising inside
#: the kernel costs about a tenth.
WEIGHT_ONLY_EFFICIENCY: Final = 0.9

#: A shape costs at most this multiple of the same shape with more rows: an engine could pad, so slower rows are
#: outliers. A judgement: noise is below a tenth.
PAD_MARGIN: Final = 1.10

#: Fewest shapes of a dtype that has a grid of its own, where another dtype has more. A judgement: the proxy of that
#: dtype is more reliable than fewer shapes.
FEWEST_SHAPES: Final = 8

# Products in this dtype use no tensor cores, and other kernels on a CPU, so its own few shapes are more reliable.
NO_PROXY_FOR: Final = "fp32"

SMALLEST: Final = 64  # kernels compute whole tiles: public rows of 32 and 64 columns take the same time

#: A dtype with a fastest row over this multiple of another dtype's was timed launch by launch, not in a graph. A
#: judgement: launches take several times as long as the smallest kernels, and dtypes differ by less.
EAGER_FLOOR: Final = 5.0

#: Rows within this factor of the time of trivially small products measure the launch, not the product. A judgement:
#: three quarters of such a time are the launch.
LAUNCH_MARGIN: Final = 1.3


#: Share of the fp32 peak of vector units that products without tensor cores reach beyond their bytes: that of cuBLAS's
#: SGEMM on large squares, an estimate (no public table has fp32 products of accelerators).
VECTOR_EFFICIENCY: Final = 0.75


@dataclass(frozen=True, slots=True)
class GemmModel:
    """The model of matrix products.

    `grids` hold log utilisation by dtype, and `floors_s` the seconds of the fastest measured product by dtype.
    """

    grids: dict[str, InterpolationGrid]
    floors_s: dict[str, float]
    family: str = "gemm"

    def cost(self, op: Gemm, accelerator: Accelerator) -> tuple[FloatArray, FloatArray]:
        """Return (seconds, origin) in the broadcast shape of m, n and k.

        A product with an n or k below `SMALLEST` takes as long as one of that size. FlashInfer's kernel of fixed tiles
        is in no table, but follows a law of its own.
        """
        m, n, k = broadcast(op.m, op.n, op.k)
        if op.dtype == FLASHINFER:
            seconds, origin = self.cost(replace(op, dtype=TABLED), accelerator)
            tiled = k >= LEAST_K
            return np.where(tiled, layer_s(op, accelerator), seconds), np.where(tiled, ROOFLINE, origin)
        dtype = SAME_AS.get(op.dtype, op.dtype)
        table, borrowed = self._table(dtype, accelerator)
        if table is None:
            return UncalibratedModel(self.family).cost(Gemm(m, n, k, dtype), accelerator)
        below_a_tile = (n < SMALLEST) | (k < SMALLEST)
        n, k = np.maximum(n, SMALLEST), np.maximum(k, SMALLEST)
        log_u, origin = self._utilisation(self.grids[table], np.log(np.maximum(m, 1.0)), np.log(n), np.log(k))
        sized = Gemm(m, n, k, dtype)
        bound = roofline_s(sized, accelerator)
        if borrowed and dtype in ("int4", "fp4") and table == "bf16":
            bound = np.maximum(
                memory_s(sized, accelerator), compute_s(Gemm(m, n, k, "bf16"), accelerator) / WEIGHT_ONLY_EFFICIENCY
            )
        if borrowed and dtype == "fp32" and table == "bf16":
            # What a bf16 product takes beyond its roofline is the start and the end of a kernel, as in fp32. Vector
            # units then take longer for the same shape.
            narrow = roofline_s(Gemm(m, n, k, "bf16"), accelerator)
            known = np.maximum(narrow / np.exp(log_u), self.floors_s[table])
            return known + np.maximum(bound - narrow, 0.0) / VECTOR_EFFICIENCY, np.full_like(bound, ROOFLINE)
        seconds = np.maximum(bound / np.exp(log_u), self.floors_s[table])
        return seconds, np.where(borrowed | below_a_tile, ROOFLINE, origin)

    @staticmethod
    def _utilisation(
        grid: InterpolationGrid, log_m: FloatArray, log_n: FloatArray, log_k: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        """Return (log utilisation, origin).

        Past the largest n or k, a shape counts as one with the same number of weights, with the excess moved to the
        other side.
        """
        _, n_axis, k_axis = grid.axes
        over_n, over_k = np.maximum(log_n - n_axis[-1], 0.0), np.maximum(log_k - k_axis[-1], 0.0)
        log_u, origin = grid.at([log_m, log_n - over_n + over_k, log_k - over_k + over_n])
        return log_u, np.where(over_n + over_k > 0, ROOFLINE, origin)

    def _table(self, dtype: str, accelerator: Accelerator) -> tuple[str | None, bool]:
        """Return (dtype with the utilisation to use, whether it is borrowed).

        None where only narrower dtypes were measured: on MI355X a product of few rows takes as long in bf16 as block
        scaled, at twice the bytes, so the utilisation of one would halve that of the other.
        """
        if dtype in self.grids:
            return dtype, False
        proxy = PROXY.get(dtype, "bf16")
        if proxy in self.grids and dtype in accelerator.peak_flops:
            return proxy, True
        if dtype == "fp8" and "fp8_block" in self.grids:  # AITER's take 1.2 to 1.3 times as long as per-token scales
            return "fp8_block", True
        if "bf16" in self.grids:
            return "bf16", True
        return next((d for d in self.grids if stored_bytes(d) >= stored_bytes(dtype)), None), True

    def notice(self, op: Gemm, accelerator: Accelerator) -> str | None:
        """Return a notice where the dtype was not measured, else None."""
        if op.dtype == FLASHINFER:
            return "gemm in FlashInfer's FP8 kernel: not measured here, a law of its tiles fitted to published times"
        dtype = SAME_AS.get(op.dtype, op.dtype)
        table, borrowed = self._table(dtype, accelerator)
        if table is None:
            return f"gemm in {dtype}: not measured, roofline estimate"
        if borrowed and dtype == "fp32" and table == "bf16":
            return "gemm in fp32: not measured, bf16 latency and the fp32 peak"
        return f"gemm in {dtype}: not measured, {table} utilisation against the {dtype} roofline" if borrowed else None

    def joined(self, lender: GemmModel) -> GemmModel:
        """Return the model with the dtypes that it lacks from a model of the same accelerator."""
        return GemmModel({**lender.grids, **self.grids}, {**lender.floors_s, **self.floors_s})

    def to_parts(self) -> Parts:
        """Return readable facts and arrays that `from_parts` reads."""
        return {"dtypes": list(self.grids), "floors_s": self.floors_s}, pack_grids(self.grids)

    @classmethod
    def from_parts(cls, facts: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[Any]]) -> Self:
        """Return the model in facts and arrays."""
        return cls(unpack_grids(facts["dtypes"], arrays), dict(facts["floors_s"]))

    @classmethod
    def fit(cls, rows: pd.DataFrame, accelerator: Accelerator) -> Self:
        """Fit every dtype; of several kernels for one shape the fastest counts, because the engine would choose it."""
        rows = rows[(rows.n >= SMALLEST) & (rows.k >= SMALLEST)]
        fastest = _without_launches(rows.groupby(["dtype", "m", "n", "k"])["seconds"].min().reset_index())
        shapes = fastest.groupby("dtype").apply(lambda t: t.groupby(["n", "k"]).ngroups)
        grids, floors = {}, {}
        for (dtype,), table in groups_by(fastest, "dtype"):
            if dtype == NO_PROXY_FOR or shapes[dtype] >= min(FEWEST_SHAPES, shapes.max()):
                grids[str(dtype)] = _fit_grid(table, str(dtype), accelerator)
                floors[str(dtype)] = float(table.seconds.min())
        return cls(grids, floors)


def _without_launches(rows: pd.DataFrame) -> pd.DataFrame:
    """Replace rows that include an eager launch by the proxy dtype's row, scaled by the ratio of the two elsewhere.

    An engine replays these products from a CUDA graph, where the launch costs nothing. The public fp8_block tables were
    timed eagerly (aiconfigurator's collect_gemm.py turns graphs off for that dtype alone): 60 to 340 us for any small
    product; large ones equal the per-tensor fp8 ones (median ratio 0.9 to 1.0 on Hopper and Blackwell, 1.3 on Ada).
    """
    import pandas as pd

    floors = rows.groupby("dtype")["seconds"].min()
    for dtype in [d for d in floors.index if d in PROXY and PROXY[d] in floors.index]:
        if floors[dtype] < EAGER_FLOOR * floors[PROXY[dtype]]:
            continue
        of_dtype = rows[rows.dtype == dtype]
        trivial = of_dtype[(of_dtype.m <= 16) & (of_dtype.n * of_dtype.k <= 2**20)]
        launch_s = LAUNCH_MARGIN * float(trivial.seconds.quantile(0.95))
        both = of_dtype.merge(rows[rows.dtype == PROXY[dtype]], on=["m", "n", "k"], suffixes=("", "_proxy"))
        real = both[both.seconds > launch_s]
        scale = float((real.seconds / real.seconds_proxy).median())
        both["seconds"] = both.seconds.where(both.seconds > launch_s, scale * both.seconds_proxy)
        rows = pd.concat([rows[rows.dtype != dtype], both[rows.columns]], ignore_index=True)
    return rows


def _fit_grid(table: pd.DataFrame, dtype: str, accelerator: Accelerator) -> InterpolationGrid:
    table = table.sort_values(["n", "k", "m"], ascending=[True, True, False])
    least_above = table.groupby(["n", "k"])["seconds"].cummin().groupby([table.n, table.k]).shift(1)
    seconds = table.seconds.clip(upper=(PAD_MARGIN * least_above).fillna(np.inf)).to_numpy(float)
    m, n, k = (table[c].to_numpy(float) for c in ("m", "n", "k"))
    op = Gemm(m, n, k, dtype)
    u = np.minimum(roofline_s(op, accelerator) / seconds, 1.0)
    streamed = memory_s(op, accelerator) > compute_s(op, accelerator)
    u = np.where(streamed, np.minimum(u, best_streaming(op, u, streamed, accelerator)), u)
    # Up to 16 rows the nodes are 1, 2, 4, 8 and 16. Larger counts stay separate so that wave quantisation is kept.
    log_m = np.log(np.where(m <= 16, np.exp2(np.floor(np.log2(m))), m))
    axes = [np.unique(log_m), np.unique(np.log(n)), np.unique(np.log(k))]
    points = np.stack([log_m, np.log(n), np.log(k)], axis=1)
    return _padded(InterpolationGrid.from_points(axes, points, np.log(u)), dtype, accelerator)


def _padded(grid: InterpolationGrid, dtype: str, accelerator: Accelerator) -> InterpolationGrid:
    """Return a grid of log utilisation in which more rows save no time beyond PAD_MARGIN, at filled nodes too.

    In sparse tables (AMD: 3 to 17 % of the nodes) the fill of few rows and that of many come from other shapes, so that
    a product of 8 rows took twice as long as one of 16.
    """
    m, n, k = np.meshgrid(*(np.exp(axis) for axis in grid.axes), indexing="ij")
    seconds = roofline_s(Gemm(m, n, k, dtype), accelerator) / np.exp(grid.values)
    least = np.minimum.accumulate(seconds[::-1], axis=0)[::-1]
    shorter = np.minimum(seconds, PAD_MARGIN * least)
    return replace(grid, values=grid.values + np.log(seconds / shorter))
