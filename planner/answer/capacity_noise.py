"""Estimate how much the capacity of a plan depends on the seeds, and write notices where it depends on them strongly.

The value of an objective differs between seeds. Where it rises steeply with the rate, this hardly moves the rate at
which it reaches its limit. Where it rises slowly, as the time to first token of a server that seldom queues, a few per
cent of the value are many per cent of the capacity.

The draws of a synthetic workload are chosen so that together they resemble the average of many
(`planner.evaluation.representative_draws`). Those of a trace are pieces of it, which differ in their bursts and, where
requests share text, in their lengths. Their notice states by how much.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from catalogs.statistics import student_t_quantile
from catalogs.ui.words import digits, seconds
from planner.evaluation.confidence import LatencyCurve, log_noise, seed_values
from planner.evaluation.observation import RunDetail
from planner.evaluation.verdict import Verdict
from planner.problem.slo import Slo

#: Share of other sets of seeds whose capacities lie within the range.
RANGE_LEVEL: Final = 0.8

#: Half-width of the range, as a share of the capacity, above which a plan has a notice. A judgement: it follows from
#: the noise of four seeds, which is itself uncertain, so the notice does not state it.
LEAST_NOTICED: Final = 0.2

#: Rates between which the slope of an objective is determined, relative to the capacity. A judgement: close to it,
#: and far enough apart for the jumps of a percentile.
SLOPE_RATES: Final = (0.7, 1.08)


#: The least ratio of the largest to the smallest value of an objective over pieces of a trace that has a notice. A
#: judgement: less is within the noise of a percentile.
LEAST_RATIO: Final = 1.25

#: Share of the limit that the largest of these values must reach. A judgement: far below the limit, other pieces meet
#: the objective as well.
NEAR_LIMIT: Final = 0.5


def capacity_noise(slo: Slo, verdict: Verdict, seen: Sequence[Verdict]) -> float:
    """Return the relative half-width of the range of capacities that `RANGE_LEVEL` of all sets of seeds find.

    It is the noise of the objective's value between the seeds of the verdict, over the exponent with which the value
    rises with the rate. It is infinite if the value does not rise, and 0 if the noise is not known.

    Args:
        slo: The objective that limits the capacity.
        verdict: The verdict at the capacity, with several seeds.
        seen: Verdicts around the capacity.
    """
    noise = log_noise(seed_values(verdict.observations, slo))
    if not noise:
        return 0.0
    curve = LatencyCurve.of(seen, slo)
    least_per_s, most_per_s = curve.rates_per_s[0], curve.rates_per_s[-1]
    low, high = (min(max(verdict.simulated_per_s * k, least_per_s), most_per_s) for k in SLOPE_RATES)
    lower_s, higher_s = curve.value_s(low), curve.value_s(high)
    if not (low < high and 0 < lower_s < higher_s < math.inf):
        return math.inf
    student = student_t_quantile(len(verdict.observations) - 1, (1 + RANGE_LEVEL) / 2)
    return student * noise * math.log(high / low) / math.log(higher_s / lower_s)


def capacity_notices(slo: Slo, verdict: Verdict, seen: Sequence[Verdict]) -> list[str]:
    """Return a notice if other seeds would find another capacity, and none otherwise; see `capacity_noise`."""
    noise = capacity_noise(slo, verdict, seen)
    if noise <= LEAST_NOTICED:
        return []
    return [
        f"{slo.name} rises slowly with the rate, so the capacity, and with it the cost per token, depends on the "
        "simulated requests: compare those of several seeds (--seed)"
    ]


def piece_notices(slo: Slo, details: Sequence[RunDetail]) -> list[str]:
    """Return a notice if the pieces of a trace that the runs of a plan replay differ, and none otherwise.

    Args:
        slo: The objective that limits the capacity.
        details: The runs of independent seeds, at one rate.
    """
    values_s = seed_values([detail.observation for detail in details], slo)
    pieces = [detail.piece for detail in details if detail.piece is not None]
    low_s, high_s = float(values_s.min()), float(values_s.max())
    differ = math.isfinite(high_s) and high_s > LEAST_RATIO * low_s > 0 and high_s >= NEAR_LIMIT * slo.limit_s
    if len(pieces) < len(details) or not differ:
        return []
    prompts, outputs, bursts = (
        " to ".join(dict.fromkeys((digits(min(values)), digits(max(values)))))
        for values in zip(*((p.input_tokens, p.output_tokens, p.burst) for p in pieces), strict=True)
    )
    return [
        f"the {len(pieces)} runs replay different pieces of the trace, between which {slo.name} is {seconds(low_s)} "
        f"to {seconds(high_s)}: their mean lengths are {prompts} tokens in and {outputs} out, and the busiest "
        f"twentieth of each has {bursts} times its mean rate; other pieces (--seed) give another capacity"
    ]
