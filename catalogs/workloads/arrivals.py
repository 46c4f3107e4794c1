"""Arrivals whose rate changes over time: Poisson, with a rate that is a known function of the clock.

Random times at one request a second (t) become arrivals where the integral of the rate reaches t (the time change of
an inhomogeneous Poisson process). Asked for another mean rate, the curve rises and falls as a whole: its clock stays.

Arrival processes. Times are drawn at one request per second and divided by the rate, so that two rates of one seed
see the same pattern, stretched (common random numbers).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, model_validator

from catalogs.arrays import FloatArray
from catalogs.io.yaml_files import choose_kind

Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]

Share = Annotated[float, Field(ge=0, le=1)]

#: Pieces a smooth period is cut into: a day in minutes.
PIECES = 1440


@dataclass(frozen=True, slots=True)
class RateCurve:
    """Requests per second, constant from edge to edge; edges_s (n + 1,) from zero, rates (n,). It repeats."""

    edges_s: FloatArray
    rates: FloatArray

    @property
    def period_s(self) -> float:
        return float(self.edges_s[-1])

    @property
    def mean(self) -> float:
        """Over a period."""
        return float(self.reached[-1]) / self.period_s

    @property
    def reached(self) -> FloatArray:
        """Requests expected until each edge, (n + 1,)."""
        return np.concatenate([[0.0], np.cumsum(np.diff(self.edges_s) * self.rates)])

    def times_s(self, counts: FloatArray) -> FloatArray:
        """When the integral of the rate reaches each count."""
        reached = self.reached
        laps, rest = np.divmod(counts, reached[-1])
        piece = np.clip(np.searchsorted(reached, rest, side="right") - 1, 0, len(self.rates) - 1)
        with np.errstate(divide="ignore", invalid="ignore"):
            within = np.where(self.rates[piece] > 0.0, (rest - reached[piece]) / self.rates[piece], 0.0)
        return np.asarray(laps * self.period_s + self.edges_s[piece] + within)

    def with_mean(self, requests_per_s: float) -> RateCurve:
        return RateCurve(self.edges_s, self.rates * (requests_per_s / self.mean))


Rate = Annotated[float, Field(gt=0, allow_inf_nan=False)]


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


class VaryingRate(Arrivals):
    """Base: Poisson arrivals along a curve."""

    @property
    def mean_per_s(self) -> float:
        return self.curve().mean

    def curve(self) -> RateCurve:
        """At the rate the file says."""
        raise NotImplementedError

    def unit_times_s(self, rng: np.random.Generator, n: int) -> FloatArray:
        return np.cumsum(rng.standard_exponential(n))

    def starts_s(self, rng: np.random.Generator, n: int, requests_per_s: float, each: float = 1.0) -> FloatArray:
        return self.curve().with_mean(requests_per_s / each).times_s(self.unit_times_s(rng, n))


class Spike(BaseModel):
    """From at_s on, for lasts_s, `factor` times the rate."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    at_s: Seconds
    lasts_s: Rate
    factor: Rate


class Diurnal(VaryingRate):
    """A sine over a day, with spikes on top: the rate is mean * (1 + swing * cos) with its peak at peak_at_s.

    requests_per_s is the mean without spikes. Times of spikes count from the beginning of each period.
    """

    requests_per_s: Rate
    swing: Share = 0.6  # peak over mean, less one
    period_s: Rate = 86400.0
    peak_at_s: Seconds = 50400.0  # 14:00
    spikes: tuple[Spike, ...] = ()

    def curve(self) -> RateCurve:
        edges = np.union1d(np.linspace(0.0, self.period_s, PIECES + 1), _edges(self.spikes, self.period_s))
        turn = 2.0 * np.pi / self.period_s
        # the mean of 1 + swing * cos over each piece, exactly
        waves = np.diff(np.sin(turn * (edges - self.peak_at_s))) / (turn * np.diff(edges))
        return RateCurve(edges, self.requests_per_s * (1.0 + self.swing * waves) * _raised(edges, self.spikes))


