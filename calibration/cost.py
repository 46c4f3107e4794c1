"""What an operator costs: seconds, watts, and how well that is known."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

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

    seconds: Array
    watts: Array
    origin: Array


def broadcast(*fields: object) -> tuple[Array, ...]:
    """The fields as float64 arrays of their common shape."""
    arrays = np.broadcast_arrays(*[np.asarray(f, dtype=np.float64) for f in fields])
    return tuple(np.array(a) for a in arrays)
