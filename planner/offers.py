"""What the same hardware costs elsewhere: every cloud's price by commitment, of which instances, and owning it."""

from __future__ import annotations

from typing import Any, Final

from catalogs.hardware import Hardware, parse_hardware
from catalogs.prices import COMMITMENTS, Price, list_clouds, list_prices, node_price
from planner.cost import SECONDS_PER_HOUR, per_million

#: What a commitment is called in tables.
CONTRACT_WORDS: Final = {
    "on-demand": "on demand",
    "spot": "spot",
    "reserved-1y": "reserved 1 year",
    "reserved-3y": "reserved 3 years",
}
OWNED: Final = "owned"
#: InferenceX's third tier is a rental, kept beside what owning costs.
_RENTAL: Final = "tco-3-year"
_RENTAL_COMMITMENT: Final = "reserved-3y"


def price_rows(hardware: str, metrics: dict[str, Any]) -> list[dict[str, object]]:
    """One row per cloud and commitment that has a price for `hardware`, the cheapest first; [] where none has.

    metrics: `output_tokens_per_s` and `total_tokens_per_s` of the plan, which the prices per million tokens are of.
    """
    found = parse_hardware(hardware)
    owners = {r.cloud for r in list_prices() if r.kind == "ownership"} - {_RENTAL}
    rows = []
    for cloud in list_clouds():
        for commitment in COMMITMENTS if cloud != _RENTAL else (_RENTAL_COMMITMENT,):
            price = node_price(found, cloud=cloud, commitment=commitment)  # type: ignore[arg-type]
            if price is not None:
                contract = OWNED if cloud in owners else CONTRACT_WORDS[commitment]
                rows.append(_row(cloud, contract, price, metrics) | _instances(price, found))
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


def _instances(price: Price, hardware: Hardware) -> dict[str, object]:
    """How many accelerators an instance has, and how many instances make the hardware (part of one counts as one)."""
    if price.accelerators is None:
        return {"accelerators_per_instance": None, "instances": None}
    return {"accelerators_per_instance": price.accelerators, "instances": n_instances(price, hardware)}


def n_instances(price: Price | None, hardware: Hardware) -> int:
    """Instances that make the hardware; its nodes where the price is of no table."""
    if price is None or price.accelerators is None:
        return hardware.n_nodes
    return hardware.n_nodes * max(-(-hardware.accelerators_per_node // price.accelerators), 1)


def instance_words(instance: str | None, accelerators: int | None, instances: int | None) -> str:
    """ "8 x 1H100.80S.32V (1 GPU each)"; "" where there is no instance."""
    if not instance:
        return ""
    if accelerators is None:
        return instance
    each = f"{accelerators} GPU{'' if accelerators == 1 else 's'}"
    return f"{instance} ({each})" if not instances or instances == 1 else f"{instances} x {instance} ({each} each)"
