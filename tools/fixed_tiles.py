"""Fit the constants of FlashInfer's FP8 kernel of fixed tiles to published times, and print both.

    python tools/fixed_tiles.py

`calibration/families/fixed_tiles.py` has the constants. Sources of the times, in microseconds:

- GB200: sgl-project/sglang, pull request 13528 (benchmark_deepgemm_fp8_gemm_blackwell.py, column Flashinfer), which
  includes the launch of the kernel.
- B200: NVIDIA/cutlass, issue 2923 (column FP8 TRT-LLM), the time of the kernel alone.

The products with 24,576 columns read their 176 MB of weights again for every tile of rows. They are not fitted; they
check the share of the bandwidth.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from calibration.families.fixed_tiles import (
    FLASHINFER,
    TILE_COLUMNS,
    TILE_DEPTH,
    fixed_tile_s,
    tile_rows,
)
from calibration.operators.operators import Gemm
from catalogs.arrays import FloatArray
from catalogs.hardware.catalog import parse_hardware
from catalogs.hardware.specs import Accelerator

#: (hardware, n, k) -> microseconds by rows.
PUBLISHED: Final[dict[tuple[str, int, int], dict[int, float]]] = {
    ("gb200", 576, 7168): {
        8: 16.64,
        16: 16.29,
        32: 16.42,
        64: 16.35,
        128: 16.38,
        256: 16.38,
        1024: 28.70,
        2048: 41.22,
        4096: 63.49,
    },
    ("b200", 2048, 1024): {8: 5.15, 32: 5.22, 64: 4.96, 128: 4.99, 256: 5.09, 512: 8.67},
    ("gb200", 24576, 7168): {
        8: 47.14,
        16: 47.10,
        32: 47.39,
        64: 69.92,
        128: 125.22,
        256: 223.52,
        1024: 826.19,
        2048: 1632.54,
    },
}

#: Products that the computing multiprocessors limit.
FITTED: Final = (("gb200", 576, 7168), ("b200", 2048, 1024))


def fitted() -> dict[str, float]:
    """Return the seconds of a launch on GB200, of the start of a kernel, of a wave, and of a pass of the loop.

    Least squares of relative errors.
    """
    rows, seconds = [], []
    for key in FITTED:
        hardware, n, k = key
        for m, us in PUBLISHED[key].items():
            waves, depth = _waves(m, n, k, _accelerator(hardware)), np.ceil(k / TILE_DEPTH)
            rows.append([float(hardware == "gb200"), 1.0, waves, waves * depth])
            seconds.append(us * 1e-6)
    measured = np.array(seconds)
    found = np.linalg.lstsq(np.array(rows) / measured[:, None], np.ones(len(measured)), rcond=None)[0]
    return dict(zip(("launch", "start", "wave", "pass"), map(float, found), strict=True))


def _accelerator(hardware: str) -> Accelerator:
    return parse_hardware("gb200-nvl72" if hardware == "gb200" else hardware).accelerator


def _waves(m: int, n: int, k: int, accelerator: Accelerator) -> float:
    tiles = np.ceil(m / tile_rows(np.array(float(n)), np.array(float(k)))) * np.ceil(n / TILE_COLUMNS)
    return float(np.ceil(tiles / accelerator.multiprocessors))


def compared(launch_s: float) -> list[tuple[str, int, int, int, float, float]]:
    """Return (hardware, n, k, m, published seconds, seconds of the model) of every product."""
    found = []
    for (hardware, n, k), times in PUBLISHED.items():
        rows = np.array(list(times), dtype=float)
        model_s: FloatArray = fixed_tile_s(Gemm(rows, n, k, FLASHINFER), _accelerator(hardware))
        added = launch_s if hardware == "gb200" else 0.0
        found += [
            (hardware, n, k, m, us * 1e-6, float(s) + added) for (m, us), s in zip(times.items(), model_s, strict=True)
        ]
    return found


def main() -> None:
    found = fitted()
    print("fitted, us: " + ", ".join(f"{name} {1e6 * s:.2f}" for name, s in found.items()))
    print("hardware      n      k      m  published us    model us   error")
    for hardware, n, k, m, published_s, model_s in compared(found["launch"]):
        error = 100.0 * (model_s / published_s - 1.0)
        print(f"{hardware:8} {n:6} {k:6} {m:6} {1e6 * published_s:13.2f} {1e6 * model_s:11.2f} {error:+6.1f} %")


if __name__ == "__main__":
    main()
