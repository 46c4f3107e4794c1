"""Cost and power inputs that no catalog holds: owned hardware, spot interruptions, racks, and the carbon of a grid."""

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
    """Inputs that change the computed costs and power of a plan, but not the plan. None and empty: not given."""

    spot_interruptions: Annotated[
        Number | None,
        Field(
            description="Interruptions of a spot instance per hour.",
            json_schema_extra=option(panel=PRICE, metavar="PER_HOUR", former=["--spot-interruptions"]),
        ),
    ] = None
    spot_recovery_s: Annotated[
        Seconds | None,
        Field(
            alias="spot_recovery",
            description="Time until a replacement of a spot instance serves, e.g. 2min (default: a cold start).",
            json_schema_extra=option(panel=PRICE, metavar="TIME", former=["--spot-recovery"]),
        ),
    ] = None
    owned: Annotated[
        OwnedHardware | None,
        BeforeValidator(_owned),
        PlainSerializer(_written),
        Field(
            description="Owned hardware: capex, years, power_price, ...; as K=V,.. or a YAML file of these keys.",
            json_schema_extra=option(panel=PRICE, metavar="K=V,..|FILE", former=["--owned"]),
        ),
    ] = None
    requests_per_user_day: Annotated[
        Number | None,
        Field(
            description="Requests of a user per day, to compute the cost of a user-month.",
            json_schema_extra=option(panel=PRICE, metavar="N", former=["--requests-per-user-day"]),
        ),
    ] = None
    nodes_per_rack: Annotated[
        int | None,
        Field(
            description="Nodes in a rack, to compute its power.",
            json_schema_extra=option(panel=POWER, metavar="N", former=["--nodes-per-rack"]),
        ),
    ] = None
    carbon_hours: Annotated[
        str | None,
        Field(
            description="CSV file with the gco2e_per_kwh of your grid by hour or timestamp.",
            json_schema_extra=option(panel=POWER, metavar="FILE", former=["--carbon-hours"]),
        ),
    ] = None
    power_caps_w: Annotated[
        Numbers,
        Field(
            description="Evaluate the plan under these power limits, watts per accelerator.",
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
        """Read the named files, so that faults in them are reported before the search.

        Raises:
            InputError: A file cannot be read or is not valid.
        """
        if self.carbon_hours is not None:
            read_hourly_carbon(Path(self.carbon_hours))


NO_ACCOUNTING: Final = Accounting()
