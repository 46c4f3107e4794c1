"""The accounts of a plan beyond its price: users, owned hardware, spot interruptions, racks, carbon by the hour.

The catalogs do not hold these inputs, so the user gives them. docs/costs.md has the formulas.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final, Literal

from catalogs.deployments.autoscaling import ColdStart
from catalogs.economics.electricity import UNKNOWN, read_hourly_carbon
from catalogs.io.json_block import JsonBlock
from catalogs.ui.html_page import Markup, table
from catalogs.ui.terminal import Line
from catalogs.ui.words import digits, dollars, percent, rate, seconds
from planner.answer.plan_schema import Plan
from planner.economics.money import CONTRACT_WORDS, HOURS_PER_MONTH, Money, rented_words
from planner.economics.rack_power import RackPower, rack_power
from planner.economics.spot import SpotEffect, SpotFleet, spot_effect
from planner.problem.accounting import SPOT, Accounting
from planner.problem.latency_metrics import E2E
from planner.sections.ownership import HEAD, OwnedAccount, PricedPlan, owned_account
from planner.sections.section import ChosenPlan, Section

#: Seconds of a day.
SECONDS_PER_DAY: Final = 86400.0

#: Seconds until a cloud provides the machine of a replacement: 80-120 s (see ColdStart in
#: catalogs/deployments/autoscaling.py).
NEW_NODE_S: Final = 120.0

#: Hours per day for deferrable work. A judgement: a third of the day.
CLEAN_HOURS: Final = 8

Rows = list[tuple[str, str, str]]  # of a table on the page: quantity, value and source


class PerUser(JsonBlock):
    """The monthly cost of a user, with the planned rate around the clock.

    All costs of an answer refer to `requests_per_s`, the planned rate. Users who wait for their answers may send
    requests at a slightly different rate, that of the closed loop. Answers of earlier versions do not state the rate.
    """

    users: float
    requests_per_user_day: float
    usd_per_user_month: float | None
    hours_per_month: float
    requests_per_s: float | None = None

    def rows(self) -> Rows:
        """Return the row of the account."""
        users = f"each of {self.users:,.0f} users, with {digits(self.requests_per_user_day)} requests a day"
        planned = "" if self.requests_per_s is None else f" at the planned {rate(self.requests_per_s)}"
        source = f"the planned rate around the clock, {self.hours_per_month:g} h a month"
        return [("Per user and month", f"{dollars(self.usd_per_user_month)} for {users}{planned}", source)]


class SpotAccount(SpotEffect):
    """The effect of interruptions of spot instances on the plan.

    `replicas_per_unit` replicas are lost with one unit. `survives_replicas` is the number of lost replicas with which
    the plan was simulated and met its objectives; None without such a simulation.
    """

    interruptions_per_instance_hour: float
    instances: int
    recovery_s: float
    recovery_source: str
    replicas_per_unit: int = 1
    survives_replicas: int | None = None
    note: Literal[None] = None

    def rows(self) -> Rows:
        """Return the rows of the account."""
        rate_given = (
            f"{self.interruptions_per_instance_hour:g} per hour and instance ({self.instances} instances), as given"
        )
        unit, other = ("instance", "replicas") if self.units == self.instances else ("replica", "instances")
        count = f"of {self.units}, lost one at a time; each is lost with its {other}"
        one_down = {True: "yes", False: "NO", None: "unknown"}[self.holds_with_one_down]
        carried = f"capacity of the other {unit}s compared with the planned rate"
        if self.units == 1:
            carried = f"the plan has one {unit}, so nothing is left"
        if self.survives_replicas is not None and self.survives_replicas >= self.replicas_per_unit:
            carried = f"simulated: the plan survives the loss of {self.survives_replicas} replicas"
        elif self.survives_replicas is not None:
            lost = f"{self.replicas_per_unit} replicas are lost with one {unit}"
            carried += f"; {lost}, and the plan was required to survive {self.survives_replicas}"
        capacity = rate(self.effective_capacity_requests_per_s)
        spares = f"{self.spares}, {dollars(self.usd_per_hour_with_spares)} per hour"
        return [
            ("Interruptions", f"{self.interruptions_per_hour:.3g} per hour", rate_given),
            ("Until a replacement serves", seconds(self.recovery_s), self.recovery_source),
            (f"Availability of one {unit}", percent(self.available_fraction, 2), count),
            ("Restarted requests", percent(self.hit_fraction, 3), f"in flight when their {unit} is interrupted"),
            ("Mean capacity", capacity, f"without unavailable {unit}s and repeated work"),
            (f"Meets the objectives with one {unit} down", one_down, carried),
            ("Spares for 99 % of the time", spares, f"{unit}s fail independently"),
        ]


class UnknownSpot(JsonBlock):
    """Spot instances with unknown interruptions; `note` has the reason."""

    interruptions_per_instance_hour: Literal[None] = None
    note: str

    def rows(self) -> Rows:
        """Return the row of the account, with the reason in place of figures."""
        return [("Interruptions", self.note, "")]


class CarbonHours(JsonBlock):
    """Grams of CO2-equivalent per million output tokens by hour of the day, and in the cleanest hours."""

    source: str
    note: Literal[None] = None
    gco2e_per_million_output_tokens: list[float]
    mean_gco2e_per_million_output_tokens: float
    cleanest_hours: list[int]
    cleanest_gco2e_per_million_output_tokens: float

    def rows(self) -> Rows:
        """Return the rows of the account."""
        mean, clean = self.mean_gco2e_per_million_output_tokens, self.cleanest_gco2e_per_million_output_tokens
        hours = ", ".join(map(str, self.cleanest_hours))
        return [
            ("Around the clock", f"{digits(mean)} gCO2e per million output tokens", self.source),
            ("In the cleanest hours", f"{digits(clean)} gCO2e (hours {hours})", "for work that can wait"),
        ]


class UnknownHours(JsonBlock):
    """Unknown carbon by the hour; `note` has the reason."""

    source: Literal[None] = None
    note: str

    def rows(self) -> Rows:
        """Return the reason as a row."""
        return [("Carbon by hour", "unknown", self.note)]


class PlanAccounts(JsonBlock):
    """The accounts of a plan; an account without input is None."""

    per_user: PerUser | None
    owned: OwnedAccount | None
    spot: SpotAccount | UnknownSpot | None
    rack: RackPower | None
    carbon_hours: CarbonHours | UnknownHours | None


class AccountsSection(Section[PlanAccounts]):
    """The section of accounts: cost per user, of owned hardware and on spot instances, and the power of racks."""

    name = "accounts"
    title = "Cost in full: per token, request and user; power of a rack"
    short_title = "Cost in full"
    schema = PlanAccounts

    def compute(self, chosen: ChosenPlan) -> PlanAccounts:
        """Return the accounts that the request has inputs for."""
        request, hardware = chosen.request, chosen.candidate.hardware
        priced = PricedPlan(
            plan=chosen.plan,
            hardware=hardware,
            whole=chosen.named or hardware,
            price=chosen.prices.price(chosen.candidate),
            grid=chosen.prices.own_grid(),
            users=request.users,
            commitment=request.tariff.committed,
        )
        return accounts_of(request.accounting, priced)

    def screen(self, block: PlanAccounts, plan: Plan) -> Iterator[Line]:
        """Yield a line for each account that has inputs; the page has the sources of the figures."""
        rack, hours = block.rack, block.carbon_hours
        several = rack if rack is not None and (rack.nodes > 1 or rack.nodes_per_rack) else None
        accounts = (
            ("Per user", block.per_user),
            ("Spot", block.spot),
            ("Rack", several),
            ("Carbon", hours if isinstance(hours, CarbonHours) else None),
            ("Owned", block.owned),
        )
        for label, account in accounts:
            if account is not None:
                yield label, "; ".join(f"{quantity.lower()}: {value}" for quantity, value, _ in account.rows())
        if block.owned is not None:
            yield "", block.owned.words
        if block.per_user is not None and plan.cost is not None and plan.cost.usd_per_request is not None:
            yield "Per request", dollars(plan.cost.usd_per_request)

    def page(self, block: PlanAccounts, plan: Plan) -> Iterator[Markup]:
        """Yield tables of every account, and a chart of the cost of owning and renting."""
        cost = [row for account in (block.per_user, block.spot) if account for row in account.rows()]
        caption = "Each figure per token divides the whole bill by the tokens of that kind alone."
        yield table(HEAD, _price_rows(plan.cost) + cost, caption, words=3)
        if block.owned is not None:
            yield from block.owned.parts()
        power = [row for account in (block.rack, block.carbon_hours) if account for row in account.rows()]
        if power:
            yield table(HEAD, power, words=3)


def accounts_of(given: Accounting, priced: PricedPlan) -> PlanAccounts:
    """Return every account; an account without input is None, and an unknown account has a `note`."""
    used = priced.plan.energy
    own_w = 0.0 if used is None else used.w_mean - priced.plan.unused_w
    gpu_w = ((priced.plan.metrics or {}).get("power") or {}).get("gpu_w_mean")
    return PlanAccounts(
        per_user=_per_user(given, priced),
        owned=owned_account(given.owned, priced),
        spot=_spot(given, priced),
        rack=None if used is None else rack_power(priced.hardware, own_w, gpu_w, given.nodes_per_rack),
        carbon_hours=None if used is None else _carbon_hours(given, used.kwh_per_million_output_tokens),
    )


def _per_user(given: Accounting, priced: PricedPlan) -> PerUser | None:
    """Return the cost per user, paid around the clock.

    Concurrent users share the hourly cost. Users with a number of requests a day share the requests.
    """
    per_day = priced.requests_per_s * SECONDS_PER_DAY
    users: float | None = priced.users
    if given.requests_per_user_day is not None:
        users = per_day / given.requests_per_user_day
    if users is None:
        return None
    return PerUser(
        users=float(users),
        requests_per_user_day=per_day / users,
        usd_per_user_month=None if priced.price is None else priced.price.usd_per_hour * HOURS_PER_MONTH / users,
        hours_per_month=HOURS_PER_MONTH,
        requests_per_s=priced.requests_per_s,
    )


def _spot(given: Accounting, priced: PricedPlan) -> SpotAccount | UnknownSpot | None:
    """Return the account of spot instances, or None if the plan has none."""
    plan, price = priced.plan, priced.price
    if priced.commitment != SPOT or price is None:
        return None
    if given.spot_interruptions is None:
        note = "the catalog has no public interruption rates: give accounting.spot_interruptions"
        return UnknownSpot(interruptions_per_instance_hour=None, note=note)
    recovery_s, source, replicas = given.spot_recovery_s, "given", int(plan.deployment["replicas"])
    if recovery_s is None:
        weights_bytes = 0.0 if plan.memory is None else plan.memory.weights_bytes
        each = weights_bytes * priced.hardware.n_accelerators / max(replicas, 1)
        recovery_s = ColdStart(node_s=NEW_NODE_S).seconds(each)
        source = "a new node, its image, weights and engine (catalogs/deployments/autoscaling.py)"
    fleet = SpotFleet(
        instances=price.n_instances or priced.hardware.n_nodes,
        replicas=replicas,
        requests_per_s=priced.requests_per_s,
        capacity_requests_per_s=plan.capacity_requests_per_s,
        e2e_mean_s=plan.latency_s(E2E.name, "mean") or 0.0,
        usd_per_hour=price.usd_per_hour,
    )
    effect = spot_effect(fleet, given.spot_interruptions, recovery_s)
    lost, survival = -(-replicas // effect.units), plan.survival
    survived = replicas - survival.replicas_left if survival is not None and survival.met else None
    if survived is not None and survived >= lost:  # simulated, which is more exact than the ratio of capacities
        effect = effect.model_copy(update={"holds_with_one_down": True})
    return SpotAccount(
        **effect.model_dump(),
        replicas_per_unit=lost,
        survives_replicas=survived,
        interruptions_per_instance_hour=given.spot_interruptions,
        instances=fleet.instances,
        recovery_s=recovery_s,
        recovery_source=source,
        note=None,
    )


def _carbon_hours(given: Accounting, kwh_per_million: float) -> CarbonHours | UnknownHours:
    if given.carbon_hours is None:
        return UnknownHours(source=None, note=UNKNOWN)
    day = read_hourly_carbon(Path(given.carbon_hours))
    hours, cleanest = day.cleanest(CLEAN_HOURS)
    return CarbonHours(
        source=day.source,
        note=None,
        gco2e_per_million_output_tokens=[kwh_per_million * g for g in day.gco2e_per_kwh],
        mean_gco2e_per_million_output_tokens=kwh_per_million * day.mean,
        cleanest_hours=list(hours),
        cleanest_gco2e_per_million_output_tokens=kwh_per_million * cleanest,
    )


def _price_rows(cost: Money | None) -> Rows:
    if cost is None or cost.usd_per_hour is None:
        return [("Price", "unknown", "no known price for this hardware (plan --price USD_PER_HOUR)")]
    machine = rented_words(cost.instances)
    source = "given on the command line" if cost.price_as_of == "given" else f"{cost.price_source}, {cost.price_as_of}"
    contract = CONTRACT_WORDS.get(cost.commitment or "", "")
    per_token, per_request = (f"whole bill divided by {what} per hour" for what in ("simulated tokens", "requests"))
    clock = f"{HOURS_PER_MONTH:g} hours a month, around the clock"
    rows = [
        ("Per hour", dollars(cost.usd_per_hour), "; ".join(filter(None, (machine, contract, source, cost.price_note)))),
        ("Per month", dollars(cost.usd_per_month), clock),
        ("Per year", dollars(cost.usd_per_year), clock),
        ("Per million output tokens", dollars(cost.usd_per_million_output_tokens), per_token),
        ("Per million input tokens", dollars(cost.usd_per_million_input_tokens), per_token),
        ("Per million total tokens", dollars(cost.usd_per_million_total_tokens), per_token),
    ]
    if cost.usd_per_request is not None:
        rows.append(("Per 1,000 requests", dollars(1000 * cost.usd_per_request), per_request))
    return rows
