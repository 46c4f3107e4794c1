"""Money and energy by hand; what is unknown stays unknown."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from catalogs.economics.electricity import Grid, load_grid
from catalogs.economics.locations import LocatedGrid, locate_grid
from catalogs.economics.prices import Price
from catalogs.ui.words import dollars
from planner.economics.money import Rates, energy, grid_words, money

AMOUNTS = {0.0: "$0.00", 1234.5: "$1,234.50", 0.046: "$0.046", 5.3e-5: "$0.000053", 2e-7: "$0.0000002", None: "unknown"}


@pytest.mark.parametrize("usd", AMOUNTS)
def test_amounts_have_no_exponent(usd: float | None) -> None:
    assert dollars(usd) == AMOUNTS[usd]


def test_dollars_by_hand() -> None:
    rates = Rates(output_tokens_per_s=1000.0, total_tokens_per_s=4000.0, power_w=7200.0)
    found = money(rates, Price(36.0, "2026-01-01", "test"))
    assert found.usd_per_million_output_tokens == pytest.approx(10.0)  # 36 $/h = 0.01 $/s = 10 $ in the 1000 s of 1e6
    assert found.usd_per_million_total_tokens == pytest.approx(2.5)
    assert found.usd_per_million_input_tokens == pytest.approx(0.01 / 3000 * 1e6)  # 4000 less the 1000 of output


@given(st.floats(0.1, 1e3), st.floats(1.0, 1e5), st.floats(1.0, 1e5), st.floats(0.1, 1e3))
def test_every_figure_per_unit_times_its_units_is_the_whole_bill(
    usd: float, output: float, inputs: float, requests: float
) -> None:
    found = money(Rates(output, output + inputs, 100.0, requests), Price(usd, "now", "test"))
    spread = (
        (found.usd_per_million_output_tokens, output / 1e6),
        (found.usd_per_million_input_tokens, inputs / 1e6),
        (found.usd_per_million_total_tokens, (output + inputs) / 1e6),
        (found.usd_per_request, requests),
    )
    for each, per_s in spread:
        assert each is not None
        assert each * per_s * 3600 == pytest.approx(usd, rel=1e-6)
    assert found.usd_per_month == pytest.approx(usd * 730.5)
    assert found.usd_per_year == pytest.approx(usd * 8766)


def test_the_energy_names_its_grid() -> None:
    rates = Rates(output_tokens_per_s=1000.0, total_tokens_per_s=4000.0, power_w=7200.0)
    found = energy(rates, locate_grid(Price(3.0, "now", "test", cloud="aws", region="eu-north-1")))
    assert found is not None
    assert (found.grid_region, found.grid_assumed) == ("se", False)
    assert grid_words(found) == "grid se (aws eu-north-1 is in Stockholm)"
    assumed = energy(rates, locate_grid(None))
    assert assumed is not None
    assert (assumed.grid_region, assumed.grid_assumed) == ("us", True)


def test_joules_by_hand() -> None:
    rates = Rates(output_tokens_per_s=1000.0, total_tokens_per_s=4000.0, power_w=7200.0)
    found = energy(rates, LocatedGrid(Grid("x", "X", 500.0, "test", None, ""), "as given"), pue=1.25)
    assert found is not None
    assert found.j_per_output_token == pytest.approx(7.2)
    assert found.kwh_per_million_output_tokens == pytest.approx(2.0 * 1.25)
    assert found.gco2e_per_million_output_tokens == pytest.approx(1250.0)


def test_an_unknown_price_is_none_never_zero() -> None:
    found = money(Rates(1000.0, 4000.0, 7200.0), None)
    assert (found.usd_per_hour, found.usd_per_million_output_tokens, found.price_as_of) == (None, None, None)


def test_nothing_produced_has_no_cost_per_token() -> None:
    found = money(Rates(0.0, 0.0, 100.0), Price(36.0, "2026-01-01", "test"))
    assert found.usd_per_million_output_tokens is None
    us = LocatedGrid(load_grid("us"), "as given")
    assert energy(Rates(0.0, 0.0, 100.0), us) is None
    assert energy(Rates(10.0, 40.0, float("nan")), us) is None
