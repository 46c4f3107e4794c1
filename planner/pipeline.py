"""Answer a planning request: build the space, apply bounds, search, and evaluate the best plan and its alternatives.

The search runs on this machine or on a Ray cluster and reports its progress on stderr.
"""

from __future__ import annotations

import math
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from catalogs.errors import InputError
from catalogs.hardware.specs import Hardware
from catalogs.io.http import without_password
from catalogs.ui.progress import counted_progress, status_line
from catalogs.ui.words import counted, rate
from planner.answer.answer_schema import SCHEMA_VERSION, Answer, Reproduce, SearchSummary
from planner.answer.candidate_search import (
    MOST_TRIES,
    RACES,
    GroupSearch,
    distance_of,
    estimates_ahead,
    first_plan_on,
    group_search,
    simplest_best,
    sizes_of,
    tester_of,
    unit_cost_of,
)
from planner.answer.confirmed_rates import BEST, MOST_REPLICAS, OTHER, SeedBudget
from planner.answer.evaluated_plan import EvaluatedPlan, pareto
from planner.answer.hardware_ranking import HardwareRanking, RankedHardware
from planner.answer.plan_evaluator import CapacityHint, PlanEvaluator
from planner.answer.plan_figures import prices_of
from planner.answer.recommendation import simplest_of_best_first, with_ties
from planner.answer.refusal import Refuser, least_missed
from planner.evaluation.closed_forms.bounds import Discard
from planner.evaluation.evaluator import Evaluator, apply_bounds
from planner.evaluation.multi_hardware import HardwareChoiceEvaluator, open_evaluator
from planner.evaluation.verdict import SHORT_RUN_MARGIN
from planner.evaluation.workload_statistics import WorkloadBlock
from planner.problem.candidate import Candidate, kind_of
from planner.problem.hardware_choice import is_one
from planner.problem.price_list import PriceList
from planner.problem.reproduction import reproduce_block
from planner.problem.request import PlanRequest
from planner.search.candidate_tester import Outcome
from planner.search.optuna_study import need_storage
from planner.search.search import Progress, SearchResult
from planner.search.workers import ONE_PROCESS, ProcessPool, WorkerPool, usable_cores
from planner.sections.full_answer import FullAnswer
from planner.sections.registry import check_sections, compute_sections

#: Largest value / limit in the search of a candidate that is tried with all seeds because it is estimated to meet the
#: request. A judgement: near saturation, a percentile of one seed may be twice that of another.
_NEAR_SATURATION: Final = 2.5

#: Other plans beside the recommended one in an answer.
N_ALTERNATIVES: Final = 2


def make_plan(
    request: PlanRequest,
    evaluator: HardwareChoiceEvaluator,
    elsewhere: Callable[[Hardware], Evaluator],
    progress: Progress | None = None,
    workers: WorkerPool = ONE_PROCESS,
) -> Answer:
    """Return the answer to one request.

    Objectives that cannot be met are not an error: the answer then has `feasible` False.

    Args:
        request: The request.
        evaluator: Evaluates candidates on the hardware of the request.
        elsewhere: Opens the evaluator of other hardware, which a refused request may need to meet its objectives.
        progress: Called after each candidate of the search.
        workers: Evaluate the candidates and simulate several seeds.

    Raises:
        InputError: A name is unknown.
    """
    started = time.perf_counter()
    space = _Space(*apply_bounds(request, evaluator))
    prices = PriceList.of(request.tariff, evaluator.names.hardware, request.accounting)
    plan_evaluator = PlanEvaluator(evaluator, tester_of(request, evaluator, space.left), prices, workers.map)
    searched = group_search(request, plan_evaluator, space.left, workers, progress)
    entries, ranked = _evaluated(request, plan_evaluator, searched, space)
    result = searched.result
    entries, refusal = with_ties(request, plan_evaluator, entries), None
    if not entries:
        ranked = ranked.refuted()
        refuser = Refuser(request, plan_evaluator, elsewhere, partial(first_plan_on, request, elsewhere, workers))
        refusal = refuser.refuse(space.left, list(space.discards.items()), result.outcomes, ranked.tried)
    seconds, sections = time.perf_counter() - started, dict[str, Any]()
    if entries and not result.interrupted:
        try:
            sections = compute_sections(request, entries[0], evaluator, workers)
        except KeyboardInterrupt:  # the plans themselves are complete
            result.interrupted = True
    summary = _summary(request, evaluator, space, result, ranked, seconds)
    return FullAnswer(
        schema_version=SCHEMA_VERSION,
        request=request,
        feasible=bool(entries),
        best=entries[0].plan if entries else None,
        alternatives=[entry.plan for entry in entries[1:]],
        pareto=pareto(entries),
        infeasible=refusal,
        search=summary,
        hardware=ranked.rows,
        assumptions=assumptions(request, evaluator.workload.lengths().words),
        prices=prices_of(entries[0].plan, entries[0].candidate) if entries else [],
        reproduce=Reproduce(**reproduce_block(request, evaluator.fingerprint)),
        workload=WorkloadBlock.of(evaluator.workload),
        **sections,
    )


