"""Workload files fitted to traces: quantile tables, rates and shares. Only the extreme lengths of requests stay."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from catalogs.arrays import FloatArray, IntArray
from catalogs.errors import InputError
from catalogs.workloads.sessions.recorded import RecordedSessions
from catalogs.workloads.traces import Trace

#: The tabulated probabilities. They are close together in the upper tail, where linear interpolation between distant
#: entries would raise the mean.
PROBABILITIES: Final = (
    0,
    0.01,
    0.05,
    *(k / 10 for k in range(1, 9)),
    0.85,
    0.9,
    0.93,
    0.95,
    0.97,
    0.98,
    0.99,
    0.995,
    0.999,
    1,
)

#: Least requests of a class of input lengths that gets a table of output lengths of its own.
FEWEST_IN_CLASS: Final = 100

#: Least requests of a trace that is fitted without a notice: with fewer, the 99th percentile is the longest request.
FEWEST_REQUESTS: Final = 100

#: Most classes of input lengths.
MOST_CLASSES: Final = 8

#: A prompt that keeps less than this share of the prompt before it begins anew. Recorded prompts that go on keep all
#: but their last blocks.
KEPT_SHARE: Final = 0.5

#: The shortest gap in a table of times, in seconds; logarithms need one.
LEAST_GAP_S: Final = 0.01


def fit_workload(trace: Trace, input_classes: int | None = None, own_arrivals: bool = True) -> dict[str, Any]:
    """Return the keys of a workload file that describes a trace.

    Args:
        trace: The trace.
        input_classes: Number of equally likely classes of input length, each with a table of output lengths; None
            means as many as have FEWEST_IN_CLASS requests, at most MOST_CLASSES.
        own_arrivals: Whether the arrival times of the trace are real, so that their rate and burstiness are kept.
    """
    if trace.recorded is not None:
        return fit_sessions(trace.recorded)
    classes = input_classes or min(MOST_CLASSES, max(1, len(trace.input_tokens) // FEWEST_IN_CLASS))
    arrivals = fit_arrivals(trace) if own_arrivals and trace.arrival_s is not None else {"poisson": {}}
    return {
        "arrivals": arrivals,
        "input_tokens": {"quantiles": table(trace.input_tokens)},
        "output_tokens": fit_outputs(trace, classes),
    }


def fit_notices(trace: Trace) -> list[str]:
    """Return what the user of a fit should know: those of the trace, and whether it has few requests."""
    n = len(trace.input_tokens)
    few = f"the quantiles rest on few requests ({n}): those near 0 and 1 are little more than the extreme lengths"
    return [*trace.notices, *([few] if n < FEWEST_REQUESTS else [])]


def fit_arrivals(trace: Trace) -> dict[str, Any]:
    """Return gamma-distributed gaps with the trace's mean rate and its burstiness in windows of one second.

    cv^2 = variance / mean of the number of arrivals in a window, the ratio of a renewal process in long windows (Cox
    and Lewis 1966). The cv of the gaps would be dominated by a few pauses of minutes: for azure-code it is 13, and
    gamma gaps with cv 13 send 200 requests within 0.1 s, where the trace never sends more than 13. Windows of one
    second are long enough for a burst to build a queue.

    Raises:
        InputError: The trace has no arrival times, or all requests arrive at once.
    """
    if trace.arrival_s is None or len(trace.arrival_s) < 2 or trace.arrival_s[-1] <= trace.arrival_s[0]:
        raise InputError("this trace has no arrival times to fit")
    rate = 1.0 / float(np.diff(trace.arrival_s).mean())
    counts = np.bincount(trace.arrival_s.astype(np.int64))
    return {"gamma": {"requests_per_s": round(rate, 3), "cv": round(float(np.sqrt(counts.var() / counts.mean())), 3)}}


def fit_outputs(trace: Trace, input_classes: int) -> dict[str, Any]:
    """Return a table of output quantiles for each class of input length; equal lengths are split in file order."""
    by_input = trace.output_tokens[np.argsort(trace.input_tokens, kind="stable")]
    rows = [quantiles(part) for part in np.array_split(by_input, input_classes)]
    return {"quantiles_by_input": {"probabilities": list(PROBABILITIES), "tokens": rows}}


def quantiles(tokens: IntArray) -> list[float]:
    """Return the token counts at PROBABILITIES, rounded to a tenth of a token. Shape of `tokens`: (n,)."""
    return [round(float(q), 1) for q in np.quantile(tokens, PROBABILITIES)]


def table(tokens: IntArray) -> dict[float, float]:
    """Return the quantile table of token counts of shape (n,)."""
    return dict(zip(PROBABILITIES, quantiles(tokens), strict=True))


def time_table(times_s: FloatArray) -> dict[float, float]:
    """Return the quantile table of times in seconds of shape (n,), with three digits."""
    values = np.quantile(np.maximum(times_s, LEAST_GAP_S), PROBABILITIES)
    return {p: float(f"{value:.3g}") for p, value in zip(PROBABILITIES, np.maximum.accumulate(values), strict=True)}


def fit_sessions(recorded: RecordedSessions) -> dict[str, Any]:
    """Return the keys of a workload file that describes recorded sessions of agents, in a closed loop of one agent.

    A turn adds the tokens by which its prompt exceeds the prompt and the output before it. Where it is shorter, because
    an agent leaves its reasoning out of the next prompt, it adds one token.
    """
    found, previous = recorded.sessions, recorded.previous
    follows = previous >= 0
    main = ~recorded.is_sub
    before = np.maximum(previous, 0)
    kept = found.texts.kept_tokens
    anew = follows & (kept < KEPT_SHARE * found.inputs[before])
    goes_on = follows & ~anew
    added = np.maximum(found.inputs - found.inputs[before] - found.outputs[before], 1)[goes_on]
    turns: dict[str, Any] = {
        "per_session": {"quantiles": table(np.bincount(found.session[main], minlength=found.n_sessions))},
        "first_input_tokens": {"quantiles": table(found.inputs[main & ~follows])},
        "gap_s": _fit_gaps(recorded),
    }
    if anew.any():
        restarts = {"share": round(float(anew[follows].mean()), 4)}
        turns["restarts"] = restarts | {"input_tokens": {"quantiles": table(found.inputs[anew])}}
    if recorded.is_sub.any():
        turns["subagents"] = _fit_subagents(recorded)
    return {
        "arrivals": {"closed_loop": {"concurrency": 1}},
        "input_tokens": {"quantiles": table(added)},
        "output_tokens": {"quantiles": table(found.outputs)},
        "turns": turns,
    }


def _fit_gaps(recorded: RecordedSessions) -> dict[str, Any]:
    """Return the times of tools, and those of humans with their share of the turns of agents."""
    tool_s, human_s = recorded.gaps_s(by_human=False), recorded.gaps_s(by_human=True)
    gaps: dict[str, Any] = {"tool": {"quantiles": time_table(tool_s if len(tool_s) else np.zeros(1))}}
    if len(human_s):
        turns = (recorded.previous >= 0) & ~recorded.is_sub
        gaps |= {
            "human": {"quantiles": time_table(human_s)},
            "human_share": round(float(recorded.by_human[turns].mean()), 4),
        }
    return gaps


def _fit_subagents(recorded: RecordedSessions) -> dict[str, Any]:
    """Return how often sub-agents start, how many at a time, their turns and their first prompts."""
    found, is_sub = recorded.sessions, recorded.is_sub
    first = is_sub & (recorded.previous < 0)
    line = np.cumsum(recorded.previous < 0) - 1
    turns = np.bincount(line[is_sub])
    starts = found.waits[np.isin(found.waits[:, 0], np.flatnonzero(first))]
    _, together = np.unique(starts[:, 1], return_counts=True)
    return {
        "share": round(len(together) / max(1, int((~is_sub).sum())), 5),
        "parallel": {"quantiles": table(together)},
        "turns": {"quantiles": table(turns[turns > 0])},
        "first_input_tokens": {"quantiles": table(found.inputs[first])},
    }
