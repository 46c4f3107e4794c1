"""Simulate the figures of a plan with independent seeds, all replicas together and error bars.

Besides the objectives, a plan has latency curves over the rate and latency distributions at its rate. The module also
derives blocks of the answer from these plans: assumptions, prices and the Pareto set.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import numpy as np

from calibration.accuracy.stated_error import StatedError
from catalogs.ui.words import counted, digits
from planner.answer.plan_schema import (
    CalibrationBlock,
    CheckpointBlock,
    CurvePoint,
    Memory,
    Plan,
    SloResult,
    SloValue,
    Stats,
    Survival,
)
from planner.economics.money import PriceLine, Rates, energy, money, price_rows
from planner.evaluation.capacity import TOLERANCE, find_capacity
from planner.evaluation.confidence import (
    Confidence,
    LatencyCurve,
    Spread,
    confidence,
    sure_rate_per_s,
)
from planner.evaluation.evaluator import NO_ALLOWANCE, Evaluator, Load, RunDetail, Verdict, judge, verdict_of
from planner.problem.candidate import Candidate
from planner.problem.latency_metrics import LATENCY_METRICS, TTFT
from planner.problem.price_list import PriceList, rental_need
from planner.problem.request import PlanRequest
from planner.problem.slo import STATS, Slo, statistic_s
from planner.search.candidate_tester import CandidateTester

#: Rates relative to the operating point, at which the slope of the latency is determined (for the error bars).
_CURVE_STEPS: Final = (0.3, 0.7, 0.88, 1.08)

_WALK_STEPS: Final = 40

#: Most reductions of the rate if the whole cluster, or the noise between seeds, makes it less sure than one replica.
_SURE_STEPS: Final = 8

#: Most replicas that are simulated together; of larger deployments one replica under its share is simulated.
MOST_REPLICAS: Final = 64


#: Quantiles of a distribution: every per cent, and finer in the upper tail.
QUANTILES: Final = (*(q / 100 for q in range(100)), 0.995, 0.999)

_DIGITS: Final = 6

#: Simulated requests beyond the statistic of an objective with a condition: with fewer, a notice says so.
LEAST_BEYOND: Final = 12

#: Least seeds of figures with error bars.
LEAST_SEEDS: Final = 3


@dataclass(frozen=True, slots=True)
class SeedBudget:
    """Independent seeds for the capacity, for the latency curve around it, and for the figures of the plan.

    `whole_cluster` tells whether the figures come from all replicas together.
    """

    capacity: int
    curve: int
    figures: int
    whole_cluster: bool


BEST: Final = SeedBudget(capacity=4, curve=2, figures=4, whole_cluster=True)

OTHER: Final = SeedBudget(capacity=1, curve=1, figures=3, whole_cluster=False)


@dataclass(frozen=True, slots=True)
class EvaluatedPlan:
    """A plan as simulated, with its candidate, its capacity and the verdict at its rate.

    `met` tells whether every objective is met with the confidence of the request, and `survives` whether it is also met
    after the loss that the request names.
    """

    candidate: Candidate
    requests_per_s: float
    capacity_requests_per_s: float | None
    verdict: Verdict
    plan: Plan
    met: bool
    survives: bool = True


@dataclass(frozen=True, slots=True)
class PlanEvaluator:
    """Simulates the plans of one request in detail.

    `each` applies a function to each of several runs, in this process or in others, and returns the results in order.
    """

    evaluator: Evaluator
    tester: CandidateTester
    prices: PriceList
    each: Callable[[Callable[[Any], Any], Sequence[Any]], Iterable[Any]] = map

    def entry(self, candidate: Candidate, start_per_s: float | None, effort: SeedBudget) -> EvaluatedPlan:
        """Return the plan at the required rate, or at its capacity: the highest rate with the required confidence.

        Args:
            candidate: The candidate.
            start_per_s: A rate near the capacity, if known.
            effort: The numbers of seeds.
        """
        probes: list[Verdict] = []
        capacity = self._capacity(candidate, start_per_s, effort.capacity, probes)
        required = self.tester.nominal_per_s(candidate)
        rate = required or capacity or self.tester.floor_per_s(candidate)
        details, verdict = self._figures(candidate, rate, effort)
        near = (rate,) if capacity is None else (rate, capacity)
        seen = [*probes, *self._around(candidate, near, effort.curve)]
        bars = self._bars(verdict, seen, details[0].error)
        for _ in range(_SURE_STEPS if required is None and capacity is not None else 0):
            if self._sure(verdict, bars):
                break
            surest = self._sure_rate(rate, verdict, seen, details[0].error)
            rate = min(rate / (1 + TOLERANCE), surest or rate)
            details, verdict = self._figures(candidate, rate, effort)
            bars = self._bars(verdict, seen, details[0].error)
        met = self._sure(verdict, bars)
        if required is None:
            capacity = rate if met else None
        elif met:  # all replicas together may carry a rate that one replica under its share just missed
            capacity = max(capacity or rate, rate)
        elif capacity is not None and capacity >= rate:
            capacity = self._sure_rate(rate / (1 + TOLERANCE), verdict, seen, details[0].error)
        plan = self._plan(candidate, capacity, verdict, bars, details, seen)
        if capacity is not None:
            plan = plan.model_copy(update={"limited_by": _limit(capacity, probes)})
        survival = self._survival(candidate, rate, effort.capacity)
        if survival is not None:
            plan = plan.model_copy(update={"survival": survival})
        return EvaluatedPlan(candidate, rate, capacity, verdict, plan, met, survival is None or survival.met)

    def _around(self, candidate: Candidate, rates: Iterable[float], n_seeds: int) -> list[Verdict]:
        """Return verdicts at rates from which the effect of slower and of faster steps is interpolated."""
        speed = self.tester.allowance(candidate).speed
        steps = sorted({*_CURVE_STEPS, 1.0, speed})
        alone = replace(self, each=map)  # the rates are shared out, not the few seeds of each
        around = sorted({rate * step for rate in rates for step in steps})
        return list(self.each(lambda rate: alone._verdict(candidate, rate, n_seeds), around))

    def _bars(self, verdict: Verdict, seen: Sequence[Verdict], error: StatedError) -> list[Confidence]:
        """Return the error bars of every objective."""
        sure = self.tester.confidence
        return [confidence(verdict, LatencyCurve.of(seen, slo), slo, error, sure) for slo in self.tester.slos]

    def _sure(self, verdict: Verdict, bars: Iterable[Confidence]) -> bool:
        """Return whether every objective is met, in the simulation and with the required confidence."""
        return verdict.met and all(bar.probability_met >= self.tester.confidence for bar in bars)

    def _survival(self, candidate: Candidate, rate: float, n_seeds: int) -> Survival | None:
        """Return the objectives under the same load after the loss that the request names; None if it names none."""
        held = self.tester.held_per_s(candidate)
        if held is None or held <= rate * (1 + 1e-9):
            return None
        left = round(candidate.replicas * rate / held)
        verdict = self._verdict(candidate, held, n_seeds) if left else None
        return Survival(
            replicas_left=left,
            requests_per_s=rate if left else None,
            met=bool(left) and self._verdict(candidate, held, n_seeds, allow=True).met,
            stable=verdict is not None and verdict.stable,
            slo=[SloValue.of(slo, verdict.value_s(slo) if verdict else None) for slo in self.tester.slos],
        )

    def _figures(self, candidate: Candidate, rate: float, effort: SeedBudget) -> tuple[list[RunDetail], Verdict]:
        """Return the runs behind the figures of a plan, and their verdict.

        The best plan is simulated as a whole cluster, which needs fewer seeds because it has many replicas.
        """
        whole = effort.whole_cluster and 1 < candidate.replicas <= MOST_REPLICAS
        n_seeds = max(LEAST_SEEDS, effort.figures // 2) if whole else effort.figures
        n = self.tester.sizes.full
        loads = [Load(rate, n, self.tester.seed + i, whole) for i in range(n_seeds)]
        details = list(self.each(partial(self.evaluator.detail, candidate), loads))
        return details, judge([d.observation for d in details], self.tester.slos)

    def holds(self, candidate: Candidate, rate_per_s: float) -> bool:
        """Return whether the objectives are met with the required confidence, with independent seeds pooled."""
        few, many = (partial(self._verdict, candidate, rate_per_s, n, allow=True) for n in (1, BEST.capacity))
        return few().met and many().met

    def light_load(self, candidate: Candidate) -> Load:
        """Return a short load under which requests rarely overlap."""
        return Load(self.evaluator.light_requests_per_s(candidate), self.tester.sizes.quick, self.tester.seed)

    def _verdict(self, candidate: Candidate, rate: float, n_seeds: int, *, allow: bool = False) -> Verdict:
        """Return the verdict at a rate as simulated; with `allow`, with the allowance for the required confidence."""
        allowance = self.tester.allowance(candidate) if allow else NO_ALLOWANCE
        rate *= allowance.speed
        loads = [Load(rate, self.tester.sizes.full, self.tester.seed + i) for i in range(n_seeds)]
        return verdict_of(self.evaluator, candidate, loads, self.tester.slos, allowance, self.each)

    def _capacity(self, candidate: Candidate, start: float | None, n_seeds: int, seen: list[Verdict]) -> float | None:
        """Return the highest rate that meets the objectives with the required confidence and all seeds pooled.

        The result is None if a light load does not meet them.
        """

        def probe(rate: float, n: int = 1) -> Verdict:
            seen.append(self._verdict(candidate, rate, n, allow=True))
            return seen[-1]

        if start is None:
            floor = probe(self.evaluator.light_requests_per_s(candidate))
            if not floor.met:
                return None
            start = find_capacity(probe, self.evaluator.fluid_requests_per_s(candidate), floor).requests_per_s
        if n_seeds == 1:
            return start
        rate, direction = start, 0
        for _ in range(_WALK_STEPS):
            verdict = probe(rate, n_seeds)
            step = 1 if verdict.met else -1
            if direction and step != direction:
                return rate if verdict.met else rate / (1 + TOLERANCE)
            direction = step
            rate *= (1 + TOLERANCE) ** step
        return rate if direction > 0 else None

    def _plan(
        self,
        candidate: Candidate,
        capacity: float | None,
        verdict: Verdict,
        bars: Sequence[Confidence],
        details: Sequence[RunDetail],
        seen: list[Verdict],
    ) -> Plan:
        facts = self.evaluator.facts(candidate)
        sure = self.tester.confidence
        rows = [
            SloResult.of(
                slo, bar.value_s, bar, sure, verdict.stable, ci_level=bar.level, n_requests=_n_conditioned(slo, verdict)
            )
            for slo, bar in zip(self.tester.slos, bars, strict=True)
        ]
        output, total, power = (_mean(details, f) for f in ("output_tokens_per_s", "total_tokens_per_s", "power_w"))
        rates = Rates(output, total, power, verdict.requests_per_s if verdict.stable else None)
        price, grid = self.prices.price(candidate), self.prices.grid(candidate)
        return Plan(
            deployment=facts.deployment,
            requests_per_s=verdict.requests_per_s,
            metrics=_steady_metrics(details, verdict),
            slo=rows,
            curve=curve_of([*seen, verdict], capacity, self.tester.slos),
            latency_cdf=cdf_of(verdict, self.tester.slos),
            capacity_requests_per_s=capacity,
            cost=money(rates, price),
            energy=energy(rates, grid),
            memory=Memory.model_validate(facts.memory),
            time_breakdown={
                name: float(np.mean([d.time_breakdown.get(name, 0.0) for d in details]))
                for name in details[0].time_breakdown
            },
            calibration=CalibrationBlock.model_validate(details[0].calibration),
            command=facts.command,
            command_notes=list(facts.command_notes),
            notices=list(dict.fromkeys((*details[0].notices, *facts.notices, *_few(self.tester.slos, verdict)))),
            checkpoint=None if facts.checkpoint is None else CheckpointBlock.model_validate(facts.checkpoint),
            versions=facts.versions,
        )

    def _sure_rate(
        self, highest_per_s: float, verdict: Verdict, seen: Sequence[Verdict], error: StatedError
    ) -> float | None:
        """Return the highest rate up to `highest_per_s` that meets every objective with the required confidence.

        It uses the same curves as the rows of the objectives, so that the two never contradict each other. The result
        is None if no rate meets them.
        """
        rates = []
        for slo in self.tester.slos:
            if not math.isfinite(verdict.value_s(slo)):
                continue
            curve = LatencyCurve.of(seen, slo).through(verdict, slo)
            spread = Spread.of(verdict.observations, slo, error)
            rates.append(sure_rate_per_s(curve, slo, highest_per_s, spread, self.tester.confidence))
        found = [rate for rate in rates if rate is not None]
        return min(found) if found and len(found) == len(rates) else None


def _n_conditioned(slo: Slo, verdict: Verdict) -> int | None:
    """Return the simulated requests that fulfil the condition of an objective; None if it has none."""
    if slo.latency.condition is None:
        return None
    return sum(len(o.samples_s[slo.metric]) for o in verdict.observations)


def _few(slos: Sequence[Slo], verdict: Verdict) -> Iterator[str]:
    """Yield a notice for each objective with a condition that few simulated requests fulfil."""
    for slo in slos:
        n = _n_conditioned(slo, verdict)
        beyond = LEAST_BEYOND if n is None else n * (1 - (slo.quantile or 0.0))
        if beyond < LEAST_BEYOND:
            yield (
                f"{slo.name} rests on {counted(n or 0, 'simulated request')} that fulfil its condition, about "
                f"{beyond:.1f} of them beyond the statistic, fewer than {LEAST_BEYOND}: a rare length is uncertain"
            )


def _kept_metrics(slos: Sequence[Slo], verdict: Verdict) -> list[str]:
    """Return the latency metrics whose curves an answer keeps: those of every answer, and those with objectives."""
    named = {slo.metric for slo in slos}
    known = verdict.observations[0].samples_s
    return [metric for metric in known if metric in named or LATENCY_METRICS[metric].in_every_answer]


def _limit(capacity: float, probes: Sequence[Verdict]) -> str | None:
    """Return what limits the rate just above the capacity, or None if no higher rate was simulated."""
    beyond = [v for v in probes if v.requests_per_s > capacity * (1 + TOLERANCE / 4) and not v.met]
    if not beyond:
        return None
    first = min(beyond, key=lambda v: v.requests_per_s)
    return f"beyond it {first.worst.name} is missed" if first.value_ratio > 1 else "beyond it the queue grows"


def _mean(details: Sequence[RunDetail], name: str) -> float:
    return float(np.mean([getattr(d, name) for d in details]))


def _steady_metrics(details: Sequence[RunDetail], verdict: Verdict) -> dict[str, object]:
    """Return the metrics of a plan: latencies, rates, power and energy of the steady windows of all seeds.

    Counts, the duration, the hits of the prefix cache and the peak of the KV cache are those of the first run.
    """
    metrics = dict(details[0].metrics)
    for metric in verdict.observations[0].samples_s:
        metrics[f"{metric}_s"] = {stat: verdict.value_s(Slo(metric, stat, 1.0)) for stat in STATS}
    for name in details[0].samples_s:
        if name not in verdict.observations[0].samples_s:
            pooled = np.concatenate([d.samples_s[name] for d in details])
            metrics[f"{name}_s"] = {stat: Slo(name, stat, 1.0).value_s(pooled) for stat in STATS}
    output, total, power = (_mean(details, f) for f in ("output_tokens_per_s", "total_tokens_per_s", "power_w"))
    per_s = {"requests_per_s": _mean(details, "requests_per_s"), "output_tokens_per_s": output}
    per_s |= {"input_tokens_per_s": total - output, "total_tokens_per_s": total}
    joules = power / output if output else None
    whole = (("power", "node_w_mean", power), ("energy", "total_j_per_output_token", joules))
    for name, figure, value in whole:
        runs = [run for d in details if isinstance(run := d.metrics.get(name), dict)]
        if len(runs) == len(details):
            metrics[name] = {**_mean_block(runs), figure: value}
    return metrics | per_s


def _mean_block(blocks: Sequence[dict[str, Any]]) -> dict[str, float | None]:
    """Return the mean of every figure of equal blocks; None where a block has none."""
    columns = {name: [block[name] for block in blocks] for name in blocks[0]}
    return {name: None if None in values else float(np.mean(values)) for name, values in columns.items()}


def curve_of(seen: Iterable[Verdict], capacity_per_s: float | None, slos: Sequence[Slo] = ()) -> list[CurvePoint]:
    """Return one point per simulated rate, ascending, with latencies in seconds; the most seeds win at equal rates.

    A point is of the whole cluster (all replicas behind their router) or of one replica under its share of the
    requests. Rates up to the capacity meet the objectives with the required confidence. A rate just above the capacity
    that is printed with the same digits is left out, so that no rate is printed both as met and as missed.
    """
    verdicts: dict[tuple[float, bool], Verdict] = {}
    for verdict in sorted(seen, key=lambda v: len(v.observations)):
        verdicts[verdict.simulated_per_s, verdict.observations[0].load.whole_cluster] = verdict
    points = []
    for (rate, whole_cluster), verdict in sorted(verdicts.items(), key=lambda item: item[0]):
        if capacity_per_s is not None and rate > capacity_per_s and digits(rate) == digits(capacity_per_s):
            continue
        point: dict[str, object] = {
            "requests_per_s": rate,
            "whole_cluster": whole_cluster,
            "n_seeds": len(verdict.observations),
            "n_measured": sum(o.n_measured for o in verdict.observations),
            "stable": verdict.stable,
            "met": capacity_per_s is not None and rate <= capacity_per_s,
        }
        conditioned = {}
        for metric in _kept_metrics(slos, verdict):
            values = {stat: short(verdict.value_s(Slo(metric, stat, 1.0))) for stat in STATS}
            if LATENCY_METRICS[metric].condition is None:
                point[f"{metric}_s"] = Stats.model_validate(values)
            else:
                conditioned[metric] = Stats.model_validate(values)
        if conditioned:
            point["conditioned"] = conditioned
        if verdict.observations[0].queue_s is not None:
            shares = {stat: short(verdict.waiting_share(Slo(TTFT.name, stat, 1.0))) for stat in STATS}
            point["ttft_waiting"] = Stats.model_validate(shares)
        points.append(CurvePoint.model_validate(point))
    return points


def cdf_of(verdict: Verdict, slos: Sequence[Slo] = ()) -> dict[str, list[float | None]]:
    """Return the quantiles of each latency over all seeds of the verdict, seconds.

    The result has the form {"quantiles": [...], "ttft_s": [...], ...}.
    """
    found: dict[str, list[float | None]] = {"quantiles": list(QUANTILES)}
    for metric in _kept_metrics(slos, verdict):
        samples = np.sort(np.concatenate([o.samples_s[metric] for o in verdict.observations]))
        found[f"{metric}_s"] = [short(statistic_s(samples, q)) for q in QUANTILES]
    return found


def short(value: float) -> float:
    """Return a value rounded to six digits, more than the precision of these figures."""
    return float(f"{value:.{_DIGITS}g}")


def assumptions(request: PlanRequest, lengths: str) -> list[str]:
    """Return the assumptions behind the figures, one sentence each; `lengths` describes those of the requests."""
    lines = [
        f"workload {request.workload}: its arrivals, of which only the rate is scaled, and requests of these lengths: "
        f"{lengths}",
        "the search and the alternatives simulate one replica under its share of the requests; the figures of the best "
        f"plan come from all its replicas behind one round-robin router, up to {MOST_REPLICAS} of them",
        "latencies are measured at the client, in the steady part of each run",
    ]
    if request.requests_per_s is None:
        at = "a light load" if request.objective == "latency" else "the highest rate that meets every objective"
        lines.append(f"no rate given: figures are at {at}")
    return lines


def prices_of(plan: Plan, candidate: Candidate) -> list[PriceLine]:
    """Return the prices of the plan in all regions of all clouds, per hour and per token, with the carbon there."""
    output, total = plan.metric("output_tokens_per_s"), plan.metric("total_tokens_per_s")
    kwh = None if plan.energy is None else plan.energy.kwh_per_million_output_tokens
    return price_rows(rental_need(candidate), output or 0.0, total or 0.0, kwh)


def objective_value(objective: str, with_load: bool, entry: EvaluatedPlan) -> float:
    """Return the quantity that an objective minimises, of a plan as evaluated.

    Without a required load, cost is US dollars for each unit of capacity. The value is infinite where it is unknown.
    """
    plan, capacity = entry.plan, entry.capacity_requests_per_s or 0.0
    unknown = math.inf
    if objective == "cost":
        usd = unknown if plan.usd_per_hour is None else plan.usd_per_hour
        return usd if with_load else usd / capacity if capacity else unknown
    if objective in ("energy", "carbon"):
        used = plan.energy
        name = "j_per_output_token" if objective == "energy" else "gco2e_per_million_output_tokens"
        value = None if used is None else getattr(used, name)
        return unknown if value is None else float(value)
    if objective == "latency":
        return plan.tightest.share
    return -capacity / (entry.candidate.hardware.n_accelerators if objective == "goodput" else 1)


def pareto(entries: Sequence[EvaluatedPlan]) -> list[Plan]:
    """Return the plans that are Pareto-optimal in cost, energy and latency; capacity replaces an unknown cost."""
    axes = []
    for entry in entries:
        cost, used = entry.plan.cost, entry.plan.energy
        usd = None if cost is None else cost.usd_per_million_output_tokens
        kwh = math.inf if used is None else used.kwh_per_million_output_tokens
        axes.append((-(entry.capacity_requests_per_s or 0.0) if usd is None else usd, kwh, entry.verdict.ratio))
    beaten = [any(b != a and all(x <= y for x, y in zip(b, a, strict=True)) for b in axes) for a in axes]
    return [entry.plan for entry, worse in zip(entries, beaten, strict=True) if not worse]