@dataclass(frozen=True, slots=True)
class _Space:
    """The candidates that the bounds leave, and the others with the reasons why they cannot meet the request."""

    left: list[Candidate]
    discards: dict[Candidate, Discard]


def _evaluated(
    request: PlanRequest, plan_evaluator: PlanEvaluator, searched: GroupSearch, space: _Space
) -> tuple[list[EvaluatedPlan], RankedHardware]:
    """Search, and return the plans of the answer, with the comparison of the kinds of a hardware choice.

    After Ctrl-C, these are the plans found so far, or the best of the search, evaluated with few seeds.

    Raises:
        KeyboardInterrupt: The command was interrupted before a plan was found.
    """
    entries: list[EvaluatedPlan] = []
    try:
        entries = _entries_of(request, plan_evaluator, searched)
        if not searched.result.interrupted and is_one(request.hardware):
            entries = entries or _closest_that_holds(plan_evaluator, searched.result)
        elif not searched.result.interrupted:
            ranked = _ranked(searched, space, entries)
            if entries:
                return _with_another_kind(entries, ranked.plans), ranked
            return _with_all_seeds(plan_evaluator, ranked.plans), ranked
    except KeyboardInterrupt:
        searched.result.interrupted = True
        entries = entries or _entries(request, plan_evaluator, searched.result)
    if searched.result.interrupted and not entries:
        raise KeyboardInterrupt
    return entries, RankedHardware()


def _ranked(searched: GroupSearch, space: _Space, entries: Sequence[EvaluatedPlan]) -> RankedHardware:
    """Return the row of each kind of accelerator, with the plans and the searches behind it."""
    plan_evaluator = searched.plan_evaluator
    sizes = sizes_of(plan_evaluator.prices, space.left)
    result, in_order = searched.result, searched.counted.in_order
    best = entries[0] if entries else None
    ranking = HardwareRanking(searched.request, plan_evaluator, in_order, sizes.__getitem__, result.refused, best)
    return ranking.rows(space.left, list(space.discards.items()), result.outcomes, entries)


def _summary(
    request: PlanRequest,
    evaluator: Evaluator,
    space: _Space,
    result: SearchResult,
    ranked: RankedHardware,
    seconds: float,
) -> SearchSummary:
    """Return the part of the answer that tells how the plans were found."""
    return SearchSummary(
        n_space=len(space.left) + len(space.discards),
        n_bounded_out=len(space.discards),
        n_simulated=len(result.simulated | ranked.tried.keys()),
        n_trials=result.n_trials + ranked.n_trials,
        n_searches=result.n_searches + ranked.n_searches,
        n_pruned=result.n_pruned,
        seconds=seconds,
        seed=request.seed,
        method=_method(result, len(space.left)),
        n_resumed=result.n_resumed,
        n_requests=result.n_requests + ranked.n_requests,
        bounded_out=dict(Counter(d.reason for d in space.discards.values()).most_common()),
        interrupted=result.interrupted,
        left_out=list(evaluator.notices),
    )


