"""Attention shapes at the head configurations of models.

They are prompts, chunks after context, and even and uneven decode batches.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from calibration.operators.operators import window_pairs
from calibration.profile.session.shape import CHECKS, FIT, HELD_OUT, Shape
from calibration.profile.shapes.size_limits import SizeLimits
from calibration.profile.shapes.sizes import Heads, Sizes, between, pick, spread, with_held_out

#: New tokens of a chunk that follows context.
CHUNKS: Final = (16, 64, 256, 1024)

#: Context tokens before such a chunk.
CHUNK_CONTEXTS: Final = (256, 1024, 4096, 16384)

FEW: Final = 3  # step over the numbers of sequences on the coarse grid

#: Window of the measured attention with a window, in tokens. A judgement: a usual size.
WINDOW_TOKENS: Final = 512

COMMON: Final = (1, 4, 8)  # group sizes that are measured on the whole grid, and in prefill


@dataclass(frozen=True, slots=True)
class HeadSelection:
    """The head configurations that a profile measures.

    `full` is fitted on the whole grid and `coarse` on a part of it. `others` only check the fit.
    """

    full: list[Heads]
    coarse: list[Heads]
    others: list[Heads]


def select_heads(sizes: Sizes, limits: SizeLimits) -> HeadSelection:
    """Select head configurations: for each common head size, the most used configuration of several group sizes.

    The group size, which is the number of query heads per key head, determines the efficiency of the kernel. The number
    of heads determines only the amount of work.
    """
    usable = {h: count for h, count in sizes.heads.items() if h[0] % h[1] == 0}
    by_size: dict[int, Counter[tuple[int, int]]] = defaultdict(Counter)
    for (heads, kv_heads, size), count in usable.items():
        by_size[size][heads // kv_heads, kv_heads] += count
    full: list[Heads] = []
    coarse: list[Heads] = []
    for size in sorted(by_size, key=lambda s: (-by_size[s].total(), s))[: limits.head_sizes]:
        found = _of_size(by_size[size], size, limits)
        common = [h for h in found if not limits.groups or h[0] // h[1] in COMMON]
        full += common
        coarse += [h for h in found if h not in common]
        if limits.groups and (4, 1, size) not in full + coarse:  # the smallest models have a single key head
            coarse.append((4, 1, size))
    others = [h for h in sorted(usable) if h not in full + coarse]
    return HeadSelection(full, coarse, others or full)


def _of_size(used: Counter[tuple[int, int]], size: int, limits: SizeLimits) -> list[Heads]:
    """Return the configurations of a head size: of each group size the most used number of key-value heads."""
    group_uses: Counter[tuple[int]] = Counter()
    kv_uses: Counter[int] = Counter()
    for (group, kv_heads), count in used.items():
        group_uses[(group,)] += count
        kv_uses[kv_heads] += count
    found: list[Heads] = []
    for group in dict.fromkeys([*(g for (g,) in spread(group_uses, limits.heads)), *limits.groups]):
        uses = [(n, kv) for (g, kv), n in used.items() if g == group] or [(n, kv) for kv, n in kv_uses.items()]
        kv_heads = max(uses)[1]
        found.append((kv_heads * group, kv_heads, size))
    return found


def attention(sizes: Sizes, limits: SizeLimits, draw: np.random.Generator) -> list[Shape]:
    """Return the attention shapes of the catalog's models: fitted, held-out and uneven."""
    chosen = select_heads(sizes, limits)
    found: list[Shape] = []
    for kv_dtype in limits.kv_dtypes:
        grid = _Grid(limits, kv_dtype, chosen.others, draw)
        whole = [s for h in chosen.full for s in grid.prompts(h)]
        later = [s for h in chosen.full[:2] for s in grid.chunks(h)]
        found += with_held_out([*whole, *later], grid.held_out_prefill)
        found += [s for h in chosen.full[:2] for s in grid.skewed(h)]
        even = [s for h in chosen.full for s in grid.decodes(h)]
        even += [s for h in chosen.coarse for s in grid.decodes(h, FEW)]
        found += with_held_out(even, grid.held_out_decode)
    return found


