"""Answer a planning request: build the space, apply bounds, search, and evaluate the best plan and its alternatives.

The search runs on this machine or on a Ray cluster and reports its progress on stderr.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from catalogs.errors import InputError
from catalogs.hardware.specs import Hardware
from catalogs.io.http import without_password
from catalogs.ui.terminal import status_line
from planner.answer.evaluate import (
    BEST,
    OTHER,
    EvaluatedPlan,
    PlanEvaluator,
    SeedBudget,
    assumptions,
    objective_value,
    pareto,
    prices_of,
)
from planner.answer.hardware_ranking import HardwareRanking, HardwareRow
from planner.answer.refusal import Refuser
from planner.answer.schema import SCHEMA_VERSION, Answer, Refusal, Reproduce, SearchSummary
from planner.evaluation.evaluator import Evaluator, RequestCounter, apply_bounds
from planner.evaluation.multi_hardware import HardwareChoiceEvaluator, open_evaluator
from planner.evaluation.queueing import OVERLOAD
from planner.evaluation.workload_statistics import WorkloadBlock
from planner.problem.candidate import Candidate, kind_of
from planner.problem.demand import RequiredRates
from planner.problem.hardware_choice import is_one
from planner.problem.latency_metrics import E2E
from planner.problem.price_list import PriceList
from planner.problem.reproduction import digest, reproduce_block
from planner.problem.request import PlanRequest
from planner.search.candidate_tester import TIE, CandidateTester, Outcome, RunSizes
from planner.search.objectives import CountedAssess, ObjectiveAssess, assess_for, equal_unit_cost
from planner.search.progress import search_progress
from planner.search.search import Progress, SearchResult, search
from planner.search.study import SearchSettings, need_storage
from planner.search.workers import ProcessPool, WorkerPool, usable_cores
from planner.sections.full_answer import FullAnswer
from planner.sections.registry import check_sections, compute_sections
from planner.space.bounds import Discard
from planner.space.candidates import distance_from_defaults

N_ALTERNATIVES: Final = 2

#: The search uses one seed. Up to this many of its winners may fail with all seeds; the safest plan comes last.
MOST_TRIES: Final = 4

#: If there are several groups of one kind of accelerator, each gets the trials of the request divided by this number.
GROUP_SHARE: Final = 4

#: A capacity of at least this multiple of the required rate counts as sufficient headroom.
HEADROOM: Final = 1.1

ONE_PROCESS: Final = ProcessPool(1)


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
    prices = PriceList(request.tariff, evaluator.names.hardware)
    plan_evaluator = PlanEvaluator(evaluator, _tester(request, evaluator, space.left), prices, workers.map)
    result = search_candidates(request, plan_evaluator, space.left, workers, progress)
    entries = _entries(request, plan_evaluator, result)
    if result.interrupted and not entries:
        raise KeyboardInterrupt
    ranked: list[HardwareRow] = []
    if not is_one(request.hardware) and not result.interrupted:
        entries, ranked = _ranked(request, plan_evaluator, space, result, entries)
    refusal = None
    if not entries:
        refuser = Refuser(request, plan_evaluator, elsewhere)
        refusal = refuser.refuse(space.left, list(space.discards.items()), result.outcomes)
    summary = _summary(request, evaluator, space, result, time.perf_counter() - started)
    return _answer(request, evaluator, entries, refusal, ranked, summary)


@dataclass(frozen=True, slots=True)
class _Space:
    """The candidates that the bounds leave, and the others with the reasons why they cannot meet the request."""

    left: list[Candidate]
    discards: dict[Candidate, Discard]


def _ranked(
    request: PlanRequest,
    plan_evaluator: PlanEvaluator,
    space: _Space,
    result: SearchResult,
    entries: Sequence[EvaluatedPlan],
) -> tuple[list[EvaluatedPlan], list[HardwareRow]]:
    """Return the plans of the answer and the row of each kind of accelerator; the table may add a plan."""
    in_order = _assess(request, plan_evaluator, plan_evaluator.tester, space.left).in_order
    sizes = _sizes(plan_evaluator.prices, space.left)
    ranking = HardwareRanking(request, plan_evaluator, in_order, sizes.__getitem__)
    rows, by_kind = ranking.rows(space.left, list(space.discards.items()), result.outcomes, entries)
    plans = _with_another_kind(entries, by_kind) if entries else _with_all_seeds(plan_evaluator, by_kind)
    return plans, rows


def _summary(
    request: PlanRequest, evaluator: Evaluator, space: _Space, result: SearchResult, seconds: float
) -> SearchSummary:
    """Return the part of the answer that tells how the plans were found."""
    return SearchSummary(
        n_space=len(space.left) + len(space.discards),
        n_bounded_out=len(space.discards),
        n_simulated=result.n_simulated,
        n_pruned=result.n_pruned,
        seconds=seconds,
        seed=request.seed,
        method=_method(result, len(space.left)),
        n_resumed=result.n_resumed,
        n_requests=result.n_requests,
        bounded_out=dict(Counter(d.reason for d in space.discards.values()).most_common()),
        interrupted=result.interrupted,
        left_out=list(evaluator.notices),
    )


def _answer(
    request: PlanRequest,
    evaluator: HardwareChoiceEvaluator,
    entries: Sequence[EvaluatedPlan],
    refusal: Refusal | None,
    ranked: list[HardwareRow],
    summary: SearchSummary,
) -> Answer:
    """Return the answer with its plans, or with its refusal; an interrupted answer has no sections."""
    plans = [entry.plan for entry in entries]
    sections = compute_sections(request, entries[0], evaluator) if plans and not summary.interrupted else {}
    return FullAnswer(
        schema_version=SCHEMA_VERSION,
        request=request,
        feasible=bool(plans),
        best=plans[0] if plans else None,
        alternatives=plans[1:],
        pareto=pareto(entries),
        infeasible=refusal,
        search=summary,
        hardware=ranked,
        assumptions=assumptions(request, evaluator.workload.lengths().words),
        prices=prices_of(plans[0], entries[0].candidate) if plans else [],
        reproduce=Reproduce(**reproduce_block(request, evaluator.fingerprint)),
        workload=WorkloadBlock.of(evaluator.workload),
        **sections,
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

    These plans are the answer where the search has none: it must not be no while its table of kinds has a plan.
    """
    for i, entry in enumerate(by_kind):
        first = plan_evaluator.entry(entry.candidate, None, BEST)
        if first.met and first.survives and first.capacity_requests_per_s is not None:
            return [first, *by_kind[i + 1 :][:N_ALTERNATIVES]]
    return []


