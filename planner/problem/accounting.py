"""What the user says of money and power that is in no catalog: users, owned hardware, spot interruptions, racks, hours
of the day, power limits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from catalogs.economics.electricity import read_day
from catalogs.errors import InputError
from planner.economics.ownership import OwnedHardware, parse_owned

SPOT: Final = "spot"


@dataclass(frozen=True, slots=True)
class Accounting:
    """What the user says of money and power; None and empty: not said. texts: as given, for the command to repeat."""

    owned: OwnedHardware | None = None
    spot_interruptions: float | None = None  # per instance and hour
    spot_recovery_s: float | None = None
    requests_per_user_day: float | None = None
    nodes_per_rack: int | None = None
    carbon_hours: str | None = None  # a file
    owned_text: str | None = None
    power_caps_w: tuple[float, ...] = ()  # per accelerator

    def __post_init__(self) -> None:
        for name, value in (
            ("spot-interruptions", self.spot_interruptions),
            ("spot-recovery", self.spot_recovery_s),
            ("requests-per-user-day", self.requests_per_user_day),
        ):
            if value is not None and not 0 < value < float("inf"):
                raise InputError(f"--{name} is a number above zero", value, "0.05" if "inter" in name else "60")
        for cap_w in self.power_caps_w:
            if not 0 < cap_w < float("inf"):
                raise InputError("a power cap is a number of watts per accelerator above zero", cap_w, "400")
        if self.nodes_per_rack is not None and self.nodes_per_rack < 1:
            raise InputError("--nodes-per-rack is a whole number of at least 1", self.nodes_per_rack, "4")

    @classmethod
    def parse(cls, owned: str | None, hours: str | None, caps: Sequence[str], **rest: Any) -> Accounting:
        """Files are read at once, so that what is wrong with them is said before the search."""
        if hours is not None:
            read_day(Path(hours))
        own = None if owned is None else parse_owned(owned)
        watts = tuple(_watts(part) for text in caps for part in text.split(","))
        return cls(own, carbon_hours=hours, owned_text=owned, power_caps_w=watts, **rest)

    @property
    def options(self) -> dict[str, object]:
        """As the command line takes them; None: not given."""
        return {
            "--owned": self.owned_text,
            "--spot-interruptions": self.spot_interruptions,
            "--spot-recovery": self.spot_recovery_s,
            "--requests-per-user-day": self.requests_per_user_day,
            "--nodes-per-rack": self.nodes_per_rack,
            "--carbon-hours": self.carbon_hours,
            "--power-cap-w": ",".join(f"{w:g}" for w in self.power_caps_w) or None,
        }


NO_ACCOUNTS: Final = Accounting()


def _watts(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise InputError("a power cap is a number of watts per accelerator", text, "400") from None
