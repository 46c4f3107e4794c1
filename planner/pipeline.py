"""From a question to an answer: space, bounds, search, a careful measurement of the winner and of what lost to it.

A question put to the planner: answered on this machine or a cluster, with progress on stderr.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from catalogs.errors import InputError
from catalogs.hardware.specs import Hardware
from catalogs.ui.terminal import status_line
from planner.answer.assembly import assumptions, pareto, prices_of
from planner.answer.hardware_ranking import HardwareRow, RankingTerms, rank_hardware
from planner.answer.measure import BEST, OTHER, Measure, MeasuredPlan
from planner.answer.refusal import Refuser
from planner.answer.schema import SCHEMA_VERSION, Answer, Refusal, Reproduce, SearchSummary
from planner.evaluation.evaluator import Evaluator, RequestCounter
from planner.evaluation.multi_hardware import HardwareChoiceEvaluator, open_evaluator
from planner.evaluation.queueing import OVERLOAD
from planner.problem.candidate import Candidate
from planner.problem.demand import NOTHING, FailureTolerance, RequiredRates
from planner.problem.hardware_choice import is_one
from planner.problem.latency_metrics import E2E
from planner.problem.price_list import PriceList
from planner.problem.reproduction import digest, reproduce_block
from planner.problem.request import PlanRequest
from planner.search.objectives import (
    TIE,
    Assess,
    CandidateTester,
    CapacityRace,
    CountedAssess,
    LowestEnergy,
    LowestLatency,
    Outcome,
    RunSizes,
    one,
)
from planner.search.progress import search_progress
from planner.search.search import Progress, SearchResult, search
from planner.search.study import SearchSettings, need_storage, without_password
from planner.search.workers import ProcessPool, WorkerPool, usable_cores
from planner.sections.full_answer import FullAnswer
from planner.sections.registry import compute_sections
from planner.space.bounds import SURVIVAL, Discard
from planner.space.candidates import plainness

N_ALTERNATIVES: Final = 2

#: Winners of the search, which saw one seed, that may fail with all seeds before the answer is no.
MOST_TRIES: Final = 4

#: Where the space is searched in groups each gets this part of the trials.
GROUP_SHARE: Final = 4

#: Capacity over the rate asked for that counts as room to spare.
ROOM: Final = 1.1

ONE_PROCESS: Final = ProcessPool(1)


@dataclass(frozen=True, slots=True)
class CandidateField:
    """The candidates after the bounds."""

    n_space: int
    left: tuple[Candidate, ...]
    discards: tuple[tuple[Candidate, Discard], ...]


def make_plan(
    request: PlanRequest,
    world: HardwareChoiceEvaluator,
    elsewhere: Callable[[Hardware], Evaluator],
    progress: Progress | None = None,
    workers: WorkerPool = ONE_PROCESS,
) -> Answer:
    """Return the answer to one request.

    `elsewhere` opens the evaluator of other hardware, for what would meet a refused request; `workers` evaluate the
    candidates and make the runs of several seeds.

    Raises InputError for bad names; an objective that cannot be met is an answer with feasible False.
    """
    started = time.perf_counter()
    field = bound(world.space(), world, request.demand.spare)
    bench = _bench(request, world, field.left)
    prices = PriceList(request.tariff, world.names.hardware)
    measure = Measure(world, bench, prices, workers.map)
    result = _search(request, measure, field.left, workers, progress)
    entries = _entries(request, world, measure, result)
    if result.interrupted and not entries:
        raise KeyboardInterrupt
    refuser = Refuser(request, measure, elsewhere)
    refusal = None if entries else refuser.refuse(field.discards, result.outcomes)
    summary = SearchSummary(
        n_space=field.n_space,
        n_bounded_out=len(field.discards),
        n_simulated=len(result.outcomes),
        n_pruned=result.n_pruned,
        seconds=time.perf_counter() - started,
        seed=request.seed,
        method=_method(result, len(field.left)),
        n_resumed=result.n_resumed,
        n_requests=sum(o.n_requests for o in result.outcomes),
        bounded_out=dict(Counter(d.reason for _, d in field.discards).most_common(4)),
        interrupted=result.interrupted,
        left_out=list(world.notices),
    )
    terms = _terms(request, world, prices, field.left)
    ranking = [] if is_one(request.hardware) else rank_hardware(field.left, field.discards, result.outcomes, terms)
    return _answer(request, world, entries, refusal, (summary, ranking))


def _answer(
    request: PlanRequest,
    world: Evaluator,
    entries: Sequence[MeasuredPlan],
    refusal: Refusal | None,
    found: tuple[SearchSummary, list[HardwareRow]],
) -> Answer:
    """Return the answer with the sections that the request wants; an interrupted search has none."""
    summary, ranking = found
    plans = [entry.plan for entry in entries]
    computed = compute_sections(request, entries[0], world) if plans and not summary.interrupted else {}
    return FullAnswer(
        schema_version=SCHEMA_VERSION,
        request=request,
        feasible=bool(plans),
        best=plans[0] if plans else None,
        alternatives=plans[1:],
        pareto=pareto(entries),
        infeasible=refusal,
        search=summary,
        hardware=ranking,
        assumptions=assumptions(request),
        prices=prices_of(plans[0], entries[0].candidate.hardware) if plans else [],
        reproduce=Reproduce.model_validate_json(json.dumps(reproduce_block(request, world.fingerprint))),
        **computed,
    )


def _method(result: SearchResult, n_left: int) -> str:
    if result.interrupted:
        return f"interrupted: the best of the first {len(result.outcomes)} of {n_left} candidates"
    if not result.enumerated:
        return f"TPE sample of {n_left} candidates"
    return "every candidate" + (" that is not outclassed" if result.n_outclassed else "")


def bound(space: Sequence[Candidate], world: Evaluator, spare: FailureTolerance = NOTHING) -> CandidateField:
    """Discard what can never meet the objectives, or leaves nothing to carry the load where something is lost."""
    verdicts = [(c, _no_survivor(c, spare) or world.discard(c)) for c in space]
    left = tuple(c for c, d in verdicts if d is None)
    return CandidateField(len(space), left, tuple((c, d) for c, d in verdicts if d is not None))


def _no_survivor(candidate: Candidate, spare: FailureTolerance) -> Discard | None:
    if not spare or spare.factor(candidate) < float("inf"):
        return None
    have, lost = candidate.replicas, spare.lost(candidate)
    return Discard(SURVIVAL, f"{spare.words} of {have} leaves no replica", float(lost), float(have))


def _bench(request: PlanRequest, world: Evaluator, left: Sequence[Candidate]) -> CandidateTester:
    """Latency without a rate is compared under one light load, common to all candidates."""
    rate = request.requests_per_s
    if request.objective == "latency" and rate is None and left:
        rate = min(world.light_requests_per_s(c) for c in left)
    sizes = RunSizes.for_slos(request.slos)
    plain = CandidateTester(world, request.slos, sizes, request.seed, rate)
    if request.users is None and not request.spare:
        return plain

    def run_e2e_s(candidate: Candidate, requests_per_s: float) -> float:
        return plain.probe(candidate, requests_per_s, sizes.quick).mean_s(E2E.name)

    def guess_e2e_s(candidate: Candidate, requests_per_s: float) -> float:
        return world.guess_s(candidate, requests_per_s, E2E.name)

    return replace(plain, asked=RequiredRates(request.demand, guess_e2e_s, run_e2e_s))


def _search(
    request: PlanRequest,
    measure: Measure,
    left: Sequence[Candidate],
    workers: WorkerPool,
    progress: Progress | None,
) -> SearchResult:
    """One search; by ascending hardware where the cheapest that carries a rate is wanted, stopping at the first that
    does so with room to spare (the first that does at all is the answer, the roomy one then an alternative)."""
    world, bench, prices, counter = measure.world, measure.bench, measure.prices, RequestCounter()
    takes = _takes(request.objective, prices, left)
    assess = _assess(request.objective, replace(bench, counter=counter), world, takes)
    outclassed = assess.outclassed if isinstance(assess, CapacityRace) else None
    result = SearchResult()
    groups = _groups(request, measure, left)
    trials = request.trials if len(groups) < 2 else max(request.trials // GROUP_SHARE, 1)
    made = digest(world.fingerprint)
    if not left:
        return result
    counted = CountedAssess(assess, counter)
    with workers.lookahead(counted, len(left)) as lookahead:
        for group in groups:
            name = study_name(request, group)
            settings = SearchSettings(trials, request.seed, name, request.study, request.storage, made)
            promising = _by_promise(group, world, takes)
            result.join(search(promising, counted, settings, progress, outclassed, lookahead))
            if result.interrupted or _roomy(result.best, bench):
                break
    return result


def _roomy(best: Outcome | None, bench: CandidateTester) -> bool:
    """Whether the best carries what it must with room to spare."""
    return best is not None and best.requests_per_s >= ROOM * (bench.held_per_s(best.candidate) or 0.0)


def _groups(request: PlanRequest, measure: Measure, left: Sequence[Candidate]) -> list[list[Candidate]]:
    """Everything at once; but where the cheapest that carries a rate is wanted, one group for each hardware (ascending)
    and precision (plainest first): at equal price the first group that holds the rate is the answer.

    Hardware that would be overloaded with every seat taken is left out, the largest kept: its failure is the answer.
    """
    if request.objective != "cost" or not request.demand.given or not left:
        return [list(left)]
    world, bench, sizes = measure.world, measure.bench, _sizes(measure.prices, left)
    most = max(sizes.values())
    groups: dict[object, list[Candidate]] = {}
    for c in sorted(left, key=lambda c: (sizes[c.hardware], plain(c, world)[:2])):
        if sizes[c.hardware] == most or world.fluid_requests_per_s(c) * OVERLOAD > bench.floor_per_s(c):
            groups.setdefault(_group(c, world), []).append(c)
    return list(groups.values())


def _sizes(prices: PriceList, left: Sequence[Candidate]) -> dict[Hardware, float]:
    """By hardware: dollars per hour, where all prices are known; else accelerators."""
    found = {hardware: prices.price(hardware) for hardware in dict.fromkeys(c.hardware for c in left)}
    known = {hardware: price.usd_per_hour for hardware, price in found.items() if price is not None}
    if len(known) == len(found) and len({hardware.accelerator.name for hardware in known}) > 1:
        return known
    return {hardware: float(hardware.n_accelerators) for hardware in found}


def _group(candidate: Candidate, world: Evaluator) -> tuple[object, ...]:
    return candidate.hardware, *plain(candidate, world)[:2]


def plain(candidate: Candidate, world: Evaluator) -> tuple[int, ...]:
    """See space.plainness; by the defaults of the candidate's own hardware."""
    return plainness(candidate, world.names_of(candidate))


