"""How much longer products take on a board at its power limit than in a burst.

    python tools/sustained_clock.py PROFILES

PROFILES is the folder that holds `aiconfigurator`. Products in bf16 of vLLM 0.22 were timed for up to a second while
the watts were recorded, those of 0.24 in bursts, in the same library. Both constants of
`calibration/power/sustained.py` are fitted to the ratio of the two times, on one board, on the other and on both, and
each fit is compared with the rows of both boards.
"""

from __future__ import annotations

import sys
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from calibration.importers.aiconfigurator import SYSTEM_OF, read_family
from calibration.operators.operators import Gemm
from calibration.power.sustained import held_clock, product_demand_w, slowed_in_table
from catalogs.arrays import FloatArray
from catalogs.hardware.catalog import parse_hardware
from catalogs.hardware.specs import Accelerator

if TYPE_CHECKING:
    import pandas as pd

BOARDS: Final = ("h200", "b200")
AT_LIMIT, BURST = "0.22.0", "0.24.0"

#: Shorter kernels are left out: the wait between two of them counts, and the two collectors wait differently.
LEAST_S: Final = 1e-4

COMPUTE: Final = np.arange(1.0, 2.001, 0.02)
REACTION_S: Final = np.geomspace(0.5e-3, 8e-3, 29)


def rows_of(tables: Path, board: str) -> pd.DataFrame:
    """Return products of bf16 with their seconds in a burst and at the limit."""
    shape = ["m", "n", "k"]
    found = []
    for version in (BURST, AT_LIMIT):
        rows = read_family(tables, SYSTEM_OF[board], "gemm", "vllm", version)
        assert rows is not None
        found.append(rows[rows.dtype == "bf16"].groupby(shape).seconds.min())
    both = found[0].to_frame("burst_s").join(found[1].rename("limit_s"), how="inner").reset_index()
    return both[both.burst_s >= LEAST_S]


def predicted(rows: pd.DataFrame, unit: Accelerator, compute: float, reaction_s: float) -> FloatArray:
    """Return the predicted ratio of the time at the limit to the time in a burst. Shape (rows,)."""
    op, burst_s = Gemm(*(rows[c].to_numpy(float) for c in ("m", "n", "k")), "bf16"), rows.burst_s.to_numpy(float)
    alone = 1.0 / held_clock(product_demand_w(op, burst_s, unit, compute), unit)
    return np.asarray(alone / slowed_in_table(alone, burst_s, reaction_s))


def errors(rows: pd.DataFrame, unit: Accelerator, compute: float, reaction_s: float) -> FloatArray:
    """Return log(measured / predicted) of the ratio. Shape (rows,)."""
    ratio = rows.limit_s.to_numpy(float) / rows.burst_s.to_numpy(float)
    return np.asarray(np.log(ratio / predicted(rows, unit, compute, reaction_s)))


def main(tables: Path) -> None:
    units = {b: parse_hardware(b).accelerator for b in BOARDS}
    rows = {b: rows_of(tables, b) for b in BOARDS}
    for board in BOARDS:
        found = np.log(rows[board].limit_s.to_numpy(float) / rows[board].burst_s.to_numpy(float))
        print(f"{board}: {len(found)} products, {np.median(np.abs(found)):.1%} longer or shorter at the limit (median)")
    for fitted in (*((b,) for b in BOARDS), BOARDS):
        compute, reaction_s = min(
            product(COMPUTE, REACTION_S),
            key=lambda pair: sum(float(np.abs(errors(rows[b], units[b], *pair)).mean()) for b in fitted),
        )
        each = [np.median(np.abs(errors(rows[b], units[b], compute, reaction_s))) for b in BOARDS]
        words = ", ".join(f"{b} {e:.1%}" for b, e in zip(BOARDS, each, strict=True))
        name = " and ".join(fitted)
        print(f"fitted on {name}: compute {compute:.2f}, reaction {reaction_s * 1e3:.1f} ms; error left: {words}")


if __name__ == "__main__":
    main(Path(sys.argv[1]) / "aiconfigurator")
