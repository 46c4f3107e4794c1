"""Numbers and durations on screens and pages have one form."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from catalogs.ui.words import digits, duration_text, hours_text, parse_duration


@pytest.mark.parametrize(
    ("number", "text"), [(0.1234, "0.123"), (45.67, "45.7"), (999.4, "999"), (999.7, "1,000"), (1234.5, "1,234")]
)
def test_a_number_has_three_digits_or_whole_units(number: float, text: str) -> None:
    assert digits(number) == text


@pytest.mark.parametrize(
    ("value_s", "text"),
    [(0.25, "0.25 s"), (59.0, "59 s"), (90.0, "1.5 min"), (7200.0, "2 h"), (86400.0 * 2.5, "2.5 d"), (1e8, "1,157 d")],
)
def test_a_duration_is_in_the_largest_unit_that_it_reaches(value_s: float, text: str) -> None:
    assert duration_text(value_s) == text


@given(value_s=st.floats(min_value=1e-3, max_value=1e12))
def test_a_duration_is_read_back_within_its_digits(value_s: float) -> None:
    text = duration_text(value_s).replace(",", "")
    assert parse_duration(text) == pytest.approx(value_s, rel=6e-3)


@pytest.mark.parametrize(
    ("value_s", "text"), [(0.0, "0 h"), (184.0, "184 s"), (1800.0, "30 min"), (3600.0, "1 h"), (86400.0, "24 h")]
)
def test_hours_below_one_are_written_in_a_smaller_unit(value_s: float, text: str) -> None:
    assert hours_text(value_s) == text
