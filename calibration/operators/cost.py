"""What an operator costs: seconds, watts, and how well that is known."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np

from calibration.operators.operators import Operator
from catalogs.arrays import FloatArray

#: At a measured grid point; between measured points; by roofline, outside the grid, or transferred.
MEASURED: Final = 0.0

INTERPOLATED: Final = 1.0

ROOFLINE: Final = 2.0


@dataclass(frozen=True, slots=True)
class Cost:
    """Three arrays of one shape (0-d for scalar operators), broadcast over the operator's fields.

    seconds: time on the accelerator; watts: what the accelerator asks for while the operator runs, which may pass its
    limit (power.py); origin: 0 measured, 1 interpolated, 2 roofline or outside the grid or transferred.
    """

    seconds: FloatArray
    watts: FloatArray
    origin: FloatArray


def broadcast(*fields: object) -> tuple[FloatArray, ...]:
    """The fields as float64 arrays of their common shape."""
    arrays = np.broadcast_arrays(*[np.asarray(f, dtype=np.float64) for f in fields])
    return tuple(np.array(a) for a in arrays)


class CostSource(Protocol):
    """What the simulator needs of a calibration bundle."""

    def cost(self, op: Operator) -> Cost: ...

    def relative_error(self, family: str) -> float: ...

    def joins_decodes(self, head_dim: int, kv_dtype: str) -> bool: ...

    @property
    def attention_writes_cache(self) -> bool: ...
