"""Student's t distribution in closed form, against hand calculations and scipy."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import stdtr, stdtrit

from catalogs.statistics import student_t_cdf, student_t_quantile


def test_one_degree_is_the_cauchy_distribution_and_two_have_an_algebraic_one() -> None:
    t = np.array([-math.inf, -1.0, 0.0, 1.0, math.inf])
    assert student_t_cdf(1, t) == pytest.approx([0.0, 0.25, 0.5, 0.75, 1.0])
    assert student_t_cdf(2, t) == pytest.approx([0.0, 0.5 - 0.5 / math.sqrt(3), 0.5, 0.5 + 0.5 / math.sqrt(3), 1.0])
    assert student_t_quantile(1, 0.75) == pytest.approx(1.0)
    assert student_t_quantile(2, 0.95) == pytest.approx(0.9 / math.sqrt(2 * 0.95 * 0.05))  # (2p - 1) / sqrt(2p (1 - p))


@given(st.integers(1, 40), st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=20))
def test_the_probabilities_are_those_of_scipy(degrees: int, t: list[float]) -> None:
    assert student_t_cdf(degrees, np.array(t)) == pytest.approx(stdtr(degrees, np.array(t)), abs=1e-13)


@given(st.integers(1, 40), st.floats(0.001, 0.999))
def test_a_quantile_is_that_of_scipy(degrees: int, share: float) -> None:
    assert student_t_quantile(degrees, share) == pytest.approx(float(stdtrit(degrees, share)), rel=1e-7, abs=1e-9)


def test_what_has_no_distribution_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one degree"):
        student_t_cdf(0, np.zeros(1))
    for share in (0.0, 1.0):
        with pytest.raises(ValueError, match="between 0 and 1"):
            student_t_quantile(3, share)
