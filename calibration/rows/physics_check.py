"""The check of measured rows against the peaks of the hardware: a row that exceeds one is a measurement error.

A row is rejected for its arithmetic at more than 2 % over the peak of the dtype, and for its bytes at more than 2 %
over the memory bandwidth. Where all operands fit in the second-level cache, repeated benchmark runs read from the
cache; such rows may reach 4 x the memory bandwidth (the L2 bandwidth of A100, H100 and AD102 is about 2.5-5.5 x their
DRAM's). Models clamp what they learn from such rows, because in a real step the weights of every layer pass through
device memory.

A collective over more than two ranks is rejected where the host slowed it: where it takes far longer than the same
bytes take between two ranks of the same machine.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from calibration.operators.flops_and_bytes import bytes_moved
from calibration.operators.operators import Convolution, Elementwise, GroupedGemm, Operator, Streaming
from calibration.operators.roofline import compute_s, memory_s
from calibration.rows.dataset import operators_of
from catalogs.arrays import FloatArray
from catalogs.hardware.specs import Accelerator

if TYPE_CHECKING:
    import pandas as pd


#: Factor by which a row may exceed a peak. A judgement: clock boosts and the resolution of timers.
SLACK: Final = 1.02

#: Factor by which a row whose operands all fit in the second-level cache may exceed the memory bandwidth. A judgement:
#: the bandwidth of that cache is about 2.5 to 5.5 times that of memory on A100, H100 and AD102.
CACHE_SPEEDUP: Final = 4.0

#: Plain streaming inside the cache reaches 5.2 on RTX PRO 6000 and 6 on L40S. A judgement: a third more.
STREAM_SPEEDUP: Final = 8.0

#: A Winograd kernel multiplies less than the direct convolution: 2.25 times less in tiles of 2 x 2 with a window of
#: 3 x 3 (arXiv 1509.09308).
WINOGRAD_SPEEDUP: Final = 2.25

#: Collectives over more than two ranks may take up to this multiple of their fixed time plus the time of two ranks by
#: the ring's share. Eight ranks of the public tables take 0.7 (NVLink), 0.9 (B60) and 1.6 (RTX PRO 6000) times as
#: long; those of L40S take 8 to 10 times: a host that slows copies between peers, as with IOMMU or ACS on.
SLOWEST_RING: Final = 3.0

#: Skewed routing uses fewer experts than the balanced routing that bytes_moved assumes. A judgement: half of the
#: experts.
SKEW_SPEEDUP: Final = 2.0


@dataclass(frozen=True, slots=True)
class GateReport:
    """The number of rows checked, and of rows rejected by each rule."""

    n_in: int
    over_peak_flops: int
    over_bandwidth: int
    held_back: int = 0

    @property
    def n_rejected(self) -> int:
        """Return the number of rejected rows."""
        return self.over_peak_flops + self.over_bandwidth + self.held_back

    def to_dict(self) -> dict[str, Any]:
        """Return the counts under the names that a bundle stores."""
        return {
            "rows_in": self.n_in,
            "rejected_over_peak_flops": self.over_peak_flops,
            "rejected_over_bandwidth": self.over_bandwidth,
            **({"rejected_held_back_by_host": self.held_back} if self.held_back else {}),
        }


def faults(op: Operator, seconds: FloatArray, accelerator: Accelerator) -> tuple[npt.NDArray[np.bool_], ...]:
    """Return two masks of rows that exceed the peak FLOPS and the memory bandwidth.

    `seconds` and both masks have the operator's broadcast shape. A row over both peaks counts as over peak FLOPS only.
    """
    fewer = WINOGRAD_SPEEDUP if isinstance(op, Convolution) else 1.0
    over_flops = compute_s(op, accelerator) > SLACK * fewer * seconds
    moved, cache = bytes_moved(op, accelerator), accelerator.cache_bytes
    allowance = np.where(moved <= cache, CACHE_SPEEDUP, 1.0)
    if isinstance(op, GroupedGemm):
        allowance = np.maximum(allowance, SKEW_SPEEDUP)
    if isinstance(op, Elementwise | Streaming):
        # It is one pass over a tensor: the part that fits stays in the cache between repeats.
        allowance = moved / np.maximum(moved - (1 - 1 / STREAM_SPEEDUP) * np.minimum(moved, cache), 1e-9)
    over_bytes = memory_s(op, accelerator) > SLACK * allowance * seconds
    return over_flops, over_bytes & ~over_flops


def gate(family: str, rows: pd.DataFrame, accelerator: Accelerator) -> tuple[pd.DataFrame, GateReport]:
    """Return the rows of one family that respect the hardware peaks, and the counts of the rejected rows."""
    over_flops, over_bytes = np.zeros((2, len(rows)), dtype=bool)
    seconds = rows["seconds"].to_numpy(float)
    for op, index in operators_of(family, rows):
        over_flops[index], over_bytes[index] = faults(op, seconds[index], accelerator)
    slow = held_back(rows) & ~(over_flops | over_bytes) if family == "collective" else np.zeros(len(rows), dtype=bool)
    kept = rows[~(over_flops | over_bytes | slow)].reset_index(drop=True)
    return kept, GateReport(len(rows), int(over_flops.sum()), int(over_bytes.sum()), int(slow.sum()))


def held_back(rows: pd.DataFrame) -> npt.NDArray[np.bool_]:
    """Return a mask, shape (n,), of rows of collectives that a host slowed.

    The largest messages of a number of ranks are compared with two ranks on the same machine. Where the very largest
    takes longer than SLOWEST_RING allows, all messages down to the first that does not are marked.
    """
    out = np.zeros(len(rows), dtype=bool)
    for _, table in rows.reset_index(drop=True).groupby(["kind", "graph"]):
        pair = table[table.ranks == 2].groupby("message_bytes").seconds.median().sort_index()
        if pair.empty:
            continue
        for _, unsorted in table[table.ranks > 2].groupby("ranks"):
            part = unsorted.sort_values("message_bytes", ascending=False)
            share = 2.0 * (1.0 - 1.0 / float(part.ranks.iloc[0]))
            wire = share * np.interp(part.message_bytes, pair.index, pair)
            slow = (part.seconds > SLOWEST_RING * (part.seconds.min() + wire)).to_numpy()
            until = len(slow) if slow.all() else int(np.argmin(slow))
            out[part.index[:until]] = True
    return out
