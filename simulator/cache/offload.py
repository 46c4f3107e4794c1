"""KV blocks outside the device: a host tier with a disk tier behind it (vLLM's OffloadingConnector), and swap space.

Every full block is copied to the host once its step has ended, and from there to the disk. The tiers therefore hold
copies, and content that the device drops is still available. Each tier is a list in order of last use, and its oldest
idle entries are evicted first. If the tiers hold more of a request's prefix than the device does, the request gets
blocks and waits outside the queue until they are filled. Copies in one direction run one after the other: in and out of
the device, in and out of the disk.

Blocks with private content are counted and have no objects. They can never be hit, but they take space.

Replicas may share the tiers as one pool (LMCache, Mooncake Store). Each replica copies over its own links, and finds
what any of them has stored once it has arrived.

The swap space is host memory to which the blocks of preempted requests are moved, and from which they come back (vLLM
V0, swap_space).
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from math import inf
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from catalogs.arrays import FloatArray
from catalogs.errors import InputError
from simulator.core.batch import BlockCopy

if TYPE_CHECKING:
    from simulator.cache.kv_cache import KvCache
    from simulator.core.clock import Clock
    from simulator.core.request import Request


@dataclass(frozen=True, slots=True)
class OffloadRules:
    """Sizes of the tiers in KV blocks of the replica, and the seconds of copying each block in one direction.

    `to_host_s_per_block` of None means that copies to the host take as long as those from it. With `shared`, the blocks
    of all replicas are one pool; each replica copies over its own links. Blocks expire `expire_s` after they were
    stored, whether they are used or not (LMCache's `valkey_ttl_sec`); None means that they do not.
    """

    host_blocks: int
    host_s_per_block: float
    disk_blocks: int = 0
    disk_s_per_block: float = 0.0
    to_host_s_per_block: float | None = None
    shared: bool = False
    expire_s: float | None = None


@dataclass(slots=True, eq=False)
class CachedBlocks:
    """Blocks that were stored together.

    They are busy, and not evicted, until `ready_s` and while requests read them.
    """

    key: int | None  # content key; None for private content
    count: int
    ready_s: float
    readers: int = 0


class CacheTier:
    """One tier of copies, in order of last use. At all times free + stored = total, in blocks."""

    def __init__(self, total: int, expire_s: float | None = None) -> None:
        self.total = self.free = total
        self.expire_s = inf if expire_s is None else expire_s
        self.entries: OrderedDict[CachedBlocks, None] = OrderedDict()
        self._by_key: dict[int, CachedBlocks] = {}

    def get(self, key: int) -> CachedBlocks | None:
        """Return the entry with this content, complete or not; None if there is none."""
        return self._by_key.get(key)

    def ready(self, key: int, now: float) -> CachedBlocks | None:
        """Return the entry that holds this content completely; None if there is none."""
        entry = self._by_key.get(key)
        return entry if entry is not None and entry.ready_s <= now < entry.ready_s + self.expire_s else None

    def stored(self, key: int, now: float) -> bool:
        """Return whether content is stored, completely or not; an idle entry that has expired is dropped."""
        entry = self._by_key.get(key)
        if entry is not None and entry.ready_s + self.expire_s <= now and not entry.readers:
            self._shrink(entry, entry.count)
            return False
        return entry is not None

    def touch(self, key: int) -> None:
        """Mark an entry as used now."""
        entry = self._by_key.get(key)
        if entry is not None:
            self.entries.move_to_end(entry)

    def add(self, key: int | None, count: int, ready_s: float) -> CachedBlocks:
        """Store an entry.

        Raises:
            ValueError: The tier has too few free blocks; call `free_up` first.
        """
        if count > self.free:
            raise ValueError(f"tier: {count} blocks requested, {self.free} free")
        self.free -= count
        entry = CachedBlocks(key, count, ready_s)
        self.entries[entry] = None
        if key is not None:
            self._by_key[key] = entry
        return entry

    def free_up(self, blocks: int, now: float) -> int:
        """Evict the least recently used entries until `blocks` blocks are free.

        Returns the free blocks, at most `blocks`.
        """
        missing, oldest = blocks - self.free, []
        for entry in self.entries:
            if missing <= 0:
                break
            if entry.ready_s <= now and not entry.readers:
                oldest.append(entry)
                missing -= entry.count
        for entry in oldest:
            self._shrink(entry, blocks - self.free)
        return min(self.free, blocks)

    def _shrink(self, entry: CachedBlocks, blocks: int) -> None:
        """Drop an entry, or only `blocks` blocks of an entry with private content."""
        if entry.key is None and entry.count > blocks:
            entry.count -= blocks
            self.free += blocks
            return
        self.free += entry.count
        del self.entries[entry]
        if entry.key is not None:
            del self._by_key[entry.key]


class OffloadTierPair(NamedTuple):
    """The host tier and the disk tier behind it: those of one replica, or of a pool that replicas share."""

    host: CacheTier
    disk: CacheTier

    @classmethod
    def of(cls, rules: OffloadRules, replicas: int = 1) -> OffloadTierPair:
        """Return empty tiers of the size of some replicas together."""
        expire_s = rules.expire_s
        return cls(CacheTier(rules.host_blocks * replicas, expire_s), CacheTier(rules.disk_blocks * replicas, expire_s))

    @classmethod
    def pooled(cls, parts: Iterable[tuple[OffloadRules, int]]) -> OffloadTierPair | None:
        """Return the empty pool of all replicas that share one, given rules with numbers of replicas; None for none."""
        sharing = [(rules, n) for rules, n in parts if rules.shared]
        if not sharing:
            return None
        host, disk = (sum(getattr(rules, name) * n for rules, n in sharing) for name in ("host_blocks", "disk_blocks"))
        expire_s = sharing[0][0].expire_s
        return cls(CacheTier(host, expire_s), CacheTier(disk, expire_s))


class TierPort:
    """One direction of a link, on which copies run one after the other."""

    def __init__(self, s_per_block: float) -> None:
        self.s_per_block = s_per_block
        self.free_s = 0.0  # end of the last copy
        self.blocks = 0  # copied so far

    def carry(self, blocks: int, from_s: float) -> float:
        """Copy `blocks` blocks that are ready at `from_s`; return the end of the copy in seconds."""
        self.free_s = max(from_s, self.free_s) + blocks * self.s_per_block
        self.blocks += blocks
        return self.free_s


@dataclass(frozen=True, slots=True)
class OffloadUse:
    """The use of a replica's tiers in a run.

    Attributes:
        fetches: Request, start and end in seconds, and blocks of each fetch. Shape (n, 4).
        stored_blocks: Blocks copied to the host.
        host_used_fraction: Share of the host tier in use when the run ended.
        disk_used_fraction: Share of the disk tier in use when the run ended.
    """

    fetches: FloatArray
    stored_blocks: int
    host_used_fraction: float
    disk_used_fraction: float

    @classmethod
    def of(cls, cache: HostCache) -> OffloadUse:
        """Return the use of a host cache up to now."""
        used = [1.0 - tier.free / max(1, tier.total) if tier.total else 0.0 for tier in (cache.host, cache.disk)]
        return cls(np.array(cache.fetches).reshape(-1, 4), cache.to_host.blocks, *used)


class HostCache:
    """The host and disk tiers as one replica uses them.

    `fetches` records the request, start and end in seconds, and blocks of each fetch.
    """

    def __init__(self, rules: OffloadRules, kv: KvCache, clock: Clock, tiers: OffloadTierPair | None = None) -> None:
        """Create the links of a replica to `tiers`, a pool that it shares with others; None for tiers of its own."""
        self.host, self.disk = tiers or OffloadTierPair.of(rules)
        back_s = rules.host_s_per_block if rules.to_host_s_per_block is None else rules.to_host_s_per_block
        self.to_host, self.to_device = TierPort(back_s), TierPort(rules.host_s_per_block)
        self.to_disk, self.from_disk = TierPort(rules.disk_s_per_block), TierPort(rules.disk_s_per_block)
        self.fetches = array("d")
        self._reading: dict[Request, list[CachedBlocks]] = {}
        self._kv, self._size, self._clock = kv, kv.block_size, clock

    def find(self, keys: Sequence[int], first: int) -> int:
        """Return the number of consecutive units, starting at unit `first`, that a tier holds completely."""
        now, n = self._clock.now, first
        while n < len(keys) and (self.host.ready(keys[n], now) or self.disk.ready(keys[n], now)):
            n += 1
        return n - first

    def reserve(self, request: Request) -> None:
        """Keep the units of `Request.fetching` in their tiers until `finish_fetch`."""
        now, held = self._clock.now, []
        for key in request.fetching:
            entry = self.host.ready(key, now) or self.disk.ready(key, now)
            assert entry is not None
            entry.readers += 1
            held.append(entry)
        self._reading[request] = held

    def fetch(self, request: Request) -> float:
        """Start to copy the reserved units to the device; return the time in seconds at which all of them have arrived.

        Units that only the disk holds pass through the host and stay there if it has space.
        """
        now, held = self._clock.now, self._reading[request]
        behind = [e for e in held if e.key is not None and self.host.get(e.key) is not e]
        ready_s = self.from_disk.carry(sum(e.count for e in behind), now) if behind else now
        for entry in behind:
            key = entry.key
            if key is not None and self.host.get(key) is None and self.host.free_up(entry.count, now) == entry.count:
                held.append(self.host.add(key, entry.count, ready_s))
                held[-1].readers = 1
        end_s = self.to_device.carry(request.fetched_blocks, ready_s)
        self.fetches.extend((request.index, now, end_s, request.fetched_blocks))
        return end_s

    def finish_fetch(self, request: Request) -> None:
        """Release the reserved units of a request, whose blocks have arrived."""
        for entry in self._reading.pop(request):
            entry.readers -= 1
        request.fetching = ()

    def due(self, request: Request, computed_tokens: int) -> BlockCopy | None:
        """Return the blocks of a request that have become full since the last call; None if there are none."""
        full = computed_tokens // self._size
        kv, n = self._kv, request.offered_units
        units = kv.units_in(request, computed_tokens)
        keys = request.keys[n:units]
        own = max(0, full - kv.blocks_of(request, len(request.keys)) - request.offered_blocks)
        request.offered_units = max(units, n)
        request.offered_blocks += own
        if not keys:
            return BlockCopy(keys, own, ()) if own else None
        if request.ends is None:
            return BlockCopy(keys, own, (kv.unit_blocks,) * len(keys))
        ends = (kv.blocks_of(request, n), *request.ends[n:units])
        return BlockCopy(keys, own, tuple([end - begin for begin, end in pairwise(ends)]))

    def store(self, copy: BlockCopy) -> None:
        """Start to copy blocks to the host, and on to the disk, unless they are there; skip blocks without space."""
        now = ready_s = self._clock.now
        found, own = list(zip(copy.keys, copy.blocks, strict=True)), copy.own_blocks
        for tier, port in ((self.host, self.to_host), (self.disk, self.to_disk)):
            found = [(key, blocks) for key, blocks in found if not tier.stored(key, now)]
            free = tier.free_up(sum([blocks for _, blocks in found]) + own, now)
            held = list(accumulate([blocks for _, blocks in found]))
            found = found[: bisect_right(held, free)]
            stored = held[len(found) - 1] if found else 0
            own = min(own, free - stored)
            if not found and not own:
                return
            ready_s = port.carry(stored + own, ready_s)
            for key, blocks in found:
                tier.add(key, blocks, ready_s)
            if own:
                tier.add(None, own, ready_s)

    def mark_used(self, request: Request) -> None:
        """Mark the prefix of a request that gives up its blocks as used now, its end before its beginning."""
        for key in reversed(request.keys[: request.offered_units]):
            self.host.touch(key)
            self.disk.touch(key)


@dataclass(frozen=True, slots=True)
class SwapRules:
    """The size of the swap space in blocks, and the seconds to move one block.

    A step that moves blocks runs after their copies, which run one after the other on one link.
    """

    blocks: int
    s_per_block: float


class SwapSpace:
    """Host memory for swapped blocks. At all times free + used = total, in blocks."""

    def __init__(self, total: int) -> None:
        self.total, self.used = total, 0

    def take(self, blocks: int) -> None:
        """Take `blocks` blocks.

        Raises:
            InputError: They do not fit; the engine stops with this error as well.
        """
        if self.used + blocks > self.total:
            rule = f"vLLM V0 aborts: the preempted blocks exceed the swap space of {self.total} blocks"
            raise InputError(rule, self.used + blocks, hint="set a larger swap_space_gib, or preemption: recompute")
        self.used += blocks

    def give_back(self, blocks: int) -> None:
        """Return `blocks` blocks to the free ones of the swap space."""
        self.used -= blocks
