"""How a request's KV blocks come from the replica that prefilled it to the one that decodes it."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Final, NamedTuple, Protocol

from catalogs.engines import KvTransfer
from simulator.clock import ARRIVAL, Clock
from simulator.flows import Flow, Flows
from simulator.link_past import Pieces
from simulator.memory import sequence_bytes
from simulator.network import NETWORK_LATENCY_S, NODE_LATENCY_S
from simulator.plant import Fleet, Plant
from simulator.replica import Replica
from simulator.shard import Shard

#: Names of the links that what a replica sends or receives passes; each has a way out and a way in.
Links = Callable[[Replica], tuple[Hashable, ...]]
#: A prompt so long is sent in pieces wherever any is.
MANY_TOKENS: Final = 1 << 40


class Parcel(NamedTuple):
    """The blocks of a prompt that was computed from begun_s until now."""

    tokens: int
    source: Replica
    target: Replica
    begun_s: float


class Carrier(Protocol):
    """What carries blocks in one run. Asked once for each request that is handed over, in the order of time."""

    def begin(self, parcel: Parcel, arrive: Callable[[], None]) -> None:
        """Send it, and call `arrive` when it is there: not before now."""

    def slow(self, replica: Replica, factor: float) -> None:
        """From now on what goes to it or comes from it takes so many times as long on its own link; 1: as ever."""


class Transfer(Protocol):
    """A way to carry blocks."""

    def start(self, clock: Clock, check_laws: bool) -> Carrier:
        """For a run that begins."""


class Instant:
    """Transfers that take no time."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def begin(self, parcel: Parcel, arrive: Callable[[], None]) -> None:  # noqa: ARG002 - whatever it is
        self._clock.at(self._clock.now, ARRIVAL, [lambda _: arrive()])

    def slow(self, replica: Replica, factor: float) -> None:
        """No time stays no time."""


class Load(NamedTuple):
    """size: bytes that an accelerator of the source sends; links are shared evenly in it. Seconds that all of it
    occupies the link of each end."""

    size: float
    out_s: float
    in_s: float

    @property
    def wire_s(self) -> float:
        """Where nobody else sends: the slower end decides."""
        return max(self.out_s, self.in_s)


class Path(Protocol):
    """What lies between two pools."""

    @property
    def latency_s(self) -> float:
        """From the last byte sent to all being usable."""

    def pieces(self, tokens: int) -> int:
        """Parts of equal size that leave as each is computed; 1: everything leaves when the prompt is done."""

    def load(self, tokens: int) -> Load:
        """Of the blocks of so many tokens."""


def own_port(replica: Replica) -> tuple[Hashable, ...]:
    """Every replica has a link to itself."""
    return (replica.index,)


class Ports:
    """Every link has a way out and a way in, and what is on it at one time shares it (simulator/flows.py).

    Piece by piece: piece i of n is there when i / n of the prompt is computed, an even share of the time since its
    first step began. The first leaves when the links are free, the others follow; the last cannot leave before the
    prompt is done.

    queues: of each source, by target; what is in one of them is sent one after the other. None: all at once.
    """

    def __init__(
        self, paths: Mapping[tuple[int, int], Path], links: Links = own_port, queues: int | None = None
    ) -> None:
        self.paths, self.queues = paths, queues  # paths: by (source pool, target pool)
        self._links = links
        self._names: dict[int, tuple[Hashable, ...]] = {}
        self.was_slowed = False  # in the last run some link was degraded at some time

    def start(self, clock: Clock, check_laws: bool) -> Carrier:
        self._names, self.was_slowed = {}, False
        return Traffic(self, clock, check_laws)

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


class Traffic:
    """What is on the ports of one run."""

    def __init__(self, ports: Ports, clock: Clock, check_laws: bool) -> None:
        overlaps = any(path.pieces(MANY_TOKENS) > 1 for path in ports.paths.values())
        self._ports, self._clock = ports, clock
        self._flows = Flows(clock, check_laws, overlaps)
        self._last: dict[tuple[int, int], Flow] = {}  # in each queue

    def slow(self, replica: Replica, factor: float) -> None:
        self._ports.was_slowed = True
        self._flows.slow([(way, replica.index) for way in ("out", "in")], factor)

    def begin(self, parcel: Parcel, arrive: Callable[[], None]) -> None:
        source, target, ports = parcel.source, parcel.target, self._ports
        path = ports.paths[source.pool, target.pool]
        load = path.load(parcel.tokens)
        loads: dict[Hashable, float] = {("out", name): load.out_s for name in ports.name(source)}
        loads |= {("in", name): load.in_s for name in ports.name(target)}
        flow = Flow(load.size, loads, path.latency_s, arrive)
        pieces = Pieces(parcel.begun_s, self._clock.now, path.pieces(parcel.tokens))
        if ports.queues is None:
            self._flows.begin(flow, pieces)
            return
        queue = source.index, target.index % ports.queues
        earlier, self._last[queue] = self._last.get(queue), flow
        self._flows.begin_after(earlier, flow, pieces)


