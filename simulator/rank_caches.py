"""The caches of ranks that step together, as one."""

from __future__ import annotations

from collections.abc import Sequence

from simulator.kv_cache import KvCache


class RankCaches:
    """The caches of all ranks, counted together; the part of KvCache that is asked of a replica."""

    def __init__(self, caches: Sequence[KvCache]) -> None:
        self._caches = caches
        self.total = sum(kv.total for kv in caches)
        self.block_size, self.unit_blocks, self.unit_tokens = (
            caches[0].block_size,
            caches[0].unit_blocks,
            caches[0].unit_tokens,
        )

    @property
    def available(self) -> int:
        return sum(kv.available for kv in self._caches)

    @property
    def held(self) -> int:
        return sum(kv.held for kv in self._caches)

    @property
    def cached(self) -> int:
        return sum(kv.cached for kv in self._caches)

    @property
    def min_available(self) -> int:
        """As if all had been as full as the fullest was: a full rank's requests do not fit elsewhere."""
        return len(self._caches) * min(kv.min_available for kv in self._caches)
