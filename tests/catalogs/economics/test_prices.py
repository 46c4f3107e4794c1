"""Prices: of whole instances, dated, never zero; noisy rows stay out."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from catalogs.economics.electricity import DEFAULT_PUE, list_grids, load_grid
from catalogs.economics.instances import list_clouds, list_prices
from catalogs.economics.locations import locate_grid
from catalogs.economics.prices import (
    Price,
    RentalNeed,
    discounted_price,
    list_estimates,
    node_price,
    offers_by_region,
    rental_price,
)
from catalogs.errors import InputError
from catalogs.hardware.catalog import list_hardware, parse_hardware


def need(text: str, together: int | None = None, groups: int | None = None) -> RentalNeed:
    return RentalNeed.of(parse_hardware(text), together, groups)


def known(text: str, together: int | None = None, groups: int | None = None, **how: str) -> Price:
    price = rental_price(need(text, together, groups), **how)  # type: ignore[arg-type]
    assert price is not None
    return price


def usd(text: str, **how: str) -> float:
    return known(text, **how).usd_per_hour


def test_rows_are_positive_sourced_and_of_known_hardware() -> None:
    assert len(list_prices()) > 100
    for row in list_prices():
        assert row.hardware in list_hardware()
        assert row.as_of
        assert row.source
        assert (row.instance == "") == (row.quoted_per == "accelerator")
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
    assert usd("h100x8", reading="owned-neocloud") == pytest.approx(8 * 1.69)


def test_estimates_are_not_clouds_and_are_used_only_on_request() -> None:
    owned = min(p.usd_per_hour for p in list_estimates(need("h100")))
    assert owned < usd("h100")  # would win
    for reading in ("cheapest", "median", "list", "spot"):
        price = known("h100", reading=reading)
        assert price.cloud
        assert not price.estimate
    estimate = known("h100x8", reading="owned-hyperscaler")
    assert (estimate.cloud, estimate.instances, estimate.commitment) == ("", (), "owned")
    assert not any(cloud.startswith("tco") for cloud in list_clouds())
    with pytest.raises(InputError) as caught:
        known("h100x8", cloud="tco-neocloud")
    assert caught.value.nearest == "--set tariff.reading=owned-neocloud"


def test_a_part_of_an_instance_is_billed_as_the_whole_instance() -> None:
    price = known("h100x4", cloud="azure")  # sells eight together, and nothing smaller
    assert price.usd_per_hour == pytest.approx(98.32)
    assert price.idle_accelerators == 4
    assert "4 of the 8 rented accelerators are not used" in price.note
    exact = known("h100x8", cloud="aws")
    assert (exact.note, exact.idle_accelerators) == ("", 0)


def test_separate_replicas_take_the_smallest_instances_where_they_are_cheaper() -> None:
    """Three L40S of one instance each cost 3 x 1.5484; three quarters of the instance of four would cost 6.85."""
    price = known("l40sx4", 1, 3)
    assert price.usd_per_hour == pytest.approx(3 * 1.5484)
    assert [(i.count, i.accelerators) for i in price.instances] == [(3, 1)]
    together = known("l40sx4", 3, 1)
    assert together.usd_per_hour == pytest.approx(9.1376)
    assert [(i.count, i.accelerators) for i in together.instances] == [(1, 4)]


def test_hardware_is_priced_by_the_node_or_by_the_accelerator() -> None:
    hardware = parse_hardware("l40sx3")
    assert node_price(hardware) == rental_price(need("l40sx4", 3, 1))
    assert node_price(hardware, together=1) == rental_price(need("l40sx4", 1, 3))


def test_a_price_per_accelerator_is_of_whole_nodes() -> None:
    price = known("mi300xx8", cloud="vultr")
    assert price.usd_per_hour == pytest.approx(8 * 1.85)
    part = known("mi300xx8", 1, 3, cloud="vultr")
    assert part.usd_per_hour == price.usd_per_hour
    assert "no part is known to be sold" in part.note


def test_of_equal_prices_the_one_with_the_cleanest_grid_comes_first() -> None:
    """The spot price of an H200 is the same in Kansas City and in Finland, whose grid emits a fifth of the carbon."""
    first, second = offers_by_region(need("h200"), "spot")[:2]
    assert first.usd_per_hour == second.usd_per_hour
    assert (first.region, second.region) == ("eu-north1", "us-central1")
    assert known("h200", commitment="spot") == first


@pytest.mark.parametrize("commitment", ["on-demand", "spot"])
@pytest.mark.parametrize("name", list_hardware())
def test_offers_are_in_the_order_of_price_then_carbon_with_unknown_grids_last(name: str, commitment: str) -> None:
    located = [(p.usd_per_hour, locate_grid(p)) for p in offers_by_region(need(name), commitment)]
    keys = [(round(usd, 6), not at.known, at.grid.gco2e_per_kwh if at.known else 0.0) for usd, at in located]
    assert keys == sorted(keys)


@pytest.mark.parametrize("commitment", ["on-demand", "spot", "reserved-1y"])
@pytest.mark.parametrize("text", ["h100x8", "l40sx4", "h200x8", "a10gx4", "b200x8"])
def test_an_offer_is_of_one_cloud_region_and_commitment(text: str, commitment: str) -> None:
    """Every instance of an offer is a row of its place with a price under the commitment: nothing is mixed."""
    for groups in (1, 3, 5):
        for price in offers_by_region(need(text, 1, groups), commitment):
            rows = {
                row.instance: row.usd_per_hour(commitment)
                for row in list_prices()
                if (row.hardware, row.cloud, row.region) == (need(text).accelerator, price.cloud, price.region)
            }
            assert price.commitment == commitment
            assert price.usd_per_hour == pytest.approx(sum(i.count * i.usd_per_hour for i in price.instances))
            assert all(rows[i.instance] == i.usd_per_hour for i in price.instances)
            assert sum(i.count * i.accelerators for i in price.instances) == groups + price.idle_accelerators


def test_nodes_do_not_share_an_instance() -> None:
    """One node of six accelerators may be one instance of eight; three nodes of two are at least three instances."""
    for together in (1, 2):
        apart = known("3*h100x2", together)
        assert sum(i.count for i in apart.instances) >= 3
        assert apart.usd_per_hour >= known("h100x6", together).usd_per_hour


@pytest.mark.parametrize("name", list_hardware())
def test_more_accelerators_never_cost_less(name: str) -> None:
    hardware = parse_hardware(name)
    most = hardware.node.max_accelerators
    prices = [rental_price(RentalNeed.of(hardware, 1, n)) for n in range(1, 2 * most + 1)]
    wider = [rental_price(RentalNeed.of(hardware, n, 1)) for n in range(1, most + 1)]
    for found in (prices, wider):
        billed = [p.usd_per_hour for p in found if p is not None]
        assert billed == sorted(billed)
    for apart, together in zip(prices, wider, strict=False):
        assert apart is not None or together is None
        if apart is not None and together is not None:
            assert apart.usd_per_hour <= together.usd_per_hour


@pytest.mark.parametrize("name", list_hardware())
def test_nodes_multiply_and_readings_are_ordered(name: str) -> None:
    one = rental_price(need(name))
    two = rental_price(need(f"2*{name}"))
    assert (one is None) == (two is None)
    if one is not None and two is not None:
        assert one.usd_per_hour <= two.usd_per_hour <= 2 * one.usd_per_hour + 1e-9
        assert one.usd_per_hour <= usd(name, reading="median")
        assert one.usd_per_hour <= usd(name, reading="list")


def test_unknown_is_none() -> None:
    assert rental_price(need("rtx4090x2")) is None
    assert rental_price(need("local")) is None
    assert rental_price(need("mi300x"), "spot", cloud="vultr") is None
    assert rental_price(need("h100x8"), cloud="verda") is None  # sells no instance that holds eight


def test_slices_cost_their_whole_gpu() -> None:
    assert usd("a100-80gb:2g.20gbx1") == usd("a100-80gb:1g.10gbx7") == usd("a100-80gbx1")


def test_region_and_spot() -> None:
    price = known("h100x8", cloud="aws", region="eu")
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
    assert rental_price(need("h100x8"), commitment="reserved-1y") is None  # not in the table of H100 instances
    assert usd("h100x8", commitment="reserved-3y") == pytest.approx(8 * 1.30)  # an estimate, which no cloud offers
    assert known("h100x8", commitment="reserved-3y").estimate == "rental-3-years"
    assert rental_price(need("h100x8"), cloud="aws", commitment="reserved-3y") is None
    assert usd("h100x8", commitment="spot") == usd("h100x8", reading="spot")


def test_a_price_names_its_instances() -> None:
    price = known("h100x8", 1, 8, cloud="verda")
    assert [i.words for i in price.instances] == ["8 x 1H100.80S.32V (1 GPU each) at $2.29/h each"]
    assert price.n_instances == 8
    assert known("h100x8", cloud="aws").instances[0].words == "p5.48xlarge (8 GPUs) at $55.04/h"


def test_a_discount_of_ones_own_says_so() -> None:
    listed = known("h100x8", cloud="aws")
    price = discounted_price(listed, "reserved-3y", 0.4)
    assert price.usd_per_hour == pytest.approx(55.04 * 0.6)
    assert "40 % off the on-demand price, as you gave" in price.note
    for wrong in (0.0, 1.0, -0.2, float("nan")):
        with pytest.raises(InputError):
            discounted_price(listed, "reserved-3y", wrong)


@pytest.mark.parametrize("how", [{"cloud": "awz"}, {"region": "mars"}, {"reading": "cheap"}, {"commitment": "spott"}])
def test_unknown_choices_name_the_nearest(how: dict[str, str]) -> None:
    with pytest.raises(InputError) as caught:
        rental_price(need("h100x8"), **how)  # type: ignore[arg-type]
    assert caught.value.nearest


@given(st.floats(allow_nan=True, allow_infinity=True))
def test_a_users_price_is_positive_or_refused(value: float) -> None:
    if 0 < value < float("inf"):
        assert Price.user(value).usd_per_hour == value
    else:
        with pytest.raises(InputError):
            Price.user(value)


def test_clouds() -> None:
    assert {"aws", "gcp", "azure", "lambda"} <= set(list_clouds())


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
