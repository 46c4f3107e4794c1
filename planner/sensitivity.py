"""Which input moves the answer most, and where the choice flips: one input changed at a time, simulated again.

Every variant sees the same requests as the answer's search (common random numbers). A capacity found here, with one
seed, is compared with one found the same way without any change, and the ratio applied to the answer's own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from planner.answer_file import AnswerFile, Plan
from planner.assess import TIE, Bench, RunSizes
from planner.candidate import Candidate
from planner.capacity import find_capacity
from planner.observation import Evaluator, Verdict
from planner.rerun import Rerun
from planner.varied import Slower, VariedWorkload, VariedWorld

#: Relative: these capacities are only compared with each other.
CAPACITY_TOLERANCE: Final = 0.03
#: A fifth more or less is what a forecast is off by on a good day; half and double bound most surprises.
SWING: Final = (0.8, 1.25)
WIDE: Final = (0.5, 2.0)

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Variant:
    """One input changed. Factors: `load` of the requests, `price` of the dollars, `tokens` of the output tokens."""

    name: str
    change: str  # "x 0.8"
    factor: float
    world: Evaluator | None = None  # None: simulated as it is
    load: float = 1.0
    price: float = 1.0
    tokens: float = 1.0

    @property
    def words(self) -> str:
        return f"{self.name} {self.change}"


@dataclass(frozen=True, slots=True)
class Effect:
    """What a variant does to the chosen plan. None: no rate holds, or no price is known.

    capacity_requests_per_s and usd_per_million_output_tokens as the answer has them; slo_share: value over limit of the
    tightest objective at the planned rate. rival: index of the plan that would be chosen instead, 0 for none.
    """

    variant: Variant
    capacity_requests_per_s: float | None
    usd_per_million_output_tokens: float | None
    slo_share: float
    holds: bool  # the objectives, at the planned rate
    rival: int


@dataclass(frozen=True, slots=True)
class Input:
    """One input: what a little less and a little more of it does, and at which far ends the choice flips."""

    name: str
    low: Effect | None
    high: Effect | None
    flips: str  # a sentence


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """inputs in a fixed order."""

    inputs: list[Input]


def sensitivity(answer: AnswerFile, rerun: Rerun, tell: Tell = lambda _: None) -> Sensitivity:
    """Simulates some dozens of capacities. tell: called with what is simulated next."""
    return _Study.of(answer, rerun).run(tell)


@dataclass(frozen=True, slots=True)
class _Study:
    answer: AnswerFile
    rerun: Rerun
    plan: Plan
    rate: float  # planned
    base: float  # capacity with one seed, nothing changed

    @classmethod
    def of(cls, answer: AnswerFile, rerun: Rerun) -> _Study:
        plan = answer.plans[0]
        rate = plan.requests_per_s or 0.0
        guess = plan.capacity_requests_per_s or rate
        base = capacity(_shorter(rerun.bench), rerun.candidates[0], guess)
        return cls(answer, rerun, plan, rate, base or guess)

    def run(self, tell: Tell) -> Sensitivity:
        found = []
        for name, variants in self._inputs():
            effects = []
            for variant in variants:
                tell(variant.words)
                effects.append(self._effect(variant))
            found.append(_input(name, effects, self.answer))
        return Sensitivity(found)

    def _inputs(self) -> Iterator[tuple[str, list[Variant]]]:
        error = self.plan.calibration.expected_error if self.plan.calibration else 0.0
        yield "request rate", [Variant("request rate", _times(f), f, load=f) for f in (*SWING, *WIDE)]
        yield "output length", [self._longer("output length", f) for f in (*SWING, *WIDE)]
        yield "prompt length", [self._longer("prompt length", f) for f in (*SWING, *WIDE)]
        yield "prefix hits", list(self._shared())
        yield "host overhead", [self._host(f) for f in WIDE]
        if error:
            yield "step time", [self._slower(1 / (1 + error)), self._slower(1 + error)]  # as far as is stated
        if self.plan.usd_per_hour is not None:
            yield "price", [Variant("price", _times(f), f, price=f) for f in SWING]

    def _longer(self, name: str, factor: float) -> Variant:
        inputs, outputs = (1.0, factor) if name == "output length" else (factor, 1.0)
        workload = VariedWorkload.of(self.rerun.world.workload, inputs, outputs)
        world = VariedWorld(self.rerun.world, workload)
        tokens = world.lengths.output_mean / self.rerun.world.lengths.output_mean
        return Variant(name, _times(factor), factor, world, tokens=tokens)

    def _shared(self) -> Iterator[Variant]:
        """Without any hits, where there are some; with half of every prompt shared, where the engine can use it."""
        workload = self.rerun.world.workload
        if (self.plan.metric("prefix_hit_fraction") or 0.0) > 0.0:
            world = VariedWorld(self.rerun.world, VariedWorkload.of(workload, shared=0.0))
            yield Variant("prefix hits", "none", 0.0, world)
        elif self.plan.deployment.get("prefix_caching"):
            world = VariedWorld(self.rerun.world, VariedWorkload.of(workload, shared=0.5))
            yield Variant("prefix hits", "half of every prompt", 2.0, world)

    def _host(self, factor: float) -> Variant:
        world = VariedWorld(self.rerun.world, host_factor=factor)
        return Variant("host overhead", _times(factor), factor, world)

    def _slower(self, factor: float) -> Variant:
        change = f"{100 * (factor - 1):+.1f} %".replace("-", "−")
        return Variant("step time", change, factor, Slower(self.rerun.world, factor))

    def _effect(self, variant: Variant) -> Effect:
        bench, candidate = self._bench(variant), self.rerun.candidates[0]
        at = self.rate * variant.load
        if variant.world is None and variant.load == 1.0:
            found: float | None = self.base
        else:
            found = self.base if variant.world is None else capacity(bench, candidate, self.base)
        verdict = bench.probe(candidate, at, bench.sizes.full)
        ratio = None if found is None else found / self.base
        own = self.plan.capacity_requests_per_s
        scaled = None if ratio is None or own is None else own * ratio
        usd = self._usd(variant, ratio)
        return Effect(variant, scaled, usd, verdict.ratio, verdict.met, self._rival(variant, bench, found, verdict))

    def _bench(self, variant: Variant) -> Bench:
        return replace(_shorter(self.rerun.bench), evaluator=variant.world or self.rerun.world)

    def _usd(self, variant: Variant, ratio: float | None) -> float | None:
        """Dollars per million output tokens at the rate served: what was asked for, at most what still holds."""
        cost = self.plan.cost
        if cost is None or cost.usd_per_million_output_tokens is None or not ratio:
            return None
        own = self.plan.capacity_requests_per_s or self.rate
        if self.answer.request.rate is None:  # as much as holds, and of that the share that the answer plans with
            served = self.rate * ratio * min(variant.load, 1.0)
        else:
            served = min(self.rate * variant.load, own * ratio)
        return cost.usd_per_million_output_tokens * variant.price * self.rate / served / variant.tokens

    def _rival(self, variant: Variant, bench: Bench, found: float | None, verdict: Verdict) -> int:
        """The first alternative that beats the chosen plan by more than a tie; 0 where none does."""
        for i, (plan, candidate) in enumerate(zip(self.answer.alternatives, self.rerun.candidates[1:], strict=True), 1):
            if self._beats(plan, candidate, variant, (bench, found, verdict)):
                return i
        return 0

    def _beats(
        self, plan: Plan, candidate: Candidate, variant: Variant, own: tuple[Bench, float | None, Verdict]
    ) -> bool:
        bench, found, verdict = own
        objective, asked = self.answer.request.objective, self.answer.request.rate
        ours, theirs = self.plan.usd_per_hour, plan.usd_per_hour
        money = theirs / ours if objective == "cost" and ours and theirs else 1.0
        if objective in ("cost", "throughput") and asked is None:
            return found is None or _holds(bench, candidate, found * money * (1 + TIE))
        rate = self.rate * variant.load
        if not verdict.met:
            return _holds(bench, candidate, rate)
        if objective in ("cost", "throughput"):
            return money < 1 - TIE and _holds(bench, candidate, rate)
        other = bench.probe(candidate, rate, bench.sizes.full)
        if objective == "energy":
            return other.met and other.joules_per_output_token < verdict.joules_per_output_token * (1 - TIE)
        return other.met and other.ratio < verdict.ratio * (1 - TIE)


def _shorter(bench: Bench) -> Bench:
    """Runs half as long: ratios of runs of the same requests need fewer of them than their values do."""
    sizes = bench.sizes
    return replace(bench, sizes=RunSizes(sizes.quick, max(sizes.full // 2, 2 * sizes.quick)))


def capacity(bench: Bench, candidate: Candidate, guess_per_s: float) -> float | None:
    """Highest rate that holds with the bench's one seed; None where even a light load does not."""
    floor = bench.probe(candidate, bench.evaluator.light_requests_per_s(candidate), bench.sizes.quick)
    if not floor.met:
        return None
    probe = lambda rate: bench.probe(candidate, rate, bench.sizes.full)  # noqa: E731
    return find_capacity(probe, guess_per_s, floor, CAPACITY_TOLERANCE).requests_per_s


