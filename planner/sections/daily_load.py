"""Fleet sizes for a load that changes with time: sized for the peak, sized for the mean, and autoscaled.

The capacity of the plan gives the rate that one replica serves with the required confidence. The peak rate and the
mean rate divided by it give the first two sizes. The target of the autoscaler is the number of unfinished
requests per replica at that rate (Little's law), reduced by the growth of the load while a new replica starts. Each
size is then simulated under the whole load, with the cold starts of catalogs/deployments/autoscaling.py. A size that
misses the objectives is enlarged, or its autoscaler gets a lower target. Every reported figure is simulated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import ceil, isclose
from typing import Any, Final

import numpy as np

from calibration.accuracy.stated_error import StatedError
from catalogs.arrays import FloatArray
from catalogs.deployments.autoscaling import Autoscaling, ColdStart, parse_autoscaling, scaling_words
from catalogs.errors import InputError
from catalogs.io.json_block import every_key_set
from catalogs.ui.progress import status_line
from catalogs.ui.terminal import Line
from catalogs.ui.words import digits, hours_text, human_s, percent, rate, seconds
from catalogs.units import HOUR_S
from catalogs.workloads.request_set import RequestSet
from planner.answer.plan_schema import Plan
from planner.economics.money import JOULES_PER_KWH
from planner.evaluation.confidence import (
    LEVEL,
    LEVELS,
    SPEED,
    Factors,
    allowance_for,
    confidence_at_levels,
)
from planner.evaluation.deployments import with_replicas
from planner.evaluation.observation import Load
from planner.evaluation.run_sizes import run_sizes
from planner.evaluation.verdict import judge
from planner.problem.latency_metrics import E2E
from planner.problem.load_curve import MOST_SIMULATED, LoadCurve
from planner.problem.request import PlanRequest
from planner.problem.slo import Slo
from planner.search.workers import ProcessPool, WorkerPool
from planner.sections.daily_load_block import (
    DailyLoad,
    ReplicaOption,
    WindowedSloResult,
    cheapest_words,
    option_words,
    peak_words,
)
from planner.sections.fleet_day import LEAST_WINDOWS_MET, DailyRun, FleetDay, FleetSize
from planner.sections.section import ChosenPlan, Section, result_words
from planner.space.layouts import replicas_of
from simulator.cluster.cluster import RunOptions
from simulator.cluster.compiled import CompiledDeployment
from simulator.cluster.controllers.autoscaler import Autoscaler
from simulator.cluster.run import Run
from simulator.cluster.simulate import simulate

#: Seconds of a day.
DAY_S: Final = 24 * HOUR_S

#: A run of the load: the size of the fleet, its number of equal parts, and the factor on the times of steps.
DayRun = tuple[FleetSize, int, float]

#: Factors on the target of the autoscaler in the first and the more careful attempts. A judgement of cost: each attempt
#: simulates the whole day.
_AUTOSCALER_TARGET_FACTORS: Final = (1.0, 0.8, 0.6)

#: Minimum number of replicas in such a part of an autoscaled fleet. A judgement: fewer replicas would scale in coarser
#: steps.
_MIN_REPLICAS_PER_PART: Final = 8

#: Number of additional replicas that are tried above the computed peak size. A judgement of cost: each simulates the
#: whole day.
_EXTRA_REPLICAS_TRIED: Final = 3

#: Probability levels of the stated error at which a size is simulated as well.
_ERROR_LEVELS: Final = (LEVELS[0], 0.5, LEVELS[-1])

#: The levels for runs of more than `_LONG_RUN_REQUESTS` requests.
_ERROR_LEVELS_OF_LONG_RUNS: Final = (LEVELS[0], LEVELS[-1])

#: Requests from which a run counts as long. A judgement of cost.
_LONG_RUN_REQUESTS: Final = 100_000


class DailyLoadSection(Section[DailyLoad]):
    """The section of the recommended plan sized for a load that changes with time."""

    name = "over_time"
    title = "Load over time"
    short_title = "Over time"
    schema = DailyLoad

    def wanted(self, request: PlanRequest) -> bool:
        """Return True if the request has a load that changes with time."""
        return request.over_time

    def compute(self, chosen: ChosenPlan) -> DailyLoad:
        """Simulate every size; a long load takes some minutes.

        Raises:
            InputError: The autoscaling of the request does not fit on the hardware.
        """
        request = chosen.request
        workload = request.read_workload()
        curve = LoadCurve.of(workload, request.seed, request.slos)
        requests = workload.materialise(request.seed, curve.n_requests)
        given: dict[str, Any] = dict(request.fixed.values.get("autoscaling") or {})  # type: ignore[call-overload]
        compiled = chosen.evaluator.deployments.compiled(chosen.candidate)
        each = compiled.resolved.accelerators_per_replica
        run = DailyRun(request.slos, requests, curve.duration_s, curve.n_windows, each, partial(serve, compiled))
        unit = _unit(chosen, _cold_start_s(compiled, ColdStart.model_validate(given.get("cold_start") or {})))
        with status_line(f"{curve.n_requests:,} requests over {curve.duration_s / HOUR_S:.3g} h"):
            return OverTime(run, curve, unit, chosen.error, given, chosen.workers).block()

    def caveat(self, block: DailyLoad, plan: Plan) -> str:
        """Return how many replicas the load itself needs, if the plan has another number."""
        return peak_words(block, plan)

    def screen(self, block: DailyLoad, plan: Plan) -> Iterator[Line]:  # noqa: ARG002
        """Yield the load, every option with its objectives, and the cheapest option."""
        drawn = " (drawn from the distributions of the workload, not a recorded trace)" if block.drawn else ""
        load = f"{block.n_requests:,} requests in {hours_text(block.duration_s)}{drawn}"
        rates = f"{digits(block.trough_per_s)} to {rate(block.peak_per_s)} in windows of {human_s(block.window_s)}"
        confidence = percent(block.replica_carries_sure)
        each = f"one replica serves {digits(block.replica_carries_per_s)} with {confidence} confidence"
        yield "Load", f"{load}, {rates}, {digits(block.mean_per_s)} on average; {each}"
        for option in block.options:
            if option.name == "mean" and block.mean_is_peak:
                continue  # the same fleet, whose results are above
            yield "Replicas", option_words(option, block)
            for row in option.slo:
                worst = f"; worst window {seconds(row.worst_window_s)} at {hours_text(row.worst_at_s)}"
                yield "", f"  {result_words(row, block.ci_level)}{'' if row.has_no_value else worst}"
            if option.scaling is not None:
                yield "", f"  {scaling_words(option.scaling, human_s(block.cold_start_s))}"
                part_s = block.duration_s / len(option.replicas_over_time)
                parts = "by hour" if isclose(part_s, HOUR_S) else f"every {human_s(part_s)}"
                yield "", f"  replicas {parts}: " + " ".join(f"{n:.3g}" for n in option.replicas_over_time)
        yield "Cheapest", cheapest_words(block)


def serve(compiled: CompiledDeployment, size: FleetSize, requests: RequestSet, speed: float) -> Run:
    """Simulate requests on a fleet of the deployment's replicas, see `planner.sections.fleet_day.Serve`."""
    scaling = size.scaling
    fleet = with_replicas(compiled, size.replicas, size.most)
    fleet = replace(fleet, resolved=replace(fleet.resolved, scaling=scaling))
    if scaling is None:
        return simulate(fleet, requests)
    autoscaler = Autoscaler(0, scaling, _cold_start_s(compiled, scaling.cold_start) / speed)
    return simulate(fleet, requests, RunOptions(controllers=(autoscaler,)))


