"""The prices of a plan by region on the screens of all kinds of models: contract, price and carbon of each place."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from catalogs.ui.terminal import LABEL, Line
from catalogs.ui.words import counted, digits
from planner.economics.money import CONTRACT_WORDS, Money, RegionPrice

#: Maximum number of regions in the table on the screen.
_MAX_REGIONS: Final = 5

#: Below the table where the request states a grid.
OWN_GRID: Final = "carbon here is that of each region's own grid; the line Energy has that of the grid you gave"


def region_lines(
    prices: Sequence[RegionPrice], grams: Sequence[float | None], per: str, cost: Money | None, width: int
) -> Iterator[Line]:
    """Yield a table of the regions that sell a plan under its commitment, and of other commitments' cheapest price.

    Nothing is yielded under the user's own price, and for answers of versions without the prices of regions.

    Args:
        prices: The prices, cheapest first.
        grams: The carbon of `per` in the region of each price, gCO2e; None where it is unknown.
        per: That of which the carbon is stated, for the head: "M output" tokens, "1,000 images".
        cost: The price of the plan; None if it is unknown.
        width: Columns of the screen.
    """
    if cost is None or cost.cloud is None:
        return
    own, priced = CONTRACT_WORDS.get(cost.commitment or "", ""), list(zip(prices, grams, strict=True))
    same = [pair for pair in priced if pair[0].contract == own]
    other = {pair[0].contract: pair for pair in reversed(priced) if pair[0].contract != own}
    shown = [*same[:_MAX_REGIONS], *sorted(other.values(), key=lambda pair: pair[0].usd_per_hour)]
    if len(same) < 2 and not other:
        return
    rows = [["cloud and region", "contract", "per hour", f"gCO2e per {per}", "per month"]]
    for p, carbon in shown:
        month = "unknown" if p.usd_per_month is None else f"${p.usd_per_month:,.0f}"
        emitted = "unknown" if carbon is None else f"{digits(carbon)} ({p.grid_region})"
        rows.append([p.place, p.contract, f"${p.usd_per_hour:,.2f}", emitted, month])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    if sum(widths) + 2 * len(widths) - 2 > width - LABEL:  # a narrow terminal
        rows, widths = [row[:-1] for row in rows], widths[:-1]
    for n, row in enumerate(rows):
        cells = [text.ljust(w) if i < 2 else text.rjust(w) for i, (text, w) in enumerate(zip(row, widths, strict=True))]
        yield "" if n else "Regions", "  ".join(cells)
    if len(same) > _MAX_REGIONS:
        more = counted(len(same) - _MAX_REGIONS, "more region")
        yield "", f"and {more} (prices in the JSON file, or plan report)"
