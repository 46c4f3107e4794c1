"""Owned hardware, racks and spot instances by arithmetic that a reader can follow."""

from __future__ import annotations

import math

import pytest

from catalogs.economics.electricity import DEFAULT_PUE, Grid
from catalogs.errors import InputError
from catalogs.hardware.catalog import parse_hardware
from planner.economics.ownership import OwnedCost, OwnedHardware, RentalCost, owned_cost, parse_owned
from planner.economics.rack_power import most_w, rack_power
from planner.economics.spot import SpotFleet, enough_up, spares_needed, spot_effect

GRID = Grid("x", "X", 500.0, "grams", 0.05, "dollars")
HOURS_PER_YEAR = 8766


def owned(busy_w: float = 8000.0, rent: RentalCost | None = None, **figures: float) -> OwnedCost:
    given_ = OwnedHardware(**{"capex": 87_660.0, "years": 2.0} | figures)  # type: ignore[arg-type]
    return owned_cost(given_, busy_w, 2000.0, (1000.0, 4000.0), GRID, rent)


def test_capital_and_upkeep_by_hand() -> None:
    """5 $/h in equal parts; a resale value of 40 % leaves 3 $/h; a year has 8,766 hours."""
    assert OwnedHardware(capex=87_660.0, years=2.0).capital_usd_per_hour == pytest.approx(5.0, rel=1e-12)
    sold = OwnedHardware(capex=87_660.0, years=2.0, residual=0.4)
    assert sold.capital_usd_per_hour == pytest.approx(3.0, rel=1e-12)
    paid = OwnedHardware(capex=87_660.0, years=3.0, interest=0.08, residual=0.2)
    worth = sum(1.08**-year for year in (1, 2, 3)) * paid.capital_usd_per_hour * HOURS_PER_YEAR
    assert worth + 0.2 * 87_660 / 1.08**3 == pytest.approx(87_660.0, rel=1e-12)  # payments and resale pay for it
    assert OwnedHardware(capex=1.0, years=1.0, upkeep=8766.0).upkeep_usd_per_hour == pytest.approx(1.0, rel=1e-12)


def test_power_of_owned_hardware_is_paid_with_the_facility() -> None:
    """A third of the hours at 9 kW, the rest idle at 2 kW, x 1.5 x 0.2 $/kWh."""
    cost = owned(9000.0, utilisation=1 / 3, power_price=0.2, pue=1.5)
    assert cost.busy_usd_per_hour == pytest.approx(2.7, rel=1e-12)
    assert cost.idle_usd_per_hour == pytest.approx(0.6, rel=1e-12)
    assert cost.energy_usd_per_hour == pytest.approx(0.9 + 0.4, rel=1e-12)
    assert cost.usd_per_kwh_source == "given"
    assert cost.usd_per_million_output_tokens == pytest.approx(6.3 / (3.6 / 3), rel=1e-12)
    assert cost.usd_per_million_total_tokens == pytest.approx(6.3 / (14.4 / 3), rel=1e-12)
    of_grid = owned()
    assert of_grid.pue == DEFAULT_PUE
    assert (of_grid.usd_per_kwh, of_grid.usd_per_kwh_source) == (0.05, "dollars")
    assert of_grid.busy_usd_per_hour == pytest.approx(8 * DEFAULT_PUE * 0.05, rel=1e-12)


def test_a_reservation_is_paid_also_when_idle() -> None:
    """Half the hours at 0.96 $/h of power, half at 0.24, 1 $/h of upkeep: 1.6 $/h running, 6.6 with the capital."""
    figures = {"power_price": 0.1, "pue": 1.2, "utilisation": 0.5, "upkeep": 8766.0}
    dear, cheap, below = (owned(rent=RentalCost(usd, "test", always=True), **figures) for usd in (6.7, 6.5, 1.5))
    assert dear.usd_per_hour == pytest.approx(6.6, rel=1e-12)
    assert (dear.rent_always, dear.never, dear.break_even_utilisation) == (True, None, None)
    assert dear.payback_years == pytest.approx(87_660 / (5.1 * 8766), rel=1e-12)
    assert cheap.never == "a permanent rental costs less than owning"
    assert (below.payback_years, below.rent_source) == (None, "test")


def test_renting_by_the_hour_is_compared_at_the_hours_of_use() -> None:
    """Idle owned hardware costs 6.24 $/h; an hour of use saves the rent less 0.72 $ of power."""
    figures = {"power_price": 0.1, "pue": 1.2, "utilisation": 0.5, "upkeep": 8766.0}
    half = owned(rent=RentalCost(13.2, "test", always=False), **figures)
    assert half.break_even_utilisation == pytest.approx(6.24 / 12.48, rel=1e-12)
    assert half.payback_years == pytest.approx(87_660 / ((6.6 - 1.6) * 8766), rel=1e-12)
    full, more, free = (owned(rent=RentalCost(usd, "t", always=False), **figures) for usd in (6.961, 6.959, 0.5))
    assert 0.999 < full.break_even_utilisation <= 1
    assert full.never is None
    for never in (more, free):
        assert never.break_even_utilisation is None
        assert never.never == "renting costs less even at full utilisation"
    assert free.payback_years is None


