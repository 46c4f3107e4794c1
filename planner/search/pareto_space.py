"""The space of a Pareto front: every deployment at every load.

The axes are cost, energy, carbon or a statistic of a latency; lower is better on all of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Final

import numpy as np

from catalogs.arrays import FloatArray
from catalogs.units import HOUR_S
from planner.economics.money import JOULES_PER_KWH, MILLION
from planner.evaluation.closed_forms.queueing import Utilisation
from planner.evaluation.confidence import allowance_for
from planner.evaluation.evaluator import Evaluator
from planner.evaluation.observation import Load
from planner.evaluation.run_sizes import RunSizes
from planner.evaluation.stability import CLEAR_OVERLOAD_GROWTH
from planner.evaluation.verdict import SHORT_RUN_MARGIN, Verdict, judge, verdict_of
from planner.problem.candidate import Candidate
from planner.problem.front import ParetoAxis
from planner.problem.latency_metrics import TTFT
from planner.problem.price_list import PriceList
from planner.problem.slo import Slo
from planner.search.optuna_study import Params
from planner.search.pareto_sampler import ParetoSample, ParetoSampler

#: Loads of each deployment, as shares of the highest estimated rate per dollar of all deployments.
LADDER: Final = (0.05, 0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.95)

#: Beyond this share of saturation, latencies depend on the duration of the load; such points are left out.
FULLEST: Final = 0.85

#: Idle power of an accelerator as a share of its power at work, for estimates of energy only.
_IDLE: Final = 0.4

#: Largest estimate of a latency: an overloaded system has no steady latency.
_LONGEST_S: Final = 1e4

#: Share of saturation at which a load is as likely to hold as not, and how far around it that is in doubt.
_EVEN_ODDS_SATURATION, _DOUBTFUL_RANGE = 0.9, 0.25

#: A full run that meets the limits by less than this share is repeated with SEEDS seeds, of which all are pooled.
CLOSE, SEEDS = 0.15, 4

#: Points whose estimate of `holds` is at least this have no short run before the full run.
_SKIP_SHORT_RUN: Final = 0.5


@dataclass(frozen=True, slots=True)
class ParetoCandidate:
    """One deployment at one load.

    `share` is a step of LADDER, or 1 if the load is given; `usd_per_s` is the price of all its hardware.
    """

    candidate: Candidate
    share: float
    requests_per_s: float
    usd_per_s: float

    @property
    def usd_per_request(self) -> float:
        """Return the cost of a request, US dollars."""
        return self.usd_per_s / self.requests_per_s

    @property
    def params(self) -> Params:
        """Return the values of PARAMS, which identify the point in a study."""
        c = self.candidate
        return (" ".join(map(str, c.placement)), c.max_num_seqs, c.max_num_batched_tokens, self.share)


PARAMS: Final = ("layout", "max_num_seqs", "max_num_batched_tokens", "load")


@dataclass(frozen=True)
class ParetoSpace:
    """The deployments and loads of one request; a point must meet `slos` with `confidence` to be on the front.

    The confidence in each limit is that of a plan: the limit is met with steps and latencies that are as slow as the
    stated error has them at that probability level. Values on the axes are those simulated at the load itself.
    """

    evaluator: Evaluator
    prices: PriceList
    points: tuple[ParetoCandidate, ...]
    axes: tuple[ParetoAxis, ...]
    slos: tuple[Slo, ...]
    seed: int
    sizes: RunSizes
    confidence: float
    names: tuple[str, ...] = PARAMS

    # ---- estimates

    @cached_property
    def utilisations(self) -> list[Utilisation]:
        """Return the estimated utilisation of every point."""
        quantile = next((a.slo.quantile for a in self.axes if a.slo is not None and a.slo.metric == TTFT.name), None)
        return [self.evaluator.utilisation(p.candidate, p.requests_per_s, quantile) for p in self.points]

    @cached_property
    def guesses(self) -> FloatArray:
        """Return the estimated values of every point. Shape (n, axes).

        Cost is exact, latencies come from the fluid estimate, and energy assumes power that is linear in the load.
        """
        return np.array([self._guess(point) for point in self.points])

    def _guess(self, point: ParetoCandidate) -> tuple[float, ...]:
        evaluator, candidate, rate = self.evaluator, point.candidate, point.requests_per_s
        hardware, full = candidate.hardware, min(rate / evaluator.fluid_requests_per_s(candidate), 1.0)
        at_work = _IDLE * hardware.n_accelerators + (1 - _IDLE) * full * candidate.accelerators
        joules = hardware.accelerator.tdp_w * at_work / (rate * evaluator.mean_output_tokens)
        guess_s = partial(evaluator.guess_s, candidate, rate)
        return self._on_axes(point, lambda slo: min(guess_s(slo.metric, slo.quantile), _LONGEST_S), joules)

    def _on_axes(
        self, point: ParetoCandidate, latency_s: Callable[[Slo], float], joules_per_token: float
    ) -> tuple[float, ...]:
        """Return the value of a point on each axis, from its latencies and its energy."""

        def value(axis: ParetoAxis) -> float:
            if axis.slo is not None:
                return latency_s(axis.slo)
            if axis.name == "cost":
                return point.usd_per_request / self.evaluator.mean_output_tokens * MILLION
            if axis.name == "energy":
                return joules_per_token
            grid = self.prices.grid(point.candidate).grid
            return joules_per_token * MILLION / JOULES_PER_KWH * self.prices.pue * grid.gco2e_per_kwh

        return tuple(value(axis) for axis in self.axes)

    @cached_property
    def holds(self) -> FloatArray:
        """Return an estimate in -1..1 of whether each point keeps up. Shape (n,)."""
        full = np.array([max(s.full, s.api_server, s.engine) for s in self.utilisations])
        return np.asarray(np.clip((_EVEN_ODDS_SATURATION - full) / _DOUBTFUL_RANGE, -1.0, 1.0), np.float64)

    @property
    def features(self) -> FloatArray:
        """Return the features that determine the error of the estimates. Shape (n, m)."""
        return np.array([self._features(p, s) for p, s in zip(self.points, self.utilisations, strict=True)])

    def _features(self, p: ParetoCandidate, s: Utilisation) -> tuple[float, ...]:
        c = p.candidate
        return (
            math.log2(c.layout.accelerators),
            math.log2(c.layout.data_parallel),
            float(c.layout.expert_parallel),
            float(c.weight_dtype == "fp8"),
            float(c.kv_dtype == "fp8"),
            math.log2(c.hardware.accelerator.memory_bandwidth_bytes_per_s),
            math.log2(p.requests_per_s / c.replicas),
            math.log(s.step_s),
            *(-math.log(max(1 - share, 0.03)) for share in (s.full, s.api_server, s.engine, s.seats, s.tokens)),
            *(part / sum(s.first_s) for part in s.first_s),
        )

    @property
    def params(self) -> list[Params]:
        """Return the parameters of every point."""
        return [point.params for point in self.points]

    def guide(self, seed: int) -> ParetoSampler:
        """Return the sampler that chooses points from these estimates."""
        known = tuple(axis.is_known for axis in self.axes)
        return ParetoSampler(self.guesses, self.features, self.holds, known, seed)

    # ---- simulated runs

    def simulate(self, index: int, front: Sequence[tuple[float, ...]] = ()) -> ParetoSample:
        """Simulate one point; if it is uncertain whether it keeps up, in a short run first (successive halving)."""
        n_short = 0
        if self.holds[index] < _SKIP_SHORT_RUN:
            short = self._run(index, self.sizes.quick)
            if short.slack > 0 or any(_far_behind(short.values, best, self.axes) for best in front):
                return replace(short, pruned=True)
            n_short = short.n_requests
        full = self.measure(index)
        return replace(full, n_requests=n_short + full.n_requests)

    def measure(self, index: int) -> ParetoSample:
        """Simulate one point in a full run."""
        return self._run(index, self.sizes.full)

    def _run(self, index: int, n_requests: int) -> ParetoSample:
        point, evaluator = self.points[index], self.evaluator
        n_before, patient = evaluator.n_requests_simulated, n_requests >= self.sizes.full
        load = Load(point.requests_per_s, n_requests, self.seed, patient=patient)
        latencies = tuple(axis.slo for axis in self.axes if axis.slo is not None)
        verdict = judge([evaluator.observe(point.candidate, load)], (*latencies, *self.slos))
        values = self._on_axes(point, verdict.value_s, verdict.joules_per_output_token)
        slack = self._behind(verdict, patient)
        if self.slos and slack <= 0:
            slack = max(slack, self._missed(point, load, patient))
        return ParetoSample(values, slack, evaluator.n_requests_simulated - n_before)

    def _missed(self, point: ParetoCandidate, load: Load, patient: bool) -> float:
        """Return by how much the limits are missed with the confidence, as a share; at most zero if they are met.

        If a full run meets them closely, more seeds decide, as they decide on a plan.
        """
        allowance = allowance_for(self.confidence, self.evaluator.stated_error(point.candidate))
        slower = replace(load, requests_per_s=load.requests_per_s * allowance.speed)
        for n_seeds in (1, SEEDS) if patient else (1,):
            loads = [replace(slower, seed=self.seed + i) for i in range(n_seeds)]
            verdict = verdict_of(self.evaluator, point.candidate, loads, self.slos, allowance)
            missed = max(self._behind(verdict, patient), verdict.value_ratio - 1)
            if missed > 0 or missed < -CLOSE:
                break
        return missed

    def _behind(self, verdict: Verdict, patient: bool) -> float:
        """Return a value of at most zero if the system keeps up; a short run only detects what clearly does not."""
        growth = max(o.growth_fraction for o in verdict.observations)
        return 0.0 if verdict.stable else growth if patient else growth - CLEAR_OVERLOAD_GROWTH


def points_under_load(
    evaluator: Evaluator,
    prices: PriceList,
    left: Sequence[Candidate],
    requests_per_s: float | None = None,
    ladder: Sequence[float] = LADDER,
) -> tuple[ParetoCandidate, ...]:
    """Return the points of a front: each deployment in `left` at the loads that it can carry.

    Loads are equal in requests per dollar, so that points can be compared. If no price is known, an hour of an
    accelerator counts as a dollar.
    """
    if not left:
        return ()
    hourly = {c: prices.usd_per_hour(c) for c in left}
    usd = {c: (c.hardware.n_accelerators if h is None else h) / HOUR_S for c, h in hourly.items()}
    if requests_per_s is not None:
        return tuple(ParetoCandidate(c, 1.0, requests_per_s, usd[c]) for c in left)
    most = max(evaluator.fluid_requests_per_s(c) / usd[c] for c in left)
    return tuple(
        ParetoCandidate(c, share, share * most * usd[c], usd[c])
        for c in left
        for share in ladder
        if share * most * usd[c] <= FULLEST * evaluator.fluid_requests_per_s(c)
    )


def _far_behind(values: tuple[float, ...], best: tuple[float, ...], axes: Sequence[ParetoAxis]) -> bool:
    """Return whether values are worse on every axis, by more than the noise of a short run on simulated axes."""
    margins = (1.0 if axis.is_known else SHORT_RUN_MARGIN for axis in axes)
    return all(v >= margin * b for v, b, margin in zip(values, best, margins, strict=True))
