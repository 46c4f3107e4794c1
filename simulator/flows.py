"""Transfers that share links: max-min fair rates, and ends that move whenever another transfer begins or ends.

Progressive filling: the rates of all rise together until a link is full; who crosses it keeps that rate, the others
rise on. Rates change only when a transfer begins or ends or a link changes, and only of those that the links they cross
join to it, directly or through others; in between every end is known. What crosses the same links goes at one rate and
is a stream: who began first with least to send ends first, and a change costs as much however many share it. A transfer
that meets nobody costs one event.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from functools import partial
from heapq import heappop, heappush
from math import inf

from simulator.clock import ARRIVAL, Clock, Tick
from simulator.laws import check_sent, check_shares
from simulator.link_past import LinkPast, Pieces


class Flow:
    """Bytes under way. loads: the seconds that all of it occupies each link it crosses. What is fair is counted in
    `size`. latency_s passes from the last byte sent to `arrive`."""

    __slots__ = ("arrive", "end_s", "follower", "latency_s", "loads", "sent", "size", "stream", "tick")

    def __init__(
        self, size: float, loads: Mapping[Hashable, float], latency_s: float, arrive: Callable[[], None]
    ) -> None:
        self.size, self.latency_s, self.arrive = size, latency_s, arrive
        self.loads = {link: seconds for link, seconds in loads.items() if seconds > 0.0}
        self.sent = 0.0  # part of it, before it began
        self.end_s = inf  # when the last byte is sent; inf: it is not known
        self.stream: Stream | None = None  # None: it has not begun, or has ended
        self.tick: Tick | None = None  # its arrival; any other is void
        self.follower: Flow | None = None  # begins when it has ended

    @property
    def kind(self) -> tuple[tuple[Hashable, str], ...]:
        """Its links, and the seconds that a unit of size takes on each, but for rounding."""
        return tuple((link, f"{seconds / self.size:.9e}") for link, seconds in self.loads.items())


class Stream:
    """Flows over the same links, all at one rate."""

    __slots__ = ("costs", "end_s", "head", "lone", "members", "passed", "rate", "since_s", "tick", "tick_s")

    def __init__(self, costs: Mapping[Hashable, float]) -> None:
        self.costs = costs  # seconds that a unit of size takes on each link
        self.members: list[tuple[float, int, Flow]] = []  # a heap: what will have passed at its end, a number, who
        self.rate = self.passed = self.since_s = 0.0  # size per second, size until since_s: of each member
        self.end_s = inf  # of the first to end
        self.head: Flow | None = None  # whose end that is
        self.lone = False  # it has met nobody: its arrival is set, and nobody looks at its end
        self.tick: Tick | None = None
        self.tick_s = inf


def fair_rates(streams: Collection[Stream], slower: Mapping[Hashable, float]) -> dict[Stream, float]:
    """Max-min fair rates of the members of each of the streams, which share their links with nobody else.

    slower: how many times as long as ever links take, where that is not 1.
    """
    crossing: dict[Hashable, dict[Stream, float]] = {}  # seconds that a unit of size of every member takes
    for stream in streams:
        for link, cost in stream.costs.items():
            crossing.setdefault(link, {})[stream] = len(stream.members) * cost * slower.get(link, 1.0)
    free = dict.fromkeys(crossing, 1.0)
    found: dict[Stream, float] = {}
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


class Flows:
    """All that is under way over the links of one run. remembers: what links carried is kept, for transfers that begin
    before they are told of."""

    def __init__(self, clock: Clock, check_laws: bool = False, remembers: bool = False) -> None:
        self._clock, self._check_laws = clock, check_laws
        self._streams: dict[tuple[tuple[Hashable, str], ...], Stream] = {}  # by kind
        self._on: dict[Hashable, dict[Stream, None]] = {}  # that have members
        self._slower: dict[Hashable, float] = {}
        self._past = LinkPast() if remembers else None
        self._n = 0  # begun so far

    def begin(self, flow: Flow, pieces: Pieces | None = None) -> None:
        """Send it from now on; its pieces from when they were ready, as links were free."""
        now = self._clock.now
        self._settle(flow.loads)
        seconds = {link: load * self._slower.get(link, 1.0) for link, load in flow.loads.items()}
        wire_s = max(seconds.values(), default=0.0)
        end_s = now + wire_s
        if not wire_s:
            self._over(flow, end_s)
            return
        if pieces is not None and pieces.n > 1:
            end_s = self._catch_up(flow, seconds, pieces)
        meets = any(self._on.get(link) for link in flow.loads)
        stream = self._enter(flow)
        if meets:
            self._share((stream,))
            return
        stream.rate, stream.since_s, stream.end_s, stream.head = flow.size / wire_s, now, end_s, flow
        if flow.follower is None:
            stream.lone, flow.end_s = True, end_s
            self._arrive_at(flow, end_s)
        else:
            self._aim(stream)

    def _enter(self, flow: Flow) -> Stream:
        kind = flow.kind
        stream = self._streams.get(kind)
        if stream is None:
            costs = {link: seconds / flow.size for link, seconds in flow.loads.items()}
            stream = self._streams[kind] = Stream(costs)
        self._account(stream, self._clock.now)
        self._n += 1
        heappush(stream.members, (stream.passed + (1.0 - flow.sent) * flow.size, self._n, flow))
        flow.stream = stream
        for link in flow.loads:
            self._on.setdefault(link, {})[stream] = None
        return stream

    def _catch_up(self, flow: Flow, seconds: Mapping[Hashable, float], pieces: Pieces) -> float:
        """Notes what was sent before now; returns when all of it would be, if nobody else sends."""
        now, wire_s, past = self._clock.now, max(seconds.values()), self._past
        assert past is not None
        for other in {other: None for link in flow.loads for other in self._on.get(link, ())}:
            self._account(other, now)
        flow.sent, met = past.catch_up(seconds, pieces)
        return now + (1.0 - flow.sent) * wire_s if met else pieces.alone_end_s(wire_s)

    def begin_after(self, earlier: Flow | None, flow: Flow, pieces: Pieces) -> None:
        """Send it when the other, which nobody follows yet, is through."""
        if earlier is None or earlier.end_s <= self._clock.now:
            free_s = 0.0 if earlier is None else earlier.end_s
            self.begin(flow, pieces._replace(free_s=free_s))
            return
        earlier.follower = flow
        if earlier.stream is not None:
            self._watch(earlier.stream)

    def slow(self, links: Iterable[Hashable], factor: float) -> None:
        """From now on all that crosses them takes so many times as long there; 1: as ever."""
        links = tuple(links)
        self._settle(links)
        streams = [stream for link in links for stream in self._on.get(link, ())]
        for stream in streams:
            self._account(stream, self._clock.now)
        self._slower.update(dict.fromkeys(links, factor))
        self._share(streams)

    # ---- ends

    def _settle(self, links: Iterable[Hashable]) -> None:
        """Who met nobody and has ended leaves these links."""
        now = self._clock.now
        for stream in [stream for link in links for stream in self._on.get(link, ())]:
            if stream.lone and stream.end_s <= now:
                self._pop(stream)

    def _pop(self, stream: Stream) -> Flow:
        """The first has ended: it leaves its links to others."""
        self._account(stream, stream.end_s)
        target, _, flow = heappop(stream.members)
        if self._check_laws:
            check_sent(flow, target - stream.passed, stream.end_s)
        stream.passed, flow.stream = max(target, stream.passed), None
        if not stream.members:
            for link in stream.costs:
                del self._on[link][stream]
            stream.passed, stream.lone, stream.head = 0.0, False, None
            stream.tick, stream.tick_s = None, inf
        return flow

    def _watch(self, stream: Stream) -> None:
        """Its end must be known when it comes: the arrival is not certain any more."""
        if stream.lone and stream.head is not None:
            stream.lone, stream.head.tick, stream.head.end_s = False, None, inf
            self._aim(stream)

    def _aim(self, stream: Stream) -> None:
        """Look when the first ends. An end that has moved away is looked at again then."""
        if stream.end_s < stream.tick_s:
            stream.tick_s = stream.end_s
            stream.tick = self._clock.at(stream.end_s, ARRIVAL, [partial(self._look, stream)])

    def _look(self, stream: Stream, tick: Tick) -> None:
        if tick is not stream.tick:
            return
        now, stream.tick_s = self._clock.now, inf
        if stream.end_s > now:
            self._aim(stream)
            return
        ended = [self._pop(stream)]
        while stream.members and stream.members[0][0] <= stream.passed:
            ended.append(self._pop(stream))
        self._share([other for link in stream.costs for other in self._on[link]])
        for flow in ended:
            self._over(flow, now)

    def _over(self, flow: Flow, end_s: float) -> None:
        flow.end_s = end_s
        self._arrive_at(flow, end_s)
        if flow.follower is not None:
            self.begin(flow.follower)

    def _arrive_at(self, flow: Flow, end_s: float) -> None:
        flow.tick = self._clock.at(end_s + flow.latency_s, ARRIVAL, [partial(_arrived, flow)])

    # ---- rates

    def _share(self, streams: Iterable[Stream]) -> None:
        """New rates for these and all that they are joined to."""
        joined = self._joined(streams)
        if not joined:
            return
        now = self._clock.now
        for stream, rate in fair_rates(joined, self._slower).items():
            self._watch(stream)
            target, _, head = stream.members[0]
            if rate != stream.rate or head is not stream.head:
                self._account(stream, now)
                stream.rate, stream.head = rate, head
                stream.end_s = now + max(0.0, target - stream.passed) / rate
            self._aim(stream)
        if self._check_laws:
            check_shares(joined, self._slower)

    def _joined(self, streams: Iterable[Stream]) -> dict[Stream, None]:
        found = dict.fromkeys(streams)
        waiting, seen = list(found), set[Hashable]()
        while waiting:
            for link in waiting.pop().costs:
                if link not in seen:
                    seen.add(link)
                    for other in self._on[link]:
                        if other not in found:
                            found[other] = None
                            waiting.append(other)
        return found

    def _account(self, stream: Stream, until_s: float) -> None:
        """What passed since it was asked last."""
        past_s = until_s - stream.since_s
        if past_s > 0.0 and stream.members:
            stream.passed += stream.rate * past_s
            if self._past is not None:
                for link, cost in stream.costs.items():
                    share = len(stream.members) * stream.rate * cost * self._slower.get(link, 1.0)
                    self._past.note(link, stream.since_s, until_s, share)
        stream.since_s = until_s


def _arrived(flow: Flow, tick: Tick) -> None:
    if tick is flow.tick:
        flow.arrive()
