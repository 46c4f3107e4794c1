"""The block of a load that changes with time: the load, the fleets that were simulated for it, and their words."""

from __future__ import annotations

from typing import Final

from catalogs.deployments.autoscaling import Autoscaling
from catalogs.io.json_block import JsonBlock
from catalogs.ui.words import counted, percent, rate
from planner.answer.plan_schema import Plan, SloResult
from planner.sections.fleet_day import Name
from planner.sections.section import level_words

_OPTION_NAMES: Final = {"peak": "for the peak", "mean": "for the mean", "autoscaled": "autoscaled"}


class WindowedSloResult(SloResult):
    """An objective over the whole load, with the value and the start of its worst window in seconds."""

    worst_window_s: float
    worst_at_s: float


class ReplicaOption(JsonBlock):
    """A fleet for the load; `replicas` is None if the number of replicas follows the load.

    `kwh_per_day` includes the facility (PUE), as the energy of the plan does.
    """

    name: Name
    replicas: int | None
    replicas_min: float
    replicas_mean: float
    replicas_max: float
    replicas_over_time: list[float]
    scaling: Autoscaling | None
    accelerator_hours_per_day: float
    usd_per_day: float | None
    kwh_per_day: float | None
    windows_met: float
    windows_met_ci_low: float
    windows_met_ci_high: float
    n_windows: int
    slo: list[WindowedSloResult]
    holds: bool
    simulated_part: int

    @property
    def price(self) -> float:
        """Return dollars per day, or accelerator-hours if no price is known; all options have the same unit."""
        return self.accelerator_hours_per_day if self.usd_per_day is None else self.usd_per_day


class DailyLoad(JsonBlock):
    """The load over time, the rate that one replica serves, and the fleets for the load.

    It is `drawn` if the workload has a rate, but is neither a trace nor a rate curve. The rates, and the objectives of
    each option, are those of the same windows.
    """

    duration_s: float
    n_requests: int
    drawn: bool = False
    window_s: float
    rates_per_s: list[float]
    peak_per_s: float
    mean_per_s: float
    trough_per_s: float
    replica_carries_per_s: float
    replica_carries_sure: float
    cold_start_s: float
    least_accelerator_hours_per_day: float
    windows_must_hold: float
    ci_level: float
    options: list[ReplicaOption]
    cheapest: Name | None

    @property
    def mean_is_peak(self) -> bool:
        """Return whether the sizes for the peak and for the mean are the same number of replicas."""
        replicas = {option.name: option.replicas for option in self.options}
        return replicas.get("peak") is not None and replicas.get("peak") == replicas.get("mean")

    def words(self, name: str) -> str:
        """Return the name of an option in words; the peak names the mean as well if they are the same fleet."""
        return "for the peak and the mean" if name == "peak" and self.mean_is_peak else _OPTION_NAMES[name]


def option_words(option: ReplicaOption, block: DailyLoad) -> str:
    """Return the size of a fleet, what it costs a day, and whether it meets the objectives."""
    count = f"{option.replicas}" if option.replicas else f"{option.replicas_mean:.3g} on average"
    hours = f"{option.accelerator_hours_per_day:,.4g} accelerator-hours per day"
    money = "" if option.usd_per_day is None else f", ${option.usd_per_day:,.0f} per day"
    energy = "energy unknown" if option.kwh_per_day is None else f"{option.kwh_per_day:,.3g} kWh"
    span = level_words(block.ci_level, f"{percent(option.windows_met_ci_low)} to {percent(option.windows_met_ci_high)}")
    short = option.windows_met_ci_low < block.windows_must_hold
    needed = f"; {percent(block.windows_must_hold)} are required" if short else ""
    verdict = "" if option.holds else "missed at the required confidence; "
    met = f"{verdict}met in {percent(option.windows_met)} of {option.n_windows} windows ({span}{needed})"
    best = ", the cheapest that meets them" if option.name == block.cheapest else ""
    return f"{block.words(option.name)}: {count}, {hours}{money}, {energy}: objectives {met}{best}"


def cheapest_words(block: DailyLoad) -> str:
    """Return the cheapest fleet that meets the objectives, and the least accelerator-hours that any fleet needs."""
    hours = f"{block.least_accelerator_hours_per_day:,.4g} accelerator-hours per day"
    least = f"an ideal autoscaler without delay would need {hours}"
    if block.cheapest is None:
        return f"none of the three meets every objective; {least}"
    by_name = {option.name: option for option in block.options}
    saved = 1 - by_name[block.cheapest].price / by_name["peak"].price
    against = "" if block.cheapest == "peak" else f", {percent(saved)} less than for the peak"
    return f"{block.words(block.cheapest)}{against}; {least}"


def peak_words(block: DailyLoad, plan: Plan) -> str:
    """Return how many replicas the load needs at its peak if the recommended plan has another number; else nothing.

    The plan is for random arrivals at the rate of the busiest window, and the arrivals of a trace may be burstier.
    """
    peak = next(option for option in block.options if option.name == "peak")
    planned = int(plan.deployment["replicas"])
    if peak.holds and peak.replicas == planned:
        return ""
    sized = f"This is sized for random arrivals at {rate(block.peak_per_s)}, the rate of the busiest window."
    if not peak.holds:
        return f"{sized} No fixed number of replicas that was simulated meets the objectives over the whole load."
    money = "" if peak.usd_per_day is None else f", ${peak.usd_per_day:,.0f} per day"
    return f"{sized} The load itself needs {counted(int(peak.replicas or 0), 'replica')} for its peak{money}."
