"""The accelerator a model was fitted on, kept with it, so that seconds transfer to another by the ratio of physics.

What a cost model of one operator family must be able to do, and the report of how wrong it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, Self

import numpy as np
import numpy.typing as npt

from calibration.operators.operators import Operator
from calibration.operators.roofline import link_bytes_per_s, roofline_s
from catalogs.arrays import FloatArray
from catalogs.hardware.specs import Accelerator

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True)
class FittedOn:
    """Peaks of the measured accelerator, in SI units."""

    accelerator: Accelerator
    link_bytes_per_s: float

    @classmethod
    def of(cls, accelerator: Accelerator) -> FittedOn:
        return cls(accelerator, link_bytes_per_s(accelerator.name))

    def is_same(self, accelerator: Accelerator) -> bool:
        """By name: a corrected peak in the catalog does not change what was measured."""
        return self.accelerator.name == accelerator.name

    def roofline_ratio(self, op: Operator, accelerator: Accelerator) -> FloatArray:
        """How many times longer `op` takes at the roofline of `accelerator` than of the measured one."""
        return roofline_s(op, accelerator) / np.maximum(roofline_s(op, self.accelerator), 1e-30)

    def bandwidth_ratio(self, accelerator: Accelerator) -> float:
        return self.accelerator.memory_bandwidth_bytes_per_s / accelerator.memory_bandwidth_bytes_per_s

    def link_ratio(self, accelerator: Accelerator) -> float:
        return self.link_bytes_per_s / link_bytes_per_s(accelerator.name)

    def to_facts(self) -> dict[str, Any]:
        return {
            "name": self.accelerator.name,
            "memory_bandwidth_bytes_per_s": self.accelerator.memory_bandwidth_bytes_per_s,
            "peak_flops": dict(self.accelerator.peak_flops),
            "link_bytes_per_s": self.link_bytes_per_s,
        }

    @classmethod
    def from_facts(cls, facts: Mapping[str, Any]) -> FittedOn:
        peaks = {str(k): float(v) for k, v in facts["peak_flops"].items()}
        bandwidth = float(facts["memory_bandwidth_bytes_per_s"])
        name = str(facts["name"])
        return cls(Accelerator(name, name, 0.0, bandwidth, peaks, 0.0, 0.0), float(facts["link_bytes_per_s"]))


#: JSON-able facts and named arrays: all a fitted model is.
Parts = tuple[dict[str, Any], dict[str, npt.NDArray[Any]]]


class FamilyModel(Protocol):
    """Seconds of one operator family, fitted once, numpy only at run time."""

    @property
    def family(self) -> str:
        """The family of its operator (operators.py)."""
        ...

    def cost(self, op: Any, accelerator: Accelerator) -> tuple[FloatArray, FloatArray]:
        """(seconds, origin), both of the operator's broadcast shape; positive and finite, no file or pandas access.

        `accelerator` is the one asked about: utilisation fitted on a neighbour is turned into seconds by its roofline.
        """
        ...

    def to_parts(self) -> Parts:
        """(readable facts, arrays); array names are unique within the family."""
        ...

    @classmethod
    def from_parts(cls, facts: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[Any]]) -> Self:
        """The inverse of to_parts."""
        ...

    @classmethod
    def fit(cls, rows: pd.DataFrame, accelerator: Accelerator) -> Self:
        """Rows of this family (schema: dataset.py), already gated."""
        ...


@dataclass(frozen=True, slots=True)
class HeldOutErrors:
    """Relative errors on rows whose whole group (shape, head configuration) was left out of the fit.

    Errors are predicted / measured - 1. `region`: "inside" the grid the fit kept, "beyond" it, or "all".
    """

    family: str
    region: str
    n: int
    median_abs: float
    p90_abs: float
    bias: float  # median signed error

    def to_dict(self) -> dict[str, Any]:
        return {
            "region": self.region,
            "n": self.n,
            "median_abs_rel_error": round(self.median_abs, 4),
            "p90_abs_rel_error": round(self.p90_abs, 4),
            "bias": round(self.bias, 4),
        }


def held_out(family: str, region: str, predicted_s: FloatArray, measured_s: FloatArray) -> HeldOutErrors:
    """Summarise predicted against measured seconds (same shape, at least one row)."""
    error = np.asarray(predicted_s) / np.asarray(measured_s) - 1.0
    size = np.abs(error)
    return HeldOutErrors(
        family, region, len(error), float(np.median(size)), float(np.quantile(size, 0.9)), float(np.median(error))
    )
