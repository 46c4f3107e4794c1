"""The hourly cost of owned hardware, and the utilisation or time at which it beats renting.

The formulas are in docs/costs.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field

from catalogs.economics.electricity import DEFAULT_PUE, Grid
from catalogs.errors import InputError
from catalogs.io.input_files import is_file
from catalogs.io.json_block import JsonBlock
from catalogs.io.yaml_files import read_yaml, validate_as
from catalogs.units import HOUR_S
from planner.economics.money import HOURS_PER_YEAR, per_million

EXAMPLE: Final = "capex=250000,years=4,power-price=0.08,pue=1.3,utilisation=0.6"

Share = Annotated[float, Field(ge=0, lt=1)]


class OwnedHardware(BaseModel):
    """The user's figures for all the requested hardware; None takes the price of the grid, or the default PUE."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    capex: Annotated[float, Field(gt=0, allow_inf_nan=False)]  # USD
    years: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    power_price: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None  # USD per kWh
    pue: Annotated[float, Field(ge=1, allow_inf_nan=False)] | None = None
    utilisation: Annotated[float, Field(gt=0, le=1)] = 1.0  # share of hours at the planned load; idle in the rest
    residual: Share = 0.0  # resale value after these years, as a share of capex
    interest: Share = 0.0  # per year
    upkeep: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0  # USD per year: space, repairs, staff

    @property
    def capital_usd_per_hour(self) -> float:
        """Return capex less the resale value in equal parts over the years; with interest, an annuity."""
        today = math.exp(-self.years * math.log1p(self.interest))  # present value of a dollar at the end
        paid_off = self.capex * (1 - self.residual * today)
        if not self.interest:
            return paid_off / self.years / HOURS_PER_YEAR
        return paid_off * self.interest / (1 - today) / HOURS_PER_YEAR

    @property
    def upkeep_usd_per_hour(self) -> float:
        """Return the upkeep, US dollars per hour."""
        return self.upkeep / HOURS_PER_YEAR


def parse_owned(text: str) -> OwnedHardware:
    """Return owned hardware from KEY=VALUE pairs with commas, or from a YAML file of the same keys.

    Raises:
        InputError: A key is missing or unknown (the error names the nearest one), or a value is not valid.
    """
    if text.endswith((".yaml", ".yml")) or is_file(text):
        data = read_yaml(Path(text))
    else:
        data = {}
        for pair in text.split(","):
            key, equals, value = (part.strip() for part in pair.partition("="))
            if not equals:
                raise InputError("accounting.owned takes KEY=VALUE pairs or a YAML file", pair, EXAMPLE)
            data[key] = value
    named = {str(k).replace("-", "_"): v for k, v in data.items()}
    missing = next((key for key in ("capex", "years") if key not in named), None)
    if missing:
        raise InputError(f"accounting.owned needs {missing}", text, EXAMPLE)
    return validate_as(OwnedHardware, named, "accounting.owned")


class OwnedCost(JsonBlock):
    """The cost of owned hardware: US dollars per calendar hour, and per token produced in the hours of use."""

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
    busy_usd_per_hour: float  # energy cost of an hour in use; the next field is that of an idle hour
    idle_usd_per_hour: float
    rent_usd_per_hour: float | None
    rent_source: str | None
    rent_always: bool  # whether the rent is due also when idle
    break_even_utilisation: float | None  # None: no rent is known, or owning costs more even at full utilisation
    payback_years: float | None  # None: no rent is known, or renting costs less than power and upkeep
    never: str | None  # why there is no break-even although a rent is known


@dataclass(frozen=True, slots=True)
class RentalCost:
    """The rent of the same hardware; `always` means that it is due also when idle (reserved), not only in use."""

    usd_per_hour: float
    source: str
    always: bool


def owned_cost(
    owned: OwnedHardware,
    busy_w: float,
    idle_w: float,
    tokens_per_s: tuple[float, float],
    grid: Grid,
    rent: RentalCost | None,
) -> OwnedCost:
    """Return the cost of owned hardware and its comparison with renting.

    Args:
        owned: The user's figures.
        busy_w: The power of all servers at the planned load, watts.
        idle_w: The power of all servers when idle, watts.
        tokens_per_s: Output tokens and all tokens per second at the planned load.
        grid: The electricity grid.
        rent: The rent of the same hardware.

    Raises:
        InputError: No price of electricity is known.
    """
    power_usd, power_source = owned.power_price, "given"
    if power_usd is None:
        if grid.usd_per_kwh is None:
            nearest = f"accounting.owned=power-price=0.08,{EXAMPLE}"
            raise InputError(f"no known price of electricity in {grid.name}", None, nearest)
        power_usd, power_source = grid.usd_per_kwh, grid.usd_source
    pue = DEFAULT_PUE if owned.pue is None else owned.pue
    usd_per_w = pue * power_usd / 1000.0
    busy, idle, u = busy_w * usd_per_w, idle_w * usd_per_w, owned.utilisation
    fixed = owned.capital_usd_per_hour + owned.upkeep_usd_per_hour
    energy = u * busy + (1 - u) * idle
    total = fixed + energy
    share, payback, never = (None, None, None) if rent is None else _against(owned, rent, (fixed, busy, idle))
    per_s = total / HOUR_S / u
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


def _against(
    owned: OwnedHardware, rent: RentalCost, hourly: tuple[float, float, float]
) -> tuple[float | None, float | None, str | None]:
    """Return the break-even utilisation, the payback in years, and the reason if there is no break-even.

    `hourly` holds the fixed cost and the energy cost of an hour in use and of an idle hour, US dollars.
    """
    fixed, busy, idle = hourly
    u = owned.utilisation
    paid = rent.usd_per_hour if rent.always else u * rent.usd_per_hour
    running = u * busy + (1 - u) * idle + owned.upkeep_usd_per_hour
    payback = owned.capex / ((paid - running) * HOURS_PER_YEAR) if paid > running else None
    if rent.always:
        cheaper = fixed + u * busy + (1 - u) * idle <= rent.usd_per_hour
        return None, payback, None if cheaper else "a permanent rental costs less than owning"
    saved = rent.usd_per_hour - busy + idle
    share = (fixed + idle) / saved if saved > 0 else math.inf
    return (None, payback, "renting costs less even at full utilisation") if share > 1 else (share, payback, None)
