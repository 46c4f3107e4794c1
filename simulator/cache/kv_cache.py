"""A paged KV cache with exact block counts. Blocks without shared content are counted and have no objects.

Free blocks wait in ONE queue, as in vLLM. Freed blocks go to its end (a request's last block first). New blocks are
taken from its head, and the content that was cached there is dropped. A prefix hit takes blocks out of the middle.
Adjacent blocks that need not be distinguished form one `BlockRun`, so the cost is per run and not per block.

A cached unit is `unit_blocks` blocks: one if contents are known block by block, in which case hits are vLLM's, and more
if a trace names larger blocks (512 tokens), for speed. The texts of long conversations have units of different sizes
(`Request.ends`), which end where texts end or branch. A larger unit can be hit once all of it is scheduled, and is
dropped when its first block is taken. Copies of a cached block (two requests computed it at once) are kept, and hits go
to the oldest.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from typing import TYPE_CHECKING

from simulator.core.mypyc_modules import mypyc_attr
from simulator.core.request import BlockRun

if TYPE_CHECKING:
    from simulator.core.request import Request


@mypyc_attr(allow_interpreted_subclasses=True)
class KvCache:
    """The KV blocks of one replica.

    At all times free + held + cached = total, and `available` = free + cached.
    """

    __slots__ = (
        "_cache",
        "_copies",
        "_last",
        "_queue",
        "available",
        "block_size",
        "cached",
        "enabled",
        "insertions",
        "min_available",
        "total",
        "unit_blocks",
        "unit_tokens",
    )

    def __init__(self, total_blocks: int, block_size: int, prefix_caching: bool, unit_blocks: int = 1) -> None:
        self.total = total_blocks
        self.block_size = block_size
        self.enabled = prefix_caching
        self.unit_blocks = unit_blocks
        self.unit_tokens = unit_blocks * block_size
        self.available = total_blocks
        self.min_available = total_blocks
        self.cached = 0  # blocks in the queue that a prefix may still hit
        self.insertions = 0  # number of units that have become available for hits
        self._last = BlockRun(total_blocks)  # the newest run without content, possibly taken already
        self._queue: OrderedDict[BlockRun, None] = OrderedDict({self._last: None})
        self._cache: dict[int, BlockRun] = {}
        self._copies: dict[int, list[BlockRun]] = {}  # further blocks of the same content, oldest first

    @property
    def held(self) -> int:
        """Return the blocks that requests hold."""
        return self.total - self.available

    def count_queue(self) -> tuple[int, int]:
        """Return (free, cached) blocks, counted one by one, for the check of invariants."""
        cached = sum([run.count for run in self._queue if run.key is not None])
        return sum([run.count for run in self._queue]) - cached, cached

    @property
    def queue_length(self) -> int:
        """Return the number of entries that `count_queue` visits."""
        return len(self._queue)

    def restore(self, available: int, min_available: int) -> None:
        """Take over the counts of a run in which no content was shared (`simulator/engine/fast_path.py`)."""
        self.available, self.min_available = available, min_available
        self._last = BlockRun(available)
        self._queue = OrderedDict({self._last: None})

    def take(self, blocks: int) -> None:
        """Hold `blocks` more blocks, from the head of the queue.

        Raises:
            ValueError: There are fewer blocks available.
        """
        available = self.available - blocks
        if available < 0:
            raise ValueError(f"KV cache: {blocks} blocks requested, {self.available} available")
        self.available = available
        if available < self.min_available:
            self.min_available = available
        queue = self._queue
        while blocks:
            run = next(iter(queue))
            if run.key is not None:
                self._forget(run)
            count = run.count
            if count > blocks:
                run.count = count - blocks
                return
            blocks -= run.count
            run.count = 0
            del queue[run]

    def _forget(self, run: BlockRun) -> None:
        """Drop the cached content of a run."""
        key = run.key
        assert key is not None
        run.key = None
        self.cached -= run.count
        copies = self._copies.get(key)
        if copies is None:
            del self._cache[key]
            return
        if self._cache[key] is run:
            self._cache[key] = copies[0]
            del copies[0]
        else:
            copies.remove(run)
        if not copies:
            del self._copies[key]

    def units_in(self, request: Request, tokens: int) -> int:
        """Return the number of a request's units that end within its first `tokens` tokens."""
        if request.ends is None:
            return min(tokens // self.unit_tokens, len(request.keys))
        return bisect_right(request.ends, tokens // self.block_size)

    def blocks_of(self, request: Request, units: int) -> int:
        """Return the number of blocks of a request's first `units` units."""
        if request.ends is None:
            return units * self.unit_blocks
        return request.ends[units - 1] if units else 0

    def match(self, request: Request) -> tuple[int, int, int]:
        """Return the longest cached prefix: (units, private blocks, blocks of both that are in the queue).

        Private blocks are those that the request left at an earlier preemption. At least the last token remains to be
        computed. With one block per unit, its whole block does. A larger unit is held entirely, and the caller
        recomputes its last block.
        """
        single = self.unit_blocks == 1 and request.ends is None
        most = self.units_in(request, request.known_tokens - 1 if single else request.known_tokens)
        units = queued = 0
        cache = self._cache
        for key in request.keys[:most]:
            run = cache.get(key)
            if run is None:
                break
            units += 1
            if not run.references:
                queued += run.count
        own = request.own_run
        if own is None or units != request.keys_seen:
            return units, 0, queued
        n_own = min(own.count, request.own_full_blocks)
        return units, n_own, queued + n_own

    def claim(self, request: Request, units: int, own_blocks: int) -> None:
        """Hold the blocks that `match` found."""
        for key in request.keys[:units]:
            run = self._cache[key]
            if not run.references:
                del self._queue[run]
                self.available -= run.count
                self.cached -= run.count
            run.references += 1
            request.units.append(run)
        request.shared_blocks = self.blocks_of(request, units)
        request.keys_seen = units
        own = request.own_run
        if own is not None:
            request.own_run = None
            own.count -= own_blocks
            self.available -= own_blocks
            if own_blocks and not own.count:
                del self._queue[own]
        if self.available < self.min_available:
            self.min_available = self.available

    def offer(self, request: Request, computed_tokens: int) -> None:
        """Make the request's newly full units, which it holds, available for hits."""
        ends = request.ends
        if ends is None:
            full = min(computed_tokens // self.unit_tokens, len(request.keys))
        else:
            full = bisect_right(ends, computed_tokens // self.block_size)
        blocks, begin = self.unit_blocks, request.shared_blocks
        for unit in range(request.keys_seen, full):
            key = request.keys[unit]
            if ends is not None:
                blocks, begin = ends[unit] - begin, ends[unit]
            run = BlockRun(blocks, key)
            run.references = 1
            if self._cache.setdefault(key, run) is not run:
                self._copies.setdefault(key, []).append(run)
            self.insertions += 1
            request.units.append(run)
        if full > request.keys_seen:
            request.keys_seen = full
            request.shared_blocks = self.blocks_of(request, full)

    def release(
        self, request: Request, computed_tokens: int, returning: bool = False, kept_tokens: int | None = None
    ) -> None:
        """Free all blocks of a request, the last one first.

        Args:
            request: The request that gives up its blocks.
            computed_tokens: Tokens whose KV it holds.
            returning: It was preempted and may find its private blocks again.
            kept_tokens: Tokens that become available for hits, of those that are not yet; None means all.
        """
        if request.keys:
            self.offer(request, computed_tokens if kept_tokens is None else min(kept_tokens, computed_tokens))
        private = max(0, -(-computed_tokens // self.block_size) - request.shared_blocks) + request.spare_blocks
        request.spare_blocks = 0
        if private > 0:
            self.available += private
            last = self._last
            if returning and self.enabled:
                run = BlockRun(private)
                request.own_run = run
                request.own_full_blocks = computed_tokens // self.block_size - request.shared_blocks
                self._queue[run] = None
            elif last.count and next(reversed(self._queue)) is last:
                last.count += private
            else:
                self._last = last = BlockRun(private)
                self._queue[last] = None
        if request.units:
            self._return_units(request)
            request.units.clear()
        request.shared_blocks = 0

    def _return_units(self, request: Request) -> None:
        """Put the units that no other request holds at the end of the queue, the last one first."""
        for run in reversed(request.units):
            run.references -= 1
            if not run.references:
                self._queue[run] = None
                self.available += run.count
                self.cached += run.count
