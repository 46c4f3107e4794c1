"""Session time and task time of agents, as metrics of objectives: `session.p90=20min`, `task.p95=5min`.

A session lasts from its first request to the end of its last, with the times of tools and humans in between. A task is
what an agent does from one request of a human to the next, without the time of the human. Both have the relative error
of the end-to-end latency of requests: if steps take a factor longer, so do requests, and the times of tools and humans
do not.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np

from catalogs.arrays import FloatArray, IntArray
from planner.problem.latency_metric import LatencyMetric, RunWindow


def _grouped_s(window: RunWindow, groups: IntArray | None) -> FloatArray:
    """Return the seconds of each session or task of a run that is completed; empty without such. Shape (groups,)."""
    from simulator.analysis.sessions import grouped_times  # imported here: the problem needs no simulator to be stated

    run = window.run
    return np.empty(0) if groups is None or run.requests.graph is None else grouped_times(run, groups)[0]


SESSION: Final = LatencyMetric(
    name="session",
    words="session time",
    title="time of a session",
    pools=("prefill", "decode"),
    samples=lambda window: _grouped_s(window, window.run.requests.sessions),
    floor=lambda least: np.zeros(len(least.prefill_s)),
    floor_words="the {stat} of session time in an empty system is {floor}",
    guess=lambda expected, _: expected.first_token_s(None),
    stated_error="e2e",
    samples_called="session times",
)

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
