"""The accounts of a plan beyond its price: users, owned hardware, spot interruptions, racks, carbon by the hour.

The catalogs do not hold these inputs, so the user gives them. docs/costs.md has the formulas.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, Literal

from catalogs.deployments.autoscaling import ColdStart
from catalogs.economics.electricity import UNKNOWN, HourlyCarbon, read_hourly_carbon
from catalogs.io.json_block import JsonBlock
from catalogs.ui import html_page
from catalogs.ui.html_page import note, table
from catalogs.ui.terminal import Line
from catalogs.ui.words import digits, dollars, rate, seconds
from planner.answer.plan_schema import Plan
from planner.economics.money import CONTRACT_WORDS, Money, instance_words, n_instances
from planner.economics.ownership import HOURS_PER_YEAR
from planner.economics.rack_power import RackPower, rack_power
from planner.economics.spot import Interruptions, SpotEffect, SpotFleet, spot_effect
from planner.problem.accounting import SPOT, Accounting
from planner.problem.latency_metrics import E2E
from planner.problem.request import PlanRequest
from planner.sections.ownership import HEAD, OwnedAccount, PricedPlan, owned_account, owned_lines, owned_parts
from planner.sections.section import ChosenPlan

HOURS_PER_MONTH: Final = HOURS_PER_YEAR / 12

SECONDS_PER_DAY: Final = 86400.0

#: Seconds until a cloud provides the machine of a replacement: 80-120 s (see ColdStart in
#: catalogs/deployments/autoscaling.py).
NEW_NODE_S: Final = 120.0

#: Number of hours of a day that take the work which can wait.
CLEAN_HOURS: Final = 8

AROUND_THE_CLOCK: Final = "the planned rate around the clock"

Rows = list[tuple[str, str, str]]


class PerUser(JsonBlock):
    """The monthly cost of a user, with the planned rate around the clock."""

    users: float
    requests_per_user_day: float
    usd_per_user_month: float | None
    hours_per_month: float


class SpotAccount(SpotEffect):
    """The effect of interruptions of spot instances on the plan."""

    interruptions_per_instance_hour: float
    instances: int
    recovery_s: float
    recovery_source: str
    note: Literal[None] = None


class UnknownSpot(JsonBlock):
    """Spot instances with unknown interruptions; `note` has the reason."""

    interruptions_per_instance_hour: Literal[None] = None
    note: str


class CarbonHours(JsonBlock):
    """Grams of CO2-equivalent per million output tokens by hour of the day, and in the cleanest hours."""

    source: str
    note: Literal[None] = None
    gco2e_per_million_output_tokens: list[float]
    mean_gco2e_per_million_output_tokens: float
    cleanest_hours: list[int]
    cleanest_gco2e_per_million_output_tokens: float


class UnknownHours(JsonBlock):
    """Unknown carbon by the hour; `note` has the reason."""

    source: Literal[None] = None
    note: str


class PlanAccounts(JsonBlock):
    """The accounts of a plan; an account without input is None."""

    per_user: PerUser | None
    owned: OwnedAccount | None
    spot: SpotAccount | UnknownSpot | None
    rack: RackPower | None
    carbon_hours: CarbonHours | UnknownHours | None


class AccountsSection:
    """The section of accounts: cost per user, of owned hardware and on spot instances, and the power of racks."""

    name = "accounts"
    schema = PlanAccounts

    def wanted(self, request: PlanRequest) -> bool:  # noqa: ARG002
        """Return True: every answer with a plan has the section."""
        return True

    def compute(self, chosen: ChosenPlan) -> PlanAccounts:
        """Return the accounts that the request has inputs for."""
        request, hardware = chosen.request, chosen.candidate.hardware
        priced = PricedPlan(
            plan=chosen.plan,
            hardware=hardware,
            whole=chosen.named or hardware,
            price=chosen.prices.price(hardware),
            grid=chosen.prices.grid(),
            users=request.users,
            commitment=request.tariff.committed,
        )
        return accounts_of(request.accounting, priced)

    def screen(self, block: PlanAccounts, plan: Plan) -> Iterator[Line]:
        """Return a few lines for each account that has inputs."""
        yield from _user_lines(block.per_user, plan.cost)
        yield from _spot_lines(block.spot)
        yield from owned_lines(block.owned)
        yield from _rack_lines(block.rack)
        yield from _carbon_lines(block.carbon_hours)

    def page(self, block: PlanAccounts, plan: Plan) -> Iterable[html_page.PageSection]:
        """Return tables of every account, and a chart of the cost of owning and renting."""
        rows = _price_rows(plan.cost) + _user_rows(block.per_user) + _spot_rows(block.spot)
        parts = [
            table(HEAD, rows, "Each figure per token divides the whole cost by the tokens of that kind alone.", words=3)
        ]
        if isinstance(block.spot, UnknownSpot):
            parts.append(note(f"{block.spot.note}."))
        parts += owned_parts(block.owned)
        power = _rack_rows(block.rack) + _carbon_rows(block.carbon_hours)
        if power:
            parts.append(table(HEAD, power, words=3))
        title = "Cost in full: per token, request and user; power of a rack"
        return [html_page.PageSection(title, parts, "Cost in full")]


# ---- computed


def accounts_of(given: Accounting, priced: PricedPlan) -> PlanAccounts:
    """Return every account; an account without input is None, and an unknown account has a `note`."""
    return PlanAccounts(
        per_user=_per_user(given, priced),
        owned=owned_account(given.owned, priced),
        spot=_spot(given, priced),
        rack=_rack(given, priced),
        carbon_hours=_carbon_hours(given, priced),
    )


def _per_user(given: Accounting, priced: PricedPlan) -> PerUser | None:
    """Return the cost per user, paid around the clock.

    Concurrent users share the hourly cost. Users with a number of requests a day share the requests.
    """
    usd, per_s = priced.usd_per_hour, priced.requests_per_s
    if given.requests_per_user_day is not None:
        users = per_s * SECONDS_PER_DAY / given.requests_per_user_day
    elif priced.users is not None:
        users = float(priced.users)
    else:
        return None
    return PerUser(
        users=users,
        requests_per_user_day=per_s * SECONDS_PER_DAY / users,
        usd_per_user_month=None if usd is None else usd * HOURS_PER_MONTH / users,
        hours_per_month=HOURS_PER_MONTH,
    )


def _spot(given: Accounting, priced: PricedPlan) -> SpotAccount | UnknownSpot | None:
    """Return the account of spot instances, or None if the plan has none."""
    if priced.commitment != SPOT or priced.price is None:
        return None
    if given.spot_interruptions is None:
        note = "the catalog has no public interruption rates: give accounting.spot_interruptions"
        return UnknownSpot(interruptions_per_instance_hour=None, note=note)
    recovery_s, source = given.spot_recovery_s, "given"
    if recovery_s is None:
        recovery_s, source = (
            _cold_start_s(priced),
            "a new node, its image, weights and engine (catalogs/deployments/autoscaling.py)",
        )
    fleet = SpotFleet(
        instances=n_instances(priced.price, priced.hardware),
        replicas=priced.replicas,
        requests_per_s=priced.requests_per_s,
        capacity_requests_per_s=priced.plan.capacity_requests_per_s,
        e2e_mean_s=priced.plan.latency_s(E2E.name, "mean") or 0.0,
        usd_per_hour=priced.price.usd_per_hour,
    )
    effect = spot_effect(fleet, Interruptions(given.spot_interruptions, recovery_s))
    return SpotAccount(
        **effect.model_dump(),
        interruptions_per_instance_hour=given.spot_interruptions,
        instances=fleet.instances,
        recovery_s=recovery_s,
        recovery_source=source,
        note=None,
    )


def _cold_start_s(priced: PricedPlan) -> float:
    weights_bytes = 0.0 if priced.plan.memory is None else priced.plan.memory.weights_bytes
    each = weights_bytes * priced.hardware.n_accelerators / max(priced.replicas, 1)
    return ColdStart(node_s=NEW_NODE_S).seconds(each)


def _rack(given: Accounting, priced: PricedPlan) -> RackPower | None:
    plan = priced.plan
    if plan.energy is None:
        return None
    gpu_w = ((plan.metrics or {}).get("power") or {}).get("gpu_w_mean")
    return rack_power(priced.hardware, plan.energy.w_mean, gpu_w, given.nodes_per_rack)


def _carbon_hours(given: Accounting, priced: PricedPlan) -> CarbonHours | UnknownHours | None:
    energy = priced.plan.energy
    if energy is None:
        return None
    if given.carbon_hours is None:
        return UnknownHours(source=None, note=UNKNOWN)
    return _hours(read_hourly_carbon(Path(given.carbon_hours)), energy.kwh_per_million_output_tokens)


def _hours(day: HourlyCarbon, kwh_per_million: float) -> CarbonHours:
    hours, cleanest = day.cleanest(CLEAN_HOURS)
    return CarbonHours(
        source=day.source,
        note=None,
        gco2e_per_million_output_tokens=[kwh_per_million * g for g in day.gco2e_per_kwh],
        mean_gco2e_per_million_output_tokens=kwh_per_million * day.mean,
        cleanest_hours=list(hours),
        cleanest_gco2e_per_million_output_tokens=kwh_per_million * cleanest,
    )


# ---- on the screen


def _user_lines(users: PerUser | None, cost: Money | None) -> Iterator[Line]:
    if users is None:
        return
    month = "unknown" if users.usd_per_user_month is None else dollars(users.usd_per_user_month)
    each = None if cost is None else cost.usd_per_request
    per_request = "" if each is None else f"; {dollars(each)} per request"
    per_day = f"{digits(users.requests_per_user_day)} requests a day"
    yield "Per user", f"{month} per user-month for {users.users:,.0f} users with {per_day}{per_request}"


def _spot_lines(spot: SpotAccount | UnknownSpot | None) -> Iterator[Line]:
    if spot is None:
        return
    if isinstance(spot, UnknownSpot):
        yield "Spot", spot.note
        return
    each = "the only unit" if spot.units == 1 else f"each of {spot.units} units"
    yield (
        "Spot",
        f"{spot.interruptions_per_hour:.3g} interruptions per hour, {spot.recovery_s:.0f} s to recover: {each} is "
        f"available {spot.available_fraction:.2%} of the time; {spot.hit_fraction:.2%} of requests are interrupted and "
        "restart",
    )
    one = {
        True: "with one unit down the others carry the load",
        False: "with one unit down the objectives are MISSED",
        None: "",
    }
    spares = f"{spot.spares} spare{'' if spot.spares == 1 else 's'} for 99 % of the time"
    need = f"{spares}: {dollars(spot.usd_per_hour_with_spares)}/h with them"
    yield "", "; ".join(part for part in (one[spot.holds_with_one_down], need) if part)


def _rack_lines(rack: RackPower | None) -> Iterator[Line]:
    if rack is None or (rack.nodes == 1 and not rack.nodes_per_rack):
        return
    full = min(rack.nodes_per_rack or rack.nodes, rack.nodes)
    yield (
        "Rack",
        f"{full} node{'' if full == 1 else 's'}: {rack.rack_w_mean / 1e3:.1f} kW on average, "
        f"{rack.rack_w_most / 1e3:.1f} kW with every accelerator at its limit (per node "
        f"{rack.node_w_mean / 1e3:.1f} and {rack.node_w_most / 1e3:.1f}; hosts as in the catalog)",
    )


def _carbon_lines(hours: CarbonHours | UnknownHours | None) -> Iterator[Line]:
    if not isinstance(hours, CarbonHours):
        return
    mean, clean = hours.mean_gco2e_per_million_output_tokens, hours.cleanest_gco2e_per_million_output_tokens
    named = ", ".join(f"{h}" for h in hours.cleanest_hours)
    yield (
        "Carbon",
        f"{mean:.0f} gCO2e per million output tokens around the clock, {clean:.0f} in the cleanest hours ({named}), "
        f"by {hours.source}",
    )


# ---- on the page


def _price_rows(cost: Money | None) -> Rows:
    if cost is None or cost.usd_per_hour is None:
        return [("Price", "unknown", "no known price for this hardware (plan --price USD_PER_HOUR)")]
    machine = instance_words(cost.instance, cost.accelerators_per_instance, 1)
    source = "given on the command line" if cost.price_as_of == "given" else f"{cost.price_source}, {cost.price_as_of}"
    named = CONTRACT_WORDS.get(cost.commitment or "", "")
    rows = [("Per hour", dollars(cost.usd_per_hour), "; ".join(p for p in (named, machine, source) if p))]
    for kind in ("output", "input", "total"):
        value = getattr(cost, f"usd_per_million_{kind}_tokens")
        rows.append(
            (f"Per million {kind} tokens", dollars(value), "cost per hour divided by simulated tokens per hour")
        )
    if cost.usd_per_request is not None:
        rows.append(
            ("Per 1,000 requests", dollars(1000 * cost.usd_per_request), "cost per hour divided by requests per hour")
        )
    return rows


def _user_rows(users: PerUser | None) -> Rows:
    if users is None:
        return []
    per_day = f"{users.users:,.0f} users with {users.requests_per_user_day:,.3g} requests a day"
    month = f"{per_day}, {AROUND_THE_CLOCK}, {users.hours_per_month:g} h a month"
    return [("Per user and month", dollars(users.usd_per_user_month), month)]


def _spot_rows(spot: SpotAccount | UnknownSpot | None) -> Rows:
    if not isinstance(spot, SpotAccount):
        return []
    taken = f"{spot.interruptions_per_instance_hour:g} per hour and instance ({spot.instances} instances), as given"
    one = {True: "yes", False: "NO", None: "unknown"}[spot.holds_with_one_down]
    units = "one unit" if spot.units == 1 else f"{spot.units} units"
    spares = f"{spot.spares}, {dollars(spot.usd_per_hour_with_spares)} per hour"
    capacity = rate(spot.effective_capacity_requests_per_s)
    return [
        ("Interruptions", f"{spot.interruptions_per_hour:.3g} per hour", taken),
        ("Until a replacement serves", seconds(spot.recovery_s), spot.recovery_source),
        ("A unit is available", f"{spot.available_fraction:.2%}", f"units that are lost one at a time: {units}"),
        ("Requests that restart", f"{spot.hit_fraction:.3%}", "in flight when their unit is interrupted"),
        ("Mean capacity", capacity, "without unavailable units and repeated work"),
        ("Meets the objectives with one unit down", one, "capacity of the other units compared with the planned rate"),
        ("Spares for 99 % of the time", spares, "units fail independently"),
    ]


def _rack_rows(rack: RackPower | None) -> Rows:
    if rack is None:
        return []
    most = "every accelerator at its limit, hosts busy"
    hosts = f"{rack.host_w_idle:.0f} W idle, {rack.host_w_per_busy_accelerator:.0f} W per busy accelerator"
    full = min(rack.nodes_per_rack or rack.nodes, rack.nodes)
    rack_of = f"a rack of {full} node{'' if full == 1 else 's'}"
    return [
        ("Node, mean", f"{rack.node_w_mean / 1e3:.2f} kW", f"{rack.source}: {hosts}"),
        ("Node, maximum", f"{rack.node_w_most / 1e3:.2f} kW", most),
        ("Rack, mean", f"{rack.rack_w_mean / 1e3:.1f} kW", f"{rack_of}; {rack.racks} required"),
        ("Rack, maximum", f"{rack.rack_w_most / 1e3:.1f} kW", most),
    ]


def _carbon_rows(hours: CarbonHours | UnknownHours | None) -> Rows:
    if hours is None:
        return []
    if isinstance(hours, UnknownHours):
        return [("Carbon by hour", "unknown", hours.note)]
    mean, clean = hours.mean_gco2e_per_million_output_tokens, hours.cleanest_gco2e_per_million_output_tokens
    named = ", ".join(str(h) for h in hours.cleanest_hours)
    return [
        ("Carbon around the clock", f"{mean:,.0f} g CO2e", f"per million output tokens; {hours.source}"),
        ("Carbon in the cleanest hours", f"{clean:,.0f} g CO2e", f"hours {named}, for work that can wait"),
    ]
