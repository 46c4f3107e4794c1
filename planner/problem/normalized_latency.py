"""Normalised latencies: the end-to-end latency of a request over its number of tokens.

The latency per output token is that of Yu et al., Orca, OSDI 2022, section 6, and Kwon et al., vLLM, SOSP 2023, section
6.1 ("normalized latency"). The latency per input and output token does not favour short outputs of long prompts. Both
have the relative error of the end-to-end latency, because token counts are exact.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np

from catalogs.arrays import FloatArray
from planner.problem.metric_definition import ExpectedTimes, LatencyMetric, LeastTimes, RunWindow

if TYPE_CHECKING:
    from calibration.accuracy.measured_run import MeasuredRun


def _per_output_token(window: RunWindow) -> FloatArray:
    """Return the seconds per output token of the requests of a window. Shape (n,)."""
    return window.per_request(window.run.e2e_s / window.run.requests.output_tokens)


def _per_token(window: RunWindow) -> FloatArray:
    """Return the seconds per input and output token of the requests of a window. Shape (n,)."""
    requests = window.run.requests
    return window.per_request(window.run.e2e_s / (requests.input_tokens + requests.output_tokens))


def _least_e2e_s(least: LeastTimes) -> FloatArray:
    """Return the least end-to-end time of each request, seconds. Shape (n,)."""
    return least.prefill_s + (least.output_tokens - 1) * least.decode_step_s


def _expected_e2e_s(expected: ExpectedTimes) -> float:
    """Return the expected end-to-end time of a request with the mean lengths, seconds."""
    decoding_s = max(expected.output_tokens - 1, 0.0) * expected.step_s
    return expected.first_token_s(None) + decoding_s + expected.other_prefill_s


def _measured(run: MeasuredRun, tokens: FloatArray) -> FloatArray:
    """Return the finite end-to-end times over the tokens of the same requests, seconds. Shape (any,)."""
    values = run.e2e_s / np.where(tokens > 0, tokens, np.nan)
    return values[np.isfinite(values)]


NORMALIZED: Final = LatencyMetric(
    name="normalized",
    words="end-to-end latency per output token",
    title="end-to-end latency per output token",
    pools=("prefill", "decode"),
    samples=_per_output_token,
    floor=lambda least: _least_e2e_s(least) / least.output_tokens,
    floor_words="the {stat} of end-to-end latency per output token in an empty system is {floor}",
    guess=lambda expected, _: _expected_e2e_s(expected) / max(expected.output_tokens, 1.0),
    stated_error="e2e",
    measured=lambda run: _measured(run, run.output_tokens),
)

NORMALIZED_TOTAL: Final = replace(
    NORMALIZED,
    name="normalized_total",
    words="end-to-end latency per input and output token",
    title="end-to-end latency per input and output token",
    samples=_per_token,
    floor=lambda least: _least_e2e_s(least) / (least.input_tokens + least.output_tokens),
    floor_words="the {stat} of end-to-end latency per input and output token in an empty system is {floor}",
    guess=lambda expected, _: _expected_e2e_s(expected) / max(expected.input_tokens + expected.output_tokens, 1.0),
    measured=lambda run: _measured(run, run.input_tokens + run.output_tokens),
)
