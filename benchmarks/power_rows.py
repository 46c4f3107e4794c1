"""How well the power rows of public operator tables agree with each other, and with the shipped power model.

    python benchmarks/power_rows.py TABLES     # the folder profiles/aiconfigurator of the public data

Rows of one cell have the same memory traffic (within 0.25 TB/s) and arithmetic (within 25 TFLOP/s). Their quartiles
would lie close together if each reading were the power of its own kernel. The other columns compare the upper quartile
of each cell with the shipped model (absolute and signed), and with a model that is fitted on the same accelerator, on
shapes that this fit left out (`tools/shipped_power.py`). All figures are medians over cells, in percent.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

sys.path.append(str(Path(__file__).resolve().parents[1] / "tools"))

from shipped_power import LEAST_S, cell_errors, fit_power, read_power_rows, with_cells

from calibration.power.model import FITTED, load_power
from catalogs.hardware.catalog import parse_hardware

ACCELERATORS = ("h200", "b200")

#: Fewest rows of a cell whose quartiles are compared.
LEAST_ROWS = 5


def main() -> None:
    shipped = load_power()
    print(f"{'':26}{'quartiles':>12}{'shipped':>10}{'bias':>8}{'own':>8}")
    for name in ACCELERATORS:
        unit = parse_hardware(name).accelerator
        rows = read_power_rows(Path(sys.argv[1]) / f"{name}_sxm", unit)
        _, held_out = fit_power(rows, unit)
        own = dict(zip(held_out.group, held_out.median_abs, strict=True))
        for group in FITTED:
            part = with_cells(rows[(rows.group == group) & (rows.seconds >= LEAST_S[group])])
            cells = part.groupby("cell").watts
            full = cells.size() >= LEAST_ROWS
            low, high = (cells.quantile(q)[full] for q in (0.25, 0.75))
            off = cell_errors(shipped.curves[group], part, unit)
            figures = (np.median(high / low - 1.0), np.median(abs(off)), np.median(off), own[group])
            widths = (12, 10, 8, 8)
            print(f"{name:6}{group:20}" + "".join(f"{100 * f:>+{w}.1f}" for f, w in zip(figures, widths, strict=True)))


if __name__ == "__main__":
    main()
