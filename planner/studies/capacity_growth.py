"""The cheapest change that reaches more capacity; every change is simulated at the higher rate.

Without a load, the search of the answer has already chosen the limits, layouts and precisions with the most capacity,
so they are not tried again. For a load it has chosen a plan that serves this load, so other plans on the same hardware
are tried at the higher rate. A plan that must survive a loss is compared at its load, and every change must survive the
loss too. The further changes are more API server processes, narrower weights outside the space of
the search, more of the same accelerators, and other accelerators. If a change that costs nothing suffices, only cheaper
hardware is tried.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from catalogs.errors import InputError
from catalogs.hardware.catalog import parse_hardware, with_count, with_nodes
from catalogs.hardware.specs import Hardware
from catalogs.ui.progress import ProgressCallback
from catalogs.ui.words import human_s, percent, rate
from planner.answer.plan_evaluator import PlanEvaluator
from planner.answer.plan_schema import Plan
from planner.answer.refusal import NARROWER
from planner.evaluation.api_server_variants import BINDING, api_server_variants, more_api_servers
from planner.evaluation.evaluator import Evaluator
from planner.evaluation.simulated_evaluator import SimulatedEvaluator
from planner.problem.candidate import API_SERVERS, Candidate
from planner.problem.slo import seconds_text
from planner.space.candidates import candidates
from planner.studies.rerun import Rerun, without_load

#: The capacity that changes must reach, as a multiple of the present one. A judgement: a fifth more is worth a change,
#: and well beyond the noise of a capacity.
CAPACITY_GOAL: Final = 1.2

#: Other accelerators that are tried.
ACCELERATORS_TRIED: Final = ("a100-80gb", "h100", "h200", "b200")

#: Maximum number of candidates tried on each hardware. A judgement of cost.
CANDIDATES_TRIED: Final = 3

#: Maximum price of other hardware relative to that of the plan. A judgement: dearer hardware is no answer to a need for
#: a fifth more.
MAX_PRICE_RATIO: Final = 4.0

#: Number of kinds of accelerator that reach the goal, after which no more expensive hardware is tried. A judgement: a
#: choice of two is enough.
SUFFICIENT_ACCELERATORS: Final = 2


@dataclass(frozen=True, slots=True)
class GrowthStep:
    """A tried change.

    `usd_per_hour` is the price of the changed plan, None if unknown. `holds` is True if it meets the objectives at the
    higher rate.
    """

    kind: str  # "deployment" | "precision" | "hardware" | "objective"
    words: str
    usd_per_hour: float | None
    extra_usd_per_hour: float | None
    holds: bool
    note: str = ""


@dataclass(frozen=True, slots=True)
class Growth:
    """The changes that were tried for a rate of `goal_per_s`, which is CAPACITY_GOAL times the capacity.

    If every change must survive a loss, which `lost` has in words, the rate is CAPACITY_GOAL times the load.
    """

    goal_per_s: float
    changes: list[GrowthStep]
    unit: str = "requests/s"
    lost: str = ""

    @property
    def words(self) -> str:
        """Return the goal and what it is relative to: "18 requests/s instead of the capacity of 15 requests/s"."""
        goal, now = (rate(per_s, self.unit) for per_s in (self.goal_per_s, self.goal_per_s / CAPACITY_GOAL))
        return f"{goal} with {self.lost}, instead of {now}" if self.lost else f"{goal} instead of the capacity of {now}"

    @property
    def cheapest(self) -> GrowthStep | None:
        """Return the cheapest change that meets the objectives; changes that keep the objectives take precedence."""
        held = [c for c in self.changes if c.holds]
        promised = [c for c in held if c.kind != "objective"]
        return min(promised or held, key=lambda change: _known(change.extra_usd_per_hour), default=None)


def _known(usd: float | None) -> float:
    """Return an amount to sort by: an unknown one is infinite."""
    return float("inf") if usd is None else usd


def growth(rerun: Rerun, plan: Plan, tell: ProgressCallback = lambda _: None) -> Growth:
    """Return the changes for 20 % more capacity; takes some seconds for each hardware.

    Raises:
        InputError: The plan has no capacity.
    """
    if plan.capacity_requests_per_s is None:
        raise InputError("a plan without a capacity cannot be extended", plan.deployment["hardware"])
    spare = rerun.request.spare
    now_per_s = plan.requests_per_s if spare and plan.requests_per_s else plan.capacity_requests_per_s
    goal = CAPACITY_GOAL * now_per_s
    tries = _Tries(rerun, plan, goal)
    if spare and tries.carries(tell):
        same = GrowthStep("deployment", "no change: the plan itself serves it", plan.usd_per_hour, 0.0, True)
        return Growth(goal, [same], lost=spare.words)
    free = list(tries.api_servers(tell))
    if not any(change.holds for change in free):
        free += tries.same_hardware(tell)
    is_free = any(change.holds and _known(change.extra_usd_per_hour) <= 0.0 for change in free)
    most = (plan.usd_per_hour or 0.0) if is_free else None
    steps = [*tries.objective(tell), *free, *tries.precision(tell), *tries.hardware(tell, most)]
    return Growth(goal, steps, lost=spare.words if spare else "")


@dataclass(frozen=True, slots=True)
class _Tries:
    rerun: Rerun
    plan: Plan
    goal: float

    def _load_per_s(self, candidate: Candidate) -> float:
        """Return the rate that loads all replicas as those that remain after the loss are loaded at the goal.

        It is infinite if no replica remains, and the goal itself if no loss must be survived.
        """
        return self.goal * self.rerun.request.spare.factor(candidate)

    def _reaches(self, candidate: Candidate, plan_evaluator: PlanEvaluator) -> bool:
        """Return whether a candidate meets the objectives at the goal, also after the loss that it must survive."""
        load_per_s, tester = self._load_per_s(candidate), plan_evaluator.tester
        if not math.isfinite(load_per_s):
            return False
        quick = tester.probe(candidate, load_per_s, tester.sizes.quick)
        return not quick.clearly_missed and plan_evaluator.holds(candidate, load_per_s)

    def carries(self, tell: ProgressCallback) -> bool:
        """Return whether the plan itself reaches the goal."""
        tell("the same plan at the higher rate")
        plan_evaluator = PlanEvaluator(self.rerun.evaluator, self.rerun.tester, self.rerun.prices)
        return self._reaches(self.rerun.candidates[0], plan_evaluator)

    def objective(self, tell: ProgressCallback) -> Iterator[GrowthStep]:
        """Try the same plan with relaxed objectives."""
        tell("the same plan at the higher rate")
        tester, candidate = self.rerun.tester, self.rerun.candidates[0]
        verdict = tester.probe(candidate, self._load_per_s(candidate), tester.sizes.full)
        if not verdict.stable:
            yield GrowthStep("objective", "relax the objectives", None, None, False, "the queue grows")
            return
        factor = tester.allowance(candidate).latency
        values_s = [verdict.value_s(slo) * factor(slo, verdict.waiting_share(slo)) for slo in tester.slos]
        missed = [(slo, value_s) for slo, value_s in zip(tester.slos, values_s, strict=True) if value_s > slo.limit_s]
        if not missed:  # with this one seed the plan serves more than its capacity, which no objective explains
            return
        # Each limit is the value plus 10 %, rounded to two digits.
        limits = ",".join(f"{slo.name}={seconds_text(float(f'{value_s * 1.1:.2g}'))}" for slo, value_s in missed)
        values = ", ".join(f"{slo.name} = {human_s(value_s)}" for slo, value_s in missed)
        values += f" at {percent(tester.confidence)} confidence"
        yield GrowthStep("objective", f"relax the objectives to {limits}", self.plan.usd_per_hour, 0.0, True, values)

    def api_servers(self, tell: ProgressCallback) -> Iterator[GrowthStep]:
        """Try more API server processes until a number of them reaches the goal or each core has one.

        They are tried if those of the plan are nearly full at the goal.
        """
        rerun, found = self.rerun, None
        own, plan_evaluator = rerun.candidates[0], PlanEvaluator(rerun.evaluator, rerun.tester, rerun.prices)
        if rerun.evaluator.utilisation(own, self._load_per_s(own)).api_server <= BINDING:
            return
        for candidate in more_api_servers(own, rerun.evaluator.names_of(own)):
            tell(f"{candidate.api_servers} API servers")
            holds = self._reaches(candidate, plan_evaluator)
            words = f"{candidate.api_servers} API server processes for each replica ({API_SERVERS})"
            found = GrowthStep("deployment", words, self.plan.usd_per_hour, 0.0, holds)
            if holds:
                break
        if found is not None:
            yield found

    def same_hardware(self, tell: ProgressCallback) -> Iterator[GrowthStep]:
        """Try other plans of the search on the same hardware, if the plan was chosen for a load."""
        if not self.rerun.request.given:
            return
        tell("other plans on the same hardware")
        found = self._first(self.plan.hardware, (), self._own_evaluator())
        if found is not None:
            narrower = found.weight_dtype != self.rerun.candidates[0].weight_dtype
            note = "check the answer quality" if narrower else ""
            words = f"another plan on {self.plan.hardware}: {found.words}"
            usd = self.rerun.prices.usd_per_hour(found)
            yield GrowthStep("deployment", words, usd, self._extra(usd), True, note)

    def _extra(self, usd: float | None) -> float | None:
        """Return the difference of a price per hour from that of the plan; None if one of them is unknown."""
        return None if usd is None or self.plan.usd_per_hour is None else usd - self.plan.usd_per_hour

    def _own_evaluator(self) -> SimulatedEvaluator:
        """Return the evaluator of the hardware of the plan, which may be a part of the requested hardware."""
        own, evaluator = self.rerun.candidates[0].hardware, self.rerun.evaluator_of(0)
        return evaluator if evaluator.names.hardware.text == own.text else evaluator.elsewhere(own)

    def precision(self, tell: ProgressCallback) -> Iterator[GrowthStep]:
        """Try narrower weights on the same hardware until one reaches the goal."""
        evaluator = self._own_evaluator()
        searched = {c.weight_dtype for c in candidates(evaluator.request, evaluator.names)}
        for dtype in (d for d in NARROWER if d not in searched):
            tell(f"{dtype} weights")
            found = self._first(self.plan.hardware, (dtype,), evaluator)
            words = f"{dtype} weights" + (f": {found.words}" if found else "")
            note = "check the answer quality"
            yield GrowthStep("precision", words, self.plan.usd_per_hour, 0.0, found is not None, note)
            if found:
                return

    def hardware(self, tell: ProgressCallback, most_usd: float | None = None) -> Iterator[GrowthStep]:
        """Try more of the same and other accelerators by price, each kind until one count reaches the goal.

        If `most_usd` is given, only hardware that is cheaper per hour is tried.
        """
        done: set[str] = set()
        for hardware, usd in self._offers():
            if most_usd is not None and (usd is None or usd >= most_usd):
                continue
            text, name = hardware.text, hardware.accelerator.name
            if len(done) == SUFFICIENT_ACCELERATORS or name in done:
                continue
            tell(text)
            try:
                found = self._first(text, (), self.rerun.evaluator_of(0).elsewhere(hardware))
            except InputError:
                continue
            usd = usd if found is None else self.rerun.prices.of_other(hardware).usd_per_hour(found)
            words = f"{text}: {found.words}" if found else text
            yield GrowthStep("hardware", words, usd, self._extra(usd), found is not None)
            if found:
                done.add(name)

    def _offers(self) -> list[tuple[Hardware, float | None]]:
        """Return pairs of hardware and dollars per hour, the cheapest first, at equal price the same kind first."""
        own = self.rerun.candidates[0].hardware
        names = [candidate.hardware.accelerator.name for candidate in self.rerun.candidates[1:]]
        offers = dict.fromkeys([*_more(own), *_others(own, names)])
        prices = {hardware: self.rerun.prices.of_other(hardware).price(hardware) for hardware in offers}
        priced = [(hardware, None if price is None else price.usd_per_hour) for hardware, price in prices.items()]
        most = MAX_PRICE_RATIO * (self.plan.usd_per_hour or float("inf"))
        kept = [(hardware, usd) for hardware, usd in priced if usd is None or usd <= most]
        return sorted(kept, key=lambda offer: _known(offer[1]))

    def _first(self, hardware: str, precisions: tuple[str, ...], evaluator: Evaluator) -> Candidate | None:
        """Return the first of the fastest candidates with default limits that reaches the goal."""
        request = without_load(self.rerun.request).replace(hardware=hardware, objective="throughput")
        request = request.replace(precisions=precisions or self.rerun.request.precisions)
        plain: dict[object, Candidate] = {}
        for c in candidates(request, evaluator.names):
            plain.setdefault(c.placement, c)
        left = [c for c in plain.values() if evaluator.discard(c) is None]
        left = [*left, *api_server_variants(left, evaluator, request.fixed, self.goal)]
        left.sort(key=lambda c: -evaluator.fluid_requests_per_s(c))
        tester = replace(self.rerun.tester, evaluator=evaluator, requests_per_s=self.goal)
        plan_evaluator = PlanEvaluator(evaluator, tester, self.rerun.prices)
        return next(
            (candidate for candidate in left[:CANDIDATES_TRIED] if self._reaches(candidate, plan_evaluator)), None
        )


def _more(own: Hardware) -> Iterator[Hardware]:
    """Yield larger counts of the same accelerator; none for slices and the local machine."""
    if own.text == "local" or own.accelerator.is_slice:
        return
    count, most = own.accelerators_per_node, own.node.max_accelerators
    if own.n_nodes == 1:
        yield from (with_count(own, n) for n in range(count + 1, most + 1) if n in (2, 3, 4, 6, 8, 16))
    yield from (with_nodes(with_count(own, most), n) for n in (2, 3, 4) if n > own.n_nodes)


def _others(own: Hardware, alternatives: Sequence[str]) -> Iterator[Hardware]:
    """Yield other accelerators, those of alternatives included, in the same, half and twice the number."""
    if own.text == "local":
        return
    for name in (n for n in dict.fromkeys((*ACCELERATORS_TRIED, *alternatives)) if n != own.accelerator.name):
        other = parse_hardware(name)
        most, total = other.node.max_accelerators, own.n_accelerators
        for n in (total // 2, total, 2 * total):
            if 1 <= n <= most:
                yield with_count(other, n)
            elif n and n % most == 0:
                yield with_nodes(with_count(other, most), n // most)
