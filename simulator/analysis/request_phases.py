"""The phases of every request's life, which follow each other without a gap and so add up to its latency.

They are read from a run's results, step logs and event log; nothing is simulated again. docs/explain.md defines every
phase.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from catalogs.arrays import FloatArray
from simulator.cluster.run import Run
from simulator.core.step_log import StepLog
from simulator.core.step_timer import StepTimer, segment_of
from simulator.engine import event_log
from simulator.engine.event_log import EventLog
from simulator.schedulers.registry import POLICIES

#: The phases in their usual order, with their names on screens.
PHASE_WORDS: Final = {
    "client_path": "client path",  # fixed times on the way in and out
    "api_server": "API server",  # tokenisation and streaming, and the queues for both
    "lost": "lost with a replica",  # time on replicas that failed, and the wait before the request was sent again
    "no_replica": "waits for a replica",  # that can take it
    "wait_seat": "waits for a seat",
    "wait_blocks": "waits for blocks",
    "wait_turn": "waits for budget",  # the token budget is used up, or the engine waits for more requests
    "wait_step": "waits for a step",  # the engine reads its queue only between steps, and schedules ahead
    "encode": "encoding",  # on a replica of an encoder pool
    "embeddings": "embedding transfer",  # from there to the replica that computes the prompt
    "prefill": "prefill",
    "transfer": "KV transfer",
    "decode": "decode",
    "stalled_by_prefill": "prefill of others",  # decode steps take longer, or do not run, because of prompts
    "preemption": "preemption",  # wait and recomputation after a preemption
}

PHASES: Final = tuple(PHASE_WORDS)

_WAITS: Final = {event_log.SEATS: "wait_seat", event_log.BLOCKS: "wait_blocks", event_log.TURN: "wait_turn"}

_PLACE: Final = {name: i for i, name in enumerate(PHASES)}


@dataclass(frozen=True, slots=True)
class Phases:
    """Seconds of completed requests by phase. Their sums over the phases are the latencies.

    Attributes:
        requests: The rows of the workload. Shape (requests,).
        ttft_s: Shape (requests, phases).
        e2e_s: Shape (requests, phases).
    """

    requests: np.ndarray
    ttft_s: FloatArray
    e2e_s: FloatArray


class Span(NamedTuple):
    """An interval in the life of a request."""

    place: str  # phase, or kind of interval
    replica: int
    batch: int
    from_s: float
    to_s: float
    after_token: bool  # whether the first token came before it


#: Columns of a table of intervals: the row of the request, and the fields of Span after the place.
_REQUEST, _REPLICA, _BATCH, _FROM, _TO, _AFTER_TOKEN = range(6)


class _History:
    """The intervals of one request according to the events read up to now."""

    __slots__ = ("arrived_s", "batch", "began_s", "place", "since_s", "spans", "token")

    def __init__(self, arrived_s: float) -> None:
        self.began_s = self.arrived_s = arrived_s  # first and last arrival at the router
        self.reset(arrived_s)

    def reset(self, arrived_s: float) -> None:
        """Restart the request at the router, with nothing computed."""
        self.arrived_s = self.since_s = arrived_s
        self.place = "no_replica"
        self.batch = (-1, 0)
        self.token = False  # whether the first token has come
        self.spans: list[Span] = []

    @property
    def was_transferred(self) -> bool:
        """Return whether a prefill replica has sent its blocks to a decode replica."""
        return any(span.place == "transfer" for span in self.spans)

    def move_to(self, place: str, now: float) -> None:
        """End the current interval and start another one."""
        self.spans.append(Span(self.place, *self.batch, self.since_s, now, self.token))
        self.place, self.since_s = place, now


def phases(run: Run) -> Phases:
    """Return the phases of every completed request.

    Raises:
        ValueError: The run has no event log.
    """
    if run.options.event_log is None:
        raise ValueError("the phases of requests need the event log of the run, which has none")
    done = np.flatnonzero(run.completed)
    histories = _histories(run, run.options.event_log)
    before = np.zeros((run.requests.n, len(PHASES)))  # seconds by phase until the first token leaves the engine
    after = np.zeros_like(before)
    # Spans of all requests, each preceded by the row of the request.
    by_place: dict[str, list[tuple[int, int, int, float, float, bool]]] = {}
    left = np.zeros((run.requests.n, 3))  # arrival at the router, first and last token leave the engine
    for index in done.tolist():
        history = histories[index]
        before[index, _PLACE["lost"]] = history.arrived_s - history.began_s
        left[index] = history.began_s, next(span.from_s for span in history.spans if span.after_token), history.since_s
        for span in history.spans:
            by_place.setdefault(span.place, []).append((index, *span[1:]))
    for place, spans in by_place.items():
        table = np.array(spans, dtype=np.float64).reshape(-1, 6)
        for name, seconds in _split(place, table, run):
            for late, target in ((0.0, before), (1.0, after)):
                some = table[:, _AFTER_TOKEN] == late
                np.add.at(target[:, _PLACE[name]], table[some, _REQUEST].astype(np.int64), seconds[some])
    return _with_clients(run, done, left[done], before[done], after[done])


def _with_clients(run: Run, done: np.ndarray, left: FloatArray, before: FloatArray, after: FloatArray) -> Phases:
    """Add the time outside the engine: fixed times, and the API server's time, which is the rest."""
    host = run.pools[0].rules.host
    began_s, first_s, last_s = left.T
    streams = np.array([POLICIES[pool.rules.policy].streams for pool in run.pools])
    pool_of = np.array([replica.pool for replica in run.replicas], dtype=np.int64)
    ttft, e2e = before.copy(), before + after
    whole = ~streams[pool_of[run.replica[done]]]
    ttft[whole] = e2e[whole]
    first_s = np.where(whole, last_s, first_s)
    for found, latency_s, out_s in ((ttft, run.ttft_s[done], first_s), (e2e, run.e2e_s[done], last_s)):
        found[:, _PLACE["client_path"]] = host.request_s + host.output_s
        found[:, _PLACE["api_server"]] = latency_s - (out_s - began_s) - host.request_s - host.output_s
    return Phases(done, ttft, e2e)


