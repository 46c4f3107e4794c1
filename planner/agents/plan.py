"""Plan for a number of agents: the cheapest deployment, KV tier and routing that meet the objectives."""

from __future__ import annotations

import time
from typing import Final

from pydantic import BaseModel

from calibration.bundles.bundle import Bundle
from catalogs.arrays import FloatArray
from catalogs.errors import InputError
from catalogs.io.output_files import finite
from catalogs.units import HOUR_S
from planner.agents.answer import KIND, SCHEMA_VERSION, AgentPlan, AgentsAnswer, ComparedPlan, TimeStats
from planner.agents.capacity import MOST_FACTOR, capacity
from planner.agents.load import sessions_of
from planner.agents.rating import FullRuns, Judge, Rated, Runs
from planner.agents.refusal import AgentsRefuser
from planner.agents.search import Progress, find
from planner.answer.plan_schema import estimate_sentence, estimate_words
from planner.problem.candidate import deployment_words
from planner.problem.latency_metrics import E2E, SESSION, TASK, TPOT, TTFT
from planner.problem.request import DISAGGREGATED, PlanRequest
from planner.problem.scenario import command_of
from planner.problem.slo import statistic_s
from planner.problem.tariff import least_price
from planner.search.workers import ProcessPool, usable_cores

#: Fields of a request that a plan for agents does not read; each must have its default.
NOT_READ: Final = ("objective", "spare", "accounting", "search")


def plan_agents(
    request: PlanRequest, progress: Progress = lambda _: None, workers: ProcessPool | None = None
) -> AgentsAnswer:
    """Return the answer for the agents of a request.

    The search is described in `planner.agents.search`. Its result is judged by several seeds and slower steps. Where
    the objectives are missed, the answer states what binds and what would meet them.

    Raises:
        InputError: The request has no agents, or a field that a plan for agents does not read, the workload has no
            sessions, a name is unknown, or nothing fits.
    """
    agents = request.agents
    if agents is None:
        raise InputError("a plan for agents needs their number", None, "--agents 8")
    _check_read(request)
    began = time.monotonic()
    workload = request.read_workload()
    sessions_of(workload)
    runs = Runs(workers or ProcessPool(usable_cores()))
    judge = Judge(request, runs)
    found = find(judge, workload, agents, progress)
    if not found.rated:
        raise InputError("no deployment of the model fits on the hardware with its contexts", request.hardware)
    chosen = found.rated[0].choice
    progress("the recommended deployment, with several seeds")
    full = judge.full(chosen, agents)
    progress("its capacity in agents")
    most = capacity(judge, chosen, agents, full.met)
    refusal = None if full.met else AgentsRefuser(judge, workload, agents, progress).refuse(full, most)
    compared = [_compared(rated, request) for rated in found.rated]
    return AgentsAnswer(
        kind=KIND,
        schema_version=SCHEMA_VERSION,
        request=request.as_dict(),
        agents=agents,
        as_interactivity=[slo.name for slo in request.slos if slo.as_rate],
        slo_words=request.slo_words,
        feasible=full.met,
        infeasible=refusal,
        best=_plan(full, request),
        capacity_agents=most,
        capacity_is_least=most >= agents * MOST_FACTOR,
        compared=compared[0],
        others=compared[1:],
        n_placements=found.n_placements,
        n_simulated=found.n_simulated,
        n_runs=runs.n,
        n_requests=runs.n_requests,
        seconds=time.monotonic() - began,
        notices=[*_estimate_notice(chosen.serving.deployments.bundle), *full.rejection_notices(), *workload.notices],
        command=command_of(request),
    )


def _check_read(request: PlanRequest) -> None:
    """Refuse a request that has a field which a plan for agents does not read."""
    for name in NOT_READ:
        default = PlanRequest.model_fields[name].get_default(call_default_factory=True)
        if getattr(request, name) != default:
            rule, value = f"a plan for agents does not read `{name}`: it finds the lowest cost", getattr(request, name)
            if isinstance(value, BaseModel):
                given = value.model_dump(mode="json", exclude_defaults=True)
                value = ", ".join(f"{name}.{key}={each}" for key, each in given.items())
            raise InputError(rule, value)
    other = next((kind for kind in request.extensions if kind != DISAGGREGATED), None)
    if other is not None:
        raise InputError("a plan for agents does not read other kinds in `also`", other, DISAGGREGATED)


