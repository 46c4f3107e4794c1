"""Prices: scaled, dated, never zero; noisy rows stay out."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from catalogs.economics.electricity import DEFAULT_PUE, list_grids, load_grid
from catalogs.economics.prices import Price, Reading, discounted_price, list_clouds, list_prices, node_price
from catalogs.errors import InputError
from catalogs.hardware.catalog import list_hardware, parse_hardware


def usd(text: str, **how: str) -> float:
    price = node_price(parse_hardware(text), **how)  # type: ignore[arg-type]
    assert price is not None
    return price.usd_per_hour


def test_rows_are_positive_sourced_and_of_known_hardware() -> None:
    assert len(list_prices()) > 100
    for row in list_prices():
        assert row.hardware in list_hardware()
        assert row.as_of
        assert row.source
        assert 0.05 < row.on_demand_usd_per_hour / row.accelerators < 20
        assert row.min_usd_per_hour <= row.median_usd_per_hour
        assert row.min_usd_per_hour <= row.on_demand_usd_per_hour
        assert row.spot_usd_per_hour is None or 0 < row.spot_usd_per_hour < row.on_demand_usd_per_hour


def test_suspect_and_hostless_rows_are_left_out(public_data: Path) -> None:
    import csv

    with (public_data / "prices" / "gpu_prices.csv").open() as lines:
        bad = [r for r in csv.DictReader(lines) if "SUSPECT" in r["note"] or "PART ONLY" in r["note"]]
    keys = {(r["cloud"], r["instance_type"], r["region"]) for r in bad}
    assert len(keys) > 30
    assert not keys & {(r.cloud, r.instance, r.region) for r in list_prices()}
    assert not any(r.on_demand_usd_per_hour == 700.0 for r in list_prices())  # a sentinel of one catalogue


def test_known_prices_of_an_h100_node() -> None:
    assert usd("h100x8") == pytest.approx(23.6)
    assert usd("h100x8", reading="list") == pytest.approx(55.04)
    assert usd("h100x8", cloud="azure") == pytest.approx(98.32)
    assert usd("h100x8", cloud="tco-neocloud") == pytest.approx(8 * 1.69)


def test_ownership_costs_only_when_asked_for() -> None:
    owned = min(r.on_demand_usd_per_hour for r in list_prices() if r.kind == "ownership" and r.hardware == "h100")
    assert owned < usd("h100")  # would win
    for reading in get_args(Reading):
        price = node_price(parse_hardware("h100"), reading)
        assert price is not None
        assert "tco" not in price.cloud


def test_pro_rata_says_so() -> None:
    price = node_price(parse_hardware("h100x4"), cloud="aws")
    assert price is not None
    assert price.usd_per_hour == pytest.approx(55.04 / 2)
    assert "pro rata" in price.note
    exact = node_price(parse_hardware("h100x8"), cloud="aws")
    assert exact is not None
    assert exact.note == ""


def test_an_instance_of_exactly_the_size_comes_first() -> None:
    price = node_price(parse_hardware("h100x1"), cloud="digitalocean")
    assert price is not None
    assert price.usd_per_hour == pytest.approx(6.74)  # an eighth of the instance of eight is cheaper
    assert price.note == ""


def test_added_up_says_so() -> None:
    price = node_price(parse_hardware("mi300xx8"), cloud="vultr")
    assert price is not None
    assert price.usd_per_hour == pytest.approx(8 * 1.85)
    assert "8 x an instance of 1" in price.note


@pytest.mark.parametrize("name", list_hardware())
def test_nodes_multiply_and_readings_are_ordered(name: str) -> None:
    one = node_price(parse_hardware(name))
    two = node_price(parse_hardware(f"2*{name}x1"))
    assert (one is None) == (two is None)
    if one is not None and two is not None:
        assert two.usd_per_hour == pytest.approx(2 * one.usd_per_hour)
        assert one.usd_per_hour <= usd(name, reading="median")
        assert one.usd_per_hour <= usd(name, reading="list")


def test_unknown_is_none() -> None:
    assert node_price(parse_hardware("rtx4090x2")) is None
    assert node_price(parse_hardware("local")) is None
    assert node_price(parse_hardware("mi300x"), "spot", cloud="vultr") is None


def test_slices_cost_their_whole_gpu() -> None:
    assert usd("a100-80gb:2g.20gbx1") == usd("a100-80gb:1g.10gbx7") == usd("a100-80gbx1")


def test_region_and_spot() -> None:
    price = node_price(parse_hardware("h100x8"), cloud="aws", region="eu")
    assert price is not None
    assert price.region.startswith("eu-")
    assert usd("h100x8", reading="spot", cloud="aws") < usd("h100x8", cloud="aws")


def test_commitments_are_cheaper_and_never_made_up() -> None:
    rows = [r for r in list_prices() if r.reserved_1y_usd_per_hour is not None]
    assert len(rows) > 40
    for row in rows:
        assert row.cloud == "aws"  # the only table that has them
        assert row.reserved_1y_usd_per_hour is not None
        assert 0.55 < row.reserved_1y_usd_per_hour / row.on_demand_usd_per_hour < 0.75
    assert usd("a100-80gbx8", commitment="reserved-1y") == pytest.approx(17.4014)
    assert node_price(parse_hardware("h100x8"), commitment="reserved-1y") is None  # not in the table of H100 instances
    assert usd("h100x8", commitment="reserved-3y") == pytest.approx(8 * 1.30)
    assert usd("h100x8", commitment="spot") == usd("h100x8", reading="spot")


def test_a_price_says_which_instance_it_is_of() -> None:
    price = node_price(parse_hardware("h100x8"), cloud="verda")
    assert price is not None
    assert (price.instance, price.accelerators) == ("1H100.80S.32V", 1)
    assert price.note == "8 x an instance of 1, separate machines"
    quoted = node_price(parse_hardware("mi300xx8"), cloud="vultr")
    assert quoted is not None
    assert "separate machines" not in quoted.note  # a price of one GPU, not an instance of one


def test_a_discount_of_ones_own_says_so() -> None:
    listed = node_price(parse_hardware("h100x8"), cloud="aws")
    assert listed is not None
    price = discounted_price(listed, "reserved-3y", 0.4)
    assert price.usd_per_hour == pytest.approx(55.04 * 0.6)
    assert "40% off the on-demand price, as you gave" in price.note
    for wrong in (0.0, 1.0, -0.2, float("nan")):
        with pytest.raises(InputError):
            discounted_price(listed, "reserved-3y", wrong)


@pytest.mark.parametrize("how", [{"cloud": "awz"}, {"region": "mars"}, {"reading": "cheap"}, {"commitment": "spott"}])
def test_unknown_choices_name_the_nearest(how: dict[str, str]) -> None:
    with pytest.raises(InputError) as caught:
        node_price(parse_hardware("h100x8"), **how)  # type: ignore[arg-type]
    assert caught.value.nearest


@given(st.floats(allow_nan=True, allow_infinity=True))
def test_a_users_price_is_positive_or_refused(value: float) -> None:
    if 0 < value < float("inf"):
        assert Price.user(value).usd_per_hour == value
    else:
        with pytest.raises(InputError):
            Price.user(value)


def test_clouds() -> None:
    assert {"aws", "gcp", "azure", "lambda", "tco-3-year"} <= set(list_clouds())


@pytest.mark.parametrize("region", list_grids())
def test_every_grid_has_carbon_and_source(region: str) -> None:
    grid = load_grid(region)
    assert 10 < grid.gco2e_per_kwh < 1000
    assert grid.gco2e_source
    assert grid.usd_per_kwh is None or 0.02 < grid.usd_per_kwh < 0.5
    assert (grid.usd_per_kwh is None) == (grid.usd_source == "")


def test_a_state_borrows_its_countrys_carbon_and_says_so() -> None:
    assert load_grid("us-va").gco2e_per_kwh == load_grid("us").gco2e_per_kwh
    assert "United States for Virginia" in load_grid("us-va").gco2e_source
    assert load_grid("us-va").usd_per_kwh != load_grid("us").usd_per_kwh


def test_unknown_grid_names_the_nearest() -> None:
    with pytest.raises(InputError) as caught:
        load_grid("germny")
    assert caught.value.nearest == "de"
    assert 1 < DEFAULT_PUE < 2