def _histories(run: Run, events: EventLog) -> dict[int, _History]:
    """Return the intervals of each request."""
    shown = run.options.hand_over.first_token
    started_s = run.started_s.tolist()
    seen_s = (run.first_token_s - run.pools[0].rules.host.output_s).tolist()  # when first tokens leave the engine
    encoders = [run.is_encoder(number) for number in range(len(run.replicas))]
    began_s = {(int(row[0]), row[5]): row[4] for row in run.encodings.tolist()}  # by request and end of the encoding
    histories: dict[int, _History] = {}
    for now, kind, number, replica, batch in events.events().tolist():
        index = int(number)
        history = histories.get(index)
        if kind == event_log.TOKENISED:
            if history is None:
                histories[index] = _History(now)
            elif history.place != "no_replica":  # its replica failed
                history.reset(now)
            continue
        assert history is not None
        if encoders[int(replica)]:
            _advance_encoder(history, int(kind), now, began_s.get((index, now), now))
            history.batch = (int(replica), int(batch))
            continue
        arrived = kind == event_log.REACHED and history.place == "transfer"
        if arrived and shown != "prefill":
            # The client saw no token of the prefill replica.
            history.spans = [span._replace(after_token=False) for span in history.spans]
            history.token = False
        if kind == event_log.JOINED and shown == "admission" and not history.token and history.was_transferred:
            history.move_to("wait", seen_s[index])
            history.token = True
        _advance(history, int(kind), now, started_s[index])
        history.batch = (int(replica), int(batch))
    return histories


def _advance_encoder(history: _History, kind: int, now: float, began_s: float) -> None:
    """Apply one event of a request on a replica of an encoder pool; its encoding began at `began_s`."""
    if kind == event_log.REACHED:
        history.move_to("wait", now)
    elif kind == event_log.PROMPTED:
        history.move_to("encode", began_s)
    elif kind == event_log.FINISHED:
        history.move_to("embeddings", now)


