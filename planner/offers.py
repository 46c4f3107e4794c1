"""What the same hardware costs elsewhere: every cloud's on-demand and spot price, and owning it."""

from __future__ import annotations

from typing import Any, Final

from catalogs.hardware import parse_hardware
from catalogs.prices import Price, Reading, list_clouds, list_prices, node_price
from planner.cost import SECONDS_PER_HOUR, per_million

#: (reading of the table, what it is called) of a cloud; ownership rows have no spot price.
READINGS: Final[tuple[tuple[Reading, str], ...]] = (("cheapest", "on demand"), ("spot", "spot"))
OWNED: Final = "owned"


def price_rows(hardware: str, metrics: dict[str, Any]) -> list[dict[str, object]]:
    """One row per cloud and kind of contract that has a price for `hardware`, the cheapest first; [] where none has.

    metrics: `output_tokens_per_s` and `total_tokens_per_s` of the plan, which the prices per million tokens are of.
    """
    found = parse_hardware(hardware)
    owners = {r.cloud for r in list_prices() if r.kind == "ownership"}
    rows = []
    for cloud in list_clouds():
        for reading, contract in READINGS:
            price = node_price(found, reading, cloud)
            if price is not None:
                rows.append(_row(cloud, OWNED if cloud in owners else contract, price, metrics))
    return sorted(rows, key=lambda r: (float(str(r["usd_per_hour"])), str(r["cloud"])))


def _row(cloud: str, contract: str, price: Price, metrics: dict[str, Any]) -> dict[str, object]:
    per_s = price.usd_per_hour / SECONDS_PER_HOUR
    return {
        "cloud": cloud,
        "contract": contract,
        "usd_per_hour": price.usd_per_hour,
        "usd_per_million_output_tokens": per_million(per_s, metrics["output_tokens_per_s"]),
        "usd_per_million_total_tokens": per_million(per_s, metrics["total_tokens_per_s"]),
        "instance": price.instance or None,
        "region": price.region or None,
        "as_of": price.as_of,
        "source": price.source,
        "note": price.note or None,
    }
