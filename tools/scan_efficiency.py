"""Print what scans of linear attention reach of the roofline in the public operator tables.

    python tools/scan_efficiency.py TABLES/aiconfigurator

The defaults of the family `linear_attention` (calibration/families/uncalibrated.py) are read from this table. Rows are
gated delta rules of vLLM and SGLang with at least 32 value heads; both keep the state in fp32 (`recurrent_state` in the
collectors of ai-dynamo/aiconfigurator). Decodes count if the state that they stream exceeds any second-level cache,
prompts from 1,024 tokens on. The least time is that of the smallest row.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from calibration.operators.flops_and_bytes import bytes_moved
from calibration.operators.operators import LinearAttentionScan
from calibration.operators.roofline import roofline_s
from catalogs.hardware.catalog import parse_hardware

if TYPE_CHECKING:
    import pandas as pd

#: Folder of the tables and the accelerator that it was measured on.
SYSTEMS: Final = {
    "a100_sxm": "a100-80gb",
    "h100_sxm": "h100",
    "h200_sxm": "h200",
    "l40s": "l40s",
    "b200_sxm": "b200",
    "gb200": "gb200-nvl72",
    "b300_sxm": "b300",
}

#: Beginning of the name of a kernel and the stage that it computes.
STAGES: Final = {"fused_recurrent_gated_delta_rule": "decode", "chunk_gated_delta_rule": "prefill"}

LEAST_HEADS: Final = 32
LEAST_BYTES: Final = 256e6
LEAST_TOKENS: Final = 1024


def scans(table: pd.DataFrame, hardware: str, stage: str) -> tuple[float, float, int]:
    """Return (median efficiency, least seconds, number of large rows) of one stage of a table; the roofline is 1."""
    kernel = next(name for name, of in STAGES.items() if of == stage)
    rows = table[table.kernel_source.str.startswith(kernel) & (table.num_v_heads >= LEAST_HEADS)]
    unit, seconds = parse_hardware(hardware).accelerator, rows.latency.to_numpy(dtype=np.float64) / 1e3
    efficiency, large = np.zeros(len(rows)), np.zeros(len(rows), dtype=bool)
    for i, row in enumerate(rows.itertuples()):
        op = LinearAttentionScan(
            float(row.num_tokens), float(row.batch_size), row.num_v_heads, row.head_k_dim, row.head_v_dim, stage
        )
        efficiency[i] = float(roofline_s(op, unit)) / seconds[i]
        enough = float(bytes_moved(op, unit)) >= LEAST_BYTES if stage == "decode" else row.num_tokens >= LEAST_TOKENS
        large[i] = enough
    if not large.any():
        return 0.0, 0.0, 0
    return float(np.median(efficiency[large])), float(seconds.min()), int(large.sum())


def lines(tables: Path) -> Iterator[str]:
    """Yield one line for each table and stage."""
    import pandas as pd

    for system, hardware in SYSTEMS.items():
        for file in sorted((tables / system / "linear_attention").glob("[vs]*/*/gdn_perf.parquet")):
            table = pd.read_parquet(file)
            for stage in ("decode", "prefill"):
                share, least_s, n = scans(table, hardware, stage)
                if n:
                    engine = f"{file.parts[-3]} {file.parts[-2]}"
                    yield f"{hardware:12} {engine:15} {stage:8} {n:5} {share:7.0%} {least_s * 1e6:8.1f} us"


def main(arguments: list[str] | None = None) -> int:
    """Print the table of a folder of public operator tables."""
    parser = argparse.ArgumentParser(description="Print what scans of linear attention reach of the roofline.")
    parser.add_argument("tables", type=Path, metavar="DIR", help="the folder aiconfigurator of the public tables")
    for line in lines(parser.parse_args(arguments).tables):
        print(line)
    return 0


if __name__ == "__main__":
    sys.exit(main())
