"""A plan is billed for the instances that hold what it uses; the user's own price is divided in proportion."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from catalogs.deployments.layout import Layout
from catalogs.economics.electricity import DEFAULT_PUE, DEFAULT_REGION
from catalogs.hardware.catalog import parse_hardware
from planner.economics.ownership import OwnedHardware
from planner.evaluation.closed_forms.bounds import NOT_RENTED, RentalBound
from planner.problem.accounting import Accounting
from planner.problem.candidate import Candidate, Split
from planner.problem.price_list import PriceList, rental_need
from planner.problem.request import PlanRequest
from planner.problem.slo import parse_slos
from planner.problem.tariff import Tariff


def candidate(hardware: str, replicas: int, tp: int = 1, pp: int = 1, split: Split | None = None) -> Candidate:
    layout = Layout(tp, pipeline_parallel=pp)
    plain = Candidate(parse_hardware(hardware), replicas, layout, "bf16", "bf16", 256, 8192)
    return plain if split is None else replace(plain, split=split)


def prices(hardware: str, **tariff: object) -> PriceList:
    return PriceList(Tariff(**tariff), parse_hardware(hardware))  # type: ignore[arg-type]


def test_a_replica_stays_in_one_instance_and_replicas_need_not_share_one() -> None:
    for subject, together, groups in (
        (candidate("l40sx4", 3), 1, 3),
        (candidate("h100x8", 3, tp=2), 2, 3),
        (candidate("2*h100x8", 1, tp=8, pp=2), 8, 2),  # a replica over two nodes has a part in each
        (candidate("h100x8", 3, split=Split(1, Layout(2))), 5, 1),  # prefill and decode share the node
        (candidate("a100-80gb:2g.20gbx1", 1), 1, 1),
    ):
        need = rental_need(subject)
        assert (need.together, need.groups) == (together, groups)


def test_a_part_of_the_named_hardware_is_billed_as_that_part() -> None:
    """Three replicas on a node of eight H200 rent three accelerators: 3.39 + 6.78 US dollars per hour."""
    part = prices("h200x8").price(candidate("h200x8", 3))
    whole = prices("h200x8").price(candidate("h200x8", 8))
    assert part is not None
    assert whole is not None
    assert part.usd_per_hour == pytest.approx(10.17)
    assert (part.idle_accelerators, sum(i.count * i.accelerators for i in part.instances)) == (0, 3)
    assert part.usd_per_hour < whole.usd_per_hour


@given(st.integers(1, 8), st.sampled_from(["h100x8", "l40sx8", "h200x8", "b200x8", "a10gx8"]))
def test_another_replica_never_lowers_the_bill(replicas: int, hardware: str) -> None:
    billed = prices(hardware)
    one, more = (billed.usd_per_hour_of_replicas(candidate(hardware, 1), n) for n in (replicas, replicas + 1))
    assert one is not None
    assert more is not None
    assert one <= more


def test_the_users_own_price_is_divided_by_the_hardware() -> None:
    own = prices("h100x8", usd_per_hour=24.0)
    part = own.price(candidate("h100x4", 4))
    assert part is not None
    assert part.usd_per_hour == pytest.approx(12.0)
    assert "in proportion: 4 of 8" in part.note
    assert own.usd_per_hour_of_replicas(candidate("h100x8", 8), 2) == pytest.approx(6.0)
    assert own.usd_per_hour(candidate("h100x8", 3)) == pytest.approx(24.0)  # the price of all eight


def test_carbon_is_of_the_region_of_the_price_unless_given() -> None:
    subject = candidate("l40sx4", 3)
    assert prices("l40sx4").grid(subject).grid.region == "fi"
    assert prices("l40sx4", region="us").grid(subject).grid.region == "us-va"
    assert prices("l40sx4", grid="de").grid(subject).grid.region == "de"
    assert prices("l40sx4", usd_per_hour=5.0).grid(subject).known is False
    assert prices("l40sx4").own_grid().region == "us"  # the place of hardware that the user owns is not known


def test_hours_of_the_users_grid_count_before_the_region(tmp_path: Path) -> None:
    """Eight hours of 100 g/kWh and sixteen of 400 are 300 on average, in every copy of the request."""
    file = tmp_path / "hours.csv"
    file.write_text("hour,gco2e_per_kwh\n" + "".join(f"{h},{100 if h < 8 else 400}\n" for h in range(24)))
    asked = PlanRequest(
        model="llama3.1-8b",
        hardware="l40sx4",
        slos=parse_slos(["p99=2s"]),
        tariff=Tariff(grid="de"),
        accounting=Accounting(carbon_hours=str(file)),
    )
    assert asked.scenario()["tariff"] == {"grid": "de"}
    assert "tariff" not in asked.replace(tariff=Tariff()).scenario()
    for request in (asked, asked.replace(seed=3), pickle.loads(pickle.dumps(asked))):
        billed = PriceList.of(request.tariff, parse_hardware("l40sx4"), request.accounting)
        for found in (billed, billed.of_other(parse_hardware("l4x4"))):
            assert found.grid(candidate("l40sx4", 3)).grid.gco2e_per_kwh == pytest.approx(300.0)
    file.write_text(file.read_text().replace("400", "4000"))
    assert billed.grid(candidate("l40sx4", 3)).grid.gco2e_per_kwh == pytest.approx(2700.0)  # read again
    without = asked.replace(accounting=Accounting())
    placed = PriceList.of(without.tariff, parse_hardware("l40sx4"), without.accounting)
    assert placed.grid(candidate("l40sx4", 3)).grid.region == "de"


def test_a_candidate_over_the_budget_or_without_an_instance_is_ruled_out() -> None:
    bound = RentalBound(prices("l40sx4"), 5.0)
    assert bound.discard(candidate("l40sx4", 3)) is None
    over = bound.discard(candidate("l40sx4", 4))
    assert over is not None
    assert (over.constraint, over.limit) == (NOT_RENTED, 5.0)
    assert over.value == pytest.approx(4 * 1.5484)
    nowhere = RentalBound(prices("h100x8", cloud="verda"), None)
    assert nowhere.discard(candidate("h100x8", 8)) is None
    missing = nowhere.discard(candidate("h100x8", 1, tp=8))
    assert missing is not None
    assert "verda" in missing.reason


def test_the_site_of_owned_hardware_supplies_its_electricity() -> None:
    """Rented hardware stands in the region of its price; owned hardware where the user says, with the user's PUE."""
    hardware = parse_hardware("h100x8")
    rented = PriceList(Tariff(), hardware)
    assert rented.grid(hardware).known
    assert rented.grid(hardware).grid.region != DEFAULT_REGION
    assert rented.pue == DEFAULT_PUE
    unplaced = PriceList(Tariff(), hardware, OwnedHardware(capex=1e5, years=4.0))
    assert unplaced.grid(hardware).grid == unplaced.own_grid()
    assert "owned" in unplaced.grid(hardware).reason
    assert not unplaced.grid(hardware).known
    assert unplaced.pue == DEFAULT_PUE
    placed = PriceList(Tariff(grid="fr"), hardware, OwnedHardware(capex=1e5, years=4.0, pue=1.05))
    assert (placed.grid(hardware).grid.region, placed.grid(hardware).known) == ("fr", True)
    assert placed.of_other(parse_hardware("b200x8")).pue == placed.pue == 1.05
