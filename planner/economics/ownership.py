"""What hardware of one's own costs an hour, and from what use or time on it beats renting. Formulas: docs/costs.md."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field

from catalogs.economics.electricity import DEFAULT_PUE, Grid
from catalogs.errors import InputError
from catalogs.io.json_block import JsonBlock
from catalogs.io.yaml_files import read_yaml, validate_as
from planner.economics.money import SECONDS_PER_HOUR, per_million

HOURS_PER_YEAR: Final = 365.25 * 24

EXAMPLE: Final = "capex=250000,years=4,power-price=0.08,pue=1.3,utilisation=0.6"

Share = Annotated[float, Field(ge=0, lt=1)]


class OwnedHardware(BaseModel):
    """As the user gives it: of all the hardware named. None: read elsewhere (the grid's price, the usual PUE)."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    capex: Annotated[float, Field(gt=0, allow_inf_nan=False)]  # USD
    years: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    power_price: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None  # USD per kWh
    pue: Annotated[float, Field(ge=1, allow_inf_nan=False)] | None = None
    utilisation: Annotated[float, Field(gt=0, le=1)] = 1.0  # share of hours at the planned load; the rest idle
    residual: Share = 0.0  # of capex, what it sells for afterwards
    interest: Share = 0.0  # a year
    upkeep: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0  # USD a year: space, repairs, people

    @property
    def capital_usd_per_hour(self) -> float:
        """Capex less what it sells for, in equal parts over its years; with interest an annuity."""
        today = math.exp(-self.years * math.log1p(self.interest))  # worth of a dollar at the end
        paid_off = self.capex * (1 - self.residual * today)
        if not self.interest:
            return paid_off / self.years / HOURS_PER_YEAR
        return paid_off * self.interest / (1 - today) / HOURS_PER_YEAR

    @property
    def upkeep_usd_per_hour(self) -> float:
        return self.upkeep / HOURS_PER_YEAR


def parse_owned(text: str) -> OwnedHardware:
    """KEY=VALUE pairs with commas, or a YAML file of the same keys. Raises InputError naming the nearest key."""
    if text.endswith((".yaml", ".yml")) or Path(text).is_file():
        data = read_yaml(Path(text))
    else:
        data = {}
        for pair in text.split(","):
            key, equals, value = (part.strip() for part in pair.partition("="))
            if not equals:
                raise InputError("hardware of one's own is KEY=VALUE pairs or a YAML file", pair, EXAMPLE)
            data[key] = value
    named = {str(k).replace("-", "_"): v for k, v in data.items()}
    for needed in ("capex", "years"):
        if needed not in named:
            raise InputError(f"hardware of one's own needs {needed}", text, EXAMPLE)
    return validate_as(OwnedHardware, named, "accounting.owned")


@dataclass(frozen=True, slots=True)
class PowerDraw:
    """Watts of all servers: at the planned load, and idle."""

    busy_w: float
    idle_w: float


class OwnedCost(JsonBlock):
    """USD per hour of the calendar, busy or not; per token of what is produced in the hours in use."""

    capital_usd_per_hour: float
    upkeep_usd_per_hour: float
    energy_usd_per_hour: float
    usd_per_hour: float
    usd_per_million_output_tokens: float | None
    usd_per_million_total_tokens: float | None
    utilisation: float
    usd_per_kwh: float
    usd_per_kwh_source: str
    pue: float
    busy_usd_per_hour: float  # power of an hour in use, and of one idle
    idle_usd_per_hour: float
    rent_usd_per_hour: float | None
    rent_source: str | None
    rent_always: bool  # paid whether used or not
    break_even_utilisation: float | None  # None: no rent is known, or owning costs more even when always in use
    payback_years: float | None  # None: no rent is known, or renting costs less than power and upkeep
    never: str | None  # why there is no break-even, where a rent is known


@dataclass(frozen=True, slots=True)
class RentalCost:
    """What the same hardware rents for. always: paid whether used or not (reserved); else only while in use."""

    usd_per_hour: float
    source: str
    always: bool


def owned_cost(
    owned: OwnedHardware, draw: PowerDraw, tokens_per_s: tuple[float, float], grid: Grid | None, rent: RentalCost | None
) -> OwnedCost:
    """tokens_per_s: output and all, at the planned load. Raises InputError where no price of power is known."""
    power_usd, power_source = _power_price(owned, grid)
    pue = DEFAULT_PUE if owned.pue is None else owned.pue
    usd_per_w = pue * power_usd / 1000.0
    busy, idle, u = draw.busy_w * usd_per_w, draw.idle_w * usd_per_w, owned.utilisation
    fixed = owned.capital_usd_per_hour + owned.upkeep_usd_per_hour
    energy = u * busy + (1 - u) * idle
    total = fixed + energy
    share, payback, never = (None, None, None) if rent is None else _against(owned, rent, (fixed, busy, idle))
    per_s = total / SECONDS_PER_HOUR / u
    return OwnedCost(
        capital_usd_per_hour=owned.capital_usd_per_hour,
        upkeep_usd_per_hour=owned.upkeep_usd_per_hour,
        energy_usd_per_hour=energy,
        usd_per_hour=total,
        usd_per_million_output_tokens=per_million(per_s, tokens_per_s[0]),
        usd_per_million_total_tokens=per_million(per_s, tokens_per_s[1]),
        utilisation=u,
        usd_per_kwh=power_usd,
        usd_per_kwh_source=power_source,
        pue=pue,
        busy_usd_per_hour=busy,
        idle_usd_per_hour=idle,
        rent_usd_per_hour=None if rent is None else rent.usd_per_hour,
        rent_source=None if rent is None else rent.source,
        rent_always=rent is not None and rent.always,
        break_even_utilisation=share,
        payback_years=payback,
        never=never,
    )


def _power_price(owned: OwnedHardware, grid: Grid | None) -> tuple[float, str]:
    if owned.power_price is not None:
        return owned.power_price, "given"
    if grid is None or grid.usd_per_kwh is None:
        raise InputError(
            f"no price of power is known in {grid.name if grid else 'this grid'}",
            None,
            f"accounting.owned=power-price=0.08,{EXAMPLE}",
        )
    return grid.usd_per_kwh, grid.usd_source


def _against(
    owned: OwnedHardware, rent: RentalCost, hourly: tuple[float, float, float]
) -> tuple[float | None, float | None, str | None]:
    """(least use from which owning costs less than renting, years until rent saved has paid the capex, why never)."""
    fixed, busy, idle = hourly
    u = owned.utilisation
    paid = rent.usd_per_hour if rent.always else u * rent.usd_per_hour
    running = u * busy + (1 - u) * idle + owned.upkeep_usd_per_hour
    payback = owned.capex / ((paid - running) * HOURS_PER_YEAR) if paid > running else None
    if rent.always:
        cheaper = fixed + u * busy + (1 - u) * idle <= rent.usd_per_hour
        return None, payback, None if cheaper else "rented for good it costs less than owning"
    saved = rent.usd_per_hour - busy + idle
    share = (fixed + idle) / saved if saved > 0 else float("inf")
    if share > 1:
        return None, payback, "renting costs less even at full use"
    return share, payback, None
