"""Content ids of token blocks: making them prefix-true, and cutting them to an engine's block size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import overload

import numpy as np

BlockIds = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class EngineBlocks(Sequence[BlockIds]):
    """Block ids per request in the engine's block size, worked out when a request is asked for, never all at once.

    Element i holds one id for each engine block of request i whose tokens are all known (prompt, then generated);
    blocks past the end are unique to the request. Equal id = equal block and equal prefix.

    The id of the engine block that ends at token e is (id of the trace block holding token e) x size + e mod size.
    As trace ids name their whole prefix, that holds for smaller, larger and unaligned engine blocks alike (an
    unaligned one matches only where the trace block around its end does: never a false hit, at times a missed one).
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
    """The same lists with ids such that equal id means equal block *and* equal prefix.

    Lists that already are (each id always follows the same id) come back unchanged. Otherwise, as in the Bailian
    traces, whose ids hash one block alone, every (prefix, id) pair gets an id of its own.
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
    except OverflowError:  # 64-bit unsigned or wider hashes: give them small ids
        return False
    before = np.empty_like(flat)
    before[1:] = flat[:-1]
    before[(np.cumsum(lengths) - lengths)[lengths > 0]] = -1
    order = np.argsort(flat, kind="stable")
    same = flat[order][1:] == flat[order][:-1]
    return not bool(np.any(same & (before[order][1:] != before[order][:-1])))