def _with_another_kind(entries: Sequence[EvaluatedPlan], by_kind: Sequence[EvaluatedPlan]) -> list[EvaluatedPlan]:
    """Return the plans of the answer; if all are on one kind of accelerator, the last is the best on another kind."""
    kinds = {kind_of(entry.candidate) for entry in entries}
    other = next((entry for entry in by_kind if kind_of(entry.candidate) not in kinds), None)
    if len(kinds) != 1 or other is None:
        return list(entries)
    return [*entries[:N_ALTERNATIVES], other]


def _with_all_seeds(plan_evaluator: PlanEvaluator, by_kind: Sequence[EvaluatedPlan]) -> list[EvaluatedPlan]:
    """Return the plans of single kinds, the first with the seeds of a winner; empty if none of them holds with these.

    These plans are the answer where the search has none: a refusal would contradict a plan in the table of kinds.
    """
    for i, entry in enumerate(by_kind):
        first = plan_evaluator.entry_that_holds(entry.candidate, None, BEST)
        if first is not None:
            return [first, *by_kind[i + 1 :][:N_ALTERNATIVES]]
    return []


def _closest_that_holds(plan_evaluator: PlanEvaluator, result: SearchResult) -> list[EvaluatedPlan]:
    """Return a plan close to the request that meets it with all seeds; empty if none of those that are tried does.

    The search measures with one seed and short runs, so its refusal may be contradicted by a plan that holds with all.
    """
    if not result.outcomes:
        return []
    closest, *others = _worth_all_seeds(plan_evaluator, result.outcomes)
    tester = plan_evaluator.tester
    for candidate in [closest, *others][:MOST_TRIES]:
        rate = tester.nominal_per_s(candidate) or tester.floor_per_s(candidate)
        if candidate != closest and not plan_evaluator.is_confirmed(candidate, rate):
            continue
        found = plan_evaluator.entry_that_holds(candidate, None, BEST)
        if found is not None:
            return [found]
    return []


def _worth_all_seeds(plan_evaluator: PlanEvaluator, outcomes: Sequence[Outcome]) -> list[Candidate]:
    """Return the candidates that one seed has refused and all seeds may meet, the most promising first.

    After the closest come those that miss by no more than the noise of one seed, the simplest first: it is the simplest
    of plans that tie that is recommended without a required rate. Last come those that do not miss by far and are
    estimated to meet the request.
    """
    tester, evaluator = plan_evaluator.tester, plan_evaluator.evaluator
    closest = least_missed(outcomes, evaluator.fluid_requests_per_s)
    near = {o.candidate: o.ratio for o in outcomes if o.ratio <= SHORT_RUN_MARGIN}
    simplest = sorted(near, key=lambda c: (distance_of(c, evaluator), near[c], c))
    rather_near = [o.candidate for o in outcomes if o.ratio <= _NEAR_SATURATION]
    guess = {c: tester.guessed_ratio(c, tester.floor_per_s(c)) for c in rather_near}
    estimated = sorted((c for c in guess if guess[c] <= 1), key=lambda c: (guess[c], c))
    return list(dict.fromkeys([closest, *simplest, *estimated]))


def _method(result: SearchResult, n_left: int) -> str:
    if result.interrupted:
        return f"interrupted: best of {len(result.outcomes):,} simulated candidates of {n_left:,}"
    if not result.enumerated:
        return f"the most promising of {n_left:,} candidates"
    if result.n_outclassed:
        return "all candidates except those that cannot win"
    return "all candidates" if len(result.outcomes) >= n_left else "all candidates that may serve the load"


