"""Which hardware is looked at: named, any, within a budget, with a price."""

from __future__ import annotations

import pytest

from catalogs.economics.prices import Price
from catalogs.errors import InputError
from catalogs.hardware.catalog import parse_hardware, with_count
from catalogs.hardware.specs import Hardware
from planner.problem.hardware_choice import Choices, choose_hardware
from planner.problem.tariff import Tariff, least_price


def price_of(hardware: Hardware) -> Price | None:
    return least_price(hardware, Tariff())


def texts(found: Choices) -> tuple[str, ...]:
    return tuple(hardware.text for hardware in found.hardware)


def test_one_name_is_taken_as_it_is_whatever_it_costs() -> None:
    assert texts(choose_hardware("rtx4090x2", price_of, True)) == ("rtx4090x2",)


def test_several_names_in_their_order_once_each() -> None:
    found = choose_hardware("h100x8, h200x8,h100x8", price_of, True)
    assert texts(found) == ("h100x8", "h200x8")
    assert found.notices == ()


def test_what_has_no_price_is_left_out_and_said_only_where_cost_is_compared() -> None:
    assert price_of(parse_hardware("rtx4090")) is None
    found = choose_hardware("h100x8,rtx4090x8", price_of, True)
    assert texts(found) == ("h100x8",)
    assert "rtx4090" in found.notices[0]
    assert len(choose_hardware("h100x8,rtx4090x8", price_of, False).hardware) == 2


def test_any_is_the_largest_of_every_gpu_that_the_budget_pays_for() -> None:
    found = choose_hardware("any", price_of, True, budget=10.0)
    prices = [price_of(hardware) for hardware in found.hardware]
    assert all(p is not None and p.usd_per_hour <= 10.0 for p in prices)
    names = [hardware.accelerator.name for hardware in found.hardware]
    assert len(names) == len(set(names)) >= 10
    for hardware in found.hardware:
        twice = 2 * hardware.accelerators_per_node
        if twice <= min(hardware.node.max_accelerators, 8):
            larger = price_of(with_count(hardware, twice))
            assert larger is None or larger.usd_per_hour > 10.0


def test_a_named_node_over_the_budget_is_cut_down_to_what_it_pays_for() -> None:
    whole = price_of(parse_hardware("h100x8"))
    assert whole is not None
    found = choose_hardware("h100x8", price_of, True, budget=whole.usd_per_hour / 2)
    assert [hardware.accelerators_per_node for hardware in found.hardware] == [4]


@pytest.mark.parametrize(("text", "budget", "says"), [("h100x8", 0.5, "cheapest"), ("any", 0.01, "--max-usd-per-hour")])
def test_a_budget_below_the_cheapest_is_refused_with_what_would_do(text: str, budget: float, says: str) -> None:
    with pytest.raises(InputError, match=says):
        choose_hardware(text, price_of, True, budget)


def test_a_choice_without_any_price_is_refused() -> None:
    with pytest.raises(InputError, match="no known price"):
        choose_hardware("rtx4090x2,rtx4090x4", price_of, True)


def test_an_empty_name_is_refused() -> None:
    with pytest.raises(InputError, match="commas"):
        choose_hardware("h100x8,", price_of, True)


def test_any_leaves_out_what_the_engine_does_not_run_on_and_says_so() -> None:
    found = choose_hardware("any", price_of, False, engine="trtllm")
    assert {h.accelerator.maker for h in found.hardware} == {"nvidia"}
    assert "not compared, trtllm does not run on them: b60, gaudi3, mi300x" in found.notices[0]
    everything = choose_hardware("any", price_of, False, engine="vllm")
    assert {h.accelerator.maker for h in everything.hardware} == {"nvidia", "amd", "intel", "google"}
