"""What the user knows of money and power that is in no catalog: owned hardware, spot interruptions, racks, the grid."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Final, Self

from pydantic import BeforeValidator, Field, PlainSerializer, model_validator

from catalogs.economics.electricity import read_hourly_carbon
from catalogs.errors import InputError
from planner.economics.ownership import OwnedHardware, parse_owned
from planner.problem.request_model import POWER, PRICE, Number, Numbers, RequestModel, Seconds, option

SPOT: Final = "spot"


def _owned(value: object) -> object:
    return parse_owned(value) if isinstance(value, str) else value


def _written(owned: OwnedHardware | None) -> dict[str, Any] | None:
    return None if owned is None else owned.model_dump(exclude_defaults=True)


class Accounting(RequestModel):
    """Changes no plan, only what is reckoned of its costs and power. None and empty: not given."""

    spot_interruptions: Annotated[
        Number | None,
        Field(
            description="Interruptions of a spot instance per hour, by your records.",
            json_schema_extra=option(panel=PRICE, metavar="PER_HOUR", former=["--spot-interruptions"]),
        ),
    ] = None
    spot_recovery_s: Annotated[
        Seconds | None,
        Field(
            alias="spot_recovery",
            description="Time until the replacement of a spot instance serves, e.g. 2min (default: a cold start).",
            json_schema_extra=option(panel=PRICE, metavar="TIME", former=["--spot-recovery"]),
        ),
    ] = None
    owned: Annotated[
        OwnedHardware | None,
        BeforeValidator(_owned),
        PlainSerializer(_written),
        Field(
            description="Owned hardware: capex, years, power_price, ...; also K=V,.. or a YAML file of these keys.",
            json_schema_extra=option(panel=PRICE, metavar="K=V,..|FILE", former=["--owned"]),
        ),
    ] = None
    requests_per_user_day: Annotated[
        Number | None,
        Field(
            description="Requests of a user per day: gives the cost of a user-month.",
            json_schema_extra=option(panel=PRICE, metavar="N", former=["--requests-per-user-day"]),
        ),
    ] = None
    nodes_per_rack: Annotated[
        int | None,
        Field(
            description="Nodes in a rack: gives the power of a rack.",
            json_schema_extra=option(panel=POWER, metavar="N", former=["--nodes-per-rack"]),
        ),
    ] = None
    carbon_hours: Annotated[
        str | None,
        Field(
            description="CSV file of gco2e_per_kwh by hour or timestamp, of your grid.",
            json_schema_extra=option(panel=POWER, metavar="FILE", former=["--carbon-hours"]),
        ),
    ] = None
    power_caps_w: Annotated[
        Numbers,
        Field(
            description="Power limits per accelerator, in W, under which the plan is simulated again.",
            json_schema_extra=option(panel=POWER, metavar="W", former=["--power-cap-w"]),
        ),
    ] = ()

    @model_validator(mode="after")
    def _check(self) -> Self:
        for name, value, nearest in (
            ("spot_interruptions", self.spot_interruptions, "0.05"),
            ("spot_recovery", self.spot_recovery_s, "60s"),
            ("requests_per_user_day", self.requests_per_user_day, "60"),
        ):
            if value is not None and not 0 < value < float("inf"):
                raise InputError(f"accounting.{name} is a number above zero", value, nearest)
        for cap_w in self.power_caps_w:
            if not 0 < cap_w < float("inf"):
                raise InputError("a power cap is a number of watts per accelerator above zero", cap_w, "400")
        if self.nodes_per_rack is not None and self.nodes_per_rack < 1:
            raise InputError("accounting.nodes_per_rack is a whole number of at least 1", self.nodes_per_rack, "4")
        return self

    def check_files(self) -> None:
        """Read the files named, so that what is wrong with them is reported before a search. Raises InputError."""
        if self.carbon_hours is not None:
            read_hourly_carbon(Path(self.carbon_hours))


NO_ACCOUNTING: Final = Accounting()
