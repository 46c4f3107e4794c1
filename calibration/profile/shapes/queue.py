"""All shapes to measure on a device: those that the catalog's models run, and held-out shapes to check the fit.

Shapes to fit lie on log-spaced steps of batch and context at sizes chosen to cover the catalog. Held-out shapes have
random batch and context, and sizes of real models that were not chosen. Further shapes cover linear attention, sliding
windows, and the host with its memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

import numpy as np

from calibration.profile.kernels import host
from calibration.profile.kernels.elementwise import BYTES_PER_WIDTH, OVER_VOCAB
from calibration.profile.machine.device import ProfiledDevice
from calibration.profile.session.shape import CHECKS, FIT, HELD_OUT, Shape
from calibration.profile.shapes.attention import attention, user_model_attention, windowed
from calibration.profile.shapes.size_limits import SizeLimits
from calibration.profile.shapes.sizes import Experts, Pair, Scan, Sizes, between, pick, spread, with_held_out

#: Number of sizes of linear attention that are measured.
SCANS: Final = 2

#: Tokens of prompts of linear attention.
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
    chosen = spread(sizes.products, limits.products)
    others = sorted(set(sizes.products) - set(chosen)) or sorted(sizes.products)
    found = [s for dtype in dtypes for s in _gemms(chosen, others, limits.rows, dtype, sizes, limits, draw)]
    found += attention(sizes, limits, draw)

    def held_out_kernel(i: int) -> Shape:
        kind = list(BYTES_PER_WIDTH)[i % len(BYTES_PER_WIDTH)]
        tokens = between(1, _kernel_rows(kind, limits)[-1], draw)
        return _kernel(kind, pick(_widths(sizes, kind), draw), tokens, HELD_OUT)

    kernels = [(kind, w) for kind in BYTES_PER_WIDTH for w in _first_middle_last(_widths(sizes, kind))]
    fit = [_kernel(kind, w, tokens) for kind, w in kernels for tokens in _kernel_rows(kind, limits)[::2]]
    found += with_held_out(fit, held_out_kernel)
    experts = small_experts(sizes, limits)

    def held_out_moe(_: int) -> Shape:
        return _moe(pick(experts, draw), between(1, limits.rows[-1], draw), HELD_OUT)

    return deduplicated(found + with_held_out(_moes(experts, limits), held_out_moe))


def user_model_shapes(
    sizes: Sizes, limits: SizeLimits, dtypes: Sequence[str], seed: int = 0, is_plain: bool = False
) -> list[Shape]:
    """Return the shapes that the user's models run, on finer steps of batch than those of the catalog.

    Held-out shapes have random batch and context at the same sizes.

    Args:
        sizes: Sizes that the models run.
        limits: Extent of the shapes on the device.
        dtypes: Dtypes of matrix products.
        seed: Seed of the held-out shapes.
        is_plain: Whether plain torch runs the products, with the weights as they were loaded.
    """
    draw = np.random.default_rng(seed)
    products, kernels = list(sizes.products), list(sizes.kernels)
    rows = sorted({*limits.rows, *limits.own_rows})
    found = [s for dtype in dtypes for s in _gemms(products, products, rows, dtype, sizes, limits, draw, is_plain)]
    for kv_dtype in [d for d in limits.kv_dtypes if d in dtypes] or limits.kv_dtypes[:1]:
        found += user_model_attention(sizes, limits, kv_dtype, draw)

    def held_out_kernel(_: int) -> Shape:
        kind, width = pick(kernels, draw)
        return _kernel(kind, width, between(1, _kernel_rows(kind, limits)[-1], draw), HELD_OUT)

    fit = [_kernel(kind, width, tokens) for kind, width in kernels for tokens in _kernel_rows(kind, limits)]
    found += with_held_out(fit, held_out_kernel)
    return deduplicated(found + _moes(small_experts(sizes, limits), limits))


def deduplicated(shapes: Sequence[Shape]) -> list[Shape]:
    """Return the shapes without repeats, whatever their roles; the first of equal shapes stays."""
    found: dict[object, Shape] = {}
    for shape in shapes:
        found.setdefault((shape.family, shape.fields), shape)  # shapes to fit come first, so they are not held out
    return list(found.values())


def _gemms(
    fitted: Sequence[Pair],
    others: Sequence[Pair],
    rows: Sequence[int],
    dtype: str,
    sizes: Sizes,
    limits: SizeLimits,
    draw: np.random.Generator,
    is_plain: bool = False,
) -> list[Shape]:
    """Return products of the sizes `fitted` at each number of rows, and held-out products of the sizes `others`."""

    def product(m: int, n: int, k: int, role: str = FIT) -> Shape:
        if is_plain:
            return Shape.of("matmul", role, m=m, n=n, k=k, batch=1, shared=1, dtype=dtype)
        return Shape.of("gemm", role, m=m, n=n, k=k, dtype=dtype)

    def most_rows(pair: Pair) -> int:
        return limits.sequences[-1] * 2 if pair in sizes.heads_of_vocab else limits.rows[-1]

    def held_out(_: int) -> Shape:
        n, k = pick(others, draw)
        return product(between(1, most_rows((n, k)), draw), n, k, HELD_OUT)

    fit = [(m, n, k) for n, k in fitted for m in rows if m <= most_rows((n, k))]
    return with_held_out([product(*sizes) for sizes in fit], held_out)


def _widths(sizes: Sizes, kind: str) -> list[int]:
    if kind == "routing":
        return [64, 128, 256]
    return sorted(s[0] for s in (sizes.vocab if kind in OVER_VOCAB else sizes.hidden))


def _first_middle_last(widths: list[int]) -> list[int]:
    return sorted({widths[0], widths[len(widths) // 2], widths[-1]}) if widths else []


def _kernel_rows(kind: str, limits: SizeLimits) -> tuple[int, ...]:
    return limits.sequences if kind in OVER_VOCAB else limits.rows


def _kernel(kind: str, width: int, tokens: int, role: str = FIT) -> Shape:
    bytes_per_token = width * BYTES_PER_WIDTH[kind] + (64.0 if kind == "routing" else 0.0)
    return Shape.of("elementwise", role, kind=kind, tokens=tokens, bytes_per_token=bytes_per_token)


def small_experts(sizes: Sizes, limits: SizeLimits) -> list[Experts]:
    """Return expert layers that are within the limits, spread over those of the catalog."""
    fitting = {e: c for e, c in sizes.experts.items() if 6.0 * e[0] * e[1] * e[2] <= limits.expert_bytes}
    if not fitting and sizes.experts:  # measure the smallest; if it does not fit in memory, its row records that
        fitting = {min(sizes.experts, key=lambda e: e[0] * e[1] * e[2]): 1}
    return spread(Counter(fitting), limits.experts)


def _moe(e: Experts, tokens: int, role: str) -> Shape:
    names = ("hidden_size", "intermediate_size", "n_experts", "experts_per_token")
    return Shape.of("moe", role, tokens=tokens, expert_ranks=1, dtype="bf16", **dict(zip(names, e, strict=True)))


def _moes(experts: list[Experts], limits: SizeLimits) -> list[Shape]:
    return [_moe(e, t, FIT) for e in experts for t in limits.rows[::2]]


def extra_shapes(sizes: Sizes, limits: SizeLimits, device: ProfiledDevice) -> list[Shape]:
    """Return the shapes of linear attention, sliding windows and the host for a device."""
    role = CHECKS if device.is_cuda else FIT  # on a GPU, engines run a fused scan that plain torch does not have
    scans = sorted(sizes.scans, key=lambda s: (-sizes.scans[s], s))[:SCANS]
    found = [s for scan in scans for s in _scans(scan, limits, role)]
    return found + windowed(sizes, limits) + host.shapes()


def _scans(scan: Scan, limits: SizeLimits, role: str) -> list[Shape]:
    heads, key, value = scan
    cells = [(n, n, "decode") for n in limits.sequences[::2] if 4.0 * n * heads * key * value <= limits.cache_bytes]
    cells += [(tokens, 1, "prefill") for tokens in LINEAR_PREFILLS]
    sized = {"n_heads": heads, "key_head_dim": key, "value_head_dim": value}
    return [Shape.of("linear_attention", role, tokens=t, sequences=n, stage=stage, **sized) for t, n, stage in cells]
