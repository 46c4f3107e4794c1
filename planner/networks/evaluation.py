"""A candidate under a load of jobs: simulated, with the published error of its prices, and compared with the limits.

If every batch took f times as long, the jobs of a rate r would take f times what they take at the rate r * f at the
predicted speed (a rescaled clock). A candidate is therefore simulated at the rate times the error, with its queueing
delay divided by it, and the latencies are multiplied by it: this is exact, and no prices change.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Self

import numpy as np

from catalogs.arrays import FloatArray
from catalogs.deployments.network_deployment import NetworkDeployment
from catalogs.workloads.jobs import JobSet
from planner.evaluation.confidence import SEEDS, Confidence, confidence_at_levels, error_levels, log_noise
from planner.evaluation.run_sizes import RunSizes
from planner.networks.candidate import JobCandidate
from planner.networks.job_service import JobService
from planner.networks.request import NetworkRequest
from planner.problem.slo import Slo, statistic_s
from simulator.jobs.compiled import CompiledJobs, compile_jobs
from simulator.jobs.metrics import JobEnergy
from simulator.jobs.run import JobRun
from simulator.jobs.simulate import simulate_jobs

#: Share of the jobs of a run that come before its steady part. A judgement: as many are left out at the end, when
#: batches are no longer full.
_WARM_UP: Final = 0.1

#: Jobs of a run for each job that a deployment holds at once: the steady part lasts many batches. A judgement.
ROUNDS: Final = 12

#: Most jobs of a run. A judgement of cost.
_MOST_JOBS: Final = 20_000


@dataclass(frozen=True, slots=True)
class JobObservation:
    """The steady part of a run, with the energy of the whole run.

    Attributes:
        e2e_s: Seconds from arrival to end of each job. Shape (n,).
        queue_s: Seconds from arrival to the start of its batch. Shape (n,).
        jobs_per_batch: Mean jobs of a batch.
        busy: Share of the accelerators' time in which they execute kernels.
        joules_per_job: Energy of accelerators and hosts for each job, at the socket.
        jobs_per_s: Rate of the ends of jobs in the middle of the run.
        n_simulated: Jobs of the whole run.
    """

    e2e_s: FloatArray
    queue_s: FloatArray
    jobs_per_batch: float
    busy: float
    joules_per_job: float
    jobs_per_s: float
    n_simulated: int

    @classmethod
    def of(cls, run: JobRun, compiled: CompiledJobs, warm_up: float = _WARM_UP) -> JobObservation:
        """Return the steady part of a run of a compiled deployment, after the share of jobs of its warm-up."""
        begin = int(warm_up * run.jobs.n)
        used = JobEnergy.of(run, compiled)
        return cls(
            e2e_s=np.where(run.completed, run.e2e_s, np.inf)[begin:],
            queue_s=run.queue_s[begin:],
            jobs_per_batch=float(np.mean(run.batches.jobs)),
            busy=used.busy_fraction,
            joules_per_job=used.total_j / run.jobs.n,
            jobs_per_s=steady_rate(np.sort(run.ended_s[run.completed])),
            n_simulated=run.jobs.n,
        )


def steady_rate(ends_s: FloatArray) -> float:
    """Return the rate of ends between the first and the last tenth of them; 0 for fewer than three.

    `ends_s` ascends and has shape (jobs,).
    """
    first, last = int(_WARM_UP * len(ends_s)), int((1.0 - _WARM_UP) * len(ends_s)) - 1
    span_s = float(ends_s[last] - ends_s[first]) if last > first else 0.0
    return (last - first) / span_s if span_s > 0.0 else 0.0


@dataclass(frozen=True, slots=True)
class JobVerdict:
    """A candidate at a rate with slower batches, compared with the limits.

    Attributes:
        requests_per_s: Jobs per second.
        slowdown: The factor on the seconds of every batch.
        objectives: The objectives.
        observations: One for each seed; empty if more jobs arrive than the replicas can serve.
        load: Jobs that arrive, with the slowdown, over those that full batches serve.
    """

    requests_per_s: float
    slowdown: float
    objectives: tuple[Slo, ...]
    observations: tuple[JobObservation, ...]
    load: float

    @property
    def stable(self) -> bool:
        """Return whether full batches serve the jobs."""
        return self.load < 1.0

    def value_s(self, slo: Slo) -> float:
        """Return the statistic of an objective over the jobs of all seeds, seconds; infinite if the queue grows."""
        if not self.stable:
            return math.inf
        return self.slowdown * statistic_s(np.concatenate([o.e2e_s for o in self.observations]), slo.quantile)

    def values_s(self, slo: Slo) -> FloatArray:
        """Return the statistic of an objective with each seed, seconds. Shape (seeds,)."""
        return np.array([self.slowdown * statistic_s(o.e2e_s, slo.quantile) for o in self.observations])

    @property
    def worst(self) -> Slo:
        """Return the objective nearest to its limit, or furthest beyond it."""
        return max(self.objectives, key=lambda slo: self.value_s(slo) / slo.limit_s)

    @property
    def ratio(self) -> float:
        """Return the largest value over its limit."""
        return self.value_s(self.worst) / self.worst.limit_s

    @property
    def met(self) -> bool:
        """Return whether every objective is met."""
        return self.stable and self.ratio <= 1.0


@dataclass(slots=True)
class JobEvaluator:
    """Simulates candidates of one request.

    Attributes:
        request: The request.
        service: Prices of its job.
        n_simulated: Jobs simulated so far.
        most_jobs: Most jobs of a run.
        burstiness: The power of every gap between arrivals, with the same mean gap; below 1, bursts are milder.
    """

    request: NetworkRequest
    service: JobService
    n_simulated: int = 0
    most_jobs: int = _MOST_JOBS
    burstiness: float = 1.0
    _parent: JobEvaluator | None = field(default=None, repr=False)  # counts the jobs of this one as well
    _compiled: dict[JobCandidate, CompiledJobs] = field(default_factory=dict, repr=False)
    _seen: dict[tuple[JobCandidate, float, float, int, int], JobObservation] = field(default_factory=dict, repr=False)

    def with_(self, **changes: Any) -> Self:
        """Return an evaluator with changed attributes, which has simulated nothing yet."""
        return replace(self, n_simulated=0, _parent=None, _compiled={}, _seen={}, **changes)

    def of_users(self, users: int) -> Self:
        """Return an evaluator of another number of users, with the compiled deployments of this one.

        The jobs that the new evaluator simulates are counted by this one too.
        """
        if users == self.request.users:
            return self
        return replace(self, request=self.request.replace(users=users), n_simulated=0, _seen={}, _parent=self)

    @property
    def simulated(self) -> set[tuple[object, ...]]:
        """Return everything but the replicas of the candidates that were simulated."""
        return {candidate.batching for candidate in self._compiled}

    def fluid_per_s(self, candidate: JobCandidate) -> float:
        """Return the jobs per second that all replicas serve with full batches, at the predicted speed."""
        each = self.service.fluid_jobs_per_s(candidate.setup, candidate.max_batch, candidate.instances)
        return candidate.replicas * each

    def slowdown(self, candidate: JobCandidate) -> float:
        """Return the factor on the seconds of a batch that holds with the confidence; predictions are never rushed."""
        return max(self.service.slowdown(candidate.setup, self.request.confidence), 1.0)

    def verdict(
        self, candidate: JobCandidate, jobs_per_s: float, slowdown: float | None = None, seeds: int = 1
    ) -> JobVerdict:
        """Return a candidate at a rate, with the slowdown of the confidence unless another is given."""
        slow = self.slowdown(candidate) if slowdown is None else slowdown
        load = 0.0 if self.request.users is not None else jobs_per_s * slow / self.fluid_per_s(candidate)
        found: tuple[JobObservation, ...] = ()
        if load < 1.0:
            first = self.request.seed
            found = tuple(self.observe(candidate, jobs_per_s, slow, first + i) for i in range(seeds))
        if self.request.users is not None:
            jobs_per_s = float(np.mean([o.jobs_per_s for o in found])) / slow
        return JobVerdict(jobs_per_s, slow, self.request.objectives, found, load)

    def observe(
        self, candidate: JobCandidate, jobs_per_s: float, slowdown: float, seed: int, most_jobs: int | None = None
    ) -> JobObservation:
        """Return the steady part of one run; equal runs are simulated once."""
        n_jobs = max(min(self.n_jobs(candidate), most_jobs or self.most_jobs), self.service.mix.traced)
        jobs_per_s = 0.0 if self.request.users is not None else jobs_per_s
        key = candidate, jobs_per_s, slowdown, seed, n_jobs
        if key not in self._seen:
            delay_s = candidate.queue_delay_s / slowdown
            compiled = self._compile(candidate)
            deployment = compiled.deployment.model_copy(update={"queue_delay_s": delay_s})
            scaled = replace(compiled, deployment=deployment)
            jobs = self._drawn(seed, n_jobs, jobs_per_s, slowdown)
            warm_up = 0.0 if self.service.mix.traced else _WARM_UP
            self._seen[key] = JobObservation.of(simulate_jobs(scaled, jobs), scaled, warm_up)
            self._count(jobs.n)
        return self._seen[key]

    def _count(self, n_jobs: int) -> None:
        self.n_simulated += n_jobs
        if self._parent is not None:
            self._parent._count(n_jobs)

    def _drawn(self, seed: int, n_jobs: int, jobs_per_s: float, slowdown: float) -> JobSet:
        """Return the jobs of a run on the rescaled clock, with milder or stronger bursts if the evaluator has them."""
        mix, users = self.service.mix, self.request.users
        if users is not None:
            return mix.draw_users(seed, n_jobs, users, self.request.think_s / slowdown)
        jobs = mix.draw(seed, n_jobs, jobs_per_s * slowdown)
        if self.burstiness == 1.0:
            return jobs
        gaps_s = np.diff(jobs.arrival_s, prepend=0.0)
        powers = gaps_s**self.burstiness
        return replace(jobs, arrival_s=np.cumsum(powers * (gaps_s.sum() / powers.sum())))

    def n_jobs(self, candidate: JobCandidate) -> int:
        """Return the jobs of a run: enough for the highest percentile, and for many batches of every replica."""
        held = ROUNDS * candidate.replicas * candidate.max_batch * candidate.instances
        held = max(held, ROUNDS * (self.request.users or 0))
        return min(max(RunSizes.for_slos(self.request.objectives).full, held), _MOST_JOBS)

    def deployment(self, candidate: JobCandidate) -> NetworkDeployment:
        """Return the deployment of a candidate."""
        job = self.service.job
        keys = candidate.deployment(self.request.model, self.service.engine, job.sizes)
        return NetworkDeployment(**keys)

    def _compile(self, candidate: JobCandidate) -> CompiledJobs:
        if candidate not in self._compiled:
            self._compiled[candidate] = replace(compile_jobs(self.deployment(candidate)), change=self.service.change)
        return self._compiled[candidate]

    def certainty(self, candidate: JobCandidate, jobs_per_s: float) -> Mapping[Slo, Confidence]:
        """Return the error bars of each objective, from runs at levels of the published error with several seeds."""
        sure = self.request.confidence
        levels = sorted({*error_levels(sure), sure})
        slows = [self.service.slowdown(candidate.setup, level) for level in levels]
        plain = self.verdict(candidate, jobs_per_s, 1.0, SEEDS)
        slower = [self.verdict(candidate, jobs_per_s, slow) for slow in slows]
        at_confidence = self.verdict(candidate, jobs_per_s, slows[levels.index(sure)], SEEDS)
        found = {}
        for slo in self.request.objectives:
            values_s = np.array([v.value_s(slo) for v in slower])
            pooled = at_confidence.value_s(slo) / float(values_s[levels.index(sure)])
            values_s *= pooled if math.isfinite(pooled) else 1.0  # the curve of one seed, through the value of all
            noise = log_noise(at_confidence.values_s(slo))
            found[slo] = confidence_at_levels(plain.value_s(slo), values_s, noise, slo, sure, levels)
        return found


def meets_confidence(bars: Mapping[Slo, Confidence], confidence: float) -> bool:
    """Return whether each objective is met with a probability of at least the confidence."""
    return all(found.probability_met >= confidence for found in bars.values())
