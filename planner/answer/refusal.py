"""Explain a refusal: the binding constraint, the closest plan, and verified changes that would meet the request."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from catalogs.errors import InputError
from catalogs.hardware.catalog import parse_hardware, with_count, with_nodes
from catalogs.hardware.specs import Hardware
from catalogs.ui.words import human_s
from planner.answer.evaluate import BEST, EvaluatedPlan, PlanEvaluator
from planner.answer.plan_schema import Memory, Plan
from planner.answer.schema import Refusal, Suggestion
from planner.evaluation.api_processes import api_server_variants
from planner.evaluation.evaluator import Evaluator, Verdict
from planner.problem.candidate import Candidate
from planner.problem.request import PlanRequest
from planner.problem.slo import Slo
from planner.search.objectives import Outcome
from planner.space.bounds import NOT_ADMITTED, Discard
from planner.space.candidates import candidates, distance_from_defaults

#: Other hardware to try if the requested hardware is not sufficient, in addition to more of the same.
NEIGHBOURS: Final = ("h100", "h200", "b200")

#: Weight dtypes to try, widest first.
NARROWER: Final = ("fp8", "int4")

#: A relaxed limit is this multiple of the simulated value, rounded up to two digits.
MARGIN: Final = 1.1

_MAX_HARDWARE: Final = 4

_MAX_TRIES: Final = 4

Elsewhere = Callable[[Hardware], Evaluator]


@dataclass(frozen=True, slots=True)
class Refuser:
    """Explains why no candidate meets a request; `elsewhere` opens the evaluator of other hardware."""

    request: PlanRequest
    plan_evaluator: PlanEvaluator
    elsewhere: Elsewhere

    def refuse(self, discards: Sequence[tuple[Candidate, Discard]], outcomes: Sequence[Outcome]) -> Refusal:
        """Return the refusal, from the candidates ruled out by bounds and the outcomes of those simulated."""
        evaluator = self.plan_evaluator.evaluator
        closest = _closest(discards, outcomes, evaluator)
        own = evaluator.names.hardware if closest is None else evaluator.names_of(closest[0]).hardware
        suggestions = [*self._hardware(own), *self._precision()]
        if closest is None:
            limit = f"{self.request.model} cannot be split across {self.request.hardware}"
            return Refusal(binding_constraint=limit, closest=None, what_would_meet_it=suggestions)
        candidate, discard = closest
        if discard is not None and discard.constraint == "memory":
            facts = evaluator.facts(candidate)
            binding, plan = discard.reason, Plan.unstarted(facts.deployment, Memory.model_validate(facts.memory))
        else:
            entry = self.plan_evaluator.entry(candidate, None, replace(BEST, whole_cluster=False))
            binding, plan = self._binding(entry) if discard is None else discard.reason, entry.plan
            if discard is None or discard.constraint != NOT_ADMITTED:  # no lower load or looser limit helps survival
                suggestions = [*self._load(entry), *suggestions]
        budget = self.request.max_usd_per_hour
        if budget is not None:
            binding += f", on hardware within the budget of ${budget:g} per hour"
        return Refusal(binding_constraint=binding, closest=plan, what_would_meet_it=suggestions)

    def _binding(self, entry: EvaluatedPlan) -> str:
        verdict = entry.verdict
        at = f"at {verdict.requests_per_s:.3g} requests/s"
        if not verdict.stable:
            return f"the queue grows without limit {at}: even the closest plan is overloaded"
        load = at if self.request.requests_per_s is not None else f"{at}, a light load"
        value = human_s(verdict.value_s(verdict.worst))
        return f"{verdict.worst.name} is {value} > {human_s(verdict.worst.limit_s)} {load}"

    def _load(self, entry: EvaluatedPlan) -> Iterator[Suggestion]:
        """Yield looser objectives and a lower load that the closest plan meets."""
        if entry.verdict.stable:
            text = ",".join(_relaxed(slo, entry.verdict).text for slo in self.request.slos)
            yield _simulated("slo", f"objectives of {text}", text)
        rate = entry.capacity_requests_per_s
        if self.request.requests_per_s is not None and rate:
            yield _simulated("rate", f"at most {rate:.3g} requests/s on the closest plan", rate)

    def _precision(self) -> Iterator[Suggestion]:
        """Yield narrower weights than those searched, on the same hardware."""
        searched = {c.weight_dtype for c in candidates(self.request, self.plan_evaluator.evaluator.names)}
        for dtype in NARROWER:
            if dtype not in searched:
                found = self._try(self.request.replace(precisions=(dtype,)), self.plan_evaluator.evaluator)
                if found is not None:
                    yield _simulated("precision", f"{dtype} weights (check the answer quality): {found.words}", dtype)
                    return

    def _hardware(self, own: Hardware) -> Iterator[Suggestion]:
        """Yield more of the same hardware and other hardware: the first of each that meets the request.

        A suggestion above the budget names the budget that it needs.
        """
        suggested: set[bool] = set()
        for hardware, same in _other_hardware(own):
            if same in suggested:
                continue
            try:
                found = self._try(self.request.replace(hardware=hardware.text), self.elsewhere(hardware))
            except InputError:
                continue
            if found is None:
                continue
            suggested.add(same)
            change, budget = f"{hardware.text}: {found.words}", self.request.max_usd_per_hour
            price = self.plan_evaluator.prices.of_other(hardware).price(found.hardware)
            if budget is None or price is None or price.usd_per_hour <= budget:
                yield _simulated("hardware", change, hardware.text)
            else:
                usd = price.usd_per_hour
                yield _simulated("budget", f"a budget of ${usd:.2f} per hour instead of ${budget:g}: {change}", usd)

    def _try(self, request: PlanRequest, evaluator: Evaluator) -> Candidate | None:
        """Return the first promising candidate with default limits that meets the request in simulation."""
        tester = replace(self.plan_evaluator.tester, evaluator=evaluator)
        default: dict[object, Candidate] = {}
        for c in candidates(request, evaluator.names):
            default.setdefault(c.placement, c)
        left = [c for c in default.values() if evaluator.discard(c) is None and math.isfinite(tester.floor_per_s(c))]
        left = [*left, *api_server_variants(left, evaluator, request.fixed, request.requests_per_s)]
        left.sort(key=lambda c: -evaluator.fluid_requests_per_s(c))
        plan_evaluator = PlanEvaluator(evaluator, tester, self.plan_evaluator.prices)
        for candidate in left[:_MAX_TRIES]:
            rate = tester.floor_per_s(candidate)
            if not tester.probe(candidate, rate, tester.sizes.quick).clearly_missed and plan_evaluator.holds(
                candidate, rate
            ):
                return candidate
        return None


def _closest(
    discards: Sequence[tuple[Candidate, Discard]], outcomes: Sequence[Outcome], evaluator: Evaluator
) -> tuple[Candidate, Discard | None] | None:
    """Return the candidate closest to its limit: simulated candidates first, then latency bounds, then memory."""
    if outcomes:
        strong = {o.candidate: -evaluator.fluid_requests_per_s(o.candidate) for o in outcomes}
        return min(outcomes, key=lambda o: (o.ratio, strong[o.candidate], o.candidate)).candidate, None
    over = [
        (d.constraint == "memory", round(d.value / d.limit, 2), distance_from_defaults(c, evaluator.names_of(c)), c, d)
        for c, d in discards
    ]
    if not over:
        return None
    *_, candidate, discard = min(over, key=lambda item: item[:4])
    return candidate, discard


def _relaxed(slo: Slo, verdict: Verdict) -> Slo:
    value_s = verdict.value_s(slo)
    if not value_s > slo.limit_s:
        return slo
    relaxed_s = value_s * MARGIN
    digit = 10.0 ** (math.floor(math.log10(relaxed_s)) - 1)
    return replace(slo, limit_s=float(f"{math.ceil(relaxed_s / digit) * digit:.3g}"), metric_given=True)


def _other_hardware(hardware: Hardware) -> Iterator[tuple[Hardware, bool]]:
    """Yield other hardware to try, and whether it is more of the same.

    These are more accelerators of this type, the same number of other accelerators, and whole nodes of those. There is
    nothing larger for MIG slices and for this machine.
    """
    if hardware.text == "local" or hardware.accelerator.is_slice:
        return
    name, count, most = hardware.accelerator.name, hardware.accelerators_per_node, hardware.node.max_accelerators
    bigger = [n for n in (1, 2, 4, 8, 16) if count < n <= most]
    yield from ((with_count(with_nodes(hardware, 1), n), True) for n in bigger[:_MAX_HARDWARE])
    nodes = hardware.n_nodes
    yield from ((with_nodes(with_count(hardware, most), n), True) for n in (2, 3, 4, 6, 8) if n > nodes)
    others = [parse_hardware(n) for n in NEIGHBOURS if n != name]
    alike = [(o, count) for o in others if count <= o.node.max_accelerators]
    whole = [(o, o.node.max_accelerators) for o in others if nodes == 1 and count < o.node.max_accelerators]
    yield from ((with_nodes(with_count(other, n), nodes), False) for other, n in (*alike, *whole))


def _simulated(kind: str, change: str, value: str | float) -> Suggestion:
    return Suggestion(kind=kind, change=change, value=value, verified_by="simulation")
