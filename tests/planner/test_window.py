"""The steady window of runs whose steady part is known."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.window import MOST_DRAIN, MOST_WARM_UP, WARM_UP, steady_window


def test_a_filling_system_is_measured_after_two_residence_times() -> None:
    arrival_s = np.arange(1000.0)
    window = steady_window(arrival_s, arrival_s + 150)
    assert np.flatnonzero(window.measured)[0] == 300
    assert np.flatnonzero(window.measured)[-1] == 899
    assert window.growth_fraction == pytest.approx(0, abs=0.003)


def test_an_overloaded_server_grows_by_its_overload() -> None:
    arrival_s = np.arange(2000.0)
    finish_s = 1.25 * np.arange(1, 2001)
    assert steady_window(arrival_s, finish_s).growth_fraction == pytest.approx(0.2, abs=0.01)


def test_a_rejected_request_stays_in_the_system() -> None:
    arrival_s = np.arange(1000.0)
    finish_s = np.where(np.arange(1000) % 5 == 0, np.inf, arrival_s + 1)
    assert steady_window(arrival_s, finish_s).growth_fraction == pytest.approx(0.2, abs=0.01)


@given(st.integers(2, 300), st.floats(0, 1000), st.integers(0, 99))
def test_some_requests_are_measured_and_never_the_first_tenth(n: int, stay_s: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    arrival_s = np.cumsum(rng.exponential(size=n))
    measured = steady_window(arrival_s, arrival_s + stay_s * rng.random(n)).measured
    assert measured.any()
    assert not measured[: int(WARM_UP * n)].any()
    assert measured.sum() >= int(n * (1 - MOST_WARM_UP - MOST_DRAIN)) - 1
