"""Measured peak rates of the machine: the bytes and operations per second that no row exceeds."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from calibration.operators.operators import DecodeAttention, Gemm
from calibration.operators.roofline import bytes_moved, flops
from calibration.profile.kernels import machine_rates
from calibration.profile.session.session import Row
from calibration.profile.session.shape import Shape
from catalogs.hardware.specs import Accelerator

STREAMS: Final = 2.0  # Operands below this multiple of the cache size may be read from the cache.

DIGITS: Final = 4  # Significant digits of a stored peak.


def shape_of(row: Row) -> Shape:
    """Return the shape that a row was measured for."""
    from calibration.rows.dataset import OPERATOR_COLUMNS

    own = OPERATOR_COLUMNS.get(row["family"])
    if own is None:
        own = tuple(c for c in ("kind", "dtype", "message_bytes", "number", "tokens") if c in row)
    return Shape(row["family"], tuple((c, row[c]) for c in own), row["role"])


def measured(accelerator: Accelerator, rows: Iterable[Row], cache_bytes: float) -> Accelerator:
    """Return `accelerator` with the peak rates that the rows reached; unmeasured peaks stay as they are.

    The peak of a dtype is the best rate of any matrix product in it. The memory bandwidth is the best rate of plain
    streaming and of operators that move more than twice the size of the cache.
    """
    rows = [r for r in rows if r["status"] == "ok"]
    rates: dict[str, float] = {}
    bandwidth = 0.0
    for row in rows:
        shape = shape_of(row)
        if shape.family == "peak":
            rate = (
                machine_rates.amount(shape, accelerator.kind if accelerator.kind == "cpu" else "cuda") / row["seconds"]
            )
            if shape["kind"] == "arithmetic":
                rates[shape["dtype"]] = max(rates.get(shape["dtype"], 0.0), rate)
            else:
                bandwidth = max(bandwidth, rate)
            continue
        op = shape.operator
        if isinstance(op, Gemm):
            rates[op.dtype] = max(rates.get(op.dtype, 0.0), float(flops(op)) / row["seconds"])
        if isinstance(op, (Gemm, DecodeAttention)):
            moved = float(bytes_moved(op, accelerator))
            if moved > STREAMS * cache_bytes:
                bandwidth = max(bandwidth, moved / row["seconds"])
    peaks = accelerator.peak_flops | {d: _up(r) for d, r in rates.items()}
    found = _up(bandwidth) if bandwidth else accelerator.memory_bandwidth_bytes_per_s
    return replace(
        accelerator,
        peak_flops=peaks,
        memory_bandwidth_bytes_per_s=found,
        cache_bytes=cache_bytes,
        source="measured by calibrate",
    )


def _up(x: float) -> float:
    """Round up, so that the fastest row still obeys the stored peak."""
    unit = 10.0 ** (math.floor(math.log10(x)) - DIGITS + 1)
    return math.ceil(x / unit) * unit
