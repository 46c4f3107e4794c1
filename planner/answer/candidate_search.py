"""The search for the candidate of a request: in which groups, at which unit cost, and until when.

The same search answers a request and decides whether other hardware would meet a refused one.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

from catalogs.errors import InputError
from catalogs.hardware.specs import Hardware
from catalogs.workloads.workload import Workload
from planner.answer.plan_evaluator import PlanEvaluator
from planner.evaluation.closed_forms.estimates import Estimates
from planner.evaluation.evaluator import Evaluator, apply_bounds
from planner.evaluation.multi_hardware import rental_bound
from planner.evaluation.run_sizes import run_sizes
from planner.evaluation.simulated_evaluator import SimulatedEvaluator
from planner.evaluation.stability import OVERLOAD
from planner.evaluation.workload_statistics import workload_of
from planner.problem.candidate import Candidate, kind_of
from planner.problem.demand import RequiredRates
from planner.problem.latency_metrics import E2E
from planner.problem.price_list import PriceList
from planner.problem.reproduction import digest
from planner.problem.request import PlanRequest
from planner.search.candidate_tester import HALF_TIE, TIE, CandidateTester, Outcome, RequestCounter
from planner.search.objectives import (
    CountedAssess,
    LeastLoad,
    ObjectiveAssess,
    assess_for,
    equal_unit_cost,
    simplest_tied,
)
from planner.search.optuna_study import SearchSettings
from planner.search.search import Enough, Progress, SearchResult, score_of, search
from planner.search.workers import Lookahead, SerialLookahead, WorkerPool
from planner.space.candidates import distance_from_defaults

#: Objectives that compare capacities; the others compare a figure at one rate.
RACES: Final = ("cost", "throughput", "goodput")

#: The search uses one seed. Up to this many of its winners may fail with all seeds; the safest plan comes last. A
#: judgement: each costs several full runs.
MOST_TRIES: Final = 4

#: If there are several groups of one kind of accelerator, each gets the trials of the request divided by this number. A
#: judgement: the groups differ only in price, size and precision, and the search goes on to the next one where one has
#: too little headroom.
GROUP_SHARE: Final = 4

#: A capacity of at least this multiple of the required rate counts as sufficient headroom, so that no dearer group is
#: searched. A judgement: the search uses one seed, whose capacity is uncertain by a few per cent (docs/search.md), and
#: all seeds together should still carry the rate.
HEADROOM: Final = 1.1


def tester_of(request: PlanRequest, evaluator: Evaluator, left: Sequence[Candidate]) -> CandidateTester:
    """Return the tester of candidates; without a rate, latencies are compared under one light load for all."""
    rate = request.requests_per_s
    if request.objective == "latency" and rate is None and left:
        rate = min(evaluator.light_requests_per_s(c) for c in left)
    sizes = run_sizes(request)
    plain = CandidateTester(evaluator, request.slos, sizes, request.seed, request.confidence, rate)
    if request.users is None and not request.spare:
        return plain

    def run_e2e_s(candidate: Candidate, requests_per_s: float) -> float:
        return plain.simulated(candidate, requests_per_s, sizes.quick).mean_s(E2E.name)

    guess_e2e_s = partial(evaluator.guess_s, metric=E2E.name)
    return replace(plain, required=RequiredRates(request.demand, guess_e2e_s, run_e2e_s))


def estimates_ahead(
    request: PlanRequest, workers: WorkerPool, hardware: Sequence[Hardware]
) -> Sequence[Estimates | None]:
    """Return the closed forms of the candidates on each hardware, as far as the order of a search needs them.

    The workers share the hardware. Only numbers come back: this process compiles the step costs of the few candidates
    that it simulates again, which takes less time than to receive those of all, and far less memory.

    None stands for those that are computed when they are needed: all of an objective whose order needs more than these
    numbers, and those of hardware that the request does not support, where that raises the error.
    """
    if request.objective not in RACES:
        return [None] * len(hardware)
    try:
        work = partial(_estimates_on, request, workload_of(request))
    except InputError:
        return [None] * len(hardware)
    return workers.map(work, hardware)


def _estimates_on(request: PlanRequest, workload: Workload, hardware: Hardware) -> Estimates | None:
    """Return the closed forms of the candidates on one hardware; None if the request does not support it."""
    try:
        evaluator = SimulatedEvaluator.of(request.replace(hardware=hardware.text), hardware, workload)
        left = [c for c in evaluator.space() if evaluator.discard(c) is None]
        tester = tester_of(request, evaluator, left)
        for candidate in left:
            tester.guessed_capacity_per_s(candidate)  # the evaluator keeps it, and the rates that it depends on
    except InputError:
        return None
    return evaluator.estimates


def group_search(
    request: PlanRequest,
    plan_evaluator: PlanEvaluator,
    left: Sequence[Candidate],
    workers: WorkerPool,
    progress: Progress | None,
    enough: Enough | None = None,
    at_least_load: bool = False,
) -> GroupSearch:
    """Return the search of all groups of candidates in order; its `run` searches, and `go_on` continues it.

    If the request is for the cheapest deployment that serves a rate, the groups are ordered as in `groups_of`.
    The first group that meets the request holds the answer. The search continues until a deployment has sufficient
    headroom, which then is an alternative. Otherwise all candidates are one group, and those of the best kind of
    accelerator are then searched alone, so that the answer does not depend on the other hardware of the choice.

    Args:
        request: The request.
        plan_evaluator: Measures plans, and knows their prices.
        left: The candidates.
        workers: Evaluate candidates ahead of their turn.
        progress: Receives the progress of all searches together.
        enough: Whether the outcomes so far answer the question.
        at_least_load: Whether candidates are only simulated at the least rate, and not at their capacity.
    """
    counter = RequestCounter()
    tester = replace(plan_evaluator.tester, counter=counter)
    assess: ObjectiveAssess = assess_of(request, plan_evaluator, tester, left)
    counted = CountedAssess(LeastLoad(tester, assess) if at_least_load else assess, counter)
    groups = groups_of(request, plan_evaluator, left) if left else []
    return GroupSearch(request, plan_evaluator, counted, workers, progress, enough, groups)


@dataclass(slots=True)
class GroupSearch:
    """The searches of the groups of one request, joined into one result.

    Attributes:
        request: The request.
        plan_evaluator: Measures plans, and knows their prices.
        counted: Measures candidates for the objective and counts the simulated requests.
        workers: Evaluate the next candidates ahead of their turn.
        progress: Receives the progress of all searches together.
        enough: Whether the outcomes so far answer the question.
        groups: The groups in the order in which they are searched.
        result: What was found so far.
        has_enough: Whether `enough` was true of the last outcome.
    """

    request: PlanRequest
    plan_evaluator: PlanEvaluator
    counted: CountedAssess
    workers: WorkerPool
    progress: Progress | None
    enough: Enough | None
    groups: Sequence[Sequence[Candidate]]
    result: SearchResult = field(default_factory=SearchResult)
    has_enough: bool = False
    _lookahead: Lookahead = field(init=False)
    _waiting: list[Sequence[Candidate]] = field(init=False)
    _again: set[int] = field(default_factory=set)  # places of the groups that were searched again, or are about to be

    def __post_init__(self) -> None:
        self._lookahead = SerialLookahead(self.counted)
        self._waiting = list(self.groups)

    def run(self) -> SearchResult:
        """Search the next groups until one has sufficient headroom, and return what was found so far."""
        if self._waiting:
            left = [c for group in self._waiting for c in group]
            with self.workers.lookahead(self.counted, len(left)) as self._lookahead:
                self._search_in_order()
                if len(self.groups) == 1:
                    self._search_best_kinds_alone(left)
        return self.result

    def go_on(self) -> bool:
        """Search on if every winner so far misses with all seeds; return whether there may now be another one.

        The next groups come first. The groups of the refused winners follow, without these winners, because a candidate
        that lost to a refused one may meet the objectives. A group is searched again only once, because each of its
        candidates in turn might be refused.
        """
        if self._is_over:
            return False
        for i, group in enumerate(self.groups):
            if i not in self._again and not self.result.refused.isdisjoint(group):
                self._again.add(i)
                rest = [c for c in group if c not in self.result.refused]
                self._waiting += [rest] if rest else []
        self.run()
        return bool(self._unrefused)

    def _search_in_order(self) -> None:
        """Search the groups in order until one has sufficient headroom; groups of one kind share the trials."""
        trials = self.request.search.trials
        n_groups = Counter(kind_of(group[0]) for group in self.groups)
        while self._waiting:
            group = self._waiting.pop(0)
            share = trials // GROUP_SHARE if n_groups[kind_of(group[0])] > 1 else trials
            self.result = self.result.updated(self._search_group(group, max(share, 1)))
            if self._is_over or self._has_headroom:
                break

    def _search_best_kinds_alone(self, left: Sequence[Candidate]) -> None:
        """Search the best kind of accelerator alone, until the best is of a kind that was searched so."""
        alone: set[str] = set()
        while not self._is_over and (feasible := self._unrefused):
            kind = kind_of(simplest_best(self.request, self.plan_evaluator, feasible).candidate)
            own = [c for c in left if kind_of(c) == kind]
            if kind in alone or len(own) == len(left):
                break
            alone.add(kind)
            self.result = self.result.updated(self._search_group(own, self.request.search.trials))

    @property
    def _is_over(self) -> bool:
        return self.result.interrupted or self.has_enough

    @property
    def _unrefused(self) -> list[Outcome]:
        """Return the feasible outcomes that were not refused with all seeds."""
        return [o for o in self.result.outcomes if o.feasible and o.candidate not in self.result.refused]

    @property
    def _has_headroom(self) -> bool:
        best = min(self._unrefused, key=score_of, default=None)
        if best is None:
            return False
        return best.requests_per_s >= HEADROOM * (self.plan_evaluator.tester.held_per_s(best.candidate) or 0.0)

    def _search_group(self, group: Sequence[Candidate], trials: int) -> SearchResult:
        options, calibration = self.request.search, digest(self.plan_evaluator.evaluator.fingerprint)
        name = study_name(self.request, group)
        settings = SearchSettings(trials, self.request.seed, name, options.journal, options.storage, calibration)
        order, safest = self.counted.in_order(group), partial(self.counted.safest_first, group)
        shown = partial(self._show, self.result.n_trials)
        outclassed, ended, settled = self.counted.outclassed, self._ended, self.counted.settled
        return search(order, self.counted, settings, shown, outclassed, self._lookahead, safest, ended, settled)

    def _show(self, n_before: int, done: int, planned: int, best: Outcome | None) -> None:
        """Report the progress of a search that begins after `n_before` trials of earlier ones."""
        if self.progress is not None:
            self.progress(n_before + done, n_before + planned, best)

    def _ended(self, outcome: Outcome) -> bool:
        self.has_enough = self.enough is not None and self.enough(outcome)
        return self.has_enough


def first_plan_on(
    request: PlanRequest, elsewhere: Callable[[Hardware], Evaluator], workers: WorkerPool, hardware: Hardware
) -> Candidate | None:
    """Return the first plan that the search of `plan --hw` finds on other hardware; None if it refuses the request.

    Each winner of that search is simulated with all seeds. One that misses the objectives with them is left out, and
    the search goes on until one meets them. A budget is ignored, and capacities are not determined: without a required
    rate, a plan that is confirmed at a light load has some capacity.
    """
    options = request.search.replace(study=None)
    own = request.replace(hardware=hardware.text, search=options, max_usd_per_hour=None)
    tried: dict[Candidate, bool] = {}
    try:
        evaluator, prices = elsewhere(hardware), PriceList.of(request.tariff, hardware, request.accounting)
        prices.check()
        left, _ = apply_bounds(own, evaluator)
    except InputError:
        return None
    rental = rental_bound(own, hardware)
    left = [c for c in left if rental is None or rental.discard(c) is None]
    plan_evaluator = PlanEvaluator(evaluator, tester_of(own, evaluator, left), prices, workers.map)
    any_rate = bool(left) and plan_evaluator.tester.nominal_per_s(left[0]) is None

    def enough(outcome: Outcome) -> bool:
        candidate = outcome.candidate
        tried[candidate] = plan_evaluator.meets_request(candidate)
        if not tried[candidate]:  # its headroom with one seed does not end the search
            searched.result.refused.add(candidate)
        return tried[candidate] or len(tried) > MOST_TRIES

    searched = group_search(own, plan_evaluator, left, workers, None, enough, at_least_load=any_rate)
    searched.run()
    while searched.go_on():
        pass
    return next((candidate for candidate, held in tried.items() if held), None)


def assess_of(
    request: PlanRequest, plan_evaluator: PlanEvaluator, tester: CandidateTester, left: Sequence[Candidate]
) -> ObjectiveAssess:
    """Return what measures the candidates for the objective of the request."""
    prices = plan_evaluator.prices
    distance = partial(distance_of, evaluator=plan_evaluator.evaluator)
    unit_cost = unit_cost_of(request.objective, prices, left)
    return assess_for(request.objective, tester, distance, unit_cost, lambda c: prices.grid(c).grid.gco2e_per_kwh)


def groups_of(request: PlanRequest, plan_evaluator: PlanEvaluator, left: Sequence[Candidate]) -> list[list[Candidate]]:
    """Return the groups of candidates in the order in which they are searched.

    All candidates form one group, unless the request is for the cheapest deployment that serves a rate. Then there is
    one group for each price (ascending), precision (simplest first) and hardware (most accelerators first), and the
    first group that serves the rate is the answer: accelerators that are rented anyway are used before numbers are
    narrowed. Candidates that are overloaded even with a full batch are left out, except those with the most
    accelerators of their kind: their failure explains a refusal.
    """
    if request.objective != "cost" or not request.demand.given or not left:
        return [list(left)]
    evaluator, tester, sizes = plan_evaluator.evaluator, plan_evaluator.tester, sizes_of(plan_evaluator.prices, left)
    largest: dict[str, int] = {}
    for c in left:
        largest[kind_of(c)] = max(largest.get(kind_of(c), 0), c.hardware.n_accelerators)
    groups: dict[object, list[Candidate]] = {}
    for c in sorted(left, key=lambda c: (sizes[c], distance_of(c, evaluator)[:2], -c.hardware.n_accelerators)):
        most = c.hardware.n_accelerators == largest[kind_of(c)]
        if most or evaluator.fluid_requests_per_s(c) * OVERLOAD > tester.floor_per_s(c):
            groups.setdefault(group_of(c, plan_evaluator), []).append(c)
    return list(groups.values())


def sizes_of(prices: PriceList, left: Sequence[Candidate]) -> dict[Candidate, float]:
    """Return the size of each candidate: its price, US dollars per hour, or its accelerators if no price is known.

    Candidates without a price count as more expensive than all others.
    """
    found = {c: prices.usd_per_hour(c) for c in left}
    most = max((usd for usd in found.values() if usd is not None), default=0.0)
    return {c: most + c.hardware.n_accelerators if usd is None else usd for c, usd in found.items()}


def group_of(candidate: Candidate, plan_evaluator: PlanEvaluator) -> tuple[object, ...]:
    """Return what the candidates of one group have in common: price, hardware and precision."""
    usd = plan_evaluator.prices.usd_per_hour(candidate)
    return usd, candidate.hardware, *distance_of(candidate, plan_evaluator.evaluator)[:2]


def distance_of(candidate: Candidate, evaluator: Evaluator) -> tuple[int, ...]:
    """Return the distance of a candidate from the defaults of its own hardware."""
    return distance_from_defaults(candidate, evaluator.names_of(candidate))


def unit_cost_of(objective: str, prices: PriceList, left: Sequence[Candidate]) -> Callable[[Candidate], float]:
    """Return the function that gives the unit cost of a candidate, by which its capacity is divided for comparison.

    The unit is US dollars, accelerators, or 1 for every candidate.
    """
    if objective == "cost":
        sizes = sizes_of(prices, left)
        return sizes.__getitem__
    if objective == "goodput":
        return lambda c: float(c.hardware.n_accelerators)
    return equal_unit_cost


def simplest_best(request: PlanRequest, plan_evaluator: PlanEvaluator, outcomes: Sequence[Outcome]) -> Outcome:
    """Return the simplest of the feasible outcomes (native precision, default limits) that tie with the best.

    Objectives in RACES use HALF_TIE. The search does not measure a candidate unless it beats the best by more than
    HALF_TIE, so an unmeasured one may be that much better; the plan chosen here is then at most TIE worse than any
    candidate.

    For the cheapest deployment that carries a rate, only the first group with a feasible outcome counts.
    """
    if request.objective == "cost" and request.demand.given:
        first = group_of(outcomes[0].candidate, plan_evaluator)
        outcomes = [o for o in outcomes if group_of(o.candidate, plan_evaluator) == first]
    tie = HALF_TIE if request.objective in RACES else TIE
    return simplest_tied(outcomes, tie, partial(distance_of, evaluator=plan_evaluator.evaluator))


def study_name(request: PlanRequest, group: Sequence[Candidate]) -> str:
    """Return the name of the study of a request, by which only a study of the same request is resumed."""
    text = json.dumps([request.search_identity(), request.search.trials, [c.as_dict() for c in group]], sort_keys=True)
    return f"plan-{digest(text)}"
