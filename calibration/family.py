"""What a cost model of one operator family must be able to do, and the report of how wrong it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, Self

import numpy as np
import numpy.typing as npt

from calibration.cost import Array
from catalogs.hardware import Accelerator

if TYPE_CHECKING:
    import pandas as pd

#: JSON-able facts and named arrays: all a fitted model is.
Parts = tuple[dict[str, Any], dict[str, npt.NDArray[Any]]]


class FamilyModel(Protocol):
    """Seconds of one operator family, fitted once, numpy only at run time."""

    @property
    def family(self) -> str:
        """The family of its operator (operators.py)."""
        ...

    def cost(self, op: Any, accelerator: Accelerator) -> tuple[Array, Array]:
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
class HeldOut:
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


def held_out(family: str, region: str, predicted_s: Array, measured_s: Array) -> HeldOut:
    """Summarise predicted against measured seconds (same shape, at least one row)."""
    error = np.asarray(predicted_s) / np.asarray(measured_s) - 1.0
    size = np.abs(error)
    return HeldOut(
        family, region, len(error), float(np.median(size)), float(np.quantile(size, 0.9)), float(np.median(error))
    )