def assumptions(request: PlanRequest, lengths: str) -> list[str]:
    """Return the assumptions behind the figures, one sentence each; `lengths` describes those of the requests."""
    lines = [
        f"workload {request.workload}: its arrivals, of which only the rate is scaled, and requests of these lengths: "
        f"{lengths}",
        "the search and the alternatives simulate one replica under its share of the requests; the figures of the best "
        f"plan come from all its replicas behind one round-robin router, up to {MOST_REPLICAS} of them",
        "latencies are measured at the client, in the steady part of each run",
    ]
    if request.users is not None:
        lines.append(f"figures are at the rate of {counted(request.users, 'user')} who wait for each answer")
    elif not request.given:
        at = "a light load" if request.objective == "latency" else "the highest rate that meets every objective"
        lines.append(f"no rate given: figures are at {at}")
    return lines


def _entries_of(request: PlanRequest, plan_evaluator: PlanEvaluator, searched: GroupSearch) -> list[EvaluatedPlan]:
    """Return the plans that a search finds, which goes on while all seeds refuse its winners."""
    entries = _entries(request, plan_evaluator, searched.run())
    while not entries and searched.go_on():
        entries = _entries(request, plan_evaluator, searched.result)
    return entries


def _entries(request: PlanRequest, plan_evaluator: PlanEvaluator, result: SearchResult) -> list[EvaluatedPlan]:
    """Return the winner and its alternatives, evaluated with independent seeds; empty if no plan meets the request."""
    races = request.objective in RACES
    outcomes = [o for o in result.outcomes if o.candidate not in result.refused]
    budget = OTHER if result.interrupted else BEST  # an interrupted command ends soon
    best, first = _winner(request, plan_evaluator, result, races, budget)
    if best is None or first is None:
        return []
    unit_cost = unit_cost_of(request.objective, plan_evaluator.prices, [o.candidate for o in outcomes])
    rank = partial(_rank, plan_evaluator.evaluator, races, unit_cost)
    others = [] if result.interrupted else _others(best, outcomes, rank)
    # In other searches, a candidate may have lost at a rate at which it meets the objectives.
    hints = {o.candidate: CapacityHint(_missed_at(o) if races else None, first) for o in others}
    try:
        rest = plan_evaluator.each(lambda c: plan_evaluator.entry(c, None, OTHER, hint=hints[c]), list(hints))
        held = [e for e in rest if (e.holds if request.demand.given else e.capacity_requests_per_s is not None)]
        found = simplest_of_best_first(request, plan_evaluator, [first, *held])
    except KeyboardInterrupt:  # the winner has all seeds already
        result.interrupted = True
        return [first]
    result.refused.update({e.candidate for e in held} - {e.candidate for e in found})
    return found


def _missed_at(outcome: Outcome) -> float | None:
    """Return the rate that a candidate missed in the search, if any: its capacity is below, and its run is known."""
    return outcome.upper_requests_per_s if math.isfinite(outcome.upper_requests_per_s) else None


def _winner(
    request: PlanRequest, plan_evaluator: PlanEvaluator, result: SearchResult, races: bool, budget: SeedBudget
) -> tuple[Outcome | None, EvaluatedPlan | None]:
    """Return the best outcome that still meets the request with all seeds pooled, and its plan.

    If too many of the best fail, the last to be tried is the one that met the request most easily with one seed. Those
    that fail are added to the refused candidates of the result, and are not tried again.
    """
    left = [o for o in result.outcomes if o.feasible and o.candidate not in result.refused]
    for n_failed in range(min(MOST_TRIES + 1, len(left))):
        safest = min(left, key=lambda o: -o.requests_per_s if races else o.ratio)
        best = safest if n_failed == MOST_TRIES else simplest_best(request, plan_evaluator, left)
        start = best.requests_per_s if races else None
        entry = plan_evaluator.entry_that_holds(best.candidate, start, budget, start_is_capacity=best.is_capacity)
        if entry is not None:
            return best, entry
        left.remove(best)
        result.refused.add(best.candidate)
    return None, None