class Spikes(VaryingRate):
    """A constant rate, but for a burst every so often."""

    requests_per_s: Rate  # between the bursts
    every_s: Rate
    lasts_s: Rate
    factor: Rate

    @model_validator(mode="after")
    def _short(self) -> Spikes:
        if self.lasts_s >= self.every_s:
            raise ValueError(f"lasts_s ({self.lasts_s:g}) must be shorter than every_s ({self.every_s:g})")
        return self

    def curve(self) -> RateCurve:
        quiet = self.every_s - self.lasts_s
        return RateCurve(np.array([0.0, quiet, self.every_s]), self.requests_per_s * np.array([1.0, self.factor]))


class Piecewise(VaryingRate):
    """Rates from given times on, {0: 2, 3600: 8}, repeated every period_s."""

    requests_per_s: None = None
    rates: dict[float, Annotated[float, Field(ge=0, allow_inf_nan=False)]]
    period_s: Rate

    @model_validator(mode="after")
    def _sound(self) -> Piecewise:
        times = list(self.rates)
        if not times or times[0] != 0 or any(b <= a for a, b in pairwise(times)):
            raise ValueError("times of rates must rise from 0")
        if not sum(self.rates.values()):
            raise ValueError("one rate at least must not be zero")
        if self.period_s <= times[-1]:
            raise ValueError(f"period_s must be beyond the last time ({times[-1]:g})")
        return self

    def curve(self) -> RateCurve:
        return RateCurve(np.array([*self.rates, self.period_s]), np.array([*self.rates.values()]))


def _edges(spikes: tuple[Spike, ...], period_s: float) -> FloatArray:
    found = np.array([t for s in spikes for t in (s.at_s, s.at_s + s.lasts_s)], dtype=np.float64)
    return found[(found > 0.0) & (found < period_s)]


def _raised(edges: FloatArray, spikes: tuple[Spike, ...]) -> FloatArray:
    """By which factor spikes raise the rate of each piece."""
    middle = 0.5 * (edges[1:] + edges[:-1])
    factor = np.ones(len(middle))
    for spike in spikes:
        factor[(middle >= spike.at_s) & (middle < spike.at_s + spike.lasts_s)] *= spike.factor
    return factor


#: A count of anything a workload holds; far beyond any use, and arrays of 64-bit numbers can be made of it.
Count = Annotated[int, Field(ge=1, le=1_000_000_000, strict=True)]


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


class ConstantRate(Arrivals):
    """Equal gaps, the first request at time zero."""

    requests_per_s: Rate

    def unit_times_s(self, rng: np.random.Generator, n: int) -> FloatArray:  # noqa: ARG002 - one signature for all
        return np.arange(n, dtype=np.float64)


class Rateless(Arrivals):
    """Base: everything arrives at time zero, so there is no rate to set."""

    requests_per_s: None = None

    def unit_times_s(self, rng: np.random.Generator, n: int) -> FloatArray:  # noqa: ARG002 - one signature for all
        return np.zeros(n)


class ClosedLoopArrivals(Rateless):
    """`concurrency` clients, each sending its next request when its previous one ends, after it has thought:
    think_time_s is the mean of an exponential time, also before the first request."""

    concurrency: Count
    think_time_s: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0


class AllAtOnce(Rateless):
    """Every request at time zero (offline batch)."""


def parse_arrivals(data: object) -> Arrivals:
    """`{poisson: {requests_per_s: 8}}`, `all_at_once`, ...; InputError names the nearest kind or key."""
    pass

    kinds: dict[str, type[Arrivals]] = {
        "poisson": Poisson,
        "gamma": Gamma,
        "constant": ConstantRate,
        "diurnal": Diurnal,
        "piecewise": Piecewise,
        "spikes": Spikes,
        "closed_loop": ClosedLoopArrivals,
        "all_at_once": AllAtOnce,
    }
    return choose_kind(kinds, data, "arrivals")