def _advance(history: _History, kind: int, now: float, started_s: float) -> None:
    """Apply one event of a request on an engine."""
    if kind == event_log.REACHED:
        history.move_to("wait", now)
    elif kind == event_log.OPENED:
        history.move_to("decode", now)
        history.token = True
    elif kind == event_log.JOINED:
        if history.place != "preemption" or now >= history.since_s:  # otherwise it was preempted when it joined
            history.move_to("decode", now)
    elif kind == event_log.PROMPTED:
        if history.place == "wait":
            history.move_to("prefill", started_s)
        if history.place == "decode":  # preempted while its first token was in flight
            history.place = "preemption"
        history.move_to("decode", now)
        history.token = True
    elif kind == event_log.PREEMPTED:
        if history.place == "wait" and not history.token:
            history.move_to("prefill", min(started_s, now))
        history.move_to("preemption", now)
    elif kind == event_log.FINISHED:
        if history.place == "preemption":  # its last token was in flight
            history.place = "decode"
        history.move_to("transfer", now)


def _split(place: str, table: FloatArray, run: Run) -> list[tuple[str, FloatArray]]:
    """Return (phase, seconds) of intervals of one kind. Waits are split by what the head of the queue waited for.

    Args:
        place: The kind of interval.
        table: Request, replica, batch, from, to, after first token. Shape (intervals, 6).
        run: The run.
    """
    seconds = table[:, _TO] - table[:, _FROM]
    if place == "decode":
        stalled = _stalls(table, run)
        return [("stalled_by_prefill", stalled), ("decode", seconds - stalled)]
    if place != "wait":
        return [(place, seconds)]
    assert run.options.event_log is not None
    samples = run.options.event_log.by_replica(len(run.replicas))
    found = {name: np.zeros(len(table)) for name in _WAITS.values()}
    for replica in np.unique(table[:, _REPLICA]):
        mine = np.flatnonzero(table[:, _REPLICA] == replica)
        for reason, name in _WAITS.items():
            found[name][mine] = reason_between(samples[int(replica)], reason, table[mine, _FROM], table[mine, _TO])
    rest = np.maximum(seconds - sum(found.values()), 0.0)  # avoids rounding errors such as -1e-16
    return [*found.items(), ("wait_step", rest)]


def reason_between(samples: FloatArray, reason: int, from_s: FloatArray, to_s: FloatArray) -> FloatArray:
    """Return the seconds of intervals in which a request waited on one replica for one reason. Shape (n,)."""
    if not len(samples):
        return np.zeros(len(from_s))
    at_s, _, _, _, waiting, reasons = samples.T  # event_log.SAMPLE_COLUMNS
    here = (reasons[:-1] == reason) & (waiting[:-1] > 0)
    grown = np.concatenate([[0.0], np.cumsum(np.diff(at_s) * here)])
    return np.asarray(np.interp(to_s, at_s, grown) - np.interp(from_s, at_s, grown), dtype=np.float64)


def _stalls(table: FloatArray, run: Run) -> FloatArray:
    """Return the seconds of intervals that steps took beyond the time of their decodes alone. Shape (intervals,)."""
    found = np.zeros(len(table))
    for replica, batch in np.unique(table[:, [_REPLICA, _BATCH]], axis=0).astype(np.int64).tolist():
        mine = np.flatnonzero((table[:, _REPLICA] == replica) & (table[:, _BATCH] == batch))
        record = run.replicas[replica]
        at_s, grown = _stall_curve(record.logs[batch], run.pools[record.pool].timer)
        found[mine] = np.interp(table[mine, _TO], at_s, grown) - np.interp(table[mine, _FROM], at_s, grown)
    return found


def _stall_curve(log: StepLog, timer: StepTimer) -> tuple[Sequence[float], Sequence[float]]:
    """Return (times, stalled seconds up to then), to be interpolated linearly."""
    at_s, grown, total_s = [0.0], [0.0], 0.0
    columns = (log.start_s, log.total_s, log.decodes, log.context_sum, log.context_max)
    for row in np.flatnonzero(log.prefill_tokens).tolist():
        start_s, step_s, decodes, context_sum, context_max = (float(column[row]) for column in columns)
        if not decodes:
            alone_s = 0.0
        elif log.n_ranks:
            alone_s = segment_of(timer, log.decoding(row))[0]
        else:
            alone_s = timer.decode_segment(int(decodes), int(context_sum), int(context_max))[0]
        at_s += (start_s, start_s + step_s)
        grown += (total_s, total_s + max(0.0, step_s - alone_s))
        total_s = grown[-1]
    return at_s, grown
