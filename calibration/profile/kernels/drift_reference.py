"""Drift of the machine: one reference product, measured again every so many shapes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from calibration.profile.kernels import gemm
from calibration.profile.machine.device import ProfiledDevice
from calibration.profile.machine.timing import Work
from calibration.profile.session.session import Row
from calibration.profile.session.shape import CHECKS, Shape

EVERY: Final = 40  # rows between two measurements of the reference

SIZES: Final = {"cpu": (64, 2048, 2048), "cuda": (256, 8192, 8192)}

NOTABLE: Final = 0.10  # spread beyond which answers should say so


def due(rows: Sequence[Row]) -> bool:
    """Whether the reference comes next: a function of the rows on disk, so that a resumed session goes on as it was."""
    return len(rows) % EVERY == 0 and bool(rows) and rows[-1]["family"] != "drift"


def reference(rows: Sequence[Row], dtype: str) -> Shape:
    """The reference shape, numbered so that its key is new."""
    return Shape.of("drift", CHECKS, kind="reference", dtype=dtype, number=sum(r["family"] == "drift" for r in rows))


def work(shape: Shape, device: ProfiledDevice) -> Work:
    """The reference product."""
    m, n, k = SIZES[device.kind]
    return gemm.work(Shape.of("gemm", m=m, n=n, k=k, dtype=str(shape["dtype"])), device)


def report(rows: Sequence[Row]) -> dict[str, Any]:
    """Spread of the reference: (largest - least) over the median, and the trend from its first to its last third.
    Empty where it was measured fewer than twice."""
    seconds = np.array([r["seconds"] for r in rows if r["family"] == "drift" and r["status"] == "ok"])
    if len(seconds) < 2:
        return {}
    third = max(len(seconds) // 3, 1)
    middle = float(np.median(seconds))
    return {
        "n": len(seconds),
        "median_s": middle,
        "spread": round(float(np.ptp(seconds)) / middle, 4),
        "trend": round(float(np.median(seconds[-third:]) / np.median(seconds[:third])) - 1.0, 4),
    }


def line(found: dict[str, Any]) -> str:
    """One line for people."""
    if not found:
        return "drift: the reference shape was measured fewer than twice"
    spread, trend = f"spread {found['spread']:.1%}", f"trend {found['trend']:+.1%}"
    return f"drift: a reference product, measured {found['n']} times, {spread}, {trend}"
