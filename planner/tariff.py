"""What an hour of hardware costs under a request's tariff. Unknown is None; what was asked for by name is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from catalogs.errors import InputError
from catalogs.hardware import Hardware
from catalogs.prices import COMMITMENTS, ON_DEMAND, Price, discounted, list_clouds, node_price
from planner.request import Tariff

#: A discount to show as an example: what AWS gives for a year without upfront payment (data/prices.csv).
_EXAMPLE_DISCOUNT: Final = "--discount 0.37"


def table_price(hardware: Hardware, tariff: Tariff) -> Price | None:
    """The table's price of all of `hardware`, less the user's own discount; None where it knows none.

    Raises InputError for names it does not know.
    """
    if tariff.discount is not None:
        listed = _read(hardware, tariff, ON_DEMAND)
        return None if listed is None else discounted(listed, tariff.committed, tariff.discount)
    return _read(hardware, tariff, tariff.committed)


def require_price(hardware: Hardware, tariff: Tariff) -> None:
    """Raises InputError, naming the nearest that is known, where a cloud, region or commitment was named and no price
    of this hardware is known there."""
    named = [tariff.cloud, tariff.region, None if tariff.committed == ON_DEMAND else tariff.committed]
    if tariff.usd_per_hour is not None or not any(named) or table_price(hardware, tariff) is not None:
        return
    where = " ".join(n for n in (tariff.cloud, tariff.region) if n)
    rule = f"no {tariff.committed} price of {hardware.text} is known{f' at {where}' if where else ''}"
    raise InputError(rule, None, _nearest(hardware, tariff))


def _read(hardware: Hardware, tariff: Tariff, commitment: str) -> Price | None:
    reading = "cheapest" if tariff.reading == "spot" else tariff.reading
    return node_price(hardware, reading, tariff.cloud, tariff.region, commitment)  # type: ignore[arg-type]


def _nearest(hardware: Hardware, tariff: Tariff) -> str:
    """Another commitment there, the user's own discount, or another cloud; else a price of one's own."""
    here = [c for c in COMMITMENTS if _read(hardware, tariff, c) is not None]
    if here:
        others = f"--commitment {here[0]}" + (f" ({', '.join(here)} are known)" if len(here) > 1 else "")
        reserved = ON_DEMAND in here and tariff.committed not in (ON_DEMAND, "spot")
        return f"{_EXAMPLE_DISCOUNT} (yours), or {others}" if reserved else others
    clouds = [c for c in list_clouds() if _read(hardware, replace(tariff, cloud=c, region=None), tariff.committed)]
    if clouds:
        return f"--cloud {clouds[0]} ({', '.join(clouds)} are known)" if len(clouds) > 1 else f"--cloud {clouds[0]}"
    return "--price USD_PER_HOUR"
