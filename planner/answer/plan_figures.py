"""The figures of a plan from its runs: metrics, latency curves over the rate, latency distributions and prices."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import numpy as np

from catalogs.ui.words import counted, digits
from planner.answer.plan_schema import QUEUE, CurvePoint, Plan, Stats
from planner.economics.money import PriceLine, price_rows
from planner.economics.rack_power import unused_w
from planner.evaluation.capacity import TOLERANCE
from planner.evaluation.observation import RunDetail
from planner.evaluation.verdict import Verdict
from planner.problem.candidate import Candidate
from planner.problem.latency_metrics import LATENCY_METRICS, TTFT
from planner.problem.price_list import rental_need
from planner.problem.slo import STATS, Slo, statistic_s

#: Quantiles of a distribution: every per cent, and finer in the upper tail.
QUANTILES: Final = (*(q / 100 for q in range(100)), 0.995, 0.999)

#: Significant digits of the numbers in the figures. A judgement: more than any page shows.
_DIGITS: Final = 6

#: Simulated requests beyond the statistic of an objective with a condition: with fewer, a notice says so. A judgement:
#: a percentile needs a dozen measured requests beyond it (`RunSizes`).
LEAST_BEYOND: Final = 12


def n_conditioned(slo: Slo, verdict: Verdict) -> int | None:
    """Return the simulated requests that fulfil the condition of an objective; None if it has none."""
    if slo.latency.condition is None:
        return None
    return sum(len(o.samples_s[slo.metric]) for o in verdict.observations)


def few_requests(slos: Sequence[Slo], verdict: Verdict) -> Iterator[str]:
    """Yield a notice for each objective with a condition that few simulated requests fulfil."""
    for slo in slos:
        n = n_conditioned(slo, verdict)
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


def mean_of(details: Sequence[RunDetail], name: str) -> float:
    """Return the mean of an attribute of runs."""
    return float(np.mean([getattr(d, name) for d in details]))


def steady_metrics(details: Sequence[RunDetail], verdict: Verdict) -> dict[str, object]:
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
    output, total, power = (mean_of(details, f) for f in ("output_tokens_per_s", "total_tokens_per_s", "power_w"))
    per_s = {"requests_per_s": mean_of(details, "requests_per_s"), "output_tokens_per_s": output}
    per_s |= {"input_tokens_per_s": total - output, "total_tokens_per_s": total}
    joules = power / output if output else None
    whole = (("power", "node_w_mean", power), ("energy", "total_j_per_output_token", joules))
    for name, figure, value in whole:
        runs = [run for d in details if isinstance(run := d.metrics.get(name), dict)]
        if len(runs) == len(details):
            metrics[name] = {**_mean_block(runs), figure: value}
    unused_w = mean_of(details, "unused_w")
    if unused_w and isinstance(power_block := metrics.get("power"), dict):
        metrics["power"] = power_block | {"unused_w": unused_w}
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


def missed_above(capacity: float, probes: Sequence[Verdict]) -> tuple[str, float] | None:
    """Return the objective or QUEUE missed just above the capacity, and the rate; None if no higher rate missed any."""
    beyond = [v for v in probes if v.requests_per_s > capacity * (1 + TOLERANCE / 4) and not v.met]
    if not beyond:
        return None
    first = min(beyond, key=lambda v: v.requests_per_s)
    return first.worst.name if first.value_ratio > 1 else QUEUE, first.requests_per_s


def prices_of(plan: Plan, candidate: Candidate) -> list[PriceLine]:
    """Return the prices of the plan in all regions of all clouds, per hour and per token, with the carbon there.

    The carbon includes the accelerators that are rented there and not used, as the plan's own does where it is billed.
    """
    output, total = plan.metric("output_tokens_per_s"), plan.metric("total_tokens_per_s")
    energy = plan.energy

    def kwh_per_million(idle_accelerators: int) -> float:
        assert energy is not None
        used_w = energy.w_mean - plan.unused_w
        share = (used_w + unused_w(candidate.hardware, idle_accelerators)) / energy.w_mean
        return energy.kwh_per_million_output_tokens * share

    kwh = None if energy is None else kwh_per_million
    return price_rows(rental_need(candidate), output or 0.0, total or 0.0, kwh)
