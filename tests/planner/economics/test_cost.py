"""Money and energy by hand; what is unknown stays unknown."""

from __future__ import annotations

import pytest

from catalogs.economics.electricity import Grid, load_grid
from catalogs.economics.prices import Price
from planner.economics.money import Rates, energy, money


def test_dollars_by_hand() -> None:
    rates = Rates(output_tokens_per_s=1000.0, total_tokens_per_s=4000.0, power_w=7200.0)
    found = money(rates, Price(36.0, "2026-01-01", "test"))
    assert found.usd_per_million_output_tokens == pytest.approx(10.0)  # 36 $/h = 0.01 $/s = 10 $ in the 1000 s of 1e6
    assert found.usd_per_million_total_tokens == pytest.approx(2.5)
    assert found.usd_per_million_input_tokens == pytest.approx(0.01 / 3000 * 1e6)  # 4000 less the 1000 of output


def test_joules_by_hand() -> None:
    rates = Rates(output_tokens_per_s=1000.0, total_tokens_per_s=4000.0, power_w=7200.0)
    found = energy(rates, Grid("x", "X", 500.0, "test", None, ""), pue=1.25)
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
    assert energy(Rates(0.0, 0.0, 100.0), load_grid("us")) is None
    assert energy(Rates(10.0, 40.0, float("nan")), load_grid("us")) is None
