"""Percentages have one form on every screen and page, and one function writes them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from catalogs.ui.words import (
    evidence_words,
    extra_dollars,
    percent,
    shares_words,
    sure_percent,
    whole_percents,
    with_sign,
)

ROOT = Path(__file__).parents[3]
PACKAGES = ("catalogs", "calibration", "simulator", "planner")

#: A format that writes a percentage by itself: the type `%`, or a product with 100 and the sign.
OWN_FORMAT = re.compile(r"\{[^{}]*:[^{}]*%\}|\{100 \* [^{}]*:[^{}]*f\} ?%|[0-9f]\}%")


@pytest.mark.parametrize(
    ("share", "text"),
    [
        (None, "unknown"),
        (0.0, "0 %"),
        (0.004, "under 1 %"),
        (0.01, "1 %"),
        (0.567, "57 %"),
        (0.99, "99 %"),
        (0.995, "over 99 %"),
        (1.0, "100 %"),
        (155.53, "15,553 %"),
    ],
)
def test_whole_percents(share: float | None, text: str) -> None:
    assert percent(share) == text


def test_decimals_and_differences() -> None:
    assert percent(0.0123, 1) == "1.2 %"
    assert percent(0.99999, 3) == "99.999 %"
    assert percent(0.25, signed=True) == "+25 %"
    assert percent(-0.041, 1, signed=True) == "−4.1 %"
    for near_zero in (-0.0004, 0.0, 0.004):
        assert percent(near_zero, signed=True) == "0 %"
    assert percent(-0.0004, 1, signed=True) == "0.0 %"


def test_the_shares_of_evidence_add_up() -> None:
    """Rounded one by one, 11.55, 77.91 and 10.54 % would be 12, 78 and 11: 101 %."""
    shares = {"measured_fraction": 0.1155, "interpolated_fraction": 0.7791, "roofline_fraction": 0.1054}
    assert evidence_words(shares) == "12 % measured, 78 % interpolated, 10 % roofline only"
    assert evidence_words(dict.fromkeys(shares, 0.0)) == "0 % measured, 0 % interpolated, 0 % roofline only"


def test_times_from_the_tables_of_another_accelerator_are_not_said_to_be_a_roofline() -> None:
    shares = {"measured_fraction": 0.0, "interpolated_fraction": 0.0, "roofline_fraction": 0.02}
    borrowed = shares | {"borrowed_fraction": 0.98, "borrowed_from": "l40s"}
    assert evidence_words(borrowed) == "0 % measured, 0 % interpolated, 98 % borrowed from l40s, 2 % roofline only"
    own = shares | {"interpolated_fraction": 0.98, "borrowed_fraction": 0.0, "borrowed_from": None}
    assert "borrowed" not in evidence_words(own)


def test_differences_have_a_sign_unless_they_round_to_zero() -> None:
    assert [with_sign(x) for x in (3.4, -3.4, 0.4, -0.4, 0.0, 1234.0)] == ["+3", "−3", "0", "0", "0", "+1,234"]
    assert [with_sign(x, 1) for x in (-0.04, -0.06, 0.06)] == ["0.0", "−0.1", "+0.1"]
    amounts = [extra_dollars(x) for x in (0.31, -1.0, 0.0, -0.001, 1234.5, None)]
    assert amounts == ["+$0.31", "−$1.00", "$0.00", "$0.00", "+$1,234.50", "unknown"]


@given(st.floats(0.0, 1.0), st.integers(1, 99))
def test_a_confidence_is_never_rounded_up(probability: float, required: int) -> None:
    text = sure_percent(probability)
    if text == "over 99 %":
        assert probability > 0.99
    elif text != "under 1 %":
        whole = int(text.removesuffix(" %"))
        assert whole <= 100 * probability + 1e-6
        assert (whole >= required) == (probability >= required / 100 - 1e-9)


@given(st.lists(st.floats(0, 1e9), min_size=1, max_size=9).filter(lambda parts: sum(parts) > 1e-3))
def test_whole_percents_of_parts_add_up_to_100(parts: list[float]) -> None:
    found = whole_percents(parts)
    whole = [{"under 1 %": 0, "over 99 %": 100}.get(text, int(text.split()[-2])) for text in found]
    assert sum(whole) == 100
    for part, n, text in zip(parts, whole, found, strict=True):
        share = 100 * part / sum(parts)
        assert abs(n - share) <= 1
        assert not text.startswith(("under", "over")) or 0 < share < 100


def test_named_shares_add_up_to_100() -> None:
    seconds = {"denoiser_high": 62.4, "denoiser_low": 36.6, "decoder": 0.6, "decoder_first": 0.4}
    assert shares_words(seconds, 4) == "denoiser_high 62 %, denoiser_low 37 %, decoder 1 %, decoder_first under 1 %"
    assert shares_words(seconds, 1) == "denoiser_high 62 %, other 38 %"
    assert shares_words(seconds, 3).endswith("decoder 1 %")  # the rest is under 1 %


def test_no_module_formats_percentages_itself() -> None:
    files = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    found = [
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for path in files
        if path.name != "words.py"
        for line in path.read_text().splitlines()
        if OWN_FORMAT.search(line)
    ]
    assert not found
