"""Cost and power inputs that no catalog holds: owned hardware, spot interruptions, racks, and the carbon of a grid."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Final, Self

from pydantic import BeforeValidator, PlainSerializer, model_validator

from catalogs.economics.electricity import read_hourly_carbon
from planner.economics.ownership import OwnedHardware, parse_owned
from planner.problem.key_definition import POWER, PRICE, Number, Numbers, RequestModel, Seconds, Whole, key, refuse_if

SPOT: Final = "spot"


class Accounting(RequestModel):
    """Inputs that change the computed costs and power of a plan, but not the plan. None and empty: not given."""

    spot_interruptions: Annotated[
        Number | None,
        key("Interruptions of a spot instance per hour.", PRICE, metavar="PER_HOUR", former="--spot-interruptions"),
    ] = None
    spot_recovery_s: Annotated[
        Seconds | None,
        key(
            "Time until a replacement of a spot instance serves, e.g. 2min (default: a cold start).",
            PRICE,
            metavar="TIME",
            alias="spot_recovery",
            former="--spot-recovery",
        ),
    ] = None
    owned: Annotated[
        OwnedHardware | None,
        BeforeValidator(lambda value: parse_owned(value) if isinstance(value, str) else value),
        PlainSerializer(lambda owned: owned and owned.model_dump(exclude_defaults=True)),
        key(
            "Owned hardware: capex, years, power_price, ...; as K=V,.. or a YAML file of these keys.",
            PRICE,
            metavar="K=V,..|FILE",
            former="--owned",
        ),
    ] = None
    requests_per_user_day: Annotated[
        Number | None,
        key(
            "Requests of a user per day, to compute the cost of a user-month.",
            PRICE,
            metavar="N",
            former="--requests-per-user-day",
        ),
    ] = None
    nodes_per_rack: Annotated[
        Whole | None, key("Nodes in a rack, to compute its power.", POWER, metavar="N", former="--nodes-per-rack")
    ] = None
    carbon_hours: Annotated[
        str | None,
        key(
            "CSV file with the gco2e_per_kwh of your grid by hour or timestamp.",
            POWER,
            metavar="FILE",
            former="--carbon-hours",
        ),
    ] = None
    power_caps_w: Annotated[
        Numbers,
        key(
            "Evaluate the plan under these power limits, watts per accelerator.",
            POWER,
            metavar="W",
            former="--power-cap-w",
        ),
    ] = ()

    @model_validator(mode="after")
    def _check(self) -> Self:
        for name, value, nearest in (
            ("spot_interruptions", self.spot_interruptions, "0.05"),
            ("spot_recovery", self.spot_recovery_s, "60s"),
            ("requests_per_user_day", self.requests_per_user_day, "60"),
        ):
            if value is not None:
                refuse_if(not 0 < value < math.inf, f"accounting.{name} is a number above zero", value, nearest)
        for cap_w in self.power_caps_w:
            rule = "a power cap is a number of watts per accelerator above zero"
            refuse_if(not 0 < cap_w < math.inf, rule, cap_w, "400")
        if (nodes := self.nodes_per_rack) is not None:
            refuse_if(nodes < 1, "accounting.nodes_per_rack is a whole number of at least 1", nodes, "4")
        return self

    def check_files(self) -> None:
        """Read the named files, so that faults in them are reported before the search.

        Raises:
            InputError: A file cannot be read or is not valid.
        """
        if self.carbon_hours is not None:
            read_hourly_carbon(Path(self.carbon_hours))


NO_ACCOUNTING: Final = Accounting()
