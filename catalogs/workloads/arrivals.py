"""Arrival processes, with constant or time-varying rates.

Times are drawn at one request per second and divided by the rate, so that two rates with one seed have the same
pattern, stretched (common random numbers). For time-varying rates, such unit times t become arrivals where the integral
of the rate reaches t (the time change of an inhomogeneous Poisson process). Another mean rate scales the whole curve
and leaves its times unchanged.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, ClassVar, Final

import numpy as np
from pydantic import Field, NonNegativeFloat, PositiveFloat, model_validator

from catalogs.arrays import FloatArray
from catalogs.io.yaml_files import Share, YamlBlock, choose_kind
from catalogs.workloads.limits import LEAST_REQUESTS_PER_S, MOST_COUNT, MOST_REQUESTS_PER_S

#: Pieces into which a smooth period is cut: the minutes of a day.
PIECES = 1440


@dataclass(frozen=True, slots=True)
class RateCurve:
    """A periodic rate in requests per second, constant between edges.

    edges_s has shape (n + 1,) and starts at zero; rates has shape (n,).
    """

    edges_s: FloatArray
    rates: FloatArray

    @property
    def period_s(self) -> float:
        """Return the period in seconds."""
        return float(self.edges_s[-1])

    @property
    def mean(self) -> float:
        """Return the mean rate over a period."""
        return float(self.reached[-1]) / self.period_s

    @property
    def reached(self) -> FloatArray:
        """Return the expected requests until each edge. Shape (n + 1,)."""
        return np.concatenate([[0.0], np.cumsum(np.diff(self.edges_s) * self.rates)])

    def times_s(self, counts: FloatArray) -> FloatArray:
        """Return the times at which the integral of the rate reaches each count. Shape of `counts`."""
        reached = self.reached
        laps, rest = np.divmod(counts, reached[-1])
        piece = np.clip(np.searchsorted(reached, rest, side="right") - 1, 0, len(self.rates) - 1)
        with np.errstate(divide="ignore", invalid="ignore"):
            within = np.where(self.rates[piece] > 0.0, (rest - reached[piece]) / self.rates[piece], 0.0)
        return np.asarray(laps * self.period_s + self.edges_s[piece] + within)

    def with_mean(self, requests_per_s: float) -> RateCurve:
        """Return the curve scaled to another mean rate."""
        return RateCurve(self.edges_s, self.rates * (requests_per_s / self.mean))


#: A count of anything in a workload.
Count = Annotated[int, Field(ge=1, le=MOST_COUNT, strict=True)]

#: A rate in requests per second.
Rate = Annotated[float, Field(ge=LEAST_REQUESTS_PER_S, le=MOST_REQUESTS_PER_S)]

#: A coefficient of variation whose square neither vanishes nor overflows.
Variation = Annotated[float, Field(ge=1e-6, le=1e3)]

#: The share of a class or a model, relative to the others.
Weight = Annotated[float, Field(ge=1e-9, le=1e9)]


class Arrivals(YamlBlock):
    """Base class of arrival processes, Poisson by default; `requests_per_s` is None where there is no own rate."""

    requests_per_s: Rate | None = None

    #: Whether another rate only divides the times at which sources start.
    scales: ClassVar[bool] = True

    def unit_times_s(self, rng: np.random.Generator, n: int) -> FloatArray:
        """Return non-decreasing arrival times at a mean of one request per second. Shape (n,)."""
        return np.cumsum(rng.standard_exponential(n))

    def starts_s(self, rng: np.random.Generator, n: int, requests_per_s: float, each: float = 1.0) -> FloatArray:
        """Return the start times in seconds of n sources that send `each` requests. Shape (n,).

        All sources together send `requests_per_s`.
        """
        return np.asarray(self.unit_times_s(rng, n) * each / requests_per_s)

    @property
    def mean_per_s(self) -> float | None:
        """Return the long-run requests per second; None where the process has no rate of its own."""
        return self.requests_per_s


class VaryingRate(Arrivals):
    """Base class of Poisson arrivals whose rate follows a curve."""

    scales: ClassVar[bool] = False

    @property
    def mean_per_s(self) -> float:
        """Return the mean requests per second over a period."""
        return self.curve().mean

    def curve(self) -> RateCurve:
        """Return the curve at the rate of the file."""
        raise NotImplementedError

    def starts_s(self, rng: np.random.Generator, n: int, requests_per_s: float, each: float = 1.0) -> FloatArray:
        """Return start times whose rate follows the curve, scaled to `requests_per_s`. Shape (n,)."""
        return self.curve().with_mean(requests_per_s / each).times_s(self.unit_times_s(rng, n))


class Spike(YamlBlock):
    """A burst of `factor` times the rate, from at_s for lasts_s."""

    at_s: NonNegativeFloat
    lasts_s: PositiveFloat
    factor: Annotated[float, Field(gt=0, le=1e6)]


class Diurnal(VaryingRate):
    """A daily sine with optional spikes: the rate is mean * (1 + swing * cos), with its peak at peak_at_s.

    requests_per_s is the mean without spikes. The times of spikes count from the start of each period.
    """

    requests_per_s: Rate
    swing: Share = 0.6  # peak over mean, minus one
    period_s: PositiveFloat = 86400.0
    peak_at_s: NonNegativeFloat = 50400.0  # 14:00
    spikes: tuple[Spike, ...] = ()

    def curve(self) -> RateCurve:
        """Return the rate in pieces that hold the exact mean of the sine over each piece."""
        jumps = (t for s in self.spikes for t in (s.at_s, s.at_s + s.lasts_s) if 0.0 < t < self.period_s)
        edges = np.union1d(np.linspace(0.0, self.period_s, PIECES + 1), np.fromiter(jumps, dtype=np.float64))
        turn = 2.0 * np.pi / self.period_s
        # the mean of 1 + swing * cos over each piece, exactly
        waves = np.diff(np.sin(turn * (edges - self.peak_at_s))) / (turn * np.diff(edges))
        return RateCurve(edges, self.requests_per_s * (1.0 + self.swing * waves) * _raised(edges, self.spikes))


class Spikes(VaryingRate):
    """A constant rate with a burst of `factor` times that rate in every period."""

    requests_per_s: Rate  # between the bursts
    every_s: PositiveFloat
    lasts_s: PositiveFloat
    factor: Annotated[float, Field(gt=0, le=1e6)]

    @model_validator(mode="after")
    def _short(self) -> Spikes:
        if self.lasts_s >= self.every_s:
            raise ValueError(f"lasts_s ({self.lasts_s:g}) must be shorter than every_s ({self.every_s:g})")
        return self

    def curve(self) -> RateCurve:
        """Return the rate of one period: the constant part, then the burst."""
        quiet = self.every_s - self.lasts_s
        return RateCurve(np.array([0.0, quiet, self.every_s]), self.requests_per_s * np.array([1.0, self.factor]))


class Piecewise(VaryingRate):
    """Rates that change at given times, such as {0: 2, 3600: 8}, repeated every period_s."""

    requests_per_s: None = None
    rates: dict[float, NonNegativeFloat]
    period_s: PositiveFloat

    @model_validator(mode="after")
    def _sound(self) -> Piecewise:
        times = list(self.rates)
        if not times or times[0] != 0 or any(b <= a for a, b in pairwise(times)):
            raise ValueError("times of rates must rise from 0")
        if not sum(self.rates.values()):
            raise ValueError("at least one rate must not be zero")
        if self.period_s <= times[-1]:
            raise ValueError(f"period_s must exceed the last time ({times[-1]:g})")
        return self

    def curve(self) -> RateCurve:
        """Return the rates as written."""
        return RateCurve(np.array([*self.rates, self.period_s]), np.array([*self.rates.values()]))


def _raised(edges: FloatArray, spikes: tuple[Spike, ...]) -> FloatArray:
    """Return the factor by which spikes raise the rate of each piece."""
    middle = 0.5 * (edges[1:] + edges[:-1])
    factor = np.ones(len(middle))
    for spike in spikes:
        factor[(middle >= spike.at_s) & (middle < spike.at_s + spike.lasts_s)] *= spike.factor
    return factor


class Poisson(Arrivals):
    """Poisson arrivals: independent exponential gaps."""


class Gamma(Arrivals):
    """Independent gamma-distributed gaps with coefficient of variation `cv` (1 is Poisson, above 1 is bursty)."""

    cv: Variation

    def unit_times_s(self, rng: np.random.Generator, n: int) -> FloatArray:
        """Return arrival times with gamma-distributed gaps of mean one second. Shape (n,)."""
        shape = 1.0 / self.cv**2
        return np.cumsum(rng.standard_gamma(shape, n) / shape)


class ConstantRate(Arrivals):
    """Equal gaps between requests, with the first request at time zero."""

    requests_per_s: Rate

    def unit_times_s(self, rng: np.random.Generator, n: int) -> FloatArray:  # noqa: ARG002 - one signature for all
        """Return arrival times one second apart. Shape (n,)."""
        return np.arange(n, dtype=np.float64)


class Rateless(Arrivals):
    """Base class of processes where everything arrives at time zero, so that there is no rate to set."""

    requests_per_s: None = None

    def unit_times_s(self, rng: np.random.Generator, n: int) -> FloatArray:  # noqa: ARG002 - one signature for all
        """Return arrival times of zero for all n requests. Shape (n,)."""
        return np.zeros(n)


class ClosedLoopArrivals(Rateless):
    """`concurrency` clients, each of which sends its next request one think time after its previous one has ended.

    think_time_s is the mean of an exponential distribution, which also applies before the first request.
    """

    concurrency: Count
    think_time_s: NonNegativeFloat = 0.0


class AllAtOnce(Rateless):
    """Every request at time zero (an offline batch)."""


#: The arrival processes by their names in workload files.
PROCESSES: Final[dict[str, type[Arrivals]]] = {
    "poisson": Poisson,
    "gamma": Gamma,
    "constant": ConstantRate,
    "diurnal": Diurnal,
    "piecewise": Piecewise,
    "spikes": Spikes,
    "closed_loop": ClosedLoopArrivals,
    "all_at_once": AllAtOnce,
}


def parse_arrivals(data: object) -> Arrivals:
    """Return the arrival process that `data` names, such as `{poisson: {requests_per_s: 8}}` or `all_at_once`.

    Raises:
        InputError: The kind or a key is unknown (the message names the nearest), or a value is out of range.
    """
    return choose_kind(PROCESSES, data, "arrivals")


def process_name(arrivals: Arrivals) -> str:
    """Return the name of an arrival process in workload files."""
    return next(name for name, kind in PROCESSES.items() if type(arrivals) is kind)
