"""The texts of requests as a tree: each text begins like its parent, and a request is the first part of a text.

A conversation of 100,000 tokens is thus one row and not 6,000 block ids. Ids of blocks, or of longer units, are made
when a request needs them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final, overload

import numpy as np

from catalogs.arrays import IntArray
from catalogs.workloads.block_hashes import BlockIds

#: Tokens per block of the ids that a tree gives as a sequence; also the default block size of engines.
BLOCK_TOKENS: Final = 16

#: Longest texts have about this many units, so that the cost of a request does not grow with its length. Texts of up to
#: twice as many blocks are cached block by block.
UNITS_PER_TEXT: Final = 128


@dataclass(frozen=True, eq=False)
class TextTree(Sequence[BlockIds]):
    """The known text of each request: the first `known_tokens` tokens of its prompt and its output.

    As a sequence, element i holds the ids of the full blocks of BLOCK_TOKENS tokens of request i.

    Attributes:
        parent: The text that each text begins with, which precedes it; -1 for none. Shape (texts,).
        kept_tokens: Tokens that each text has in common with its parent. Shape (texts,).
        tokens: Tokens of each text, with those of the parent. Shape (texts,).
        text: The text of each request. Shape (n,).
        known_tokens: Tokens of each request that are known, at most those of its text. Shape (n,).
    """

    parent: IntArray
    kept_tokens: IntArray
    tokens: IntArray
    text: IntArray
    known_tokens: IntArray

    def __len__(self) -> int:
        return len(self.text)

    @overload
    def __getitem__(self, index: int) -> BlockIds: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[BlockIds]: ...
    def __getitem__(self, index: int | slice) -> BlockIds | Sequence[BlockIds]:
        if isinstance(index, slice):
            return self.taken(index)
        if not -len(self) <= index < len(self):
            raise IndexError(index)
        return self._blocks.of(index)[0]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TextTree):
            return NotImplemented
        names = ("parent", "kept_tokens", "tokens", "text", "known_tokens")
        return all(np.array_equal(getattr(self, name), getattr(other, name)) for name in names)

    __hash__ = None  # type: ignore[assignment]

    @cached_property
    def _blocks(self) -> TextUnits:
        return TextUnits(self, BLOCK_TOKENS, 1)

    def taken(self, rows: slice | IntArray) -> TextTree:
        """Return the tree for some of the requests, in the given order."""
        return replace(self, text=self.text[rows], known_tokens=self.known_tokens[rows])

    def limited(self, tokens: IntArray) -> TextTree:
        """Return the tree with at most `tokens` known tokens for each request. Shape (n,)."""
        return replace(self, known_tokens=np.minimum(self.known_tokens, tokens))

    def holders(self, text: IntArray, tokens: IntArray) -> IntArray:
        """Return the text, of these or their ancestors, in whose own part each number of tokens ends. Shape of `text`.

        It is -1 for no tokens.
        """
        found = text.copy()
        while True:
            first = np.where(self.parent[found] < 0, 0, self.kept_tokens[found])
            up = (found >= 0) & (tokens <= first)
            if not up.any():
                return found
            found[up] = self.parent[found[up]]


class TextUnits:
    """The cache units of the requests of a tree in an engine's block size.

    A unit is a run of blocks that belong to the same requests. It ends where a text ends or where another one branches
    off, and after at most `grain` blocks. Equal keys mean equal units with equal prefixes.
    """

    def __init__(self, tree: TextTree, block_size: int, grain: int | None = None) -> None:
        """Divide the texts into units.

        Args:
            tree: The texts.
            block_size: Tokens of a block of the engine.
            grain: The most blocks of a unit; None means that the longest text has about UNITS_PER_TEXT units.
        """
        self._parents = tree.parent.tolist()
        self._text, self._last = tree.text.tolist(), (tree.known_tokens // block_size).tolist()
        longest = int(tree.known_tokens.max(initial=0)) // block_size
        self.grain = grain or 1 << max(0, (longest // UNITS_PER_TEXT).bit_length() - 1)
        first = np.where(tree.parent < 0, 0, tree.kept_tokens) // block_size
        last = np.maximum(tree.tokens // block_size, first)
        texts = np.arange(len(tree.parent))
        n_grid = last // self.grain - first // self.grain
        grid_text = np.repeat(texts, n_grid)
        step = np.arange(len(grid_text)) - np.repeat(np.cumsum(n_grid) - n_grid, n_grid)
        grid = (np.repeat(first // self.grain, n_grid) + 1 + step) * self.grain
        parts = [(grid_text, grid), (texts, last)]
        if self.grain > 1:
            for text, tokens in (
                (tree.parent[tree.parent >= 0], tree.kept_tokens[tree.parent >= 0]),
                (tree.text, tree.known_tokens),
            ):
                parts.append((tree.holders(text, tokens), tokens // block_size))
        text, ends = (np.concatenate(columns) for columns in zip(*parts, strict=True))
        inside = (text >= 0) & (ends > first[text]) & (ends <= last[text])
        order = np.unique(text[inside] * (int(last.max(initial=0)) + 1) + ends[inside])
        found, ends = np.divmod(order, int(last.max(initial=0)) + 1)
        self._first: list[int] = first.tolist()
        self._ends: list[int] = ends.tolist()
        self._start: list[int] = np.searchsorted(found, np.arange(len(texts) + 1)).tolist()

    def of(self, index: int) -> tuple[tuple[int, ...], tuple[int, ...] | None]:
        """Return the keys of a request's units, and the blocks up to the end of each; None if each unit is a block."""
        text, end = self._text[index], self._last[index]
        parts = []
        while text >= 0:
            first = self._first[text]
            if end > first:
                parts.append(
                    (self._start[text], bisect_right(self._ends, end, self._start[text], self._start[text + 1]))
                )
                end = first
            text = self._parents[text]
        keys: list[int] = []
        for begin, stop in reversed(parts):
            keys.extend(range(begin, stop))
        if self.grain == 1:
            return tuple(keys), None
        ends: list[int] = []
        for begin, stop in reversed(parts):
            ends.extend(self._ends[begin:stop])
        return tuple(keys), tuple(ends)
