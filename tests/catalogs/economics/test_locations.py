"""The grid follows the region of the price; an unknown place is named as such."""

from __future__ import annotations

import pytest

from catalogs.economics.electricity import list_grids, load_grid
from catalogs.economics.instances import list_clouds, list_prices
from catalogs.economics.locations import SOURCES, list_cloud_regions, locate_grid
from catalogs.economics.prices import Price, RentalNeed, rental_price
from catalogs.errors import InputError
from catalogs.hardware.catalog import parse_hardware


def test_every_region_of_the_price_table_has_a_grid_with_a_source() -> None:
    regions = list_cloud_regions()
    for row in list_prices():
        assert (row.cloud, row.region.lower()) in regions or row.region == ""
    for region in regions.values():
        assert region.cloud in list_clouds()
        assert region.grid in list_grids()
        assert region.source in SOURCES


def test_a_price_in_finland_has_the_carbon_of_finland() -> None:
    price = rental_price(RentalNeed.of(parse_hardware("l40sx4"), 1, 3))
    assert price is not None
    assert price.region == "eu-north1"
    located = locate_grid(price)
    assert (located.grid, located.known) == (load_grid("fi"), True)
    assert located.reason == "nebius eu-north1 is in Finland"


def test_a_price_of_a_part_of_the_world_with_one_grid_has_that_grid() -> None:
    located = locate_grid(rental_price(RentalNeed.of(parse_hardware("mi300xx8")), cloud="vultr"))
    assert (located.grid.region, located.known) == ("us", True)
    assert "names no region" in located.reason


@pytest.mark.parametrize(
    "price",
    [None, Price.user(3.0), Price(3.0, "now", "test", cloud="aws", region="mars-1"), Price(3.0, "now", "t", cloud="x")],
)
def test_an_unknown_place_has_the_default_grid_and_the_reason(price: Price | None) -> None:
    located = locate_grid(price)
    assert (located.grid.region, located.known) == ("us", False)
    assert located.reason.startswith("assumed: ")


def test_a_given_grid_is_used_whatever_the_price() -> None:
    price = rental_price(RentalNeed.of(parse_hardware("l40sx4")))
    assert locate_grid(price, "no").grid == load_grid("no")
    assert locate_grid(price, "no").reason == "as given"
    with pytest.raises(InputError):
        locate_grid(price, "atlantis")
