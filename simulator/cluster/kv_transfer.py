"""How a request's KV blocks come from the replica that prefilled it to the one that decodes it."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Final, NamedTuple, Protocol

from simpy import Event

from simulator.core.clock import ARRIVAL, Clock
from simulator.engine.replica import Replica
from simulator.network.fair_share import FairShareNetwork, SharedTransfer, TransferPieces

#: Names of the links that what a replica sends or receives passes; each has a way out and a way in.
Links = Callable[[Replica], tuple[Hashable, ...]]

#: A prompt so long is sent in pieces wherever any is.
MANY_TOKENS: Final = 1 << 40


class KvTransfer(NamedTuple):
    """The blocks of a prompt that was computed from begun_s until now."""

    tokens: int
    source: Replica
    target: Replica
    begun_s: float


class TransferChannel(Protocol):
    """What carries blocks in one run. Asked once for each request that is handed over, in the order of time."""

    def begin(self, parcel: KvTransfer) -> Event:
        """Send it from now on; return the event of its arrival."""

    def slow(self, replica: Replica, factor: float) -> None:
        """From now on what goes to it or comes from it takes so many times as long on its own link; 1: as ever."""


class TransferModel(Protocol):
    """A way to carry blocks."""

    def start(self, clock: Clock, check_laws: bool) -> TransferChannel:
        """For a run that begins."""


class InstantTransfer:
    """Transfers that take no time."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def begin(self, parcel: KvTransfer) -> Event:  # noqa: ARG002 - whatever it is
        return self._clock.at(self._clock.now, ARRIVAL)

    def slow(self, replica: Replica, factor: float) -> None:
        """No time stays no time."""


class LinkLoad(NamedTuple):
    """size: bytes that an accelerator of the source sends; links are shared evenly in it. Seconds that all of it
    occupies the link of each end."""

    size: float
    out_s: float
    in_s: float

    @property
    def wire_s(self) -> float:
        """Where nobody else sends: the slower end decides."""
        return max(self.out_s, self.in_s)


class TransferPath(Protocol):
    """What lies between two pools."""

    @property
    def latency_s(self) -> float:
        """From the last byte sent to all being usable."""

    def pieces(self, tokens: int) -> int:
        """Parts of equal size that leave as each is computed; 1: everything leaves when the prompt is done."""

    def load(self, tokens: int) -> LinkLoad:
        """Of the blocks of so many tokens."""


def own_port(replica: Replica) -> tuple[Hashable, ...]:
    """Every replica has a link to itself."""
    return (replica.index,)


class TransferLinks:
    """Every link has a way out and a way in, and what is on it at one time shares it (simulator/network/fair_share.py).

    Piece by piece: piece i of n is there when i / n of the prompt is computed, an even share of the time since its
    first step began. The first leaves when the links are free, the others follow; the last cannot leave before the
    prompt is done.

    queues: of each source, by target; what is in one of them is sent one after the other. None: all at once.
    """

    def __init__(
        self, paths: Mapping[tuple[int, int], TransferPath], links: Links = own_port, queues: int | None = None
    ) -> None:
        self.paths, self.queues = paths, queues  # paths: by (source pool, target pool)
        self._links = links
        self._names: dict[int, tuple[Hashable, ...]] = {}
        self.was_slowed = False  # in the last run some link was degraded at some time

    def start(self, clock: Clock, check_laws: bool) -> TransferChannel:
        self._names, self.was_slowed = {}, False
        return LinkTraffic(self, clock, check_laws)

    def name(self, replica: Replica) -> tuple[Hashable, ...]:
        """Its own link, which a fault may degrade, and those that it shares."""
        found = self._names.get(replica.index)
        if found is None:
            found = tuple(dict.fromkeys((replica.index, *self._links(replica))))
            self._names[replica.index] = found
        return found

    def named(self, replica: int) -> tuple[Hashable, ...]:
        """The same, after the run: of a replica that sent or received."""
        return self._names[replica]


class LinkTraffic:
    """What is on the ports of one run."""

    def __init__(self, ports: TransferLinks, clock: Clock, check_laws: bool) -> None:
        overlaps = any(path.pieces(MANY_TOKENS) > 1 for path in ports.paths.values())
        self._ports, self._clock = ports, clock
        self._flows = FairShareNetwork(clock, check_laws, overlaps)
        self._last: dict[tuple[int, int], SharedTransfer] = {}  # in each queue

    def slow(self, replica: Replica, factor: float) -> None:
        self._ports.was_slowed = True
        self._flows.slow([(way, replica.index) for way in ("out", "in")], factor)

    def begin(self, parcel: KvTransfer) -> Event:
        source, target, ports = parcel.source, parcel.target, self._ports
        arrived = self._clock.event()
        path = ports.paths[source.pool, target.pool]
        load = path.load(parcel.tokens)
        loads: dict[Hashable, float] = {("out", name): load.out_s for name in ports.name(source)}
        loads |= {("in", name): load.in_s for name in ports.name(target)}
        flow = SharedTransfer(load.size, loads, path.latency_s, arrived.succeed)
        pieces = TransferPieces(parcel.begun_s, self._clock.now, path.pieces(parcel.tokens))
        if ports.queues is None:
            self._flows.begin(flow, pieces)
            return arrived
        queue = source.index, target.index % ports.queues
        earlier, self._last[queue] = self._last.get(queue), flow
        self._flows.begin_after(earlier, flow, pieces)
        return arrived
