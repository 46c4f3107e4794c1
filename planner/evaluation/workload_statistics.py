"""What the requests of a workload look like: lengths and how unevenly they arrive, from a drawn sample."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from catalogs.arrays import FloatArray
from catalogs.errors import InputError
from catalogs.workloads.request_set import RequestSet
from catalogs.workloads.workload import Workload, load_workload
from planner.problem.load_curve import steady
from planner.problem.request import PlanRequest

#: Requests drawn to know the lengths of a workload.
_N_SAMPLE: Final = 2000


@dataclass(frozen=True, slots=True)
class WorkloadStatistics:
    """Lengths of a workload's requests, tokens.

    longest: input and output of one request together. variability: squared coefficients of variation of the gaps
    between arrivals and of prompt lengths, added.
    """

    sample: RequestSet
    longest: int
    input_mean: float
    output_mean: float
    variability: float

    @classmethod
    def of(cls, workload: Workload, seed: int) -> WorkloadStatistics:
        """Of a sample drawn with this seed."""
        sample = workload.materialise(seed=seed, n_requests=_N_SAMPLE)
        total = sample.input_tokens + sample.output_tokens
        means = float(sample.input_tokens.mean()), float(sample.output_tokens.mean())
        variability = _cv2(np.diff(np.sort(sample.arrival_s))) + _cv2(sample.input_tokens)
        return cls(sample, int(total.max()), *means, variability)

    def input_at(self, quantile: float) -> float:
        """Tokens of the prompt at this quantile of lengths."""
        return float(np.quantile(self.sample.input_tokens, quantile))


def _cv2(values: FloatArray | npt.NDArray[np.int64]) -> float:
    """The squared coefficient of variation. Shape (n,)."""
    mean = float(values.mean()) if len(values) else 0.0
    return float(values.var()) / mean**2 if mean > 0 else 0.0


def open_loop(workload: Workload) -> Workload:
    """The workload, if its arrivals have a rate that can be scaled. Raises InputError otherwise."""
    if workload.closed_loop or not workload.content.has_rate:
        rule = f"planning scales a rate of arrivals, and workload {workload.name} has none (closed loop or all at once)"
        raise InputError(rule, None, "arrivals: {poisson: {}}")
    return workload


def workload_of(request: PlanRequest, given: Workload | None = None) -> Workload:
    """The workload of a request as an evaluator draws from it: at one rate, also where the load changes with time.

    given: instead of the request's own. Raises InputError for one that is unknown or has no rate.
    """
    found = given or open_loop(load_workload(request.workload))
    return steady(found) if request.over_time else found
