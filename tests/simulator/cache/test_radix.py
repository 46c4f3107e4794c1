"""SGLang's radix tree against the block queue: the same hits, token by token.

The tree keeps every prefix; its leaves are forgotten first, the longest unused before others. The queue takes back a
request's last block first and a shared one when its last holder lets go, so no block is forgotten before those that
follow it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.cache.kv_cache import KvCache
from simulator.cluster.cluster import RunOptions
from simulator.cluster.simulate import run_rules
from simulator.core.request import Request
from tests.simulator.worlds import Linear, requests, rules

Tokens = tuple[int, ...]
texts = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=12).map(tuple), min_size=1, max_size=30)


class RadixTree:
    """RadixCache of sglang/srt/mem_cache/radix_cache.py, one token a node; eviction takes single tokens off a leaf."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.used_at: dict[Tokens, int] = {}  # every cached prefix and when it was used last
        self.clock = 0

    def serve(self, tokens: Tokens) -> int:
        """Match all but the last token, make room for the rest, insert; returns the tokens hit."""
        self.clock += 1
        hit = 0
        while hit < len(tokens) - 1 and tokens[: hit + 1] in self.used_at:
            hit += 1
        path = {tokens[: n + 1] for n in range(hit)}
        for prefix in path:
            self.used_at[prefix] = self.clock
        # what is computed anew takes room of its own until it is found to be there already
        self.evict(len(self.used_at) + len(tokens) - hit - self.total, path)
        for n in range(len(tokens)):
            self.used_at[tokens[: n + 1]] = self.clock
        return hit

    def evict(self, tokens: int, locked: set[Tokens]) -> None:
        for _ in range(max(0, tokens)):
            parents = {prefix[:-1] for prefix in self.used_at}
            leaves = [p for p in self.used_at if p not in parents and p not in locked]
            del self.used_at[min(leaves, key=lambda p: self.used_at[p])]


def serve(kv: KvCache, index: int, tokens: Tokens, names: dict[Tokens, int]) -> int:
    """A request on its own: match, compute, leave."""
    keys = tuple(names.setdefault(tokens[: n + 1], len(names)) for n in range(len(tokens)))
    request = Request(index, len(tokens), keys)
    units, own, _ = kv.match(request)
    kv.claim(request, units, own)
    kv.take(len(tokens) - units)
    request.computed_tokens = len(tokens)
    kv.offer(request, len(tokens))
    kv.release(request, len(tokens))
    return units


def hits(total: int, served: Sequence[Tokens]) -> tuple[list[int], list[int]]:
    tree, kv, names = RadixTree(total), KvCache(total, 1, True), {}
    return [tree.serve(t) for t in served], [serve(kv, i, t, names) for i, t in enumerate(served)]


@settings(max_examples=120, deadline=None)
@given(texts)
def test_with_room_for_all_both_hit_the_same(served: list[Tokens]) -> None:
    tree, queue = hits(10_000, served)
    assert tree == queue


@settings(max_examples=120, deadline=None)
@given(st.integers(12, 40), texts.filter(lambda served: len(set(served)) == len(served)))
def test_short_of_room_both_forget_the_same(total: int, served: list[Tokens]) -> None:
    """Where no text ends inside another one's path: the tree merges what was computed twice, the queue keeps copies."""
    apart = [(*text, 10 + i) for i, text in enumerate(served)]  # every text ends in a token of its own
    if max(map(len, apart)) <= total:
        tree, queue = hits(total, apart)
        assert tree == queue


@pytest.mark.parametrize(("size", "cached"), [(1, 7), (4, 4)])
def test_a_page_of_one_token_shares_to_the_token(size: int, cached: int) -> None:
    """Two prompts share seven tokens: SGLang's pages of one token hit all of them, blocks of four hit four."""
    engine = rules(policy="sglang", block_size=size, kv_blocks=1000, max_output_tokens=4)
    names = [list(range(7)) + [100 * r + n for n in range(7, 12)] for r in (1, 2)]
    work = requests([0.0, 10.0], [12, 12], [2, 2], names)
    work = replace(work, hash_block_tokens=1)
    run = run_rules(engine, Linear(), work, 1, RunOptions(check_invariants=True))
    assert run.cached_tokens.tolist() == [0, cached]


def test_what_a_retracted_request_generated_is_hit_by_nobody() -> None:
    """SGLang frees it with the request: two sequences of 61 tokens do not fit in 28 blocks of 4, and the one that was
    retracted, whose generated blocks have names, waits until all it knows can be computed again."""
    named = [*[()] * 8, tuple(range(100, 115))]
    work = requests([0.0] * 9, [1] * 9, [60] * 9, named, concurrency=2)
    engine = rules(policy="sglang", max_num_seqs=2, max_num_batched_tokens=2, kv_blocks=28)
    run = run_rules(engine, Linear(base_s=0.125), work, options=RunOptions(check_invariants=True))
    assert run.preemptions[8] == 1
    assert (run.last_token_s[7], run.last_token_s[8]) == (56.75, 60.75)
