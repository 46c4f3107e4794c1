"""Rates of large matrix products in the public operator tables, by accelerator, engine and version.

    python benchmarks/large_products.py TABLES     # the folder profiles/aiconfigurator of the public data

The collector of the vLLM 0.22 tables repeats each product for about a second and records the power, so that the board
holds its limit. The others time bursts. The rates differ by what the limit costs; a server under full load pays it too.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pandas as pd

ACCELERATORS = ("h100_sxm", "h200_sxm", "b200_sxm")

#: Rows of the input, and the other two sizes of a product.
ROWS, SIDES = (4096, 16384), (4096, 32768)


def main() -> None:
    print(f"{'TFLOP/s, median over shapes':34}{'bf16':>8}{'fp8':>8}{'fp4':>8}")
    for accelerator in ACCELERATORS:
        for file in sorted((Path(sys.argv[1]) / accelerator / "gemm").glob("*/*/gemm_perf.parquet")):
            table = pd.read_parquet(file)
            large = table.m.between(*ROWS) & table.n.between(*SIDES) & table.k.between(*SIDES)
            part = table[large]
            rate = 2e-9 * part.m.astype(float) * part.n * part.k / part.latency  # of milliseconds
            found = rate.groupby(part.gemm_dtype).median()
            kept = [found.get(dtype) for dtype in ("bfloat16", "fp8", "nvfp4")]
            name = f"{accelerator} {file.parts[-3]} {file.parts[-2]}"
            print(f"{name:34}" + "".join(f"{'-' if f is None else f'{f:.0f}':>8}" for f in kept))


if __name__ == "__main__":
    main()
