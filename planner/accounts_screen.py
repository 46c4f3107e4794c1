"""The `accounts` and `quality` blocks of an answer on the screen: a few lines, and none for what was not asked."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from planner.terminal import Line
from planner.words import digits, dollars


def accounts_lines(answer: dict[str, Any]) -> Iterator[Line]:
    """Of a feasible answer; nothing for an answer of an older version."""
    accounts = answer.get("accounts")
    if not accounts:
        return
    cost = answer["best"]["cost"] or {}
    yield from _cost(cost, accounts["per_user"])
    yield from _spot(accounts["spot"])
    yield from _owned(accounts["owned"])
    yield from _rack(accounts["rack"], asked=accounts["rack"] is not None and accounts["rack"]["nodes_per_rack"])
    yield from _hours(accounts["carbon_hours"])


def _cost(cost: dict[str, Any], users: dict[str, Any] | None) -> Iterator[Line]:
    if users is None:
        return
    usd = users["usd_per_user_month"]
    month = "unknown" if usd is None else dollars(usd)
    each = cost.get("usd_per_request")
    per_request = "" if each is None else f"; {dollars(each)} per request"
    per_day = users["requests_per_user_day"]
    yield (
        "Per user",
        f"{month} per user-month for {users['users']:,.0f} users of {digits(per_day)} requests a day{per_request}",
    )


def _spot(spot: dict[str, Any] | None) -> Iterator[Line]:
    if spot is None:
        return
    if spot["interruptions_per_instance_hour"] is None:
        yield "Spot", spot["note"]
        return
    up, hit = spot["available_fraction"], spot["hit_fraction"]
    yield (
        "Spot",
        f"{spot['interruptions_per_hour']:.3g} interruptions an hour, {spot['recovery_s']:.0f} s to recover: "
        f"{_each(spot['units'])} is up {up:.2%} of the time, {hit:.2%} of requests are hit and start again",
    )
    one = {True: "one down: the rest carries the load", False: "one down: the objectives are MISSED", None: ""}
    spares, usd = spot["spares"], spot["usd_per_hour_with_spares"]
    need = f"{spares} spare{'' if spares == 1 else 's'} for 99 % of the time: {dollars(usd)}/h with them"
    yield "", "; ".join(part for part in (one[spot["holds_with_one_down"]], need) if part)


def _each(units: int) -> str:
    return "the one unit" if units == 1 else f"each of {units} units"


def _owned(owned: dict[str, Any] | None) -> Iterator[Line]:
    if owned is None:
        return
    tokens = owned["usd_per_million_output_tokens"]
    per_token = "" if tokens is None else f", {dollars(tokens)} per million output tokens"
    yield (
        "Owned",
        f"{dollars(owned['usd_per_hour'])}/h (capital {dollars(owned['capital_usd_per_hour'])}, power "
        f"{dollars(owned['energy_usd_per_hour'])}, upkeep {dollars(owned['upkeep_usd_per_hour'])}){per_token} "
        f"at {owned['utilisation']:.0%} use",
    )
    yield "", owned_words(owned)


def owned_words(owned: dict[str, Any]) -> str:
    """Against renting."""
    rent = owned["rent_usd_per_hour"]
    if rent is None:
        return "no rent of this hardware is known to compare with"
    words = [f"renting at {dollars(rent)}/h ({owned['rent_source']})"]
    if owned["break_even_utilisation"] is not None:
        words.append(f"owning is cheaper from {owned['break_even_utilisation']:.0%} use on")
    words.append(owned["never"] or "")
    years = owned["payback_years"]
    words.append(
        "rent saved never pays the capex" if years is None else f"rent saved pays the capex in {years:.1f} years"
    )
    return "; ".join(w for w in words if w)


def _rack(rack: dict[str, Any] | None, asked: object) -> Iterator[Line]:
    if rack is None or (rack["nodes"] == 1 and not asked):
        return
    full = min(rack["nodes_per_rack"] or rack["nodes"], rack["nodes"])
    yield (
        "Rack",
        f"{full} node{'' if full == 1 else 's'}: {rack['rack_w_mean'] / 1e3:.1f} kW on average, "
        f"{rack['rack_w_most'] / 1e3:.1f} kW with every accelerator at its limit (each node "
        f"{rack['node_w_mean'] / 1e3:.1f} and {rack['node_w_most'] / 1e3:.1f}; hosts as in the catalog)",
    )


def _hours(hours: dict[str, Any] | None) -> Iterator[Line]:
    if hours is None or hours["source"] is None:
        return
    mean, clean = hours["mean_gco2e_per_million_output_tokens"], hours["cleanest_gco2e_per_million_output_tokens"]
    named = ", ".join(f"{h}" for h in hours["cleanest_hours"])
    yield (
        "Carbon",
        f"{mean:.0f} gCO2e per million output tokens around the clock, {clean:.0f} in the cleanest hours ({named}), "
        f"by {hours['source']}",
    )
