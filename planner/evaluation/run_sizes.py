"""How many requests the runs of a candidate have, which follows from the objectives and the workload."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from catalogs.errors import InputError
from planner.evaluation.workload_statistics import SAMPLE_REQUESTS, workload_of
from planner.problem.length_condition import LengthCondition
from planner.problem.request import PlanRequest
from planner.problem.slo import Slo


@dataclass(frozen=True, slots=True)
class RunSizes:
    """Simulated requests of a quick run and of a full run: a percentile needs a dozen measured requests beyond it."""

    quick: int
    full: int

    @classmethod
    def for_slos(cls, slos: Sequence[Slo], shares: Mapping[str, float] = MappingProxyType({})) -> RunSizes:
        """Return the sizes that the objective with the fewest requests beyond its percentile needs.

        Args:
            slos: The objectives.
            shares: The share of all requests that a metric is about, by its name, where it has a condition.
        """
        beyond = min([(1 - (s.quantile or 0.0)) * shares.get(s.metric, 1.0) for s in slos] or [1.0])
        full = min(max(1000, round(16 / beyond)), 20_000)
        return cls(max(300, full // 5), full)

    def at_most(self, n: int) -> RunSizes:
        """Return sizes of at most `n` requests: enough if runs are only compared with each other."""
        return RunSizes(min(self.quick, n // 4), min(self.full, n))


def condition_shares(request: PlanRequest, slos: Sequence[Slo] | None = None) -> dict[str, float]:
    """Return the share of the workload's requests that each objective with a condition is about, by its metric.

    Args:
        request: The request.
        slos: The objectives; None: those of the request.

    Raises:
        InputError: No request of the workload fulfils a condition.
    """
    found, conditions = {}, dict[str, LengthCondition]()
    for slo in request.slos if slos is None else slos:
        if slo.latency.condition is not None:
            conditions[slo.metric] = slo.latency.condition
    if not conditions:
        return {}
    workload = workload_of(request)
    sample = workload.materialise(seed=request.seed, n_requests=SAMPLE_REQUESTS)
    inputs, outputs = sample.input_tokens, sample.output_tokens
    for metric, condition in conditions.items():
        found[metric] = float(condition.holds(inputs, outputs).mean())
        if not found[metric]:
            rule = f"no request of workload {workload.name} has {condition.words}"
            lengths = [f"{tokens.min():,} to {tokens.max():,}" for tokens in (inputs, outputs)]
            raise InputError(rule, metric, hint=f"its requests have {lengths[0]} input and {lengths[1]} output tokens")
    return found


def run_sizes(request: PlanRequest, slos: Sequence[Slo] | None = None) -> RunSizes:
    """Return the requests of runs that the objectives of a request need on its workload.

    Args:
        request: The request.
        slos: The objectives; None: those of the request.

    Raises:
        InputError: No request of the workload fulfils the condition of an objective.
    """
    return RunSizes.for_slos(request.slos if slos is None else slos, condition_shares(request, slos))
