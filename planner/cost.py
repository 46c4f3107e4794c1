"""What a plan costs: money from dated prices, energy and carbon from simulated power. Unknown is None, never zero."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from catalogs.grid import DEFAULT_PUE, Grid
from catalogs.prices import Price

SECONDS_PER_HOUR: Final = 3600.0
JOULES_PER_KWH: Final = 3.6e6
MILLION: Final = 1e6


@dataclass(frozen=True, slots=True)
class Rates:
    """What a deployment produces per second, and the power it draws meanwhile: accelerators and hosts.

    requests_per_s: None where requests pile up.
    """

    output_tokens_per_s: float
    total_tokens_per_s: float
    power_w: float
    requests_per_s: float | None = None


@dataclass(frozen=True, slots=True)
class Money:
    """None where no price is known. Of tokens, each figure divides the whole cost by that kind alone: they do not add
    up. commitment, instance, accelerators_per_instance: what the price is of."""

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
    """kWh and grams include the facility (pue); w_mean and the joules are at the servers."""

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
    """Dollars per million tokens at these rates."""
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


def energy(rates: Rates, grid: Grid | None, pue: float = DEFAULT_PUE) -> Energy | None:
    """Energy per output token at these rates; None without output tokens or a power figure."""
    joules = rates.power_w / rates.output_tokens_per_s if rates.output_tokens_per_s > 0 else float("nan")
    if joules != joules:
        return None
    kwh = joules * MILLION / JOULES_PER_KWH * pue
    grams = None if grid is None else kwh * grid.gco2e_per_kwh
    intensity, source, region = (
        (None, None, None) if grid is None else (grid.gco2e_per_kwh, grid.gco2e_source, grid.region)
    )
    each = rates.power_w / rates.total_tokens_per_s if rates.total_tokens_per_s > 0 else None
    all_kwh = None if each is None else each * MILLION / JOULES_PER_KWH * pue
    return Energy(rates.power_w, joules, kwh, grams, pue, intensity, source, each, all_kwh, region)


def per_million(amount_per_s: float, tokens_per_s: float) -> float | None:
    """Amount per million tokens; None where nothing is produced."""
    return amount_per_s / tokens_per_s * MILLION if tokens_per_s > 0 else None
