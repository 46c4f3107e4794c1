"""How well the tables of products predict the timings of a release that was left out: one release, and the median.

    python tools/timing_noise.py --tables DIR [--hw NAME]...

DIR holds the tables that `calibrate import --tables` reads. For every release of an engine on an accelerator, its bf16
products are predicted from the newest table of vLLM alone, and from the median of that table and all other releases
(`calibration/importers/repeated_timings.py`). The printed error is the mean |log(measured / predicted)| without its
median, of products by more than 8 million weights, with up to 64 rows and with more.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd

from calibration.importers.aiconfigurator import SYSTEM_OF, read_family, releases
from calibration.importers.repeated_timings import SHARED_DTYPE, median_products
from catalogs.hardware.catalog import parse_hardware

FEW_ROWS = 64
LEAST_WEIGHTS = 8e6


def errors(measured: pd.DataFrame, predicted: pd.DataFrame) -> tuple[float, float]:
    """Return the mean errors of products with up to FEW_ROWS rows and with more."""
    by_shape = [rows.groupby(["m", "n", "k"])["seconds"].min() for rows in (measured, predicted)]
    log_ratio = np.log(by_shape[0] / by_shape[1]).dropna()
    m, n, k = (log_ratio.index.get_level_values(name).to_numpy(float) for name in ("m", "n", "k"))
    large = n * k > LEAST_WEIGHTS
    parts = [log_ratio[large & (m <= FEW_ROWS)], log_ratio[large & (m > FEW_ROWS)]]
    few, many = (float(np.mean(np.abs(part - part.median()))) for part in parts)
    return few, many


def lines(tables: Path, hardware: str) -> Iterator[str]:
    """Yield a line for each release but the newest of vLLM."""
    accelerator = parse_hardware(hardware).accelerator
    found = {}
    for engine, version in releases(tables, hardware):
        rows = read_family(tables, SYSTEM_OF[hardware], "gemm", engine, version)
        if rows is not None:
            found[engine, version] = rows[rows.dtype == SHARED_DTYPE].reset_index(drop=True)
    newest = max((r for r in found if r[0] == "vllm"), key=lambda r: [int(part) for part in r[1].split(".")])
    for left_out, measured in found.items():
        if left_out == newest:
            continue
        others = [rows for release, rows in found.items() if release not in (left_out, newest)]
        one = errors(measured, found[newest])
        median = errors(measured, median_products(found[newest], others, accelerator))
        yield (
            f"{hardware:10} {' '.join(left_out):20} up to {FEW_ROWS} rows: one release {100 * one[0]:.1f} %, "
            f"median {100 * median[0]:.1f} %; more rows: {100 * one[1]:.1f} %, {100 * median[1]:.1f} %"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", type=Path, required=True, metavar="DIR", help="folder of public operator tables")
    parser.add_argument("--hw", action="append", metavar="NAME", help="only this hardware; repeatable")
    given = parser.parse_args()
    for hardware in given.hw or ("h100", "h200", "b200"):
        for line in lines(given.tables / "aiconfigurator", hardware):
            print(line)


if __name__ == "__main__":
    main()
