"""Prices of all clouds beside a plan: the table divided by the plan's rates, and instances in words."""

from __future__ import annotations

import pytest

from catalogs.economics.prices import Price, list_prices
from catalogs.hardware.catalog import parse_hardware
from planner.economics.money import CONTRACT_WORDS, OWNED, instance_words, n_instances, price_rows


def test_rows_of_prices_are_the_table_divided_by_the_rates() -> None:
    rows = price_rows(parse_hardware("h100x8"), 1000.0, 4000.0)
    assert rows == sorted(rows, key=lambda row: (row.usd_per_hour, row.cloud))
    for row in rows:
        assert row.usd_per_million_output_tokens == pytest.approx(row.usd_per_hour / 3.6, rel=1e-12)
        assert row.usd_per_million_total_tokens == pytest.approx(row.usd_per_hour / 14.4, rel=1e-12)
        assert row.instance != ""
        assert row.region != ""
        assert row.note != ""
        assert (row.instances is None) == (row.accelerators_per_instance is None)
    aws = next(r for r in rows if r.cloud == "aws" and r.contract == "on demand")
    assert (aws.instance, aws.instances, aws.accelerators_per_instance) == ("p5.48xlarge", 1, 8)
    owners = {r.cloud for r in list_prices() if r.kind == "ownership"}
    contracts = {cloud: {r.contract for r in rows if r.cloud == cloud} for cloud in owners}
    assert contracts.pop("tco-3-year") == {CONTRACT_WORDS["reserved-3y"]}
    assert all(found <= {OWNED} for found in contracts.values())
    assert any(r.contract == OWNED for r in rows)
    assert price_rows(parse_hardware("xeon-8480"), 1.0, 1.0) == []
    assert all(r.usd_per_million_output_tokens is None for r in price_rows(parse_hardware("h100x8"), 0.0, 0.0))


@pytest.mark.parametrize(
    ("hardware", "per_instance", "instances"),
    [("h100x8", 8, 1), ("h100x8", 4, 2), ("h100x8", 3, 3), ("2*h100x8", 8, 2), ("3*h100x4", 1, 12), ("h100", 8, 1)],
)
def test_instances_are_counted_for_each_node(hardware: str, per_instance: int, instances: int) -> None:
    price = Price(1.0, "now", "test", accelerators=per_instance)
    assert n_instances(price, parse_hardware(hardware)) == instances


def test_a_price_of_no_instance_counts_nodes() -> None:
    hardware = parse_hardware("3*h100x8")
    assert n_instances(None, hardware) == n_instances(Price(1.0, "now", "test"), hardware) == 3


def test_instances_in_words() -> None:
    assert instance_words(None, 8, 2) == instance_words("", 8, 2) == ""
    assert instance_words("p5", None, 2) == "p5"
    assert instance_words("p5", 8, None) == instance_words("p5", 8, 1) == "p5 (8 GPUs)"
    assert instance_words("g6", 1, 2) == "2 x g6 (1 GPU each)"
    assert instance_words("p5", 8, 3) == "3 x p5 (8 GPUs each)"
