"""Every figure of a plan's cost and energy by arithmetic that a reader can follow."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from catalogs.economics.electricity import DEFAULT_PUE, Grid
from catalogs.economics.locations import LocatedGrid
from catalogs.economics.prices import Price, RentalNeed, RentedInstances, rental_price
from catalogs.hardware.catalog import parse_hardware
from planner.economics.money import (
    CONTRACT_WORDS,
    HOURS_PER_YEAR,
    Rates,
    RentedPart,
    energy,
    grid_words,
    money,
    price_rows,
)

#: A quarter of the tokens are output; a request is 100 tokens.
RATES = Rates(output_tokens_per_s=1000.0, total_tokens_per_s=4000.0, power_w=7200.0, requests_per_s=40.0)
GRID = LocatedGrid(Grid("x", "X", 500.0, "grams", 0.05, "dollars"), "aws us-east-1 is in Virginia")
KNOWN = Price(
    36.0,
    "2026-01-01",
    "table",
    cloud="aws",
    region="us-east-1",
    commitment="spot",
    instances=(RentedInstances("p5", 8, 2, 18.0),),
    idle_accelerators=3,
    note="scaled",
)


def test_money_by_hand() -> None:
    """36 $/h is a cent a second: 10 $ in the 1,000 s of a million output tokens."""
    found = money(RATES, KNOWN)
    assert found.usd_per_hour == 36.0
    assert found.usd_per_million_output_tokens == pytest.approx(10.0, rel=1e-12)
    assert found.usd_per_million_total_tokens == pytest.approx(2.5, rel=1e-12)
    assert found.usd_per_million_input_tokens == pytest.approx(10 / 3, rel=1e-12)
    assert found.usd_per_request == pytest.approx(0.01 / 40, rel=1e-12)
    assert (found.price_as_of, found.price_source, found.price_note) == (
        "2026-01-01",
        "table: aws p5 us-east-1",
        "scaled",
    )
    assert (found.commitment, found.instance, found.accelerators_per_instance) == ("spot", "p5", 8)
    assert (found.cloud, found.region) == ("aws", "us-east-1")
    assert (found.instances, found.idle_accelerators) == ([RentedPart("p5", 8, 2, 18.0)], 3)
    assert found.usd_per_year == pytest.approx(36 * 365.25 * 24, rel=1e-12)
    assert found.usd_per_month == pytest.approx(36 * 365.25 * 2, rel=1e-12)
    plain = money(RATES, Price(36.0, "now", "test"))
    assert (plain.price_source, plain.price_note, plain.instance) == ("test", None, None)
    assert (plain.instances, plain.idle_accelerators) == ([], None)
    assert (plain.cloud, plain.region) == (None, None)
    mixed = money(RATES, Price(36.0, "now", "test", instances=(*KNOWN.instances, RentedInstances("p4", 4, 1, 1.0))))
    assert (mixed.instance, mixed.accelerators_per_instance, len(mixed.instances)) == (None, None, 2)
    assert money(Rates(1000.0, 4000.0, 7200.0), KNOWN).usd_per_request is None  # the queue grows
    only_output = money(Rates(1000.0, 1000.0, 7200.0), KNOWN)
    assert only_output.usd_per_million_input_tokens is None


def test_energy_by_hand() -> None:
    """7.2 J a token are 2 kWh a million at the servers, 2.5 with the facility, of 500 g each. Watts are without it."""
    found = energy(RATES, GRID, pue=1.25)
    assert found is not None
    assert (found.w_mean, found.pue) == (7200.0, 1.25)
    assert found.j_per_output_token == pytest.approx(7.2, rel=1e-12)
    assert found.j_per_total_token == pytest.approx(1.8, rel=1e-12)
    assert found.kwh_per_million_output_tokens == pytest.approx(2.5, rel=1e-12)
    assert found.kwh_per_million_total_tokens == pytest.approx(0.625, rel=1e-12)
    assert found.gco2e_per_million_output_tokens == pytest.approx(1250.0, rel=1e-12)
    assert (found.grid_gco2e_per_kwh, found.grid_source, found.grid_region) == (500.0, "grams", "x")
    assert (found.grid_name, found.grid_reason, found.grid_assumed) == ("X", GRID.reason, False)
    assert grid_words(found) == "grid x (aws us-east-1 is in Virginia)"
    assumed = energy(RATES, LocatedGrid(GRID.grid, "the default", known=False))
    assert assumed is not None
    assert assumed.grid_assumed is True
    usual = energy(RATES, GRID)
    assert usual is not None
    assert usual.kwh_per_million_output_tokens == pytest.approx(2.0 * DEFAULT_PUE, rel=1e-12)
    assert DEFAULT_PUE > 1


@given(st.floats(1.0, 2.0), st.floats(1.0, 1e5))
def test_the_facility_multiplies_kilowatt_hours_and_nothing_else(pue: float, power_w: float) -> None:
    rates = Rates(1000.0, 4000.0, power_w)
    with_it, without = energy(rates, GRID, pue), energy(rates, GRID, 1.0)
    assert with_it is not None
    assert without is not None
    for name in ("kwh_per_million_output_tokens", "kwh_per_million_total_tokens", "gco2e_per_million_output_tokens"):
        assert getattr(with_it, name) == pytest.approx(pue * getattr(without, name))
    for name in ("w_mean", "j_per_output_token", "j_per_total_token"):
        assert getattr(with_it, name) == getattr(without, name)


@pytest.mark.parametrize("hardware", ["h100x8", "l4x4"])
def test_rows_of_prices_are_hourly_prices_divided_by_the_rates(hardware: str) -> None:
    """1,000 output tokens/s are 3.6 million an hour, and 4,000 tokens/s are 14.4 million."""
    need = RentalNeed.of(parse_hardware(hardware))
    rows = price_rows(need, 1000.0, 4000.0, kwh_per_million=lambda idle: 2.0 + 0.5 * idle)
    assert rows == sorted(rows, key=lambda row: (round(row.usd_per_hour, 6), row.estimate or ""))
    assert {row.contract for row in rows} <= set(CONTRACT_WORDS.values())
    for row in rows:
        assert row.usd_per_million_output_tokens == pytest.approx(row.usd_per_hour / 3.6, rel=1e-12)
        assert row.usd_per_million_total_tokens == pytest.approx(row.usd_per_hour / 14.4, rel=1e-12)
        assert row.usd_per_year == pytest.approx(row.usd_per_hour * HOURS_PER_YEAR, rel=1e-12)
        assert row.source
        assert (row.gco2e_per_kwh is None) == (row.gco2e_per_million_output_tokens is None)
        if row.gco2e_per_kwh is not None:
            idle = sum(part.count * part.accelerators for part in row.rented) - need.accelerators
            kwh = 2.0 + 0.5 * idle
            assert row.gco2e_per_million_output_tokens == pytest.approx(kwh * row.gco2e_per_kwh, rel=1e-12)
        if row.cloud is not None:
            assert row.usd_per_hour == pytest.approx(sum(part.count * part.usd_per_hour for part in row.rented))
            assert sum(part.count * part.accelerators for part in row.rented) >= need.accelerators
    assert all(row.usd_per_million_output_tokens is None for row in price_rows(need, 0.0, 0.0))


def test_hardware_without_a_price_has_no_rows() -> None:
    assert price_rows(RentalNeed.of(parse_hardware("xeon-8480")), 1.0, 1.0) == []


@pytest.mark.parametrize("hardware", ["h100x8", "h200x8", "b200x8", "l40sx4", "a100-80gbx8"])
def test_the_first_row_on_demand_is_the_offer_of_the_bill(hardware: str) -> None:
    """Two regions may ask the same price, as those with H200 do: the table then begins with the one that is billed."""
    need = RentalNeed.of(parse_hardware(hardware))
    billed = rental_price(need)
    assert billed is not None
    first = next(row for row in price_rows(need, 1.0, 1.0) if row.contract == "on demand")
    assert (first.cloud, first.region) == (billed.cloud, billed.region)