def _method(result: SearchResult, n_left: int) -> str:
    if result.interrupted:
        return f"interrupted: best of {len(result.outcomes)} simulated candidates of {n_left}"
    if not result.enumerated:
        return f"the most promising of {n_left} candidates"
    if result.n_outclassed:
        return "all candidates except those that cannot win"
    return "all candidates" if len(result.outcomes) >= n_left else "all candidates that may carry the load"


def _tester(request: PlanRequest, evaluator: Evaluator, left: Sequence[Candidate]) -> CandidateTester:
    """Return the tester of candidates; without a rate, latencies are compared under one light load for all."""
    rate = request.requests_per_s
    if request.objective == "latency" and rate is None and left:
        rate = min(evaluator.light_requests_per_s(c) for c in left)
    sizes = RunSizes.for_slos(request.slos)
    plain = CandidateTester(evaluator, request.slos, sizes, request.seed, request.confidence, rate)
    if request.users is None and not request.spare:
        return plain

    def run_e2e_s(candidate: Candidate, requests_per_s: float) -> float:
        return plain.simulated(candidate, requests_per_s, sizes.quick).mean_s(E2E.name)

    guess_e2e_s = partial(evaluator.guess_s, metric=E2E.name)
    return replace(plain, required=RequiredRates(request.demand, guess_e2e_s, run_e2e_s))


