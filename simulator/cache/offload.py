"""KV blocks kept beside the device: a tier in host memory and one on disk behind it (vLLM's OffloadingConnector).

Every full block is copied to the host once its step has ended, and from there to the disk; so the tiers hold copies,
and what the device forgets is still there. Each is a list in order of last use, whose oldest idle entries make room. A
request whose prefix the device does not hold, but the tiers do, gets blocks and waits beside the queue until they are
filled. Copies of one direction follow one another: in and out of the device, in and out of the disk.

Blocks whose content nobody shares are counted, never objects of their own: they can never be hit, but they take room.

Host memory that a preempted request's blocks are moved to, and from which they come back (vLLM V0, swap_space).
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from catalogs.arrays import FloatArray
from catalogs.errors import InputError
from simulator.core.batch import BlockCopy

if TYPE_CHECKING:
    from simulator.core.request import Request


@dataclass(frozen=True, slots=True)
class OffloadRules:
    """Sizes in KV blocks of the replica, seconds for each block in one direction."""

    host_blocks: int
    host_s_per_block: float
    disk_blocks: int = 0
    disk_s_per_block: float = 0.0


class OffloadClock(Protocol):
    """What is asked of a clock."""

    @property
    def now(self) -> float: ...


class CachedBlocks:
    """Blocks that came together. Busy, and so not evicted, until ready_s and while somebody reads them."""

    __slots__ = ("count", "key", "readers", "ready_s")

    def __init__(self, key: int | None, count: int, ready_s: float) -> None:
        self.key, self.count, self.ready_s, self.readers = key, count, ready_s, 0


class CacheTier:
    """free + stored = total, blocks; stored in order of last use."""

    def __init__(self, total: int) -> None:
        self.total = self.free = total
        self.entries: OrderedDict[CachedBlocks, None] = OrderedDict()
        self._by_key: dict[int, CachedBlocks] = {}

    def get(self, key: int) -> CachedBlocks | None:
        return self._by_key.get(key)

    def ready(self, key: int, now: float) -> CachedBlocks | None:
        """What holds this content and has all of it."""
        entry = self._by_key.get(key)
        return entry if entry is not None and entry.ready_s <= now else None

    def touch(self, key: int) -> None:
        """It was used just now."""
        entry = self._by_key.get(key)
        if entry is not None:
            self.entries.move_to_end(entry)

    def add(self, key: int | None, count: int, ready_s: float) -> CachedBlocks:
        """Raises ValueError where there is no room: ask `make_room` first."""
        if count > self.free:
            raise ValueError(f"tier: {count} blocks wanted, {self.free} free")
        self.free -= count
        entry = CachedBlocks(key, count, ready_s)
        self.entries[entry] = None
        if key is not None:
            self._by_key[key] = entry
        return entry

    def make_room(self, blocks: int, now: float) -> int:
        """Forget the longest unused until so many blocks are free; returns how many are, at most `blocks`."""
        if self.free < blocks:
            for entry in self._oldest(blocks - self.free, now):
                self._shrink(entry, blocks - self.free)
        return min(self.free, blocks)

    def _oldest(self, blocks: int, now: float) -> list[CachedBlocks]:
        found = []
        for entry in self.entries:
            if blocks <= 0:
                break
            if entry.ready_s <= now and not entry.readers:
                found.append(entry)
                blocks -= entry.count
        return found

    def _shrink(self, entry: CachedBlocks, blocks: int) -> None:
        """Drop it, or as much as is wanted of one that nobody can hit."""
        if entry.key is None and entry.count > blocks:
            entry.count -= blocks
            self.free += blocks
            return
        self.free += entry.count
        del self.entries[entry]
        if entry.key is not None:
            del self._by_key[entry.key]


class TierPort:
    """One direction of a link: copies one after the other."""

    def __init__(self, s_per_block: float) -> None:
        self.s_per_block = s_per_block
        self.free_s = 0.0  # when the last copy asked for is done
        self.blocks = 0  # carried so far

    def carry(self, blocks: int, from_s: float) -> float:
        """When so many blocks, ready at from_s, are over."""
        self.free_s = max(from_s, self.free_s) + blocks * self.s_per_block
        self.blocks += blocks
        return self.free_s


@dataclass(frozen=True, slots=True)
class OffloadUse:
    """What a replica's tiers did in a run. fetches (n, 4): request, start and end in seconds, blocks."""

    fetches: FloatArray
    stored_blocks: int
    host_used_fraction: float  # when the run ended
    disk_used_fraction: float

    @classmethod
    def of(cls, cache: HostCache) -> OffloadUse:
        used = [1.0 - tier.free / max(1, tier.total) if tier.total else 0.0 for tier in (cache.host, cache.disk)]
        return cls(np.array(cache.fetches).reshape(-1, 4), cache.to_host.blocks, *used)


