"""Which LoRA adapter each request of a synthetic workload asks for."""

from __future__ import annotations

from typing import Annotated, Final

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field

from catalogs.arrivals import Count

IntArray = npt.NDArray[np.int64]

#: The model as it is, without an adapter.
BASE_MODEL: Final = -1


class Adapters(BaseModel):
    """`adapters` of a workload file. Adapter i (from 0) is asked for in proportion to (i + 1) ** -skew; base_fraction
    of the requests, or sessions, ask for none."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    count: Count
    skew: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    base_fraction: Annotated[float, Field(ge=0, le=1)] = 0.0

    def draw(self, rng: np.random.Generator, n: int) -> IntArray:
        """(n,) adapters, BASE_MODEL for none."""
        weights = np.arange(1, self.count + 1, dtype=np.float64) ** -self.skew
        found = rng.choice(self.count, n, p=weights / weights.sum())
        return np.where(rng.random(n) < self.base_fraction, BASE_MODEL, found)
