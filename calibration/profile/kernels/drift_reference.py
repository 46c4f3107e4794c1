"""Drift of the machine during a profile, from one reference matrix product that is measured repeatedly."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from calibration.profile.kernels import gemm
from calibration.profile.machine.device import ProfiledDevice
from calibration.profile.machine.timing import Work
from calibration.profile.session.session import Row
from calibration.profile.session.shape import CHECKS, Shape
from catalogs.ui.words import percent

EVERY: Final = 40  # rows between two measurements of the reference

#: Sizes (m, n, k) of the reference product by kind of device. A judgement: so large that its launch does not decide its
#: time, and short.
SIZES: Final = {"cpu": (64, 2048, 2048), "cuda": (256, 8192, 8192)}

NOTABLE: Final = 0.10  # relative spread above which a bundle carries a notice


def due(rows: Sequence[Row]) -> bool:
    """Return whether the reference is measured next.

    The result depends only on the rows on disk, so a resumed session continues in the same order.
    """
    return len(rows) % EVERY == 0 and bool(rows) and rows[-1]["family"] != "drift"


def reference(rows: Sequence[Row], dtype: str) -> Shape:
    """Return the reference shape with a number that makes its key unique in the session."""
    return Shape.of("drift", CHECKS, kind="reference", dtype=dtype, number=sum(r["family"] == "drift" for r in rows))


def work(shape: Shape, device: ProfiledDevice) -> Work:
    """Return the reference matrix product."""
    m, n, k = SIZES[device.kind]
    return gemm.work(Shape.of("gemm", m=m, n=n, k=k, dtype=str(shape["dtype"])), device)


def report(rows: Sequence[Row]) -> dict[str, Any]:
    """Return the spread and the trend of the reference's times.

    The spread is (largest - least) / median. The trend compares the medians of the last and the first third. The result
    is empty where the reference was measured fewer than two times.
    """
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
    """Return the report as one line of text."""
    if not found:
        return "drift: unknown, the reference product was measured fewer than two times"
    spread, trend = f"spread {percent(found['spread'], 1)}", f"trend {percent(found['trend'], 1, signed=True)}"
    return f"drift: {spread}, {trend} over {found['n']} measurements of a reference product"
