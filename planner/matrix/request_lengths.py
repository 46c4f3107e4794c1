"""Latency of rows by request length, and engines compared at equal complexity.

All cells of a matrix that have the same workload and seed draw the same requests, so their bins of length are the same
too. The ratio of two rows is that of their mean end-to-end times with the share of each bin among the requests of both
as its weight (direct standardisation; see calibration/complexity). A row compared with itself has the ratio 1 exactly.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from calibration.complexity.comparison import standardised_means
from planner.matrix.row import MatrixRow

Bin = dict[str, Any]


def ratio(first: MatrixRow, second: MatrixRow) -> float | None:
    """Return the time of the second row over that of the first; None where no bin has requests of both."""
    sides = _bins(first), _bins(second)
    shared = [key for key in sides[0] if key in sides[1]]
    counts = [np.array([side[key]["requests"] for key in shared], dtype=np.float64) for side in sides]
    means_s = [np.array([side[key]["e2e_s"]["mean"] for key in shared], dtype=np.float64) for side in sides]
    times_s = standardised_means((counts[0], counts[1]), (means_s[0], means_s[1]))
    return None if times_s is None or not times_s[0] else times_s[1] / times_s[0]


def _bins(row: MatrixRow) -> dict[tuple[Any, ...], Bin]:
    """Return the bins of a row with requests, by the limits of their lengths."""
    found: dict[tuple[Any, ...], Bin] = {}
    for part in (row.complexity or {}).get("by_bin", ()):
        if part["requests"]:
            limits = (part[side][end] for side in ("input_tokens", "output_tokens") for end in ("least", "below"))
            found[tuple(limits)] = part
    return found


def ratios(rows: Sequence[MatrixRow]) -> list[tuple[MatrixRow, MatrixRow, float]]:
    """Return (reference, other, ratio) of the rows that differ in their engine only; the first engine is the reference.

    Rows with figures only; a row without its reference has no entry.
    """
    groups: dict[tuple[Any, ...], list[MatrixRow]] = {}
    for row in rows:
        if row.verdict == "ok" and row.complexity:
            axes = (row.origin, row.model, row.hardware, row.workload, row.batch, row.precision, row.layout, row.load)
            groups.setdefault(axes, []).append(row)
    found = []
    for members in groups.values():
        first = members[0]
        found += [(first, other, r) for other in members[1:] if (r := ratio(first, other)) is not None]
    return found


def length_points(row: MatrixRow) -> list[dict[str, float]]:
    """Return the latencies of a row by bins of output length, shortest first.

    Bins of input length are joined: the mean is that of their requests, and so are the percentiles, weighted by the
    number of requests.
    """
    by_output: dict[float, list[dict[str, Any]]] = {}
    for part in (row.complexity or {}).get("by_bin", ()):
        if part["requests"]:
            by_output.setdefault(part["output_tokens"]["least"], []).append(part)
    points = []
    for least in sorted(by_output):
        parts = by_output[least]
        n = sum(part["requests"] for part in parts)
        point = {"tokens": sum(part["requests"] * part["mean_output_tokens"] for part in parts) / n}
        for stat in ("mean", "p50", "p95"):
            point[stat] = sum(part["requests"] * part["e2e_s"][stat] for part in parts) / n
        points.append(point)
    return points
