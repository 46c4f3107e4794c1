"""The inputs that determine the capacity of a plan of a network, and what binds: the one that raises it most.

The definition is that of plans of language models (`planner/studies/binding.py`): each input is improved by 10 %, the
plan is simulated again with the same jobs, and its capacity is bisected. One row is one input.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from catalogs.ui.progress import ProgressCallback
from catalogs.ui.words import percent
from planner.evaluation.capacity import find_capacity
from planner.networks.candidate import JobCandidate
from planner.networks.evaluation import JobEvaluator, JobVerdict
from planner.networks.job_assessor import JobAssessor
from planner.studies.binding import IMPROVEMENT, RESOLUTION, Binding, CapacityGain, gain_of, ranked
from planner.studies.capacity_inputs import ARRIVALS, COMPUTE, FIXED, HOST, LINK, MEMORY
from simulator.networks.job import JobPrice, Resource

BATCH: Final = "jobs of a batch"

#: Most jobs of a run of a counterfactual. A judgement of cost: the runs are only compared with each other.
_MOST_JOBS: Final = 8_000

#: Resources of a job: its name as an input, what improves it in fact, and whether it matters for several ranks only.
_RESOURCES: Final[tuple[tuple[Resource, str, str], ...]] = (
    ("compute", COMPUTE, "use an accelerator with more arithmetic, or a narrower number format"),
    ("memory", MEMORY, "use an accelerator with more memory bandwidth, or fuse kernels (compiled, TensorRT)"),
    ("fixed", FIXED, "let each batch do more, or fuse kernels (compiled, TensorRT)"),
    ("host", HOST, "use a host with faster cores, CUDA graphs or TensorRT, or larger batches"),
    ("link", LINK, "use faster links, or fewer accelerators for each job"),
)


@dataclass(frozen=True, slots=True)
class NetworkInput:
    """An input: its name, what improves it in fact, and the plan with the input improved by a factor."""

    name: str
    advice: str
    improved: Callable[[float], tuple[JobEvaluator, JobCandidate]]


def network_inputs(evaluator: JobEvaluator, candidate: JobCandidate) -> Iterator[NetworkInput]:
    """Yield the inputs of a candidate."""

    def priced(resource: Resource, factor: float) -> tuple[JobEvaluator, JobCandidate]:
        def change(price: JobPrice) -> JobPrice:
            return price.improved(resource, factor)

        return evaluator.with_(service=replace(evaluator.service, change=change, _prices={})), candidate

    def larger(factor: float) -> tuple[JobEvaluator, JobCandidate]:
        return evaluator, replace(candidate, max_batch=round(factor * candidate.max_batch))

    def smoother(factor: float) -> tuple[JobEvaluator, JobCandidate]:
        return evaluator.with_(burstiness=1.0 / factor), candidate

    for resource, name, advice in _RESOURCES:
        if resource != "link" or candidate.setup.ranks > 1:
            yield NetworkInput(name, advice, partial(priced, resource))
    if round(IMPROVEMENT * candidate.max_batch) > candidate.max_batch:
        yield NetworkInput(BATCH, "raise max_batch, which needs memory and a looser limit", larger)
    advice = "smooth the arrivals (a queue or a rate limit before the replicas), or share one queue among more replicas"
    yield NetworkInput(ARRIVALS, advice, smoother)


def find_network_binding(
    assessor: JobAssessor, candidate: JobCandidate, capacity_per_s: float, tell: ProgressCallback
) -> Binding | None:
    """Return what binds a candidate; None if it misses an objective even under a light load.

    Args:
        assessor: Measures the candidate.
        candidate: The candidate.
        capacity_per_s: Its capacity, with which the search begins.
        tell: Called with a description of each simulation before it starts.
    """
    plain = assessor.evaluator.with_(most_jobs=_MOST_JOBS)
    tell("the capacity of the plan itself")
    floor = plain.verdict(candidate, JobAssessor(assessor.request, plain).light_per_s(candidate))
    if not floor.met:
        return None
    base = find_capacity(partial(plain.verdict, candidate), capacity_per_s, floor, RESOLUTION)
    gains = []
    for each in network_inputs(plain, candidate):
        tell(f"{percent(IMPROVEMENT - 1)} more of {each.name}")
        evaluator, changed = each.improved(IMPROVEMENT)
        probe: Callable[[float], JobVerdict] = partial(evaluator.verdict, changed)
        gains.append(CapacityGain(each.name, gain_of(base, probe), each.advice))
    return Binding(base.requests_per_s, ranked(gains))