def _cold_start_s(compiled: CompiledDeployment, cold: ColdStart) -> float:
    """Return the seconds from the order of a replica to its first request."""
    return cold.seconds(compiled.memory.weights_bytes * compiled.resolved.accelerators_per_replica)


def _unit(chosen: ChosenPlan, cold_start_s: float) -> ReplicaUnit:
    request, candidate, best = chosen.request, chosen.candidate, chosen.evaluated
    carries = (best.capacity_requests_per_s or best.requests_per_s) / candidate.replicas
    n_requests = run_sizes(request).full
    load = Load(carries * candidate.replicas, n_requests, request.seed)
    verdict = judge([chosen.evaluator.observe(candidate, load)], request.slos)
    usd_per_hour = partial(chosen.prices.usd_per_hour_of_replicas, candidate)
    return ReplicaUnit(
        carries_per_s=carries,
        in_flight=carries * verdict.mean_s(E2E.name),
        limit=max(replicas_of(chosen.evaluator.names, candidate.layout), candidate.replicas),
        spare=request.spare.lost(candidate),
        usd_per_hour=usd_per_hour,
        pue=chosen.prices.pue,
        cold_start_s=cold_start_s,
        sure=request.confidence,
    )


@dataclass(frozen=True, slots=True)
class ReplicaUnit:
    """One replica of the plan.

    Attributes:
        carries_per_s: Requests per second that it serves with confidence `sure`.
        in_flight: Number of unfinished requests at this rate.
        limit: Maximum number of replicas on the hardware of the request.
        spare: Number of replicas that may fail.
        usd_per_hour: Returns the price of a number of replicas; None if no price is known.
        pue: The energy of the facility over that of the servers.
        cold_start_s: Seconds from the order of a replica to its first request.
        sure: Confidence of `carries_per_s`, and with which a size must meet the objectives.
    """

    carries_per_s: float
    in_flight: float
    limit: int
    spare: int
    usd_per_hour: Callable[[int], float | None]
    pue: float
    cold_start_s: float
    sure: float


