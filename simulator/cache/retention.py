"""KV blocks that are evicted last: TensorRT-LLM's prioritised eviction (`KvCacheRetentionConfig`).

Every request gives a priority above the default to the blocks of its prompt's first tokens, or to all of its blocks.
Blocks of the default priority are evicted first, each class in the order of last use. The priority ends some time after
a block was released; the block is then the most recently used one of the default priority. Source: NVIDIA/TensorRT-LLM,
cpp/tensorrt_llm/batch_manager/evictionPolicy.cpp (`getFreeBlock`, `releaseBlock`, `refresh`).

All requests have the same configuration, so there are two classes and their numbers do not matter. Retention of all
tokens only lets blocks without content go first: all others lose their priority in the order of last use.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from dataclasses import dataclass
from math import ceil, inf
from typing import TYPE_CHECKING

from simulator.cache.kv_cache import KvCache

if TYPE_CHECKING:
    from simulator.core.clock import Clock
    from simulator.core.request import BlockRun, Request


@dataclass(frozen=True, slots=True)
class RetentionRules:
    """Which blocks have priority, and for how long after they were released.

    Attributes:
        prompt_tokens: A unit has priority if it begins within the first tokens of a prompt, units of generated tokens
            do not; infinite for all blocks, those of generated tokens included.
        duration_s: Seconds from release to the end of the priority; infinite for no end.
    """

    prompt_tokens: float
    duration_s: float = inf


class RetainingKvCache(KvCache):
    """The KV blocks of one replica, some of which are evicted last.

    Blocks with priority wait in a queue of their own, in the order of release, behind the queue of all others.
    """

    __slots__ = ("_kept", "_rules", "clock", "kept")

    def __init__(self, total_blocks: int, block_size: int, unit_blocks: int, rules: RetentionRules) -> None:
        super().__init__(total_blocks, block_size, prefix_caching=True, unit_blocks=unit_blocks)
        self._rules = rules
        self._kept: OrderedDict[BlockRun, float] = OrderedDict()  # with the time at which the priority ends
        self.kept = 0  # blocks in this queue, which are among the available ones
        self.clock: Clock | None = None  # set by the replica; None: priorities do not end

    def count_queue(self) -> tuple[int, int]:
        """Return (free, cached) blocks, counted one by one, for the check of invariants."""
        free, cached = super().count_queue()
        return free, cached + sum([run.count for run in self._kept])

    @property
    def queue_length(self) -> int:
        """Return the number of entries that `count_queue` visits."""
        return len(self._queue) + len(self._kept)

    def take(self, blocks: int) -> None:
        """Hold `blocks` more blocks: those of the default priority first, each class from the head of its queue.

        Raises:
            ValueError: There are fewer blocks available.
        """
        if blocks <= self.available:
            self._end_priorities()
            while self.available - self.kept < blocks:
                self._lose_priority()
        super().take(blocks)

    def _end_priorities(self) -> None:
        """Move the blocks whose priority has ended behind all others of the default priority."""
        now = self.clock.now if self.clock is not None else 0.0
        while self._kept and next(iter(self._kept.values())) <= now:
            self._lose_priority()

    def _lose_priority(self) -> None:
        """Move the blocks with priority that were released first behind all others of the default priority."""
        run, _ = self._kept.popitem(last=False)
        self.kept -= run.count
        self._queue[run] = None

    def claim(self, request: Request, units: int, own_blocks: int) -> None:
        """Hold the blocks that `match` found."""
        for key in request.keys[:units]:
            run = self._cache[key]
            if self._kept.pop(run, None) is not None:
                self.kept -= run.count
                self._queue[run] = None
        super().claim(request, units, own_blocks)

    def _return_units(self, request: Request) -> None:
        """Put the units that no other request holds at the ends of both queues, the last one first."""
        super()._return_units(request)
        ends_s = (self.clock.now if self.clock is not None else 0.0) + self._rules.duration_s
        for run in reversed(request.units[: self._units_with_priority(request, len(request.units))]):
            if not run.references:
                del self._queue[run]
                self._kept[run] = ends_s
                self.kept += run.count

    def _units_with_priority(self, request: Request, units: int) -> int:
        """Return how many of a request's first `units` units begin within the tokens that have priority."""
        if self._rules.prompt_tokens == inf:
            return units
        tokens = min(self._rules.prompt_tokens, request.input_tokens)
        if request.ends is None:
            return min(units, ceil(tokens / self.unit_tokens))
        return min(units, 1 + bisect_left(request.ends, tokens / self.block_size))
