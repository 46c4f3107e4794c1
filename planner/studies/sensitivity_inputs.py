"""The inputs of an answer that may differ from what was assumed: how far each is changed, and how it is simulated."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from catalogs.ui.words import percent
from planner.answer.answer_schema import Answer
from planner.answer.plan_schema import Plan
from planner.evaluation.evaluator import Evaluator
from planner.evaluation.varied_workload import VariedWorkload
from planner.problem.latency_metrics import TPOT
from planner.studies.rerun import Rerun

#: Factors on most inputs: a fifth less and a quarter more, the error of a good forecast.
SWING: Final = (0.8, 1.25)

#: Factors between which the value at which the choice changes is sought: half and double cover most surprises.
WIDE: Final = (0.5, 2.0)

#: Share of every prompt that the prefix cache holds in the simulated variant.
HALF: Final = 0.5

#: Largest share of every prompt that the prefix cache may hold. A judgement: prompts that hardly differ are another
#: workload.
MOST_SHARED: Final = 0.9

RATE, OUTPUT, PROMPT = "request rate", "output length", "prompt length"

PREFIX, HOST, STEP, PRICE = "prefix hits", "host overhead", "step time", "price"


@dataclass(frozen=True, slots=True)
class InputChange:
    """One input with a changed value.

    Attributes:
        name: Name of the input.
        change: The change in words, for example "x 0.8".
        value: The changed value of the input.
        evaluator: Evaluator with the change; None if the change does not affect the simulation.
        load: Factor on the request rate.
        price: Factor on the price of the chosen hardware.
        tokens: Factor on the output tokens.
    """

    name: str
    change: str
    value: float
    evaluator: Evaluator | None = None
    load: float = 1.0
    price: float = 1.0
    tokens: float = 1.0

    @property
    def words(self) -> str:
        """Return the input and its change, for example "request rate x 0.8"."""
        return f"{self.name} {self.change}"


@dataclass(frozen=True, slots=True)
class SensitivityInput:
    """One input that can be changed.

    Attributes:
        name: Name of the input.
        at: Its value in the answer.
        swing: A lower and a higher value that are simulated; None if there is no value on this side.
        ends: Lowest and highest value up to which a change of the choice is sought.
        words: Returns a value in words.
        changed: Returns the input with another value.
    """

    name: str
    at: float
    swing: tuple[float | None, float | None]
    ends: tuple[float, float]
    words: Callable[[float], str]
    changed: Callable[[float], InputChange]


def inputs_of(answer: Answer, rerun: Rerun) -> Iterator[SensitivityInput]:
    """Yield the inputs of an answer that can be changed."""
    plan = answer.plans[0]
    yield _factor(RATE, lambda f: InputChange(RATE, times(f), f, load=f))
    yield _factor(OUTPUT, lambda f: _longer(rerun, OUTPUT, f))
    yield _factor(PROMPT, lambda f: _longer(rerun, PROMPT, f))
    if plan.deployment.get("prefix_caching"):
        yield _prefix(plan, rerun)
    yield _factor(HOST, lambda f: InputChange(HOST, times(f), f, rerun.evaluator.with_(host_factor=f)), WIDE)
    span = step_error(plan)
    if span is not None:
        changed = lambda f: InputChange(STEP, relative(f), f, rerun.evaluator.with_(step_factor=f))  # noqa: E731
        yield SensitivityInput(STEP, 1.0, span, span, relative, changed)
    if plan.usd_per_hour is not None:
        yield _factor(PRICE, lambda f: InputChange(PRICE, times(f), f, price=f))


def step_error(plan: Plan) -> tuple[float, float] | None:
    """Return the lowest and highest ratio of the true to the simulated time of a step; None if it is unknown.

    It is the stated error of the time per output token in whole runs, simulated against measured.
    """
    known = plan.calibration
    if known is None:
        return None
    low, high = known.intervals.get(TPOT.stated_error, (-known.expected_error, known.expected_error))
    return (1 + low, 1 + high) if low < high else None


def _factor(name: str, changed: Callable[[float], InputChange], swing: tuple[float, float] = SWING) -> SensitivityInput:
    return SensitivityInput(name, 1.0, swing, WIDE, times, changed)


def _longer(rerun: Rerun, name: str, factor: float) -> InputChange:
    inputs, outputs = (1.0, factor) if name == OUTPUT else (factor, 1.0)
    varied = rerun.evaluator.with_(workload=VariedWorkload.of(rerun.workload, inputs, outputs))
    tokens = varied.of(rerun.candidates[0]).mean_output_tokens / rerun.evaluator_of(0).mean_output_tokens
    return InputChange(name, times(factor), factor, varied, tokens=tokens)


def _prefix(plan: Plan, rerun: Rerun) -> SensitivityInput:
    """Return the share of every prompt that is the same text, from no part of a prompt to nearly all of it."""
    at = min(plan.metric("prefix_hit_fraction") or 0.0, MOST_SHARED)
    swing = 0.0 if at > 0 else None, HALF if at < 0.8 * HALF else MOST_SHARED

    def changed(share: float) -> InputChange:
        varied = rerun.evaluator.with_(workload=VariedWorkload.of(rerun.workload, shared=share))
        return InputChange(PREFIX, of_prompts(share), share, varied)

    return SensitivityInput(PREFIX, at, swing, (0.0, MOST_SHARED), of_prompts, changed)


def times(factor: float) -> str:
    """Return a factor in words, for example "x 0.8"."""
    return f"x {factor:.3g}"


def relative(factor: float) -> str:
    """Return a factor as a relative change, for example "+25 %"."""
    return percent(factor - 1, signed=True)


def of_prompts(share: float) -> str:
    """Return a share of every prompt in words, for example "50 % of every prompt"."""
    return f"{percent(share)} of every prompt"
