"""Answer a request for a plan of a network: candidates, bounds, one search for each accelerator, measurement."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

from calibration.bundles.bundle import calibration_source
from catalogs.errors import InputError
from catalogs.hardware.catalog import parse_hardware
from catalogs.hardware.specs import Hardware
from catalogs.networks.files import load_network
from catalogs.ui.words import counted, digits
from catalogs.units import HOUR_S
from planner.answer.answer_schema import SearchSummary
from planner.networks.candidate_counts import CandidateCounts
from planner.networks.evaluation import JobEvaluator
from planner.networks.job_assessor import JobAssessor, NetworkOutcome
from planner.networks.job_service import JobService
from planner.networks.merit import Merit
from planner.networks.mix import JobMix, read_jobs
from planner.networks.plan_builder import PlanBuilder, SizedCandidate
from planner.networks.refusal import refuse
from planner.networks.reproduction import reproduce
from planner.networks.request import NetworkRequest
from planner.networks.schema import (
    SCHEMA_VERSION,
    JobBlock,
    JobPart,
    NetworkAnswer,
    NetworkHardwareRow,
    NetworkPlan,
    NetworkRefusal,
)
from planner.networks.search import KindSearch, Progress, SearchesProgress, search_jobs, study_name
from planner.networks.space import make_space
from planner.problem.hardware_choice import choose_hardware, is_any, is_one, uncalibrated_notice
from planner.problem.reproduction import digest
from planner.problem.tariff import least_or_given_price, require_price
from planner.search.optuna_study import SearchSettings, need_storage

#: Other plans beside the recommended one in an answer.
N_ALTERNATIVES: Final = 2


@dataclass(slots=True)
class NetworkPlanner:
    """Plans one request.

    Attributes:
        request: The request.
        mix: Its jobs.
        builder: Builds plans of its candidates.
        kinds: The searches so far.
        notices: Hardware that is not compared.
    """

    request: NetworkRequest
    mix: JobMix
    builder: PlanBuilder
    kinds: list[KindSearch] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, request: NetworkRequest, known: JobService | None = None) -> NetworkPlanner:
        """Return the planner of a request.

        Args:
            request: The request.
            known: Prices of the same jobs, which need not be computed again.

        Raises:
            InputError: The network, or a size of the job, is invalid.
        """
        mix = read_jobs(load_network(request.model), request.job, request.steps)
        service = JobService(mix, request.engine) if known is None else known.with_its_prices()
        evaluator = JobEvaluator(request, service)
        return cls(request, mix, PlanBuilder(JobAssessor(request, evaluator)))

    @property
    def assessor(self) -> JobAssessor:
        """Return what measures its candidates."""
        return self.builder.assessor

    @property
    def counts(self) -> CandidateCounts:
        """Return what became of each candidate so far."""
        return CandidateCounts.of(self.kinds, self.assessor.evaluator.simulated)

    def hardware(self) -> list[Hardware]:
        """Return the hardware to search, and note the rest; `any` leaves out what was not measured.

        Raises:
            InputError: A name is unknown, or none of the hardware is left.
        """
        request, tariff = self.request, self.request.tariff
        named = parse_hardware(request.hardware) if is_one(request.hardware) else None

        budget = request.max_usd_per_hour
        found = choose_hardware(
            request.hardware, partial(least_or_given_price, tariff=tariff), request.objective == "cost", budget, named
        )
        self.notices += found.notices
        if named is not None:
            require_price(named, tariff)
        bare = [each for each in found.hardware if calibration_source(each.accelerator) is None]
        if not is_any(request.hardware) or not bare or len(bare) == len(found.hardware):
            return list(found.hardware)
        self.notices.append(uncalibrated_notice(bare))
        return [each for each in found.hardware if each not in bare]

    def search(self, hardware: Hardware, progress: Progress | None = None) -> KindSearch:
        """Search one piece of hardware.

        Raises:
            InputError: It has no calibration, or none of the precisions.
        """
        request, options = self.request, self.request.search
        space = make_space(request, self.assessor.evaluator.service, [hardware])
        settings = SearchSettings(
            options.trials,
            request.seed,
            study_name(request, hardware.text),
            options.journal,
            options.storage,
            digest(self.assessor.evaluator.service.fingerprint),
        )
        return KindSearch(hardware, space, search_jobs(space.left, self.assessor, settings, self.confirm, progress))

    def run(self, progress: SearchesProgress | None = None) -> None:
        """Search all the hardware of the request, one kind after the other.

        Raises:
            InputError: A name is unknown, or no hardware can be searched.
        """
        several = self.hardware()
        for hardware in several:
            try:
                self.kinds.append(self.search(hardware, progress))
            except InputError as error:
                if not is_any(self.request.hardware):
                    raise
                self.notices.append(f"not compared, {hardware.text}: {error}")
            if progress is not None:
                progress.end_search()
            if self.kinds and self.kinds[-1].search.interrupted:
                break

    def winners(self) -> list[SizedCandidate]:
        """Return the best candidate of each kind of accelerator, best first: they hold with several seeds."""
        bests = [best for kind in self.kinds if (best := kind.search.best) is not None]
        return sorted(map(self._confirmed, bests), key=lambda found: self._merit(found).order)

    def confirm(self, outcome: NetworkOutcome) -> NetworkOutcome:
        """Return an outcome measured with several seeds: with more replicas or a lower rate where they need it.

        Its score is None where even all of the hardware does not hold.
        """
        found = self._confirmed(outcome)
        if not found.met:
            return replace(outcome, score=None, requests_per_s=0.0)
        merit = self._merit(found)
        rate = found.requests_per_s
        return replace(
            outcome,
            candidate=found.candidate,
            requests_per_s=rate,
            score=merit.score,
            confirmed=True,
            load=merit.load,
        )

    def _confirmed(self, outcome: NetworkOutcome) -> SizedCandidate:
        candidate, rate = outcome.candidate, self.request.requests_per_s
        most = self.assessor.most_replicas(candidate)
        while True:
            found = self.builder.sized(candidate, rate)
            if found.met or not self.request.is_required or candidate.replicas >= most:
                return found
            candidate = self.assessor.with_paid_replicas(candidate.with_replicas(candidate.replicas + 1))

    def _merit(self, found: SizedCandidate, load: float | None = None) -> Merit:
        """Return the merit of a plan; its load is searched where it decides and is not given."""
        rate = found.requests_per_s
        if self.request.objective == "throughput":
            rate = self.builder.capacity(found.candidate) or rate
        verdict = self.assessor.evaluator.verdict(found.candidate, rate)
        if load is None:
            load = self.assessor.load(found.candidate, rate) if self.assessor.compares_loads else 0.0
        return Merit(self.assessor.score(found.candidate, rate, verdict), load, found.candidate.distance)

    def _stated(self, found: SizedCandidate) -> Merit:
        """Return the merit of a plan with the capacity that the answer states, which holds with several seeds."""
        return self._merit(found, self.builder.load_of(found) if self.assessor.compares_loads else 0.0)

    def others(self, best: SizedCandidate) -> list[SizedCandidate]:
        """Return the best candidates of other setups on the same accelerator: other formats, modes or splits."""
        kind = next(k for k in self.kinds if k.hardware.accelerator == best.candidate.setup.hardware.accelerator)
        found: list[SizedCandidate] = []
        taken = {best.candidate.setup}
        for outcome in kind.search.held:
            if outcome.candidate.setup not in taken and len(found) < N_ALTERNATIVES:
                taken.add(outcome.candidate.setup)
                sized = self._confirmed(outcome)
                found += [sized] if sized.met else []
        return found

    def alternative(self, best: SizedCandidate, other: SizedCandidate) -> NetworkPlan:
        """Return the plan of another candidate than the best, which says whether the simpler of two that tie won."""
        ours, theirs = self._stated(best), self._stated(other)
        return self.builder.plan(other).model_copy(
            update={"ties": theirs.ties(ours) and ours.distance < theirs.distance}
        )


def plan_network(request: NetworkRequest, progress: Progress | None = None) -> NetworkAnswer:
    """Return the answer to a request for a plan of a network; one that cannot be met is `feasible` False.

    Args:
        request: The request.
        progress: Called after each candidate of a search.

    Raises:
        InputError: A name or a size is invalid, or the storage of the search does not answer.
        KeyboardInterrupt: The search was interrupted before it found a plan.
    """
    started = time.perf_counter()
    if request.search.storage is not None:
        need_storage(request.search.storage)
    planner, counted_progress = NetworkPlanner.of(request), SearchesProgress(progress)
    planner.run(counted_progress)
    interrupted = any(kind.search.interrupted for kind in planner.kinds)
    winners = planner.winners()
    if interrupted and not winners:
        raise KeyboardInterrupt
    rest = [] if not winners or interrupted else [*winners[1:], *planner.others(winners[0])][:N_ALTERNATIVES]
    refusal = None if winners else _refusal(request, planner, counted_progress)
    best = planner.builder.plan(winners[0]) if winners else None
    return NetworkAnswer(
        schema_version=SCHEMA_VERSION,
        kind="network",
        request=request,
        job=_job_block(planner.mix),
        feasible=bool(winners),
        best=best,
        alternatives=[planner.alternative(winners[0], found) for found in rest],
        infeasible=refusal,
        search=_summary(planner, time.perf_counter() - started),
        hardware=_rows(planner, winners),
        prices=[] if best is None else planner.builder.prices(winners[0], best),
        assumptions=_assumptions(request, planner),
        reproduce=reproduce(request, planner.assessor.evaluator.service),
    )


@dataclass(frozen=True, slots=True)
class PricedCandidate:
    """The best candidate of a request, and its price; None if no price is known."""

    sized: SizedCandidate
    usd_per_hour: float | None


def best_of(request: NetworkRequest) -> PricedCandidate | None:
    """Return the best candidate of a request with its price; None if there is none or it cannot be planned."""
    try:
        planner = NetworkPlanner.of(request)
        planner.run()
        best = next(iter(planner.winners()), None)
        return None if best is None else PricedCandidate(best, planner.assessor.usd_per_hour(best.candidate))
    except InputError:
        return None


@dataclass(slots=True)
class _ChangedRequests:
    """Plans changed requests with the same jobs, and counts the searches and the jobs that they took."""

    progress: SearchesProgress
    known: JobService
    n_searches: int = 0
    n_jobs: int = 0

    def best(self, request: NetworkRequest) -> SizedCandidate | None:
        """Return the best candidate of a changed request; None if there is none or it cannot be planned."""
        try:
            planner = NetworkPlanner.of(request, self.known)
        except InputError:
            return None
        try:
            planner.run(self.progress)
            return next(iter(planner.winners()), None)
        except InputError:
            return None
        finally:
            self.n_searches += len(planner.kinds)
            self.n_jobs += planner.assessor.evaluator.n_simulated


def _refusal(request: NetworkRequest, planner: NetworkPlanner, progress: SearchesProgress) -> NetworkRefusal:
    """Return why no plan meets the request, with the number of searches for changes that would."""
    changed = _ChangedRequests(progress, planner.assessor.evaluator.service)
    found = refuse(request, planner.builder, planner.kinds, changed.best)
    counted = {"n_searches": changed.n_searches, "n_jobs": changed.n_jobs}
    return found.model_copy(update=counted | {"reasons": planner.counts.reasons})


def _job_block(mix: JobMix) -> JobBlock:
    job = mix.first
    parts = [JobPart(share=share, sizes=each.all_sizes) for share, each in zip(mix.shares, mix.jobs, strict=True)]
    return JobBlock(
        network=job.network.name,
        family=job.network.family,
        sizes=job.all_sizes,
        words=mix.words,
        unit=job.unit,
        units_per_job=job.items,
        parts=parts if mix.several else [],
    )


def _summary(planner: NetworkPlanner, seconds: float) -> SearchSummary:
    searches, counts = [kind.search for kind in planner.kinds], planner.counts
    measured = sum(len(search.outcomes) for search in searches)
    complete = all(search.complete for search in searches)
    return SearchSummary(
        n_space=counts.n,
        n_bounded_out=counts.bounded_out.total(),
        n_simulated=counts.n_simulated,
        n_pruned=0,
        seconds=seconds,
        seed=planner.request.seed,
        method="all candidates except those that cannot win" if complete else "the most promising candidates",
        n_resumed=sum(search.n_resumed for search in searches),
        bounded_out=dict(counts.bounded_out.most_common()),
        n_requests=planner.assessor.evaluator.n_simulated,
        n_trials=measured,
        n_searches=len(searches),
        interrupted=any(search.interrupted for search in searches),
        left_out=planner.notices,
    )


def _rows(planner: NetworkPlanner, winners: Sequence[SizedCandidate]) -> list[NetworkHardwareRow]:
    """Return a row for each kind of accelerator, best first; none where there is no choice."""
    if len(planner.kinds) < 2:
        return []
    units = planner.mix.first.items
    rows = [
        NetworkHardwareRow(
            hardware=found.candidate.hardware.text,
            state="holds",
            words=found.candidate.words,
            requests_per_s=found.requests_per_s,
            usd_per_hour=(usd := planner.assessor.usd_per_hour(found.candidate)),
            usd_per_unit=None if usd is None else usd / (found.requests_per_s * HOUR_S * units),
        )
        for found in winners
    ]
    held = {found.candidate.setup.hardware for found in winners}
    refused = [kind for kind in planner.kinds if kind.hardware not in held]
    return rows + [
        NetworkHardwareRow(hardware=kind.hardware.text, state="refused", why=_why(planner, kind)) for kind in refused
    ]


def _why(planner: NetworkPlanner, kind: KindSearch) -> str:
    """Return why a kind of accelerator has no plan."""
    missed = min(kind.search.outcomes, key=lambda o: o.ratio, default=None)
    if missed is not None:
        return f"{missed.binding} is missed"
    evaluator, rate = planner.assessor.evaluator, planner.request.requests_per_s
    if kind.space.left and rate is not None:
        most = max(evaluator.fluid_per_s(c) / evaluator.slowdown(c) for c in kind.space.left)
        return f"full batches serve {digits(most)} of {digits(rate)} jobs/s"
    return min(kind.space.closest.values(), default=(0.0, "it holds no replica"))[1]


def _arrivals(request: NetworkRequest, mix: JobMix) -> str:
    """Return how jobs arrive, and whether their sizes differ."""
    if request.users is not None:
        think = f"{request.think_s:g} s" if request.think_s else "no time"
        words = f"{counted(request.users, 'user')} think {think} on average and then send the next job"
    else:
        words = mix.arrivals_words
    sizes = "only jobs of equal sizes run together" if mix.several else "all jobs have the same sizes"
    return f"{words}; {sizes}"


def _assumptions(request: NetworkRequest, planner: NetworkPlanner) -> list[str]:
    engine = planner.assessor.evaluator.service.engine
    lines = [
        _arrivals(request, planner.mix),
        f"{engine} serves them, and a router sends each to the replica with the fewest jobs",
        "latencies are from arrival to the end of the job's batch; transfers of inputs and results are not counted",
        "the published error of the class of networks slows every batch down, at the confidence of the request",
    ]
    if not request.is_required:
        at = "a light load" if request.objective == "latency" else "the highest rate that meets every objective"
        lines.append(f"no rate given: figures are at {at}")
    return lines