def _takes(objective: str, prices: PriceList, left: Sequence[Candidate]) -> Callable[[Candidate], float]:
    """What a candidate takes, for which capacity is compared: dollars, accelerators, or nothing that differs."""
    if objective == "cost" and len({c.hardware for c in left}) > 1:
        sizes = _sizes(prices, left)
        return lambda c: sizes[c.hardware]
    if objective == "goodput":
        return lambda c: float(c.hardware.n_accelerators)
    return one


def _terms(request: PlanRequest, world: Evaluator, prices: PriceList, left: Sequence[Candidate]) -> RankingTerms:
    def usd(candidate: Candidate) -> float | None:
        price = prices.price(candidate.hardware)
        return None if price is None else price.usd_per_hour

    takes = _takes(request.objective, prices, left)
    return RankingTerms(takes, world.fluid_requests_per_s, usd, request.demand.given)


def _assess(objective: str, bench: CandidateTester, world: Evaluator, takes: Callable[[Candidate], float]) -> Assess:
    if objective in ("energy", "carbon"):
        return LowestEnergy(bench)
    if objective == "latency":
        return LowestLatency(bench)
    with_load = bench.requests_per_s is not None or bench.asked is not None
    return CapacityRace(bench, lambda c: plain(c, world), one if with_load else takes)


