"""The cost of an operator: its seconds, its watts, and how the seconds were obtained."""

from __future__ import annotations

import hashlib
import pickle
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, Protocol, TypeVar

import numpy as np

from calibration.operators.operators import Operator
from catalogs.arrays import FloatArray

# Values of `Cost.origin`.

#: A measured grid point.
MEASURED: Final = 0.0

#: Interpolated between measured points.
INTERPOLATED: Final = 1.0

#: Derived from the roofline, or extrapolated beyond the grid.
ROOFLINE: Final = 2.0

#: Assumed relative error of operator times that the roofline estimates, and of those scaled from the tables of another
#: chip. This is a default, not a measurement. A judgement: about the stated errors of the families in
#: calibration/families/uncalibrated.py.
ROOFLINE_ERROR: Final = 0.3

#: Keys of the shares of a time by its evidence: measured points, interpolation between them, tables that another
#: accelerator lends, and the roofline.
EVIDENCE_SHARES: Final = ("measured_fraction", "interpolated_fraction", "borrowed_fraction", "roofline_fraction")

#: Share of the step time of a deployment that is a roofline estimate above which its figures count as estimates.
MOSTLY: Final = 0.5


Part = TypeVar("Part", float, FloatArray)


@dataclass(frozen=True, slots=True)
class Cost:
    """The time and power of an operator, as arrays of one shape (0-d for scalar operators).

    The shape is the broadcast shape of the operator's fields.

    Attributes:
        seconds: Time on the accelerator.
        watts: Power demand of the accelerator while the operator runs, which may exceed its limit
            (calibration/power/model.py).
        origin: 0 for measured, 1 for interpolated, 2 for roofline or outside the grid. It is at least 1 where another
            accelerator lends the tables (`CostSource.borrowed_error`).
    """

    seconds: FloatArray
    watts: FloatArray
    origin: FloatArray


def evidence_shares(parts_s: Iterable[float | FloatArray], total_s: float) -> dict[str, float]:
    """Return the shares of a time by its evidence, by the keys EVIDENCE_SHARES, from all its parts but the last.

    They add up to 1, because the roofline has the rest; all are 0 if `total_s` is.

    Args:
        parts_s: Seconds of the first three keys. Shape of each: ().
        total_s: Seconds of the whole time.
    """
    if not total_s:
        return dict.fromkeys(EVIDENCE_SHARES, 0.0)
    shares = [float(part_s / total_s) for part_s in parts_s]
    return dict(zip(EVIDENCE_SHARES, (*shares, max(1.0 - sum(shares), 0.0)), strict=True))


def broadcast(*fields: object) -> tuple[FloatArray, ...]:
    """Return the fields as float64 arrays of their common shape."""
    return tuple(map(np.array, np.broadcast_arrays(*[np.asarray(f, dtype=np.float64) for f in fields])))


class CostSource(Protocol):
    """The methods of a calibration bundle that the simulator uses."""

    def cost(self, op: Operator) -> Cost:
        """Return the seconds, watts and origin of the operator."""
        ...

    def relative_error(self, family: str) -> float:
        """Return the median relative error of an operator family."""
        ...

    @property
    def borrowed_error(self) -> float | None:
        """Return the relative error, beyond `relative_error`, of times from the tables of another accelerator.

        None if no other accelerator lends its tables.
        """
        ...

    def joins_decodes(self, head_dim: int, kv_dtype: str) -> bool:
        """Return whether decodes in a step with prefill run as prefill chunks of one token in one kernel."""
        ...

    @property
    def attention_writes_cache(self) -> bool:
        """Return whether the time of attention includes the write of new keys and values to the cache."""
        ...

    @property
    def experts_are_chosen(self) -> bool:
        """Return whether the time of experts includes the kernel that chooses the experts of each token."""
        ...

    @property
    def unmasked_kernel(self) -> str | None:
        """Return the measured kernel of attention without a mask that engines prefer; None where none was measured."""
        ...


def by_lender(source: CostSource, measured: Part, interpolated: Part) -> tuple[Part, Part, Part]:
    """Return the measured, interpolated and borrowed parts of a time, from those two parts of its tables.

    All is borrowed where another accelerator lends the tables. Shape of each result: that of the parts.
    """
    nothing = 0.0 * measured
    if source.borrowed_error is None:
        return measured, interpolated, nothing
    return nothing, nothing, measured + interpolated


@dataclass(frozen=True, slots=True)
class AdjustedCosts(ABC):
    """The costs of a source, adjusted for each operator; everything else is that of the source. Is a CostSource."""

    source: CostSource

    @abstractmethod
    def cost(self, op: Operator) -> Cost:
        """Return the adjusted seconds, watts and origin of the operator."""

    def relative_error(self, family: str) -> float:
        """Return the median relative error of an operator family, which the adjustment does not change."""
        return self.source.relative_error(family)

    @property
    def borrowed_error(self) -> float | None:
        """Return the error of times from the tables of another accelerator, which the adjustment does not change."""
        return self.source.borrowed_error

    def joins_decodes(self, head_dim: int, kv_dtype: str) -> bool:
        """Return whether decodes in a step with prefill run as prefill chunks of one token in one kernel."""
        return self.source.joins_decodes(head_dim, kv_dtype)

    @property
    def attention_writes_cache(self) -> bool:
        """Return whether the time of attention includes the write of new keys and values to the cache."""
        return self.source.attention_writes_cache

    @property
    def experts_are_chosen(self) -> bool:
        """Return whether the time of experts includes the kernel that chooses the experts of each token."""
        return self.source.experts_are_chosen

    @property
    def unmasked_kernel(self) -> str | None:
        """Return the measured kernel of attention without a mask that engines prefer; None where none was measured."""
        return self.source.unmasked_kernel


@dataclass(frozen=True, slots=True)
class CachedCosts(AdjustedCosts):
    """A cache of the costs of a source. Is a CostSource.

    It pays off where several deployments of one model on one accelerator are priced, because they share most of their
    operators.

    Attributes:
        known: The costs so far, by the digest of the operator with all its counts.
    """

    known: dict[bytes, Cost] = field(default_factory=dict, repr=False)

    def cost(self, op: Operator) -> Cost:
        """Return the seconds, watts and origin of the operator; the source computes them the first time."""
        key = _digest(op)
        if key not in self.known:
            self.known[key] = self.source.cost(op)
        return self.known[key]


def _digest(op: Operator) -> bytes:
    """Return the digest of an operator with all its counts: equal for equal operators alone.

    Pickling a whole operator takes eight times as long.
    """
    digest = hashlib.sha256(type(op).__name__.encode())
    for name in op.__slots__:
        value = getattr(op, name)
        if isinstance(value, np.ndarray):
            digest.update(f"{value.dtype.str}{value.shape};".encode())
            digest.update(np.ascontiguousarray(value).data)
        elif isinstance(value, str | int | float | None):
            digest.update(f"{value!r};".encode())
        else:
            digest.update(pickle.dumps(value))
    return digest.digest()
