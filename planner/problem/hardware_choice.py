"""Resolve the hardware choice of a request: names separated by commas, or `any` of the catalog, within a budget."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final

from catalogs.economics.prices import Price
from catalogs.engines.files import load_engine
from catalogs.errors import InputError
from catalogs.hardware.catalog import list_hardware, parse_hardware, with_count
from catalogs.hardware.specs import Hardware

ANY: Final = "any"

#: Accelerators of one node that `any` considers; a deployment may still use fewer (`space.placements`).
_COUNTS: Final = (16, 8, 4, 2, 1)

PriceOf = Callable[[Hardware], Price | None]


@dataclass(frozen=True, slots=True)
class Choices:
    """The hardware of a request's choice that is evaluated, and notices about the rest.

    Attributes:
        hardware: The hardware to evaluate.
        notices: Hardware that is not compared, and the reasons.
    """

    hardware: tuple[Hardware, ...]
    notices: tuple[str, ...] = ()


def choose_hardware(
    text: str,
    price_of: PriceOf,
    needs_price: bool,
    budget: float | None = None,
    named: Hardware | None = None,
    engine: str | None = None,
) -> Choices:
    """Return the hardware that `text` names, within the budget and with known prices.

    A single name without a budget is always returned.

    Args:
        text: The hardware choice of the request.
        price_of: Returns the price of hardware.
        needs_price: Whether hardware without a known price is left out.
        budget: The highest price, US dollars per hour.
        named: The parsed hardware, if `text` names exactly one.
        engine: Name of the engine; `any` leaves out the accelerators that it does not run on. None for any engine.

    Raises:
        InputError: No hardware is left.
    """
    anything = is_any(text)
    found = _anything() if anything else named_hardware(text) if named is None else [named]
    foreign: list[Hardware] = []
    if anything and engine is not None:
        profile = load_engine(engine)
        foreign = [h for h in found if not profile.runs_on_device(h.accelerator.kind, h.accelerator.maker)]
        found = [h for h in found if h not in foreign]
    if not anything and len(found) == 1 and budget is None:
        return Choices(tuple(found))
    priced = {hardware: price_of(hardware) for hardware in found}
    unknown = [h for h, price in priced.items() if price is None and (needs_price or budget is not None)]
    expensive = [h for h, p in priced.items() if p is not None and budget is not None and p.usd_per_hour > budget]
    left = [h for h in found if h not in unknown and h not in expensive]
    if budget is not None and not anything:
        left += [part for h in expensive if (part := _affordable(h, price_of, budget)) and part not in left]
    if not left:
        raise _nothing(text, priced, budget, price_of)
    no_price, too_expensive = [h.text for h in unknown], [h.text for h in expensive]
    if anything:
        left = [next(parts) for _, parts in groupby(left, lambda h: h.accelerator.name)]  # the largest of each type
        kept = _types(left)
        no_price, too_expensive = _types(unknown), [name for name in _types(expensive) if name not in kept]
    notices = [f"not compared, {engine} does not run on them: {', '.join(_types(foreign))}"] if foreign else []
    if no_price:
        notices.append(f"not compared, no known price: {', '.join(no_price)}")
    if too_expensive:
        notices.append(f"not compared, above the budget of ${budget:g} per hour: {', '.join(too_expensive)}")
    return Choices(tuple(left), tuple(notices))


def uncalibrated_notice(hardware: Sequence[Hardware]) -> str:
    """Return the notice that a choice among all hardware leaves out some that was not measured."""
    texts = ", ".join(each.text for each in hardware)
    return f"not compared, no calibration (name them with --hw for a roofline estimate): {texts}"


def is_any(text: str) -> bool:
    """Return whether `text` leaves the choice to all hardware of the catalog."""
    return text.strip().lower() == ANY


def is_one(text: str) -> bool:
    """Return whether `text` names exactly one piece of hardware."""
    return not is_any(text) and "," not in text


def named_hardware(text: str) -> list[Hardware]:
    """Return the hardware of a list of names.

    Raises:
        InputError: A name is empty or unknown.
    """
    parts = [part.strip() for part in text.split(",")]
    if not all(parts):
        raise InputError("--hw takes one name or several separated by commas", text, "h100x8,h200x8")
    return list(dict.fromkeys(parse_hardware(part).without_notices() for part in parts))


def _anything() -> list[Hardware]:
    """Return every GPU of the catalog as a whole node and as parts of one, largest first."""
    kinds = [one for name in list_hardware() if (one := parse_hardware(name)).accelerator.kind == "gpu"]
    return [with_count(one, n) for one in kinds for n in _COUNTS if n <= one.node.max_accelerators]


def _affordable(hardware: Hardware, price_of: PriceOf, budget: float) -> Hardware | None:
    """Return the largest part of a node that is within the budget, or None."""
    if hardware.n_nodes > 1 or hardware.accelerator.is_slice:
        return None
    parts = (with_count(hardware, count) for count in _COUNTS if count < hardware.accelerators_per_node)
    return next((part for part in parts if (price := price_of(part)) and price.usd_per_hour <= budget), None)


def _types(found: list[Hardware]) -> list[str]:
    return list(dict.fromkeys(hardware.accelerator.name for hardware in found))


def _nothing(text: str, priced: Mapping[Hardware, Price | None], budget: float | None, price_of: PriceOf) -> InputError:
    prices = {hardware.text: price for hardware, price in priced.items()}
    if budget is not None:  # a single accelerator is the smallest unit to rent
        whole = [h for h in priced if h.n_nodes == 1 and not h.accelerator.is_slice and h.text != "local"]
        singles = {f"{h.accelerator.name}x1": h for h in whole}
        prices |= {single: price_of(with_count(singles[single], 1)) for single in sorted(singles)}
    known = [(p.usd_per_hour, name) for name, p in prices.items() if p is not None]
    if not known or budget is None:
        near = "--price USD" if is_one(text) else "--objective throughput, or one of them with --price USD"
        return InputError("no known price for this hardware: its cost cannot be compared", text, near)
    usd, name = min(known)
    rule = f"the budget is too low for any of the hardware: the cheapest, {name}, costs ${usd:.2f} per hour"
    return InputError(rule, budget, f"--max-usd-per-hour {usd:.2f}")
