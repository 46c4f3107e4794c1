"""Transfers that share links with max-min fair rates.

The rates follow from progressive filling: the rates of all transfers rise together until a link is full, the transfers
that cross that link keep their rate, and the others continue to rise. Rates change only when a transfer begins or
ends or a link changes, and only for transfers that share links with it, directly or through other transfers. Between
such changes every end time is known. Transfers over the same links form a stream and progress at one rate. Within a
stream the transfer with the least left to send ends first, and ties go to the one that began first. A rate change
costs the same for any number of transfers in a stream. A transfer that shares no link costs one event.

A transfer may also be sent in pieces while its prompt is being computed. Such a transfer cannot be simulated as an
event when its first piece is ready, because three facts are known only when the prompt is done: which replica decodes
the request (the router decides at that time), when each piece was ready (an even share of the whole time, whose end is
not known before), and whether the transfer happens at all (the request may be preempted, cancelled or lost with its
replica before). The transfer therefore begins when the prompt is done. `LinkPast` remembers the recent use of the
links and determines what had been sent by then: the pieces that were ready, within the capacity that other transfers
had left free on every link. Transfers that began earlier are not changed retroactively.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from functools import partial
from heapq import heappop, heappush
from itertools import pairwise
from math import inf
from typing import Final, NamedTuple

from simpy import Event

from simulator.core.clock import ARRIVAL, Clock
from simulator.core.invariants import ROUNDING, require


class SharedTransfer:
    """A transfer over one or more links.

    Attributes:
        size: Bytes to send. Fair rates are rates of `size` per second.
        loads: Seconds that the whole transfer occupies each link that it crosses.
        latency_s: Seconds from the last byte sent to the call of `arrive`.
        arrive: Called when the transfer has arrived.
        on_begin: Called when the transfer begins, before it is accounted for.
        sent: Fraction that was sent before the transfer began.
        end_s: When the last byte is sent, in seconds; inf while that is unknown.
        stream: The stream it belongs to; None before it begins and after it ends.
        event: Its arrival event; any other event is stale.
        follower: The transfer that begins when this one ends.
    """

    __slots__ = ("arrive", "end_s", "event", "follower", "latency_s", "loads", "on_begin", "sent", "size", "stream")

    def __init__(
        self,
        size: float,
        loads: Mapping[Hashable, float],
        latency_s: float,
        arrive: Callable[[], object],
        on_begin: Callable[[], object] | None = None,
    ) -> None:
        self.size, self.latency_s, self.arrive, self.on_begin = size, latency_s, arrive, on_begin
        self.loads = {link: seconds for link, seconds in loads.items() if seconds > 0.0}
        self.sent = 0.0
        self.end_s = inf
        self.stream: TransferStream | None = None
        self.event: Event | None = None
        self.follower: SharedTransfer | None = None

    def arrived(self, event: Event) -> None:
        """Call `arrive`, unless another arrival event has replaced `event`."""
        if event is self.event:
            self.arrive()

    @property
    def kind(self) -> tuple[tuple[Hashable, str], ...]:
        """The links with the seconds per unit of size on each, rounded; transfers of equal kind form a stream."""
        return tuple((link, f"{seconds / self.size:.9e}") for link, seconds in self.loads.items())


class TransferStream:
    """Transfers over the same links, which all progress at one rate."""

    __slots__ = ("costs", "end_s", "event", "event_s", "head", "members", "passed", "rate", "since_s", "unshared")

    def __init__(self, costs: Mapping[Hashable, float]) -> None:
        self.costs = costs  # seconds per unit of size on each link
        # A heap of (value of `passed` at which the transfer ends, sequence number, transfer).
        self.members: list[tuple[float, int, SharedTransfer]] = []
        self.rate = self.passed = self.since_s = 0.0  # per member: size per second, and size sent until since_s
        self.end_s = inf  # when the first member ends
        self.head: SharedTransfer | None = None  # the member that ends first
        self.unshared = False  # its only transfer shares no link: its arrival is scheduled, and its end has no event
        self.event: Event | None = None
        self.event_s = inf


def fair_rates(streams: Collection[TransferStream], slower: Mapping[Hashable, float]) -> dict[TransferStream, float]:
    """Return the max-min fair rate of the members of each stream.

    Args:
        streams: Streams that share their links with no other stream.
        slower: The slowdown factor of each degraded link; other links have a factor of 1.
    """
    crossing: dict[Hashable, dict[TransferStream, float]] = {}  # seconds for one unit of size of every member
    for stream in streams:
        for link, cost in stream.costs.items():
            crossing.setdefault(link, {})[stream] = len(stream.members) * cost * slower.get(link, 1.0)
    free = dict.fromkeys(crossing, 1.0)
    found: dict[TransferStream, float] = {}
    while crossing:
        levels = {link: max(0.0, free[link]) / sum(users.values()) for link, users in crossing.items()}
        full = min(levels, key=levels.__getitem__)
        for stream in list(crossing[full]):
            found[stream] = levels[full]
            for link in stream.costs:
                free[link] -= levels[full] * crossing[link].pop(stream)
                if not crossing[link]:
                    del crossing[link]
    return found


class LinkUse(NamedTuple):
    """The seconds for which transfers have used a link, and whether a transfer uses it now.

    Attributes:
        carried_s: For how many seconds, at its nominal rate, they have occupied it since the use was first asked for.
        is_used: Whether one uses it now.
    """

    carried_s: float
    is_used: bool


class FairShareNetwork:
    """The transfers in flight over the links of one run."""

    def __init__(self, clock: Clock, check_invariants: bool = False, remembers: bool = False) -> None:
        """Create an empty network.

        Args:
            clock: The clock of the run.
            check_invariants: Whether to check the invariants at every change.
            remembers: Whether to keep the recent use of the links, for transfers that are sent in pieces.
        """
        self._clock, self._check_invariants = clock, check_invariants
        self._streams: dict[tuple[tuple[Hashable, str], ...], TransferStream] = {}  # by kind
        self._on: dict[Hashable, dict[TransferStream, None]] = {}  # streams with members, by link
        self._slower: dict[Hashable, float] = {}
        self._past = LinkPast() if remembers else None
        self._carried_s: dict[Hashable, float] = {}  # by counted link, seconds for which transfers have occupied it
        self._n = 0  # number of transfers begun so far

    def begin(self, flow: SharedTransfer, pieces: TransferPieces | None = None) -> None:
        """Begin a transfer now; its pieces were sent earlier, as they became ready and the links had capacity."""
        now = self._clock.now
        if flow.on_begin is not None:
            flow.on_begin()
        self._settle(flow.loads)
        seconds = {link: load * self._slower.get(link, 1.0) for link, load in flow.loads.items()}
        wire_s = max(seconds.values(), default=0.0)
        end_s = now + wire_s
        if not wire_s:
            self._over(flow, end_s)
            return
        if pieces is not None and pieces.n > 1:
            end_s = self._catch_up(flow, seconds, pieces)
            for link in self._carried_s.keys() & flow.loads.keys():
                self._carried_s[link] += flow.sent * flow.loads[link]
        meets = any(self._on.get(link) for link in flow.loads)
        stream = self._enter(flow)
        if meets:
            self._share((stream,))
            return
        stream.rate, stream.since_s, stream.end_s, stream.head = flow.size / wire_s, now, end_s, flow
        if flow.follower is None:
            stream.unshared, flow.end_s = True, end_s
            self._arrive_at(flow, end_s)
        else:
            self._schedule_end(stream)

    def _enter(self, flow: SharedTransfer) -> TransferStream:
        kind = flow.kind
        if kind not in self._streams:
            self._streams[kind] = TransferStream({link: load / flow.size for link, load in flow.loads.items()})
        stream = self._streams[kind]
        self._account(stream, self._clock.now)
        self._n += 1
        heappush(stream.members, (stream.passed + (1.0 - flow.sent) * flow.size, self._n, flow))
        flow.stream = stream
        for link in flow.loads:
            self._on.setdefault(link, {})[stream] = None
        return stream

    def _catch_up(self, flow: SharedTransfer, seconds: Mapping[Hashable, float], pieces: TransferPieces) -> float:
        """Record what was sent before now, and return when all of it is sent if no other transfer begins."""
        now, wire_s, past = self._clock.now, max(seconds.values()), self._past
        assert past is not None
        for other in {other: None for link in flow.loads for other in self._on.get(link, ())}:
            self._account(other, now)
        flow.sent, met = past.catch_up(seconds, pieces)
        return now + (1.0 - flow.sent) * wire_s if met else pieces.alone_end_s(wire_s)

    def begin_after(self, earlier: SharedTransfer | None, flow: SharedTransfer, pieces: TransferPieces) -> None:
        """Begin `flow` when `earlier`, which has no follower yet, has ended."""
        if earlier is None or earlier.end_s <= self._clock.now:
            self.begin(flow, pieces._replace(free_s=0.0 if earlier is None else earlier.end_s))
            return
        earlier.follower = flow
        if earlier.stream is not None:
            self._watch(earlier.stream)

    def slow(self, links: Iterable[Hashable], factor: float) -> None:
        """Multiply the transfer time on `links` by `factor` from now on; 1 restores the nominal speed."""
        links = tuple(links)
        self._settle(links)
        streams = [stream for link in links for stream in self._on.get(link, ())]
        for stream in streams:
            self._account(stream, self._clock.now)
        self._slower.update(dict.fromkeys(links, factor))
        if streams:
            self._share(streams)

    def use_of(self, link: Hashable) -> LinkUse:
        """Return the use of a link by transfers until now."""
        streams = self._on.get(link)
        if streams:
            self._settle((link,))
            for stream in streams:
                self._account(stream, self._clock.now)
        return LinkUse(self._carried_s.setdefault(link, 0.0), bool(streams))

    # ---- ends

    def _settle(self, links: Iterable[Hashable]) -> None:
        """Remove from these links the unshared transfers that have ended."""
        now = self._clock.now
        for stream in [stream for link in links for stream in self._on.get(link, ())]:
            if stream.unshared and stream.end_s <= now:
                self._pop(stream)

    def _pop(self, stream: TransferStream) -> SharedTransfer:
        """Remove and return the member that ends first, which has ended and frees its links."""
        self._account(stream, stream.end_s)
        target, _, flow = heappop(stream.members)
        if self._check_invariants:
            left = target - stream.passed
            tolerance = ROUNDING + 1e-12 * (1.0 + stream.end_s) / max(flow.loads.values())
            text = f"{left} of {flow.size} bytes are left when a transfer ends"
            require(abs(left) <= tolerance * flow.size, text)
        stream.passed, flow.stream = max(target, stream.passed), None
        if not stream.members:
            for link in stream.costs:
                del self._on[link][stream]
            stream.passed, stream.unshared, stream.head = 0.0, False, None
            stream.event, stream.event_s = None, inf
        return flow

    def _watch(self, stream: TransferStream) -> None:
        """Schedule an event for the end of an unshared transfer, because its arrival is no longer certain."""
        if stream.unshared and stream.head is not None:
            stream.unshared, stream.head.event, stream.head.end_s = False, None, inf
            self._schedule_end(stream)

    def _schedule_end(self, stream: TransferStream) -> None:
        """Schedule a check at the end of the first member; a check that is too early reschedules itself."""
        if stream.end_s < stream.event_s:
            stream.event_s = stream.end_s
            stream.event = self._clock.at(stream.end_s, ARRIVAL, [partial(self._check_end, stream)])

    def _check_end(self, stream: TransferStream, event: Event) -> None:
        """End the members of a stream that have sent everything, unless `event` is stale."""
        if event is not stream.event:
            return
        now, stream.event_s = self._clock.now, inf
        if stream.end_s > now:
            self._schedule_end(stream)
            return
        ended = [self._pop(stream)]
        while stream.members and stream.members[0][0] <= stream.passed:
            ended.append(self._pop(stream))
        self._share([other for link in stream.costs for other in self._on[link]])
        for flow in ended:
            self._over(flow, now)

    def _over(self, flow: SharedTransfer, end_s: float) -> None:
        flow.end_s = end_s
        self._arrive_at(flow, end_s)
        if flow.follower is not None:
            self.begin(flow.follower)

    def _arrive_at(self, flow: SharedTransfer, end_s: float) -> None:
        flow.event = self._clock.at(end_s + flow.latency_s, ARRIVAL, [flow.arrived])

    # ---- rates

    def _share(self, streams: Iterable[TransferStream]) -> None:
        """Recompute the rates of `streams` and of all streams connected to them by links."""
        connected = self._connected(streams)
        if not connected:
            return
        now = self._clock.now
        for stream, rate in fair_rates(connected, self._slower).items():
            self._watch(stream)
            target, _, head = stream.members[0]
            if rate != stream.rate or head is not stream.head:
                self._account(stream, now)
                stream.rate, stream.head = rate, head
                stream.end_s = now + max(0.0, target - stream.passed) / rate
            self._schedule_end(stream)
        if self._check_invariants:
            check_shares(connected, self._slower)

    def _connected(self, streams: Iterable[TransferStream]) -> dict[TransferStream, None]:
        found = dict.fromkeys(streams)
        waiting, seen = list(found), set[Hashable]()
        while waiting:
            links = [link for link in waiting.pop().costs if link not in seen]
            seen.update(links)
            new = [other for link in links for other in self._on[link] if other not in found]
            found.update(dict.fromkeys(new))
            waiting += dict.fromkeys(new)
        return found

    def _account(self, stream: TransferStream, until_s: float) -> None:
        """Account for what the stream has sent since the last call, until `until_s`."""
        past_s = until_s - stream.since_s
        if past_s > 0.0 and stream.members:
            stream.passed += stream.rate * past_s
            for link in self._carried_s.keys() & stream.costs.keys():
                self._carried_s[link] += len(stream.members) * stream.rate * stream.costs[link] * past_s
            if self._past is not None:
                for link, cost in stream.costs.items():
                    share = len(stream.members) * stream.rate * cost * self._slower.get(link, 1.0)
                    self._past.note(link, stream.since_s, until_s, share)
        stream.since_s = until_s


def check_shares(streams: Collection[TransferStream], slower: Mapping[Hashable, float]) -> None:
    """Check that the rates of `streams`, which share no link with other streams, are max-min fair.

    No link may exceed its capacity, and every stream must cross a full link on which no other stream is faster.

    Raises:
        InvariantViolation: If a link is overloaded or a transfer is slower than its links permit.
    """
    users: dict[Hashable, list[TransferStream]] = {}
    for stream in streams:
        for link in stream.costs:
            users.setdefault(link, []).append(stream)
    held: set[TransferStream] = set()
    for link, together in users.items():
        flows = [(stream.rate, flow) for stream in together for _, _, flow in stream.members]
        used = sum(rate * flow.loads[link] / flow.size for rate, flow in flows) * slower.get(link, 1.0)
        require(used <= 1.0 + ROUNDING, f"link {link} carries {used} of its capacity")
        if used >= 1.0 - ROUNDING:
            most = max(stream.rate for stream in together) * (1.0 - ROUNDING)
            held.update(stream for stream in together if stream.rate >= most)
    require(len(held) == len(streams), "a transfer is slower than its links permit")


#: Number of most recent uses of a link that are always remembered; the link counts as busy before them. A judgement of
#: memory.
REMEMBERED: Final = 2048


class TransferPieces(NamedTuple):
    """A transfer in `n` equal pieces that were computed evenly from begun_s until done_s.

    No piece is sent before free_s.
    """

    begun_s: float
    done_s: float
    n: int
    free_s: float = 0.0

    def ready_s(self, i: int) -> float:
        """Return when piece `i`, counted from 1, is ready, in seconds."""
        return self.done_s if i == self.n else self.begun_s + i * (self.done_s - self.begun_s) / self.n

    def alone_end_s(self, wire_s: float) -> float:
        """Return when the last piece is sent if no other transfer uses the links, in seconds.

        Either the pieces follow each other without a gap from the first one on, or the last one leaves when it is
        ready.
        """
        return max(max(self.ready_s(1), self.free_s) + wire_s, self.done_s + wire_s / self.n)


class _ShareChange(NamedTuple):
    """A change of the used share of a link's capacity at one time."""

    time_s: float
    link: Hashable
    share: float


