"""Content ids of token blocks: ids that identify the whole prefix, in the block size of an engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import overload

import numpy as np

BlockIds = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class EngineBlocks(Sequence[BlockIds]):
    """Block ids per request in the engine's block size, computed when a request is accessed and never all at once.

    Element i holds one id for each engine block of request i whose tokens are all known (prompt, then generated); later
    blocks are unique to the request. Equal ids mean equal blocks with equal prefixes.

    The id of the engine block that ends at token e is (id of the trace block that contains token e) x size + e mod
    size. Since trace ids identify their whole prefix, this holds for smaller, larger and unaligned engine blocks. An
    unaligned block matches only where the trace block around its end does, so there are never false hits, but sometimes
    missed ones.
    """

    hashes: tuple[BlockIds, ...]
    hash_block_tokens: int
    block_size: int

    def __len__(self) -> int:
        return len(self.hashes)

    @overload
    def __getitem__(self, index: int) -> BlockIds: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[BlockIds]: ...
    def __getitem__(self, index: int | slice) -> BlockIds | Sequence[BlockIds]:
        if isinstance(index, slice):
            return EngineBlocks(self.hashes[index], self.hash_block_tokens, self.block_size)
        ids, size, step = self.hashes[index], self.hash_block_tokens, self.block_size
        if size == step:
            return ids
        ends = range(step - 1, len(ids) * size, step)
        return tuple([ids[e // size] * size + e % size for e in ends])


def chained_hashes(hashes: Sequence[Sequence[int]]) -> tuple[BlockIds, ...]:
    """Return the lists with ids such that equal ids mean equal blocks with equal prefixes.

    Lists in which each id always follows the same id are returned unchanged. Otherwise, as in the Bailian traces, whose
    ids hash one block without its prefix, every (prefix, id) pair gets a new id.
    """
    if _is_prefix_true(hashes):
        return tuple(map(tuple, hashes))
    known: dict[tuple[int, int], int] = {}
    chained: list[BlockIds] = []
    for ids in hashes:
        at = -1
        row = []
        for block in ids:
            at = known.setdefault((at, block), len(known))
            row.append(at)
        chained.append(tuple(row))
    return tuple(chained)


def _is_prefix_true(hashes: Sequence[Sequence[int]]) -> bool:
    lengths = np.fromiter(map(len, hashes), dtype=np.int64, count=len(hashes))
    total = int(lengths.sum())
    try:
        flat = np.fromiter(chain.from_iterable(hashes), dtype=np.int64, count=total)
    except OverflowError:  # 64-bit unsigned or wider hashes need smaller ids
        return False
    before = np.empty_like(flat)
    before[1:] = flat[:-1]
    before[(np.cumsum(lengths) - lengths)[lengths > 0]] = -1
    order = np.argsort(flat, kind="stable")
    same = flat[order][1:] == flat[order][:-1]
    return not bool(np.any(same & (before[order][1:] != before[order][:-1])))
