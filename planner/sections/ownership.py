"""The cost of owning the hardware of a plan, compared with renting it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from catalogs.economics.electricity import Grid
from catalogs.economics.instances import ON_DEMAND
from catalogs.economics.prices import Price
from catalogs.hardware.specs import Hardware
from catalogs.io.json_block import every_key_set
from catalogs.ui.charts import BELOW, MARGIN, linear_axis, series_style, vertical_line
from catalogs.ui.html_page import Markup, chart, table
from catalogs.ui.words import dollars, percent
from planner.answer.plan_schema import Plan
from planner.economics.money import price_words
from planner.economics.ownership import OwnedCost, OwnedHardware, RentalCost, owned_cost
from planner.economics.rack_power import idle_w
from planner.problem.accounting import SPOT

HEAD: Final = ("quantity", "value", "source")

#: Number of points of each line in the chart of owning and renting.
_POINTS: Final = 21


@dataclass(frozen=True, slots=True)
class PricedPlan:
    """A plan with the inputs of its accounts; `whole` is all the hardware in the request."""

    plan: Plan
    hardware: Hardware
    whole: Hardware
    price: Price | None
    grid: Grid
    users: int | None
    commitment: str

    @property
    def requests_per_s(self) -> float:
        """Return the planned rate, requests per second."""
        return self.plan.requests_per_s or 0.0


class OwnedAccount(OwnedCost):
    """The cost of owning the plan's part of the hardware.

    `given` holds the user's inputs, with capital expenditure and upkeep reduced to that part.
    """

    given: OwnedHardware
    share_of_hardware_named: float

    @property
    def words(self) -> str:
        """Return a comparison of owning with renting in words."""
        if self.rent_usd_per_hour is None:
            return "no known rental price for this hardware, so no comparison with renting"
        words = [f"renting at {dollars(self.rent_usd_per_hour)}/h ({self.rent_source})", self.never or ""]
        if self.break_even_utilisation is not None:
            words.append(f"owning is cheaper above {percent(self.break_even_utilisation)} utilisation")
        years = self.payback_years
        words.append("the saved rent never pays back the capex" if years is None else f"payback in {years:.1f} years")
        return "; ".join(filter(None, words))

    def rows(self) -> list[tuple[str, str, str]]:
        """Return the rows of the account: quantity, value and source."""
        given, u = self.given, percent(self.utilisation)
        residual = f", {percent(given.residual)} residual value" if given.residual else ""
        interest = f"{percent(given.interest, 1)} interest" if given.interest else "no interest"
        price = f"{self.usd_per_kwh:g} USD per kWh ({self.usd_per_kwh_source})"
        capital = f"{dollars(given.capex)} over {given.years:g} years{residual}, {interest}"
        power = f"in use {u} of the time, otherwise idle; PUE {self.pue:g}; {price}"
        return [
            ("Capital", f"{dollars(self.capital_usd_per_hour)} per hour", capital),
            ("Power", f"{dollars(self.energy_usd_per_hour)} per hour", power),
            ("Upkeep", f"{dollars(self.upkeep_usd_per_hour)} per hour", f"{dollars(given.upkeep)} a year"),
            ("Owned", f"{dollars(self.usd_per_hour)} per hour at {u} utilisation", "every hour of the calendar"),
            ("Per million output tokens", dollars(self.usd_per_million_output_tokens), f"at {u} utilisation"),
        ]

    def parts(self) -> Iterator[Markup]:
        """Yield the table of the page, and the chart if a rent is known."""
        yield table(HEAD, self.rows(), f"Compared with renting: {self.words}.", words=3)
        if self.rent_usd_per_hour is not None:
            caption = "Cost of a calendar hour by utilisation of the hardware; the lines cross at break-even."
            yield chart(self._cost_by_utilisation(self.rent_usd_per_hour), caption, 320)

    def _cost_by_utilisation(self, rent_usd_per_hour: float) -> Any:
        """Return a chart of dollars per calendar hour, owned and rented."""
        import plotly.graph_objects as go

        figure = go.Figure()
        shares = [i / (_POINTS - 1) for i in range(_POINTS)]
        fixed = self.capital_usd_per_hour + self.upkeep_usd_per_hour
        busy, idle = self.busy_usd_per_hour, self.idle_usd_per_hour
        lines = {
            "owned": [fixed + u * busy + (1 - u) * idle for u in shares],
            f"rented ({self.rent_source})": [(1.0 if self.rent_always else u) * rent_usd_per_hour for u in shares],
        }
        for i, (name, values) in enumerate(lines.items()):
            x = [100 * u for u in shares]
            figure.add_scatter(x=x, y=values, mode="lines+markers", name=name, **series_style(i))
        if self.break_even_utilisation is not None:
            even = 100 * self.break_even_utilisation
            vertical_line(figure, even, f"break-even: {even:.0f} %")
        figure.update_xaxes(**linear_axis("utilisation", "%", range=[0, 100]))
        figure.update_yaxes(**linear_axis("cost of a calendar hour", "USD"))
        return figure.update_layout(legend=BELOW, margin=MARGIN)


def owned_account(given: OwnedHardware | None, priced: PricedPlan) -> OwnedAccount | None:
    """Return the cost of owning the plan's part of the hardware; None without inputs or if the energy is unknown."""
    plan, price = priced.plan, priced.price
    if given is None or plan.energy is None:
        return None
    share = priced.hardware.n_accelerators / priced.whole.n_accelerators
    owned = given.model_copy(update={"capex": given.capex * share, "upkeep": given.upkeep * share})
    tokens = plan.metric("output_tokens_per_s") or 0.0, plan.metric("total_tokens_per_s") or 0.0
    rent = None
    if price is not None:
        source = price_words(price) if price.cloud or price.estimate else price.source
        rent = RentalCost(price.usd_per_hour, source, priced.commitment not in (ON_DEMAND, SPOT))
    cost = owned_cost(owned, plan.energy.w_mean, idle_w(priced.hardware), tokens, priced.grid, rent)
    return OwnedAccount(**cost.model_dump(), given=every_key_set(owned), share_of_hardware_named=share)
