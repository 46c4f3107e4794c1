"""Which hardware there is to choose between: names with commas, or `any` of the catalog, within a budget."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from catalogs.economics.prices import Price
from catalogs.errors import InputError
from catalogs.hardware.catalog import list_hardware, parse_hardware

ANY: Final = "any"

#: Accelerators of one node that `any` looks at; a rate may still be carried by fewer (`space.placements`).
_COUNTS: Final = (16, 8, 4, 2, 1)

PriceOf = Callable[[str], Price | None]


@dataclass(frozen=True, slots=True)
class Choices:
    """texts: hardware to look at, as parse_hardware takes it. notices: what was left out, and why."""

    texts: tuple[str, ...]
    notices: tuple[str, ...] = ()


def choose_hardware(text: str, price_of: PriceOf, needs_price: bool, budget: float | None = None) -> Choices:
    """What `text` names, without what costs more than `budget` (USD per hour) or has no price where one is needed.

    Raises InputError where nothing is left; for a single name without a budget nothing is left out.
    """
    anything = text.strip().lower() == ANY
    names = _anything() if anything else _named(text)
    if not anything and len(names) == 1 and budget is None:
        return Choices(tuple(names))
    priced = {name: price_of(name) for name in names}
    unknown = [n for n, price in priced.items() if price is None and (needs_price or budget is not None)]
    dear = [n for n, p in priced.items() if p is not None and budget is not None and p.usd_per_hour > budget]
    left = [n for n in names if n not in unknown and n not in dear]
    if budget is not None and not anything:
        left += [part for n in dear if (part := _affordable(n, price_of, budget)) and part not in left]
    if not left:
        raise _nothing(text, priced, budget, price_of)
    if anything:
        left = _largest(left)
        unknown, dear = _types(unknown), [n for n in _types(dear) if n not in _types(left)]
    said = []
    if unknown:
        said.append(f"left out, no price is known: {', '.join(unknown)}")
    if dear:
        said.append(f"left out, over the budget of ${budget:g} per hour: {', '.join(dear)}")
    return Choices(tuple(left), tuple(said))


def is_one(text: str) -> bool:
    """Whether `text` names one piece of hardware."""
    return text.strip().lower() != ANY and "," not in text


def _named(text: str) -> list[str]:
    parts = [part.strip() for part in text.split(",")]
    if not all(parts):
        raise InputError("hardware is a name, or several with commas between them", text, "h100x8,h200x8")
    return list(dict.fromkeys(parse_hardware(part).text for part in parts))


def _anything() -> list[str]:
    """Every GPU of the catalog in parts and wholes of a node, the largest first."""
    found = []
    for name in list_hardware():
        node = parse_hardware(name).node
        if node.accelerator.kind == "gpu":
            counts = dict.fromkeys([n for n in _COUNTS if n <= node.max_accelerators])
            found += [f"{name}x{n}" for n in counts]
    return found


def _affordable(text: str, price_of: PriceOf, budget: float) -> str | None:
    """The largest part of a node that the budget pays for."""
    hardware = parse_hardware(text)
    for count in _COUNTS if hardware.n_nodes == 1 and not hardware.accelerator.is_slice else ():
        part = f"{hardware.accelerator.name}x{count}"
        price = price_of(part) if count < hardware.accelerators_per_node else None
        if price is not None and price.usd_per_hour <= budget:
            return part
    return None


def _largest(texts: list[str]) -> list[str]:
    kept: dict[str, str] = {}
    for text in texts:
        kept.setdefault(parse_hardware(text).accelerator.name, text)
    return list(kept.values())


def _types(texts: list[str]) -> list[str]:
    return list(dict.fromkeys(parse_hardware(t).accelerator.name for t in texts))


def _nothing(text: str, priced: dict[str, Price | None], budget: float | None, price_of: PriceOf) -> InputError:
    if budget is not None:  # a single accelerator is the least one can rent
        singles = {f"{parse_hardware(n).accelerator.name}x1" for n in priced if parse_hardware(n).n_nodes == 1}
        priced = priced | {s: price_of(s) for s in sorted(singles) if ":" not in s and s != "localx1"}
    known = [(p.usd_per_hour, name) for name, p in priced.items() if p is not None]
    if not known or budget is None:
        near = "--price USD" if is_one(text) else "--objective throughput, or one of them with --price USD"
        return InputError("no price is known of this hardware, so its cost cannot be compared", text, near)
    usd, name = min(known)
    rule = f"a budget that pays for some of the hardware: the cheapest, {name}, costs ${usd:.2f} per hour"
    return InputError(rule, budget, f"--max-usd-per-hour {usd:.2f}")
