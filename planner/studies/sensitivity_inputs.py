"""The inputs of an answer that may turn out otherwise: how far each is turned, and the world that then holds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from planner.answer.plan_schema import Plan
from planner.answer.schema import Answer
from planner.evaluation.evaluator import Evaluator
from planner.evaluation.variants import VariedWorkload
from planner.studies.rerun import Rerun

#: A fifth more or less is what a forecast is off by on a good day; half and double bound most surprises.
SWING: Final = (0.8, 1.25)

WIDE: Final = (0.5, 2.0)

#: Shares of every prompt that the cache may hold: looked at, and at most.
HALF: Final = 0.5

MOST_SHARED: Final = 0.9

RATE, OUTPUT, PROMPT = "request rate", "output length", "prompt length"

PREFIX, HOST, STEP, PRICE = "prefix hits", "host overhead", "step time", "price"


@dataclass(frozen=True, slots=True)
class InputChange:
    """One input changed. Factors: `load` of the requests, `price` of the chosen hardware, `tokens` of the output."""

    name: str
    change: str  # "x 0.8"
    value: float  # where the dial stands
    world: Evaluator | None = None  # None: simulated as it is
    load: float = 1.0
    price: float = 1.0
    tokens: float = 1.0

    @property
    def words(self) -> str:
        return f"{self.name} {self.change}"


@dataclass(frozen=True, slots=True)
class SensitivityInput:
    """One input. at: where it stands in the answer; swing: two values to look at (None: not on this side); ends: how
    far a flip of the choice is looked for."""

    name: str
    at: float
    swing: tuple[float | None, float | None]
    ends: tuple[float, float]
    words: Callable[[float], str]
    turn: Callable[[float], InputChange]


def dials(answer: Answer, rerun: Rerun) -> Iterator[SensitivityInput]:
    """Those that this answer has."""
    plan = answer.plans[0]
    yield _factor(RATE, lambda f: InputChange(RATE, times(f), f, load=f))
    yield _factor(OUTPUT, lambda f: _longer(rerun, OUTPUT, f))
    yield _factor(PROMPT, lambda f: _longer(rerun, PROMPT, f))
    if plan.deployment.get("prefix_caching"):
        yield _prefix(plan, rerun)
    yield _factor(HOST, lambda f: InputChange(HOST, times(f), f, rerun.world.with_(host_factor=f)), WIDE)
    span = step_error(plan)
    if span is not None:
        turn = lambda f: InputChange(STEP, percent(f), f, rerun.world.with_(step_factor=f))  # noqa: E731
        yield SensitivityInput(STEP, 1.0, span, span, percent, turn)  # as far as is stated
    if plan.usd_per_hour is not None:
        yield _factor(PRICE, lambda f: InputChange(PRICE, times(f), f, price=f))


def step_error(plan: Plan) -> tuple[float, float] | None:
    """(least, most) of the true time of a step over the simulated one: how far time per output token was off in whole
    runs compared with measured ones. None where nothing is known."""
    known = plan.calibration
    if known is None:
        return None
    low, high = known.intervals.get("tpot", (-known.expected_error, known.expected_error))
    return (1 + low, 1 + high) if low < high else None


def _factor(name: str, turn: Callable[[float], InputChange], swing: tuple[float, float] = SWING) -> SensitivityInput:
    return SensitivityInput(name, 1.0, swing, WIDE, times, turn)


def _longer(rerun: Rerun, name: str, factor: float) -> InputChange:
    inputs, outputs = (1.0, factor) if name == OUTPUT else (factor, 1.0)
    varied = rerun.world.with_(workload=VariedWorkload.of(rerun.workload, inputs, outputs))
    tokens = varied.of(rerun.candidates[0]).mean_output_tokens / rerun.world_of(0).mean_output_tokens
    return InputChange(name, times(factor), factor, varied, tokens=tokens)


def _prefix(plan: Plan, rerun: Rerun) -> SensitivityInput:
    """From no prompt in the cache to nearly all of each; the values are shares of every prompt that is one text."""
    at = min(plan.metric("prefix_hit_fraction") or 0.0, MOST_SHARED)
    none = 0.0 if at > 0 else None
    more = HALF if at < 0.8 * HALF else MOST_SHARED

    def turn(share: float) -> InputChange:
        varied = rerun.world.with_(workload=VariedWorkload.of(rerun.workload, shared=share))
        return InputChange(PREFIX, of_prompts(share), share, varied)

    return SensitivityInput(PREFIX, at, (none, more), (0.0, MOST_SHARED), of_prompts, turn)


def times(factor: float) -> str:
    return f"x {factor:.3g}"


def percent(factor: float) -> str:
    return f"{100 * (factor - 1):+.0f} %".replace("-", "−")


def of_prompts(share: float) -> str:
    return f"{100 * share:.0f} % of prompts"
