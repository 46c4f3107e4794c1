"""Measured peak rates of the machine: the bytes and operations per second that no row exceeds."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from calibration.operators.flops_and_bytes import bytes_moved, flops
from calibration.operators.operators import DecodeAttention, Gemm, Matmul
from calibration.profile.kernels import machine_rates
from calibration.profile.kernels.host import ON_HOST, TO_DEVICE, TO_HOST
from calibration.profile.session.session import Row
from calibration.profile.session.shape import Shape
from calibration.rows.dataset import OPERATOR_COLUMNS
from catalogs.hardware.host_copies import HostCopies, HostCopy, PageSize
from catalogs.hardware.specs import Accelerator
from catalogs.units import GIGA

#: Operands below this multiple of the cache size may be read from the cache. A judgement: at most half of them can stay
#: in it.
STREAMS: Final = 2.0

DIGITS: Final = 4  # significant digits of a stored peak


def shape_of(row: Row) -> Shape:
    """Return the shape that a row was measured for."""
    columns = ("kind", "dtype", "message_bytes", "number", "tokens")
    own = OPERATOR_COLUMNS.get(row["family"]) or tuple(c for c in columns if c in row)
    return Shape(row["family"], tuple((c, row[c]) for c in own), row["role"])


def measured(accelerator: Accelerator, rows: Iterable[Row], cache_bytes: float) -> Accelerator:
    """Return `accelerator` with the best rates of the rows as its peaks; unmeasured peaks stay as they are.

    The peak of a dtype is the best rate of any matrix product in it. The memory bandwidth is the best rate of plain
    streaming and of operators that move more than twice the size of the cache.
    """
    rates: dict[str, float] = defaultdict(float)
    bandwidth = 0.0
    for row in (r for r in rows if r["status"] == "ok"):
        shape, seconds = shape_of(row), row["seconds"]
        if shape.family == "peak":
            rate = machine_rates.amount(shape, "cpu" if accelerator.kind == "cpu" else "cuda") / seconds
            if shape["kind"] == "arithmetic":
                rates[shape["dtype"]] = max(rates[shape["dtype"]], rate)
            else:
                bandwidth = max(bandwidth, rate)
            continue
        op = shape.operator
        if isinstance(op, Gemm | Matmul):
            rates[op.dtype] = max(rates[op.dtype], float(flops(op)) / seconds)
        if isinstance(op, Gemm | DecodeAttention):
            moved = float(bytes_moved(op, accelerator))
            if moved > STREAMS * cache_bytes:
                bandwidth = max(bandwidth, moved / seconds)
    return replace(
        accelerator,
        peak_flops=accelerator.peak_flops | {d: _up(r) for d, r in rates.items()},
        memory_bandwidth_bytes_per_s=_up(bandwidth) if bandwidth else accelerator.memory_bandwidth_bytes_per_s,
        cache_bytes=cache_bytes,
        source="measured by calibrate",
    )


def host_copies(machine: str, as_of: str, source: str, rows: Iterable[Row]) -> HostCopies:
    """Return the rates of copies between host and accelerator by page size, each that of the largest copy.

    On a CPU both directions are copies within host memory. Of two kinds of pages of one size, reserved ones count
    before those that the kernel gives.
    """
    measured = {(str(row["kind"]), int(row["message_bytes"])): row for row in rows if row["family"] == "pages"}
    found: list[HostCopy] = []
    for pages, kinds in _PAGES.items():
        for direction, ways in (("to_device", (TO_DEVICE, ON_HOST)), ("to_host", (TO_HOST, ON_HOST))):
            names = [f"{way}, {kind} pages" for kind in kinds for way in ways]
            # the largest copy of each kind, and its reason if that one failed
            sizes = {name: max((s for n, s in measured if n == name), default=0) for name in names}
            tried = [measured[name, size] for name, size in sizes.items() if size]
            good = next((row for row in tried if row["status"] == "ok"), None)
            rate = None if good is None else round(float(good["message_bytes"]) / good["seconds"] / GIGA, DIGITS)
            reason = str(tried[0].get("reason", tried[0]["status"])) if tried else "this profile has no such copy"
            values = {"pages": pages, "direction": direction, "gb_per_s": rate, "reason": "" if rate else reason}
            found.append(HostCopy.model_validate(values))
    return HostCopies(machine=machine, as_of=as_of, source=source, copies=found)


#: The kinds of pages of a profile by page size, the first that the system grants counts.
_PAGES: Final[dict[PageSize, tuple[str, ...]]] = {
    "4KB": ("4 KB",),
    "2MB": ("2 MB reserved", "2 MB transparent"),
    "1GB": ("1 GB reserved",),
}


def _up(x: float) -> float:
    """Round up, so that the fastest row still obeys the stored peak."""
    unit = 10.0 ** (math.floor(math.log10(x)) - DIGITS + 1)
    return math.ceil(x / unit) * unit
