"""Statistics of sessions: how long they took, how fast answers were for one user, and which hits were possible."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from catalogs.arrays import FloatArray, IntArray
from catalogs.statistics import statistics
from simulator.analysis.prefix_hits import PrefixHits
from simulator.cluster.run import Run

#: Shares of requests that reach an interactivity.
SHARES: Final = {"p50": 0.5, "p90": 0.9, "p99": 0.99}


def session_metrics(run: Run) -> dict[str, Any]:
    """Return the block `sessions` of a run whose requests wait for each other; otherwise nothing.

    `interactivity_tokens_per_s` holds the output tokens per second after the first token that a share of the requests
    with several output tokens reach: p90 is reached by 90 % of them. `session_s` counts from the arrival of the first
    request of a session to the end of its last, and `served_s` only the time with a request under way, without the time
    of tools and humans. `task_s` counts from the first request of a task to the end of its last; a task is what an
    agent does from one request of a human to the next. Sessions and tasks with a request that did not complete are left
    out. Those that a run begins or ends in count with the part that is in it.
    """
    if run.requests.graph is None or run.requests.sessions is None:
        return {}
    hits = PrefixHits.of(run)
    whole = grouped_times(run, run.requests.sessions)
    tasks = run.requests.tasks
    found: dict[str, Any] = {
        "n_sessions": len(np.unique(run.requests.sessions)),
        "n_completed": len(whole[0]),
        "session_s": statistics(whole[0]),
        "served_s": statistics(whole[1]),
        "task_s": statistics(grouped_times(run, tasks)[0] if tasks is not None else np.zeros(0)),
        "interactivity_tokens_per_s": interactivity(run),
        "hit_rate": hits.rate if hits.prompt_tokens else None,
        "theoretical_hit_rate": hits.theoretical_rate if hits.prompt_tokens else None,
    }
    return {"sessions": found}


def interactivity(run: Run) -> dict[str, float | None]:
    """Return the output tokens per second that each of SHARES of the completed requests reaches."""
    tpot_s = run.tpot_s[run.completed & (run.requests.output_tokens > 1)]
    tpot_s = tpot_s[np.isfinite(tpot_s) & (tpot_s > 0)]
    if not len(tpot_s):
        return dict.fromkeys(SHARES)
    return {name: 1.0 / float(np.quantile(tpot_s, share, method="higher")) for name, share in SHARES.items()}


def grouped_times(run: Run, groups: IntArray) -> tuple[FloatArray, FloatArray]:
    """Return the seconds of each completed session or task, and the part with a request under way.

    Args:
        run: The finished run.
        groups: The session or the task of each request. Shape (n,).

    Returns:
        Shape (groups,) each, without those that have a request that did not complete.
    """
    order = np.lexsort((run.arrival_s, groups))
    first = np.unique(groups[order], return_index=True)[1]
    whole, served = [], []
    for begin, end in zip(first, [*first[1:], len(order)], strict=True):
        rows = order[begin:end]
        if not run.completed[rows].all():
            continue
        sent, ended = run.arrival_s[rows], np.maximum.accumulate(run.last_token_s[rows])
        idle = np.maximum(sent[1:] - ended[:-1], 0.0).sum()
        whole.append(float(ended[-1] - sent[0]))
        served.append(whole[-1] - float(idle))
    return np.array(whole), np.array(served)
