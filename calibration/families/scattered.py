"""Utilisation at scattered points: what profiles of networks measure, whose shapes lie on no grid.

Utilisation is read from the NEIGHBOURS nearest measured points, in doublings, each weighted by 1 / distance^POWER. A
measured point is reproduced. Towards smaller shapes than any measured, the time is at least the least measured time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt

from calibration.operators.cost import INTERPOLATED, MEASURED, ROOFLINE
from catalogs.arrays import FloatArray

#: Measured points that are read, the nearest ones. A judgement: enough to surround a point in two or three coordinates.
NEIGHBOURS: Final = 6

#: Exponent of the inverse distance by which they are weighted. A judgement: steep, so that the nearest point decides.
POWER: Final = 3.0

ON_POINT: Final = 1e-3  # doublings; a nearer point is the point itself

#: Doublings to the nearest point, beyond which the value is an extrapolation. A judgement: a factor of 4 in size.
FAR: Final = 2.0


@dataclass(frozen=True, slots=True)
class ScatteredValues:
    """Values at points: `points` has the coordinates in doublings, Shape (n, d), and `values` Shape (n,)."""

    points: FloatArray
    values: FloatArray

    @classmethod
    def of(cls, points: FloatArray, values: FloatArray) -> Self:
        """Return the values at distinct points: those of equal points, Shape (n, d), are averaged, as Shape (m,)."""
        distinct, index = np.unique(np.asarray(points, dtype=np.float64).round(4), axis=0, return_inverse=True)
        count = np.bincount(index.ravel())
        return cls(distinct, np.bincount(index.ravel(), weights=values) / count)

    def at(self, where: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return (values, origins) at coordinates of Shape (q, d), both of Shape (q,)."""
        found, origin = np.empty(len(where)), np.empty(len(where))
        for i, point in enumerate(where):
            distance = np.linalg.norm(self.points - point, axis=1)
            near = np.argsort(distance)[:NEIGHBOURS]
            least = float(distance[near[0]])
            if least < ON_POINT:
                found[i], origin[i] = self.values[near[0]], MEASURED
                continue
            weight = distance[near] ** -POWER
            found[i] = float(weight @ self.values[near] / weight.sum())
            origin[i] = INTERPOLATED if least < FAR else ROOFLINE
        return found, origin

    def to_arrays(self, name: str) -> dict[str, npt.NDArray[Any]]:
        """Return the arrays to store, in single precision."""
        return {f"{name}.points": self.points.astype(np.float32), f"{name}.values": self.values.astype(np.float32)}

    @classmethod
    def from_arrays(cls, name: str, arrays: Mapping[str, npt.NDArray[Any]]) -> Self:
        """Return the values in the arrays of `to_arrays`; KeyError where an array is missing."""
        return cls(arrays[f"{name}.points"].astype(np.float64), arrays[f"{name}.values"].astype(np.float64))
