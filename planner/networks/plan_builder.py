"""The plan of a candidate: simulated with several seeds, with error bars, cost, energy, memory and stages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from catalogs.arrays import FloatArray
from catalogs.economics.electricity import DEFAULT_PUE
from catalogs.economics.locations import locate_grid
from catalogs.ui.words import counted, gigabytes, percent
from catalogs.units import HOUR_S
from planner.answer.plan_schema import QUEUE, SloResult, Stats, missed_words
from planner.economics.money import JOULES_PER_KWH, Rates, money, region_prices
from planner.economics.rack_power import unused_w
from planner.evaluation.confidence import SEEDS, Confidence
from planner.networks.candidate import JobCandidate, price_of
from planner.networks.evaluation import JobVerdict, meets_confidence
from planner.networks.job_assessor import USERS_TOLERANCE, JobAssessor
from planner.networks.job_service import error_factor
from planner.networks.schema import (
    JobMemory,
    JobMetrics,
    LoadPoint,
    NetworkPlan,
    PriceError,
    StageRow,
    UnitEnergy,
    UnitPriceLine,
)
from planner.problem.slo import STATS, Slo, statistic_s
from simulator.networks.job import StagePrice

#: Above this share of the rate of full batches, a plan is limited by them and not by waiting. A judgement: the
#: tolerance of a capacity is 2 %.
_FULL: Final = 0.97

#: Loads of the curve of a plan, as shares of its capacity.
_LOADS: Final = (0.05, 0.25, 0.5, 0.7, 0.85, 0.95, 1.0)

#: Jobs of each run of the curve. A judgement: 20 of them lie beyond a 99th percentile.
_CURVE_JOBS: Final = 2_000

#: Factor by which a rate is lowered until it holds with several seeds. A judgement: the `TOLERANCE` of the capacity of
#: one seed.
_STEP: Final = 0.98

#: Most steps of `_STEP`, which together lower the rate by a quarter. A judgement: a rate of one seed that is further
#: off is refused.
_MOST_STEPS: Final = 15


@dataclass(frozen=True, slots=True)
class SizedCandidate:
    """A candidate at a rate with the error bars of each objective; `met` is true if it meets the request."""

    candidate: JobCandidate
    requests_per_s: float
    bars: Mapping[Slo, Confidence]
    met: bool


@dataclass(slots=True)
class PlanBuilder:
    """Builds the plans of one request from candidates.

    Attributes:
        assessor: Measures candidates.
    """

    assessor: JobAssessor
    _capacities: dict[JobCandidate, float | None] = field(default_factory=dict, repr=False)
    _users: dict[JobCandidate, int] = field(default_factory=dict, repr=False)

    def sized(self, candidate: JobCandidate, jobs_per_s: float | None = None) -> SizedCandidate:
        """Return a candidate at a rate with its error bars; without a rate, at its capacity or under a light load."""
        request, light = self.assessor.request, self.assessor.light_per_s(candidate)
        rate = jobs_per_s
        if request.users is not None:  # what they send at the predicted speed
            rate = self.assessor.evaluator.verdict(candidate, 0.0, 1.0, SEEDS).requests_per_s
        if rate is None:
            rate = light if request.objective == "latency" else self.capacity(candidate) or light
        bars = self.assessor.evaluator.certainty(candidate, rate)
        return SizedCandidate(candidate, rate, bars, meets_confidence(bars, request.confidence))

    def capacity(self, candidate: JobCandidate) -> float | None:
        """Return the highest rate that holds with the confidence and several seeds; None if none does, or for users."""
        if self.assessor.request.users is not None:
            return None
        if candidate not in self._capacities:
            self._capacities[candidate] = self._find_capacity(candidate)
        return self._capacities[candidate]

    def _find_capacity(self, candidate: JobCandidate) -> float | None:
        evaluator, sure = self.assessor.evaluator, self.assessor.request.confidence
        floor = evaluator.verdict(candidate, self.assessor.light_per_s(candidate))
        if not floor.met:
            return None
        rate = self.assessor.capacity(candidate, floor).requests_per_s
        for _ in range(_MOST_STEPS):
            if meets_confidence(evaluator.certainty(candidate, rate), sure):
                return rate
            rate *= _STEP
        return None

    def users(self, candidate: JobCandidate) -> int:
        """Return the most users that hold with the confidence and several seeds; 0 if none.

        They are those that hold with one seed, lowered until they hold with several.
        """
        if candidate not in self._users:
            self._users[candidate] = self._find_users(candidate)
        return self._users[candidate]

    def _find_users(self, candidate: JobCandidate) -> int:
        low, step, sure = self.assessor.users(candidate), 1, self.assessor.request.confidence
        while low and not meets_confidence(self.assessor.evaluator.of_users(low).certainty(candidate, 0.0), sure):
            low, step = max(low - step, 0), max(2 * step, int(USERS_TOLERANCE * low))
        return low

    def load_of(self, sized: SizedCandidate) -> float:
        """Return the most users, or jobs per second, that a candidate holds."""
        users = self.assessor.request.users is not None
        return float(self._users_of(sized)) if users else self._capacity_of(sized) or 0.0

    def plan(self, sized: SizedCandidate) -> NetworkPlan:
        """Return the plan of a candidate at its rate, which the predicted speed serves."""
        candidate, rate, bars = sized.candidate, sized.requests_per_s, sized.bars
        capacity = self._capacity_of(sized)
        evaluator, request = self.assessor.evaluator, self.assessor.request
        service, items = evaluator.service, evaluator.service.job.items
        plain = evaluator.verdict(candidate, rate, 1.0, SEEDS)
        units_per_s = rate * items
        price = price_of(candidate, request.tariff)
        joules = float(np.mean([o.joules_per_job for o in plain.observations]))
        joules += self.assessor.unused_w(candidate) / rate
        cost = money(Rates(0.0, 0.0, joules * rate, rate), price)
        users = None if request.users is None else self._users_of(sized)
        return NetworkPlan(
            deployment=evaluator.deployment(candidate).model_dump(mode="json"),
            words=candidate.words,
            requests_per_s=rate,
            units_per_hour=units_per_s * HOUR_S,
            capacity_requests_per_s=capacity,
            capacity_users=users,
            limited_by=None if capacity is None else self._limited_by(candidate, capacity),
            metrics=_metrics(plain, service.seconds(candidate.setup)),
            slo=[SloResult.of(slo, b.value_s, b, request.confidence, ci_level=b.level) for slo, b in bars.items()],
            cost=cost,
            usd_per_unit=None if cost.usd_per_hour is None else cost.usd_per_hour / (units_per_s * HOUR_S),
            energy=self._energy(candidate, joules, rate),
            memory=self._memory(candidate),
            stages=self.stages(candidate),
            error=self._error(candidate),
            curve=[] if capacity is None else self._curve(candidate, capacity, cost.usd_per_hour),
            notices=self._notices(candidate, users),
        )

    def _capacity_of(self, sized: SizedCandidate) -> float | None:
        """Return the capacity of a plan, which is not below a required rate that it was found to hold.

        Its search lowers the rate in steps, of which the last may pass the required rate.
        """
        found, required = self.capacity(sized.candidate), self.assessor.request.requests_per_s is not None
        return max(found or 0.0, sized.requests_per_s) if required and sized.met else found

    def _users_of(self, sized: SizedCandidate) -> int:
        """Return the most users of a plan, which are not fewer than those that it was found to hold."""
        held = self.assessor.request.users if sized.met else 0
        return max(self.users(sized.candidate), held or 0)

    def _curve(self, candidate: JobCandidate, capacity: float, usd_per_hour: float | None) -> list[LoadPoint]:
        """Return a plan under loads up to its capacity, at the predicted speed."""
        evaluator, items = self.assessor.evaluator, self.assessor.evaluator.service.job.items
        unused_w = self.assessor.unused_w(candidate)
        found = []
        for share in _LOADS:
            rate = share * capacity
            seen = evaluator.observe(candidate, rate, 1.0, self.assessor.request.seed, _CURVE_JOBS)
            units_per_hour = rate * items * HOUR_S
            found.append(
                LoadPoint(
                    requests_per_s=rate,
                    e2e_s=_stats(seen.e2e_s),
                    usd_per_unit=None if usd_per_hour is None else usd_per_hour / units_per_hour,
                    wh_per_unit=1e3 * (seen.joules_per_job + unused_w / rate) / items / JOULES_PER_KWH * DEFAULT_PUE,
                )
            )
        return found

    def prices(self, sized: SizedCandidate, plan: NetworkPlan) -> list[UnitPriceLine]:
        """Return the prices of a plan in all regions, per hour and per unit, with the carbon there.

        The carbon includes the accelerators that are rented there and not used, as the plan's own does.
        """
        hardware, found, energy = sized.candidate.hardware, [], plan.energy
        for price, row in region_prices(sized.candidate.need):
            watts = energy.w_mean - energy.unused_w + unused_w(hardware, price.idle_accelerators)
            kwh = energy.wh_per_unit / 1e3 * watts / energy.w_mean
            usd = price.usd_per_hour / plan.units_per_hour
            found.append(UnitPriceLine(**dict(row), usd_per_unit=usd, gco2e_per_unit=row.grams(kwh)))
        return found

    def _limited_by(self, candidate: JobCandidate, capacity: float) -> str:
        """Return what limits the capacity in words: full batches, an objective, or the queue."""
        evaluator = self.assessor.evaluator
        if capacity * evaluator.slowdown(candidate) / evaluator.fluid_per_s(candidate) > _FULL:
            return "every replica is busy with full batches"
        bars = evaluator.certainty(candidate, capacity)
        nearest = max(bars, key=lambda slo: (bars[slo].at_confidence_s or 0.0) / slo.limit_s)
        limit = QUEUE if bars[nearest].is_far_from(nearest.limit_s) else nearest.name
        return f"beyond it {missed_words(limit)}"

    def _energy(self, candidate: JobCandidate, joules_per_job: float, rate: float) -> UnitEnergy:
        tariff = self.assessor.request.tariff
        located = locate_grid(price_of(candidate, tariff), tariff.grid)
        joules = joules_per_job / self.assessor.evaluator.service.job.items
        kwh = joules / JOULES_PER_KWH * DEFAULT_PUE
        return UnitEnergy(
            w_mean=joules_per_job * rate,
            unused_w=self.assessor.unused_w(candidate),
            j_per_unit=joules,
            wh_per_unit=1e3 * kwh,
            gco2e_per_unit=kwh * located.grid.gco2e_per_kwh,
            pue=DEFAULT_PUE,
            grid_gco2e_per_kwh=located.grid.gco2e_per_kwh,
            grid_region=located.grid.region,
            grid_reason=located.reason,
            grid_assumed=not located.known,
        )

    def _memory(self, candidate: JobCandidate) -> JobMemory:
        service = self.assessor.evaluator.service
        peak = service.memory_bytes(candidate.setup, candidate.max_batch, candidate.instances)
        factor = error_factor("memory", self.assessor.request.confidence)
        device = candidate.setup.hardware.accelerator.memory_bytes
        return JobMemory(device_bytes=device, peak_bytes=peak, peak_at_confidence_bytes=peak * factor)

    def stages(self, candidate: JobCandidate, jobs: int = 1) -> list[StageRow]:
        """Return the stages of a batch of jobs, of each kind of job by its share."""
        service = self.assessor.evaluator.service
        return [
            _stage(stage, share, f"{job.words}: {stage.name}" if service.mix.several else stage.name)
            for (share, price), job in zip(service.prices(candidate.setup, jobs), service.mix.jobs, strict=True)
            for stage in price.stages
        ]

    def _error(self, candidate: JobCandidate) -> PriceError:
        service = self.assessor.evaluator.service
        kind = service.error_class(candidate.setup)
        return PriceError(
            error_class=kind,
            interval_factor=service.interval_factor(candidate.setup),
            hardware_measured=service.is_measured(candidate.setup),
            slowdown=self.assessor.evaluator.slowdown(candidate),
            bundle=service.bundle(candidate.setup).name,
        )

    def _notices(self, candidate: JobCandidate, users: int | None) -> list[str]:
        """Return what to know of a plan with this capacity in users (None: planned for a rate)."""
        service, memory = self.assessor.evaluator.service, self._memory(candidate)
        found = list(service.bundle(candidate.setup).notices)
        found += [n for _, price in service.prices(candidate.setup, candidate.max_batch) for n in price.notices]
        if candidate.instances > 1:
            found.append("instances of a network share an accelerator: only the waits for the host overlap")
        found += [notice for stage in service.job.network.stages for notice in stage.notices]
        if candidate.setup.precision in ("fp8", "int8"):
            found.append(f"{candidate.setup.precision} products: check the quality of the results")
        if memory.peak_at_confidence_bytes > memory.device_bytes:
            sure = percent(self.assessor.request.confidence)
            need = f"{gigabytes(memory.peak_bytes)} predicted, up to {gigabytes(memory.peak_at_confidence_bytes)}"
            found.append(f"the job may not fit into memory: {need} at {sure} confidence; try it on one accelerator")
        if candidate.setup.offload:
            found.append("weights are offloaded to the host between stages; the time of these transfers is not counted")
        if users == self.assessor.most_users:
            most = counted(self.assessor.most_users, "user")
            found.append(f"the plan may serve more than {most}; larger numbers are not simulated")
        return list(dict.fromkeys(found))


def _stage(stage: StagePrice, share: float, name: str) -> StageRow:
    """Return a stage of a job that has a share of all jobs; its seconds are those of the mean job."""
    times = share * stage.runs
    return StageRow(
        name=name,
        runs=stage.runs,
        total_s=share * stage.total_s,
        communication_s=times * stage.communication_s,
        host_bound=stage.host_s > stage.device_s,
        measured_fraction=stage.measured,
        interpolated_fraction=stage.interpolated,
        borrowed_fraction=stage.borrowed,
        compute_s=times * stage.compute_s,
        memory_s=times * stage.memory_s,
        fixed_s=times * stage.fixed_s,
        host_s=times * stage.host_s,
    )


def _metrics(verdict: JobVerdict, alone_s: float) -> JobMetrics:
    observations = verdict.observations
    e2e_s, queue_s = (np.concatenate([getattr(o, name) for o in observations]) for name in ("e2e_s", "queue_s"))
    return JobMetrics(
        e2e_s=_stats(e2e_s),
        queue_s=_stats(queue_s),
        service_s=alone_s,
        jobs_per_batch=float(np.mean([o.jobs_per_batch for o in observations])),
        busy_fraction=float(np.mean([o.busy for o in observations])),
        n_jobs=sum(o.n_simulated for o in observations),
    )


def _stats(samples_s: FloatArray) -> Stats:
    quantiles = {stat: None if stat == "mean" else float(stat[1:]) / 100 for stat in STATS}
    return Stats(**{stat: statistic_s(samples_s, quantile) for stat, quantile in quantiles.items()})
