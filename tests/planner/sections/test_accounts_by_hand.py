"""The accounts of a plan by hand: months of users, restarts of spot instances, hours of carbon, and what is shown."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from catalogs.deployments.autoscaling import ColdStart
from catalogs.hardware.catalog import parse_hardware
from planner.answer.plan_schema import Memory, Plan
from planner.economics.money import Money
from planner.economics.ownership import OwnedHardware
from planner.problem.accounting import Accounting
from planner.sections.accounts import (
    CLEAN_HOURS,
    NEW_NODE_S,
    AccountsSection,
    CarbonHours,
    PlanAccounts,
    SpotAccount,
    accounts_of,
)
from tests.planner.known_plan import MEMORY
from tests.planner.sections.test_accounts import plan, planned


def spot(given: Accounting, **figures: object) -> SpotAccount:
    priced = planned("spot")
    found = accounts_of(given, replace(priced, plan=priced.plan.model_copy(update=figures))).spot
    assert isinstance(found, SpotAccount)
    return found


def test_until_a_replacement_serves_a_new_node_loads_the_weights_of_a_replica() -> None:
    """Four replicas on eight accelerators of 16 GB each: 32 GB of weights to fetch."""
    given = Accounting(spot_interruptions=0.1)
    found = spot(given, memory=Memory(**MEMORY))  # type: ignore[arg-type]
    assert NEW_NODE_S == 120.0
    assert found.recovery_s == pytest.approx(120 + 10 / 0.02 + 32 / 0.9 + 57 + 7)
    assert found.recovery_s == ColdStart(node_s=120.0).seconds(32e9)
    assert "a new node" in found.recovery_source
    assert spot(given).recovery_s == ColdStart(node_s=120.0).seconds(0.0)  # no memory is known
    one = {"deployment": plan().deployment | {"replicas": 1}, "memory": Memory(**MEMORY)}  # type: ignore[arg-type]
    assert spot(given, **one).recovery_s == ColdStart(node_s=120.0).seconds(128e9)


def test_a_given_recovery_is_taken_as_it_is() -> None:
    """One instance, a restart an hour, 3,600 s: up half of the time; 5 s in flight."""
    found = spot(Accounting(spot_interruptions=1.0, spot_recovery_s=3600.0))
    assert (found.recovery_s, found.recovery_source, found.instances, found.units) == (3600.0, "given", 1, 1)
    assert found.available_fraction == pytest.approx(0.5)
    assert found.hit_requests_per_hour == pytest.approx(36_000 * 5 / 3600, rel=1e-3)
    assert found.interruptions_per_instance_hour == 1.0
    assert found.usd_per_hour_with_spares == pytest.approx(36.0 * (1 + found.spares))
    no_latency = spot(
        Accounting(spot_interruptions=1.0, spot_recovery_s=3600.0), metrics={"e2e_s": {}, "output_tokens_per_s": 1.0}
    )
    assert no_latency.hit_fraction == 0.0


def test_what_fails_is_named_and_whether_the_rest_holds() -> None:
    given = Accounting(spot_interruptions=1.0, spot_recovery_s=3600.0)
    rows = {name: value for name, value, _ in spot(given).rows()}
    assert rows["Meets the objectives with one instance down"] == "NO"  # the only one
    assert rows["Availability of one instance"] == "50.00 %"
    unknown = {name: value for name, value, _ in spot(given, capacity_requests_per_s=None).rows()}
    assert unknown["Meets the objectives with one instance down"] == "unknown"
    split = spot(given).model_copy(update={"units": 2, "instances": 4, "holds_with_one_down": True})
    assert {name: value for name, value, _ in split.rows()}["Meets the objectives with one replica down"] == "yes"


def test_hours_of_carbon_are_kilowatt_hours_times_grams(tmp_path: Path) -> None:
    """2 kWh per million tokens; 100 g/kWh in eight hours, 400 in the others."""
    path = tmp_path / "hours.csv"
    path.write_text("hour,gco2e_per_kwh\n" + "".join(f"{h},{100 if 8 <= h < 16 else 400}\n" for h in range(24)))
    found = accounts_of(Accounting(carbon_hours=str(path)), planned()).carbon_hours
    assert isinstance(found, CarbonHours)
    assert found.gco2e_per_million_output_tokens == [200.0 if 8 <= h < 16 else 800.0 for h in range(24)]
    assert found.mean_gco2e_per_million_output_tokens == pytest.approx(600.0)
    assert (found.cleanest_hours, CLEAN_HOURS) == (list(range(8, 16)), 8)
    assert found.cleanest_gco2e_per_million_output_tokens == pytest.approx(200.0)
    shown = dict(AccountsSection().screen(accounts_of(Accounting(carbon_hours=str(path)), planned()), plan()))
    assert "600 g" in shown["Carbon"]


def test_users_pay_the_hours_of_a_month() -> None:
    """36 $/h for 730.5 hours; 10 requests/s are 864,000 a day."""
    shared = accounts_of(Accounting(), planned(users=100)).per_user
    assert shared is not None
    assert (shared.users, shared.hours_per_month) == (100.0, 730.5)
    assert shared.requests_per_user_day == pytest.approx(8640.0)
    assert shared.usd_per_user_month == pytest.approx(262.98)
    words = "$262.98 for each of 100 users, with 8,640 requests a day at the planned 10 requests/s"
    assert shared.rows()[0][1] == words
    earlier = shared.model_copy(update={"requests_per_s": None})
    assert earlier.rows()[0][1] == words.partition(" at the planned")[0]
    each = accounts_of(Accounting(requests_per_user_day=86.4), planned()).per_user
    assert each is not None
    assert each.users == pytest.approx(10_000.0)
    assert each.requests_per_user_day == pytest.approx(86.4)
    unpriced = accounts_of(Accounting(), replace(planned(users=100), price=None)).per_user
    assert unpriced is not None
    assert unpriced.usd_per_user_month is None
    assert accounts_of(Accounting(spot_interruptions=0.1), replace(planned("spot"), price=None)).spot is None


def test_power_of_the_rack_is_that_of_the_plan() -> None:
    found = accounts_of(Accounting(nodes_per_rack=4), planned()).rack
    assert found is not None
    assert (found.node_w_mean, found.gpu_w_mean, found.nodes_per_rack) == (5000.0, 400.0, 4)
    bare = planned()
    no_power = accounts_of(Accounting(), replace(bare, plan=bare.plan.model_copy(update={"metrics": None}))).rack
    assert no_power is not None
    assert no_power.gpu_w_mean is None
    unknown = accounts_of(Accounting(), replace(bare, plan=bare.plan.model_copy(update={"energy": None})))
    assert (unknown.rack, unknown.carbon_hours, unknown.owned) == (None, None, None)


def labels(block: PlanAccounts, shown: Plan) -> list[str]:
    return [label for label, _ in AccountsSection().screen(block, shown)]


def test_the_screen_has_a_line_for_each_account_with_inputs() -> None:
    section, block = AccountsSection(), accounts_of(Accounting(), planned(users=100))
    assert labels(block, plan()) == ["Per user", "Per request"]
    unpriced = plan().model_copy(update={"cost": Money(36.0, None, None, "now", "test")})
    assert labels(block, unpriced) == ["Per user"]
    assert labels(block, plan().model_copy(update={"cost": None})) == ["Per user"]
    assert labels(accounts_of(Accounting(), planned()), plan()) == []
    assert labels(accounts_of(Accounting(nodes_per_rack=1), planned()), plan()) == ["Rack"]
    several = replace(planned(), hardware=parse_hardware("2*h100x8"), whole=parse_hardware("2*h100x8"))
    assert labels(accounts_of(Accounting(), several), plan()) == ["Rack"]
    owned = accounts_of(Accounting(owned=OwnedHardware(capex=100_000.0, years=4.0)), planned())
    assert labels(owned, plan()) == ["Owned", ""]
    spot_block = accounts_of(Accounting(spot_interruptions=0.1), planned("spot"))
    assert labels(spot_block, plan()) == ["Spot"]
    page = " ".join(map(str, section.page(spot_block, plan())))
    assert "Interruptions" in page
    assert "Per 1,000 requests" in page
    assert "Node, mean" in page
    assert "Capital" not in page
    assert "Capital" in " ".join(map(str, section.page(owned, plan())))
    none = spot_block.model_copy(update={"rack": None, "carbon_hours": None})
    assert "Node" not in " ".join(map(str, section.page(none, plan())))


def page_of(cost: Money | None) -> str:
    block = accounts_of(Accounting(), planned()).model_copy(update={"rack": None, "carbon_hours": None})
    return " ".join(map(str, AccountsSection().page(block, plan().model_copy(update={"cost": cost}))))


def test_a_price_is_shown_with_its_source() -> None:
    assert "no known price for this hardware" in page_of(None)
    assert "no known price for this hardware" in page_of(Money(None, None, None, None, None))
    of_table = page_of(Money(36.0, 10.0, 2.5, "2026-01-01", "table", None, 3.5, 0.002, "reserved-1y"))
    for words in ("reserved 1 year", "table, 2026-01-01", "$36", "$10", "$2.5", "$3.5", "$2.00"):
        assert words in of_table
    given = page_of(Money(36.0, 10.0, 2.5, "given", "given by the user"))
    assert "given on the command line" in given
    assert "1,000 requests" not in given


@pytest.mark.parametrize(("named", "share"), [(None, 1.0), ("2*h100x8", 0.5)])
def test_owned_hardware_is_charged_by_the_part_that_the_plan_takes(named: str | None, share: float) -> None:
    priced = planned()
    prices = SimpleNamespace(price=lambda _: priced.price, grid=lambda *_: priced.grid, own_grid=lambda: priced.grid)
    request = SimpleNamespace(
        accounting=Accounting(owned=OwnedHardware(capex=100_000.0, years=4.0, upkeep=1000.0)),
        users=None,
        tariff=SimpleNamespace(committed="on-demand"),
    )
    chosen = SimpleNamespace(
        request=request,
        candidate=SimpleNamespace(hardware=priced.hardware),
        plan=priced.plan,
        named=None if named is None else parse_hardware(named),
        prices=prices,
    )
    owned = AccountsSection().compute(chosen).owned  # type: ignore[arg-type]
    assert owned is not None
    assert owned.share_of_hardware_named == share
    assert (owned.given.capex, owned.given.upkeep) == (share * 100_000, share * 1000)
