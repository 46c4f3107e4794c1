"""A useful no: what binds, the closest plan, and what would meet the request. Every suggestion is checked."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from catalogs.errors import InputError
from catalogs.hardware.catalog import parse_hardware, with_count, with_nodes
from catalogs.hardware.specs import Hardware
from catalogs.ui.words import human_s
from planner.answer.measure import BEST, Measure, MeasuredPlan
from planner.answer.plan_schema import Memory, Plan
from planner.answer.schema import Refusal, Suggestion
from planner.evaluation.evaluator import Evaluator, Verdict
from planner.problem.candidate import Candidate
from planner.problem.request import PlanRequest
from planner.problem.slo import Slo
from planner.search.objectives import Outcome
from planner.space.bounds import SURVIVAL, Discard
from planner.space.candidates import candidates, plainness

#: Hardware worth asking about when what was named cannot do it, beside more of the same.
NEIGHBOURS: Final = ("h100", "h200", "b200")

#: Weight dtypes worth asking about, most careful first.
NARROWER: Final = ("fp8", "int4")

#: A relaxed limit leaves this much room over the value simulated, and is rounded up to two digits.
ROOM: Final = 1.1

_MAX_HARDWARE: Final = 4

_MAX_TRIES: Final = 4

Elsewhere = Callable[[Hardware], Evaluator]


@dataclass(frozen=True, slots=True)
class Refuser:
    """Explains why nothing meets a request."""

    request: PlanRequest
    measure: Measure
    elsewhere: Elsewhere

    def refuse(self, discards: Sequence[tuple[Candidate, Discard]], outcomes: Sequence[Outcome]) -> Refusal:
        """discards: what the bounds threw out; outcomes: what was simulated in vain."""
        closest = _closest(discards, outcomes, self.measure.world)
        world = self.measure.world
        own = world.names.hardware if closest is None else world.names_of(closest[0]).hardware
        suggestions = [*self._hardware(own), *self._precision()]
        if closest is None:
            limit = f"{self.request.model} cannot be cut over {self.request.hardware}"
            return Refusal(binding_constraint=limit, closest=None, what_would_meet_it=suggestions)
        candidate, discard = closest
        if discard is not None and discard.constraint == "memory":
            facts = self.measure.world.facts(candidate)
            return self._refusal(
                discard.reason, Plan.unstarted(facts.deployment, Memory.model_validate(facts.memory)), suggestions
            )
        entry = self.measure.entry(candidate, None, replace(BEST, whole_cluster=False))
        binding = discard.reason if discard is not None else self._binding(entry)
        if discard is not None and discard.constraint == SURVIVAL:  # no load and no limit is low enough
            return self._refusal(binding, entry.plan, suggestions)
        return self._refusal(binding, entry.plan, [*self._load(entry), *suggestions])

    def _refusal(self, binding: str, closest: Plan, suggestions: list[Suggestion]) -> Refusal:
        binding += self._paid_for()
        return Refusal(binding_constraint=binding, closest=closest, what_would_meet_it=suggestions)

    def _paid_for(self) -> str:
        """Of a budget: that it is what limits the hardware."""
        budget = self.request.max_usd_per_hour
        return "" if budget is None else f", on what a budget of ${budget:g} per hour pays for"

    def _binding(self, entry: MeasuredPlan) -> str:
        verdict, asked = entry.verdict, self.request.requests_per_s
        at = f"at {verdict.requests_per_s:.3g} requests/s"
        if not verdict.stable:
            return f"the queue grows without end {at}: the closest plan does not keep up"
        value_s = verdict.value_s(verdict.worst)
        load = at if asked is not None else f"{at}, when requests hardly meet"
        return f"{verdict.worst.name} is {human_s(value_s)} > {human_s(verdict.worst.limit_s)} {load}"

    def _load(self, entry: MeasuredPlan) -> Iterator[Suggestion]:
        """A looser objective, or less load, on the closest plan."""
        verdict = entry.verdict
        if verdict.stable:
            relaxed = [_relaxed(slo, verdict) for slo in self.request.slos]
            text = ",".join(slo.text for slo in relaxed)
            yield _met("slo", f"an objective of {text}", text, "simulation")
        if self.request.requests_per_s is not None:
            rate = entry.capacity_requests_per_s
            if rate:
                yield _met("rate", f"at most {rate:.3g} requests/s on the closest plan", rate, "simulation")

    def _precision(self) -> Iterator[Suggestion]:
        """Narrower weights than were searched, on the same hardware."""
        searched = {c.weight_dtype for c in candidates(self.request, self.measure.world.names)}
        for dtype in NARROWER:
            if dtype not in searched:
                found = self._try(self.request.replace(precisions=(dtype,)), self.measure.world)
                if found is not None:
                    what = f"{dtype} weights (quality differs from {self.measure.world.names.model.weight_dtype})"
                    yield _met("precision", f"{what}: {found.words}", dtype, "simulation")
                    return

    def _hardware(self, own: Hardware) -> Iterator[Suggestion]:
        """More of the same, then something else; the first of each that does it. What is beyond the budget says so."""
        found_one: set[bool] = set()
        for hardware, same in _other_hardware(own):
            if same in found_one:
                continue
            try:
                world = self.elsewhere(hardware)
                found = self._try(self.request.replace(hardware=hardware.text), world)
            except InputError:
                continue
            if found is not None:
                found_one.add(same)
                yield self._met_by(hardware, found)

    def _met_by(self, hardware: Hardware, found: Candidate) -> Suggestion:
        text, budget = hardware.text, self.request.max_usd_per_hour
        price = self.measure.prices.of_other(hardware).price(found.hardware)
        if budget is None or price is None or price.usd_per_hour <= budget:
            return _met("hardware", f"{text}: {found.words}", text, "simulation")
        usd = price.usd_per_hour
        change = f"a budget of ${usd:.2f} per hour, not ${budget:g}: {text}: {found.words}"
        return _met("budget", change, usd, "simulation")

    def _try(self, request: PlanRequest, world: Evaluator) -> Candidate | None:
        """The first promising candidate with default limits that meets the request in simulation."""
        bench = replace(self.measure.bench, evaluator=world)
        plain: dict[object, Candidate] = {}
        for c in candidates(request, world.names):
            plain.setdefault(c.placement, c)
        left = [c for c in plain.values() if world.discard(c) is None and math.isfinite(bench.floor_per_s(c))]
        left.sort(key=lambda c: -world.fluid_requests_per_s(c))
        measure = Measure(world, bench, self.measure.prices)
        for candidate in left[:_MAX_TRIES]:
            rate = bench.floor_per_s(candidate)
            if not bench.probe(candidate, rate, bench.sizes.quick).hopeless and measure.holds(candidate, rate):
                return candidate
        return None


def _closest(
    discards: Sequence[tuple[Candidate, Discard]], outcomes: Sequence[Outcome], world: Evaluator
) -> tuple[Candidate, Discard | None] | None:
    """Least over the limit: simulated candidates first, then latency bounds, then memory."""
    if outcomes:
        strong = {o.candidate: -world.fluid_requests_per_s(o.candidate) for o in outcomes}
        return min(outcomes, key=lambda o: (o.ratio, strong[o.candidate], o.candidate)).candidate, None
    over = [
        (d.constraint == "memory", round(d.value / d.limit, 2), plainness(c, world.names_of(c)), c, d)
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
    room = value_s * ROOM
    digit = 10.0 ** (math.floor(math.log10(room)) - 1)
    return replace(slo, limit_s=float(f"{math.ceil(room / digit) * digit:.3g}"), metric_given=True)


def _other_hardware(hardware: Hardware) -> Iterator[tuple[Hardware, bool]]:
    """(hardware, more of the same): other counts of this accelerator, and as many of others, then a whole node of them.
    MIG slices and this machine have no larger siblings here."""
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


def _met(kind: str, change: str, value: str | float, verified_by: str) -> Suggestion:
    return Suggestion(kind=kind, change=change, value=value, verified_by=verified_by)
