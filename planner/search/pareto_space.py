"""What trades against what: every deployment at every load, as points of a space whose Pareto front is wanted.

What a front is of: money, energy, carbon or a statistic of a latency; lower is better on all of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

import numpy as np

from catalogs.arrays import FloatArray
from catalogs.economics.electricity import DEFAULT_PUE
from catalogs.errors import InputError, nearest_name
from planner.economics.money import JOULES_PER_KWH, MILLION, SECONDS_PER_HOUR
from planner.evaluation.evaluator import HOPELESS_GROWTH, SHORT_RUN_MARGIN, Evaluator, Load, Verdict, judge
from planner.evaluation.queueing import Utilisation
from planner.problem.candidate import Candidate
from planner.problem.price_list import PriceList
from planner.problem.slo import METRIC_WORDS, Slo, parse_slo
from planner.search.objectives import RunSizes
from planner.search.pareto_sampler import ParetoSample, ParetoSampler
from planner.search.study import Params

#: Loads of each deployment, as shares of the highest rate per dollar that any is guessed to carry.
LADDER: Final = (0.05, 0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.95)

#: Nearer to saturation than this share latencies depend on how long the load lasts: such points are left out.
FULLEST: Final = 0.85

#: An accelerator at rest draws about this share of what it draws at work: only for guesses of energy.
_IDLE: Final = 0.4

#: A guess is no larger: an overloaded system has no steady latency.
_LONGEST_S: Final = 1e4

#: Share of saturation at which a load is as likely to hold as not, and how far around it that is in doubt.
_EVEN, _DOUBT = 0.9, 0.25

#: A point guessed to hold at least so surely is not run twice.
_SURE: Final = 0.5


@dataclass(frozen=True, slots=True)
class ParetoCandidate:
    """One deployment at one load. share: of LADDER, or 1 where the load is given; usd_per_s: of all its hardware."""

    candidate: Candidate
    share: float
    requests_per_s: float
    usd_per_s: float

    @property
    def usd_per_request(self) -> float:
        return self.usd_per_s / self.requests_per_s

    @property
    def params(self) -> Params:
        """By PARAMS: what names the point in a study."""
        c = self.candidate
        return (" ".join(map(str, c.placement)), c.max_num_seqs, c.max_num_batched_tokens, self.share)


PARAMS: Final = ("layout", "max_num_seqs", "max_num_batched_tokens", "load")


@dataclass(frozen=True, slots=True)
class ParetoAxis:
    """slo: the statistic, where it is of a latency (its limit does not count). Values in `unit`."""

    name: str
    slo: Slo | None = None

    @property
    def unit(self) -> str:
        return "s" if self.slo is not None else PER_TOKEN[self.name][0]

    @property
    def words(self) -> str:
        if self.slo is None:
            return PER_TOKEN[self.name][1]
        return f"{METRIC_WORDS[self.slo.metric]}, {self.slo.stat}"

    @property
    def is_known(self) -> bool:
        """Whether a value follows from the load alone, without a simulation."""
        return self.name == "cost"


@dataclass(frozen=True)
class ParetoSpace:
    """The space of one question. slos: limits that a point must hold to be on the front."""

    world: Evaluator
    prices: PriceList
    points: tuple[ParetoCandidate, ...]
    axes: tuple[ParetoAxis, ...]
    slos: tuple[Slo, ...]
    seed: int
    sizes: RunSizes

    # ---- guesses

    @cached_property
    def utilisations(self) -> list[Utilisation]:
        quantile = next((a.slo.quantile for a in self.axes if a.slo is not None and a.slo.metric == "ttft"), None)
        return [self.world.utilisation(p.candidate, p.requests_per_s, quantile) for p in self.points]

    @cached_property
    def guesses(self) -> FloatArray:
        """(n, axes): cost, which is true; latencies by the fluid; energy as if power rose in step with the load."""
        return np.array([[self._guess(p, axis) for axis in self.axes] for p in self.points])

    def _guess(self, point: ParetoCandidate, axis: ParetoAxis) -> float:
        if axis.slo is not None:
            return min(
                self.world.guess_s(point.candidate, point.requests_per_s, axis.slo.metric, axis.slo.quantile),
                _LONGEST_S,
            )
        if axis.name == "cost":
            return self._usd_per_million(point)
        hardware = point.candidate.hardware
        full = min(point.requests_per_s / self.world.fluid_requests_per_s(point.candidate), 1.0)
        watts = hardware.accelerator.tdp_w * (
            _IDLE * hardware.n_accelerators + (1 - _IDLE) * full * point.candidate.accelerators
        )
        return self._per_token(watts / (point.requests_per_s * self.world.mean_output_tokens), axis)

    def _usd_per_million(self, point: ParetoCandidate) -> float:
        return point.usd_per_request / self.world.mean_output_tokens * MILLION

    def _per_token(self, joules: float, axis: ParetoAxis) -> float:
        grid = self.prices.grid() if axis.name == "carbon" else None
        if grid is None:
            return joules
        return joules * MILLION / JOULES_PER_KWH * DEFAULT_PUE * grid.gco2e_per_kwh

    @cached_property
    def holds(self) -> FloatArray:
        """(n,) in -1..1: whether a point is guessed to keep up."""
        full = np.array([max(s.full, s.api_server, s.engine) for s in self.utilisations])
        return np.asarray(np.clip((_EVEN - full) / _DOUBT, -1.0, 1.0), np.float64)

    @property
    def features(self) -> FloatArray:
        """(n, m): what decides how far the guess is off."""
        return np.array([self._features(p, s) for p, s in zip(self.points, self.utilisations, strict=True)])

    def _features(self, p: ParetoCandidate, s: Utilisation) -> tuple[float, ...]:
        c = p.candidate
        accelerator = c.hardware.accelerator
        return (
            math.log2(c.layout.accelerators),
            math.log2(c.layout.data_parallel),
            float(c.layout.expert_parallel),
            float(c.weight_dtype == "fp8"),
            float(c.kv_dtype == "fp8"),
            math.log2(accelerator.memory_bandwidth_bytes_per_s),
            math.log2(p.requests_per_s / c.replicas),
            math.log(s.step_s),
            -math.log(max(1 - s.full, 0.03)),
            -math.log(max(1 - s.api_server, 0.03)),
            -math.log(max(1 - s.engine, 0.03)),
            -math.log(max(1 - s.seats, 0.03)),
            -math.log(max(1 - s.tokens, 0.03)),
            *(part / sum(s.first_s) for part in s.first_s),
        )

    @property
    def names(self) -> tuple[str, ...]:
        return PARAMS

    @property
    def params(self) -> list[Params]:
        return [point.params for point in self.points]

    def guide(self, seed: int) -> ParetoSampler:
        """Where to look, by all of the above."""
        known = tuple(axis.is_known for axis in self.axes)
        return ParetoSampler(self.guesses, self.features, self.holds, known, seed)

    # ---- simulated runs

    def look(self, index: int, front: Sequence[tuple[float, ...]] = ()) -> ParetoSample:
        """One simulated run; a short one first where it is in doubt whether the point keeps up (successive halving)."""
        n_short = 0
        if self.holds[index] < _SURE:
            short = self._run(index, self.sizes.quick)
            if short.slack > 0 or any(_far_behind(short.values, best, self.axes) for best in front):
                return replace(short, pruned=True)
            n_short = short.n_requests
        full = self.measure(index)
        return replace(full, n_requests=n_short + full.n_requests)

    def measure(self, index: int) -> ParetoSample:
        """One simulated run of full length."""
        return self._run(index, self.sizes.full)

    def _run(self, index: int, n_requests: int) -> ParetoSample:
        point, world = self.points[index], self.world
        before = world.n_requests_simulated
        patient = n_requests >= self.sizes.full
        load = Load(point.requests_per_s, n_requests, self.seed, patient=patient)
        latencies = tuple(axis.slo for axis in self.axes if axis.slo is not None)
        verdict = judge([world.observe(point.candidate, load)], (*latencies, *self.slos))
        values = tuple(self._value(point, axis, verdict) for axis in self.axes)
        return ParetoSample(values, self._slack(verdict, patient), world.n_requests_simulated - before)

    def _value(self, point: ParetoCandidate, axis: ParetoAxis, verdict: Verdict) -> float:
        if axis.slo is not None:
            return verdict.value_s(axis.slo)
        if axis.name == "cost":
            return self._usd_per_million(point)
        return self._per_token(verdict.joules_per_output_token, axis)

    def _slack(self, verdict: Verdict, patient: bool) -> float:
        """At most zero where the system keeps up and the limits hold; a short run only tells what is hopeless."""
        ratios = [verdict.value_s(slo) / slo.limit_s - 1 for slo in self.slos]
        growth = max(o.growth_fraction for o in verdict.observations)
        behind = 0.0 if verdict.stable else growth if patient else growth - HOPELESS_GROWTH
        return max([behind, *ratios])


def trade_points(
    world: Evaluator,
    prices: PriceList,
    left: Sequence[Candidate],
    requests_per_s: float | None = None,
    ladder: Sequence[float] = LADDER,
) -> tuple[ParetoCandidate, ...]:
    """left: deployments that fit. Loads are equal in requests per dollar, so that points compare: of each deployment
    those it has room for. Where no price is known, an hour of an accelerator counts as a dollar."""
    if not left:
        return ()
    usd = {c: _usd_per_s(prices, c) for c in left}
    if requests_per_s is not None:
        return tuple(ParetoCandidate(c, 1.0, requests_per_s, usd[c]) for c in left)
    most = max(world.fluid_requests_per_s(c) / usd[c] for c in left)
    return tuple(
        ParetoCandidate(c, share, share * most * usd[c], usd[c])
        for c in left
        for share in ladder
        if share * most * usd[c] <= FULLEST * world.fluid_requests_per_s(c)
    )


def _far_behind(values: tuple[float, ...], best: tuple[float, ...], axes: Sequence[ParetoAxis]) -> bool:
    """Worse in everything, by more than the noise of a short run in what a run decides."""
    margins = (1.0 if axis.is_known else SHORT_RUN_MARGIN for axis in axes)
    return all(v >= margin * b for v, b, margin in zip(values, best, margins, strict=True))


def _usd_per_s(prices: PriceList, candidate: Candidate) -> float:
    price = prices.price(candidate.hardware)
    hourly = candidate.hardware.n_accelerators if price is None else price.usd_per_hour
    return hourly / SECONDS_PER_HOUR


#: Name to unit and words, all per token made while the load lasts.
PER_TOKEN: Final[dict[str, tuple[str, str]]] = {
    "cost": ("USD", "cost per million output tokens"),
    "energy": ("J", "energy per output token, accelerators and hosts"),
    "carbon": ("gCO2e", "carbon per million output tokens, the facility included"),
}

FEWEST: Final = 2

MOST: Final = 3


def parse_axes(text: str) -> tuple[ParetoAxis, ...]:
    """ "cost,ttft.p99": two or three, at least one of a latency. Raises InputError."""
    names = [part.strip().lower() for part in text.split(",") if part.strip()]
    if not FEWEST <= len(names) <= MOST or len(set(names)) < len(names):
        raise InputError("a front is of two or three different objectives", text, "cost,ttft.p99")
    axes = tuple(_axis(name) for name in names)
    if all(axis.slo is None for axis in axes):
        raise InputError("one objective of a front is a latency: the others trade against it", text, "cost,ttft.p99")
    return axes


def _axis(name: str) -> ParetoAxis:
    if name in PER_TOKEN:
        return ParetoAxis(name)
    metric = name.partition(".")[0]
    if "." not in name or metric not in METRIC_WORDS:
        near = nearest_name(metric, (*PER_TOKEN, *METRIC_WORDS)) or "cost"
        rule = f"an objective of a front is {', '.join(PER_TOKEN)} or a latency's statistic ({', '.join(METRIC_WORDS)})"
        raise InputError(rule, name, near if near in PER_TOKEN else f"{near}.p99")
    slo = parse_slo(f"{name}=1s")
    return ParetoAxis(slo.name, slo)
