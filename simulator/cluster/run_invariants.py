"""Invariants of a finished run, checked from its record alone.

All checks raise InvariantViolation.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from simulator.cluster.kv_transfer import TransferLinks
from simulator.cluster.run import ReplicaRun, Run
from simulator.core.invariants import InvariantViolation
from simulator.core.outcomes import STATUS
from simulator.core.step_log import StepLog
from simulator.schedulers.registry import POLICIES

#: Tolerated relative difference between a sum over many steps and a single multiplication.
ROUNDING = 1e-12

#: Maximum number of start times from which the load of a link is added up.
MOST_WINDOWS: Final = 500


def check_run(run: Run) -> None:
    """Check every invariant of a finished run."""
    _check_status(run)
    _check_times(run)
    for number, replica in enumerate(run.replicas):
        _check_life(number, replica)
        for log in replica.logs:
            _check_log(number, log)
    _check_tokens(run)
    _check_handovers(run)
    _check_links(run)


def _law(holds: bool | np.bool_, text: str) -> None:
    if not holds:
        raise InvariantViolation(text)


def _first(broken: npt.NDArray[np.bool_]) -> int:
    return int(np.flatnonzero(broken)[0])


def _check_times(run: Run) -> None:
    """Check that completed requests have ordered times and that other requests have no last token."""
    done = run.completed
    times = (run.arrival_s, run.started_s, run.first_token_s, run.last_token_s)
    for name, values in zip(("sent", "started", "given a token", "given its last token"), times, strict=True):
        missing = done & ~np.isfinite(values)
        _law(not missing.any(), f"request {_first(missing) if missing.any() else 0} completed and was never {name}")
    for earlier, later, what in zip(times, times[1:], ("started", "had a token", "ended"), strict=False):
        broken = done & (later < earlier)
        _law(not broken.any(), f"request {_first(broken) if broken.any() else 0} {what} before its time")
    at_once = done & (run.first_token_s <= run.started_s)
    _law(not at_once.any(), f"request {_first(at_once) if at_once.any() else 0} had a token in no time")
    ended = ~done & np.isfinite(run.last_token_s)
    _law(not ended.any(), f"request {_first(ended) if ended.any() else 0} did not complete and has a last token")


def _check_status(run: Run) -> None:
    """Check that every request has exactly one status and that completed requests have a replica."""
    status = run.status
    _law(((status >= 0) & (status < len(STATUS))).all(), "a status that does not exist")
    parts = run.completed, run.rejected, run.failed, run.timed_out, run.unfinished, ~run.arrived
    together = np.sum(np.array(parts), axis=0)
    broken = together != 1
    _law(not broken.any(), f"request {_first(broken) if broken.any() else 0} is {together.max()} things at once")
    served = run.completed & (run.replica < 0)
    _law(not served.any(), f"request {_first(served) if served.any() else 0} completed on no replica")


def _check_life(number: int, replica: ReplicaRun) -> None:
    """Check that no step runs before its replica exists or after it has ended."""
    for log in replica.logs:
        if not len(log):
            continue
        late_s = ROUNDING * (1.0 + float(np.abs(log.start_s).max()))
        _law(float(log.start_s.min()) >= replica.born_s, f"replica {number} ran a step before it was born")
        end_s = float((log.start_s + log.total_s).max())
        _law(end_s <= replica.died_s + late_s, f"replica {number} died at {replica.died_s:g} s and ran until {end_s:g}")
    _law(0.0 <= replica.kv_peak_fraction <= 1.0, f"replica {number} held {replica.kv_peak_fraction} of its cache")


def _check_log(number: int, log: StepLog) -> None:
    """Check that the steps of one batch do not overlap and have positive durations."""
    if not len(log):
        return
    _law((log.steps >= 1).all() and (log.first_s > 0.0).all(), f"replica {number}: a step that takes no time")
    ends = log.start_s + log.total_s
    early = log.start_s[1:] < ends[:-1] - 1e-9 - ROUNDING * ends[:-1]
    _law(not early.any(), f"replica {number}: two steps of a batch at once")


def _check_tokens(run: Run) -> None:
    """Check that each token is output once.

    More tokens than those of the completed requests are allowed only if work was lost or cut off.
    """
    if any(POLICIES[pool.rules.policy].pads for pool in run.pools):
        return
    made = int(sum(int(log.emitted.sum()) for log in run.logs))
    asked = int(run.requests.output_tokens[run.completed].sum())
    _law(made >= asked, f"{made} tokens came out, the completed requests have {asked}")
    if run.restarts or not (run.completed | run.rejected | ~run.arrived).all():
        return
    twice = len(run.handovers) if run.options.hand_over.first_token == "decode" else 0  # computed here, shown there
    _law(made == asked + twice, f"{made} tokens came out, {twice} of them to be computed again, of {asked}")


def _check_handovers(run: Run) -> None:
    """Check that each computed prompt is transferred once, from a live replica to another, and forward in time."""
    if not len(run.handovers):
        return
    index, source, target, start_s, end_s = run.handovers.T
    _law(~(end_s < start_s).any(), "blocks arrived before they left")
    _law(run.options.horizon_s is not None or not np.isnan(end_s).any(), "blocks never arrived")
    _law((source != target).all(), "blocks travelled to where they were")
    n = len(index)
    most = len(np.unique(index)) + run.restarts
    _law(n <= most, f"{n} hand-overs of {len(np.unique(index))} requests, {run.restarts} of them lost once")
    order = np.lexsort((start_s, index))
    again = index[order][1:] == index[order][:-1]
    early = again & (start_s[order][1:] < start_s[order][:-1])
    _law(not early.any(), "a request travelled twice at once")
    died_s = np.array([replica.died_s for replica in run.replicas])
    _law((start_s <= died_s[source.astype(int)]).all(), "blocks left a dead replica")


def _check_links(run: Run) -> None:
    """Check the link use of KV transfers.

    No transfer is faster than its links permit, no link exceeds its capacity, and overlapping transfers end no later
    than if they had been sent one after the other.
    """
    transfer = run.options.transfer
    if not isinstance(transfer, TransferLinks):
        return
    sent = [trip for trip in _trips(run, transfer) if trip.end_s < np.inf]
    for trip in sent:
        in_time = trip.end_s >= trip.start_s + trip.wire_s / trip.pieces - trip.late_s
        _law(in_time, f"blocks of request {trip.request} arrived faster than their link carries them")
    _check_capacity(sent)
    if len(sent) == len(run.handovers) and not transfer.was_slowed:
        _check_busy(sent)


class _Trip(NamedTuple):
    """A KV transfer and the seconds that it occupies each link."""

    request: int
    start_s: float
    end_s: float  # without the latency; inf: in flight
    pieces: int
    loads: dict[Hashable, float]

    @property
    def wire_s(self) -> float:
        return max(self.loads.values())

    @property
    def late_s(self) -> float:
        return ROUNDING * self.end_s + 1e-9


def _trips(run: Run, ports: TransferLinks) -> Iterator[_Trip]:
    """Yield the KV transfers of a run in the order in which they began."""
    for index, source, target, start_s, end_s in run.handovers.tolist():
        path = ports.paths[run.replicas[int(source)].pool, run.replicas[int(target)].pool]
        tokens = int(run.requests.input_tokens[int(index)])
        load = path.load(tokens)
        loads: dict[Hashable, float] = {("out", name): load.out_s for name in ports.named(int(source))}
        loads |= {("in", name): load.in_s for name in ports.named(int(target))}
        over_s = np.inf if np.isnan(end_s) else end_s - path.latency_s
        yield _Trip(int(index), start_s, over_s, path.pieces(tokens), loads)


def _check_capacity(trips: Sequence[_Trip]) -> None:
    """Check that every link had enough time for the transfers within any interval from a start to a later end."""
    on: dict[Hashable, list[tuple[float, float, float]]] = {}
    for trip in trips:
        for link, seconds in trip.loads.items():
            on.setdefault(link, []).append((trip.start_s, trip.end_s, seconds / trip.pieces))
    for link, rows in on.items():
        start_s, end_s, busy_s = np.array(sorted(rows, key=lambda row: row[1])).T
        for first_s in np.unique(start_s)[:: 1 + len(rows) // MOST_WINDOWS]:
            carried_s = np.cumsum(np.where(start_s >= first_s, busy_s, 0.0))
            room_s = end_s - first_s + ROUNDING * len(rows) * end_s + 1e-9
            broken = (carried_s > room_s) & (start_s >= first_s)
            _law(not broken.any(), f"link {link} carried more than it can from {first_s:g} s on")


def _check_busy(trips: Sequence[_Trip]) -> None:
    """Check that overlapping transfers end no later than they would if sent one after the other."""
    met: list[_Trip] = []
    through_s = 0.0
    for trip in [*trips, None]:
        if trip is None or trip.start_s > through_s:
            for each in met:
                late_s = len(met) * ROUNDING * through_s + 1e-9
                _law(each.end_s <= through_s + late_s, f"blocks of request {each.request} were carried twice")
            met.clear()
        if trip is not None:
            through_s = max(through_s, trip.start_s) + trip.wire_s
            met.append(trip)
