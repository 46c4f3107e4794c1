"""What a plan costs beyond its price tag, as far as the user says what is not in any catalog: users, owned hardware,
spot interruptions, racks, hours of the day. The `accounts` block of an answer; formulas in docs/costs.md.

The `accounts` and `quality` blocks of an answer on the screen: a few lines, and none for what was not asked.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from catalogs.deployments.autoscaling import ColdStart
from catalogs.economics.electricity import UNKNOWN, DayOfCarbon, Grid, read_day
from catalogs.economics.prices import ON_DEMAND, Price
from catalogs.hardware.catalog import parse_hardware
from catalogs.hardware.specs import Hardware
from catalogs.ui.terminal import Line
from catalogs.ui.words import digits, dollars
from planner.economics.money import n_instances
from planner.economics.ownership import HOURS_PER_YEAR, PowerDraw, RentalCost, owned_cost, owned_document
from planner.economics.rack_power import idle_w, rack_power
from planner.economics.spot import Interruptions, SpotFleet, spot_effect
from planner.problem.accounting import SPOT, Accounting
from planner.problem.hardware_choice import is_one

HOURS_PER_MONTH: Final = HOURS_PER_YEAR / 12

SECONDS_PER_DAY: Final = 86400.0

#: A replacement on a cloud comes with a new machine: 80-120 s until it is there (see catalogs/scaling.ColdStart).
NEW_NODE_S: Final = 120.0

#: Hours of a day that work which can wait is moved to.
CLEAN_HOURS: Final = 8


@dataclass(frozen=True, slots=True)
class PlanAccounts:
    """One plan of an answer, looked up. block: its JSON; whole: of all the hardware that was named."""

    block: dict[str, Any]
    hardware: Hardware
    whole: Hardware
    price: Price | None
    grid: Grid | None
    users: int | None
    commitment: str

    @classmethod
    def of(
        cls,
        block: dict[str, Any],
        named: str,
        price: Price | None,
        grid: Grid | None,
        users: int | None,
        commitment: str,
    ) -> PlanAccounts:
        """named: the hardware of the request. Of a choice of several, what was chosen is the whole."""
        hardware = parse_hardware(block["deployment"]["hardware"])
        whole = parse_hardware(named) if is_one(named) else hardware
        return cls(block, hardware, whole, price, grid, users, commitment)

    @property
    def deployment(self) -> dict[str, Any]:
        found: dict[str, Any] = self.block["deployment"]
        return found

    @property
    def usd_per_hour(self) -> float | None:
        return None if self.price is None else self.price.usd_per_hour


def accounts_block(asked: Accounting, plan: PlanAccounts) -> dict[str, Any]:
    """The `accounts` block; a part that nothing was said of is None, what is unknown says so in `note`."""
    return {
        "per_user": _per_user(asked, plan),
        "owned": _owned(asked, plan),
        "spot": _spot(asked, plan),
        "rack": _rack(asked, plan),
        "carbon_hours": _carbon_hours(asked, plan),
    }


def _per_user(asked: Accounting, plan: PlanAccounts) -> dict[str, Any] | None:
    """Users at once share the hour; users with so many requests a day share the requests. Paid around the clock."""
    usd, rate = plan.usd_per_hour, plan.block["requests_per_s"]
    if asked.requests_per_user_day is not None:
        users = rate * SECONDS_PER_DAY / asked.requests_per_user_day
    elif plan.users is not None:
        users = float(plan.users)
    else:
        return None
    return {
        "users": users,
        "requests_per_user_day": rate * SECONDS_PER_DAY / users,
        "usd_per_user_month": None if usd is None else usd * HOURS_PER_MONTH / users,
        "hours_per_month": HOURS_PER_MONTH,
    }


def _owned(asked: Accounting, plan: PlanAccounts) -> dict[str, Any] | None:
    if asked.owned is None or plan.block["energy"] is None:
        return None
    share = plan.hardware.n_accelerators / plan.whole.n_accelerators
    update = {"capex": asked.owned.capex * share, "upkeep": asked.owned.upkeep * share}
    owned = asked.owned.model_copy(update=update)
    draw = PowerDraw(plan.block["energy"]["w_mean"], idle_w(plan.hardware))
    metrics, rent = plan.block["metrics"], None
    if plan.price is not None:
        source = " ".join(p for p in (plan.price.cloud, plan.commitment) if p) or plan.price.source
        rent = RentalCost(plan.price.usd_per_hour, source, plan.commitment not in (ON_DEMAND, SPOT))
    cost = owned_cost(owned, draw, (metrics["output_tokens_per_s"], metrics["total_tokens_per_s"]), plan.grid, rent)
    return owned_document(owned, cost) | {"share_of_hardware_named": share}


def _spot(asked: Accounting, plan: PlanAccounts) -> dict[str, Any] | None:
    """None unless spot instances are planned."""
    if plan.commitment != SPOT or plan.price is None:
        return None
    if asked.spot_interruptions is None:
        note = "how often instances are taken is in no public table of this catalog: give --spot-interruptions PER_HOUR"
        return {"interruptions_per_instance_hour": None, "note": note}
    recovery_s, source = asked.spot_recovery_s, "given"
    if recovery_s is None:
        recovery_s, source = (
            _cold_start_s(plan),
            "a new node, its image, weights and engine (catalogs/deployments/autoscaling.py)",
        )
    fleet = SpotFleet(
        instances=n_instances(plan.price, plan.hardware),
        replicas=plan.block["deployment"]["replicas"],
        requests_per_s=plan.block["requests_per_s"],
        capacity_requests_per_s=plan.block["capacity_requests_per_s"],
        e2e_mean_s=plan.block["metrics"]["e2e_s"]["mean"] or 0.0,
        usd_per_hour=plan.price.usd_per_hour,
    )
    given = {"interruptions_per_instance_hour": asked.spot_interruptions, "instances": fleet.instances}
    effect = spot_effect(fleet, Interruptions(asked.spot_interruptions, recovery_s))
    return {**given, "recovery_s": recovery_s, "recovery_source": source, **asdict(effect), "note": None}


def _cold_start_s(plan: PlanAccounts) -> float:
    replicas = max(plan.block["deployment"]["replicas"], 1)
    weights = plan.block["memory"]["weights_bytes"] * plan.hardware.n_accelerators / replicas
    return ColdStart(node_s=NEW_NODE_S).seconds(weights)


def _rack(asked: Accounting, plan: PlanAccounts) -> dict[str, Any] | None:
    energy = plan.block["energy"]
    if energy is None:
        return None
    gpu_w = (plan.block["metrics"].get("power") or {}).get("gpu_w_mean")
    return asdict(rack_power(plan.hardware, energy["w_mean"], gpu_w, asked.nodes_per_rack))


def _carbon_hours(asked: Accounting, plan: PlanAccounts) -> dict[str, Any] | None:
    energy = plan.block["energy"]
    if energy is None:
        return None
    if asked.carbon_hours is None:
        return {"source": None, "note": UNKNOWN}
    return _hours(read_day(Path(asked.carbon_hours)), energy["kwh_per_million_output_tokens"])


def _hours(day: DayOfCarbon, kwh_per_million: float) -> dict[str, Any]:
    hours, cleanest = day.cleanest(CLEAN_HOURS)
    return {
        "source": day.source,
        "note": None,
        "gco2e_per_million_output_tokens": [kwh_per_million * g for g in day.gco2e_per_kwh],
        "mean_gco2e_per_million_output_tokens": kwh_per_million * day.mean,
        "cleanest_hours": list(hours),
        "cleanest_gco2e_per_million_output_tokens": kwh_per_million * cleanest,
    }


def accounts_lines(answer: dict[str, Any]) -> Iterator[Line]:
    """Of a feasible answer; nothing for an answer of an older version."""
    accounts = answer.get("accounts")
    if not accounts:
        return
    cost = answer["best"]["cost"] or {}
    yield from _cost(cost, accounts["per_user"])
    yield from _spot_lines(accounts["spot"])
    yield from _owned_lines(accounts["owned"])
    yield from _rack_lines(accounts["rack"], asked=accounts["rack"] is not None and accounts["rack"]["nodes_per_rack"])
    yield from _hours_lines(accounts["carbon_hours"])


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


def _spot_lines(spot: dict[str, Any] | None) -> Iterator[Line]:
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


def _owned_lines(owned: dict[str, Any] | None) -> Iterator[Line]:
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


def _rack_lines(rack: dict[str, Any] | None, asked: object) -> Iterator[Line]:
    if rack is None or (rack["nodes"] == 1 and not asked):
        return
    full = min(rack["nodes_per_rack"] or rack["nodes"], rack["nodes"])
    yield (
        "Rack",
        f"{full} node{'' if full == 1 else 's'}: {rack['rack_w_mean'] / 1e3:.1f} kW on average, "
        f"{rack['rack_w_most'] / 1e3:.1f} kW with every accelerator at its limit (each node "
        f"{rack['node_w_mean'] / 1e3:.1f} and {rack['node_w_most'] / 1e3:.1f}; hosts as in the catalog)",
    )


def _hours_lines(hours: dict[str, Any] | None) -> Iterator[Line]:
    if hours is None or hours["source"] is None:
        return
    mean, clean = hours["mean_gco2e_per_million_output_tokens"], hours["cleanest_gco2e_per_million_output_tokens"]
    named = ", ".join(f"{h}" for h in hours["cleanest_hours"])
    yield (
        "Carbon",
        f"{mean:.0f} gCO2e per million output tokens around the clock, {clean:.0f} in the cleanest hours ({named}), "
        f"by {hours['source']}",
    )
