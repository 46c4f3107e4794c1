"""Linear-attention and Mamba state updates: no table was measured, so the roofline over a stated efficiency.

Decode reads and writes the whole state once and is bound by memory: 60 % of peak bandwidth, which measured memory-bound
kernels of the same size reach (norms, rotary). Prefill runs chunked matrix products at low intensity: 35 % of the
roofline. A launch costs 4 us.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from calibration.families.base import Parts
from calibration.operators.cost import ROOFLINE
from calibration.operators.operators import LinearAttentionScan
from calibration.operators.roofline import roofline_s
from calibration.rows.dataset import operators_of
from catalogs.arrays import FloatArray
from catalogs.hardware.specs import Accelerator

if TYPE_CHECKING:
    import pandas as pd


FACTS: Final = ("decode_efficiency", "prefill_efficiency", "launch_s")


@dataclass(frozen=True, slots=True)
class LinearAttentionModel:
    """Efficiencies of decode and prefill against the roofline, and the floor of a launch."""

    decode_efficiency: float = 0.6
    prefill_efficiency: float = 0.35
    launch_s: float = 4e-6
    family: str = field(default="linear_attention", init=False)

    def cost(self, op: LinearAttentionScan, accelerator: Accelerator) -> tuple[FloatArray, FloatArray]:
        """Return (seconds, origin) in the broadcast shape of tokens and sequences; origin is always 2."""
        efficiency = self.decode_efficiency if op.stage == "decode" else self.prefill_efficiency
        seconds = self.launch_s + roofline_s(op, accelerator) / efficiency
        return seconds, np.full_like(seconds, ROOFLINE)

    def to_parts(self) -> Parts:
        """Return readable facts and arrays that `from_parts` reads."""
        return {name: getattr(self, name) for name in FACTS}, {}

    @classmethod
    def from_parts(cls, facts: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[Any]]) -> LinearAttentionModel:
        """Return the model in facts; it has no arrays."""
        del arrays  # the model has three numbers and no arrays
        return cls(*(float(facts[name]) for name in FACTS))

    @classmethod
    def fit(cls, rows: pd.DataFrame, accelerator: Accelerator) -> LinearAttentionModel:
        """Scale both efficiencies by the median of the rows; without rows the stated defaults stay."""
        model = cls()
        fitted: dict[str, Any] = {
            f"{stage}_efficiency": _efficiency(part, accelerator, model.launch_s)
            for stage, part in rows.groupby("stage")
        }
        return replace(model, **fitted)


def _efficiency(rows: pd.DataFrame, accelerator: Accelerator, launch_s: float) -> float:
    shares = np.zeros(len(rows))
    for op, index in operators_of("linear_attention", rows):
        seconds = rows.seconds.to_numpy(dtype=np.float64)[index]
        shares[index] = roofline_s(op, accelerator) / np.maximum(seconds - launch_s, 1e-9)
    return float(np.clip(np.median(shares), 0.01, 1.0))
