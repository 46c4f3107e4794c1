"""The transfer of KV blocks and embeddings between replicas, over links that transfers and steps share."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple, Protocol

from simpy import Event

from simulator.cluster.shared_links import StepLinkUse, StepsOnLinks, own_links
from simulator.core.clock import ARRIVAL, Clock
from simulator.engine.context import SharedLinks
from simulator.engine.replica import Replica
from simulator.interconnect.fair_share import FairShareNetwork, SharedTransfer, TransferPieces

#: Returns the names of the links that a replica's transfers cross; each link has an outbound and an inbound direction.
Links = Callable[[Replica], tuple[Hashable, ...]]

#: A prompt length at which every path that sends in pieces does so.
MANY_TOKENS: Final = 1 << 40


class KvTransfer(NamedTuple):
    """A transfer of the KV blocks of a prompt, which was computed from begun_s until now."""

    tokens: int
    source: Replica
    target: Replica
    begun_s: float


class InstantTransfer:
    """The transfers of a run in which transfers take no time."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def begin(self, transfer: KvTransfer) -> Event:  # noqa: ARG002 - every transfer takes no time
        """Return an arrival event at the current time."""
        return self._clock.at(self._clock.now, ARRIVAL)

    def slow(self, replica: Replica, factor: float) -> None:
        """Do nothing, because instant transfers cannot be slowed down."""

    def shared_links(self, pool: int) -> SharedLinks | None:  # noqa: ARG002
        """Return None: no step meets a transfer that takes no time."""
        return None


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

    def by_link(self, source: Sequence[Hashable], target: Sequence[Hashable]) -> dict[Hashable, float]:
        """Return the seconds on the outbound links `source` and the inbound links `target`."""
        outbound: dict[Hashable, float] = {("out", name): self.out_s for name in source}
        return outbound | {("in", name): self.in_s for name in target}


class TransferPath(Protocol):
    """The transfer path between two pools."""

    @property
    def latency_s(self) -> float:
        """Return the seconds from the last byte sent until the blocks are usable."""

    def pieces(self, tokens: int) -> int:
        """Return the number of equal pieces, each sent when it is computed; 1 if all is sent after the prompt."""

    def load(self, tokens: int) -> LinkLoad:
        """Return the load that the blocks of `tokens` tokens put on the links."""


class TransferLinks:
    """Transfers over links that concurrent transfers share fairly (simulator/interconnect/fair_share.py).

    Every link has an outbound and an inbound direction. If a path sends in pieces, piece i of n is ready when i / n of
    the prompt is computed, assuming even progress since its first step began. The first piece leaves when the links are
    free and the others follow. The last piece cannot leave before the prompt is done.
    """

    def __init__(
        self,
        paths: Mapping[tuple[int, int], TransferPath],
        links: Links | None = None,
        queues: int | None = None,
        uses: Mapping[int, StepLinkUse] | None = None,
    ) -> None:
        """Create the transfer model.

        Args:
            paths: The path from each source pool to each target pool, by their indices.
            links: Returns the links that a replica's transfers cross in addition to its own link.
            queues: Number of queues of each source, selected by target; transfers in one queue are sent one after
                the other. None: all transfers are sent concurrently.
            uses: The use of a replica's own link by the collectives of its steps, by pool; pools without any are left
                out.
        """
        self.paths, self.queues, self.uses = paths, queues, uses or {}
        self._links = links
        self.names: dict[int, tuple[Hashable, ...]] = {}  # of the last run, by the index of a sender or receiver
        self.was_slowed = False  # whether faults or collectives slowed any transfer of the last run down

    @property
    def directions(self) -> dict[int, list[str]]:
        """Return the directions in which the replicas of each pool send or receive: "out", "in", or both."""
        ends = [(direction, {pools[i] for pools in self.paths}) for i, direction in enumerate(("out", "in"))]
        pools = {pool for pair in self.paths for pool in pair}
        return {pool: [direction for direction, of in ends if pool in of] for pool in pools}

    def start(self, clock: Clock, check_invariants: bool) -> LinkTraffic:
        """Return the transfers of a run that begins."""
        self.names, self.was_slowed = {}, False
        return LinkTraffic(self, clock, check_invariants)

    def name(self, replica: Replica) -> tuple[Hashable, ...]:
        """Return the names of a replica's own link, which a fault may degrade, and of the links that it shares."""
        if replica.index not in self.names:
            shared = self._links(replica) if self._links else ()
            self.names[replica.index] = tuple(dict.fromkeys((replica.index, *shared)))
        return self.names[replica.index]


class LinkTraffic:
    """The transfers in flight on the links of one run."""

    def __init__(self, links: TransferLinks, clock: Clock, check_invariants: bool) -> None:
        overlaps = any(path.pieces(MANY_TOKENS) > 1 for path in links.paths.values())
        self._links, self._clock = links, clock
        self._flows = FairShareNetwork(clock, check_invariants, overlaps)
        self._last: dict[tuple[int, int], SharedTransfer] = {}  # the last transfer in each queue
        self._faults: dict[int, float] = {}  # by replica, how many times as long its transfers take because of faults
        self._steps = StepsOnLinks(self._flows, links.uses, links.directions, self._slow_by_steps)

    def slow(self, replica: Replica, factor: float) -> None:
        """Multiply the transfer time on the replica's own link by `factor` from now on; 1 restores it."""
        self._links.was_slowed = True
        self._faults[replica.index] = factor
        self._flows.slow(own_links(replica.index), factor * self._steps.slowdown(replica.index))

    def _slow_by_steps(self, replica: int, factor: float) -> None:
        """Multiply the transfer time on the link of a replica by `factor`, because its steps use a part of it."""
        self._links.was_slowed = True
        self._flows.slow(own_links(replica), factor * self._faults.get(replica, 1.0))

    def shared_links(self, pool: int) -> SharedLinks | None:
        """Return the links that collectives of a pool's steps share with transfers; None if they share none."""
        return self._steps if pool in self._links.uses else None

    def begin(self, transfer: KvTransfer) -> Event:
        """Begin a transfer now, or after the earlier transfers in its queue; return the event of its arrival."""
        source, target, links = transfer.source, transfer.target, self._links
        arrived, path = self._clock.event(), links.paths[source.pool, target.pool]
        load = path.load(transfer.tokens)
        seconds = load.by_link(links.name(source), links.name(target))
        flow = SharedTransfer(load.size, seconds, path.latency_s, arrived.succeed, partial(self._meet, source, target))
        pieces = TransferPieces(transfer.begun_s, self._clock.now, path.pieces(transfer.tokens))
        if links.queues is None:
            self._flows.begin(flow, pieces)
            return arrived
        queue = source.index, target.index % links.queues
        earlier, self._last[queue] = self._last.get(queue), flow
        self._flows.begin_after(earlier, flow, pieces)
        return arrived

    def _meet(self, *ends: Replica) -> None:
        for replica in ends:
            if replica.pool in self._links.uses:
                self._steps.begin_sharing(replica)
