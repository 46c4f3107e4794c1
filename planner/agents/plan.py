"""Plan for a number of agents: the cheapest deployment, KV tier and routing that meet the objectives."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np

from catalogs.arrays import FloatArray
from catalogs.deployments.resolve import CatalogLookup
from catalogs.errors import InputError
from catalogs.hardware.catalog import parse_hardware
from catalogs.io.output_files import finite
from catalogs.ui.words import percent
from planner.agents.answer import SCHEMA_VERSION, AgentPlan, AgentsAnswer, ComparedPlan
from planner.agents.serving import TURNS, AgentServing, Seen, Tier, routers, sessions_of, tiers
from planner.answer.plan_schema import SloResult
from planner.evaluation.closed_forms import ClosedForms
from planner.evaluation.confidence import LEVELS, SEEDS, SPEED
from planner.evaluation.deployments import CandidateDeployments
from planner.evaluation.workload_statistics import WorkloadStatistics
from planner.problem.candidate import Candidate, DeploymentOverrides, deployment_words
from planner.problem.hardware_choice import choose_hardware
from planner.problem.latency_metrics import E2E, TPOT, TTFT
from planner.problem.request import PlanRequest
from planner.problem.slo import statistic_s
from planner.problem.tariff import least_price
from planner.sections.users import slo_row
from planner.space.candidates import candidates, limits, widest_limits
from simulator.core.outcomes import STATUS, TOO_LONG

#: Placements that are simulated for each price, in the order of their estimated capacity.
MOST_PLACEMENTS: Final = 3

#: Requests of each agent in a run that compares placements.
QUICK_TURNS: Final = 10

#: The search for a capacity ends when its bounds differ by at most this factor.
TOLERANCE: Final = 1.1

#: The search for a capacity ends at this multiple of the requested agents.
MOST_FACTOR: Final = 8

#: Fields of a request that a plan for agents does not read; each must have its default.
NOT_READ: Final = ("objective", "spare", "extensions", "accounting", "search")

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Choice:
    """A placement with a tier and a router."""

    serving: AgentServing = field(compare=False)
    candidate: Candidate
    tier: Tier
    router: str

    def observe(self, agents: int, turns: int = TURNS, seed: int = 0, speed: float = 1.0) -> Seen:
        """Return what a run of agents shows; see `AgentServing.observe`."""
        return self.serving.observe(self.candidate, self.tier, self.router, agents, turns, seed, speed)

    def rate(self, agents: int, confidence: float, turns: int = TURNS) -> tuple[float, Seen]:
        """Return the highest ratio of an objective's value to its limit that is not exceeded with a confidence.

        The run from which it follows is returned too.
        """
        error = self.serving.error(self.candidate)
        speed = float(error.factors(SPEED, np.array([confidence]))[0])
        seen = self.observe(agents, turns, speed=speed)
        return seen.ratio(self.serving.slos, error, confidence), seen

    @property
    def deployment(self) -> dict[str, Any]:
        """Return the deployment, as `simulate` reads it."""
        keys = {**self.candidate.rest.values, **self.tier.keys.values, "router": self.router}
        written = replace(self.candidate, rest=DeploymentOverrides(keys))
        found: dict[str, Any] = self.serving.deployments.written(written).model_dump(mode="json")
        return found


@dataclass(frozen=True, slots=True)
class Rated:
    """A choice with the run that rates it.

    Attributes:
        choice: The choice.
        ratio: The highest ratio of an objective's value to its limit that is not exceeded with the required confidence.
        depth: How far the choice is from the simplest one.
        seen: The run, at the speed of this confidence.
    """

    choice: Choice
    ratio: float
    depth: int
    seen: Seen

    @classmethod
    def of(cls, choice: Choice, request: PlanRequest, agents: int, depth: int, turns: int = TURNS) -> Rated:
        """Return a choice, rated by one run."""
        ratio, seen = choice.rate(agents, request.confidence, turns)
        return cls(choice, ratio, depth, seen)

    def __lt__(self, other: Rated) -> bool:
        return (round(self.ratio, 2), self.depth) < (round(other.ratio, 2), other.depth)


def plan_agents(request: PlanRequest, agents: int, progress: Progress = lambda _: None) -> AgentsAnswer:
    """Return the answer for a number of agents.

    Placements at the engine's default limits are ordered by price and by the capacity that closed forms estimate. The
    best of each price are simulated briefly, routed by session, with and without host memory. The best of them is then
    simulated for longer with every KV tier and router, and with other token budgets of a step. The search ends at the
    lowest price at which the objectives are met.

    Raises:
        InputError: The workload has no sessions, a name is unknown, nothing fits, or the request has a field that a
            plan for agents does not read.
    """
    if agents < 1:
        raise InputError("agents must be a whole number of at least 1", agents, "1")
    for name in NOT_READ:
        default = PlanRequest.model_fields[name].get_default(call_default_factory=True)
        if getattr(request, name) != default:
            raise InputError(
                f"a plan for agents does not read `{name}`: it finds the lowest cost", getattr(request, name)
            )
    began = time.monotonic()
    workload = request.read_workload()
    sessions_of(workload)
    tried: list[Rated] = []
    found: list[Rated] = []
    for choices in _by_price(request, agents):
        quick = [rated for choice in choices for rated in _quick(choice, request, agents, progress)]
        tried += quick
        if quick and min(quick).ratio <= 1.0:
            found = _variants(min(quick).choice, request, agents)
            if found[0].ratio <= 1.0:
                break
    if not tried:
        raise InputError("no deployment of the model fits on the hardware with its contexts", request.hardware)
    if not found or found[0].ratio > 1.0:
        found = _variants(min(tried).choice, request, agents)
    chosen = found[0].choice
    full = FullRuns.of(chosen, request, agents)
    best = _plan(chosen, request, full)
    capacity = _capacity(chosen, request, agents, best.met)
    servings = {id(rated.choice.serving): rated.choice.serving for rated in tried}.values()
    return AgentsAnswer(
        schema_version=SCHEMA_VERSION,
        request=request.as_dict() | {"agents": agents},
        agents=agents,
        as_interactivity=[slo.name for slo in request.slos if slo.as_rate],
        feasible=best.met,
        best=best,
        capacity_agents=capacity,
        capacity_is_least=capacity >= agents * MOST_FACTOR,
        compared=_compared(found[0], request),
        others=[_compared(rated, request) for rated in found[1:]],
        n_runs=sum(serving.n_runs for serving in servings),
        n_requests=sum(serving.n_requests for serving in servings),
        seconds=time.monotonic() - began,
        notices=[*full.rejection_notices(), *workload.notices],
    )


def _variants(choice: Choice, request: PlanRequest, agents: int) -> list[Rated]:
    """Return a placement with every tier and router, and the best of them with other token budgets, the best first.

    A simpler deployment comes first where another one is not better by a hundredth.
    """
    candidate = choice.candidate
    found = [
        Rated.of(other, request, agents, depth)
        for depth, tier in enumerate(tiers(candidate))
        for router in routers(candidate)
        if _runs(other := replace(choice, tier=tier, router=router))
    ]
    best = min(found)
    own = candidate.max_num_seqs, candidate.max_num_batched_tokens
    for seqs, tokens in limits(choice.serving.names, request.fixed):
        if seqs == own[0] and tokens != own[1]:
            other = replace(best.choice, candidate=replace(candidate, max_num_batched_tokens=tokens))
            if _runs(other):
                found.append(Rated.of(other, request, agents, best.depth + 1))
    return sorted(found)


def _compared(rated: Rated, request: PlanRequest) -> ComparedPlan:
    """Return a choice with the values that rate it."""
    choice, seen = rated.choice, rated.seen
    error = choice.serving.error(choice.candidate)
    values = {slo.name: finite(seen.value_s(slo, error, request.confidence)) for slo in choice.serving.slos}
    return ComparedPlan(
        words=deployment_words(choice.deployment),
        tier=choice.tier.name,
        router=choice.router,
        values_s=values,
        hit_rate=seen.hits.rate,
        rejected_share=seen.observation.rejected_fraction,
        ratio=rated.ratio,
    )


def _by_price(request: PlanRequest, agents: int) -> Iterator[list[Choice]]:
    """Yield the placements of each price, the lowest price first, those of the highest estimated capacity."""
    workload = request.read_workload()
    found = choose_hardware(
        request.hardware,
        lambda hardware: least_price(hardware, request.tariff),
        False,
        request.max_usd_per_hour,
        engine=request.engine,
    )
    groups: dict[float, list[tuple[float, Choice]]] = {}
    for hardware in found.hardware:
        named = parse_hardware(hardware.text)
        names = CatalogLookup.on(named, request.model, request.engine)
        widest = widest_limits(names, request.fixed)
        deployments = CandidateDeployments(names, request.model, request.engine, widest)
        forms = ClosedForms(deployments, WorkloadStatistics.of(workload, request.seed), request.slos)
        serving = AgentServing(names, deployments, workload, request.slos, request.seed, forms)
        own = limits(names, request.fixed)[0]
        for candidate in candidates(request.replace(users=agents), names):
            if (candidate.max_num_seqs, candidate.max_num_batched_tokens) != own:
                continue
            try:
                if not deployments.memory(candidate).fits:
                    continue
                capacity = forms.saturation_per_s(candidate)
            except InputError:
                continue
            choice = Choice(serving, candidate, next(tiers(candidate)), routers(candidate)[0])
            groups.setdefault(_usd(choice, request), []).append((capacity, choice))
    for usd in sorted(groups):
        ordered = sorted(groups[usd], key=lambda pair: -pair[0])
        yield [choice for _, choice in ordered[:MOST_PLACEMENTS]]


def _usd(choice: Choice, request: PlanRequest) -> float:
    """Return the price of a placement per hour; the number of accelerators where none is known."""
    price = least_price(choice.candidate.hardware, request.tariff)
    return float(choice.candidate.hardware.n_accelerators) if price is None else price.usd_per_hour


def _quick(choice: Choice, request: PlanRequest, agents: int, progress: Progress) -> Iterator[Rated]:
    """Yield a placement, rated by short runs, on device memory alone and with host memory."""
    progress(choice.candidate.words)
    for depth, tier in enumerate(list(tiers(choice.candidate))[:2]):
        other = replace(choice, tier=tier)
        if _runs(other):
            yield Rated.of(other, request, agents, depth, QUICK_TURNS)


def _runs(choice: Choice) -> bool:
    """Return whether a choice fits and the engine supports its tier."""
    try:
        choice.serving.compiled(choice.candidate, choice.tier)
    except InputError:
        return False
    return True


def _capacity(choice: Choice, request: PlanRequest, agents: int, met: bool) -> int:
    """Return the most agents for which the objectives were found to be met, within a factor TOLERANCE.

    Single short runs say where to look. What is returned has been judged as the answer is, so that a plan for this
    number of agents agrees.

    Args:
        choice: The recommended deployment.
        request: The request.
        agents: Its agents.
        met: Whether the objectives are met for them.
    """
    most = agents * MOST_FACTOR
    low, failed = (agents, most + 1) if met else (0, agents)
    n = _estimated_capacity(choice, request, low, min(failed, most))
    if n <= low:
        n = _above(low)
    step = TOLERANCE
    while failed - low > 1 and (failed > low * TOLERANCE or failed > most):
        if FullRuns.of(choice, request, n).met:
            low = n
        else:
            failed = n
        if failed > most:
            n = min(most, _above(low, step))
            step *= step
        else:
            n = min(max(round((max(low, 1) * failed) ** 0.5), low + 1), failed - 1)
    return low


def _above(n: int, step: float = TOLERANCE) -> int:
    """Return the number of agents that is tried next after n, for which the objectives are met."""
    return max(n + 1, round(n * step))


def _estimated_capacity(choice: Choice, request: PlanRequest, low: int, high: int) -> int:
    """Return the most agents from low to high, within a factor TOLERANCE, that meet the objectives in a short run."""

    def meets(n: int) -> bool:
        return choice.rate(n, request.confidence, QUICK_TURNS)[0] <= 1.0

    n = low
    while low and n < high:
        n = min(high, n * 2)
        if not meets(n):
            high = n
            break
        low = n
    while high > max(low, 1) * TOLERANCE and high - low > 1:
        n = min(max(round((max(low, 1) * high) ** 0.5), low + 1), high - 1)
        if meets(n):
            low = n
        else:
            high = n
    return low


@dataclass(frozen=True, slots=True)
class FullRuns:
    """The runs that judge a choice: independent seeds, and steps that are slower by levels of the stated error.

    Attributes:
        choice: The choice.
        agents: Agents at work.
        seeds: The runs of independent seeds.
        rows: The objectives.
    """

    choice: Choice
    agents: int
    seeds: list[Seen]
    rows: list[SloResult]

    @classmethod
    def of(cls, choice: Choice, request: PlanRequest, agents: int) -> FullRuns:
        """Simulate a choice and judge the objectives with the confidence of the request."""
        error = choice.serving.error(choice.candidate)
        seeds = [choice.observe(agents, seed=seed) for seed in range(SEEDS)]
        slower = [choice.observe(agents, speed=float(f)).observation for f in error.factors(SPEED, np.array(LEVELS))]
        loops = [run.observation for run in seeds]
        rows = [slo_row(slo, loops, slower, error, request.confidence) for slo in request.slos]
        return cls(choice, agents, seeds, rows)

    @property
    def met(self) -> bool:
        """Return whether every objective is met with the confidence of the request."""
        return all(row.met for row in self.rows)

    @property
    def rejected_share(self) -> float:
        """Return the share of the measured requests of all seeds that are rejected because of their size."""
        seen = [run.observation for run in self.seeds]
        return sum(o.rejected_fraction * o.n_measured for o in seen) / max(1, sum(o.n_measured for o in seen))

    def samples_s(self, metric: str) -> FloatArray:
        """Return the samples of a metric of all seeds, in seconds. Shape (n,)."""
        return np.concatenate([run.observation.samples_s[metric] for run in self.seeds])

    def rejection_notices(self) -> Iterator[str]:
        """Yield which share of the requests is rejected because of its size, with the limit of the model."""
        if not self.rejected_share:
            return
        worst = max((run.observation for run in self.seeds), key=lambda o: o.rejected_fraction)
        longest = max(run.longest_tokens for run in self.seeds)
        limits = self.choice.serving.compiled(self.choice.candidate, self.choice.tier).resolved.limits
        why = f"{percent(self.rejected_share)} of the requests are {worst.rejected_because}"
        if worst.rejected_because == STATUS[TOO_LONG]:
            why += f", which is {limits.max_model_len:,} tokens"
        yield f"{why} (the longest request has {longest:,} tokens)"


def _plan(choice: Choice, request: PlanRequest, full: FullRuns) -> AgentPlan:
    """Return a deployment under the load of the agents, measured with independent seeds and slower steps."""
    seen = full.seeds[0]
    price = least_price(choice.candidate.hardware, request.tariff)
    tpot, e2e = full.samples_s(TPOT.name), full.samples_s(E2E.name)
    deployment = choice.deployment
    return AgentPlan(
        words=deployment_words(deployment),
        deployment=deployment,
        tier=choice.tier.name,
        router=choice.router,
        met=full.met,
        objectives=full.rows,
        interactivity_p50=_per_s(tpot, 0.5),
        interactivity_p90=_per_s(tpot, 0.9),
        ttft_p50_s=statistic_s(full.samples_s(TTFT.name), 0.5),
        e2e_mean_s=float(e2e.mean()) if len(e2e) else None,
        hit_rate=seen.hits.rate,
        theoretical_hit_rate=seen.hits.theoretical_rate,
        requests_at_once=seen.sessions_at_once,
        requests_per_s=seen.requests_per_s,
        output_tokens_per_s=seen.output_tokens_per_s,
        rejected_share=full.rejected_share,
        usd_per_hour=None if price is None else price.usd_per_hour,
        usd_per_agent_hour=None if price is None else price.usd_per_hour / full.agents,
    )


def _per_s(tpot_s: FloatArray, share: float) -> float | None:
    """Return the tokens per second that a share of the requests reach, as the objective on tpot has it.

    None if fewer requests are served. Shape of `tpot_s`: (n,).
    """
    value_s = statistic_s(tpot_s, share)
    return 1.0 / value_s if 0 < value_s < float("inf") else None
