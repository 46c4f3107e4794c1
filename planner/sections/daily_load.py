"""A load that changes with time: as many replicas as its peak needs, as its mean needs, and a number that follows it.

What one replica carries with the confidence asked for is known from the plan (`safe_requests_per_s`), so the sizes are
reckoned: the rate of the busiest window, and the mean, over that. The autoscaler holds as many unfinished requests a
replica as there are at that rate (Little's law), less what the load grows while a new replica starts. Then each is
simulated under all of the load, one request after the other, with the cold starts of
catalogs/deployments/autoscaling.py, and what
does not hold is made larger, or more careful. Nothing is said of a size that was not simulated.

The best plan of an answer sized for a load that changes with time: brings `over_time` and the simulator together.

A load over time on the screen: what it is, and the ways to have replicas for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import ceil
from typing import Any, Final

import numpy as np

from calibration.accuracy.stated_error import StatedError
from catalogs.deployments.autoscaling import Autoscaling, ColdStart, parse_autoscaling
from catalogs.errors import InputError
from catalogs.ui.progress import said_meanwhile
from catalogs.ui.terminal import Line
from catalogs.ui.words import hours_words, human_s, seconds
from catalogs.workloads.request_set import RequestSet
from catalogs.workloads.workload import load_workload
from planner.answer.answer import Answer
from planner.answer.measure import MeasuredPlan
from planner.evaluation.confidence import LEVEL, LEVELS, SAFE, Factors, interval, probability
from planner.evaluation.evaluator import OfferedLoad, judge
from planner.evaluation.simulated import SimulatedEvaluator, with_replicas
from planner.problem.load_curve import LoadCurve
from planner.problem.request import PlanRequest
from planner.problem.slo import Slo
from planner.search.objectives import RunSizes
from planner.sections.fleet_day import MOST_WINDOWS, DailyRun, FleetDay, FleetSize
from planner.space.layouts import replicas_of
from simulator.cluster.cluster import RunOptions
from simulator.cluster.compiled import CompiledDeployment
from simulator.cluster.controllers.autoscaler import Autoscaler
from simulator.cluster.run import Run
from simulator.cluster.simulate import run

DAY_S: Final = 86400.0

HOUR_S: Final = 3600.0

#: Share of what a replica carries that an autoscaler aims at, less growth, and how much more careful the next ones are.
_AIM: Final = 1.0

_CAREFUL: Final = (1.0, 0.8, 0.6)

#: Requests of a run: of more, an even part of the fleet is simulated under its part of the load.
_ENOUGH: Final = 40_000

#: Replicas of such a part of an autoscaled fleet, at least: with fewer it would follow in coarser steps.
_PART: Final = 8

#: Replicas beyond the reckoned peak that are tried.
_MORE: Final = 3

#: Probability levels of the stated error at which a size is simulated besides: fewer of long runs.
_LEVELS: Final = (LEVELS[0], 0.5, LEVELS[-1])

_ENDS: Final = (LEVELS[0], LEVELS[-1])

_LONG: Final = 100_000


@dataclass(frozen=True, slots=True)
class ReplicaUnit:
    """One replica as the plan has it. carries_per_s: as surely as `sure` says; in_flight: unfinished requests it then
    has.

    limit: replicas that the hardware named has room for; spare: that may be lost; usd_per_hour: of a replica, None
    where no price is known; cold_start_s: from order to first request.
    """

    carries_per_s: float
    in_flight: float
    limit: int
    spare: int
    usd_per_hour: float | None
    cold_start_s: float
    sure: float = SAFE


@dataclass(frozen=True, slots=True)
class DailyPlan:
    """One way that was looked at: its day, and the same with steps as slow as at levels of the stated error."""

    day: FleetDay
    levels: tuple[float, ...]
    days: tuple[FleetDay, ...]  # at the levels
    share: int


@dataclass(frozen=True, slots=True)
class OverTime:
    """Sizes a unit for a load. said: keys of `autoscaling` that are the user's, the others are reckoned here."""

    clock: DailyRun
    curve: LoadCurve
    unit: ReplicaUnit
    error: StatedError
    said: Mapping[str, Any] = field(default_factory=dict)
    known: dict[object, FleetDay] = field(default_factory=dict)

    def block(self) -> dict[str, Any]:
        """What the answer says."""
        found = list(self._found())
        rows = [self._row(each) for each in found]
        held = [row for row in rows if row["holds"]]
        best = min(held, key=_price, default=None)
        curve = self.curve
        ideal = np.ceil(curve.rates / self.unit.carries_per_s) + self.unit.spare
        return {
            "duration_s": curve.duration_s,
            "n_requests": curve.n_requests,
            "window_s": curve.window_s,
            "rates_per_s": curve.rates.tolist(),
            "peak_per_s": curve.peak_per_s,
            "mean_per_s": curve.mean_per_s,
            "trough_per_s": curve.trough_per_s,
            "replica_carries_per_s": self.unit.carries_per_s,
            "replica_carries_sure": self.unit.sure,
            "cold_start_s": self.unit.cold_start_s,
            "least_accelerator_hours_per_day": float(ideal.mean()) * self.clock.each * 24.0,
            "windows_must_hold": MOST_WINDOWS,
            "ci_level": LEVEL,
            "options": rows,
            "cheapest": None if best is None else best["name"],
        }

    def _found(self) -> Iterator[DailyPlan]:
        yield self._judged(*self._first_that_holds(self._at_peak()))
        yield self._judged(*self._day(FleetSize("mean", self._fits(self.curve.mean_per_s))))
        yield self._judged(*self._first_that_holds(self._scaled()))

    # ---- sizes

    def _needs(self, requests_per_s: float) -> int:
        return ceil(requests_per_s / self.unit.carries_per_s - 1e-9) + self.unit.spare

    def _fits(self, requests_per_s: float) -> int:
        """As many as are needed, or as there is room for."""
        return min(self._needs(requests_per_s), self.unit.limit)

    def _at_peak(self) -> Sequence[FleetSize]:
        """As many as its rate needs, and more after them: real arrivals are burstier than the steady ones of a plan."""
        first = self._fits(self.curve.peak_per_s)
        return [FleetSize("peak", n) for n in range(first, min(first + _MORE, self.unit.limit) + 1)]

    def _scaled(self) -> Sequence[FleetSize]:
        """From bold to careful. What the user says of the autoscaler is kept."""
        said = self.said
        lead_s = self.unit.cold_start_s + float(said.get("interval_s", Autoscaling.model_fields["interval_s"].default))
        aim = _AIM / self.curve.growth_within(lead_s)
        sizes = []
        for careful in _CAREFUL:
            share = aim * careful
            target = max(self.unit.in_flight * share, 0.5)
            most = min(self.unit.limit, max(self._needs(self.curve.peak_per_s / share), 1))
            least = min(most, 1 + self.unit.spare)
            reckoned = {"metric": "outstanding", "target": target, "min_replicas": least, "max_replicas": most}
            scaling = self._checked({**reckoned, **said})
            begin = self._needs(float(self.curve.rates[0]) / share)
            begin = min(max(begin, scaling.min_replicas, 1), scaling.max_replicas)
            sizes.append(FleetSize("autoscaled", begin, scaling))
        return sizes[:1] if {"metric", "target"} & set(said) else sizes

    def _checked(self, data: dict[str, Any]) -> Autoscaling:
        most = data["max_replicas"]
        found = parse_autoscaling(data, most if isinstance(most, int) else self.unit.limit)
        if found.max_replicas > self.unit.limit:
            rule = f"autoscaling.max_replicas beyond the {self.unit.limit} that the hardware named has room for"
            raise InputError(rule, found.max_replicas, str(self.unit.limit))
        return found

    # ---- days

    def _share(self, size: FleetSize) -> int:
        """Even parts of the fleet that are looked at one of: replicas in turn never meet."""
        most = max(1, self.clock.requests.n // _ENOUGH)
        if size.scaling is not None:
            return max(1, min(most, size.most // _PART))
        return max(k for k in range(1, size.replicas + 1) if size.replicas % k == 0 and k <= most)

    def _day(self, size: FleetSize) -> tuple[FleetDay, int]:
        share = self._share(size)
        return self._day_of(size, share), share

    def _day_of(self, size: FleetSize, share: int, speed: float = 1.0) -> FleetDay:
        """Each is simulated once: the mean may need as many as the peak."""
        key = (size.replicas, size.scaling, share, speed)
        if key not in self.known:
            self.known[key] = self.clock.day(size, share, speed)
        return replace(self.known[key], size=size)

    def _first_that_holds(self, sizes: Sequence[FleetSize]) -> tuple[FleetDay, int]:
        """Else the last."""
        for size in sizes:
            day, share = self._day(size)
            if day.holds(self.clock.slos):
                break
        return day, share

    def _judged(self, day: FleetDay, share: int) -> DailyPlan:
        levels = _LEVELS if self.clock.requests.n <= _LONG * share else _ENDS
        speeds = self.error.factors("e2e", np.array(levels)).tolist()
        return DailyPlan(day, levels, tuple(self._day_of(day.size, share, speed) for speed in speeds), share)

    # ---- words

    def _row(self, planned: DailyPlan) -> dict[str, Any]:
        day, slos = planned.day, self.clock.slos
        per_day = DAY_S / day.duration_s
        hours = day.accelerator_s / HOUR_S * per_day
        each = self.unit.usd_per_hour
        scaling = day.size.scaling
        return {
            "name": day.size.name,
            "replicas": day.size.replicas if scaling is None else None,
            "replicas_min": round(float(day.replicas.min()), 3),
            "replicas_mean": float(day.replicas.mean()),
            "replicas_max": round(float(day.replicas.max()), 3),
            "replicas_over_time": day.replicas.tolist(),
            "scaling": None if scaling is None else scaling.model_dump(),
            "accelerator_hours_per_day": hours,
            "usd_per_day": None if each is None else each * hours / self.clock.each,
            "kwh_per_day": day.joules / 3.6e6 * per_day,
            "windows_met": day.windows_met(slos),
            "windows_met_ci_low": min(each.windows_met(slos) for each in planned.days),
            "windows_met_ci_high": max(each.windows_met(slos) for each in planned.days),
            "n_windows": len(day.windows_s[slos[0].name]),
            "slo": [self._slo_row(slo, planned) for slo in slos],
            "holds": day.holds(slos),
            "simulated_part": planned.share,
        }

    def _slo_row(self, slo: Slo, planned: DailyPlan) -> dict[str, Any]:
        day, name = planned.day, slo.name
        factors = Factors.at(np.array(planned.levels), slo, self.error).latency
        moved = factors * np.array([each.values_s[name] for each in planned.days])
        low, high = interval(day.values_s[name], moved, 0.0, planned.levels)
        windows = np.nan_to_num(day.windows_s[name], nan=0.0)
        worst = int(np.argmax(windows))
        return {
            "metric": slo.metric,
            "stat": slo.stat,
            "limit_s": slo.limit_s,
            "value_s": day.values_s[name],
            "ci_low_s": low,
            "ci_high_s": high,
            "met": day.values_s[name] <= slo.limit_s,
            "probability_met": probability(moved, 0.0, slo.limit_s, planned.levels),
            "worst_window_s": float(windows[worst]),
            "worst_at_s": worst * self.curve.duration_s / len(windows),
        }


def _price(row: dict[str, Any]) -> float:
    """Dollars where they are known; they are for all or for none."""
    return float(row["accelerator_hours_per_day"] if row["usd_per_day"] is None else row["usd_per_day"])


#: How sure a capacity is, where no rate is SAFE.
_EVEN: Final = 0.5


@dataclass(frozen=True, slots=True)
class FleetRunner:
    """Where fleets of one kind of replica run, as large as they need to be."""

    plant: CompiledDeployment

    @property
    def each(self) -> int:
        """Accelerators of a replica."""
        return self.plant.resolved.accelerators_per_replica

    def cold_start_s(self, cold: ColdStart) -> float:
        return cold.seconds(self.plant.memory.weights_bytes * self.each)

    def serve(self, size: FleetSize, requests: RequestSet, speed: float) -> Run:
        """See planner.day.Serve."""
        scaling = size.scaling
        plant = with_replicas(self.plant, size.replicas, size.most)
        plant = replace(plant, resolved=replace(plant.resolved, scaling=scaling))
        if scaling is None:
            return run(plant, requests)
        follows = Autoscaler(0, scaling, self.cold_start_s(scaling.cold_start) / speed)
        return run(plant, requests, RunOptions(controllers=(follows,)))


def over_time_block(answer: Answer, world: SimulatedEvaluator) -> dict[str, Any]:
    """Some minutes of simulation where the load is long. Raises InputError for scaling the hardware has no room for."""
    request, best = answer.request, answer.entries[0]
    workload = load_workload(request.workload)
    curve = LoadCurve.of(workload, request.seed)
    requests = workload.materialise(request.seed, curve.n_requests)
    said: dict[str, Any] = dict(request.fixed.values.get("autoscaling") or {})  # type: ignore[call-overload]
    hall = FleetRunner(world.plant(best.candidate))
    error = StatedError.of(request.engine, float(best.block["calibration"]["operator_error"]))  # type: ignore[index]
    unit = _unit(request, best, world, hall.cold_start_s(ColdStart.model_validate(said.get("cold_start") or {})))
    clock = DailyRun(request.slos, requests, curve.duration_s, hall.each, hall.serve)
    with said_meanwhile(f"{curve.n_requests:,} requests over {curve.duration_s / 3600:.3g} h"):
        return OverTime(clock, curve, unit, error, said).block()


def _unit(request: PlanRequest, best: MeasuredPlan, world: SimulatedEvaluator, cold_start_s: float) -> ReplicaUnit:
    candidate, block = best.candidate, best.block
    carries = (block["safe_requests_per_s"] or best.capacity_requests_per_s or best.requests_per_s) / candidate.replicas  # type: ignore[operator]
    sizes = RunSizes.for_slos(request.slos)
    seen = judge(
        [world.observe(candidate, OfferedLoad(carries * candidate.replicas, sizes.full, request.seed))], request.slos
    )
    price = world.price(candidate)
    limit = max(replicas_of(world.names, candidate.layout), candidate.replicas)
    usd = None if price is None else price.usd_per_hour / candidate.replicas
    in_flight = carries * seen.mean_s("e2e")
    sure = SAFE if block["safe_requests_per_s"] else _EVEN
    return ReplicaUnit(carries, in_flight, limit, request.spare.lost(candidate), usd, cold_start_s, sure)


_NAMES: Final = {"peak": "for the peak", "mean": "for the mean", "autoscaled": "autoscaled"}


def over_time_lines(found: dict[str, Any]) -> Iterator[Line]:
    """Of the answer's block `over_time`."""
    rates = " to ".join(f"{found[k]:.3g}" for k in ("trough_per_s", "peak_per_s"))
    each = f"a replica carries {found['replica_carries_per_s']:.3g}, {found['replica_carries_sure']:.0%} sure"
    yield (
        "Load",
        f"{found['n_requests']:,} requests in {hours_words(found['duration_s'])}, {rates} requests/s in windows of "
        f"{human_s(found['window_s'])}, {found['mean_per_s']:.3g} on average; {each}",
    )
    for option in found["options"]:
        yield "Replicas", _option(option, found["cheapest"])
        for row in option["slo"]:
            span = f"{seconds(row['ci_low_s'])} to {seconds(row['ci_high_s'])}"
            verdict = "met" if row["met"] else "MISSED"
            sure = f"{verdict}, {row['probability_met']:.0%} sure"
            worst = f"worst window {seconds(row['worst_window_s'])} at {hours_words(row['worst_at_s'])}"
            yield "", f"  {row['metric']}.{row['stat']} = {seconds(row['value_s'])} ({span}): {sure}; {worst}"
        if option["scaling"] is not None:
            yield "", f"  {_scaling(option, found)}"
            yield "", "  by hour: " + " ".join(f"{n:.3g}" for n in option["replicas_over_time"])
    yield "Cheapest", _cheapest(found)


def _option(option: dict[str, Any], cheapest: str | None) -> str:
    name = _NAMES[option["name"]]
    count = f"{option['replicas']}" if option["replicas"] else f"{option['replicas_mean']:.3g} on average"
    money = "" if option["usd_per_day"] is None else f", ${option['usd_per_day']:,.0f} a day"
    held = "holds" if option["holds"] else "FAILS"
    span = f"{option['windows_met_ci_low']:.0%} to {option['windows_met_ci_high']:.0%}"
    windows = f"{option['windows_met']:.0%} of {option['n_windows']} windows met ({span})"
    best = ", the cheapest that holds" if option["name"] == cheapest else ""
    hours_ = f"{option['accelerator_hours_per_day']:,.4g} accelerator-hours a day"
    return f"{name}: {count}, {hours_}{money}, {option['kwh_per_day']:,.3g} kWh: {held}, {windows}{best}"


def _scaling(option: dict[str, Any], found: dict[str, Any]) -> str:
    scaling = option["scaling"]
    return (
        f"by {scaling['metric']}, target {scaling['target']:.3g} a replica, {scaling['min_replicas']} to "
        f"{scaling['max_replicas']} replicas; {human_s(found['cold_start_s'])} from an order to the first request"
    )


def _cheapest(found: dict[str, Any]) -> str:
    hours_ = f"{found['least_accelerator_hours_per_day']:,.4g} accelerator-hours a day"
    least = f"following every window without delay would take {hours_}"
    if found["cheapest"] is None:
        return f"none of the three holds every objective; {least}"
    by_name = {option["name"]: option for option in found["options"]}
    key = "accelerator_hours_per_day" if by_name["peak"]["usd_per_day"] is None else "usd_per_day"
    saved = 1 - by_name[found["cheapest"]][key] / by_name["peak"][key]
    against = "" if found["cheapest"] == "peak" else f", {saved:.0%} less than for the peak"
    return f"{_NAMES[found['cheapest']]}{against}; {least}"
