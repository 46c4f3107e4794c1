"""The grids on the screen: that of the plan is in every table of carbon, and the table of regions says whose it has."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from planner.cli.screens.plan import _price_lines
from planner.cli.screens.report import carbon_table
from planner.report.material import CarbonFigures


def test_the_grid_of_the_plan_is_shown_with_the_cleanest() -> None:
    others = [CarbonFigures(f"g{i}", f"Grid {i}", 10.0 * i, 100.0 * i, "", False) for i in range(1, 12)]
    own = CarbonFigures("own.csv", "own.csv", 200.0, 2000.0, "", True)
    table = carbon_table([*others, own])
    names = list(table.columns[0].cells)
    assert names == [*(f"Grid {i}" for i in range(1, 9)), "own.csv (the plan's)"]
    assert next(iter(carbon_table([own, *others]).columns[0].cells)) == "own.csv (the plan's)"


@pytest.mark.parametrize(("grid", "hours", "says"), [(None, None, False), ("de", None, True), (None, "own.csv", True)])
def test_the_regions_say_that_their_carbon_is_not_of_the_given_grid(
    grid: str | None, hours: str | None, says: bool
) -> None:
    price = SimpleNamespace(
        contract="on demand",
        place="verda FIN-02",
        usd_per_hour=1.0,
        usd_per_month=730.0,
        gco2e_per_million_output_tokens=10.0,
        grid_region="fi",
    )
    request = SimpleNamespace(tariff=SimpleNamespace(grid=grid), accounting=SimpleNamespace(carbon_hours=hours))
    answer = SimpleNamespace(prices=[price, price], request=request)
    cost = SimpleNamespace(cloud="verda", commitment="on_demand")
    text = " ".join(words for _, words in _price_lines(cast(Any, answer), cast(Any, cost), 100))
    assert "verda FIN-02" in text
    assert ("each region's own grid" in text) == says
