"""Estimate how much the capacity of a plan depends on the seeds, and write a notice where it depends on them strongly.

The value of an objective differs between seeds. Where it rises steeply with the rate, this hardly moves the rate at
which it reaches its limit. Where it rises slowly, as the time to first token of a server that seldom queues, a few per
cent of the value are many per cent of the capacity.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from catalogs.statistics import student_t_quantile
from planner.evaluation.confidence import LatencyCurve, log_noise, seed_values
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
