"""Owned hardware, spot, racks, users and hours of the day: worked out by hand; what is unknown stays unknown."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from catalogs.economics.electricity import Grid, load_grid, read_hourly_carbon
from catalogs.economics.prices import Price, RentalNeed, rental_price
from catalogs.errors import InputError
from catalogs.hardware.catalog import parse_hardware
from planner.answer.plan_schema import Plan, Survival
from planner.economics.money import Energy, Money, RentedPart, price_rows, rented_words
from planner.economics.ownership import (
    HOURS_PER_YEAR,
    OwnedCost,
    OwnedHardware,
    RentalCost,
    owned_cost,
    parse_owned,
)
from planner.economics.rack_power import idle_w, most_w, rack_power
from planner.economics.spot import SpotFleet, spares_needed, spot_effect
from planner.problem.accounting import Accounting
from planner.problem.request import PlanRequest
from planner.problem.slo import parse_slos
from planner.problem.tariff import Tariff, require_price
from planner.sections.accounts import AccountsSection, PlanAccounts, SpotAccount, UnknownSpot, accounts_of
from planner.sections.ownership import PricedPlan

GRID = Grid("x", "X", 400.0, "test", 0.05, "test")


def owned_at(owned: OwnedHardware, rent: RentalCost | None = None) -> OwnedCost:
    return owned_cost(owned, 8000.0, 2000.0, (1000.0, 4000.0), GRID, rent)


def test_owned_by_hand() -> None:
    """87,660 $ over 2 years is 5 $/h; 0.25 x 8 kW + 0.75 x 2 kW = 3.5 kW, x 1.2 x 0.1 $/kWh = 0.42 $/h."""
    owned = OwnedHardware(capex=87_660.0, years=2.0, power_price=0.1, pue=1.2, utilisation=0.25, upkeep=8766.0)
    cost = owned_at(owned, RentalCost(30.0, "test", always=False))
    assert HOURS_PER_YEAR == 8766
    assert cost.capital_usd_per_hour == pytest.approx(5.0)
    assert cost.upkeep_usd_per_hour == pytest.approx(1.0)
    assert cost.energy_usd_per_hour == pytest.approx(0.42)
    assert cost.usd_per_hour == pytest.approx(6.42)
    # a quarter of the hours at 1,000 tokens/s: 900,000 tokens an hour of the calendar
    assert cost.usd_per_million_output_tokens == pytest.approx(6.42 / 0.9)
    assert cost.usd_per_million_total_tokens == pytest.approx(6.42 / 3.6)
    # 6 + 0.24 + u (0.96 - 0.24) = 30 u
    assert cost.break_even_utilisation == pytest.approx(6.24 / (30.0 - 0.72))
    # renting a quarter of the hours: 7.5 $/h, less power and upkeep, pays 87,660 $
    assert cost.payback_years == pytest.approx(87_660 / ((7.5 - 1.42) * 8766))


@given(st.floats(1e3, 1e6), st.floats(1.0, 8.0), st.floats(0.5, 200.0))
def test_at_the_break_even_use_owning_costs_what_renting_does(capex: float, years: float, rent: float) -> None:
    cost = owned_at(OwnedHardware(capex=capex, years=years), RentalCost(rent, "test", always=False))
    if cost.break_even_utilisation is None:
        full = owned_at(OwnedHardware(capex=capex, years=years, utilisation=1.0))
        assert full.usd_per_hour >= rent * (1 - 1e-9)
        assert cost.never
    else:
        there = owned_at(OwnedHardware(capex=capex, years=years, utilisation=cost.break_even_utilisation))
        assert there.usd_per_hour == pytest.approx(cost.break_even_utilisation * rent)


def test_interest_is_an_annuity_and_residual_is_worth_less_today() -> None:
    """1,000 $ over 2 years at 10 %: 576.19 $ a year (1,000 x 0.1 / (1 - 1.1^-2))."""
    owned = OwnedHardware(capex=1000.0, years=2.0, interest=0.1)
    assert owned.capital_usd_per_hour * HOURS_PER_YEAR == pytest.approx(576.190476)
    sold = OwnedHardware(capex=1000.0, years=2.0, interest=0.1, residual=0.5)
    assert sold.capital_usd_per_hour * HOURS_PER_YEAR == pytest.approx((1000 - 500 / 1.21) * 0.1 / (1 - 1 / 1.21))
    almost = OwnedHardware(capex=1000.0, years=2.0, interest=1e-9)
    assert almost.capital_usd_per_hour == pytest.approx(OwnedHardware(capex=1000.0, years=2.0).capital_usd_per_hour)


def test_owned_without_rent_or_price_of_power() -> None:
    cost = owned_at(OwnedHardware(capex=1000.0, years=1.0))
    assert (cost.break_even_utilisation, cost.payback_years, cost.never) == (None, None, None)
    assert cost.usd_per_kwh == GRID.usd_per_kwh  # of the grid, where none is given
    with pytest.raises(InputError, match="no known price of electricity"):
        owned_cost(OwnedHardware(capex=1.0, years=1.0), 1.0, 1.0, (1.0, 1.0), load_grid("world"), None)


def test_owned_is_read_from_pairs_and_from_a_file(tmp_path: Path) -> None:
    text = "capex=250000,years=4,power-price=0.08,pue=1.3,utilisation=0.6"
    (tmp_path / "own.yaml").write_text("capex: 250000\nyears: 4\npower-price: 0.08\npue: 1.3\nutilisation: 0.6\n")
    assert parse_owned(text) == parse_owned(str(tmp_path / "own.yaml"))


@pytest.mark.parametrize(
    "text",
    ["capex=1", "years=4", "capex", "capex=1,years=4,powr-price=1", "capex=-1,years=4", "capex=1,years=4,pue=0.9"],
)
def test_what_is_no_owned_hardware_is_refused(text: str) -> None:
    with pytest.raises(InputError):
        parse_owned(text)


def test_spot_by_hand() -> None:
    """0.1 an hour, 360 s to recover: a unit is up 1 / 1.01; 36 s in flight: 1 in 1,000 requests is hit."""
    fleet = SpotFleet(4, 4, 10.0, 12.0, 36.0, 40.0)
    effect = spot_effect(fleet, 0.1, 360.0)
    assert effect.units == 4
    assert effect.interruptions_per_hour == pytest.approx(0.4)
    assert effect.available_fraction == pytest.approx(1 / 1.01)
    assert effect.all_up_fraction == pytest.approx(1.01**-4)
    assert effect.hit_fraction == pytest.approx(1 - math.exp(-0.001))
    assert effect.hit_requests_per_hour == pytest.approx(36_000 * effect.hit_fraction)
    assert effect.effective_capacity_requests_per_s == pytest.approx(12 / 1.01 / (1 + effect.hit_fraction / 2))
    assert effect.holds_with_one_down is False  # 9 of 10 requests/s
    assert effect.spares == 1  # all four up 96 % of the time; four of five 99.9 %
    assert effect.usd_per_hour_with_spares == pytest.approx(50.0)


def test_a_replica_over_two_instances_is_lost_with_either() -> None:
    effect = spot_effect(SpotFleet(8, 2, 1.0, None, 1.0, 8.0), 0.1, 3600.0)
    assert effect.units == 2
    assert effect.interruptions_per_hour == pytest.approx(0.8)
    assert effect.available_fraction == pytest.approx(1 / 1.4)
    assert effect.holds_with_one_down is None


@given(st.integers(1, 20), st.floats(0.5, 0.9999))
def test_spares_are_enough_and_no_more(units: int, up: float) -> None:
    def p(spares: int) -> float:
        n = units + spares
        return sum(math.comb(n, k) * up**k * (1 - up) ** (n - k) for k in range(units, n + 1))

    spares = spares_needed(units, up)
    assert p(spares) >= 0.99
    assert spares == 0 or p(spares - 1) < 0.99


def test_rack_by_hand() -> None:
    """Two nodes of eight H100: 2 x (8 x (691 + 160) + 1,500) W at the limit."""
    hardware = parse_hardware("2*h100x8")
    assert most_w(hardware) == pytest.approx(2 * (8 * (691 + 160) + 1500))
    assert idle_w(hardware) == pytest.approx(2 * (8 * 115 + 1500))
    power = rack_power(hardware, 12_000.0, 500.0, 4)
    assert (power.racks, power.node_w_mean, power.rack_w_mean) == (1, 6000.0, 12_000.0)  # no more nodes than planned
    alone = rack_power(parse_hardware("h100x3"), 1375.0, None, 4)
    assert (alone.node_w_mean, alone.node_w_most) == (alone.rack_w_mean, alone.rack_w_most)
    values = {quantity: value for quantity, value, _ in alone.rows()}
    assert values["Node, mean"] == values["Rack, mean"]  # rounded once, from the same figure
    assert values["Node, maximum"] == values["Rack, maximum"]
    assert rack_power(parse_hardware("5*h100x8"), 30_000.0, None, 2).racks == 3
    assert rack_power(parse_hardware("h100x4"), 3000.0, None, None).host_w_idle == 750.0  # half of the host


def day_file(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "hours.csv"
    path.write_text(text)
    return path


def test_hours_of_the_day(tmp_path: Path) -> None:
    rows = "\n".join(f"{h},{100 if 8 <= h < 16 else 400}" for h in range(24))
    day = read_hourly_carbon(day_file(tmp_path, f"hour,gco2e_per_kwh\n{rows}\n"))
    assert day.mean == pytest.approx(300.0)
    assert day.cleanest(8) == (tuple(range(8, 16)), 100.0)
    stamps = "\n".join(f"2026-01-{d:02}T{h:02}:00:00,{h * d}" for d in (1, 3) for h in range(24))
    assert (
        read_hourly_carbon(day_file(tmp_path, f"timestamp,gco2e_per_kwh\n{stamps}\n")).gco2e_per_kwh[5] == 10.0
    )  # (5 + 15) / 2


@pytest.mark.parametrize("text", ["hour,grams\n1,2\n", "hour,gco2e_per_kwh\n1,2\n", "hour,gco2e_per_kwh\n25,2\n"])
def test_hours_that_cannot_be_read_are_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(InputError):
        read_hourly_carbon(day_file(tmp_path, text))


def plan() -> Plan:
    metrics = {
        "output_tokens_per_s": 1000.0,
        "total_tokens_per_s": 4000.0,
        "e2e_s": {"mean": 5.0},
        "power": {"gpu_w_mean": 400.0},
    }
    figures = {
        "requests_per_s": 10.0,
        "capacity_requests_per_s": 20.0,
        "metrics": metrics,
        "energy": Energy(5000.0, 5.0, 2.0, None, 1.3, None, None),
        "cost": Money(36.0, None, None, "now", "test", usd_per_request=0.001),
    }
    return Plan.unstarted({"hardware": "h100x8", "replicas": 4}, None).model_copy(update=figures)


def planned(commitment: str = "on-demand", users: int | None = None) -> PricedPlan:
    hardware = parse_hardware("h100x8")
    price = Price(36.0, "now", "test", commitment=commitment)
    return PricedPlan(plan(), hardware, hardware, price, GRID, users, commitment)


def test_a_user_month_by_hand() -> None:
    """36 $/h, 730.5 h a month; 10 requests/s are 864,000 a day: 43,200 users of 20 requests."""
    found = accounts_of(Accounting(requests_per_user_day=20.0), planned()).per_user
    assert found is not None
    assert found.users == pytest.approx(43_200.0)
    assert found.usd_per_user_month == pytest.approx(36 * 730.5 / 43_200)
    at_once = accounts_of(Accounting(), planned(users=100)).per_user
    assert at_once is not None
    assert at_once.usd_per_user_month == pytest.approx(36 * 730.5 / 100)
    assert accounts_of(Accounting(), planned()).per_user is None


def test_an_interruption_rate_is_never_made_up() -> None:
    spot = accounts_of(Accounting(), planned("spot")).spot
    assert isinstance(spot, UnknownSpot)
    assert "accounting.spot_interruptions" in spot.note
    assert accounts_of(Accounting(), planned()).spot is None
    hours = accounts_of(Accounting(), planned()).carbon_hours
    assert hours is not None
    assert hours.source is None
    known = accounts_of(Accounting(spot_interruptions=0.1, spot_recovery_s=360.0), planned("spot")).spot
    assert isinstance(known, SpotAccount)
    assert known.available_fraction == pytest.approx(1 / 1.01)  # one instance


@pytest.mark.parametrize(("lost", "survives"), [(0, None), (1, 1), (2, 2)])
def test_the_loss_of_an_instance_agrees_with_the_loss_that_the_plan_survives(lost: int, survives: int | None) -> None:
    """One instance holds both replicas: surviving one of them says nothing about it, surviving both does."""
    priced = planned("spot")
    survival = Survival(replicas_left=2 - lost, met=True) if lost else None
    block = priced.plan.deployment | {"replicas": 2}
    changed = priced.plan.model_copy(update={"deployment": block, "survival": survival})
    interrupted = Accounting(spot_interruptions=0.1, spot_recovery_s=360.0)
    found = accounts_of(interrupted, dataclasses.replace(priced, plan=changed)).spot
    assert isinstance(found, SpotAccount)
    assert (found.units, found.replicas_per_unit, found.survives_replicas) == (1, 2, survives)
    assert found.holds_with_one_down is (lost == 2)
    (text,) = [detail for name, _, detail in found.rows() if "down" in name]
    assert ("2 replicas are lost with one instance" in text) is (lost == 1)


def test_the_block_is_read_back_as_it_was_written() -> None:
    given = Accounting(owned=OwnedHardware(capex=100_000.0, years=4.0), spot_interruptions=0.1, spot_recovery_s=360.0)
    for commitment, accounts in (("spot", given), ("spot", Accounting()), ("on-demand", Accounting(nodes_per_rack=2))):
        block = accounts_of(accounts, planned(commitment))
        again = PlanAccounts.model_validate_json(json.dumps(block.document()))
        assert again == block
        assert again.document() == block.document()
    owned = accounts_of(given, planned()).document()["owned"]
    assert owned["given"]["residual"] == 0.0  # defaults are written too
    assert owned["share_of_hardware_named"] == 1.0


def test_the_screen_says_what_was_asked_and_no_more() -> None:
    section = AccountsSection()
    assert list(section.screen(accounts_of(Accounting(), planned()), plan())) == []
    given = Accounting(owned=OwnedHardware(capex=100_000.0, years=4.0), requests_per_user_day=20.0, nodes_per_rack=4)
    told = dict(section.screen(accounts_of(given, planned()), plan()))
    assert {"Per user", "Owned", "Rack"} <= set(told)
    assert "43,200 users" in told["Per user"]


def test_a_price_asked_for_by_name_is_known_or_refused_with_the_nearest() -> None:
    require_price(parse_hardware("rtx4090"), Tariff())  # nothing named: unknown is unknown
    for text, tariff, near in (
        ("h100x8", Tariff(commitment="reserved-1y"), "tariff.discount"),
        ("l40s", Tariff(cloud="azure"), "tariff.cloud=aws"),
        ("rtx4090", Tariff(cloud="aws"), "--price"),
        ("a100-80gbx8", Tariff(commitment="reserved-3y"), "reserved-1y"),
    ):
        with pytest.raises(InputError) as caught:
            require_price(parse_hardware(text), tariff)
        assert near in str(caught.value.nearest)
    require_price(parse_hardware("h100x8"), Tariff(commitment="reserved-1y", discount=0.37))


@pytest.mark.parametrize(
    "wrong",
    [
        {"commitment": "spott"},
        {"discount": 0.3},
        {"commitment": "spot", "usd_per_hour": 3.0},
        {"commitment": "reserved-1y", "discount": 1.5},
        {"commitment": "reserved-1y", "reading": "spot"},
    ],
)
def test_a_tariff_that_contradicts_itself_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        Tariff(**wrong)


def test_a_request_refuses_accounts_that_do_not_fit_it() -> None:
    slos = parse_slos(["ttft.p99=2s"])
    for accounts, rest in (
        (Accounting(requests_per_user_day=5.0), {"users": 10}),
        (Accounting(spot_interruptions=0.1), {}),
        (Accounting(owned=OwnedHardware(capex=1.0, years=1.0)), {"hardware": "h100x8,h200x8"}),
    ):
        with pytest.raises(InputError):
            PlanRequest(**{"model": "llama3.1-8b", "hardware": "h100x8", "slos": slos, "accounting": accounts} | rest)  # type: ignore[arg-type]
    with pytest.raises(InputError):
        Accounting(spot_interruptions=-1.0)


def test_offers_say_of_which_instances_they_are() -> None:
    hardware = parse_hardware("h100x8")
    rows = price_rows(RentalNeed.of(hardware, together=1), 1000.0, 4000.0, lambda _: 2.0)
    single = next(r for r in rows if r.cloud == "verda" and r.contract == "on demand")
    assert (single.accelerators_per_instance, single.instances) == (1, 8)
    assert (single.grid_region, single.place) == ("fi", "verda FIN-02")
    assert single.gco2e_per_million_output_tokens == pytest.approx(2.0 * 79)
    parts = [RentedPart("1H100", 1, 8, 2.29), RentedPart("p5.48xlarge", 8, 1, 55.04)]
    assert rented_words(parts) == "8 x 1H100 (1 GPU each) at $2.29/h each + p5.48xlarge (8 GPUs) at $55.04/h"
    assert {"on demand", "spot", "reserved 3 years", "owned"} <= {r.contract for r in rows}
    assert all((r.cloud is None) == (r.estimate is not None) for r in rows)
    assert all(r.cloud is not None for r in rows if r.contract in ("on demand", "spot", "reserved 1 year"))
    two = rental_price(RentalNeed.of(parse_hardware("2*h100x8")), cloud="aws")
    assert two is not None
    assert two.n_instances == 2
