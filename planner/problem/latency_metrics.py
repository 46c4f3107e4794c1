"""The latency metrics that objectives are set on, each with everything that the planner needs to know about it.

To add a metric, add a `LatencyMetric` to `LATENCY_METRICS` and run `python tools/write_schemas.py`. Objectives,
searches, answers, reports, `plan verify` and `plan drift` loop over that table; the last two leave a metric out that
the load client or the server does not report.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np

from catalogs.arrays import FloatArray, IntArray
from catalogs.deployments.layout import Role

if TYPE_CHECKING:
    from calibration.accuracy.measured_run import MeasuredRun
    from simulator.cluster.run import Run


class RunWindow(Protocol):
    """The part of a finished run that statistics are taken over."""

    @property
    def run(self) -> Run:
        """Return the whole run."""

    def per_request(self, values_s: FloatArray, fewest_output_tokens: int = 1) -> FloatArray:
        """Return the values of the requests in the window that have at least so many output tokens, in seconds.

        `values_s` has shape (n,), one value per request of the run. A value that is NaN, because its request was never
        served so far, becomes infinite.
        """

    def token_gaps_s(self) -> FloatArray:
        """Return equally likely gaps between two tokens of a request, in seconds. Shape (gaps,)."""


@dataclass(frozen=True, slots=True)
class LeastTimes:
    """The least times that any schedule needs, in seconds, from which floors are computed.

    `prefill_s` and `output_tokens` have shape (n,), one value per request.
    """

    prefill_s: FloatArray
    decode_step_s: float
    output_tokens: IntArray


@dataclass(frozen=True, slots=True)
class ExpectedTimes:
    """The times that a queueing model expects under a load, in seconds, from which guesses are computed."""

    first_token_s: Callable[[float | None], float]  # takes a quantile as a share in 0..1, or None for the mean
    step_s: float
    output_tokens: float
    other_prefill_s: float = 0.0  # prefill on replicas that the queueing model does not cover


def _not_reported(_run: MeasuredRun) -> FloatArray:
    """Return no samples: load clients do not report the metric, so `plan verify` leaves it out with a note."""
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
    measured: Callable[[MeasuredRun], FloatArray] = _not_reported  # finite samples from a load client's result
    histograms: tuple[str, ...] = ()  # names that vLLM has given its Prometheus histogram, the newest first
    samples_called: str = "requests"  # what the samples are; costly to collect unless they are requests
    always_plotted: bool = False  # in reports also where no objective is set on it
    relieving_tokens: int = 0  # fewer (-1) or more (1) batched tokens in a step shorten it; 0: neither does by itself
    in_every_answer: bool = False  # False: answers of former versions, or without objectives on it, lack it

    @property
    def key(self) -> str:
        """Return the key of its statistics in JSON documents."""
        return f"{self.name}_s"

    @property
    def is_per_request(self) -> bool:
        """Return whether each request has one value."""
        return self.samples_called == "requests"

    def involves(self, role: Role) -> bool:
        """Return whether time on replicas of `role` is part of this latency."""
        return role == "both" or role in self.pools

    def is_only_of(self, role: Role) -> bool:
        """Return whether replicas of `role` alone determine this latency."""
        return role == "both" or self.pools == (role,)


TTFT: Final = LatencyMetric(
    name="ttft",
    words="time to first token",
    title="time to first token",
    pools=("prefill",),
    samples=lambda window: window.per_request(window.run.ttft_s),
    floor=lambda least: least.prefill_s,
    floor_words="the {stat} of prefill alone is {floor}",
    guess=lambda expected, quantile: expected.first_token_s(quantile),
    stated_error="ttft",
    measured=lambda run: run.samples("ttft"),
    histograms=("vllm:time_to_first_token_seconds",),
    always_plotted=True,
    relieving_tokens=1,
    in_every_answer=True,
)

TPOT: Final = LatencyMetric(
    name="tpot",
    words="time per output token",
    title="time per output token",
    pools=("decode",),
    samples=lambda window: window.per_request(window.run.tpot_s, fewest_output_tokens=2),
    floor=lambda least: np.full(1, least.decode_step_s if np.any(least.output_tokens > 1) else 0.0),
    floor_words="one decode step alone is {floor}",
    guess=lambda expected, _: expected.step_s,
    stated_error="tpot",
    measured=lambda run: run.samples("tpot"),
    histograms=("vllm:request_time_per_output_token_seconds",),
    always_plotted=True,
    relieving_tokens=-1,
    in_every_answer=True,
)

#: Its stated error is that of measured gaps, which are known from vLLM 0.11.1 only. For an engine without measured gaps
#: it is that of TPOT, which is the mean gap.
ITL: Final = replace(
    TPOT,
    name="itl",
    words="time between two tokens",
    title="gap between tokens",
    samples=lambda window: window.token_gaps_s(),
    measured=lambda run: run.samples("itl"),
    stated_error="itl",
    histograms=("vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds"),
    samples_called="gaps between two tokens",
    always_plotted=False,
    in_every_answer=False,
)

E2E: Final = LatencyMetric(
    name="e2e",
    words="end-to-end latency",
    title="end-to-end latency",
    pools=("prefill", "decode"),
    samples=lambda window: window.per_request(window.run.e2e_s),
    floor=lambda least: least.prefill_s + (least.output_tokens - 1) * least.decode_step_s,
    floor_words="the {stat} of end-to-end latency in an empty system is {floor}",
    guess=lambda expected, _: (
        expected.first_token_s(None) + max(expected.output_tokens - 1, 0.0) * expected.step_s + expected.other_prefill_s
    ),
    stated_error="e2e",
    measured=lambda run: run.samples("e2e"),
    histograms=("vllm:e2e_request_latency_seconds",),
    in_every_answer=True,
)

#: Every latency metric by its name, in the order of answers, reports and error messages.
LATENCY_METRICS: Final[Mapping[str, LatencyMetric]] = {metric.name: metric for metric in (TTFT, TPOT, ITL, E2E)}
