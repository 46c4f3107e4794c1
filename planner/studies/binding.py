"""What binds a plan: the input whose improvement by 10 % raises the capacity most, found by simulation.

The plan is simulated again for every input of `planner.studies.capacity_inputs`, with the same requests and run lengths
(common random numbers), and its capacity is bisected. A resource that is busy need not bind: a step may be bound by
memory bandwidth all the time while the API server limits the rate.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from catalogs.ui.progress import ProgressCallback
from catalogs.ui.words import percent
from planner.evaluation.capacity import Capacity, V, find_capacity
from planner.evaluation.evaluator import Evaluator
from planner.evaluation.run_sizes import RunSizes
from planner.evaluation.verdict import Verdict
from planner.search.candidate_tester import CandidateTester
from planner.search.workers import ONE_PROCESS, WorkerPool, run_tasks, silent_in_workers
from planner.studies.capacity_inputs import CapacityInput, capacity_inputs
from planner.studies.rerun import Rerun

#: Every input is improved by this factor. A judgement: large beside the resolution, and small enough that the binding
#: input stays the same.
IMPROVEMENT: Final = 1.1

#: Least requests of a run. In shorter runs a queue that grows slowly is not seen, and a gain near saturation is lost. A
#: judgement of cost.
LEAST_REQUESTS: Final = 4000

#: Relative distance between a rate that meets the objectives and one that does not, at which bisection ends. A
#: judgement: a tenth of the improvement.
RESOLUTION: Final = 0.01

#: Least gain that can be told from none: both capacities have the resolution.
LEAST_GAIN: Final = 2 * RESOLUTION


@dataclass(frozen=True, slots=True)
class CapacityGain:
    """The effect of one improved input on the capacity.

    Attributes:
        input: Name of the input, with the kind of replica if there are two.
        gain: Relative gain of capacity; 0 if it is below the resolution.
        advice: What improves the input in fact.
        binds: Whether no other input gains more, beyond the resolution. Several inputs may tie.
    """

    input: str
    gain: float
    advice: str
    binds: bool = False


@dataclass(frozen=True, slots=True)
class Binding:
    """The gains of all inputs, the largest first, and the capacity of the plan with the same requests."""

    capacity_requests_per_s: float
    gains: tuple[CapacityGain, ...]

    @property
    def binding(self) -> tuple[CapacityGain, ...]:
        """Return the inputs that bind: several if they tie, none if no input alone raises the capacity."""
        return tuple(gain for gain in self.gains if gain.binds)

    @property
    def words(self) -> str:
        """Return what binds, in one sentence."""
        found, more = self.binding, percent(IMPROVEMENT - 1)
        if not found:
            return (
                f"no single input binds: {more} more of any one raises the capacity by less than "
                f"{percent(LEAST_GAIN)}, because several limit it together"
            )
        names, gains = " and ".join(gain.input for gain in found), [round(100 * gain.gain) for gain in found]
        verb, which = ("binds", "it") if len(found) == 1 else ("tie", "any one of them")
        most = f"{max(gains)} %" if min(gains) == max(gains) else f"{min(gains)} to {max(gains)} %"
        return f"{names} {verb}: {more} more of {which} raises the capacity by {most}, the most of all inputs"


def find_binding(
    rerun: Rerun,
    capacity_per_s: float,
    tell: ProgressCallback = lambda _: None,
    workers: WorkerPool = ONE_PROCESS,
) -> Binding | None:
    """Return what binds the recommended plan; takes some seconds.

    Args:
        rerun: The answer.
        capacity_per_s: The capacity of the plan in the answer, with which the search begins.
        tell: Called with a description of each simulation before it starts.
        workers: The processes that simulate the inputs.

    Returns:
        The gains; None if the plan misses an objective even under a light load with this seed.
    """
    tell("the capacity of the plan itself")
    return binding_of(rerun.tester, rerun, list(capacity_inputs(rerun)), capacity_per_s, tell, workers)


def binding_of(
    tester: CandidateTester,
    rerun: Rerun,
    inputs: Sequence[CapacityInput],
    capacity_per_s: float,
    tell: ProgressCallback = lambda _: None,
    workers: WorkerPool = ONE_PROCESS,
) -> Binding | None:
    """Return what binds the recommended plan among some inputs; see `find_binding`."""
    candidate, sizes = rerun.candidates[0], RunSizes(tester.sizes.quick, max(tester.sizes.full, LEAST_REQUESTS))
    plain = replace(tester, evaluator=rerun.evaluator_of(0), sizes=sizes)
    plain = replace(plain, fixed_allowance=plain.allowance(candidate))

    def probe(evaluator: Evaluator, requests_per_s: float) -> Verdict:
        return replace(plain, evaluator=evaluator).probe(candidate, requests_per_s, plain.sizes.full)

    floor = plain.probe(candidate, plain.evaluator.light_requests_per_s(candidate), plain.sizes.quick)
    if not floor.met:
        return None
    base = find_capacity(partial(probe, plain.evaluator), capacity_per_s, floor, RESOLUTION)
    told = silent_in_workers(tell)

    def gain(each: CapacityInput) -> CapacityGain:
        told(f"{percent(IMPROVEMENT - 1)} more of {each.words}")
        evaluator = each.improved(IMPROVEMENT)
        return CapacityGain(each.words, gain_of(base, partial(probe, evaluator)), each.advice)

    return Binding(base.requests_per_s, ranked(run_tasks(workers.map, [partial(gain, each) for each in inputs])))


def gain_of(base: Capacity[V], probe: Callable[[float], V]) -> float:
    """Return the relative gain of capacity; 0 if a rate that the plan misses is missed with the improvement too."""
    above = probe(base.upper_requests_per_s)
    if not above.met:
        return 0.0
    found = find_capacity(probe, base.requests_per_s * IMPROVEMENT, above, RESOLUTION)
    return found.requests_per_s / base.requests_per_s - 1.0


def ranked(gains: Sequence[CapacityGain]) -> tuple[CapacityGain, ...]:
    """Return the gains, the largest first; of those that can be told from none, the largest ones bind."""
    most = max((gain.gain for gain in gains), default=0.0)
    least = max(most - LEAST_GAIN, LEAST_GAIN)
    found = [replace(gain, binds=gain.gain >= least) for gain in gains]
    return tuple(sorted(found, key=lambda gain: -gain.gain))
