"""Statistics of the requests of a workload, from a drawn sample: lengths and the variability of arrivals."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Self

import numpy as np
import numpy.typing as npt

from catalogs.arrays import FloatArray
from catalogs.errors import InputError
from catalogs.io.json_block import JsonBlock
from catalogs.models.media_items import MediaLayout
from catalogs.workloads.length_statistics import LengthStatistics, TokenStatistics
from catalogs.workloads.replay import Replay
from catalogs.workloads.request_set import RequestSet
from catalogs.workloads.synthetic import SyntheticWorkload
from catalogs.workloads.workload import Workload
from planner.problem.load_curve import steady
from planner.problem.request import PlanRequest

#: Requests drawn to estimate the lengths of a workload.
SAMPLE_REQUESTS: Final = 2000


@dataclass(frozen=True, slots=True)
class WorkloadStatistics:
    """Lengths of a workload's requests, tokens.

    Attributes:
        sample: The drawn requests.
        longest: Most input and output tokens of one request together.
        input_mean: Mean prompt length.
        output_mean: Mean output length.
        variability: Sum of the squared coefficients of variation of the gaps between arrivals and of prompt lengths.
        media: Mean number of items of a request by what they become, if all were different.
    """

    sample: RequestSet
    longest: int
    input_mean: float
    output_mean: float
    variability: float
    media: Mapping[MediaLayout, float] = field(default_factory=dict)
    _input_quantiles: dict[float, float] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def of(cls, workload: Workload, seed: int) -> WorkloadStatistics:
        """Return the statistics of a sample drawn with this seed."""
        sample = workload.materialise(seed=seed, n_requests=SAMPLE_REQUESTS)
        total = sample.input_tokens + sample.output_tokens
        means = float(sample.input_tokens.mean()), float(sample.output_tokens.mean())
        variability = _cv2(np.diff(np.sort(sample.arrival_s))) + _cv2(sample.input_tokens)
        return cls(sample, int(total.max()), *means, variability, _media_means(sample))

    def input_at(self, quantile: float) -> float:
        """Return the prompt length at this quantile, tokens; the result is cached."""
        if quantile not in self._input_quantiles:
            self._input_quantiles[quantile] = float(np.quantile(self.sample.input_tokens, quantile))
        return self._input_quantiles[quantile]


def _media_means(sample: RequestSet) -> dict[MediaLayout, float]:
    """Return the mean number of items of a request by what they become; items that repeat count once."""
    media = sample.media
    if media is None or not sample.n:
        return {}
    seen = {(item.layout, item.content) for i in range(sample.n) for item in media.of_request(i)}
    found = Counter(layout for layout, _ in seen)
    return {layout: n / sample.n for layout, n in found.items()}


def _cv2(values: FloatArray | npt.NDArray[np.int64]) -> float:
    """Return the squared coefficient of variation of values of shape (n,)."""
    mean = float(values.mean()) if len(values) else 0.0
    return float(values.var()) / mean**2 if mean > 0 else 0.0


def open_loop(workload: Workload) -> Workload:
    """Return the workload if its arrivals have a rate that can be scaled.

    Raises:
        InputError: The workload is a closed loop, or all its requests arrive at once.
    """
    if workload.closed_loop or not workload.content.has_rate:
        rule = f"planning needs an arrival rate, and workload {workload.name} has none (closed loop or all at once)"
        turns = content.turns if isinstance(content := workload.content, SyntheticWorkload) else None
        raise InputError(rule, None, "--agents N" if turns and turns.gap_s else "arrivals: {poisson: {}}")
    return workload


def workload_of(request: PlanRequest, given: Workload | None = None) -> Workload:
    """Return the workload of a request for an evaluator: at a constant rate, even if the load changes with time.

    Conversations are in a steady state too: at any time some begin, and others are at one of their turns. Runs that are
    shorter than a trace come from anywhere in it, at the rate that they are drawn for (`in_pieces`).

    Args:
        request: The request.
        given: Replaces the workload of the request.

    Raises:
        InputError: The workload is unknown or has no rate.
    """
    found = given or in_pieces(with_steady_sessions(open_loop(request.read_workload())))
    return steady(found) if request.over_time else found


def in_pieces(workload: Workload) -> Workload:
    """Return the workload with runs of any part of its trace, so that seeds differ and runs have their own rate.

    The first requests of a trace may be fewer in an hour, or of other lengths, than those of the whole trace.
    """
    content = workload.content
    return replace(workload, content=replace(content, pieces=True)) if isinstance(content, Replay) else workload


def with_steady_sessions(workload: Workload) -> Workload:
    """Return the workload with sessions in a steady state, so that its runs have the rate that they are drawn for."""
    content = workload.content
    if not isinstance(content, SyntheticWorkload) or content.turns is None:
        return workload
    return replace(workload, content=replace(content, steady_sessions=True))


class TokenBlock(JsonBlock):
    """Statistics of prompt lengths or of output lengths, tokens."""

    mean: float
    p50: float
    p95: float
    p99: float
    max: float


class WorkloadBlock(JsonBlock):
    """The workload of a request, with the statistics of its lengths."""

    name: str
    source: str
    input_tokens: TokenBlock
    output_tokens: TokenBlock

    @classmethod
    def of(cls, workload: Workload) -> Self:
        """Return the block of a workload."""
        return cls.model_validate({"name": workload.name, "source": workload.source, **workload.lengths().block()})

    @property
    def words(self) -> str:
        """Return the name and the lengths in words: "azure-conv (mean 1,150 in, 211 out; p95 4,083 in, 451 out)"."""
        sides = (TokenStatistics(**side.model_dump()) for side in (self.input_tokens, self.output_tokens))
        return f"{self.name} ({LengthStatistics(*sides).words})"
