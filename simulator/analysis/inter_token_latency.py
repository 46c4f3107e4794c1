"""Statistics of inter-token latencies, computed from the steps in the log of a run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from catalogs.arrays import FloatArray, IntArray
from catalogs.statistics import QUANTILES
from simulator.core.step_log import StepLog

#: Number of samples from a run of decode steps for inter-token latencies. Step times rise linearly within a run, so 16
#: samples are off by at most 1/32 of the rise.
ITL_POINTS: Final = 16

#: Number of samples from all runs together, which bounds memory: with many runs, each gives fewer samples.
MOST_ITL_POINTS: Final = 4_000_000

#: The columns of a log that `prefill_waits` reads.
_WAIT_COLUMNS: Final = ("start_s", "total_s", "prefill_tokens", "decodes", "logits", "first_s", "behind_s")

#: The waits of a run that has none.
NO_WAITS: FloatArray = np.zeros((0, 3))

#: The openings of a run that has none.
NO_OPENINGS: FloatArray = np.zeros(0)


def prefill_waits(logs: Sequence[StepLog]) -> FloatArray:
    """Return the gaps in which prefill-only steps kept decodes waiting (engines that do not mix the two).

    Requests whose prompt ended within such a gap have waited since then. Requests that ended with it, after one token,
    are not distinguished from them. Where the token before the gap reached its client late, the gap is shorter by what
    the steps of prompts made up for.

    Returns:
        (seconds of the decode step that ends the wait, seconds of the wait, number of requests). Shape (n, 3).
    """
    found: list[tuple[float, float, float]] = []
    for log in logs:
        start_s, total_s, prefill, decodes, logits, first_s, behind_s = log.columns(*_WAIT_COLUMNS)
        end_s, late_s = start_s + total_s, np.cumsum(behind_s)
        stalled = np.flatnonzero((decodes[1:] > 0) & (decodes[:-1] == 0) & (prefill[:-1] > 0)) + 1
        sure = (logits[stalled - 1] >= decodes[stalled]) & (start_s[stalled] <= end_s[stalled - 1])
        for row in stalled[~sure].tolist():  # the others decode only what the step right before them has started
            left, now_s = decodes[row], start_s[row]
            for before in range(row - 1, -1, -1):
                taken = min(left, logits[before])
                if taken and now_s > end_s[before]:
                    wait_s = now_s - end_s[before] + late_s[row - 1] - late_s[before]
                    found.append((first_s[row], wait_s, taken))
                left -= taken
                if not left or decodes[before]:
                    break
    return np.array(found, dtype=np.float64).reshape(-1, 3)


def itl_statistics(
    log: StepLog, gaps_s: FloatArray, waits: FloatArray = NO_WAITS, openings_s: FloatArray = NO_OPENINGS
) -> dict[str, float | None]:
    """Return the mean and percentiles of inter-token latencies.

    A step of duration d with n decodes is n gaps of d. If the API server fell behind within a row of the log, or caught
    up, all gaps of the row share that.

    Args:
        log: The steps.
        gaps_s: Gaps of preempted requests. Shape (n,).
        waits: Longer gaps among those of the log, as from `prefill_waits`, and those of hand-overs. Shape (m, 3).
        openings_s: Decode steps that gave a first token, which ends no gap. Shape (k,).
    """
    columns = log.columns("decodes", "steps", "first_s", "slope_s", "behind_s", "total_s")
    decodes, steps, first_s, slope_s, behind_s, row_s = columns[:, columns[0] > 0]
    weight = decodes * steps
    count = float(weight.sum()) + len(gaps_s) - len(openings_s)
    if not count:
        return dict.fromkeys(("mean", *QUANTILES))
    first_s = first_s + behind_s / steps
    step_s, wait_s, waiting = waits.T
    total_s = float(((row_s + behind_s) * decodes).sum() + gaps_s.sum() + wait_s @ waiting)
    total_s -= float(openings_s.sum())
    each = min(ITL_POINTS, max(1, MOST_ITL_POINTS // max(1, len(steps))))
    points = np.minimum(steps, each).astype(np.int64)
    row = np.repeat(np.arange(len(points)), points)
    at = (np.arange(len(row)) - np.repeat(np.cumsum(points) - points, points) + 0.5) / points[row]
    read_s = first_s[row] + slope_s[row] * (at * steps[row] - 0.5)
    values = np.concatenate([read_s, gaps_s, step_s + wait_s, step_s, openings_s])
    taken = np.concatenate([-waiting, -np.ones(len(openings_s))])
    weights = np.concatenate([weight[row] / points[row], np.ones(len(gaps_s)), waiting, taken])
    order = ascending(values, weights)  # removed weights before the others
    reached = np.maximum.accumulate(np.cumsum(weights[order]))
    found = np.searchsorted(reached, np.array(list(QUANTILES.values())) / 100.0 * reached[-1])
    quantiles = values[order][np.minimum(found, len(values) - 1)]
    return {"mean": total_s / count, **dict(zip(QUANTILES, map(float, quantiles), strict=True))}


def ascending(values: FloatArray, weights: FloatArray) -> IntArray:
    """Return the ascending order of values, and of weights where values are equal.

    It is the order of `np.lexsort((weights, values))`, which takes three times as long because it sorts all weights.
    Both arguments and the result have shape (n,).
    """
    order = np.argsort(values)
    ascending = values[order]
    same = ascending[1:] == ascending[:-1]
    if same.any():
        places = np.flatnonzero(np.append(same, False) | np.append(False, same))
        some = order[places]
        order[places] = some[np.lexsort((some, weights[some], values[some]))]
    return order