def search_candidates(
    request: PlanRequest,
    plan_evaluator: PlanEvaluator,
    left: Sequence[Candidate],
    workers: WorkerPool,
    progress: Progress | None,
) -> SearchResult:
    """Search all groups of candidates in order.

    If the request is for the cheapest deployment that carries a rate, the groups are ordered by ascending hardware.
    The first group that meets the request holds the answer. The search continues until a deployment has sufficient
    headroom, which then is an alternative. Otherwise all candidates are one group, and those of the best kind of
    accelerator are then searched alone, so that the answer does not depend on the other hardware of the choice.
    """
    result = SearchResult()
    if not left:
        return result
    evaluator, tester, counter = plan_evaluator.evaluator, plan_evaluator.tester, RequestCounter()
    assess = _assess(request, plan_evaluator, replace(tester, counter=counter), left)
    groups = _groups(request, plan_evaluator, left)
    options, calibration = request.search, digest(evaluator.fingerprint)
    n_groups = Counter(kind_of(group[0]) for group in groups)
    counted = CountedAssess(assess, counter)
    with workers.lookahead(counted, len(left)) as lookahead:

        def search_group(group: Sequence[Candidate], trials: int) -> SearchResult:
            name = study_name(request, group)
            settings = SearchSettings(trials, request.seed, name, options.journal, options.storage, calibration)
            order, safest = counted.in_order(group), counted.safest_first(group)
            return search(order, counted, settings, progress, counted.outclassed, lookahead, safest)

        for group in groups:
            share = options.trials // GROUP_SHARE if n_groups[kind_of(group[0])] > 1 else options.trials
            result.join(search_group(group, max(share, 1)))
            best = result.best
            enough = 0.0 if best is None else HEADROOM * (tester.held_per_s(best.candidate) or 0.0)
            if result.interrupted or (best is not None and best.requests_per_s >= enough):
                break
        alone: set[str] = set()
        while len(groups) == 1 and not result.interrupted and result.best is not None:
            kind = kind_of(_best(request, plan_evaluator, [o for o in result.outcomes if o.feasible]).candidate)
            own = [c for c in left if kind_of(c) == kind]
            if kind in alone or len(own) == len(left):
                break
            alone.add(kind)
            result = result.updated(search_group(own, options.trials))
    return result


def _assess(
    request: PlanRequest, plan_evaluator: PlanEvaluator, tester: CandidateTester, left: Sequence[Candidate]
) -> ObjectiveAssess:
    """Return what measures the candidates for the objective of the request."""
    prices = plan_evaluator.prices
    distance = partial(_distance, evaluator=plan_evaluator.evaluator)
    unit_cost = _unit_cost(request.objective, prices, left)
    return assess_for(request.objective, tester, distance, unit_cost, lambda c: prices.grid(c).grid.gco2e_per_kwh)


def _groups(request: PlanRequest, plan_evaluator: PlanEvaluator, left: Sequence[Candidate]) -> list[list[Candidate]]:
    """Return the groups of candidates in the order in which they are searched.

    All candidates form one group, unless the request is for the cheapest deployment that carries a rate. Then there is
    one group for each price (ascending), hardware and precision (simplest first), and the first group that carries the
    rate is the answer. Candidates that are overloaded even with a full batch are left out, except those with the most
    accelerators of their kind: their failure explains a refusal.
    """
    if request.objective != "cost" or not request.demand.given or not left:
        return [list(left)]
    evaluator, tester, sizes = plan_evaluator.evaluator, plan_evaluator.tester, _sizes(plan_evaluator.prices, left)
    largest: dict[str, int] = {}
    for c in left:
        largest[kind_of(c)] = max(largest.get(kind_of(c), 0), c.hardware.n_accelerators)
    groups: dict[object, list[Candidate]] = {}
    for c in sorted(left, key=lambda c: (sizes[c], c.hardware.n_accelerators, _distance(c, evaluator)[:2])):
        most = c.hardware.n_accelerators == largest[kind_of(c)]
        if most or evaluator.fluid_requests_per_s(c) * OVERLOAD > tester.floor_per_s(c):
            groups.setdefault(_group(c, plan_evaluator), []).append(c)
    return list(groups.values())