@dataclass(frozen=True, slots=True)
class RankPath:
    """All ranks send and receive at once, each its own part: the slower end decides.

    Rates are a link's nominal ones, in one direction per accelerator: nothing is taken off for protocols.
    """

    source: Shard
    target: Shard
    source_bytes_per_s: float  # of one accelerator
    target_bytes_per_s: float
    latency_s: float
    moment: KvTransfer = "at_end"
    chunk_tokens: int = 1  # of a prompt in one step
    drafter_bytes_per_token: float = 0.0  # that the drafter's cache has beside the target's, on one accelerator

    def pieces(self, tokens: int) -> int:
        if self.moment == "layerwise":
            return self.source.model.n_layers
        return -(-tokens // self.chunk_tokens) if self.moment == "chunkwise" else 1

    def load(self, tokens: int) -> Load:
        drafter = tokens * self.drafter_bytes_per_token
        sent = sequence_bytes(self.source, tokens) + drafter
        received = sequence_bytes(self.target, tokens) + drafter
        return Load(sent, sent / self.source_bytes_per_s, received / self.target_bytes_per_s)

    @classmethod
    def between(cls, source: Plant, target: Plant, fleet: Fleet) -> RankPath:
        """The node's own link where both stand in one node, else each end's share of its network cards; or what was
        asked."""
        ends = (source, target)
        inside = _inside(source, target)
        rates = [h.node.link_bytes_per_s if inside else _card_share(p) for p in ends for h in (p.resolved.hardware,)]
        asked = fleet.transfer_bytes_per_s
        out_rate, in_rate = (asked or rate for rate in rates)
        shards = Shard.of(source.resolved), Shard.of(target.resolved)
        latency_s = NODE_LATENCY_S if inside else NETWORK_LATENCY_S
        chunk = source.resolved.limits.max_num_batched_tokens
        drafter = source.memory.draft_kv_bytes_per_token
        return cls(*shards, out_rate, in_rate, latency_s, fleet.transfer, chunk, drafter)


def _inside(source: Plant, target: Plant) -> bool:
    """Both stand where one link joins everything."""
    hardware = source.resolved.hardware
    return source.resolved.site == target.resolved.site and hardware.link_domain == hardware.n_accelerators


def _per_card(plant: Plant) -> int:
    """Accelerators of a node that share a network card."""
    node = plant.resolved.hardware.node
    return -(-node.max_accelerators // node.cards) if node.cards else 1


def _card_share(plant: Plant) -> float:
    """Bytes per second of each of a replica's accelerators while no other replica uses their cards."""
    return plant.resolved.hardware.node.network_bytes_per_s * max(
        1.0, _per_card(plant) / min(plant.resolved.accelerators_per_replica, _per_card(plant))
    )


@dataclass(frozen=True, slots=True)
class Cards:
    """Which network cards the replicas of a fleet use, by the accelerators they stand on: pool after pool, in the order
    of their slots."""

    fleet: Fleet
    first: tuple[int, ...]  # accelerator of each pool at its site

    @classmethod
    def of(cls, fleet: Fleet) -> Cards:
        used: dict[str, int] = {}
        first = []
        for plant in fleet.plants:
            r = plant.resolved
            first.append(used.get(r.site, 0))
            used[r.site] = first[-1] + r.replicas * r.accelerators_per_replica
        return cls(fleet, tuple(first))

    def links(self, replica: Replica) -> tuple[Hashable, ...]:
        """Its cards; where each accelerator has its own, one name for all of them."""
        plant = self.fleet.plants[replica.pool]
        each, r = _per_card(plant), plant.resolved
        if each == 1:
            return (replica.index,)
        begin = self.first[replica.pool] + replica.slot * r.accelerators_per_replica
        per_node = r.hardware.accelerators_per_node
        used = range(begin, begin + r.accelerators_per_replica)
        return tuple(dict.fromkeys((r.site, a // per_node, a % per_node // each) for a in used))


def ports_of(fleet: Fleet) -> Ports | None:
    """What carries blocks from prefill pools to decode pools; None where there are none."""
    numbered = list(enumerate(fleet.plants))
    apart = [
        (i, j)
        for (i, source), (j, target) in product(numbered, numbered)
        if (source.resolved.role, target.resolved.role) == ("prefill", "decode")
    ]
    if not apart:
        return None
    plants = fleet.plants
    paths = {(i, j): RankPath.between(plants[i], plants[j], fleet) for i, j in apart}
    shared = any(not _inside(plants[i], plants[j]) for i, j in apart)
    return Ports(paths, Cards.of(fleet).links if shared else own_port, fleet.transfer_queues)