def _by_promise(group: Sequence[Candidate], world: Evaluator, takes: Callable[[Candidate], float]) -> list[Candidate]:
    """Default limits of every layout first, the fastest layouts leading; then the other limits of the fastest."""
    by_layout: dict[object, list[Candidate]] = {}
    for c in group:
        by_layout.setdefault(c.placement, []).append(c)
    fastest = sorted(by_layout.values(), key=lambda cs: -world.fluid_requests_per_s(cs[0]) / takes(cs[0]))
    return [cs[0] for cs in fastest] + [c for cs in fastest for c in cs[1:]]


def study_name(request: PlanRequest, group: Sequence[Candidate]) -> str:
    """Names the question, so that a journal is only resumed for the same."""
    text = json.dumps([request.question(), request.trials, [c.as_dict() for c in group]], sort_keys=True)
    return f"plan-{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def choose(outcomes: Sequence[Outcome], world: Evaluator) -> Outcome:
    """The plainest among those within a tie of the best: native precision, default limits. At least one is feasible."""
    scored = [(o.score, o) for o in outcomes if o.feasible and o.score is not None]
    best = min(score for score, _ in scored)
    ties = [(score, o) for score, o in scored if score <= best + TIE * abs(best)]
    return min(ties, key=lambda so: (plain(so[1].candidate, world), so[0], so[1].candidate))[1]


