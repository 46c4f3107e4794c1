"""What a front is of: money, energy, carbon or a statistic of a latency; lower is better on all of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from catalogs.errors import InputError, nearest_name
from planner.slo import METRIC_WORDS, Slo, parse_slo

#: Name to unit and words, all per token made while the load lasts.
PER_TOKEN: Final[dict[str, tuple[str, str]]] = {
    "cost": ("USD", "cost per million output tokens"),
    "energy": ("J", "energy per output token, accelerators and hosts"),
    "carbon": ("gCO2e", "carbon per million output tokens, the facility included"),
}
FEWEST: Final = 2
MOST: Final = 3


@dataclass(frozen=True, slots=True)
class Axis:
    """slo: the statistic, where it is of a latency (its limit does not count). Values in `unit`."""

    name: str
    slo: Slo | None = None

    @property
    def unit(self) -> str:
        return "s" if self.slo is not None else PER_TOKEN[self.name][0]

    @property
    def words(self) -> str:
        if self.slo is None:
            return PER_TOKEN[self.name][1]
        return f"{METRIC_WORDS[self.slo.metric]}, {self.slo.stat}"

    @property
    def is_known(self) -> bool:
        """Whether a value follows from the load alone, without a simulation."""
        return self.name == "cost"


def parse_axes(text: str) -> tuple[Axis, ...]:
    """ "cost,ttft.p99": two or three, at least one of a latency. Raises InputError."""
    names = [part.strip().lower() for part in text.split(",") if part.strip()]
    if not FEWEST <= len(names) <= MOST or len(set(names)) < len(names):
        raise InputError("a front is of two or three different objectives", text, "cost,ttft.p99")
    axes = tuple(_axis(name) for name in names)
    if all(axis.slo is None for axis in axes):
        raise InputError("one objective of a front is a latency: the others trade against it", text, "cost,ttft.p99")
    return axes


def _axis(name: str) -> Axis:
    if name in PER_TOKEN:
        return Axis(name)
    metric = name.partition(".")[0]
    if "." not in name or metric not in METRIC_WORDS:
        near = nearest_name(metric, (*PER_TOKEN, *METRIC_WORDS)) or "cost"
        rule = f"an objective of a front is {', '.join(PER_TOKEN)} or a latency's statistic ({', '.join(METRIC_WORDS)})"
        raise InputError(rule, name, near if near in PER_TOKEN else f"{near}.p99")
    slo = parse_slo(f"{name}=1s")
    return Axis(slo.name, slo)
