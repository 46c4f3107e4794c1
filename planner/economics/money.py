"""The cost of a plan from dated prices, and its energy and carbon from simulated power.

An unknown cost is None, never zero. The module also lists the prices of the same hardware on every cloud by
commitment and instance, and of owning it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from catalogs.economics.electricity import DEFAULT_PUE, Grid
from catalogs.economics.prices import COMMITMENTS, Price, list_clouds, list_prices, node_price
from catalogs.hardware.specs import Hardware
from catalogs.io.json_block import JsonBlock

SECONDS_PER_HOUR: Final = 3600.0

JOULES_PER_KWH: Final = 3.6e6

MILLION: Final = 1e6


@dataclass(frozen=True, slots=True)
class Rates:
    """The output of a deployment per second, and the power of its accelerators and hosts.

    `requests_per_s` is None if the queue grows.
    """

    output_tokens_per_s: float
    total_tokens_per_s: float
    power_w: float
    requests_per_s: float | None = None


@dataclass(frozen=True, slots=True)
class Money:
    """The cost of a plan in US dollars; None if no price is known.

    Each figure per token divides the whole cost by one kind of token, so the figures do not add up. `commitment`,
    `instance` and `accelerators_per_instance` describe the offer behind the price.
    """

    usd_per_hour: float | None
    usd_per_million_output_tokens: float | None
    usd_per_million_total_tokens: float | None
    price_as_of: str | None
    price_source: str | None
    price_note: str | None = None
    usd_per_million_input_tokens: float | None = None
    usd_per_request: float | None = None
    commitment: str | None = None
    instance: str | None = None
    accelerators_per_instance: int | None = None


@dataclass(frozen=True, slots=True)
class Energy:
    """The energy of a plan: kWh and grams include the facility (`pue`), watts and joules are at the servers."""

    w_mean: float
    j_per_output_token: float
    kwh_per_million_output_tokens: float
    gco2e_per_million_output_tokens: float | None
    pue: float
    grid_gco2e_per_kwh: float | None
    grid_source: str | None
    j_per_total_token: float | None = None
    kwh_per_million_total_tokens: float | None = None
    grid_region: str | None = None


def money(rates: Rates, price: Price | None) -> Money:
    """Return the cost per hour, per request and per million tokens at these rates, US dollars."""
    if price is None:
        return Money(None, None, None, None, None)
    per_s = price.usd_per_hour / SECONDS_PER_HOUR
    output = per_million(per_s, rates.output_tokens_per_s)
    total = per_million(per_s, rates.total_tokens_per_s)
    where = " ".join(part for part in (price.cloud, price.instance, price.region) if part)
    source = f"{price.source}: {where}" if where else price.source
    inputs = per_million(per_s, rates.total_tokens_per_s - rates.output_tokens_per_s)
    each = per_s / rates.requests_per_s if rates.requests_per_s else None
    of_what = price.commitment, price.instance or None, price.accelerators
    note = price.note or None
    return Money(price.usd_per_hour, output, total, price.as_of, source, note, inputs, each, *of_what)


def energy(rates: Rates, grid: Grid, pue: float = DEFAULT_PUE) -> Energy | None:
    """Return the energy per token at these rates; None without output tokens or a power figure."""
    if rates.output_tokens_per_s <= 0 or math.isnan(rates.power_w):
        return None
    joules, each = rates.power_w / rates.output_tokens_per_s, rates.power_w / rates.total_tokens_per_s
    kwh = joules * MILLION / JOULES_PER_KWH * pue
    of_grid = kwh * grid.gco2e_per_kwh, pue, grid.gco2e_per_kwh, grid.gco2e_source
    all_kwh = each * MILLION / JOULES_PER_KWH * pue
    return Energy(rates.power_w, joules, kwh, *of_grid, each, all_kwh, grid.region)


def per_million(amount_per_s: float, tokens_per_s: float) -> float | None:
    """Return the amount per million tokens; None if no tokens are produced."""
    return amount_per_s / tokens_per_s * MILLION if tokens_per_s > 0 else None


#: Names of commitments in tables.
CONTRACT_WORDS: Final = {
    "on-demand": "on demand",
    "spot": "spot",
    "reserved-1y": "reserved 1 year",
    "reserved-3y": "reserved 3 years",
}

OWNED: Final = "owned"

#: InferenceX's third tier is a rental, listed together with the cost of owning.
_RENTAL: Final = "tco-3-year"

_RENTAL_COMMITMENT: Final = "reserved-3y"


class PriceLine(JsonBlock):
    """The price of a plan's hardware on one cloud under one contract, per hour and per token of the plan."""

    cloud: str
    contract: str
    usd_per_hour: float
    usd_per_million_output_tokens: float | None
    usd_per_million_total_tokens: float | None
    instance: str | None
    region: str | None
    as_of: str
    source: str
    note: str | None
    accelerators_per_instance: int | None = None
    instances: int | None = None


def price_rows(hardware: Hardware, output_tokens_per_s: float, total_tokens_per_s: float) -> list[PriceLine]:
    """Return one row per cloud and commitment with a price for `hardware`, cheapest first; [] if there is none.

    The rates are the plan's: the prices per million tokens divide by them.
    """
    owners = {r.cloud for r in list_prices() if r.kind == "ownership"} - {_RENTAL}
    rows = [
        PriceLine(
            cloud=cloud,
            contract=OWNED if cloud in owners else CONTRACT_WORDS[commitment],
            usd_per_hour=price.usd_per_hour,
            usd_per_million_output_tokens=per_million(price.usd_per_hour / SECONDS_PER_HOUR, output_tokens_per_s),
            usd_per_million_total_tokens=per_million(price.usd_per_hour / SECONDS_PER_HOUR, total_tokens_per_s),
            instance=price.instance or None,
            region=price.region or None,
            as_of=price.as_of,
            source=price.source,
            note=price.note or None,
            accelerators_per_instance=price.accelerators,
            instances=None if price.accelerators is None else n_instances(price, hardware),
        )
        for cloud in list_clouds()
        for commitment in (COMMITMENTS if cloud != _RENTAL else (_RENTAL_COMMITMENT,))
        if (price := node_price(hardware, cloud=cloud, commitment=commitment)) is not None  # type: ignore[arg-type]
    ]
    return sorted(rows, key=lambda row: (row.usd_per_hour, row.cloud))


def n_instances(price: Price | None, hardware: Hardware) -> int:
    """Return the number of instances that provide the hardware; its nodes if the price is not from a table."""
    if price is None or price.accelerators is None:
        return hardware.n_nodes
    return hardware.n_nodes * max(-(-hardware.accelerators_per_node // price.accelerators), 1)


def instance_words(instance: str | None, accelerators: int | None, instances: int | None) -> str:
    """Return instances in words, for example "8 x 1H100.80S.32V (1 GPU each)"; "" without an instance."""
    if not instance:
        return ""
    if accelerators is None:
        return instance
    each = f"{accelerators} GPU{'' if accelerators == 1 else 's'}"
    return f"{instance} ({each})" if not instances or instances == 1 else f"{instances} x {instance} ({each} each)"
