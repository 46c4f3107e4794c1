"""All shapes to measure on a device: those that the catalog's models run, and held-out shapes to check the fit.

Shapes to fit lie on log-spaced steps of batch and context at sizes chosen to cover the catalog. Held-out shapes have
random batch and context, and sizes of real models that were not chosen. Further shapes cover linear attention, sliding
windows, and the host with its memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from calibration.operators.operators import window_pairs
from calibration.profile.kernels import host
from calibration.profile.kernels.elementwise import BYTES_PER_WIDTH, OVER_VOCAB
from calibration.profile.machine.device import ProfiledDevice
from calibration.profile.session.shape import CHECKS, FIT, HELD_OUT, Shape
from calibration.profile.shapes.attention import attention, select_heads, user_model_attention
from calibration.profile.shapes.size_limits import SizeLimits
from calibration.profile.shapes.sizes import Experts, Scan, Sizes, between, pick, spread, with_held_out

SCANS: Final = 2  # Number of sizes of linear attention.

WINDOW_TOKENS: Final = 512

LINEAR_PREFILLS: Final = (64, 512, 2048)


def candidates(sizes: Sizes, limits: SizeLimits, dtypes: Sequence[str], seed: int = 0) -> list[Shape]:
    """Return every shape of the catalog's models, fitted and held out, without repeats.

    Args:
        sizes: Sizes that the models run.
        limits: Extent of the shapes on the device.
        dtypes: Dtypes of matrix products.
        seed: Seed of the held-out shapes. Equal arguments give equal shapes.
    """
    draw = np.random.default_rng(seed)
    found: list[Shape] = []
    for dtype in dtypes:
        odd = _odd_gemms(sizes, limits, dtype, draw)
        found += with_held_out(_gemms(sizes, limits, dtype), odd)
    found += attention(sizes, limits, draw)
    found += with_held_out(_elementwise(sizes, limits), lambda n: _odd_elementwise(sizes, limits, n, draw))
    experts = small_experts(sizes, limits)
    found += with_held_out(_moes(experts, limits), lambda n: _odd_moes(experts, limits, n, draw))
    return deduplicated(found)


def user_model_shapes(sizes: Sizes, limits: SizeLimits, dtypes: Sequence[str], seed: int = 0) -> list[Shape]:
    """Return the shapes that the user's models run, on finer steps of batch than those of the catalog.

    Held-out shapes have random batch and context at the same sizes.
    """
    draw = np.random.default_rng(seed)
    products, kernels = list(sizes.products), list(sizes.kernels)
    found: list[Shape] = []
    for dtype in dtypes:
        fit = [
            Shape.of("gemm", m=m, n=n, k=k, dtype=dtype) for n, k in products for m in _own_rows((n, k), sizes, limits)
        ]
        found += with_held_out(fit, _odd_of(products, sizes, limits, dtype, draw))
    for kv_dtype in [d for d in limits.kv_dtypes if d in dtypes] or limits.kv_dtypes[:1]:
        found += user_model_attention(sizes, limits, kv_dtype, draw)
    fit = [
        Shape.of("elementwise", kind=kind, tokens=t, bytes_per_token=_bytes_per_token(kind, width))
        for kind, width in kernels
        for t in _kernel_rows(kind, limits)
    ]
    found += with_held_out(fit, lambda count: [_odd_kernel(pick(kernels, draw), limits, draw) for _ in range(count)])
    return deduplicated(found + _moes(small_experts(sizes, limits), limits))


def _kernel_rows(kind: str, limits: SizeLimits) -> tuple[int, ...]:
    return limits.sequences if kind in OVER_VOCAB else limits.rows


def _odd_kernel(kernel: tuple[str, int], limits: SizeLimits, draw: np.random.Generator) -> Shape:
    kind, width = kernel
    tokens = between(1, _kernel_rows(kind, limits)[-1], draw)
    return Shape.of("elementwise", HELD_OUT, kind=kind, tokens=tokens, bytes_per_token=_bytes_per_token(kind, width))


def _own_rows(pair: tuple[int, int], sizes: Sizes, limits: SizeLimits) -> list[int]:
    return sorted(m for m in {*limits.rows, *limits.own_rows} if m <= _most_rows(pair, sizes, limits))


def deduplicated(shapes: Sequence[Shape]) -> list[Shape]:
    """Return the shapes without repeats, whatever their roles; the first of equal shapes stays."""
    found: dict[object, Shape] = {}
    for shape in shapes:
        found.setdefault((shape.family, shape.fields), shape)  # Shapes to fit come first, so they are not held out.
    return list(found.values())


def _most_rows(pair: tuple[int, int], sizes: Sizes, limits: SizeLimits) -> int:
    return limits.sequences[-1] * 2 if pair in sizes.heads_of_vocab else limits.rows[-1]


def _gemms(sizes: Sizes, limits: SizeLimits, dtype: str) -> list[Shape]:
    return [
        Shape.of("gemm", m=m, n=n, k=k, dtype=dtype)
        for n, k in _products(sizes, limits)
        for m in limits.rows
        if m <= _most_rows((n, k), sizes, limits)
    ]


def _products(sizes: Sizes, limits: SizeLimits) -> list[tuple[int, int]]:
    return spread(sizes.products, limits.products)


def _odd_gemms(sizes: Sizes, limits: SizeLimits, dtype: str, draw: np.random.Generator) -> Callable[[int], list[Shape]]:
    others = sorted(set(sizes.products) - set(_products(sizes, limits))) or sorted(sizes.products)
    return _odd_of(others, sizes, limits, dtype, draw)


def _odd_of(
    products: list[tuple[int, int]], sizes: Sizes, limits: SizeLimits, dtype: str, draw: np.random.Generator
) -> Callable[[int], list[Shape]]:
    def one() -> Shape:
        n, k = pick(products, draw)
        m = between(1, _most_rows((n, k), sizes, limits), draw)
        return Shape.of("gemm", HELD_OUT, m=m, n=n, k=k, dtype=dtype)

    return lambda count: [one() for _ in range(count)]


def _widths(sizes: Sizes, kind: str) -> list[int]:
    found = sorted(s[0] for s in (sizes.vocab if kind in OVER_VOCAB else sizes.hidden))
    if kind == "routing":
        found = [64, 128, 256]
    return sorted({found[0], found[len(found) // 2], found[-1]}) if found else []


def _bytes_per_token(kind: str, width: int) -> float:
    return width * BYTES_PER_WIDTH[kind] + (64.0 if kind == "routing" else 0.0)


def _elementwise(sizes: Sizes, limits: SizeLimits) -> list[Shape]:
    return [
        Shape.of("elementwise", kind=kind, tokens=t, bytes_per_token=_bytes_per_token(kind, w))
        for kind in BYTES_PER_WIDTH
        for w in _widths(sizes, kind)
        for t in (limits.sequences if kind in OVER_VOCAB else limits.rows)[::2]
    ]


def _odd_elementwise(sizes: Sizes, limits: SizeLimits, n: int, draw: np.random.Generator) -> list[Shape]:
    out = []
    for i in range(n):
        kind = list(BYTES_PER_WIDTH)[i % len(BYTES_PER_WIDTH)]
        widths = [64, 128, 256] if kind == "routing" else sorted(s[0] for s in sizes.hidden)
        if kind in OVER_VOCAB:
            widths = sorted(s[0] for s in sizes.vocab)
        t = between(1, (limits.sequences if kind in OVER_VOCAB else limits.rows)[-1], draw)
        size = _bytes_per_token(kind, pick(widths, draw))
        out.append(Shape.of("elementwise", HELD_OUT, kind=kind, tokens=t, bytes_per_token=size))
    return out


def small_experts(sizes: Sizes, limits: SizeLimits) -> list[Experts]:
    """Return expert layers that are within the limits, spread over those of the catalog."""
    fitting = {e: c for e, c in sizes.experts.items() if 6.0 * e[0] * e[1] * e[2] <= limits.expert_bytes}
    if not fitting and sizes.experts:  # Measure the smallest; if it does not fit in memory, its row records that.
        least = min(sizes.experts, key=lambda e: e[0] * e[1] * e[2])
        fitting = {least: 1}
    return spread(Counter(fitting), limits.experts)


def _moe(e: Experts, tokens: int, role: str) -> Shape:
    names = ("hidden_size", "intermediate_size", "n_experts", "experts_per_token")
    return Shape.of("moe", role, tokens=tokens, expert_ranks=1, dtype="bf16", **dict(zip(names, e, strict=True)))


def _moes(experts: list[Experts], limits: SizeLimits) -> list[Shape]:
    return [_moe(e, t, "fit") for e in experts for t in limits.rows[::2]]


def _odd_moes(experts: list[Experts], limits: SizeLimits, n: int, draw: np.random.Generator) -> list[Shape]:
    return [_moe(pick(experts, draw), between(1, limits.rows[-1], draw), HELD_OUT) for _ in range(n)]


def extra_shapes(sizes: Sizes, limits: SizeLimits, device: ProfiledDevice) -> list[Shape]:
    """Return the shapes of linear attention, sliding windows and the host for a device."""
    role = CHECKS if device.is_cuda else FIT  # On a GPU, engines run a fused scan that plain torch does not have.
    scans = sorted(sizes.scans, key=lambda s: (-sizes.scans[s], s))[:SCANS]
    found = [s for scan in scans for s in _scans(scan, limits, role)]
    return found + _windowed(sizes, limits) + host.shapes(device)


def _scans(scan: Scan, limits: SizeLimits, role: str) -> list[Shape]:
    heads, key, value = scan
    sized = {"n_heads": heads, "key_head_dim": key, "value_head_dim": value}
    decodes = [
        Shape.of("linear_attention", role, tokens=n, sequences=n, stage="decode", **sized)
        for n in limits.sequences[::2]
        if 4.0 * n * heads * key * value <= limits.cache_bytes
    ]
    prefills = [
        Shape.of("linear_attention", role, tokens=t, sequences=1, stage="prefill", **sized) for t in LINEAR_PREFILLS
    ]
    return decodes + prefills


def _windowed(sizes: Sizes, limits: SizeLimits) -> list[Shape]:
    """Return prompts longer than a sliding window, which check that the cost follows the query-key pairs."""
    heads = select_heads(sizes, limits).full[:1]
    found = []
    for h, kv_heads, head_dim in heads:
        for q in (1024, 2048):
            pairs = float(window_pairs(q, 0, WINDOW_TOKENS))
            head = {"n_heads": h, "n_kv_heads": kv_heads, "head_dim": head_dim, "window_tokens": WINDOW_TOKENS}
            head_fields: dict[str, str | int] = {**head, "kv_dtype": limits.kv_dtypes[0]}
            found.append(Shape.of("prefill_attention", CHECKS, chunks=1, tokens=q, pairs=pairs, **head_fields))
    return found
