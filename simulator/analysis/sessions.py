"""Statistics of sessions: how long they took, how fast answers were for one user, and which hits were possible."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from catalogs.arrays import FloatArray
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
    of tools and humans. Sessions with a request that did not complete are left out.
    """
    if run.requests.graph is None or run.requests.sessions is None:
        return {}
    hits = PrefixHits.of(run)
    whole = _whole_sessions(run)
    found: dict[str, Any] = {
        "n_sessions": len(np.unique(run.requests.sessions)),
        "n_completed": len(whole[0]),
        "session_s": statistics(whole[0]),
        "served_s": statistics(whole[1]),
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


def _whole_sessions(run: Run) -> tuple[FloatArray, FloatArray]:
    """Return the time of each completed session, and the part with a request under way. Shape (sessions,) each."""
    sessions = run.requests.sessions
    assert sessions is not None
    order = np.lexsort((run.arrival_s, sessions))
    first = np.unique(sessions[order], return_index=True)[1]
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
