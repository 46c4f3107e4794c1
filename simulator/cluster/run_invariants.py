"""Invariants of a finished run, checked from its record alone.

All checks raise InvariantViolation.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from simulator.cluster.kv_transfer import TransferLinks
from simulator.cluster.run import ReplicaRun, Run
from simulator.core.invariants import InvariantViolation, require
from simulator.core.outcomes import STATUS
from simulator.schedulers.registry import POLICIES

#: Tolerated relative difference between a sum over many steps and a single multiplication.
ROUNDING = 1e-12

#: Maximum number of start times from which the load of a link is added up.
MOST_WINDOWS: Final = 500


def check_run(run: Run) -> None:
    """Check every invariant of a finished run."""
    _check_status(run)
    _check_times(run)
    _check_graph(run)
    for number, replica in enumerate(run.replicas):
        _check_steps(number, replica)
    _check_tokens(run)
    _check_handovers(run)
    _check_encodings(run)
    _check_links(run)


def _forbid(broken: npt.NDArray[np.bool_], what: str) -> None:
    """Raise InvariantViolation about the first request for which `broken`, of shape (requests,), is true."""
    if broken.any():
        raise InvariantViolation(f"request {int(np.argmax(broken))} {what}")


def _check_times(run: Run) -> None:
    """Check that completed requests have ordered times and that other requests have no last token."""
    done = run.completed
    times = (run.arrival_s, run.started_s, run.first_token_s, run.last_token_s)
    for values, name in zip(times, ("arrival", "start", "first token", "last token"), strict=True):
        _forbid(done & ~np.isfinite(values), f"completed without its {name}")
    for earlier, later, what in zip(times, times[1:], ("started", "had its first token", "ended"), strict=False):
        _forbid(done & (later < earlier), f"{what} too early")
    instants = (run.arrival_s, run.routed_s, run.started_s, run.prefilled_s, run.decoded_s, run.last_token_s)
    events = ("reached its router", "started", "had its prompt computed", "had its last token computed", "ended")
    for earlier, later, what in zip(instants, instants[1:], events, strict=False):
        _forbid(done & ~(later >= earlier), f"{what} too early")
    _forbid(done & (run.first_token_s <= run.started_s), "had its first token without any time for its first step")
    _forbid(~done & np.isfinite(run.last_token_s), "did not complete but has a last token")


def _check_graph(run: Run) -> None:
    """Check that no request is sent before the end of a request that it waits for, and its gap after it.

    Requests that did not complete end at a time that the record does not hold.
    """
    graph = run.requests.graph
    if graph is None:
        return
    ended_s = np.where(run.completed, run.last_token_s, -np.inf)
    earliest_s = graph.earliest_s(ended_s)
    _forbid(run.arrived & (run.arrival_s < earliest_s - ROUNDING * np.abs(earliest_s)), "was sent too early")
    waited = np.zeros(run.requests.n, dtype=np.bool_)
    waited[graph.waits[:, 0]] = ~run.arrived[graph.waits[:, 1]]
    _forbid(run.arrived & waited, "was sent although a request that it waits for was not")


def _check_status(run: Run) -> None:
    """Check that every request has exactly one status and that completed requests have a replica."""
    known = (run.status >= 0) & (run.status < len(STATUS))
    require(bool(known.all()), "a request has a status that does not exist")
    parts = run.completed, run.rejected, run.failed, run.timed_out, run.unfinished, ~run.arrived
    together = np.sum(np.array(parts), axis=0)
    _forbid(together != 1, f"does not have exactly one status (at most {together.max()})")
    _forbid(run.completed & (run.replica < 0), "completed without a replica")


def _check_steps(number: int, replica: ReplicaRun) -> None:
    """Check that steps run while their replica exists, take time, and do not overlap within a batch."""
    for log in replica.logs:
        if not len(log):
            continue
        ends_s = log.start_s + log.total_s
        late_s = ROUNDING * (1.0 + float(np.abs(log.start_s).max()))
        require(float(log.start_s.min()) >= replica.created_s, f"replica {number} ran a step before it existed")
        last_s = float(ends_s.max())
        text = f"replica {number} ended at {replica.removed_s:g} s but ran a step until {last_s:g} s"
        require(last_s <= replica.removed_s + late_s, text)
        takes_time = bool((log.steps >= 1).all() and (log.first_s > 0.0).all())
        require(takes_time, f"replica {number} ran a step that took no time")
        early = log.start_s[1:] < ends_s[:-1] - 1e-9 - ROUNDING * ends_s[:-1]
        require(not early.any(), f"replica {number} ran two steps of a batch at the same time")
    held = replica.kv_peak_fraction
    require(0.0 <= held <= 1.0, f"replica {number} held {held} of its cache, which is not between 0 and 1")


def _check_tokens(run: Run) -> None:
    """Check that each token is output once.

    More tokens than those of the completed requests are allowed only if work was lost or cut off.
    """
    if any(POLICIES[pool.rules.policy].pads for pool in run.pools):
        return
    made = int(sum(int(log.emitted.sum()) for log in run.logs))
    due = int(run.requests.output_tokens[run.completed].sum())
    require(made >= due, f"the steps output {made} tokens, but the completed requests have {due}")
    if run.restarts or not (run.completed | run.rejected | ~run.arrived).all():
        return
    twice = len(run.handovers) if run.options.hand_over.first_token == "decode" else 0  # the decode replica shows them
    text = f"the steps output {made} tokens, of which {twice} are computed twice, but the requests have {due}"
    require(made == due + twice, text)


def _check_handovers(run: Run) -> None:
    """Check that each computed prompt is transferred once, from a live replica to another, and forward in time."""
    index, source, target, start_s, end_s = run.handovers.T
    require(not (end_s < start_s).any(), "KV blocks arrived before their transfer began")
    require(run.options.horizon_s is not None or not np.isnan(end_s).any(), "a KV transfer never ended")
    require((source != target).all(), "KV blocks were transferred to the replica that held them")
    most = len(np.unique(index)) + run.restarts
    text = f"{len(index)} hand-overs exceed the number of requests handed over plus {run.restarts} restarts"
    require(len(index) <= most, text)
    order = np.lexsort((start_s, index))
    again = index[order][1:] == index[order][:-1]
    early = again & (start_s[order][1:] < start_s[order][:-1])
    require(not early.any(), "two transfers of a request overlap")
    removed_s = np.array([replica.removed_s for replica in run.replicas])
    require((start_s <= removed_s[source.astype(int)]).all(), "KV blocks left a replica that had ended")


def _check_encodings(run: Run) -> None:
    """Check that exactly the requests with items pass an encoder pool, once unless they restart, and before any prompt.

    Their embeddings leave a live encoder replica when they are encoded, and arrive before the prompt is computed.
    """
    if not any(pool.role == "encode" for pool in run.pools):
        return
    index, encoder, target, reached_s, began_s, encoded_s, arrived_s, embeddings = run.encodings.T
    media = run.requests.media
    items = np.zeros(run.requests.n, dtype=np.int64) if media is None else media.counts
    passes = np.bincount(index.astype(np.int64), minlength=run.requests.n)
    _forbid((passes > 0) & (items == 0), "has no items but passed an encoder pool")
    _forbid(run.completed & (items > 0) & (passes == 0), "was served although no encoder pool encoded its items")
    require(int((passes - 1).clip(min=0).sum()) <= run.restarts, "a request was encoded twice without a restart")
    require(all(run.is_encoder(int(number)) for number in encoder), "items were encoded outside the encoder pool")
    require(not any(run.is_encoder(int(n)) for n in target if n >= 0), "embeddings were sent to an encoder replica")
    require(not (began_s < reached_s).any(), "an encoding began before its request reached the encoder")
    require(not (encoded_s <= began_s).any(), "an encoding took no time")
    require(not (arrived_s < encoded_s).any(), "embeddings arrived before they were encoded")
    require(not (embeddings < 1).any(), "a request was encoded without embeddings")
    arrived = run.encoding_times()[:, 3]
    _forbid(run.completed & (items > 0) & ~(run.started_s >= arrived), "was computed before its embeddings arrived")
    removed_s = np.array([replica.removed_s for replica in run.replicas])
    require(bool((encoded_s <= removed_s[encoder.astype(int)]).all()), "embeddings left a replica that had ended")


def _check_links(run: Run) -> None:
    """Check the link use of the transfers of KV blocks and of embeddings.

    No transfer is faster than its links permit, no link exceeds its capacity, and overlapping transfers end no later
    than if they had been sent one after the other.
    """
    transfer = run.options.transfer
    if not isinstance(transfer, TransferLinks):
        return
    prompts = run.requests.input_tokens
    rows = [(*row, int(prompts[int(row[0])])) for row in run.handovers.tolist()]
    rows += [(*row[:3], *row[5:7], int(row[7])) for row in run.encodings.tolist() if row[2] >= 0]
    sent = []  # in the order in which they began
    for index, source, target, start_s, end_s, tokens in sorted(rows, key=lambda row: row[3]):
        path = transfer.paths[run.replicas[int(source)].pool, run.replicas[int(target)].pool]
        loads = path.load(tokens).by_link(transfer.names[int(source)], transfer.names[int(target)])
        if not np.isnan(end_s):
            sent.append(_SentTransfer(int(index), start_s, end_s - path.latency_s, path.pieces(tokens), loads))
    for trip in sent:
        in_time = trip.end_s >= trip.start_s + trip.wire_s / trip.pieces - trip.late_s
        require(in_time, f"the data of request {trip.request} arrived faster than its links permit")
    _check_capacity(sent)
    if len(sent) == len(rows) and not transfer.was_slowed:
        _check_busy(sent)


class _SentTransfer(NamedTuple):
    """A KV transfer and the seconds that it occupies each link."""

    request: int
    start_s: float
    end_s: float  # without the latency
    pieces: int
    loads: dict[Hashable, float]

    @property
    def wire_s(self) -> float:
        return max(self.loads.values())

    @property
    def late_s(self) -> float:
        return ROUNDING * self.end_s + 1e-9


def _check_capacity(transfers: Sequence[_SentTransfer]) -> None:
    """Check that every link had enough time for the transfers within any interval from a start to a later end."""
    on: dict[Hashable, list[tuple[float, float, float]]] = {}
    for trip in transfers:
        for link, seconds in trip.loads.items():
            on.setdefault(link, []).append((trip.start_s, trip.end_s, seconds / trip.pieces))
    for link, rows in on.items():
        start_s, end_s, busy_s = np.array(sorted(rows, key=lambda row: row[1])).T
        for first_s in np.unique(start_s)[:: 1 + len(rows) // MOST_WINDOWS]:
            carried_s = np.cumsum(np.where(start_s >= first_s, busy_s, 0.0))
            most_s = end_s - first_s + ROUNDING * len(rows) * end_s + 1e-9
            broken = (carried_s > most_s) & (start_s >= first_s)
            require(not broken.any(), f"link {link} exceeded its capacity from {first_s:g} s on")


def _check_busy(transfers: Sequence[_SentTransfer]) -> None:
    """Check that overlapping transfers end no later than they would if sent one after the other."""
    met: list[_SentTransfer] = []
    through_s = 0.0
    for trip in [*transfers, None]:
        if trip is None or trip.start_s > through_s:
            for each in met:
                late_s = len(met) * ROUNDING * through_s + 1e-9
                text = f"the data of request {each.request} arrived later than in a serial transfer"
                require(each.end_s <= through_s + late_s, text)
            met.clear()
        if trip is not None:
            through_s = max(through_s, trip.start_s) + trip.wire_s
            met.append(trip)
