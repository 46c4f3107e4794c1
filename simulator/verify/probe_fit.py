"""Host times and whole-step times of an engine, fitted to a probe of it.

Decode cycles are read where they are certain: gaps between tokens of single requests (one decode a step), and gaps of a
burst of n equal requests between the last first token and the first last token (n decodes a step).

Bottom-up: the part of a cycle beyond the operators is host time, with a constant and a part per sequence. The part of
the first token beyond a simulation with those terms is the path of a request to the engine and of a token back.
Engine-level: cycles by number of decodes are taken as measured, and steps with prefill from the engine's own log or
from first tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from calibration.accuracy.measured_run import MeasuredRun
from calibration.bundles.engine_calibration import MeasuredHost, MeasuredSteps
from calibration.families.nonnegative import nonnegative
from calibration.serve.probe import BURST_INPUT_TOKENS, OUTPUT_TOKENS, Probe
from catalogs.arrays import FloatArray
from catalogs.engines.profile import HostTimes
from catalogs.errors import InputError
from catalogs.workloads.request_set import RequestSet
from simulator.cluster.compiled import CompiledDeployment, with_host
from simulator.cluster.simulate import engine_rules, run_rules
from simulator.core.batch import BatchShape
from simulator.core.step_timer import StepTimer

if TYPE_CHECKING:
    import pandas as pd


#: Host times of an engine whose host takes no time.
NO_HOST: Final = HostTimes(0.0, 0.0, 0.0, 0.0, 0.0, 0.0)

SHORTEST_S: Final = 1e-9  # least seconds of a step, because no table holds zero

#: Context of a decode in a step with prefill of a probe; only bursts contain such steps.
BURST_CONTEXT_TOKENS: Final = BURST_INPUT_TOKENS + OUTPUT_TOKENS / 2

#: Least cycles for a node of a table. A judgement: their median then stands one disturbed cycle or two.
FEWEST: Final = 5

#: Tokens of a step at which its time is fitted, besides the fewest and the most that a probe has.
TOKEN_NODES: Final = (8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)


@dataclass(frozen=True, slots=True)
class Cycles:
    """Decode-only steps: number of decodes, total tokens of context, and seconds from start to start.

    Each array has shape (n,).
    """

    decodes: npt.NDArray[np.int64]
    context: FloatArray
    seconds: FloatArray

    @classmethod
    def of(cls, probe: Probe) -> Cycles:
        """Return all certain decode cycles of a probe.

        Of the bursts of one size, those are taken that needed the fewest passes over the weights.

        Raises:
            InputError: The client does not distinguish the gaps of requests, or nearly all messages held several
                tokens.
        """
        rows = [(1, context, seconds) for context, seconds in _single_cycles(probe.single)]
        passes = probe.burst_passes or (1,) * len(probe.burst_sizes)
        fewest: dict[int, int] = {}
        for n, own in zip(probe.burst_sizes, passes, strict=True):
            fewest[n] = min(own, fewest.get(n, own))
        first = 0
        for n, own in zip(probe.burst_sizes, passes, strict=True):
            members, first = range(first, first + n), first + n
            if own == fewest[n]:
                rows += [(n, context, seconds) for context, seconds in _burst_cycles(probe.bursts, members)]
        decodes, context, seconds = np.array(rows, dtype=float).reshape(-1, 3).T
        found = cls(decodes.astype(np.int64), context, seconds)
        if not found.sizes():
            rule = "the client received too few single tokens, because it is too slow for the engine"
            raise InputError(rule, probe.single.client)
        return found

    def sizes(self) -> list[int]:
        """Return the numbers of decodes with enough cycles."""
        found, counts = np.unique(self.decodes, return_counts=True)
        return [int(n) for n, count in zip(found, counts, strict=True) if count >= FEWEST]

    def mean(self, values: FloatArray, n: int) -> float:
        """Return the trimmed mean of `values` over the cycles of `n` decodes. `values` has shape (n cycles,)."""
        return trimmed_mean(values[self.decodes == n])


def fit_host(probe: Probe, served: CompiledDeployment) -> MeasuredHost:
    """Fit host times, none negative, with which the operators of the deployment reproduce the times of the probe."""
    cycles = Cycles.of(probe)
    device = with_host(served, NO_HOST).cost
    shapes = zip(cycles.decodes.tolist(), cycles.context.tolist(), strict=True)
    alone = np.array([device.cycle_s(_shape(n, context)) for n, context in shapes])
    beyond = cycles.seconds - alone
    base = served.resolved.engine.host
    if served.resolved.engine.async_scheduling:  # the device hides host time, so only the gap is visible
        gap = max(0.0, float(np.median([cycles.mean(beyond, n) for n in cycles.sizes()])))
        steps_s = (base.step_s, base.step_s_per_sequence)
    else:
        gap, steps_s = 0.0, _line_through(cycles, beyond)
    host = replace(NO_HOST, step_s=steps_s[0], step_s_per_sequence=steps_s[1], step_gap_s=gap)
    return fit_requests(probe, served, with_host(served, host).cost, host)


def fit_steps(probe: Probe, log: pd.DataFrame | None, most_tokens: int) -> MeasuredSteps | None:
    """Fit whole steps by their contents; return None if the probe has too few.

    Steps with prefill come from the engine's log. If it holds only those of single requests, a decode in a step with
    prefill takes what it takes beyond a token in a step of decodes. Without a log they are first tokens of single
    prompts of at most `most_tokens`, which run in one step; the time of the shortest beyond a decode step of the same
    size is not part of the step.
    """
    cycles = Cycles.of(probe)
    sizes = cycles.sizes()
    if len(sizes) < 2:
        return None
    context_s, at = _decode_table(cycles)
    per_pair = 0.0
    if log is None:
        nodes, values = _first_tokens(probe.single, most_tokens, sizes, at)
        if len(nodes) < 2:
            return None
        per_decode = _beyond_a_token(sizes, at, nodes, values)
    else:
        prefill = log[(log.context_requests > 0) & (log.context_tokens <= most_tokens)]  # longer ones are several steps
        tokens = (prefill.context_tokens + prefill.generation_tokens).to_numpy(float)
        if len(prefill) < 3 * FEWEST or tokens.min() == tokens.max():
            return None
        seconds = prefill.seconds.to_numpy(float) + _outside_the_log(cycles, log)
        decoding = prefill.generation_requests.to_numpy(float)
        seconds = np.maximum(seconds - context_s * BURST_CONTEXT_TOKENS * decoding, 0.5 * seconds)
        # Only nodes with steps on both sides.
        inner = [n for n in TOKEN_NODES if tokens.min() < n < tokens.max()]
        nodes = [int(tokens.min()), *inner, int(tokens.max())]
        others = [decoding, *([prefill.pairs.to_numpy(float)] if "pairs" in prefill.columns else [])]
        values, (per_decode, *further) = _hats(tokens, others, seconds, nodes)
        per_pair = further[0] if further else 0.0
        if not decoding.any():
            per_decode = _beyond_a_token(sizes, at, nodes, values)
    return MeasuredSteps(
        decodes=tuple(sizes),
        decode_s=tuple(at),
        tokens=tuple(nodes),
        token_s=tuple(values),
        per_decode_s=per_decode,
        per_context_token_s=context_s,
        per_pair_s=per_pair,
    )


def fit_requests(probe: Probe, served: CompiledDeployment, timer: StepTimer, host: HostTimes = NO_HOST) -> MeasuredHost:
    """Return `host` with request_s and request_s_per_input_token, fitted to first tokens of single requests.

    The constant gives the mean of the shorter half of first tokens.

    The return path of a token (output_s) cannot be distinguished from the forward path, so request_s contains both.

    Args:
        probe: The probe of the engine.
        served: The compiled deployment.
        timer: The durations of steps, including the host times of a step.
        host: Host times of a step that the timer contains.
    """
    single = probe.single
    rules = replace(engine_rules(served), host=host)
    inputs = single.input_tokens.astype(np.int64)
    requests = RequestSet(np.zeros(len(inputs)), inputs, single.output_tokens.astype(np.int64), concurrency=1)
    beyond = single.ttft_s - run_rules(rules, timer, requests).ttft_s
    lengths = np.unique(inputs)
    typical = np.array([_typical(beyond[inputs == n]) for n in lengths])
    whole = np.array([_typical(single.ttft_s[inputs == n]) for n in lengths])
    constant, per_token = _line(lengths, typical, whole)
    short = single.ttft_s <= np.median(single.ttft_s)  # where the constant is more than the noise of a step
    rest = trimmed_mean((beyond - constant - per_token * inputs)[short])
    constant = max(0.0, constant + rest)
    host = replace(host, request_s=constant, request_s_per_input_token=per_token)
    return MeasuredHost.model_validate(host, from_attributes=True)


def _line_through(cycles: Cycles, beyond: FloatArray) -> tuple[float, float]:
    """Return (constant, slope per decode), neither negative, through the means at each number of decodes."""
    sizes = cycles.sizes()
    whole = np.array([cycles.mean(cycles.seconds, n) for n in sizes])
    typical = np.array([cycles.mean(beyond, n) for n in sizes])
    return _line(np.array(sizes), typical, whole)


def _line(at: npt.NDArray[np.int64], values: FloatArray, whole: FloatArray) -> tuple[float, float]:
    """Return (constant, slope), neither negative, through `values`, which are parts of the times `whole`."""
    constant, slope = nonnegative(np.column_stack([np.ones(len(at)), at]), values, whole)
    return float(constant), float(slope)


def _decode_table(cycles: Cycles) -> tuple[float, list[float]]:
    """Return (seconds per token of context, seconds at each size without context), by least squares, none negative."""
    sizes = cycles.sizes()
    keep = np.isin(cycles.decodes, sizes)
    n, context, seconds = cycles.decodes[keep], cycles.context[keep], cycles.seconds[keep]
    groups = {(size, round(c / size / 32)) for size, c in zip(n.tolist(), context.tolist(), strict=True)}
    rows, typical = [], []
    for size, bucket in sorted(groups):  # trimmed means first, because outliers are common and distort least squares
        mine = (n == size) & (np.round(context / n / 32) == bucket)
        rows.append([float(np.mean(context[mine])), *(float(size == s) for s in sizes)])
        typical.append(trimmed_mean(seconds[mine]))
    per_context = float(nonnegative(np.array(rows), np.array(typical))[0])
    alone = [trimmed_mean((seconds - per_context * context)[n == s]) for s in sizes]
    return per_context, [max(t, SHORTEST_S) for t in alone]


def trimmed_mean(values: FloatArray) -> float:
    """Return the mean without the highest and the lowest tenth; shape (n,).

    Times of a busy machine have a long tail. Their mean, of which the tail is a part, is what many steps take together;
    only the rarest disturbances are left out.
    """
    cut = len(values) // 10
    return float(np.sort(values)[cut : len(values) - cut].mean())


def _typical(values: FloatArray) -> float:
    """Return the lower median of few repeats, because a disturbance can only lengthen a time; shape (repeats,)."""
    return float(np.quantile(values, 0.5, method="lower"))


def _outside_the_log(cycles: Cycles, log: pd.DataFrame) -> float:
    """Return the seconds of a cycle outside the engine's log: the client's gap minus logged time, at equal decodes."""
    alone = log[log.context_requests == 0].groupby("generation_requests").seconds
    logged = alone.agg(lambda seconds: trimmed_mean(seconds.to_numpy(float)))[alone.count() >= FEWEST]
    found = [cycles.mean(cycles.seconds, n) - float(logged[n]) for n in cycles.sizes() if n in logged.index]
    return max(0.0, float(np.median(found))) if found else 0.0


def _first_tokens(single: MeasuredRun, most: int, sizes: list[int], at: list[float]) -> tuple[list[int], list[float]]:
    """Return (tokens, seconds) of steps with one prompt; no seconds if fewer than two lengths run in one step."""
    lengths = [int(n) for n in np.unique(single.input_tokens) if n <= most]
    if len(lengths) < 2:
        return lengths, []
    typical = [_typical(single.ttft_s[single.input_tokens == n]) for n in lengths]
    outside = max(0.0, typical[0] - float(np.interp(lengths[0], sizes, at)))
    outside = min(outside, 0.5 * min(typical))  # a disturbed first length must not consume the others
    return lengths, [t - outside for t in typical]


def _beyond_a_token(sizes: list[int], at: list[float], nodes: list[int], values: list[float]) -> float:
    """Return the seconds of a decode beyond those of a token: steps of n decodes less steps of n prompt tokens."""
    both = [(n, s) for n, s in zip(sizes, at, strict=True) if nodes[0] <= n <= nodes[-1]]
    beyond = [max(0.0, s - float(np.interp(n, nodes, values))) / n for n, s in both]
    return float(np.median(beyond)) if beyond else 0.0


def _hats(
    tokens: FloatArray, others: list[FloatArray], seconds: FloatArray, nodes: list[int]
) -> tuple[list[float], list[float]]:
    """Fit a piecewise linear function of tokens by least relative squares; no term is negative.

    Returns:
        (values at the nodes, a slope for each of `others`).
    """
    basis = np.column_stack([np.interp(tokens, nodes, np.eye(len(nodes))[k]) for k in range(len(nodes))])
    design = np.column_stack([basis, *others])
    keep = np.ones(len(seconds), dtype=bool)
    terms = np.zeros(design.shape[1])
    for _ in range(2):  # the second time without disturbed steps
        terms = nonnegative(design[keep], seconds[keep])
        error = design @ terms / seconds - 1.0
        keep = np.abs(error) <= max(0.1, 3.0 * float(np.median(np.abs(error))))
    values = terms[: len(nodes)]
    seen = values > SHORTEST_S
    if not seen.any():  # the slopes contain all of the time
        return [SHORTEST_S] * len(nodes), terms[len(nodes) :].tolist()
    return np.interp(nodes, np.array(nodes)[seen], values[seen]).tolist(), terms[len(nodes) :].tolist()


def _shape(n: int, context: float) -> BatchShape:
    return BatchShape(
        decodes=n, decode_context_sum=round(context), decode_context_max=-(-round(context) // n), logits=n
    )


def _single_cycles(run: MeasuredRun) -> list[tuple[float, float]]:
    """Return (context, seconds) of every decode step of single requests; the first gap may contain a hand-over.

    The steps of a request have its mean gap, because a client that is late for one token is early for the next.
    """
    return [
        (n_in + j, float(gaps[1:].mean()))
        for n_in, n_out, gaps in zip(run.input_tokens, run.output_tokens, run.gaps(), strict=True)
        for j in range(2, len(gaps) + 1)
        if len(gaps) == n_out - 1  # otherwise some message held several tokens
    ]


def _burst_cycles(run: MeasuredRun, members: range) -> list[tuple[float, float]]:
    """Return (context, seconds) of steps between the last first token and the first last one.

    The seconds are the mean gap there of the median member.
    """
    gaps = run.gaps()
    times = [run.arrival_s[i] + run.ttft_s[i] + np.concatenate([[0.0], np.cumsum(gaps[i])]) for i in members]
    start, end = max(t[0] for t in times), min(t[-1] for t in times)
    contexts, means_s = [], []
    for i, at in zip(members, times, strict=True):
        inside = [j for j in range(1, len(at) - 1) if at[j] >= start and at[j + 1] <= end]
        if inside and len(gaps[i]) == run.output_tokens[i] - 1:
            contexts.append(float(run.input_tokens[i]) + np.array(inside, dtype=float))
            means_s.append(float(at[inside[-1] + 1] - at[inside[0]]) / len(inside))
    steps = min((len(each) for each in contexts), default=0)
    if not steps:
        return []
    last = np.array([each[-steps:] for each in contexts])  # aligned at the end
    return [(context, float(np.median(means_s))) for context in (last.mean(axis=0) * len(members)).tolist()]