def _estimate_notice(bundle: Bundle) -> list[str]:
    """Return a notice if the operator times of the hardware are borrowed, or those of attention are estimates."""
    words = estimate_words(bundle.borrowed_from, is_roofline=False)
    if not words and not bundle.times_attention:
        words = "the attention of this hardware was not measured, and is a roofline estimate"
    return [estimate_sentence(words)] if words else []


def _compared(rated: Rated, request: PlanRequest) -> ComparedPlan:
    """Return a choice with the values that rate it."""
    choice, seen = rated.choice, rated.seen
    error = choice.serving.error(choice.candidate)
    values = {slo.name: finite(seen.value_s(slo, error, request.confidence)) for slo in choice.serving.slos}
    return ComparedPlan(
        words=deployment_words(choice.deployment),
        tier=choice.tier.name,
        router=choice.router,
        replicas=choice.candidate.replicas + choice.candidate.split.replicas,
        values_s=values,
        hit_rate=seen.hits.rate,
        rejected_share=seen.observation.rejected_fraction,
        ratio=rated.ratio,
    )


def _plan(full: FullRuns, request: PlanRequest) -> AgentPlan:
    """Return a deployment under the load of the agents, measured with independent seeds and slower steps."""
    choice, seen = full.choice, full.seeds[0]
    price = least_price(choice.candidate.hardware, request.tariff)
    usd = None if price is None else price.usd_per_hour
    tpot, e2e = full.samples_s(TPOT.name), full.samples_s(E2E.name)
    deployment, whole = choice.deployment, choice.serving.whole_sessions
    tasks = seen.requests_per_s / whole.requests_per_task * HOUR_S
    return AgentPlan(
        words=deployment_words(deployment),
        deployment=deployment,
        tier=choice.tier.name,
        router=choice.router,
        replicas=choice.candidate.replicas + choice.candidate.split.replicas,
        met=full.met,
        objectives=full.rows,
        interactivity_p50=_per_s(tpot, 0.5),
        interactivity_p90=_per_s(tpot, 0.9),
        ttft_p50_s=statistic_s(full.samples_s(TTFT.name), 0.5),
        e2e_mean_s=float(e2e.mean()) if len(e2e) else None,
        hit_rate=seen.hits.rate,
        theoretical_hit_rate=seen.hits.theoretical_rate,
        requests_at_once=seen.requests_at_once,
        requests_per_s=seen.requests_per_s,
        output_tokens_per_s=seen.output_tokens_per_s,
        rejected_share=full.rejected_share,
        session_s=_stats(full.samples_s(SESSION.name)),
        task_s=_stats(full.samples_s(TASK.name)),
        requests_per_task=whole.requests_per_task,
        tasks_per_hour=tasks,
        usd_per_hour=usd,
        usd_per_agent_hour=None if usd is None else usd / full.agents,
        usd_per_task=None if usd is None or not tasks else usd / tasks,
    )


def _stats(samples_s: FloatArray) -> TimeStats:
    """Return the statistics of the times of sessions or tasks. Shape of `samples_s`: (n,)."""
    mean, p50, p90 = (finite(statistic_s(samples_s, quantile)) for quantile in (None, 0.5, 0.9))
    return TimeStats(mean=mean, p50=p50, p90=p90)


def _per_s(tpot_s: FloatArray, share: float) -> float | None:
    """Return the tokens per second that a share of the requests reach, as the objective on tpot has it.

    None if fewer requests are served. Shape of `tpot_s`: (n,).
    """
    value_s = statistic_s(tpot_s, share)
    return 1.0 / value_s if 0 < value_s < float("inf") else None
