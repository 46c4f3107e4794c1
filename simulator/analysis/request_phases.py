"""The phases of every request's life, which follow each other without a gap and so add up to its latency.

They are read from a run's results, step logs and event log; nothing is simulated again. docs/explain.md defines every
phase.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from catalogs.arrays import FloatArray
from simulator.cluster.run import Run
from simulator.core.step_log import StepLog
from simulator.core.step_timer import StepTimer, segment_of
from simulator.engine.event_log import (
    BLOCKS,
    FINISHED,
    JOINED,
    OPENED,
    PREEMPTED,
    PROMPTED,
    REACHED,
    SEATS,
    TOKENISED,
    TURN,
    EventLog,
)
from simulator.schedulers.registry import POLICIES

#: The phases in their usual order.
PHASES: Final = (
    "client_path",  # fixed times on the way in and out
    "api_server",  # tokenisation and streaming, and the queues for both
    "lost",  # time on replicas that failed, and the wait before the request was sent again
    "no_replica",  # wait for a replica that can take it
    "wait_seat",
    "wait_blocks",
    "wait_turn",  # the token budget is used up, or the engine waits for more requests
    "wait_step",  # the engine reads its queue only between steps, and schedules ahead
    "prefill",
    "transfer",
    "decode",
    "stalled_by_prefill",  # decode steps take longer, or do not run, because of prompts
    "preemption",  # wait and recomputation after a preemption
)

_WAITS: Final = {SEATS: "wait_seat", BLOCKS: "wait_blocks", TURN: "wait_turn"}

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


#: (phase or kind of interval, replica, lane, from, to, whether the first token came before it)
Span = tuple[str, int, int, float, float, bool]


class _Life:
    """The intervals of one request according to the events read up to now."""

    __slots__ = ("began_s", "door_s", "lane", "place", "since_s", "spans", "token")

    def __init__(self, door_s: float) -> None:
        self.began_s = self.door_s = door_s  # first and last arrival at the router
        self.reset(door_s)

    def reset(self, door_s: float) -> None:
        """Restart the request at the router, with nothing computed."""
        self.door_s = self.since_s = door_s
        self.place = "no_replica"
        self.lane = (-1, 0)
        self.token = False  # whether the first token has come
        self.spans: list[Span] = []

    def hide(self) -> None:
        """Record that the token of the replica that prefilled the request was not shown."""
        self.spans = [(*span[:5], False) for span in self.spans]
        self.token = False

    def go(self, place: str, now: float) -> None:
        """End the current interval and start another one."""
        self.spans.append((self.place, *self.lane, self.since_s, now, self.token))
        self.place, self.since_s = place, now


def phases(run: Run) -> Phases:
    """Return the phases of every completed request.

    Raises:
        ValueError: The run has no event log.
    """
    if run.options.journal is None:
        raise ValueError("the phases of requests need the event log of the run, which has none")
    done = np.flatnonzero(run.completed)
    lives = _lives(run, run.options.journal)
    before = np.zeros((run.requests.n, len(PHASES)))  # seconds by phase until the first token leaves the engine
    after = np.zeros_like(before)
    # Spans of all requests, each preceded by the row of the request.
    by_place: dict[str, list[tuple[int, int, int, float, float, bool]]] = {}
    left = np.zeros((run.requests.n, 3))  # arrival at the router, first and last token leave the engine
    for index in done.tolist():
        life = lives[index]
        before[index, _PLACE["lost"]] = life.door_s - life.began_s
        left[index] = life.began_s, *_ends(life)
        for span in life.spans:
            by_place.setdefault(span[0], []).append((index, *span[1:]))
    for place, spans in by_place.items():
        table = np.array(spans, dtype=np.float64).reshape(-1, 6)
        for name, seconds in _split(place, table, run):
            for late, target in ((0.0, before), (1.0, after)):
                some = table[:, 5] == late
                np.add.at(target[:, _PLACE[name]], table[some, 0].astype(np.int64), seconds[some])
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


def _ends(life: _Life) -> tuple[float, float]:
    """Return the times at which the first and the last token left the engine."""
    return next(start for _, _, _, start, _, late in life.spans if late), life.since_s


def _lives(run: Run, journal: EventLog) -> dict[int, _Life]:
    """Return the intervals of each request."""
    shown = run.options.hand_over.first_token
    started_s = run.started_s.tolist()
    lives: dict[int, _Life] = {}
    for now, kind, number, replica, lane in journal.events().tolist():
        index = int(number)
        life = lives.get(index)
        if kind == TOKENISED:
            if life is None:
                lives[index] = _Life(now)
            elif life.place != "no_replica":  # its replica failed
                life.reset(now)
            continue
        assert life is not None
        arrived = kind == REACHED and life.place == "transfer"
        if arrived and shown != "prefill":
            life.hide()
        _advance(life, int(kind), now, started_s[index])
        if arrived and shown == "arrival":
            life.token = True
        life.lane = (int(replica), int(lane))
    return lives


def _advance(life: _Life, kind: int, now: float, started_s: float) -> None:
    """Apply one event of a request on an engine."""
    if kind == REACHED:
        life.go("wait", now)
    elif kind == OPENED:
        life.go("decode", now)
        life.token = True
    elif kind == JOINED:
        if life.place != "preemption" or now >= life.since_s:  # otherwise it was preempted when it joined
            life.go("decode", now)
    elif kind == PROMPTED:
        if life.place == "wait":
            life.go("prefill", started_s)
        if life.place == "decode":  # preempted while its first token was in flight
            life.place = "preemption"
        life.go("decode", now)
        life.token = True
    elif kind == PREEMPTED:
        if life.place == "wait" and not life.token:
            life.go("prefill", min(started_s, now))
        life.go("preemption", now)
    elif kind == FINISHED:
        if life.place == "preemption":  # its last token was in flight
            life.place = "decode"
        life.go("transfer", now)


def _split(place: str, table: FloatArray, run: Run) -> list[tuple[str, FloatArray]]:
    """Return (phase, seconds) of intervals of one kind.

    Args:
        place: The kind of interval.
        table: Request, replica, lane, from, to, after first token. Shape (intervals, 6).
        run: The run.
    """
    seconds = table[:, 4] - table[:, 3]
    if place == "wait":
        return _split_waits(table, seconds, run)
    if place == "decode":
        stalled = _stalls(table, run)
        return [("stalled_by_prefill", stalled), ("decode", seconds - stalled)]
    return [(place, seconds)]


def _split_waits(table: FloatArray, seconds: FloatArray, run: Run) -> list[tuple[str, FloatArray]]:
    """Return (phase, seconds) of waits, by the reason for which the head of the queue waited."""
    assert run.options.journal is not None
    samples = run.options.journal.by_replica(len(run.replicas))
    found = {name: np.zeros(len(table)) for name in _WAITS.values()}
    for replica in np.unique(table[:, 1]):
        mine = np.flatnonzero(table[:, 1] == replica)
        here = samples[int(replica)]
        for reason, name in _WAITS.items():
            found[name][mine] = reason_between(here, reason, table[mine, 3], table[mine, 4])
    rest = np.maximum(seconds - sum(found.values()), 0.0)  # avoids rounding errors such as -1e-16
    return [*found.items(), ("wait_step", rest)]


def reason_between(samples: FloatArray, reason: int, from_s: FloatArray, to_s: FloatArray) -> FloatArray:
    """Return the seconds of intervals in which a request waited on one replica for one reason. Shape (n,)."""
    if not len(samples):
        return np.zeros(len(from_s))
    at_s = samples[:, 0]
    here = (samples[:-1, 5] == reason) & (samples[:-1, 4] > 0)
    grown = np.concatenate([[0.0], np.cumsum(np.diff(at_s) * here)])
    return np.asarray(np.interp(to_s, at_s, grown) - np.interp(from_s, at_s, grown), dtype=np.float64)


def _stalls(table: FloatArray, run: Run) -> FloatArray:
    """Return the seconds of intervals that steps took beyond the time of their decodes alone. Shape (intervals,)."""
    found = np.zeros(len(table))
    for replica, lane in np.unique(table[:, 1:3], axis=0).astype(np.int64).tolist():
        mine = np.flatnonzero((table[:, 1] == replica) & (table[:, 2] == lane))
        did = run.replicas[replica]
        at_s, grown = _stall_curve(did.logs[lane], run.pools[did.pool].timer)
        found[mine] = np.interp(table[mine, 4], at_s, grown) - np.interp(table[mine, 3], at_s, grown)
    return found


def _stall_curve(log: StepLog, timer: StepTimer) -> tuple[Sequence[float], Sequence[float]]:
    """Return (times, stalled seconds up to then), to be interpolated linearly."""
    at_s, grown, total_s = [0.0], [0.0], 0.0
    row = -1
    columns = (log.start_s, log.total_s, log.prefill_tokens, log.decodes, log.context_sum, log.context_max)
    for start_s, step_s, prefill, decodes, context_sum, context_max in zip(*(c.tolist() for c in columns), strict=True):
        row += 1
        if not prefill:
            continue
        if not decodes:
            alone_s = 0.0
        elif log.n_ranks:
            alone_s = segment_of(timer, log.decoding(row))[0]
        else:
            alone_s = timer.decode_segment(int(decodes), int(context_sum), int(context_max))[0]
        at_s += (start_s, start_s + step_s)
        grown.append(total_s)
        total_s += max(0.0, step_s - alone_s)
        grown.append(total_s)
    return at_s, grown
