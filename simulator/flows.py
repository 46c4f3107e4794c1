"""Transfers that share links: max-min fair rates, and ends that move whenever another transfer begins or ends.

Progressive filling: the rates of all rise together until a link is full; who crosses it keeps that rate, the others
rise on. Rates change only when a transfer begins or ends or a link changes, and only of those that the links they cross
join to it, directly or through others; in between every end is known. A transfer that meets nobody costs one event.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from functools import partial
from math import inf

from simulator.clock import ARRIVAL, Clock, Tick
from simulator.laws import check_sent, check_shares
from simulator.link_past import LinkPast, Pieces


class Flow:
    """Bytes under way. loads: the seconds that all of it occupies each link it crosses. What is fair is counted in
    `size`. latency_s passes from the last byte sent to `arrive`."""

    __slots__ = (
        "arrive",
        "end_s",
        "follower",
        "latency_s",
        "loads",
        "sent",
        "since_s",
        "size",
        "speed",
        "tick",
        "tick_s",
        "watched",
    )

    def __init__(
        self, size: float, loads: Mapping[Hashable, float], latency_s: float, arrive: Callable[[], None]
    ) -> None:
        self.size, self.latency_s, self.arrive = size, latency_s, arrive
        self.loads = {link: seconds for link, seconds in loads.items() if seconds > 0.0}
        self.speed, self.since_s = 0.0, 0.0  # part of it per second, since then; 0: it has not begun
        self.sent = 0.0  # part of it, until since_s
        self.end_s = inf  # when the last byte is sent, if its speed stays
        self.watched = False  # somebody must know when it ends
        self.tick: Tick | None = None  # looks whether it has ended, or is its arrival; any other is void
        self.tick_s = inf
        self.follower: Flow | None = None  # begins when it has ended


def fair_speeds(flows: Collection[Flow], slower: Mapping[Hashable, float]) -> dict[Flow, float]:
    """Parts per second of each of the flows, which share their links with nobody else, at max-min fair rates.

    slower: how many times as long as ever links take, where that is not 1.
    """
    crossing: dict[Hashable, dict[Flow, float]] = {}  # seconds that a unit of size takes
    for flow in flows:
        for link, seconds in flow.loads.items():
            crossing.setdefault(link, {})[flow] = seconds * slower.get(link, 1.0) / flow.size
    free = dict.fromkeys(crossing, 1.0)
    found: dict[Flow, float] = {}
    while crossing:
        levels = {link: max(0.0, free[link]) / sum(users.values()) for link, users in crossing.items()}
        full = min(levels, key=levels.__getitem__)
        for flow in list(crossing[full]):
            found[flow] = levels[full] / flow.size
            for link in flow.loads:
                free[link] -= levels[full] * crossing[link].pop(flow)
                if not crossing[link]:
                    del crossing[link]
    return found


class Flows:
    """All that is under way over the links of one run. remembers: what links carried is kept, for transfers that begin
    before they are told of."""

    def __init__(self, clock: Clock, check_laws: bool = False, remembers: bool = False) -> None:
        self._clock, self._check_laws = clock, check_laws
        self._on: dict[Hashable, dict[Flow, None]] = {}
        self._slower: dict[Hashable, float] = {}
        self._past = LinkPast() if remembers else None

    def begin(self, flow: Flow, pieces: Pieces | None = None) -> None:
        """Send it from now on; its pieces from when they were ready, as links were free."""
        now = self._clock.now
        self._settle(flow.loads, now)
        seconds = {link: load * self._slower.get(link, 1.0) for link, load in flow.loads.items()}
        wire_s = max(seconds.values(), default=0.0)
        flow.since_s, flow.end_s = now, now + wire_s
        if not wire_s:
            self._over(flow)
            return
        flow.speed = 1.0 / wire_s
        if pieces is not None and pieces.n > 1:
            self._catch_up(flow, seconds, pieces)
        shared = any(self._on.get(link) for link in flow.loads)
        for link in flow.loads:
            self._on.setdefault(link, {})[flow] = None
        if shared:
            flow.watched = True
            self._share((flow,))
        elif flow.watched:
            self._aim(flow)
        else:
            self._arrive_at(flow)

    def _catch_up(self, flow: Flow, seconds: Mapping[Hashable, float], pieces: Pieces) -> None:
        now, wire_s, past = self._clock.now, max(seconds.values()), self._past
        assert past is not None
        for other in {other: None for link in flow.loads for other in self._on.get(link, ())}:
            self._account(other, now)
        flow.sent, met = past.catch_up(seconds, pieces)
        flow.end_s = now + (1.0 - flow.sent) * wire_s if met else pieces.alone_end_s(wire_s)

    def begin_after(self, earlier: Flow | None, flow: Flow, pieces: Pieces) -> None:
        """Send it when the other, which nobody follows yet, is through."""
        if earlier is None or earlier.end_s <= self._clock.now:
            free_s = 0.0 if earlier is None else earlier.end_s
            self.begin(flow, pieces._replace(free_s=free_s))
            return
        earlier.follower = flow
        self._watch(earlier)

    def slow(self, links: Iterable[Hashable], factor: float) -> None:
        """From now on all that crosses them takes so many times as long there; 1: as ever."""
        links, now = tuple(links), self._clock.now
        self._settle(links, now)
        flows = [flow for link in links for flow in self._on.get(link, ())]
        for flow in flows:
            self._account(flow, now)
        self._slower.update(dict.fromkeys(links, factor))
        self._share(flows)

    # ---- ends

    def _settle(self, links: Iterable[Hashable], now: float) -> None:
        """What has ended on them leaves them."""
        for flow in [flow for link in links for flow in self._on.get(link, ()) if flow.end_s <= now]:
            if flow in self._on.get(next(iter(flow.loads)), ()):
                self._end(flow)

    def _watch(self, flow: Flow) -> None:
        """Its end must be known when it comes: its arrival is not certain any more."""
        if not flow.watched:
            flow.watched, flow.tick, flow.tick_s = True, None, inf
            if flow.speed:
                self._aim(flow)

    def _aim(self, flow: Flow) -> None:
        """Look when it ends. An end that has moved away is looked at again then."""
        if flow.end_s < flow.tick_s:
            flow.tick_s = flow.end_s
            flow.tick = self._clock.at(flow.end_s, ARRIVAL, [partial(self._look, flow)])

    def _look(self, flow: Flow, tick: Tick) -> None:
        if tick is not flow.tick:
            return
        flow.tick_s = inf
        if flow.end_s > self._clock.now:
            self._aim(flow)
        else:
            self._end(flow)

    def _end(self, flow: Flow) -> None:
        """Its last byte is sent: it leaves its links to others."""
        self._account(flow, flow.end_s)
        if self._check_laws:
            check_sent(flow)
        for link in flow.loads:
            del self._on[link][flow]
        self._share([other for link in flow.loads for other in self._on[link]])
        self._over(flow)

    def _over(self, flow: Flow) -> None:
        if flow.watched or not flow.loads:
            self._arrive_at(flow)
        if flow.follower is not None:
            self.begin(flow.follower)

    def _arrive_at(self, flow: Flow) -> None:
        flow.tick = self._clock.at(flow.end_s + flow.latency_s, ARRIVAL, [partial(_arrived, flow)])

    # ---- rates

    def _share(self, flows: Iterable[Flow]) -> None:
        """New rates for these and all that they are joined to."""
        joined = self._joined(flows)
        if not joined:
            return
        now = self._clock.now
        for flow, speed in fair_speeds(joined, self._slower).items():
            if speed != flow.speed:
                self._account(flow, now)
                left = (flow.end_s - now) * flow.speed
                flow.speed, flow.end_s = speed, now + left / speed
            self._watch(flow)
            self._aim(flow)
        if self._check_laws:
            check_shares(joined, self._slower)

    def _joined(self, flows: Iterable[Flow]) -> dict[Flow, None]:
        found = dict.fromkeys(flows)
        waiting, seen = list(found), set[Hashable]()
        while waiting:
            for link in waiting.pop().loads:
                if link not in seen:
                    seen.add(link)
                    for other in self._on.get(link, ()):
                        if other not in found:
                            found[other] = None
                            waiting.append(other)
        return found

    def _account(self, flow: Flow, until_s: float) -> None:
        """What it sent since it was asked last."""
        past_s = until_s - flow.since_s
        if past_s <= 0.0:
            return
        flow.sent += flow.speed * past_s
        if self._past is not None:
            for link, load in flow.loads.items():
                share = flow.speed * load * self._slower.get(link, 1.0)
                self._past.note(link, flow.since_s, until_s, share)
        flow.since_s = until_s


def _arrived(flow: Flow, tick: Tick) -> None:
    if tick is flow.tick:
        flow.arrive()