def _holds(bench: Bench, candidate: Candidate, rate: float) -> bool:
    quick = bench.probe(candidate, rate, bench.sizes.quick)
    return not quick.hopeless and bench.probe(candidate, rate, bench.sizes.full).met


def _times(factor: float) -> str:
    return f"x {factor:g}"


def _input(name: str, effects: Sequence[Effect], answer: AnswerFile) -> Input:
    near = [e for e in effects if e.variant.factor not in WIDE or name in ("host overhead", "prefix hits")]
    low = next((e for e in near if e.variant.factor < 1), None)
    high = next((e for e in near if e.variant.factor > 1), None)
    return Input(name, low, high, _flips(name, effects, answer))


def _flips(name: str, effects: Sequence[Effect], answer: AnswerFile) -> str:
    """Where another plan would be chosen, nearest first, or how far none would."""
    alternatives, asked = answer.alternatives, answer.request.rate
    if not alternatives:
        return "no alternative to flip to"
    prices = {plan.usd_per_hour for plan in answer.plans}
    if name == "price" and len(prices) == 1:
        return "none: every plan here is on hardware of the same price"
    flipped = [e for e in sorted(effects, key=lambda e: abs(e.variant.factor - 1)) if e.rival]
    if flipped:
        e = flipped[0]
        return f"flips at {e.variant.words}: alternative {e.rival}"
    broken = [e for e in effects if not e.holds and asked is not None]
    if broken:
        return f"none, but at {broken[0].variant.words} neither this plan nor an alternative holds"
    if name == "request rate" and asked is None:
        return "none: no rate was asked for, the plan is for the highest"
    return "none at " + ", ".join(e.variant.change for e in sorted(effects, key=lambda e: e.variant.factor))
