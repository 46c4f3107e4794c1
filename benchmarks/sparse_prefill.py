"""Prompts with sparse attention: the blocks of a layer as priced beside public measurements of whole blocks.

    python benchmarks/sparse_prefill.py PROFILES

PROFILES is the folder of public operator tables (ai-dynamo/aiconfigurator) with B200 and H200. Its table
`dsa_context_module_perf` times whole sparse-attention blocks of GLM-5 in SGLang: projections, indexer and attention. No
bundle is fitted to that table, so the comparison is a check: a prompt longer than the tokens that the indexer selects
is priced from rows of decoding sequences (`simulator.layers.attention.ShardedMla.prefill_calls`). Shorter prompts run
the dense kernels; there the table holds a floor of about 0.75 ms, the host's launches of a block, which steps have in
their launch time.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd

from catalogs.deployments.resolve import resolve
from catalogs.deployments.schema import Deployment
from simulator.cluster.compiled import compile_deployment
from simulator.costs.pricing import N_CLASSES

BLOCK: Final = frozenset({"mla_prefill", "indexer", "select_entries", "index_q", "index_k"})

HARDWARE: Final = {"b200_sxm": "b200x8", "h200_sxm": "h200x8"}

#: Layers of GLM-5.
LAYERS: Final = 78

#: Ranks of tensor parallelism; 8 of the 64 heads are on each.
RANKS: Final = 8


def priced_s(hardware: str, kv_dtype: str, prompts: float, tokens: float) -> float:
    """Return the seconds of one block of GLM-5 over `prompts` prompts of `tokens` tokens each."""
    keys: dict[str, Any] = {"weight_dtype": "fp8", "kv_dtype": kv_dtype, "tensor_parallel": RANKS}
    deployment = Deployment(model="glm-5", hardware=hardware, engine="sglang", **keys)
    tables = compile_deployment(deployment, resolved=resolve(deployment)).cost.tables
    rows = np.array([prompts * tokens])
    calls = [*tables.lines.rank(rows, graph=False), *tables.lines.prefill(prompts, tokens, 0.0)]
    found = [call for call in calls if call.name in BLOCK]
    return float(tables.pricer.price(found, (1,))[..., :N_CLASSES].sum()) / LAYERS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("profiles", type=Path)
    folder = parser.parse_args().profiles
    for gpu, hardware in HARDWARE.items():
        errors = []
        table = pd.read_parquet(next(folder.glob(f"{gpu}/sparse_attention/sglang/*/dsa_context_module_perf.parquet")))
        table = table[
            (table.model == "zai-org/GLM-5-FP8") & (table.op_name == "dsa_context_module") & (table.step == 0)
        ]
        chosen = table[(table.tp_size == RANKS) & (table.gemm_type == "fp8_block") & (table.isl >= 4096)]
        for row in chosen.sort_values(["kv_cache_dtype", "isl", "batch_size"]).itertuples():
            if row.batch_size * row.isl > 32768:
                continue
            kv_dtype = "fp8" if row.kv_cache_dtype == "fp8" else "bf16"
            got_ms = 1e3 * priced_s(hardware, kv_dtype, float(row.batch_size), float(row.isl))
            errors.append(100.0 * (got_ms / row.latency - 1.0))
            print(
                f"{gpu} {row.kernel_source:36} {kv_dtype:4} {row.batch_size:2} x {row.isl:5}  "
                f"measured {row.latency:6.2f} ms  priced {got_ms:6.2f} ms  {errors[-1]:+6.1f} %"
            )
        print(f"{gpu}: {len(errors)} blocks, median absolute error {statistics.median(map(abs, errors)):.1f} %")


if __name__ == "__main__":
    main()
