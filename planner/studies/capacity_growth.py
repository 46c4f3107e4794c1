"""The cheapest change that would buy more capacity: every candidate change simulated at the higher rate.

What the answer's own search could choose (limits, layouts, precisions of its space) is not tried again: its winner is
the best of them. Tried are narrower weights beyond that space, the same accelerators in larger numbers, and others.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from catalogs.errors import InputError
from catalogs.hardware.catalog import parse_hardware, with_count, with_nodes
from catalogs.hardware.specs import Hardware
from catalogs.ui.terminal import ProgressCallback
from catalogs.ui.words import human_s
from planner.answer.measure import Measure
from planner.answer.plan_schema import Plan
from planner.evaluation.evaluator import Evaluator
from planner.evaluation.simulated import SimulatedEvaluator
from planner.problem.candidate import Candidate
from planner.problem.slo import seconds_text
from planner.space.candidates import candidates
from planner.studies.rerun import Rerun, without_load

GOAL: Final = 1.2

#: Weight dtypes worth asking about, most careful first.
NARROWER: Final = ("fp8", "int4")

#: Other accelerators worth asking about.
OTHERS: Final = ("a100-80gb", "h100", "h200", "b200")

#: Candidates of one hardware that are tried, the fastest first; dearer hardware than this many times is not.
MOST_TRIES: Final = 3

MOST_DEARER: Final = 4.0

#: Kinds of accelerator that do it, after which no dearer ones are tried.
ENOUGH: Final = 2


@dataclass(frozen=True, slots=True)
class GrowthStep:
    """One change, tried. usd_per_hour: of the whole plan then; None where no price is known. holds: at the goal."""

    kind: str  # "precision" | "hardware" | "objective"
    words: str
    usd_per_hour: float | None
    extra_usd_per_hour: float | None
    holds: bool
    note: str = ""


@dataclass(frozen=True, slots=True)
class Growth:
    """goal_per_s: GOAL times the capacity. changes: in the order they were tried, cheapest first."""

    goal_per_s: float
    changes: list[GrowthStep]

    @property
    def cheapest(self) -> GrowthStep | None:
        """Of those that hold; one that leaves latency as promised comes before one that does not."""
        held = [c for c in self.changes if c.holds]
        promised = [c for c in held if c.kind != "objective"]
        return min(promised or held, key=_dollars, default=None)


def _dollars(change: GrowthStep) -> float:
    return float("inf") if change.extra_usd_per_hour is None else change.extra_usd_per_hour


def growth(rerun: Rerun, plan: Plan, tell: ProgressCallback = lambda _: None) -> Growth:
    """Simulates some seconds for each hardware tried. Raises InputError for a plan without a capacity."""
    if plan.capacity_requests_per_s is None:
        raise InputError("a plan without a capacity cannot be grown", plan.deployment["hardware"])
    goal = GOAL * plan.capacity_requests_per_s
    tries = _Tries(rerun, plan, goal)
    return Growth(goal, [*tries.objective(tell), *tries.precision(tell), *tries.hardware(tell)])


@dataclass(frozen=True, slots=True)
class _Tries:
    rerun: Rerun
    plan: Plan
    goal: float

    def objective(self, tell: ProgressCallback) -> Iterator[GrowthStep]:
        """The same plan, and what its latency would be."""
        tell("the same plan at the higher rate")
        bench = self.rerun.bench
        verdict = bench.probe(self.rerun.candidates[0], self.goal, bench.sizes.full)
        missed = [slo for slo in bench.slos if verdict.value_s(slo) > slo.limit_s]
        said = ", ".join(f"{slo.name} = {human_s(verdict.value_s(slo))}" for slo in missed)
        if not verdict.stable:
            yield GrowthStep("objective", "looser objectives on the same plan", None, None, False, "the queue grows")
        elif missed:
            limits = ",".join(f"{slo.name}={seconds_text(_up(verdict.value_s(slo)))}" for slo in missed)
            yield GrowthStep("objective", f"accept {limits} on the same plan", self.plan.usd_per_hour, 0.0, True, said)
        else:
            words = "nothing: the same plan holds it with this seed"
            yield GrowthStep("objective", words, self.plan.usd_per_hour, 0.0, True)

    def precision(self, tell: ProgressCallback) -> Iterator[GrowthStep]:
        """Narrower weights on the same hardware, the first that do it."""
        text, world = str(self.plan.deployment["hardware"]), self._own_world()
        searched = {c.weight_dtype for c in candidates(world.request, world.names)}
        for dtype in (d for d in NARROWER if d not in searched):
            tell(f"{dtype} weights")
            found = self._first(text, (dtype,), world)
            words = f"{dtype} weights" + (f": {found}" if found else "")
            note = "answer quality differs: check it"
            yield GrowthStep("precision", words, self.plan.usd_per_hour, 0.0, found is not None, note)
            if found:
                return

    def _own_world(self) -> SimulatedEvaluator:
        """Of exactly the hardware of the plan, which may be a part of what was named."""
        world, own = self.rerun.world_of(0), self._own
        return world if world.names.hardware.text == own.text else world.elsewhere(own)

    @property
    def _own(self) -> Hardware:
        return self.rerun.candidates[0].hardware

    def hardware(self, tell: ProgressCallback) -> Iterator[GrowthStep]:
        """Larger numbers of the same, and other accelerators, by price; of each the first that does it."""
        done: set[str] = set()
        for hardware, usd in self._offers():
            text, name = hardware.text, hardware.accelerator.name
            if name in done:
                continue
            tell(text)
            try:
                found = self._first(text, (), self.rerun.world_of(0).elsewhere(hardware))
            except InputError:
                continue
            extra = None if usd is None or self.plan.usd_per_hour is None else usd - self.plan.usd_per_hour
            words = f"{text}: {found}" if found else text
            yield GrowthStep("hardware", words, usd, extra, found is not None)
            if found:
                done.add(name)
            if len(done) == ENOUGH:
                return

    def _offers(self) -> list[tuple[Hardware, float | None]]:
        """(hardware, dollars per hour), the cheapest first; more of the same comes before others of its price."""
        priced: list[tuple[Hardware, float | None]] = []
        for hardware in dict.fromkeys([*_more(self._own), *_others(self._own)]):
            price = self.rerun.prices.of_other(hardware).price(hardware)
            priced.append((hardware, None if price is None else price.usd_per_hour))
        most = MOST_DEARER * (self.plan.usd_per_hour or float("inf"))
        kept = [(hardware, usd) for hardware, usd in priced if usd is None or usd <= most]
        return sorted(kept, key=lambda item: float("inf") if item[1] is None else item[1])

    def _first(self, hardware: str, precisions: tuple[str, ...], world: Evaluator) -> str | None:
        """The first of the fastest candidates with default limits that holds the goal, in words."""
        request = without_load(self.rerun.request).replace(hardware=hardware, objective="throughput")
        request = request.replace(precisions=precisions or self.rerun.request.precisions)
        plain: dict[object, Candidate] = {}
        for c in candidates(request, world.names):
            plain.setdefault(c.placement, c)
        left = [c for c in plain.values() if world.discard(c) is None]
        left.sort(key=lambda c: -world.fluid_requests_per_s(c))
        bench = replace(self.rerun.bench, evaluator=world, requests_per_s=self.goal)
        measure = Measure(world, bench, self.rerun.prices)
        for candidate in left[:MOST_TRIES]:
            quick = bench.probe(candidate, self.goal, bench.sizes.quick)
            if not quick.hopeless and measure.holds(candidate, self.goal):
                return candidate.words
        return None


def _up(value_s: float) -> float:
    """A tenth more, to two digits: a limit with room."""
    return float(f"{value_s * 1.1:.2g}")


def _more(own: Hardware) -> Iterator[Hardware]:
    """Larger numbers of the same accelerator. Slices and this machine have none here."""
    if own.text == "local" or own.accelerator.is_slice:
        return
    count, most = own.accelerators_per_node, own.node.max_accelerators
    if own.n_nodes == 1:
        yield from (with_count(own, n) for n in range(count + 1, most + 1) if n in (2, 3, 4, 6, 8, 16))
    yield from (with_nodes(with_count(own, most), n) for n in (2, 3, 4) if n > own.n_nodes)


def _others(own: Hardware) -> Iterator[Hardware]:
    """As many of other accelerators, and half and twice as many."""
    if own.text == "local":
        return
    for name in (n for n in OTHERS if n != own.accelerator.name):
        other = parse_hardware(name)
        most = other.node.max_accelerators
        total = own.n_accelerators
        for n in (total // 2, total, 2 * total):
            if 1 <= n <= most:
                yield with_count(other, n)
            elif n and n % most == 0:
                yield with_nodes(with_count(other, most), n // most)
