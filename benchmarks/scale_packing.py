"""Compares two public tables of DeepGEMM's block-scaled products: with scales that are packed in each call, and before.

    python benchmarks/scale_packing.py PROFILES

PROFILES is the folder of aiconfigurator's tables. On Blackwell DeepGEMM takes scales as packed powers of two. SGLang
packs those of the weights as it loads them (requant_weight_ue8m0_inplace in quantization/fp8.py). Its collector passes
them in fp32, so the timed calls pack them (collector/sglang/collect_gemm.py). TensorRT-LLM's table times the same
kernel. The differences of a few rows, at which neither arithmetic nor activations matter, are printed by the number of
weights. On Hopper nothing is packed.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pandas as pd

RELEASES = ("sglang/0.5.14", "trtllm/1.3.0rc20")
SYSTEMS = ("b200_sxm", "gb200", "h100_sxm", "h200_sxm")

#: Most rows at which neither arithmetic nor activations matter.
FEW_ROWS = 64
LEAST_POWER, MOST_POWER = 16, 28  # weights, as powers of two


def seconds(folder: Path, system: str, release: str) -> pd.Series[float]:
    """Return the median seconds of each block-scaled product with few rows, by (m, n, k)."""
    table = pd.read_parquet(folder / system / "gemm" / release / "gemm_perf.parquet")
    table = table[(table.gemm_dtype == "fp8_block") & (table.m <= FEW_ROWS)]
    return table.groupby(["m", "n", "k"])["latency"].median() * 1e-3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("profiles", type=Path)
    folder = parser.parse_args().profiles
    print(f"{'system':10}" + "".join(f"{f'2^{power}':>9}" for power in range(LEAST_POWER, MOST_POWER + 1, 2)) + "  us")
    for system in SYSTEMS:
        own, other = (seconds(folder, system, release) for release in RELEASES)
        apart = (own - other).dropna()
        weights = apart.index.get_level_values("n") * apart.index.get_level_values("k")
        power = np.round(np.log2(weights.to_numpy(dtype=np.float64)))
        medians = [apart[power == p].median() * 1e6 for p in range(LEAST_POWER, MOST_POWER + 1, 2)]
        print(f"{system:10}" + "".join(f"{median:>9.1f}" for median in medians))


if __name__ == "__main__":
    main()
