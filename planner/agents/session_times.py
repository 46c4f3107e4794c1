"""The times of whole sessions and tasks of agents, from the latencies of the requests of a run.

A run in which every agent sends some 20 requests holds few whole sessions, and those that end in it are the short ones.
The times are therefore put together: whole sessions of the workload are drawn, every request of them takes the latency
of a measured request that had about as many new tokens to compute, at that request's speed of output, and each request
is sent when those that it waits for have ended and the time of the tool or the human has passed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Self

import numpy as np

from catalogs.arrays import BoolArray, FloatArray, IntArray
from catalogs.workloads.sessions.agents import AgentSessions
from planner.agents.load import new_tokens
from planner.problem.latency_metrics import SESSION, TASK
from simulator.cluster.run import Run

#: Requests of the drawn sessions together.
N_REQUESTS: Final = 12_000

#: Groups of measured requests by their new tokens, with about as many requests each.
GROUPS: Final = 10

_STREAM: Final = 4217  # added to the seed of a run for the draws of latencies


@dataclass(frozen=True, slots=True)
class MeasuredLatencies:
    """The latencies of measured requests; arrays have shape (n,). Requests that were not served take infinitely long.

    Attributes:
        new: New tokens of each prompt.
        ttft_s: Time to first token.
        tpot_s: Time per output token after the first.
    """

    new: FloatArray
    ttft_s: FloatArray
    tpot_s: FloatArray

    @classmethod
    def of(cls, run: Run, counted: BoolArray) -> Self:
        """Return the latencies of the counted requests of a run. Shape of `counted`: (requests,)."""
        endless = ~run.completed[counted]
        ttft_s = np.where(endless, np.inf, run.ttft_s[counted])
        tpot_s = np.where(run.requests.output_tokens[counted] > 1, run.tpot_s[counted], np.nan)
        typical = float(np.nanmedian(tpot_s)) if np.isfinite(tpot_s).any() else 0.0
        tpot_s = np.where(np.isfinite(tpot_s), tpot_s, typical)
        return cls(new_tokens(run.requests)[counted], ttft_s, tpot_s)

    def e2e_s(self, new: FloatArray, outputs: IntArray, rng: np.random.Generator) -> FloatArray:
        """Return an end-to-end latency for each of other requests, from measured ones that are like them. Shape (n,).

        Args:
            new: New tokens of each prompt. Shape (n,).
            outputs: Tokens of each output. Shape (n,).
            rng: The random stream.
        """
        order = np.argsort(self.new, kind="stable")
        n = len(order)
        at = np.searchsorted(self.new[order], new, side="left")
        group = np.minimum(at * GROUPS // max(n, 1), GROUPS - 1)
        first, last = group * n // GROUPS, np.maximum((group + 1) * n // GROUPS, group * n // GROUPS + 1)
        chosen = order[np.minimum(first + (rng.random(len(new)) * (last - first)).astype(np.int64), n - 1)]
        found: FloatArray = self.ttft_s[chosen] + self.tpot_s[chosen] * (outputs - 1)
        return found


@dataclass(frozen=True, slots=True)
class WholeSessions:
    """Whole sessions of a workload.

    Attributes:
        sessions: The sessions.
        new: New tokens of each prompt. Shape (n,).
    """

    sessions: AgentSessions
    new: FloatArray

    @classmethod
    def of(cls, content: Any, seed: int) -> Self:
        """Return whole sessions of the content of a workload."""
        drawn: AgentSessions = content.whole_sessions(seed, N_REQUESTS)
        texts = drawn.texts
        kept = np.where(texts.parent[texts.text] >= 0, texts.kept_tokens[texts.text], 0)
        return cls(drawn, np.maximum(drawn.inputs - kept, 1).astype(np.float64))

    @property
    def requests_per_task(self) -> float:
        """Return the mean requests of a task."""
        return len(self.new) / (int(self.sessions.tasks()[-1]) + 1)

    def times_s(self, latencies: MeasuredLatencies, seed: int, speed: float = 1.0) -> dict[str, FloatArray]:
        """Return the time of each session and of each task, in seconds, by the name of the metric.

        Args:
            latencies: The latencies of the measured requests of a run.
            seed: Seed of the choice among them.
            speed: Divides the times of tools and humans, as in the run.
        """
        if not len(latencies.new):
            return {SESSION.name: np.empty(0), TASK.name: np.empty(0)}
        sessions = self.sessions
        e2e_s = latencies.e2e_s(self.new, sessions.outputs, np.random.default_rng([seed, _STREAM]))
        sent_s, ended_s = _played(sessions, e2e_s, sessions.gap_s / speed)
        return {
            SESSION.name: _spans_s(sent_s, ended_s, sessions.session),
            TASK.name: _spans_s(sent_s, ended_s, sessions.tasks()),
        }


def _played(sessions: AgentSessions, e2e_s: FloatArray, gap_s: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return when each request is sent and has ended, in seconds from the start of its session. Shape (n,) each.

    Args:
        sessions: The sessions, in which each request follows those that it waits for.
        e2e_s: The end-to-end latency of each request. Shape (n,).
        gap_s: The time from the end of the last request that each waits for. Shape (n,).
    """
    latency, gap, waits = e2e_s.tolist(), gap_s.tolist(), sessions.waits.tolist()
    sent, ended, at = [0.0] * len(gap), [0.0] * len(gap), 0
    for index in range(len(gap)):
        ready = 0.0
        while at < len(waits) and waits[at][0] == index:
            ready = max(ready, ended[waits[at][1]])
            at += 1
        sent[index] = ready + gap[index]
        ended[index] = sent[index] + latency[index]
    return np.array(sent), np.array(ended)


def _spans_s(sent_s: FloatArray, ended_s: FloatArray, groups: IntArray) -> FloatArray:
    """Return the seconds from the first request sent to the last one ended in each group. Shape (groups,).

    `groups` counts from 0; all arrays have shape (n,).
    """
    n = int(groups[-1]) + 1
    first, last = np.full(n, np.inf), np.zeros(n)
    np.minimum.at(first, groups, sent_s)
    np.maximum.at(last, groups, ended_s)
    endless = np.isinf(last)
    return np.where(endless, np.inf, last - np.where(endless, 0.0, first))
