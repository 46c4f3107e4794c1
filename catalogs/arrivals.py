"""Arrival processes. Times are drawn at one request per second and divided by the rate, so that two rates of one seed
see the same pattern, stretched (common random numbers)."""

from __future__ import annotations

from typing import Annotated

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field

from catalogs.choice import chosen

FloatArray = npt.NDArray[np.float64]
Rate = Annotated[float, Field(gt=0, allow_inf_nan=False)]
#: A count of anything a workload holds; far beyond any use, and arrays of 64-bit numbers can be made of it.
Count = Annotated[int, Field(ge=1, le=1_000_000_000, strict=True)]


class Arrivals(BaseModel):
    """Base: an arrival process. `requests_per_s` None means that it has no rate of its own."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    requests_per_s: Rate | None = None

    def unit_times_s(self, rng: np.random.Generator, n: int) -> FloatArray:
        """(n,) non-decreasing arrival times at a mean of one request per second."""
        raise NotImplementedError

    def starts_s(self, rng: np.random.Generator, n: int, requests_per_s: float, each: float = 1.0) -> FloatArray:
        """(n,) seconds at which something begins that sends `each` requests, requests_per_s of them in all."""
        return np.asarray(self.unit_times_s(rng, n) * each / requests_per_s)

    @property
    def mean_per_s(self) -> float | None:
        """Requests per second in the long run; None where it has no rate of its own."""
        return self.requests_per_s


class Poisson(Arrivals):
    """Independent exponential gaps."""

    def unit_times_s(self, rng: np.random.Generator, n: int) -> FloatArray:
        return np.cumsum(rng.standard_exponential(n))


class Gamma(Arrivals):
    """Independent gamma gaps with coefficient of variation `cv` (1 is Poisson, above 1 is bursty)."""

    cv: Rate

    def unit_times_s(self, rng: np.random.Generator, n: int) -> FloatArray:
        shape = 1.0 / self.cv**2
        return np.cumsum(rng.standard_gamma(shape, n) / shape)


class Constant(Arrivals):
    """Equal gaps, the first request at time zero."""

    requests_per_s: Rate

    def unit_times_s(self, rng: np.random.Generator, n: int) -> FloatArray:  # noqa: ARG002 - one signature for all
        return np.arange(n, dtype=np.float64)


class Rateless(Arrivals):
    """Base: everything arrives at time zero, so there is no rate to set."""

    requests_per_s: None = None

    def unit_times_s(self, rng: np.random.Generator, n: int) -> FloatArray:  # noqa: ARG002 - one signature for all
        return np.zeros(n)


class ClosedLoop(Rateless):
    """`concurrency` clients, each sending its next request when its previous one ends, after it has thought:
    think_time_s is the mean of an exponential time, also before the first request."""

    concurrency: Count
    think_time_s: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0


class AllAtOnce(Rateless):
    """Every request at time zero (offline batch)."""


def parse_arrivals(data: object) -> Arrivals:
    """`{poisson: {requests_per_s: 8}}`, `all_at_once`, ...; InputError names the nearest kind or key."""
    from catalogs.rate_curve import Diurnal, Piecewise, Spikes

    kinds: dict[str, type[Arrivals]] = {
        "poisson": Poisson,
        "gamma": Gamma,
        "constant": Constant,
        "diurnal": Diurnal,
        "piecewise": Piecewise,
        "spikes": Spikes,
        "closed_loop": ClosedLoop,
        "all_at_once": AllAtOnce,
    }
    return chosen(kinds, data, "arrivals")