def _rank(
    evaluator: Evaluator, races: bool, unit_cost: Callable[[Candidate], float], outcome: Outcome
) -> tuple[float, ...]:
    """Return a sort key, most promising first.

    A capacity race stops losers before their capacity is measured, so the fluid estimate ranks all candidates there.
    """
    if races or outcome.score is None:
        per = evaluator.fluid_requests_per_s(outcome.candidate) / unit_cost(outcome.candidate)
        fluid = float(f"{per:.1e}")  # two significant digits: closer estimates count as equal
        return (float(not races), -fluid, *distance_of(outcome.candidate, evaluator))
    return (0.0, outcome.score)


def _others(best: Outcome, outcomes: Sequence[Outcome], rank: Callable[[Outcome], tuple[float, ...]]) -> list[Outcome]:
    """Return the most promising outcome of each other family, or of other KV dtypes if there are too few families."""
    found: list[Outcome] = []
    for kind in (lambda c: c.family, lambda c: (c.family, c.kv_dtype)):
        taken = {kind(o.candidate) for o in (best, *found)}
        kinds: dict[object, list[Outcome]] = {}
        for outcome in outcomes:
            if kind(outcome.candidate) not in taken:
                kinds.setdefault(kind(outcome.candidate), []).append(outcome)
        leaders = [min(group, key=rank) for group in kinds.values()]
        found += sorted(leaders, key=rank)[: N_ALTERNATIVES - len(found)]
    return found


@contextmanager
def _search_progress(workers: Callable[[], str] = str) -> Iterator[Progress]:
    """Show the progress of a search on stderr, and yield its callback; `workers` describes the workers in words."""

    def words(best: Outcome | None) -> str:
        text = "" if best is None else f"best with one seed {rate(best.requests_per_s)}: {best.candidate.words}"
        return ", ".join(filter(None, (workers(), text)))

    with counted_progress("search") as update:
        yield lambda done, planned, best: update(done, planned, words(best))


def plan(request: PlanRequest, progress: Progress | None = None) -> Answer:
    """Return the answer to one request, evaluated by the workers that its search options name.

    Args:
        request: The request.
        progress: Called after each candidate of the search; None shows the progress on stderr.

    Raises:
        InputError: A name is unknown, a storage or a cluster does not answer, there are no workers, or the request is
            for agents (`planner.agents`).
        KeyboardInterrupt: The search was interrupted before it found a feasible plan.
    """
    if request.agents is not None:
        raise InputError(
            "a request for agents has an answer of its own", f"agents: {request.agents}", "plan --agents N"
        )
    options = request.search
    if options.distributed is not None and options.workers is not None:
        rule = "a Ray cluster has one worker per CPU: leave out search.workers"
        raise InputError(rule, options.workers, options.distributed)
    pool = ProcessPool(usable_cores() if options.workers is None else options.workers)
    if options.storage is not None:
        need_storage(options.storage)
    with status_line("preparing the search"):
        evaluator = open_evaluator(request, partial(estimates_ahead, request, pool))
        check_sections(request, evaluator)
    if options.distributed is None:
        with _search_progress() if progress is None else nullcontext(progress) as shown:
            return make_plan(request, evaluator, evaluator.elsewhere, shown, pool)
    from planner.search.ray_workers import join_cluster

    with ExitStack() as stack:
        with status_line(f"joining {options.distributed}"):
            cluster = stack.enter_context(join_cluster(options.distributed))
        with _search_progress(lambda: cluster.words) if progress is None else nullcontext(progress) as shown:
            answer = make_plan(request, evaluator, evaluator.elsewhere, shown, cluster)
    if cluster.loss_notice:
        print(cluster.loss_notice, file=sys.stderr)
    return answer


def kept_words(request: PlanRequest) -> str:
    """Return the end of a sentence that states where an interrupted search is stored."""
    storage = request.search.storage
    where = without_password(storage) if storage else request.search.study
    return f"; the search so far is stored in {where}" if where else "; --study FILE would store it"