def user_model_attention(sizes: Sizes, limits: SizeLimits, kv_dtype: str, draw: np.random.Generator) -> list[Shape]:
    """Return the attention shapes of the user's models; held-out shapes have random batch and context."""
    heads = [h for h in sizes.heads if h[0] % h[1] == 0]
    grid = _Grid(limits, kv_dtype, heads, draw)
    found = with_held_out([s for h in heads for s in grid.decodes(h)], grid.held_out_decode)
    found += with_held_out([s for h in heads for s in (*grid.prompts(h), *grid.chunks(h))], grid.held_out_prefill)
    return found + [s for h in heads[:2] for s in grid.skewed(h)]


def windowed(sizes: Sizes, limits: SizeLimits) -> list[Shape]:
    """Return prompts longer than a sliding window, which check that the cost follows the query-key pairs."""
    heads = [_head(h, limits.kv_dtypes[0], WINDOW_TOKENS) for h in select_heads(sizes, limits).full[:1]]
    prompts = [(q, float(window_pairs(q, 0, WINDOW_TOKENS))) for q in (1024, 2048)]
    kind = "prefill_attention"
    return [Shape.of(kind, CHECKS, chunks=1, tokens=q, pairs=n, **head) for head in heads for q, n in prompts]


def _head(h: Heads, kv_dtype: str, window: int = 0) -> dict[str, Any]:
    return {"n_heads": h[0], "n_kv_heads": h[1], "head_dim": h[2], "kv_dtype": kv_dtype, "window_tokens": window}


@dataclass(frozen=True, slots=True)
class _Grid:
    """Shapes of head configurations over batch and context; held-out shapes have head configurations of `others`."""

    limits: SizeLimits
    kv_dtype: str
    others: list[Heads]
    draw: np.random.Generator

    def prompts(self, h: Heads) -> list[Shape]:
        return [self._chunk(h, c, q, 0) for c in (1, 4) for q in self.limits.prompts if c * q <= 4 * 8192]

    def chunks(self, h: Heads) -> list[Shape]:
        contexts = [x for x in CHUNK_CONTEXTS if x <= self.limits.contexts[-1]]
        return [self._chunk(h, 1, q, x) for q in CHUNKS for x in contexts]

    def held_out_prefill(self, i: int) -> Shape:
        q = between(self.limits.prompts[0], self.limits.prompts[-1], self.draw)
        context = between(64, self.limits.contexts[-1], self.draw) if i % 2 else 0
        return self._chunk(pick(self.others, self.draw), 1, q, context, HELD_OUT)

    def decodes(self, h: Heads, every: int = 1) -> list[Shape]:
        """Return even batches at every `every`-th number of sequences, always with the largest context."""
        return [
            self._decode(h, s, s * c, c, FIT)
            for s in self.limits.sequences[::every]
            for c in self.limits.contexts[:: -min(every, 2)]
            if self._fits(h, s * c)
        ]

    def held_out_decode(self, _: int) -> Shape:
        while True:
            h, s = pick(self.others, self.draw), between(1, self.limits.sequences[-1], self.draw)
            c = between(self.limits.contexts[0], self.limits.contexts[-1], self.draw)
            if self._fits(h, s * c):
                return self._decode(h, s, s * c, c, HELD_OUT)

    def skewed(self, h: Heads) -> list[Shape]:
        """Return batches of one long sequence among short ones."""
        longest = self.limits.contexts[-1]
        batches = [(s, longest + (s - 1) * longest // 8) for s in (4, 16, 64)]
        return [self._decode(h, s, c, longest, CHECKS) for s, c in batches if self._fits(h, c)]

    def _chunk(self, h: Heads, chunks: int, q: int, context: int, role: str = FIT) -> Shape:
        counts = {"chunks": chunks, "tokens": chunks * q, "pairs": chunks * q * (context + q / 2)}
        return Shape.of("prefill_attention", role, **counts, **_head(h, self.kv_dtype))

    def _decode(self, h: Heads, sequences: int, context: int, longest: int, role: str) -> Shape:
        counts = {"sequences": sequences, "context_tokens": context, "max_context_tokens": longest}
        return Shape.of("decode_attention", role, **counts, **_head(h, self.kv_dtype))

    def _fits(self, h: Heads, tokens: int) -> bool:
        return tokens * 4.0 * h[1] * h[2] <= self.limits.cache_bytes
