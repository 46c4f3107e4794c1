"""Cost against latency: every deployment at every load, as points of a space whose Pareto front is wanted."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np

from catalogs.hardware import parse_hardware
from planner.assess import RunSizes
from planner.candidate import Candidate
from planner.cost import MILLION, SECONDS_PER_HOUR
from planner.front import FloatArray, FrontSearch, Objectives
from planner.observation import OVERLOAD_GROWTH, Load, judge
from planner.slo import Slo
from planner.world import World

#: Loads of each deployment, as shares of the highest rate per unit of cost that any is guessed to carry.
LADDER: Final = (0.05, 0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.95)

#: Share of the seats from which they begin to matter; share of the fluid's rate at which a run is as likely to hold.
_NEARLY: Final = 0.5
_FULL: Final = 0.75


@dataclass(frozen=True, slots=True)
class TradePoint:
    """One deployment at one load. usd_per_request: of the whole deployment's hardware at that load."""

    candidate: Candidate
    requests_per_s: float
    usd_per_request: float


@dataclass(frozen=True)
class Trade:
    """The space of one question. slo: the latency statistic on the other axis (its limit does not count)."""

    world: World
    points: tuple[TradePoint, ...]
    slo: Slo
    output_tokens: float
    seed: int
    n_requests: int

    @classmethod
    def of(
        cls, world: World, left: Sequence[Candidate], slo: Slo, seed: int, ladder: Sequence[float] = LADDER
    ) -> Trade:
        """left: deployments that fit. Where no price is known, an hour of an accelerator counts as a dollar."""
        usd = {c: _usd_per_s(world, c) for c in left}
        most = max(world.fluid_requests_per_s(c) / usd[c] for c in left)  # requests per dollar
        points = tuple(
            TradePoint(c, share * most * usd[c], 1 / (share * most))
            for c in left
            for share in ladder
            if share * most * usd[c] < world.fluid_requests_per_s(c)
        )
        n = RunSizes.for_slos([slo]).quick
        return cls(world, points, slo, world.mean_output_tokens, seed, n)

    @cached_property
    def guesses(self) -> FloatArray:
        """(n, 2): dollars per request, which is true, and seconds by the fluid."""
        return np.array([(p.usd_per_request, self._guess_s(p)) for p in self.points])

    def _guess_s(self, point: TradePoint) -> float:
        return min(self.world.guess_s(point.candidate, point.requests_per_s, self.slo.metric), 1e6)

    @cached_property
    def full(self) -> FloatArray:
        """(n,): the load as a share of what the candidate is guessed to carry with every seat taken."""
        return np.array([p.requests_per_s / self.world.fluid_requests_per_s(p.candidate) for p in self.points])

    @property
    def features(self) -> FloatArray:
        """(n, m): what decides how far the guess is off. Seats only count where they are nearly all taken."""
        rows = []
        for p, (_, guess_s), full in zip(self.points, self.guesses, self.full, strict=True):
            c = p.candidate
            e2e_s = self.world.guess_s(c, p.requests_per_s, "e2e")
            taken = p.requests_per_s / c.replicas * e2e_s / (c.max_num_seqs * c.layout.data_parallel)
            rows.append(
                (
                    math.log2(c.layout.accelerators),
                    math.log2(c.layout.tensor_parallel),
                    float(c.layout.expert_parallel),
                    math.log2(p.requests_per_s / c.replicas),  # what one front door takes in
                    float(c.weight_dtype == "fp8"),
                    float(c.kv_dtype == "fp8"),
                    min(max(taken - _NEARLY, 0.0), 1.0),
                    math.log2(c.max_num_batched_tokens) * full,
                    math.log(guess_s),
                    full**2,
                    math.log(parse_hardware(c.hardware).accelerator.memory_bandwidth_bytes_per_s),
                )
            )
        return np.array(rows)

    def measure(self, index: int) -> Objectives:
        """One simulated run of one point."""
        p = self.points[index]
        load = Load(p.requests_per_s, self.n_requests, self.seed, patient=False)
        verdict = judge([self.world.observe(p.candidate, load)], (self.slo,))
        growth = max(o.growth_fraction for o in verdict.observations)
        value_s = verdict.value_s(self.slo) if growth <= OVERLOAD_GROWTH else math.inf  # a short run is still filling
        return p.usd_per_request, value_s

    def search(self, most: int, seed: int = 0) -> FrontSearch:
        """At most `most` points are simulated."""
        holds = np.clip((_FULL - self.full) / (1 - _FULL), -1.0, 1.0)
        return FrontSearch(self.guesses, self.features, holds, (True, False), most, seed)

    def usd_per_million_output_tokens(self, point: TradePoint) -> float:
        return point.usd_per_request / self.output_tokens * MILLION


def _usd_per_s(world: World, candidate: Candidate) -> float:
    price = world.price(candidate)
    hourly = parse_hardware(candidate.hardware).n_accelerators if price is None else price.usd_per_hour
    return hourly / SECONDS_PER_HOUR
