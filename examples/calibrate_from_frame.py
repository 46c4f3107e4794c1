"""Calibrate from a pandas frame of your own measurements, and price a matrix product with the result.

The measurements of this example follow a law (78 % of the peak rate plus 4 microseconds), so that the fit can be
compared with it. Replace `measured` by the times of your accelerator.
Run it with `python examples/calibrate_from_frame.py`.
"""

from __future__ import annotations

import itertools
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd

from calibration import Gemm, fit_bundle, load_bundle
from calibration.operators.roofline import roofline_s
from catalogs import Accelerator, parse_hardware

SIZES = (1, 8, 64, 256, 1024, 4096)
WIDTHS = (2048, 4096, 8192)


def law_s(op: Gemm, accelerator: Accelerator) -> float:
    """Return the seconds of an operator by the invented law."""
    return float(roofline_s(op, accelerator)) / 0.78 + 4e-6


def measured(accelerator: Accelerator) -> pd.DataFrame:
    """Return one row for each shape, with the columns that the `gemm` family needs."""
    shapes = [(float(m), float(n), float(k)) for m, n, k in itertools.product(SIZES, WIDTHS, WIDTHS)]
    frame = pd.DataFrame(shapes, columns=["m", "n", "k"])
    frame["dtype"] = "bf16"
    frame["seconds"] = [law_s(Gemm(m, n, k, "bf16"), accelerator) for m, n, k in shapes]
    frame["source"] = "own measurements"
    return frame


def main() -> None:
    """Fit a calibration, load it, and compare a prediction with the law."""
    accelerator = parse_hardware("h100").accelerator
    with tempfile.TemporaryDirectory() as folder:
        fit_bundle({"gemm": measured(accelerator)}, accelerator, Path(folder))
        bundle = load_bundle(accelerator, Path(folder))
        op = Gemm(512.0, 6144.0, 4096.0, "bf16")  # not one of the measured shapes
        predicted = float(np.asarray(bundle.cost(op).seconds))
    print(f"predicted {predicted * 1e6:.1f} us, the law says {law_s(op, accelerator) * 1e6:.1f} us")


if __name__ == "__main__":
    main()
