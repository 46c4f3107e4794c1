"""The search for a capacity, rate by rate."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.evaluation.capacity import TOLERANCE, Capacity, find_capacity
from planner.evaluation.observation import Load, Observation
from planner.evaluation.verdict import Verdict, judge
from planner.problem.slo import parse_slo

LIMIT = parse_slo("ttft.mean=1s")


def verdict(rate_per_s: float, met: bool) -> Verdict:
    samples = {"ttft": np.full(4, 0.5 if met else 2.0)}
    return judge([Observation(Load(rate_per_s, 4, 0), samples, 4, 0.0)], [LIMIT])


def found(
    capacity: float, guess: float, floor: float = 0.01, tolerance: float = TOLERANCE
) -> tuple[Capacity, list[float]]:
    probed: list[float] = []

    def probe(rate: float) -> Verdict:
        probed.append(rate)
        return verdict(rate, rate <= capacity)

    return find_capacity(probe, guess, verdict(floor, True), tolerance), probed


def test_a_guess_that_holds_is_widened_by_two_fifths_and_then_halved_on_a_logarithmic_scale() -> None:
    result, probed = found(2.0, 1.0, tolerance=0.2)
    assert probed == pytest.approx([1.0, 1.4, 1.96, 2.744, math.sqrt(1.96 * 2.744)])
    assert result.requests_per_s == result.at_capacity.requests_per_s == pytest.approx(1.96)
    assert result.upper_requests_per_s == pytest.approx(math.sqrt(1.96 * 2.744))


def test_a_guess_that_fails_is_lowered_until_there_is_a_bracket() -> None:
    result, probed = found(2.0, 7.0, tolerance=0.2)
    assert probed[:4] == pytest.approx([7.0, 5.0, 5 / 1.4, 5 / 1.4**2])
    assert probed[4] == pytest.approx(5 / 1.4**3)  # it holds: the bracket is as wide as a step
    assert probed[5] == pytest.approx(5 / 1.4**2.5)
    assert result.requests_per_s == pytest.approx(5 / 1.4**3)


def test_close_to_the_floor_the_middle_is_next() -> None:
    _, probed = found(1.1, 1.9, floor=1.0, tolerance=0.2)
    assert probed[:2] == pytest.approx([1.9, math.sqrt(1.9)])  # less than two steps apart
    _, probed = found(1.1, 2.1, floor=1.0, tolerance=0.2)
    assert probed[:2] == pytest.approx([2.1, 1.5])
    _, probed = found(1.1, 1.4**2, floor=1.0, tolerance=0.2)
    assert probed[1] == pytest.approx(1.4)


def test_the_floor_itself_is_the_answer_if_nothing_above_it_holds() -> None:
    result, probed = found(0.5, 0.1, floor=0.5)
    assert probed == [pytest.approx(0.5 * 1.02)]
    assert (result.requests_per_s, result.upper_requests_per_s) == (0.5, pytest.approx(0.51))


def test_a_system_without_end_has_no_upper_rate() -> None:
    result, probed = found(math.inf, 1.0)
    assert result.upper_requests_per_s == math.inf
    assert len(probed) == 60
    assert result.requests_per_s == pytest.approx(1.4**59)


@given(st.floats(0.05, 1e3), st.floats(0.05, 1e3), st.floats(0.005, 0.1))
def test_the_two_rates_enclose_the_capacity_as_closely_as_wanted(
    capacity: float, guess: float, tolerance: float
) -> None:
    result, probed = found(capacity, guess, 0.01, tolerance)
    assert result.requests_per_s <= capacity < result.upper_requests_per_s
    assert result.upper_requests_per_s <= result.requests_per_s * (1 + tolerance)
    steps = abs(math.log(capacity / guess)) / math.log(1.4)
    assert len(probed) <= steps + math.log2(math.log(1.4**2) / math.log1p(tolerance)) + 5


def test_hopeless_rates_are_not_probed_and_change_nothing() -> None:
    """The cheaper question decides on rates beyond three times the capacity, until it leaves one open."""
    asked: list[float] = []
    probed: list[float] = []

    def hopeless(rate: float) -> bool:
        asked.append(rate)
        return rate > 6.0

    def probe(rate: float) -> Verdict:
        probed.append(rate)
        return verdict(rate, rate <= 2.0)

    plain, all_probed = found(2.0, 20.0)
    quicker = find_capacity(probe, 20.0, verdict(0.01, True), hopeless=hopeless)
    assert (quicker.requests_per_s, quicker.upper_requests_per_s) == (plain.requests_per_s, plain.upper_requests_per_s)
    assert probed == [rate for rate in all_probed if rate <= 6.0]
    assert [rate for rate in asked if rate <= 6.0] == probed[:1]


def test_a_close_guess_is_left_in_small_steps_that_grow() -> None:
    probed: list[float] = []

    def probe(rate: float) -> Verdict:
        probed.append(rate)
        return verdict(rate, rate <= capacity)

    capacity = 8.0
    find_capacity(probe, 10.0, verdict(0.01, True), first_step=1.05)
    assert probed[:3] == pytest.approx([10.0, 10 / 1.05, 10 / 1.05**3])  # 1.05, 1.05^2, then 1.05^4
    assert probed[3] == pytest.approx(10 / 1.05**7)
    probed.clear()
    capacity = 15.0
    find_capacity(probe, 10.0, verdict(0.01, True), first_step=1.05)
    assert probed[:5] == pytest.approx([10.0, 10 * 1.05, 10 * 1.05**3, 10 * 1.05**7, 10 * 1.05**7 * 1.4])


@given(st.floats(0.05, 1e3), st.floats(0.05, 1e3), st.floats(1.01, 1.4))
def test_a_small_first_step_ends_as_close_to_the_capacity(capacity: float, guess: float, first_step: float) -> None:
    result = find_capacity(
        lambda rate: verdict(rate, rate <= capacity), guess, verdict(0.01, True), first_step=first_step
    )
    assert result.requests_per_s <= capacity < result.upper_requests_per_s
    assert result.upper_requests_per_s <= result.requests_per_s * (1 + TOLERANCE)
