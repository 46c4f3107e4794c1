"""Shapes beside the models' main ones: linear attention, windows, and what the host and its memory do."""

from __future__ import annotations

from typing import Final

from calibration.operators.operators import window_pairs
from calibration.profile.kernels import host
from calibration.profile.machine.device import ProfiledDevice
from calibration.profile.session.shape import CHECKS, FIT, Shape
from calibration.profile.shapes.attention import choose
from calibration.profile.shapes.size_limits import SizeLimits
from calibration.profile.shapes.sizes import Scan, Sizes

SCANS: Final = 2  # sizes of linear attention

WINDOW_TOKENS: Final = 512

LINEAR_PREFILLS: Final = (64, 512, 2048)


def extra_shapes(sizes: Sizes, reach: SizeLimits, device: ProfiledDevice) -> list[Shape]:
    """Everything of this file, for a device."""
    role = CHECKS if device.is_cuda else FIT  # an engine's fused scan on a GPU is no torch expression
    scans = sorted(sizes.scans, key=lambda s: (-sizes.scans[s], s))[:SCANS]
    found = [s for scan in scans for s in _scans(scan, reach, role)]
    return found + _windowed(sizes, reach) + host.shapes(device)


def _scans(scan: Scan, reach: SizeLimits, role: str) -> list[Shape]:
    heads, key, value = scan
    sized = {"n_heads": heads, "key_head_dim": key, "value_head_dim": value}
    decodes = [
        Shape.of("linear_attention", role, tokens=n, sequences=n, stage="decode", **sized)
        for n in reach.sequences[::2]
        if 4.0 * n * heads * key * value <= reach.cache_bytes
    ]
    prefills = [
        Shape.of("linear_attention", role, tokens=t, sequences=1, stage="prefill", **sized) for t in LINEAR_PREFILLS
    ]
    return decodes + prefills


def _windowed(sizes: Sizes, reach: SizeLimits) -> list[Shape]:
    """Prompts longer than a sliding window, to check that they cost what their pairs cost."""
    heads = choose(sizes, reach).full[:1]
    found = []
    for h, kv_heads, head_dim in heads:
        for q in (1024, 2048):
            pairs = float(window_pairs(q, 0, WINDOW_TOKENS))
            head = {"n_heads": h, "n_kv_heads": kv_heads, "head_dim": head_dim, "window_tokens": WINDOW_TOKENS}
            head_fields: dict[str, str | int] = {**head, "kv_dtype": reach.kv_dtypes[0]}
            found.append(Shape.of("prefill_attention", CHECKS, chunks=1, tokens=q, pairs=pairs, **head_fields))
    return found