class LinkPast:
    """The recent use of each link as shares of its capacity over time; simultaneous uses add up."""

    def __init__(self) -> None:
        self._uses: dict[Hashable, list[tuple[float, float, float]]] = {}  # (end, start, share)
        self._known_s: dict[Hashable, float] = {}

    def note(self, link: Hashable, from_s: float, to_s: float, share: float) -> None:
        """Record that `share` of the link's capacity was used from `from_s` to `to_s`."""
        uses = self._uses.setdefault(link, [])
        insort(uses, (to_s, from_s, share))
        if len(uses) > 2 * REMEMBERED:
            self._known_s[link] = uses[REMEMBERED - 1][0]
            del uses[:REMEMBERED]

    def catch_up(self, seconds: Mapping[Hashable, float], pieces: TransferPieces) -> tuple[float, bool]:
        """Return the fraction of a transfer sent by done_s, and whether other transfers delayed it; record its use.

        Args:
            seconds: Seconds that the whole transfer occupies each link.
            pieces: The pieces in which it is sent.
        """
        first_s = max(pieces.ready_s(1), pieces.free_s, *(self._known_s.get(link, 0.0) for link in seconds))
        changes = self._changes(seconds, first_s, pieces.done_s)
        pending = deque(changes)
        ready = [pieces.ready_s(i) for i in range(1, pieces.n)]
        marks = sorted({first_s, *(c.time_s for c in changes), *(t for t in ready if t > first_s), pieces.done_s})
        used, sent = dict.fromkeys(seconds, 0.0), 0.0
        for start_s, end_s in pairwise(marks):
            while pending and pending[0].time_s <= start_s:
                change = pending.popleft()
                used[change.link] += change.share
            speed = min(max(0.0, 1.0 - used[link]) / s for link, s in seconds.items())
            part = min(speed * (end_s - start_s), bisect_right(ready, start_s) / pieces.n - sent)
            if part > 1e-12 and speed > 0.0:
                sent += part
                for link, s in seconds.items():
                    self.note(link, start_s, min(end_s, start_s + part / speed), speed * s)
        return sent, bool(changes) or first_s > max(pieces.ready_s(1), pieces.free_s)

    def _changes(self, links: Iterable[Hashable], from_s: float, to_s: float) -> list[_ShareChange]:
        """Return the changes of the used shares of links from `from_s` to `to_s`, ordered by time."""
        found: list[_ShareChange] = []
        for link in links:
            uses = self._uses.get(link, [])
            for end_s, start_s, share in uses[bisect_right(uses, (from_s, inf, inf)) :]:
                if start_s < to_s:
                    found.append(_ShareChange(max(start_s, from_s), link, share))
                    found.append(_ShareChange(min(end_s, to_s), link, -share))
        return sorted(found, key=lambda change: change.time_s)