def _sizes(prices: PriceList, left: Sequence[Candidate]) -> dict[Candidate, float]:
    """Return the size of each candidate: its price, US dollars per hour, or its accelerators if no price is known.

    Candidates without a price count as more expensive than all others.
    """
    found = {c: prices.usd_per_hour(c) for c in left}
    most = max((usd for usd in found.values() if usd is not None), default=0.0)
    return {c: most + c.hardware.n_accelerators if usd is None else usd for c, usd in found.items()}


def _group(candidate: Candidate, plan_evaluator: PlanEvaluator) -> tuple[object, ...]:
    usd = plan_evaluator.prices.usd_per_hour(candidate)
    return usd, candidate.hardware, *_distance(candidate, plan_evaluator.evaluator)[:2]


def _distance(candidate: Candidate, evaluator: Evaluator) -> tuple[int, ...]:
    """Return the distance of a candidate from the defaults of its own hardware."""
    return distance_from_defaults(candidate, evaluator.names_of(candidate))


def _unit_cost(objective: str, prices: PriceList, left: Sequence[Candidate]) -> Callable[[Candidate], float]:
    """Return the function that gives the unit cost of a candidate, by which its capacity is divided for comparison.

    The unit is US dollars, accelerators, or 1 for every candidate.
    """
    if objective == "cost":
        sizes = _sizes(prices, left)
        return sizes.__getitem__
    if objective == "goodput":
        return lambda c: float(c.hardware.n_accelerators)
    return equal_unit_cost


def study_name(request: PlanRequest, group: Sequence[Candidate]) -> str:
    """Return the name of the study of a request, by which only a study of the same request is resumed."""
    text = json.dumps([request.search_identity(), request.search.trials, [c.as_dict() for c in group]], sort_keys=True)
    return f"plan-{digest(text)}"


def _entries(request: PlanRequest, plan_evaluator: PlanEvaluator, result: SearchResult) -> list[EvaluatedPlan]:
    """Return the winner and its alternatives, evaluated with independent seeds; empty if no plan meets the request."""
    races, outcomes = request.objective in ("cost", "throughput", "goodput"), result.outcomes
    effort = OTHER if result.interrupted else BEST  # an interrupted command ends soon
    best, first = _winner(request, plan_evaluator, outcomes, races, effort)
    if best is None or first is None:
        return []
    unit_cost = _unit_cost(request.objective, plan_evaluator.prices, [o.candidate for o in outcomes])
    rank = partial(_rank, plan_evaluator.evaluator, races, unit_cost)
    others = [] if result.interrupted else _others(best, outcomes, rank)
    rest = plan_evaluator.each(lambda o: plan_evaluator.entry(o.candidate, None, OTHER), others)
    held = [e for e in rest if e.capacity_requests_per_s is not None and (not request.demand.given or e.met)]
    return _best_first(request, plan_evaluator, [first, *held])


def _best_first(
    request: PlanRequest, plan_evaluator: PlanEvaluator, entries: Sequence[EvaluatedPlan]
) -> list[EvaluatedPlan]:
    """Return the plans with an alternative in the first place if it is better than the winner by more than a tie.

    The search uses one seed. With several seeds an alternative may turn out better; it is then evaluated with as many
    seeds as a winner before it takes the first place.
    """
    first, *others = entries
    for other in sorted(others, key=lambda e: objective_value(request.objective, request.given, e)):
        if not objective_value(request.objective, request.given, other) < _tied(request, first):
            break
        again = plan_evaluator.entry(other.candidate, other.requests_per_s, BEST)
        better = objective_value(request.objective, request.given, again) < _tied(request, first)
        if again.met and again.survives and again.capacity_requests_per_s is not None and better:
            return [again, first, *(e for e in others if e is not other)]
    return list(entries)


def _tied(request: PlanRequest, entry: EvaluatedPlan) -> float:
    """Return the value below which another plan is better than this one by more than a tie."""
    value = objective_value(request.objective, request.given, entry)
    return value - TIE * abs(value) if math.isfinite(value) else value


