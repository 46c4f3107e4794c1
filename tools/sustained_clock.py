"""How much longer products and experts take on a board at its power limit than in a burst.

    python tools/sustained_clock.py PROFILES

PROFILES is the folder that holds `aiconfigurator`. The tables of vLLM 0.22 were timed for up to a second while the
watts were recorded, other releases in bursts. The constants of `calibration/power/sustained.py` are fitted to the ratio
of the two times and compared with it:

- products in bf16, which run in one library in 0.22 and 0.24;
- operands of 8 bits: block-scaled products, DeepGEMM in 0.22 and 0.24, and experts, Triton in 0.19 and 0.22. The ratio
  of the products also holds by how much the two releases of DeepGEMM and of its collectors differ, so its median is
  taken off. One coefficient is fitted to all groups, each with the same weight.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from calibration.importers.aiconfigurator import SYSTEM_OF, read_family
from calibration.operators.operators import Gemm, GroupedGemm
from calibration.power.sustained import PRODUCT_COMPUTE, held_clock, product_demand_w, slowed_in_table
from catalogs.arrays import FloatArray, IntArray
from catalogs.hardware.catalog import parse_hardware
from catalogs.hardware.specs import Accelerator

if TYPE_CHECKING:
    import pandas as pd

BOARDS: Final = ("h200", "b200")
AT_LIMIT, BURST = "0.22.0", "0.24.0"

#: Release whose experts ran in bursts in the kernel of AT_LIMIT (Triton's fused_experts).
EXPERTS_BURST: Final = "0.19.0"

#: Shorter kernels are left out: the wait between two of them counts, and the two collectors wait differently.
LEAST_S: Final = 1e-4

COMPUTE: Final = np.arange(1.0, 3.001, 0.02)
REACTION_S: Final = np.geomspace(0.5e-3, 8e-3, 29)

#: Columns of the sizes of experts in the tables, besides the number of tokens; `width` is that of one rank.
SIZES: Final = ["hidden_size", "width", "num_experts", "topk", "moe_ep_size"]

#: Dtypes by the names of the tables.
NAME_OF: Final = {"bf16": "bfloat16", "fp8": "fp8", "fp8_block": "fp8_block"}


@dataclass(frozen=True, slots=True)
class Group:
    """Operators of one dtype on one board with their seconds in a burst and at the limit. Shape of both: (rows,).

    `same_kernel`: both releases ran the same kernel in the same way; otherwise the median ratio is taken off.
    """

    name: str
    unit: Accelerator
    ops: list[tuple[Gemm | GroupedGemm, IntArray]]  # with the rows of each
    burst_s: FloatArray
    limit_s: FloatArray
    same_kernel: bool

    def alone(self, compute: float) -> FloatArray:
        """Return the predicted slowdown of each operator repeated without end. Shape (rows,)."""
        found = np.empty_like(self.burst_s)
        for op, rows in self.ops:
            demand = product_demand_w(op, self.burst_s[rows], self.unit, compute)
            found[rows] = 1.0 / held_clock(demand, self.unit)
        return found

    def errors(self, compute: float | None, reaction_s: float | None) -> FloatArray:
        """Return log(measured / predicted) of the ratio of the two times; without a coefficient, of no slowdown."""
        found: FloatArray = np.log(self.limit_s / self.burst_s)
        if compute is not None:
            alone = self.alone(compute)
            found = found - np.log(alone)
            if reaction_s is not None:
                found = found + np.log(slowed_in_table(alone, self.burst_s, reaction_s))
        return found if self.same_kernel else found - np.median(found)


def products(tables: Path, board: str, dtype: str, same_kernel: bool) -> Group:
    """Return the products of a dtype."""
    shape = ["m", "n", "k"]
    found = []
    for version in (BURST, AT_LIMIT):
        rows = read_family(tables, SYSTEM_OF[board], "gemm", "vllm", version)
        assert rows is not None
        found.append(rows[rows.dtype == dtype].groupby(shape).seconds.min())
    both = _both(*found)
    op = Gemm(*(both[c].to_numpy(float) for c in shape), dtype)
    return _group(f"{board} products {dtype}", board, both, [(op, np.arange(len(both)))], same_kernel)


def experts(tables: Path, board: str, dtype: str) -> Group:
    """Return the experts of a dtype under equal loads, which no import changes; per-tensor and block-scaled ones."""
    import pandas as pd

    found = []
    for version in (EXPERTS_BURST, AT_LIMIT):
        raw = pd.read_parquet(tables / SYSTEM_OF[board] / "moe" / "vllm" / version / "moe_perf.parquet")
        raw = raw[(raw.moe_dtype == NAME_OF[dtype]) & (raw.distribution == "balanced")]
        raw = raw.assign(seconds=raw.latency * 1e-3, width=raw.inter_size // raw.moe_tp_size)
        found.append(raw.groupby(["num_tokens", *SIZES]).seconds.min())
    both = _both(*found)
    ops: list[tuple[Gemm | GroupedGemm, IntArray]] = []
    for sizes, part in both.groupby(SIZES):
        op = GroupedGemm(part.num_tokens.to_numpy(float), *(int(size) for size in sizes), dtype)
        ops.append((op, part.index.to_numpy()))
    return _group(f"{board} experts {dtype}", board, both, ops, same_kernel=True)


def _both(burst: pd.Series[float], limit: pd.Series[float]) -> pd.DataFrame:
    both = burst.rename("burst_s").to_frame().join(limit.rename("limit_s"), how="inner").reset_index()
    return both[both.burst_s >= LEAST_S].reset_index(drop=True)


def _group(
    name: str, board: str, both: pd.DataFrame, ops: list[tuple[Gemm | GroupedGemm, IntArray]], same_kernel: bool
) -> Group:
    unit = parse_hardware(board).accelerator
    return Group(name, unit, ops, both.burst_s.to_numpy(float), both.limit_s.to_numpy(float), same_kernel)


def said(groups: list[Group], compute: float | None, reaction_s: float | None) -> str:
    """Return the median and mean error of each group in words."""
    each = ((g.name, np.abs(g.errors(compute, reaction_s))) for g in groups)
    return ", ".join(f"{name} {np.median(error):.1%} (mean {error.mean():.1%})" for name, error in each)


def best(groups: list[Group], reactions: Iterable[float | None]) -> tuple[float, float | None]:
    """Return the coefficient and the time of reaction with the least error, each group with the same weight."""
    return min(
        product(COMPUTE, reactions),
        key=lambda pair: sum(float(np.abs(g.errors(float(pair[0]), pair[1])).mean()) for g in groups),
    )


def main(tables: Path) -> None:
    wide = [products(tables, board, "bf16", same_kernel=True) for board in BOARDS]
    print(f"16 bits, without the law: {said(wide, None, None)}")
    for fitted in ([wide[0]], [wide[1]], wide):
        compute, reaction_s = best(fitted, REACTION_S)
        assert reaction_s is not None
        name = " and ".join(g.name for g in fitted)
        constants = f"compute {compute:.2f}, reaction {reaction_s * 1e3:.1f} ms"
        print(f"fitted on {name}: {constants}; {said(wide, compute, reaction_s)}")
    narrow = [products(tables, board, "fp8_block", same_kernel=False) for board in BOARDS]
    narrow += [experts(tables, board, dtype) for board in BOARDS for dtype in ("fp8", "fp8_block")]
    print(f"8 bits, {', '.join(f'{g.name}: {len(g.burst_s)}' for g in narrow)} rows")
    print(f"without the law: {said(narrow, None, None)}")
    print(f"with the coefficient of bf16: {said(narrow, PRODUCT_COMPUTE['bf16'], None)}")
    for board in BOARDS:
        compute, _ = best([g for g in narrow if g.name.startswith(board)], [None])
        print(f"fitted on {board}: compute {compute:.2f}; {said(narrow, compute, None)}")
    compute, _ = best(narrow, [None])
    print(f"fitted on all: compute {compute:.2f}; {said(narrow, compute, None)}")
    checked = [experts(tables, board, "bf16") for board in BOARDS]
    print(f"not fitted, without the law: {said(checked, None, None)}")
    print(f"with the coefficient of bf16: {said(checked, PRODUCT_COMPUTE['bf16'], None)}")


if __name__ == "__main__":
    main(Path(sys.argv[1]) / "aiconfigurator")
