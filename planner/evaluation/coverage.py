"""What is measured of the operators that a model runs, on hardware of which only some families were measured."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from calibration.operators.cost import ROOFLINE
from planner.evaluation.simulated import SimulatedEvaluator
from planner.problem.candidate import Candidate
from simulator.cluster.compiled import SAMPLE_STEP
from simulator.layers.shard import Shard
from simulator.layers.step import step_calls

_FAMILY_WORDS: Final = {"gemm": "products", "moe": "experts"}

NOTHING_MEASURED: Final = (
    "nothing measured for the data types and sizes of this model, roofline estimates that are too optimistic by an "
    "unknown amount"
)


def measured_words(evaluator: SimulatedEvaluator) -> str:
    """Return what is measured of the operators of the candidates, in words, where not all families were measured.

    A family counts with the data types and sizes that the model has in some precision and layout, as in the evidence
    of a plan, and not because other models of the same hardware have measured rows of it.
    """
    kinds: dict[object, Candidate] = {}
    for candidate in evaluator.space():
        kinds.setdefault((candidate.weight_dtype, candidate.layout), candidate)
    found: dict[str, list[bool]] = {}
    for candidate in kinds.values():
        if evaluator.discard(candidate) is None:
            for family, known in _measured(evaluator, candidate):
                found.setdefault(family, []).append(known)
    names = [name for name in _FAMILY_WORDS if any(found.get(name, []))]
    if not names:
        return NOTHING_MEASURED
    everywhere = all(all(found[name]) for name in names)
    words = " and ".join(_FAMILY_WORDS[name] for name in names)
    where = "" if everywhere else " for some of the data types and layouts of this model"
    return f"{words} measured{where}, all else roofline estimates"


def _measured(evaluator: SimulatedEvaluator, candidate: Candidate) -> Iterator[tuple[str, bool]]:
    """Yield the family of each operator of a candidate, and whether its time is measured or interpolated."""
    compiled = evaluator.deployments.compiled(candidate)
    for call in step_calls(Shard.of(compiled.resolved), SAMPLE_STEP):
        yield call.op.family, float(compiled.bundle.cost(call.op).origin.min()) < ROOFLINE
