"""All shapes worth measuring on a device: those the catalog's models run, and off-grid ones to check the fit with.

Shapes to fit lie on log-spaced steps of batch and context at sizes chosen to cover the catalog. Held-out shapes have
random batch and context, and sizes of real models that were not chosen.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

import numpy as np

from calibration.profile.elementwise import BYTES_PER_WIDTH
from calibration.profile.shape import CHECKS, HELD_OUT, Shape
from calibration.profile.sizes import Experts, Heads, Sizes, spread

Item = TypeVar("Item")

HELD_OUT_SHARE: Final = 0.2  # held-out shapes per shape to fit


@dataclass(frozen=True, slots=True)
class Reach:
    """How far the shapes go on a kind of device, and how many sizes of each family are taken."""

    rows: tuple[int, ...]  # tokens of a step, for products and elementwise kernels
    prompts: tuple[int, ...]
    contexts: tuple[int, ...]
    sequences: tuple[int, ...]
    products: int
    head_sizes: int
    heads: int  # group sizes of each head size
    experts: int
    cache_bytes: float  # of one attention shape's keys and values
    expert_bytes: float  # of one layer's experts
    splits: tuple[int, ...]


def _doublings(first: int, last: int, step: int = 1) -> tuple[int, ...]:
    return tuple(2**i for i in range(first, last + 1, step))


CPU: Final = Reach(
    rows=_doublings(0, 11),
    prompts=(16, 64, 128, 256, 512, 1024, 2048),
    contexts=(16, 64, 256, 1024, 4096),
    sequences=_doublings(0, 7),
    products=20,
    head_sizes=2,
    heads=4,
    experts=3,
    cache_bytes=1e9,
    expert_bytes=1.5e9,
    splits=(1,),
)
CUDA: Final = Reach(
    rows=_doublings(0, 13),
    prompts=(16, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384),
    contexts=(16, 64, 256, 1024, 4096, 16384, 65536),
    sequences=_doublings(0, 9),
    products=48,
    head_sizes=4,
    heads=6,
    experts=8,
    cache_bytes=12e9,
    expert_bytes=12e9,
    splits=(1, 2, 4, 8),
)


def candidates(sizes: Sizes, reach: Reach, dtypes: tuple[str, ...], seed: int = 0) -> list[Shape]:
    """Every shape, fitted and held out, none twice; the same for the same arguments."""
    draw = np.random.default_rng(seed)
    found: list[Shape] = []
    for dtype in dtypes:
        odd = _odd_gemms(sizes, reach, dtype, draw)
        found += _with_held_out(_gemms(sizes, reach, dtype), odd)
    chosen = _spread_heads(sizes, reach)
    others = [h for h in sorted(sizes.heads) if h not in chosen and h[0] % h[1] == 0] or chosen
    found += _with_held_out(_prefills(chosen, reach), lambda n: _odd_prefills(others, reach, n, draw))
    found += _with_held_out(_decodes(chosen, reach), lambda n: _odd_decodes(others, reach, n, draw))
    found += _skewed(chosen, reach)
    found += _with_held_out(_elementwise(sizes, reach), lambda n: _odd_elementwise(sizes, reach, n, draw))
    experts = small_experts(sizes, reach)
    found += _with_held_out(_moes(experts, reach), lambda n: _odd_moes(experts, reach, n, draw))
    once: dict[object, Shape] = {}
    for shape in found:
        once.setdefault((shape.family, shape.fields), shape)  # to fit comes first: a chance repeat is not held out
    return list(once.values())


def _with_held_out(fit: list[Shape], odd: Callable[[int], list[Shape]]) -> list[Shape]:
    return [*fit, *odd(max(4, int(HELD_OUT_SHARE * len(fit))))] if fit else []


def _pick(items: Sequence[Item], draw: np.random.Generator) -> Item:
    return items[int(draw.integers(len(items)))]


def _between(low: float, high: float, draw: np.random.Generator) -> int:
    return round(float(np.exp(draw.uniform(np.log(low), np.log(high)))))


def _most_rows(pair: tuple[int, int], sizes: Sizes, reach: Reach) -> int:
    return reach.sequences[-1] * 2 if pair in sizes.heads_of_vocab else reach.rows[-1]


def _gemms(sizes: Sizes, reach: Reach, dtype: str) -> list[Shape]:
    return [
        Shape.of("gemm", m=m, n=n, k=k, dtype=dtype)
        for n, k in _products(sizes, reach)
        for m in reach.rows
        if m <= _most_rows((n, k), sizes, reach)
    ]


def _products(sizes: Sizes, reach: Reach) -> list[tuple[int, int]]:
    return spread(sizes.products, reach.products)


def _odd_gemms(sizes: Sizes, reach: Reach, dtype: str, draw: np.random.Generator) -> Callable[[int], list[Shape]]:
    others = sorted(set(sizes.products) - set(_products(sizes, reach))) or sorted(sizes.products)

    def one() -> Shape:
        n, k = _pick(others, draw)
        m = _between(1, _most_rows((n, k), sizes, reach), draw)
        return Shape.of("gemm", HELD_OUT, m=m, n=n, k=k, dtype=dtype)

    return lambda count: [one() for _ in range(count)]


def _spread_heads(sizes: Sizes, reach: Reach) -> list[Heads]:
    """Of each common head size the most used configuration of several group sizes: how many queries share a key
    decides the kernel's efficiency, how many heads there are only how much work it has."""
    by_size: dict[int, Counter[tuple[int, int]]] = {}
    for (heads, kv_heads, size), count in sizes.heads.items():
        if heads % kv_heads == 0:
            by_size.setdefault(size, Counter())[(heads // kv_heads, kv_heads)] += count
    found: list[Heads] = []
    for size in sorted(by_size, key=lambda s: (-by_size[s].total(), s))[: reach.head_sizes]:
        groups: Counter[tuple[int]] = Counter()
        for (group, _), count in by_size[size].items():
            groups[(group,)] += count
        for (group,) in spread(groups, reach.heads):
            of_group = {kv: n for (g, kv), n in by_size[size].items() if g == group}
            kv_heads = max(of_group, key=lambda kv: (of_group[kv], kv))
            found.append((kv_heads * group, kv_heads, size))
    return found


def _prefill(h: Heads, chunks: int, q: int, context: int, role: str) -> Shape:
    tokens, pairs = chunks * q, chunks * q * (context + q / 2)
    return Shape.of("prefill_attention", role, chunks=chunks, tokens=tokens, pairs=pairs, **_head_fields(h))


def _head_fields(h: Heads) -> dict[str, str | int]:
    return {"n_heads": h[0], "n_kv_heads": h[1], "head_dim": h[2], "kv_dtype": "bf16", "window_tokens": 0}


def _cache_bytes(h: Heads, tokens: float) -> float:
    return tokens * 4.0 * h[1] * h[2]


def _prefills(heads: list[Heads], reach: Reach) -> list[Shape]:
    whole = [_prefill(h, c, q, 0, "fit") for h in heads for c in (1, 4) for q in reach.prompts if c * q <= 4 * 8192]
    contexts = [x for x in (512, 1024, 2048, 4096, 16384) if x <= reach.contexts[-1]]
    later = [_prefill(h, 1, q, x, "fit") for h in heads[:2] for q in (64, 512) for x in contexts]
    return whole + later


def _odd_prefills(heads: list[Heads], reach: Reach, n: int, draw: np.random.Generator) -> list[Shape]:
    out = []
    for i in range(n):
        q = _between(reach.prompts[0], reach.prompts[-1], draw)
        context = _between(64, reach.contexts[-1], draw) if i % 2 else 0
        out.append(_prefill(_pick(heads, draw), 1, q, context, HELD_OUT))
    return out


def _decode(h: Heads, sequences: int, context: int, longest: int, role: str) -> Shape:
    counts = {"sequences": sequences, "context_tokens": context, "max_context_tokens": longest}
    return Shape.of("decode_attention", role, **counts, **_head_fields(h))


def _decodes(heads: list[Heads], reach: Reach) -> list[Shape]:
    return [
        _decode(h, s, s * c, c, "fit")
        for h in heads
        for s in reach.sequences
        for c in reach.contexts
        if _cache_bytes(h, s * c) <= reach.cache_bytes
    ]


def _odd_decodes(heads: list[Heads], reach: Reach, n: int, draw: np.random.Generator) -> list[Shape]:
    out: list[Shape] = []
    while len(out) < n:
        h, s = _pick(heads, draw), _between(1, reach.sequences[-1], draw)
        c = _between(reach.contexts[0], reach.contexts[-1], draw)
        if _cache_bytes(h, s * c) <= reach.cache_bytes:
            out.append(_decode(h, s, s * c, c, HELD_OUT))
    return out


def _skewed(heads: list[Heads], reach: Reach) -> list[Shape]:
    """Batches of one long sequence among short ones."""
    longest = reach.contexts[-1]
    shapes = [(h, s, longest + (s - 1) * longest // 8) for h in heads[:2] for s in (4, 16, 64)]
    return [_decode(h, s, c, longest, CHECKS) for h, s, c in shapes if _cache_bytes(h, c) <= reach.cache_bytes]


def _widths(sizes: Sizes, kind: str) -> list[int]:
    found = sorted(s[0] for s in (sizes.vocab if kind == "sampling" else sizes.hidden))
    if kind == "routing":
        found = [64, 128, 256]
    return sorted({found[0], found[len(found) // 2], found[-1]}) if found else []


def _bytes_per_token(kind: str, width: int) -> float:
    return width * BYTES_PER_WIDTH[kind] + (64.0 if kind == "routing" else 0.0)


def _elementwise(sizes: Sizes, reach: Reach) -> list[Shape]:
    return [
        Shape.of("elementwise", kind=kind, tokens=t, bytes_per_token=_bytes_per_token(kind, w))
        for kind in BYTES_PER_WIDTH
        for w in _widths(sizes, kind)
        for t in (reach.sequences if kind == "sampling" else reach.rows)[::2]
    ]


def _odd_elementwise(sizes: Sizes, reach: Reach, n: int, draw: np.random.Generator) -> list[Shape]:
    out = []
    for i in range(n):
        kind = list(BYTES_PER_WIDTH)[i % len(BYTES_PER_WIDTH)]
        widths = [64, 128, 256] if kind == "routing" else sorted(s[0] for s in sizes.hidden)
        if kind == "sampling":
            widths = sorted(s[0] for s in sizes.vocab)
        t = _between(1, (reach.sequences if kind == "sampling" else reach.rows)[-1], draw)
        size = _bytes_per_token(kind, _pick(widths, draw))
        out.append(Shape.of("elementwise", HELD_OUT, kind=kind, tokens=t, bytes_per_token=size))
    return out


def small_experts(sizes: Sizes, reach: Reach) -> list[Experts]:
    """Expert layers that fit the reach, spread over the catalog's."""
    fitting = {e: c for e, c in sizes.experts.items() if 6.0 * e[0] * e[1] * e[2] <= reach.expert_bytes}
    if not fitting and sizes.experts:  # the smallest there is; what does not fit in memory is recorded as such
        least = min(sizes.experts, key=lambda e: e[0] * e[1] * e[2])
        fitting = {least: 1}
    return spread(Counter(fitting), reach.experts)


def _moe(e: Experts, tokens: int, role: str) -> Shape:
    names = ("hidden_size", "intermediate_size", "n_experts", "experts_per_token")
    return Shape.of("moe", role, tokens=tokens, expert_ranks=1, dtype="bf16", **dict(zip(names, e, strict=True)))


def _moes(experts: list[Experts], reach: Reach) -> list[Shape]:
    return [_moe(e, t, "fit") for e in experts for t in reach.rows[::2]]


def _odd_moes(experts: list[Experts], reach: Reach, n: int, draw: np.random.Generator) -> list[Shape]:
    return [_moe(_pick(experts, draw), _between(1, reach.rows[-1], draw), HELD_OUT) for _ in range(n)]
