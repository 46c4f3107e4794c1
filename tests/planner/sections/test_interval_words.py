"""The words for an interval of seconds, and for an objective without a value."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from planner.answer.plan_schema import SloResult
from planner.problem.slo import parse_slos
from planner.sections.fleet_day import FleetDay, FleetSize
from planner.sections.section import interval_words, near_miss_words, result_words, verdict_words


@pytest.mark.parametrize(
    ("high_s", "words"),
    [(0.205, "28 ms to 205 ms"), (None, "28 ms or more")],
)
def test_an_interval_without_a_meaningful_end_has_none(high_s: float | None, words: str) -> None:
    assert interval_words(0.028, high_s) == words


def row(value_s: float | None, met: bool) -> SloResult:
    probability = 1.0 if met else 0.0
    return SloResult.model_validate(
        {"name": "tpot.p95", "metric": "tpot", "stat": "p95", "limit_s": 0.06, "value_s": value_s}
        | {"ci_low_s": value_s, "ci_high_s": value_s, "met": met, "probability_met": probability}
    )


@pytest.mark.parametrize(
    ("high_s", "met", "words"),
    [
        (0.05, True, "met with 75 % confidence"),
        (0.08, True, "met with 75 % confidence, at most 55 ms at the required confidence"),
        (None, True, "met with 75 % confidence, at most 55 ms at the required confidence"),
        (0.08, False, "missed (75 % confidence that it is met)"),
    ],
)
def test_an_interval_beyond_the_limit_of_a_met_objective_is_explained(
    high_s: float | None, met: bool, words: str
) -> None:
    """Below a confidence of 90 %, the 80 % interval may end beyond the limit of 60 ms that is met."""
    bars = {"ci_high_s": high_s, "met": met, "probability_met": 0.75, "value_at_confidence_s": 0.055}
    found = row(0.03, True).model_copy(update=bars)
    assert verdict_words(found) == words
    assert result_words(found, 0.8).endswith(f"): {words}")


def test_an_objective_on_a_metric_that_no_request_has_is_met_without_a_value() -> None:
    """A plan for outputs of one token read "tpot.p95 = unbounded (80 % interval: unbounded or more): met"."""
    none, endless, short = row(None, True), row(None, False), row(0.03, True)
    assert result_words(none, 0.8) == "tpot.p95: no request has one: met"
    assert result_words(endless, 0.8).startswith("tpot.p95 = unbounded (80 % interval: unbounded or more): missed")
    assert result_words(short, 0.8) == "tpot.p95 = 30 ms (80 % interval: 30 ms to 30 ms): met with over 99 % confidence"
    assert (none.share, endless.share, short.share) == (0.0, float("inf"), pytest.approx(0.5))


def test_a_day_meets_an_objective_on_a_metric_that_no_request_has() -> None:
    slos = parse_slos(["ttft.p99=1s", "tpot.p95=60ms"])
    windows_s = {"ttft.p99": np.array([0.5, 0.6]), "tpot.p95": np.array([np.nan, np.nan])}
    waiting = dict.fromkeys(windows_s, 1.0)
    day = FleetDay(
        FleetSize("peak", 1),
        {"ttft.p99": 0.55, "tpot.p95": math.nan},
        waiting,
        windows_s,
        {},
        np.ones(24),
        1.0,
        1.0,
        2.0,
    )
    assert day.windows_met(slos) == 1.0
    assert day.holds(slos)
    assert not replace(day, values_s=day.values_s | {"ttft.p99": 1.1}).holds(slos)


def bound(at_confidence_s: float | None) -> SloResult:
    return row(0.01, met=True).model_copy(update={"value_at_confidence_s": at_confidence_s})


@pytest.mark.parametrize(
    ("bound_s", "missed_per_s", "said"),
    [
        (0.03, 105.0, True),  # half of the limit, and missed at 5 % more
        (0.03, 150.0, False),  # the capacity is far
        (0.055, 105.0, False),  # the bound is near its limit
        (0.03, None, False),  # nothing is known to be missed
        (None, 105.0, False),  # the bound has no end
    ],
)
def test_a_bound_far_below_its_limit_near_the_capacity_is_explained(
    bound_s: float | None, missed_per_s: float | None, said: bool
) -> None:
    found = near_miss_words([bound(0.01), bound(bound_s)], 100.0, missed_per_s, 0.9)
    assert bool(found) == said
    words = "with 90 % confidence the tightest objective is at 50 % of its limit; it is missed at a rate 5 % higher"
    assert not said or found == words