def _winner(
    request: PlanRequest, plan_evaluator: PlanEvaluator, outcomes: Sequence[Outcome], races: bool, effort: SeedBudget
) -> tuple[Outcome | None, EvaluatedPlan | None]:
    """Return the best outcome that still meets the request with all seeds pooled, and its plan.

    If too many of the best fail, the last to be tried is the one that met the request most easily with one seed.
    """
    left = [o for o in outcomes if o.feasible]
    for n_failed in range(min(MOST_TRIES + 1, len(left))):
        safest = min(left, key=lambda o: -o.requests_per_s if races else o.ratio)
        best = safest if n_failed == MOST_TRIES else _best(request, plan_evaluator, left)
        entry = plan_evaluator.entry(best.candidate, best.requests_per_s if races else None, effort)
        if entry.met and entry.survives and entry.capacity_requests_per_s is not None:
            return best, entry
        left.remove(best)
    return None, None


def _best(request: PlanRequest, plan_evaluator: PlanEvaluator, outcomes: Sequence[Outcome]) -> Outcome:
    """Return the simplest of the feasible outcomes (native precision, default limits) that tie with the best.

    For the cheapest deployment that carries a rate, only the first group with a feasible outcome counts.
    """
    if request.objective == "cost" and request.demand.given:
        first = _group(outcomes[0].candidate, plan_evaluator)
        outcomes = [o for o in outcomes if _group(o.candidate, plan_evaluator) == first]
    scored = [(o.score, o) for o in outcomes if o.score is not None]
    best = min(score for score, _ in scored)

    def simplest_first(tie: tuple[float, Outcome]) -> tuple[tuple[int, ...], float, Candidate]:
        score, outcome = tie
        return _distance(outcome.candidate, plan_evaluator.evaluator), score, outcome.candidate

    return min((pair for pair in scored if pair[0] <= best + TIE * abs(best)), key=simplest_first)[1]


def _rank(
    evaluator: Evaluator, races: bool, unit_cost: Callable[[Candidate], float], outcome: Outcome
) -> tuple[float, ...]:
    """Return a sort key, most promising first.

    A capacity race stops losers before their capacity is measured, so the fluid estimate ranks all candidates there.
    """
    if races or outcome.score is None:
        per = evaluator.fluid_requests_per_s(outcome.candidate) / unit_cost(outcome.candidate)
        fluid = float(f"{per:.1e}")  # two significant digits: closer estimates count as equal
        return (float(not races), -fluid, *_distance(outcome.candidate, evaluator))
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


def plan(request: PlanRequest, progress: Progress | None = None) -> Answer:
    """Return the answer to one request, evaluated by the workers that its search options name.

    Args:
        request: The request.
        progress: Called after each candidate of the search; None shows the progress on a terminal.

    Raises:
        InputError: A name is unknown, a storage or a cluster does not answer, or there are no workers.
        KeyboardInterrupt: The search was interrupted before it found a feasible plan.
    """
    options = request.search
    if options.distributed is not None and options.workers is not None:
        rule = "a Ray cluster has one worker per CPU: leave out search.workers"
        raise InputError(rule, options.workers, options.distributed)
    pool = ProcessPool(usable_cores() if options.workers is None else options.workers)
    if options.storage is not None:
        need_storage(options.storage)
    evaluator = open_evaluator(request)
    check_sections(request, evaluator)
    if options.distributed is None:
        with search_progress() if progress is None else nullcontext(progress) as shown:
            return make_plan(request, evaluator, evaluator.elsewhere, shown, pool)
    from planner.search.ray_workers import join_cluster

    with ExitStack() as stack:
        with status_line(f"joining {options.distributed}"):
            cluster = stack.enter_context(join_cluster(options.distributed))
        with search_progress(lambda: cluster.words) if progress is None else nullcontext(progress) as shown:
            answer = make_plan(request, evaluator, evaluator.elsewhere, shown, cluster)
    if cluster.loss_notice:
        print(cluster.loss_notice, file=sys.stderr)
    return answer


def kept_words(request: PlanRequest) -> str:
    """Return the end of a sentence that states where an interrupted search is stored."""
    storage = request.search.storage
    where = without_password(storage) if storage else request.search.study
    return f"; the search so far is stored in {where}" if where else "; --study FILE would store it"