class HostCache:
    """The tiers of one replica. `fetches` is for the record: request, start and end in seconds, blocks."""

    def __init__(self, rules: OffloadRules, unit_blocks: int, block_size: int, clock: OffloadClock) -> None:
        self.host, self.disk = CacheTier(rules.host_blocks), CacheTier(rules.disk_blocks)
        self.to_host, self.to_device = TierPort(rules.host_s_per_block), TierPort(rules.host_s_per_block)
        self.to_disk, self.from_disk = TierPort(rules.disk_s_per_block), TierPort(rules.disk_s_per_block)
        self.fetches = array("d")
        self._reading: dict[Request, list[CachedBlocks]] = {}
        self._unit, self._size, self._clock = unit_blocks, block_size, clock

    def find(self, keys: Sequence[int], first: int) -> int:
        """How many units from number `first` on are in a tier, without a gap."""
        now, n = self._clock.now, first
        while n < len(keys) and (self.host.ready(keys[n], now) or self.disk.ready(keys[n], now)):
            n += 1
        return n - first

    def reserve(self, request: Request) -> None:
        """Keep what `Request.fetching` names until `landed`."""
        now, held = self._clock.now, []
        for key in request.fetching:
            entry = self.host.ready(key, now) or self.disk.ready(key, now)
            assert entry is not None
            entry.readers += 1
            held.append(entry)
        self._reading[request] = held

    def fetch(self, request: Request) -> float:
        """Start to copy what was reserved to the device; returns when all of it is there. What only the disk has passes
        through the host and stays there if there is room."""
        now, held = self._clock.now, self._reading[request]
        behind = [e for e in held if e.key is not None and self.host.get(e.key) is not e]
        ready_s = self.from_disk.carry(len(behind) * self._unit, now) if behind else now
        for entry in behind:
            if entry.key is not None and self.host.get(entry.key) is None and self._host_room():
                held.append(self.host.add(entry.key, self._unit, ready_s))
                held[-1].readers = 1
        end_s = self.to_device.carry(request.fetched_blocks, ready_s)
        self.fetches.extend((request.index, now, end_s, request.fetched_blocks))
        return end_s

    def _host_room(self) -> bool:
        return self.host.make_room(self._unit, self._clock.now) == self._unit

    def landed(self, request: Request) -> None:
        """Its blocks have arrived."""
        for entry in self._reading.pop(request):
            entry.readers -= 1
        request.fetching = ()

    def due(self, request: Request, computed_tokens: int) -> BlockCopy | None:
        """The blocks of a request that have become full since it was asked last."""
        full = computed_tokens // self._size
        units = min(full // self._unit, len(request.keys))
        keys = request.keys[request.offered_units : units]
        own = max(0, full - len(request.keys) * self._unit - request.offered_blocks)
        request.offered_units = max(units, request.offered_units)
        request.offered_blocks += own
        return BlockCopy(keys, own) if keys or own else None

    def store(self, copy: BlockCopy) -> None:
        """Start copying to the host, and on to the disk, what they do not hold; what has no room is left out."""
        now = self._clock.now
        new = [key for key in copy.keys if self.host.get(key) is None]
        units = self.host.make_room(len(new) * self._unit + copy.own_blocks, now) // self._unit
        own = min(copy.own_blocks, self.host.free - min(units, len(new)) * self._unit)
        new = new[:units]
        if not new and own <= 0:
            return
        ready_s = self.to_host.carry(len(new) * self._unit + own, now)
        self._add(self.host, new, own, ready_s)
        if self.disk.total:
            self._cascade(new, own, ready_s)

    def _cascade(self, keys: Sequence[int], own: int, from_s: float) -> None:
        new = [key for key in keys if self.disk.get(key) is None]
        room = self.disk.make_room(len(new) * self._unit + own, self._clock.now)
        new = new[: room // self._unit]
        own = min(own, room - len(new) * self._unit)
        if new or own:
            self._add(self.disk, new, own, self.to_disk.carry(len(new) * self._unit + own, from_s))

    def _add(self, tier: CacheTier, keys: Sequence[int], own: int, ready_s: float) -> None:
        for key in keys:
            tier.add(key, self._unit, ready_s)
        if own > 0:
            tier.add(None, own, ready_s)

    def left(self, request: Request) -> None:
        """It is done with its blocks: its prefix was used just now, the end of it before the beginning."""
        for key in reversed(request.keys[: request.offered_units]):
            self.host.touch(key)
            self.disk.touch(key)


@dataclass(frozen=True, slots=True)
class SwapRules:
    """blocks: room for so many. A step that moves blocks runs after their copies, one after the other on one link."""

    blocks: int
    s_per_block: float


class SwapSpace:
    """free + used = total, blocks."""

    def __init__(self, total: int) -> None:
        self.total, self.used = total, 0

    def take(self, blocks: int) -> None:
        """Raises InputError where they do not fit: the engine would stop with this error, too."""
        if self.used + blocks > self.total:
            raise InputError(
                f"vLLM V0 aborts for want of swap space: {self.used + blocks} blocks preempted at once, room for",
                self.total,
                "a larger swap_space_gib, or preemption: recompute",
            )
        self.used += blocks

    def give_back(self, blocks: int) -> None:
        self.used -= blocks