def _entries(request: PlanRequest, world: Evaluator, measure: Measure, result: SearchResult) -> list[MeasuredPlan]:
    """The winner and the best of other kinds, measured with independent seeds; empty where nothing holds."""
    races = request.objective in ("cost", "throughput", "goodput")
    best, first = _winner(request, measure, result.outcomes, races)
    if best is None or first is None:
        return []
    takes = _takes(request.objective, measure.prices, [o.candidate for o in result.outcomes])
    others = [] if result.interrupted else _others(best, result.outcomes, partial(_rank, world, races, takes))
    rest = measure.each(lambda o: measure.entry(o.candidate, None, OTHER), others)
    held = [e for e in rest if e.capacity_requests_per_s is not None]
    return [first, *(e for e in held if not request.demand.given or e.verdict.met)]


def _winner(
    request: PlanRequest, measure: Measure, outcomes: Sequence[Outcome], races: bool
) -> tuple[Outcome | None, MeasuredPlan | None]:
    """The first choice that still meets the request with all seeds together."""
    left = [o for o in outcomes if o.feasible]
    for _ in range(MOST_TRIES):
        if not left:
            break
        best = _best(request, measure.world, left)
        entry = measure.entry(best.candidate, best.requests_per_s if races else None, BEST)
        if entry.verdict.met and entry.survives and entry.capacity_requests_per_s is not None:
            return best, entry
        left.remove(best)
    return None, None


def _best(request: PlanRequest, world: Evaluator, outcomes: Sequence[Outcome]) -> Outcome:
    """The chosen outcome; where the cheapest that carries a rate is wanted, of the first group that has one."""
    if request.objective == "cost" and request.demand.given:
        first = next(_group(o.candidate, world) for o in outcomes if o.feasible)
        outcomes = [o for o in outcomes if _group(o.candidate, world) == first]
    return choose(outcomes, world)


def _rank(world: Evaluator, races: bool, takes: Callable[[Candidate], float], outcome: Outcome) -> tuple[float, ...]:
    """Most promising first. A race stops losers before they are measured: there the fluid guess speaks for all."""
    if races or outcome.score is None:
        per = world.fluid_requests_per_s(outcome.candidate) / takes(outcome.candidate)
        fluid = float(f"{per:.1e}")  # two digits: nearer is equal
        return (float(not races), -fluid, *plain(outcome.candidate, world))
    return (0.0, outcome.score)


def _others(best: Outcome, outcomes: Sequence[Outcome], rank: Callable[[Outcome], tuple[float, ...]]) -> list[Outcome]:
    """The most promising candidate of each other family; another KV cache where there are too few families."""
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


def plan(request: PlanRequest) -> Answer:
    """Return the answer to one request, evaluated by the workers that its search options name.

    Raises:
        InputError: a name is unknown, a storage or a cluster does not answer, or there are no workers.
        KeyboardInterrupt: it was interrupted before anything was found.
    """
    distributed, workers = request.search.distributed, request.search.workers
    if distributed is not None and workers is not None:
        raise InputError("a cluster has a worker on each CPU, so their number is not chosen", workers, distributed)
    pool = ProcessPool(usable_cores() if workers is None else workers)
    if request.storage is not None:
        need_storage(request.storage)
    world = open_evaluator(request)
    if distributed is None:
        with search_progress() as progress:
            return make_plan(request, world, world.elsewhere, progress, pool)
    from planner.search.ray_workers import join_cluster

    with ExitStack() as stack:
        with status_line(f"joining {distributed}"):
            cluster = stack.enter_context(join_cluster(distributed))
        with search_progress(lambda: cluster.words) as progress:
            answer = make_plan(request, world, world.elsewhere, progress, cluster)
    if cluster.loss_notice:
        print(cluster.loss_notice, file=sys.stderr)
    return answer


def kept_words(request: PlanRequest) -> str:
    """Where an interrupted search is kept."""
    where = request.study or (request.storage and without_password(request.storage))
    return f"; the search so far is kept in {where}" if where else "; --study FILE would keep it"