def test_keys_of_owned_hardware_that_are_missing_are_named() -> None:
    with pytest.raises(InputError, match="needs years"):
        parse_owned("capex=1")
    with pytest.raises(InputError, match="needs capex"):
        parse_owned("years=1")


@pytest.mark.parametrize("name", ["absent.yaml", "absent.yml"])
def test_a_file_of_owned_hardware_that_is_absent_is_named_as_a_file(name: str) -> None:
    with pytest.raises(InputError, match=name) as caught:
        parse_owned(name)
    assert "KEY=VALUE" not in str(caught.value)


# ---- racks and spot


def test_a_rack_holds_no_more_nodes_than_the_plan_and_the_last_may_hold_fewer() -> None:
    hardware = parse_hardware("5*h100x8")
    power = rack_power(hardware, 30_000.0, 600.0, 2)
    node_most = 8 * (691 + 160) + 1500
    assert (power.nodes, power.nodes_per_rack, power.racks, power.gpu_w_mean) == (5, 2, 3, 600.0)
    assert (power.node_w_mean, power.rack_w_mean) == (6000.0, 12_000.0)
    assert power.node_w_most == pytest.approx(node_most, rel=1e-12) == pytest.approx(most_w(hardware) / 5)
    assert power.rack_w_most == pytest.approx(2 * node_most, rel=1e-12)
    assert (power.host_w_idle, power.host_w_per_busy_accelerator) == (1500.0, 160.0)
    assert power.rows()[2][2] == "a rack of 2 nodes; 3 required"
    whole = rack_power(hardware, 30_000.0, None, None)
    assert (whole.racks, whole.rack_w_mean) == (1, 30_000.0)
    assert whole.rows()[2][2] == "a rack of 5 nodes; 1 required"
    one = rack_power(parse_hardware("h100x8"), 6000.0, None, 4)
    assert (one.racks, one.rack_w_mean) == (1, 6000.0)
    assert one.rows()[2][2] == "a rack of 1 node; 1 required"


def test_interruptions_by_hand() -> None:
    """Eight instances in four units of two: 0.2 an hour each; 3,600 s lost: up 1 / 1.2; 90 s in flight."""
    effect = spot_effect(SpotFleet(8, 4, 10.0, 14.0, 90.0, 40.0), 0.1, 3600.0)
    hit = 1 - math.exp(-0.2 / 3600 * 90)
    assert (effect.units, effect.interruptions_per_hour) == (4, pytest.approx(0.8))
    assert effect.available_fraction == pytest.approx(1 / 1.2, rel=1e-12)
    assert effect.all_up_fraction == pytest.approx(1.2**-4, rel=1e-12)
    assert effect.hit_fraction == pytest.approx(hit, rel=1e-9)
    assert effect.hit_requests_per_hour == pytest.approx(36_000 * hit, rel=1e-9)
    assert effect.extra_work_fraction == pytest.approx(hit / 2, rel=1e-9)
    assert effect.effective_capacity_requests_per_s == pytest.approx(14 / 1.2 / (1 + hit / 2), rel=1e-9)
    assert effect.holds_with_one_down is True  # 10.5 requests/s
    assert spot_effect(SpotFleet(8, 4, 10.5, 14.0, 90.0, 40.0), 0.1, 3600.0).holds_with_one_down is True
    assert spot_effect(SpotFleet(8, 4, 10.6, 14.0, 90.0, 40.0), 0.1, 3600.0).holds_with_one_down is False
    assert effect.usd_per_hour_with_spares == pytest.approx(40 * (4 + effect.spares) / 4)
    assert SpotFleet(0, 0, 1.0, None, 1.0, 1.0).units == 1
    assert spot_effect(SpotFleet(2, 2, 1.0, None, 1.0, 1.0), 0.1, 1.0).effective_capacity_requests_per_s is None


def test_the_binomial_by_hand() -> None:
    assert enough_up(2, 1, 0.9) == pytest.approx(0.99, rel=1e-12)
    assert enough_up(3, 2, 0.5) == pytest.approx(0.5, rel=1e-12)
    assert enough_up(3, 0, 0.4) == pytest.approx(1.0)
    assert (spares_needed(1, 0.99), spares_needed(1, 0.9), spares_needed(1, 0.89)) == (0, 1, 2)
    assert spares_needed(2, 0.0) == 1000  # none are enough: the most that are tried


@pytest.mark.parametrize("units", [1, 3, 20])
@pytest.mark.parametrize("up", [0.3, 0.9, 0.999])
def test_one_spare_less_is_not_enough(units: int, up: float) -> None:
    spares = spares_needed(units, up)
    assert enough_up(units + spares, units, up) >= 0.99
    assert spares == 0 or enough_up(units + spares - 1, units, up) < 0.99
