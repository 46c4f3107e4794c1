"""What a plan costs beyond its price tag, as far as the user says what is not in any catalog: users, owned hardware,
spot interruptions, racks, hours of the day. The `accounts` block of an answer; formulas in docs/costs.md."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from catalogs.errors import InputError
from catalogs.grid import Grid
from catalogs.grid_hours import UNKNOWN, DayOfCarbon, read_day
from catalogs.hardware import Hardware, parse_hardware
from catalogs.prices import ON_DEMAND, Price
from catalogs.scaling import ColdStart
from planner.choices import is_one
from planner.offers import n_instances
from planner.owned import HOURS_PER_YEAR, Draw, Owned, Rent, owned_cost, owned_document, parse_owned
from planner.rack import idle_w, rack_power
from planner.spot import Fleet, Interruptions, spot_effect

HOURS_PER_MONTH: Final = HOURS_PER_YEAR / 12
SECONDS_PER_DAY: Final = 86400.0
#: A replacement on a cloud comes with a new machine: 80-120 s until it is there (see catalogs/scaling.ColdStart).
NEW_NODE_S: Final = 120.0
#: Hours of a day that work which can wait is moved to.
CLEAN_HOURS: Final = 8
SPOT: Final = "spot"


@dataclass(frozen=True, slots=True)
class Accounts:
    """What the user says of money and power; None and empty: not said. texts: as given, for the command to repeat."""

    owned: Owned | None = None
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
    def parse(cls, owned: str | None, hours: str | None, caps: Sequence[str], **rest: Any) -> Accounts:
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


NO_ACCOUNTS: Final = Accounts()


def _watts(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise InputError("a power cap is a number of watts per accelerator", text, "400") from None


@dataclass(frozen=True, slots=True)
class Planned:
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
    ) -> Planned:
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


def accounts_block(asked: Accounts, plan: Planned) -> dict[str, Any]:
    """The `accounts` block; a part that nothing was said of is None, what is unknown says so in `note`."""
    return {
        "per_user": _per_user(asked, plan),
        "owned": _owned(asked, plan),
        "spot": _spot(asked, plan),
        "rack": _rack(asked, plan),
        "carbon_hours": _carbon_hours(asked, plan),
    }


def _per_user(asked: Accounts, plan: Planned) -> dict[str, Any] | None:
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


def _owned(asked: Accounts, plan: Planned) -> dict[str, Any] | None:
    if asked.owned is None or plan.block["energy"] is None:
        return None
    share = plan.hardware.n_accelerators / plan.whole.n_accelerators
    update = {"capex": asked.owned.capex * share, "upkeep": asked.owned.upkeep * share}
    owned = asked.owned.model_copy(update=update)
    draw = Draw(plan.block["energy"]["w_mean"], idle_w(plan.hardware))
    metrics, rent = plan.block["metrics"], None
    if plan.price is not None:
        source = " ".join(p for p in (plan.price.cloud, plan.commitment) if p) or plan.price.source
        rent = Rent(plan.price.usd_per_hour, source, plan.commitment not in (ON_DEMAND, SPOT))
    cost = owned_cost(owned, draw, (metrics["output_tokens_per_s"], metrics["total_tokens_per_s"]), plan.grid, rent)
    return owned_document(owned, cost) | {"share_of_hardware_named": share}


def _spot(asked: Accounts, plan: Planned) -> dict[str, Any] | None:
    """None unless spot instances are planned."""
    if plan.commitment != SPOT or plan.price is None:
        return None
    if asked.spot_interruptions is None:
        note = "how often instances are taken is in no public table of this catalog: give --spot-interruptions PER_HOUR"
        return {"interruptions_per_instance_hour": None, "note": note}
    recovery_s, source = asked.spot_recovery_s, "given"
    if recovery_s is None:
        recovery_s, source = _cold_start_s(plan), "a new node, its image, weights and engine (catalogs/scaling.py)"
    fleet = Fleet(
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


def _cold_start_s(plan: Planned) -> float:
    replicas = max(plan.block["deployment"]["replicas"], 1)
    weights = plan.block["memory"]["weights_bytes"] * plan.hardware.n_accelerators / replicas
    return ColdStart(node_s=NEW_NODE_S).seconds(weights)


def _rack(asked: Accounts, plan: Planned) -> dict[str, Any] | None:
    energy = plan.block["energy"]
    if energy is None:
        return None
    gpu_w = (plan.block["metrics"].get("power") or {}).get("gpu_w_mean")
    return asdict(rack_power(plan.hardware, energy["w_mean"], gpu_w, asked.nodes_per_rack))


def _carbon_hours(asked: Accounts, plan: Planned) -> dict[str, Any] | None:
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
