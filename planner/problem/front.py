"""The question of a Pareto front: its axes, and the request that is simulated for them.

The axes are cost, energy, carbon or a statistic of a latency; lower is better on all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from catalogs.deployments.network_deployment import is_network
from catalogs.errors import InputError, nearest_key, nearest_name
from planner.problem.latency_metrics import LATENCY_METRICS
from planner.problem.request import PlanRequest
from planner.problem.request_keys import FRONT_KEYS
from planner.problem.scenario import request_of_keys
from planner.problem.slo import Slo, parse_slo, parse_slos, split_slos, unclosed

#: Name to unit and words, all per token made while the load lasts.
PER_TOKEN: Final[dict[str, tuple[str, str]]] = {
    "cost": ("USD", "cost per million output tokens"),
    "energy": ("J", "energy per output token, accelerators and hosts"),
    "carbon": ("gCO2e", "carbon per million output tokens, the facility included"),
}

#: The fewest and the most axes of a front.
FEWEST, MOST = 2, 3

#: Limit of a statistic that is only observed: no system is that slow.
NO_LIMIT_S: Final = 1e6


@dataclass(frozen=True, slots=True)
class ParetoAxis:
    """One axis of a front, with values in `unit`; `slo` is the statistic of a latency axis (its limit is ignored)."""

    name: str
    slo: Slo | None = None

    @property
    def unit(self) -> str:
        """Return the unit of the values."""
        return "s" if self.slo is not None else PER_TOKEN[self.name][0]

    @property
    def words(self) -> str:
        """Return the axis in words."""
        if self.slo is None:
            return PER_TOKEN[self.name][1]
        condition = self.slo.latency.condition
        some = "" if condition is None else f" of requests with {condition.words}"
        return f"{self.slo.latency.words}{some}, {self.slo.stat}"

    @property
    def is_known(self) -> bool:
        """Return whether a value follows from the load alone, without a simulation."""
        return self.name == "cost"


def parse_axes(*texts: str) -> tuple[ParetoAxis, ...]:
    """Return the axes of texts such as "cost,ttft.p99": two or three, at least one of them a latency.

    Raises:
        InputError: An axis is unknown, or there are too few, too many or only costs.
    """
    text = ",".join(texts)
    for each in texts:
        if unclosed(each):
            rule = "the bracket of a condition is not closed: ] is missing"
            raise InputError(rule, each, "cost,e2e[in<1k,out<256].p99")
    names = [part.lower() for each in texts for part in split_slos(each)]
    if not FEWEST <= len(names) <= MOST or len(set(names)) < len(names):
        raise InputError("--axes takes two or three different objectives", text, "cost,ttft.p99")
    axes = tuple(_axis(name) for name in names)
    if all(axis.slo is None for axis in axes):
        raise InputError("--axes needs at least one latency", text, "cost,ttft.p99")
    return axes


def _axis(name: str) -> ParetoAxis:
    if name in PER_TOKEN:
        return ParetoAxis(name)
    metric = name.partition(".")[0].partition("[")[0]
    if "." not in name or metric not in LATENCY_METRICS:
        near = nearest_name(metric, (*PER_TOKEN, *LATENCY_METRICS)) or "cost"
        metrics = ", ".join(LATENCY_METRICS)
        rule = f"an axis is {', '.join(PER_TOKEN)} or METRIC.STAT, with METRIC one of {metrics}"
        raise InputError(rule, name, near if near in PER_TOKEN else f"{near}.p99")
    slo = parse_slo(f"{name}=1s")
    return ParetoAxis(slo.name, slo)


def observed_slos(axes: Sequence[ParetoAxis], limits: Sequence[Slo]) -> tuple[Slo, ...]:
    """Return the objectives to read from a run: the limits, and the axes without a limit."""
    named = {slo.name for slo in limits}
    extra = (axis.slo for axis in axes if axis.slo is not None and axis.slo.name not in named)
    return (*limits, *(Slo(s.metric, s.stat, NO_LIMIT_S) for s in extra))


def simulated_objective(axes: Sequence[ParetoAxis]) -> str:
    """Return the objective whose figures the axes need: energy if one of them is energy or carbon, otherwise cost."""
    return "energy" if {axis.name for axis in axes} & {"energy", "carbon"} else "cost"


def front_request(keys: dict[str, Any], axes: tuple[ParetoAxis, ...]) -> tuple[PlanRequest, tuple[Slo, ...]]:
    """Return the request of a front, and the limits that every point on it must meet.

    Args:
        keys: Keys of a request by dotted name.
        axes: The axes of the front.

    Raises:
        InputError: A key is invalid, or plan front does not take it.
    """
    if is_network(str(keys.get("model") or "")):
        rule = "plan front is for language models, and this network is not one"
        raise InputError(rule, keys["model"], "plan --model")
    for name in keys:
        if name not in FRONT_KEYS:
            near = nearest_key(name, FRONT_KEYS)
            raise InputError("plan front has no such key", name, near, None if near else "docs/scenarios.md names them")
    limits = parse_slos([keys["slo"]] if isinstance(keys["slo"], str) else keys["slo"]) if keys.get("slo") else ()
    given = keys | {"slo": observed_slos(axes, limits), "objective": simulated_objective(axes)}
    return request_of_keys(given), limits
