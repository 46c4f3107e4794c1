"""The transfer of a request's KV blocks from its prefill replica to its decode replica."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Final, NamedTuple, Protocol

from simpy import Event

from simulator.core.clock import ARRIVAL, Clock
from simulator.engine.replica import Replica
from simulator.network.fair_share import FairShareNetwork, SharedTransfer, TransferPieces

#: Returns the names of the links that a replica's transfers cross; each link has an outbound and an inbound direction.
Links = Callable[[Replica], tuple[Hashable, ...]]

#: A prompt length at which every path that sends in pieces does so.
MANY_TOKENS: Final = 1 << 40


class KvTransfer(NamedTuple):
    """The KV blocks of a prompt that was computed from begun_s until now."""

    tokens: int
    source: Replica
    target: Replica
    begun_s: float


class TransferChannel(Protocol):
    """The transfers of one run; called once for each request that is handed over, in order of time."""

    def begin(self, parcel: KvTransfer) -> Event:
        """Begin a transfer now and return the event of its arrival."""

    def slow(self, replica: Replica, factor: float) -> None:
        """Multiply the transfer time on the replica's own link by `factor` from now on; 1 restores it."""


class TransferModel(Protocol):
    """A model of KV transfers."""

    def start(self, clock: Clock, check_laws: bool) -> TransferChannel:
        """Return the transfer channel of a run that begins."""


class InstantTransfer:
    """Transfers that take no time."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def begin(self, parcel: KvTransfer) -> Event:  # noqa: ARG002 - every transfer takes no time
        """Return an arrival event at the current time."""
        return self._clock.at(self._clock.now, ARRIVAL)

    def slow(self, replica: Replica, factor: float) -> None:
        """Do nothing, because instant transfers cannot be slowed down."""


class LinkLoad(NamedTuple):
    """The load of one transfer on the links of both ends.

    Attributes:
        size: Bytes that each accelerator of the source sends; links are shared fairly in this unit.
        out_s: Seconds that the whole transfer occupies the link of the source.
        in_s: Seconds that the whole transfer occupies the link of the target.
    """

    size: float
    out_s: float
    in_s: float

    @property
    def wire_s(self) -> float:
        """Seconds of the transfer without other traffic, which the slower end determines."""
        return max(self.out_s, self.in_s)


class TransferPath(Protocol):
    """The transfer path between two pools."""

    @property
    def latency_s(self) -> float:
        """Seconds from the last byte sent until the blocks are usable."""

    def pieces(self, tokens: int) -> int:
        """Return the number of equal pieces, each sent when it is computed; 1 if all is sent after the prompt."""

    def load(self, tokens: int) -> LinkLoad:
        """Return the load that the blocks of `tokens` tokens put on the links."""


def own_port(replica: Replica) -> tuple[Hashable, ...]:
    """Return the link name of a replica that shares its link with no other replica."""
    return (replica.index,)


class TransferLinks:
    """Transfers over links that concurrent transfers share fairly (simulator/network/fair_share.py).

    Every link has an outbound and an inbound direction. If a path sends in pieces, piece i of n is ready when i / n of
    the prompt is computed, assuming even progress since its first step began. The first piece leaves when the links are
    free and the others follow. The last piece cannot leave before the prompt is done.
    """

    def __init__(
        self, paths: Mapping[tuple[int, int], TransferPath], links: Links = own_port, queues: int | None = None
    ) -> None:
        """Create the transfer model.

        Args:
            paths: The path from each source pool to each target pool, by their indices.
            links: Returns the links that a replica's transfers cross.
            queues: Number of queues of each source, selected by target; transfers in one queue are sent one after
                the other. None: all transfers are sent concurrently.
        """
        self.paths, self.queues = paths, queues
        self._links = links
        self._names: dict[int, tuple[Hashable, ...]] = {}
        self.was_slowed = False  # whether any link was degraded during the last run

    def start(self, clock: Clock, check_laws: bool) -> TransferChannel:
        """Return the transfer channel of a run that begins."""
        self._names, self.was_slowed = {}, False
        return LinkTraffic(self, clock, check_laws)

    def name(self, replica: Replica) -> tuple[Hashable, ...]:
        """Return the names of a replica's own link, which a fault may degrade, and of the links that it shares."""
        found = self._names.get(replica.index)
        if found is None:
            found = tuple(dict.fromkeys((replica.index, *self._links(replica))))
            self._names[replica.index] = found
        return found

    def named(self, replica: int) -> tuple[Hashable, ...]:
        """Return the same names after the run, for the index of a replica that sent or received."""
        return self._names[replica]


class LinkTraffic:
    """The transfers in flight on the links of one run."""

    def __init__(self, ports: TransferLinks, clock: Clock, check_laws: bool) -> None:
        overlaps = any(path.pieces(MANY_TOKENS) > 1 for path in ports.paths.values())
        self._ports, self._clock = ports, clock
        self._flows = FairShareNetwork(clock, check_laws, overlaps)
        self._last: dict[tuple[int, int], SharedTransfer] = {}  # the last transfer in each queue

    def slow(self, replica: Replica, factor: float) -> None:
        """Multiply the transfer time on the replica's own link by `factor` from now on; 1 restores it."""
        self._ports.was_slowed = True
        self._flows.slow([(way, replica.index) for way in ("out", "in")], factor)

    def begin(self, parcel: KvTransfer) -> Event:
        """Begin a transfer now, or after the earlier transfers in its queue; return the event of its arrival."""
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
