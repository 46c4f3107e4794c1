"""What a latency metric is: its names, and how each part of the planner obtains its values.

A metric on a condition, such as the end-to-end latency of requests with fewer than 1,000 input tokens, is derived from
the metric of all requests (`LatencyMetric.where`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

import numpy as np

from catalogs.arrays import BoolArray, FloatArray, IntArray
from catalogs.deployments.layout import Role
from catalogs.errors import InputError
from planner.problem.length_condition import LengthCondition

if TYPE_CHECKING:
    from calibration.accuracy.measured_run import MeasuredRun
    from simulator.cluster.run import Run


class RunWindow(Protocol):
    """The part of a finished run that statistics are taken over."""

    @property
    def run(self) -> Run:
        """Return the run that the window is a part of."""

    def per_request(self, values_s: FloatArray, where: BoolArray | None = None) -> FloatArray:
        """Return the values of the requests in the window for which `where` holds (None: all of them), in seconds.

        Both arrays have shape (n,), one value per request of the run. A value that is NaN, because its request
        never got that far, becomes infinite.
        """

    def token_gaps_s(self) -> FloatArray:
        """Return equally likely gaps between two tokens of a request, in seconds. Shape (gaps,)."""


@dataclass(frozen=True, slots=True)
class LeastTimes:
    """The least times that any schedule needs, in seconds, from which floors are computed.

    `prefill_s`, `input_tokens` and `output_tokens` have shape (n,), one value per request.
    """

    prefill_s: FloatArray
    decode_step_s: float
    input_tokens: IntArray
    output_tokens: IntArray

    def where(self, condition: LengthCondition) -> LeastTimes:
        """Return the least times of the requests that fulfil a condition."""
        held = condition.holds(self.input_tokens, self.output_tokens)
        return LeastTimes(self.prefill_s[held], self.decode_step_s, self.input_tokens[held], self.output_tokens[held])


@dataclass(frozen=True, slots=True)
class ExpectedTimes:
    """The times that a queueing model expects under a load, in seconds, from which guesses are computed."""

    first_token_s: Callable[[float | None], float]  # takes a quantile as a share in 0..1, or None for the mean
    step_s: float
    input_tokens: float  # the mean of a request
    output_tokens: float  # the mean of a request
    other_prefill_s: float = 0.0  # prefill on replicas that the queueing model does not cover


def not_reported(_run: MeasuredRun) -> FloatArray:
    """Return no samples, of shape (0,): load clients do not report the metric, so `plan verify` leaves it out."""
    return np.empty(0)


@dataclass(frozen=True, slots=True)
class LatencyMetric:
    """A latency metric: what it is called, and how each part of the planner obtains its values. Times in seconds."""

    name: str  # in objectives; JSON keys append "_s"
    words: str  # in sentences about one request
    title: str  # of charts and their axes
    pools: tuple[Role, ...]  # roles of a disaggregated deployment that contribute to it
    samples: Callable[[RunWindow], FloatArray]  # from a simulated run
    floor: Callable[[LeastTimes], FloatArray]  # a safe lower bound of the samples
    floor_words: str  # why a floor rules a candidate out, with the fields {floor} and {stat}
    guess: Callable[[ExpectedTimes, float | None], float]  # a closed-form estimate of a quantile, None for the mean
    stated_error: str  # the statistic of `calibration.accuracy.stated_error` whose error applies
    measured: Callable[[MeasuredRun], FloatArray] = not_reported  # finite samples from a load client's result
    histograms: tuple[str, ...] = ()  # names that vLLM has given its Prometheus histogram, the newest first
    samples_called: str = "requests"  # what the samples are; costly to collect unless they are requests
    always_plotted: bool = False  # in reports also where no objective is set on it
    relieving_tokens: int = 0  # fewer (-1) or more (1) batched tokens in a step shorten it; 0: neither does by itself
    in_every_answer: bool = False  # False: answers of former versions, or without objectives on it, lack it
    condition: LengthCondition | None = None  # on the requests that count; None: all requests

    @property
    def key(self) -> str:
        """Return the key of its statistics in JSON documents."""
        return f"{self.name}_s"

    @property
    def is_per_request(self) -> bool:
        """Return whether each request has one value."""
        return self.samples_called == "requests"

    def of_same_requests(self, window: RunWindow, values_s: FloatArray) -> FloatArray:
        """Return other values of the requests that this metric is of, in seconds; see `RunWindow.per_request`.

        `values_s` has shape (n,), one value per request of the run.
        """
        if self.condition is None:
            return window.per_request(values_s)
        return _ConditionedWindow(window, self.condition).per_request(values_s)

    def involves(self, role: Role) -> bool:
        """Return whether time on replicas of `role` is part of this latency."""
        return role == "both" or role in self.pools

    def is_only_of(self, role: Role) -> bool:
        """Return whether replicas of `role` alone determine this latency."""
        return role == "both" or self.pools == (role,)

    def where(self, condition: LengthCondition) -> LatencyMetric:
        """Return this metric of the requests that fulfil a condition.

        Its guess is that of all requests, and no server reports it, because histograms do not know lengths.

        Raises:
            InputError: The metric has no value for each request.
        """
        if not self.is_per_request:
            rule = f"a condition needs a latency of whole requests, and {self.name} is one of {self.samples_called}"
            raise InputError(rule, f"{self.name}[{condition.text}]", "no condition")
        return replace(
            self,
            name=f"{self.name}[{condition.text}]",
            title=f"{self.title} of requests with {condition.words}",
            samples=lambda window: self.samples(_ConditionedWindow(window, condition)),
            floor=lambda least: self.floor(least.where(condition)),
            measured=lambda run: self.measured(run.picked(condition.holds(run.input_tokens, run.output_tokens))),
            histograms=(),
            always_plotted=False,
            in_every_answer=False,
            condition=condition,
        )


@dataclass(frozen=True, slots=True)
class _ConditionedWindow:
    """The requests of another window that fulfil a condition."""

    window: RunWindow
    condition: LengthCondition

    @property
    def run(self) -> Run:
        """Return the run that the window is a part of."""
        return self.window.run

    def per_request(self, values_s: FloatArray, where: BoolArray | None = None) -> FloatArray:
        """Return the values of the requests that fulfil the condition; see `RunWindow`. Both have shape (n,)."""
        requests = self.run.requests
        held = self.condition.holds(requests.input_tokens, requests.output_tokens)
        return self.window.per_request(values_s, held if where is None else held & where)

    def token_gaps_s(self) -> FloatArray:
        """Raise an error, because gaps between tokens are not known by request. Shape (gaps,)."""
        raise NotImplementedError("gaps between tokens are not known by request")
