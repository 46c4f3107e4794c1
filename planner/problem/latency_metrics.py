"""The latency metrics that objectives are set on, each with everything that the planner needs to know about it.

To add a metric, define a `LatencyMetric` in a file of its own, list it in `LATENCY_METRICS` and run
`python tools/write_schemas.py`. Objectives, searches, answers, reports, `plan verify` and `plan drift` loop over that
table; the last two leave a metric out that the load client or the server does not report.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final

import numpy as np

from catalogs.arrays import FloatArray, IntArray
from catalogs.errors import InputError
from planner.problem.length_condition import LengthCondition
from planner.problem.metric_definition import LatencyMetric, RunWindow, not_reported
from planner.problem.normalized_latency import NORMALIZED, NORMALIZED_TOTAL

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
    samples=lambda window: window.per_request(window.run.tpot_s, window.run.requests.output_tokens > 1),
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


def _grouped_s(window: RunWindow, groups: IntArray | None) -> FloatArray:
    """Return the seconds of each session or task of a run that is completed; empty without such. Shape (groups,)."""
    from simulator.analysis.sessions import grouped_times  # imported here: an objective is stated without a simulator

    run = window.run
    return np.empty(0) if groups is None or run.requests.graph is None else grouped_times(run, groups)[0]


#: From the first request of a session to the end of its last, with the times of tools and humans in between. Its error
#: is that of the end-to-end latency: if steps take a factor longer, requests do, and tools and humans do not.
#: A session has at least one request, so the floor and the guess are those of a request.
SESSION: Final = replace(
    E2E,
    name="session",
    words="session time",
    title="time of a session",
    samples=lambda window: _grouped_s(window, window.run.requests.sessions),
    floor_words="the {stat} of session time in an empty system is {floor}",
    measured=not_reported,
    histograms=(),
    samples_called="session times",
    in_every_answer=False,
)

#: What an agent does from one request of a human to the next, without the time of the human.
TASK: Final = replace(
    SESSION,
    name="task",
    words="task time",
    title="time of a task",
    samples=lambda window: _grouped_s(window, window.run.requests.tasks),
    floor_words="the {stat} of task time in an empty system is {floor}",
    samples_called="task times",
)

#: The metrics that need agents: a load of sessions whose requests wait for each other.
OF_SESSIONS: Final = (SESSION.name, TASK.name)


class LatencyMetrics(Mapping[str, LatencyMetric]):
    """Latency metrics by name; a name such as "e2e[in<1k]" gives the metric of the requests that fulfil the condition.

    Iteration yields only the metrics of all requests.
    """

    def __init__(self, *metrics: LatencyMetric) -> None:
        self._metrics = {metric.name: metric for metric in metrics}
        self._conditioned: dict[str, LatencyMetric] = {}

    def __getitem__(self, name: str) -> LatencyMetric:
        """Return a metric by its name.

        Raises:
            KeyError: There is no such metric, or the condition is not valid.
        """
        found = self._metrics.get(name) or self._conditioned.get(name)
        if found is not None:
            return found
        metric, bracket, condition = str(name).partition("[")
        if not bracket or not condition.endswith("]"):
            raise KeyError(name)
        try:
            found = self._metrics[metric].where(LengthCondition.parse(condition[:-1]))
        except InputError as error:
            raise KeyError(name) from error
        return self._conditioned.setdefault(name, found)

    def __iter__(self) -> Iterator[str]:
        """Return the names of the metrics of all requests."""
        return iter(self._metrics)

    def __len__(self) -> int:
        """Return the number of metrics of all requests."""
        return len(self._metrics)


#: Every latency metric by its name, in the order of answers, reports and error messages.
LATENCY_METRICS: Final = LatencyMetrics(TTFT, TPOT, ITL, E2E, NORMALIZED, NORMALIZED_TOTAL, SESSION, TASK)
