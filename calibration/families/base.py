"""The contract of an operator family's cost model, and the record of the accelerator that it was fitted on.

A model keeps the accelerator of its fit, so that its seconds transfer to another by the ratio of their rooflines.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar

import numpy as np
import numpy.typing as npt

from calibration.operators.flops_and_bytes import bytes_moved
from calibration.operators.operators import Operator
from calibration.operators.roofline import link_bytes_per_s, roofline_s
from calibration.rows.dataset import operators_of
from catalogs.arrays import FloatArray
from catalogs.hardware.files import cache_bytes
from catalogs.hardware.specs import Accelerator

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True)
class FittedOn:
    """The peaks of the measured accelerator, in SI units."""

    accelerator: Accelerator
    link_bytes_per_s: float

    @classmethod
    def of(cls, accelerator: Accelerator) -> FittedOn:
        """Return the record of an accelerator in the catalog."""
        return cls(accelerator, link_bytes_per_s(accelerator.name))

    def is_same(self, accelerator: Accelerator) -> bool:
        """Return whether the accelerator has the same name.

        A corrected peak in the catalog does not change what was measured.
        """
        return self.accelerator.name == accelerator.name

    def roofline_ratio(self, op: Operator, accelerator: Accelerator) -> FloatArray:
        """Return the roofline time of `op` on `accelerator` divided by that on the measured one. Shape (n,)."""
        return roofline_s(op, accelerator) / np.maximum(roofline_s(op, self.accelerator), 1e-30)

    def bandwidth_ratio(self, accelerator: Accelerator) -> float:
        """Return the memory bandwidth of the measured accelerator divided by that of `accelerator`."""
        return self.accelerator.memory_bandwidth_bytes_per_s / accelerator.memory_bandwidth_bytes_per_s

    def link_ratio(self, accelerator: Accelerator) -> float:
        """Return the link bandwidth of the measured accelerator divided by that of `accelerator`."""
        return self.link_bytes_per_s / link_bytes_per_s(accelerator.name)

    def to_facts(self) -> dict[str, Any]:
        """Return the record as JSON data, the inverse of `from_facts`."""
        return {
            "name": self.accelerator.name,
            "memory_bandwidth_bytes_per_s": self.accelerator.memory_bandwidth_bytes_per_s,
            "peak_flops": dict(self.accelerator.peak_flops),
            "link_bytes_per_s": self.link_bytes_per_s,
        }

    @classmethod
    def from_facts(cls, facts: Mapping[str, Any]) -> FittedOn:
        """Return the record in JSON data."""
        peaks = {str(k): float(v) for k, v in facts["peak_flops"].items()}
        bandwidth = float(facts["memory_bandwidth_bytes_per_s"])
        name = str(facts["name"])
        unit = Accelerator(name, name, 0.0, bandwidth, peaks, 0.0, 0.0, cache_bytes=cache_bytes(name))
        return cls(unit, float(facts["link_bytes_per_s"]))


OperatorT = TypeVar("OperatorT", bound=Operator)

#: A fitted model in stored form: JSON data and named arrays.
Parts = tuple[dict[str, Any], dict[str, npt.NDArray[Any]]]


class FamilyModel(Protocol):
    """A cost model of one operator family, fitted once; it needs only numpy at run time."""

    @property
    def family(self) -> str:
        """Return the name of the operator family (operators.py)."""
        ...

    def cost(self, op: Any, accelerator: Accelerator) -> tuple[FloatArray, FloatArray]:
        """Return (seconds, origin) of the operator, both in its broadcast shape.

        Seconds are positive and finite. `accelerator` is the one to predict for: utilisation that was fitted on another
        accelerator becomes seconds by the roofline of this one. No call reads a file or uses pandas.
        """
        ...

    def to_parts(self) -> Parts:
        """Return the model as readable facts and arrays; array names are unique within the family."""
        ...

    @classmethod
    def from_parts(cls, facts: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[Any]]) -> Self:
        """Return the model in facts and arrays, the inverse of `to_parts`."""
        ...

    @classmethod
    def fit(cls, rows: pd.DataFrame, accelerator: Accelerator) -> Self:
        """Fit the model to rows of this family (schema: rows/dataset.py) that passed the physics check."""
        ...


def operators(kind: type[OperatorT], rows: pd.DataFrame) -> Iterator[tuple[OperatorT, npt.NDArray[np.int64]]]:
    """Yield (operator, positions of its rows) as `operators_of` for rows of one kind; arrays have Shape (n,)."""
    for op, index in operators_of(kind.family, rows):
        assert isinstance(op, kind)
        yield op, index


def best_streaming(
    op: Operator, utilisation: FloatArray, streamed: npt.NDArray[np.bool_], accelerator: Accelerator
) -> float:
    """Return the highest bandwidth utilisation (99th percentile) of shapes over four times the size of the cache.

    The operator's fields, `utilisation` and `streamed`, a mask of the shapes that memory bounds, have shape (n,).
    """
    large = streamed & (bytes_moved(op, accelerator) > 4.0 * accelerator.cache_bytes)
    return float(np.quantile(utilisation[large], 0.99)) if large.any() else 0.9


@dataclass(frozen=True, slots=True)
class HeldOutErrors:
    """Relative errors on rows that were left out of the fit by whole groups (shapes, head configurations).

    An error is predicted / measured - 1. `region` is "inside" the grid that the fit kept, "beyond" it, or "all".
    """

    family: str
    region: str
    n: int
    median_abs: float
    p90_abs: float
    bias: float  # median signed error

    def to_dict(self) -> dict[str, Any]:
        """Return the errors under the names that a bundle stores."""
        return {
            "region": self.region,
            "n": self.n,
            "median_abs_rel_error": round(self.median_abs, 4),
            "p90_abs_rel_error": round(self.p90_abs, 4),
            "bias": round(self.bias, 4),
        }


def held_out(family: str, region: str, predicted_s: FloatArray, measured_s: FloatArray) -> HeldOutErrors:
    """Summarise predicted and measured seconds, both of shape (n,) with at least one row."""
    error = predicted_s / measured_s - 1.0
    size = np.abs(error)
    median, p90, bias = float(np.median(size)), float(np.quantile(size, 0.9)), float(np.median(error))
    return HeldOutErrors(family, region, len(error), median, p90, bias)
