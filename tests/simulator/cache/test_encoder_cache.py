"""The encoder cache against one written the long way."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.cache.encoder_cache import EncoderCache
from simulator.core.invariants import InvariantViolation
from simulator.core.request import Request


class LongWay:
    """Entries in the order of their last release; every number is counted anew."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.entries: dict[int, tuple[int, set[int]]] = {}
        self.released: list[int] = []

    @property
    def free(self) -> int:
        return self.size - sum(n for n, _ in self.entries.values())

    def insert(self, content: int, n: int, holder: int) -> bool:
        idle = [c for c in self.released if not self.entries[c][1]]
        if n > self.free + sum(self.entries[c][0] for c in idle):
            return False
        while n > self.free:
            gone = idle.pop(0)
            del self.entries[gone]
            self.released.remove(gone)
        self.entries[content] = n, {holder}
        return True

    def hold(self, content: int, holder: int) -> None:
        self.entries[content][1].add(holder)
        if content in self.released:
            self.released.remove(content)

    def release(self, content: int, holder: int) -> None:
        if content in self.entries and holder in self.entries[content][1]:
            self.entries[content][1].remove(holder)
            if not self.entries[content][1]:
                self.released.append(content)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 2), st.booleans()), max_size=60), st.integers(4, 12))
def test_it_holds_what_the_long_way_holds(moves: list[tuple[int, int, bool]], size: int) -> None:
    cache, reference = EncoderCache(size), LongWay(size)
    holders = [Request(i, 1) for i in range(3)]
    for content, holder, take in moves:
        request, embeddings = holders[holder], 1 + content % 4
        if not take:
            cache.release(content, request)
            reference.release(content, holder)
        elif content in cache:
            cache.hold(content, request)
            reference.hold(content, holder)
        else:
            fits = cache.make_space(embeddings)
            assert fits == reference.insert(content, embeddings, holder)
            if fits:
                cache.insert(content, embeddings, request)
        cache.check()
        assert cache.free == reference.free
        assert {c for c in range(6) if c in cache} == set(reference.entries)
        assert all(cache.holds(c, holders[h]) for c, (_, held) in reference.entries.items() for h in held)


def test_a_leak_is_found() -> None:
    cache = EncoderCache(4)
    cache.insert(1, 2, Request(0, 1))
    cache.free = 4
    with pytest.raises(InvariantViolation, match="4 free \\+ 2 cached != 4 embeddings"):
        cache.check()