@dataclass(frozen=True, slots=True)
class OverTime:
    """Sizes a fleet for a load; `given` holds the user's keys of `autoscaling`, and the others are computed.

    The runs that do not depend on each other are divided among the workers.
    """

    clock: DailyRun
    curve: LoadCurve
    unit: ReplicaUnit
    error: StatedError
    given: Mapping[str, Any] = field(default_factory=dict)
    workers: WorkerPool = field(default_factory=ProcessPool)
    known: dict[object, FleetDay] = field(default_factory=dict)

    def block(self) -> DailyLoad:
        """Simulate every option and return the section's block."""
        curve, unit = self.curve, self.unit
        # Real arrivals are burstier than those of the plan, so larger sizes than computed for the peak are tried too.
        first = self._fits(curve.peak_per_s)
        peak = [FleetSize("peak", n) for n in range(first, min(first + _EXTRA_REPLICAS_TRIED, unit.limit) + 1)]
        mean = [FleetSize("mean", self._fits(curve.mean_per_s))]
        options = self._options([self._first_that_holds(sizes) for sizes in (peak, mean, self._scaled())])
        best = min((option for option in options if option.holds), key=lambda option: option.price, default=None)
        ideal = np.ceil(curve.rates / unit.carries_per_s) + unit.spare
        own = ("duration_s", "n_requests", "drawn", "window_s", "peak_per_s", "mean_per_s", "trough_per_s")
        return DailyLoad(
            **{name: getattr(curve, name) for name in own},
            rates_per_s=curve.rates.tolist(),
            replica_carries_per_s=unit.carries_per_s,
            replica_carries_sure=unit.sure,
            cold_start_s=unit.cold_start_s,
            least_accelerator_hours_per_day=float(ideal.mean()) * self.clock.each * 24.0,
            windows_must_hold=LEAST_WINDOWS_MET,
            ci_level=LEVEL,
            options=options,
            cheapest=None if best is None else best.name,
        )

    # ---- sizes

    def _needs(self, requests_per_s: float) -> int:
        return ceil(requests_per_s / self.unit.carries_per_s - 1e-9) + self.unit.spare

    def _fits(self, requests_per_s: float) -> int:
        """Return the number of required replicas, limited by the hardware."""
        return min(self._needs(requests_per_s), self.unit.limit)

    def _scaled(self) -> Sequence[FleetSize]:
        """Return autoscaled sizes with decreasing targets; the user's autoscaler keys are kept."""
        given = self.given
        lead_s = self.unit.cold_start_s + float(given.get("interval_s", Autoscaling.model_fields["interval_s"].default))
        sizes = []
        for careful in _AUTOSCALER_TARGET_FACTORS:
            share = 1.0 / self.curve.growth_within(lead_s) * careful
            most = max(self._fits(self.curve.peak_per_s / share), 1)
            computed = {
                "metric": "outstanding",
                "target": max(self.unit.in_flight * share, 0.5),
                "min_replicas": min(most, 1 + self.unit.spare),
                "max_replicas": most,
            }
            scaling = self._checked({**computed, **given})
            begin = max(self._needs(float(self.curve.rates[0]) / share), scaling.min_replicas, 1)
            sizes.append(FleetSize("autoscaled", min(begin, scaling.max_replicas), scaling))
        return sizes[:1] if {"metric", "target"} & set(given) else sizes

    def _checked(self, data: dict[str, Any]) -> Autoscaling:
        most = data["max_replicas"]
        found = parse_autoscaling(data, most if isinstance(most, int) else self.unit.limit)
        if found.max_replicas > self.unit.limit:
            rule = f"autoscaling.max_replicas must not exceed {self.unit.limit}, the maximum for this hardware"
            raise InputError(rule, found.max_replicas, str(self.unit.limit))
        return found

    # ---- days

    def _share(self, size: FleetSize) -> int:
        """Return the number of equal parts of the fleet; one is simulated, as round robin keeps them independent."""
        size = size.as_simulated
        most = max(1, self.clock.requests.n // MOST_SIMULATED)
        if size.scaling is not None:
            return max(1, min(most, size.most // _MIN_REPLICAS_PER_PART))
        return max(k for k in range(1, size.replicas + 1) if size.replicas % k == 0 and k <= most)

    def _day(self, size: FleetSize, share: int, speed: float = 1.0) -> FleetDay:
        """Return a run; a size is only simulated once, because mean and peak may need the same number of replicas."""
        self._simulate([(size, share, speed)])
        return replace(self.known[_key(size, share, speed)], size=size)

    def _simulate(self, runs: Sequence[DayRun]) -> None:
        """Simulate the runs that are not known yet, on all workers."""
        new = {key: run for run in runs if (key := _key(*run)) not in self.known}
        found = self.workers.map(partial(_simulated, self.clock), list(new.values()))
        self.known.update(zip(new, found, strict=True))

    def _first_that_holds(self, sizes: Sequence[FleetSize]) -> tuple[FleetDay, int]:
        """Return the first size that meets the objectives, else the last, as its run and its number of equal parts."""
        for size in sizes:
            share = self._share(size)
            if self._holds(size, share):
                break
        return self._day(size, share), share

    def _holds(self, size: FleetSize, share: int) -> bool:
        """Return whether a size meets the objectives with the required confidence: with steps as slow as it allows."""
        slos, allowance = self.clock.slos, allowance_for(self.unit.sure, self.error)
        self._simulate([(size, share, speed) for speed in (1.0, allowance.speed)])
        if not self._day(size, share).holds(slos):
            return False
        return self._day(size, share, allowance.speed).allowing(slos, allowance).holds(slos)

    # ---- rows

    def _options(self, chosen: Sequence[tuple[FleetDay, int]]) -> list[ReplicaOption]:
        """Return the rows of the chosen sizes, each given as its run and its number of equal parts."""
        self._simulate([(day.size, share, v) for day, share in chosen for v in self._speeds(share).values()])
        return [self._option(day, share) for day, share in chosen]

    def _speeds(self, share: int) -> dict[float, float]:
        """Return, by level of the stated error, the factor on the times of steps with which a size is simulated."""
        levels = _ERROR_LEVELS if self.clock.requests.n <= _LONG_RUN_REQUESTS * share else _ERROR_LEVELS_OF_LONG_RUNS
        levels = tuple(sorted({*levels, self.unit.sure}))
        speeds = _allowed(self.error.factors(SPEED, np.array(levels)), levels)
        return dict(zip(levels, speeds.tolist(), strict=True))

    def _option(self, day: FleetDay, share: int) -> ReplicaOption:
        """Return the row of a run, with intervals from runs as slow as at levels of the stated error."""
        slos, scaling = self.clock.slos, day.size.scaling
        moved = {level: self._day(day.size, share, speed) for level, speed in self._speeds(share).items()}
        rows = [self._slo_result(slo, day, moved) for slo in slos]
        windows_met = [moved[level].windows_met(slos) for level in _within_the_interval(tuple(moved))]
        per_day = DAY_S / day.duration_s
        hours = day.accelerator_s / HOUR_S * per_day
        replica_hours = hours / self.clock.each
        # A fixed fleet shares instances; a replica that an autoscaler starts and stops has instances of its own.
        rented = day.size.replicas if scaling is None else 1
        usd = self.unit.usd_per_hour(rented)
        return ReplicaOption(
            name=day.size.name,
            replicas=day.size.replicas if scaling is None else None,
            replicas_min=round(float(day.replicas.min()), 3),
            replicas_mean=float(day.replicas.mean()),
            replicas_max=round(float(day.replicas.max()), 3),
            replicas_over_time=day.replicas.tolist(),
            scaling=None if scaling is None else every_key_set(scaling),
            accelerator_hours_per_day=hours,
            usd_per_day=None if usd is None else usd * replica_hours / rented,
            kwh_per_day=day.joules / JOULES_PER_KWH * self.unit.pue * per_day,
            windows_met=day.windows_met(slos),
            windows_met_ci_low=min(windows_met),
            windows_met_ci_high=max(windows_met),
            n_windows=len(day.windows_s[slos[0].name]),
            slo=rows,
            holds=self._holds(day.size, share) and all(row.met for row in rows),
            simulated_part=share,
        )

    def _slo_result(self, slo: Slo, day: FleetDay, moved: Mapping[float, FleetDay]) -> WindowedSloResult:
        """Return the row of an objective; `moved` holds the runs at levels of the stated error."""
        name, value_s, levels = slo.name, day.values_s[slo.name], tuple(moved)
        waiting = np.array([each.waiting[name] for each in moved.values()])
        factors = Factors.at(np.array(levels), slo, self.error, waiting)
        ratios = _allowed(factors.latency, levels) / _allowed(factors.speed, levels)
        values_s = ratios * np.array([each.values_s[name] for each in moved.values()])
        bars = confidence_at_levels(value_s, values_s, 0.0, slo, self.unit.sure, levels)
        windows = np.nan_to_num(day.windows_s[name], nan=0.0)
        worst = int(np.argmax(windows))
        worst_at_s = worst * self.curve.duration_s / len(windows)
        worst_s, sure = float(windows[worst]), self.unit.sure
        return WindowedSloResult.of(
            slo, value_s, bars, sure, ci_level=bars.level, worst_window_s=worst_s, worst_at_s=worst_at_s
        )


def _key(size: FleetSize, share: int, speed: float) -> object:
    simulated = size.as_simulated
    return simulated.replicas, simulated.scaling, share, speed


def _simulated(clock: DailyRun, run: DayRun) -> FleetDay:
    """Return the result of a size, simulated in one of `share` equal parts with every step `speed` times as long."""
    size, share, speed = run
    return clock.day(size.as_simulated, share, speed)


def _within_the_interval(levels: Sequence[float]) -> tuple[float, ...]:
    """Return the levels within an interval of level LEVEL: a higher confidence of the request is beyond it."""
    return tuple(level for level in levels if level <= _ERROR_LEVELS[-1])


def _allowed(factors: FloatArray, levels: Sequence[float]) -> FloatArray:
    """Return factors on simulated times as an allowance takes them: not below 1 at levels of one half and more.

    Both have shape (levels,).
    """
    found: FloatArray = np.where(np.array(levels) >= 0.5, np.maximum(factors, 1.0), factors)
    return found
