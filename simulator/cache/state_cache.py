"""A KV cache that keeps recurrent states beside the blocks of attention: hybrid models in vLLM V1.

A prefix of such a model can only be hit where the state at its end is in the cache (`find_longest_cache_hit` of
`MambaManager` and of the coordinator of hybrid models, vllm/v1/core). States are kept at the ends of the chunks of a
prompt and of the blocks that a request fills while it decodes. Each takes as many blocks as the model has groups of
layers with states, from the same queue as blocks of tokens, and stays in it in the order of last use. Only the state at
the end of a hit is used by it. A conversation whose last state has been evicted is therefore computed again from its
beginning, or from a shared beginning that others use, although its blocks of attention may still be there; and what
is computed again takes blocks for each of its states, which evict the conversations of others.

Not counted: the one or two states that a running request holds, which are part of the size of a block
(`simulator.memory.cache_groups.even_blocks`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from simulator.cache.kv_cache import KvCache
from simulator.core.request import BlockRun

if TYPE_CHECKING:
    from simulator.core.request import Request


class StateKvCache(KvCache):
    """The KV blocks of one replica, some of which hold states.

    Attributes:
        state_blocks: Blocks of one state.
    """

    __slots__ = ("_states", "state_blocks")

    def __init__(self, total_blocks: int, block_size: int, unit_blocks: int, state_blocks: int) -> None:
        super().__init__(total_blocks, block_size, prefix_caching=True, unit_blocks=unit_blocks)
        self.state_blocks = state_blocks
        self._states: dict[int, BlockRun] = {}  # the state at the end of a unit, by the key of the unit

    def _forget(self, run: BlockRun) -> None:
        """Drop the cached content of a run."""
        key = run.key
        if key is None or self._states.get(key) is not run:
            super()._forget(run)
            return
        del self._states[key]
        run.key = None
        self.cached -= run.count

    def match(self, request: Request) -> tuple[int, int, int]:
        """Return the longest cached prefix that ends at a cached state: (units, 0, its blocks in the queue).

        The private blocks that a preempted request left have no state and are not found again.
        """
        units, own, queued = super().match(request)
        queued -= own
        while units and request.keys[units - 1] not in self._states:
            units -= 1
            run = self._cache[request.keys[units]]
            if not run.references:
                queued -= run.count
        return units, 0, queued

    def claim(self, request: Request, units: int, own_blocks: int) -> None:
        """Hold the blocks that `match` found, and mark the state at their end as used."""
        super().claim(request, units, own_blocks)
        if units:
            self._queue.move_to_end(self._states[request.keys[units - 1]])

    def offer(self, request: Request, computed_tokens: int) -> None:
        """Make the request's newly full units available for hits, and keep the states at their ends.

        A chunk of the prompt leaves a state if it ends where a block ends. Decoding leaves one at the end of each
        block, which are counted when the request gives up its blocks.
        """
        super().offer(request, computed_tokens)
        blocks = computed_tokens // self.block_size
        if computed_tokens <= request.input_tokens:
            states = int(computed_tokens % self.block_size == 0)
        else:
            states = blocks - request.input_tokens // self.block_size
        if not states:
            return
        self._keep((states - 1) * self.state_blocks)
        units = request.keys_seen
        ends = bool(units) and self.blocks_of(request, units) == blocks
        self._keep(self.state_blocks, request.keys[units - 1] if ends else None)

    def _keep(self, blocks: int, key: int | None = None) -> None:
        """Put states into blocks from the head of the queue, which then wait at its end; keep none without space.

        Args:
            blocks: Blocks of the states.
            key: The key of the unit at whose end the state is; None: no prefix is known that ends there.
        """
        if not 0 < blocks <= self.available:
            return
        self.take(blocks)
        run = BlockRun(blocks, key)
        self.available += blocks
        self._queue[run] = None
        if key is None:
            return
        older = self._states.get(key)
        if older is not None:
            self._forget(older)
        self._states[key] = run
        self.cached += blocks
        self.insertions += 1
