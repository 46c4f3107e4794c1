"""All shapes worth measuring on a device: those the catalog's models run, and off-grid ones to check the fit with.

Shapes to fit lie on log-spaced steps of batch and context at sizes chosen to cover the catalog. Held-out shapes have
random batch and context, and sizes of real models that were not chosen.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np

from calibration.profile.kernels.elementwise import BYTES_PER_WIDTH, OVER_VOCAB
from calibration.profile.session.shape import HELD_OUT, Shape
from calibration.profile.shapes.attention import attention, own_attention
from calibration.profile.shapes.sampling import between, pick, with_held_out
from calibration.profile.shapes.size_limits import SizeLimits
from calibration.profile.shapes.sizes import Experts, Sizes, spread


def candidates(sizes: Sizes, reach: SizeLimits, dtypes: Sequence[str], seed: int = 0) -> list[Shape]:
    """Every shape, fitted and held out, none twice; the same for the same arguments."""
    draw = np.random.default_rng(seed)
    found: list[Shape] = []
    for dtype in dtypes:
        odd = _odd_gemms(sizes, reach, dtype, draw)
        found += with_held_out(_gemms(sizes, reach, dtype), odd)
    found += attention(sizes, reach, draw)
    found += with_held_out(_elementwise(sizes, reach), lambda n: _odd_elementwise(sizes, reach, n, draw))
    experts = small_experts(sizes, reach)
    found += with_held_out(_moes(experts, reach), lambda n: _odd_moes(experts, reach, n, draw))
    return once(found)


def own_shapes(sizes: Sizes, reach: SizeLimits, dtypes: Sequence[str], seed: int = 0) -> list[Shape]:
    """What the user's own models run, on finer steps of batch than the catalog's; held out: random batch and context
    at the same sizes."""
    draw = np.random.default_rng(seed)
    products, kernels = list(sizes.products), list(sizes.kernels)
    found: list[Shape] = []
    for dtype in dtypes:
        fit = [
            Shape.of("gemm", m=m, n=n, k=k, dtype=dtype) for n, k in products for m in _own_rows((n, k), sizes, reach)
        ]
        found += with_held_out(fit, _odd_of(products, sizes, reach, dtype, draw))
    for kv_dtype in [d for d in reach.kv_dtypes if d in dtypes] or reach.kv_dtypes[:1]:
        found += own_attention(sizes, reach, kv_dtype, draw)
    fit = [
        Shape.of("elementwise", kind=kind, tokens=t, bytes_per_token=_bytes_per_token(kind, width))
        for kind, width in kernels
        for t in _kernel_rows(kind, reach)
    ]
    found += with_held_out(fit, lambda count: [_odd_kernel(pick(kernels, draw), reach, draw) for _ in range(count)])
    return once(found + _moes(small_experts(sizes, reach), reach))


def _kernel_rows(kind: str, reach: SizeLimits) -> tuple[int, ...]:
    return reach.sequences if kind in OVER_VOCAB else reach.rows


def _odd_kernel(kernel: tuple[str, int], reach: SizeLimits, draw: np.random.Generator) -> Shape:
    kind, width = kernel
    tokens = between(1, _kernel_rows(kind, reach)[-1], draw)
    return Shape.of("elementwise", HELD_OUT, kind=kind, tokens=tokens, bytes_per_token=_bytes_per_token(kind, width))


def _own_rows(pair: tuple[int, int], sizes: Sizes, reach: SizeLimits) -> list[int]:
    return sorted(m for m in {*reach.rows, *reach.own_rows} if m <= _most_rows(pair, sizes, reach))


def once(shapes: Sequence[Shape]) -> list[Shape]:
    """The shapes without repeats, whatever their roles: what comes first stays."""
    found: dict[object, Shape] = {}
    for shape in shapes:
        found.setdefault((shape.family, shape.fields), shape)  # to fit comes first: a chance repeat is not held out
    return list(found.values())


def _most_rows(pair: tuple[int, int], sizes: Sizes, reach: SizeLimits) -> int:
    return reach.sequences[-1] * 2 if pair in sizes.heads_of_vocab else reach.rows[-1]


def _gemms(sizes: Sizes, reach: SizeLimits, dtype: str) -> list[Shape]:
    return [
        Shape.of("gemm", m=m, n=n, k=k, dtype=dtype)
        for n, k in _products(sizes, reach)
        for m in reach.rows
        if m <= _most_rows((n, k), sizes, reach)
    ]


def _products(sizes: Sizes, reach: SizeLimits) -> list[tuple[int, int]]:
    return spread(sizes.products, reach.products)


def _odd_gemms(sizes: Sizes, reach: SizeLimits, dtype: str, draw: np.random.Generator) -> Callable[[int], list[Shape]]:
    others = sorted(set(sizes.products) - set(_products(sizes, reach))) or sorted(sizes.products)
    return _odd_of(others, sizes, reach, dtype, draw)


def _odd_of(
    products: list[tuple[int, int]], sizes: Sizes, reach: SizeLimits, dtype: str, draw: np.random.Generator
) -> Callable[[int], list[Shape]]:
    def one() -> Shape:
        n, k = pick(products, draw)
        m = between(1, _most_rows((n, k), sizes, reach), draw)
        return Shape.of("gemm", HELD_OUT, m=m, n=n, k=k, dtype=dtype)

    return lambda count: [one() for _ in range(count)]


def _widths(sizes: Sizes, kind: str) -> list[int]:
    found = sorted(s[0] for s in (sizes.vocab if kind in OVER_VOCAB else sizes.hidden))
    if kind == "routing":
        found = [64, 128, 256]
    return sorted({found[0], found[len(found) // 2], found[-1]}) if found else []


def _bytes_per_token(kind: str, width: int) -> float:
    return width * BYTES_PER_WIDTH[kind] + (64.0 if kind == "routing" else 0.0)


def _elementwise(sizes: Sizes, reach: SizeLimits) -> list[Shape]:
    return [
        Shape.of("elementwise", kind=kind, tokens=t, bytes_per_token=_bytes_per_token(kind, w))
        for kind in BYTES_PER_WIDTH
        for w in _widths(sizes, kind)
        for t in (reach.sequences if kind in OVER_VOCAB else reach.rows)[::2]
    ]


def _odd_elementwise(sizes: Sizes, reach: SizeLimits, n: int, draw: np.random.Generator) -> list[Shape]:
    out = []
    for i in range(n):
        kind = list(BYTES_PER_WIDTH)[i % len(BYTES_PER_WIDTH)]
        widths = [64, 128, 256] if kind == "routing" else sorted(s[0] for s in sizes.hidden)
        if kind in OVER_VOCAB:
            widths = sorted(s[0] for s in sizes.vocab)
        t = between(1, (reach.sequences if kind in OVER_VOCAB else reach.rows)[-1], draw)
        size = _bytes_per_token(kind, pick(widths, draw))
        out.append(Shape.of("elementwise", HELD_OUT, kind=kind, tokens=t, bytes_per_token=size))
    return out


def small_experts(sizes: Sizes, reach: SizeLimits) -> list[Experts]:
    """Expert layers that fit the reach, spread over the catalog's."""
    fitting = {e: c for e, c in sizes.experts.items() if 6.0 * e[0] * e[1] * e[2] <= reach.expert_bytes}
    if not fitting and sizes.experts:  # the smallest there is; what does not fit in memory is recorded as such
        least = min(sizes.experts, key=lambda e: e[0] * e[1] * e[2])
        fitting = {least: 1}
    return spread(Counter(fitting), reach.experts)


def _moe(e: Experts, tokens: int, role: str) -> Shape:
    names = ("hidden_size", "intermediate_size", "n_experts", "experts_per_token")
    return Shape.of("moe", role, tokens=tokens, expert_ranks=1, dtype="bf16", **dict(zip(names, e, strict=True)))


def _moes(experts: list[Experts], reach: SizeLimits) -> list[Shape]:
    return [_moe(e, t, "fit") for e in experts for t in reach.rows[::2]]


def _odd_moes(experts: list[Experts], reach: SizeLimits, n: int, draw: np.random.Generator) -> list[Shape]:
    return [_moe(pick(experts, draw), between(1, reach.rows[-1], draw), HELD_OUT) for _ in range(n)]
