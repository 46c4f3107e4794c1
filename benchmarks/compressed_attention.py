"""DeepSeek-V4: whole blocks of compressed attention and of residual streams as priced, beside public measurements.

    python benchmarks/compressed_attention.py PROFILES

PROFILES is the folder of public operator tables (ai-dynamo/aiconfigurator). Its tables `dsv4_csa_*` and `dsv4_hca_*`
time whole attention blocks of DeepSeek-V4-Flash and -Pro: projections, compressor, indexer and attention. `mhc_module`
times the residual streams of one layer (hyper-connections). No bundle is fitted to these tables, so the comparison is a
check: the blocks are priced as the products, elementwise kernels and attention that they consist of
(`simulator.layers.compressed_attention.ShardedCompressedAttention`, `simulator.layers.operator_call.norm_calls`).
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd

from calibration.bundles.bundle import load_bundle
from catalogs.arrays import FloatArray
from catalogs.deployments.layout import Layout
from catalogs.engines.files import load_engine
from catalogs.hardware.catalog import parse_hardware
from catalogs.models.catalog import load_model
from catalogs.models.compressed_attention import CompressedAttention
from simulator.costs.pricing import N_CLASSES, Pricer
from simulator.layers.compressed_attention import ShardedCompressedAttention
from simulator.layers.operator_call import OperatorCall, norm_calls
from simulator.layers.shard import Shard

HARDWARE: Final = {"h100_sxm": "h100x8", "h200_sxm": "h200x8", "b200_sxm": "b200x8", "gb200": "gb200x4"}

MODELS: Final = {"deepseek-v4-flash": "V4-Flash", "deepseek-v4-pro": "V4-Pro"}

RATIOS: Final = {"csa": 4, "hca": 128}  # tokens of an entry

LARGE: Final = {"generation": 32, "context": 1024}  # sequences, and tokens, from which on a step counts as large


def never_joins(_head_dim: int, _kv_dtype: str) -> bool:
    return False


def seconds(pricer: Pricer, calls: Iterable[OperatorCall], shape: tuple[int, ...]) -> FloatArray:
    total: FloatArray = pricer.price(calls, shape)[..., :N_CLASSES].sum(axis=-1)
    return total


def errors(of: FloatArray) -> str:
    """Return the median and the median absolute error in percent."""
    return f"{100 * np.median(of):+5.0f} {100 * np.median(abs(of)):4.0f}"


def priced_s(pricer: Pricer, shard: Shard, ratio: int, stage: str, rows: pd.DataFrame) -> FloatArray:
    """Return the seconds of one block for each row. Shape (rows,)."""
    kinds = (group.mixer for group in shard.model.groups)
    part: Any = next(mixer for mixer in kinds if getattr(mixer, "compress_ratio", None) == ratio)
    assert type(part).__name__ == CompressedAttention.__name__
    block = ShardedCompressedAttention(shard, 1, part)
    n, each, prior = (rows[name].to_numpy(float) for name in ("batch_size", "isl", "step"))
    if stage == "generation":
        calls = [*block.projection_calls(n), *block.decode_calls(n, prior + 1, prior + 1, never_joins)]
    else:
        calls = [*block.projection_calls(n * each), *block.prefill_calls(n, each, prior)]
    return seconds(pricer, calls, n.shape)


def attention(folder: Path, gpu: str, engine: str, pricer: Pricer) -> Iterator[str]:
    for alias, name in MODELS.items():
        for kind, ratio in RATIOS.items():
            for stage, large in LARGE.items():
                table = pd.read_parquet(folder / f"dsv4_{kind}_{stage}_module_perf.parquet")
                table = table[table.model.str.contains(name) & (table.gemm_type == "fp8_block")]
                found = []
                for ranks in (1, 8):
                    rows = table[table.tp_size == ranks]
                    shard = Shard(
                        load_model(alias), Layout(ranks), "fp8", "fp8", accelerator=pricer.hardware.accelerator
                    )
                    error = priced_s(pricer, shard, ratio, stage, rows) / (rows.latency.to_numpy() / 1e3) - 1
                    big = (rows.batch_size * (rows.isl if stage == "context" else 1)).to_numpy() >= large
                    found.append(f"{errors(error)} {errors(error[big])}")
                yield f"{gpu:9} {engine:7} {alias:18} {kind} {stage:10} {len(table):6}   {'   '.join(found)}"


def streams(path: Path, gpu: str, engine: str, pricer: Pricer) -> Iterator[str]:
    table = pd.read_parquet(path)
    for alias in MODELS:
        model = load_model(alias)
        own = table[table.hidden_size == model.hidden_size].pivot_table(
            index="num_tokens", columns="op_name", values="latency"
        )
        own = own.dropna()
        tokens = own.index.to_numpy(float)
        calls = norm_calls(Shard(model, Layout(1), "fp8", "fp8"), "mixer", "input_norm", 2, tokens)
        error = 1e3 * seconds(pricer, calls, tokens.shape) / (own["pre"] + own["post"]).to_numpy() - 1
        yield f"{gpu:9} {engine:7} {alias:18} {len(own):4}   {errors(error)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("profiles", type=Path)
    folder = parser.parse_args().profiles
    attention_lines, stream_lines = [], []
    for gpu, hardware_name in HARDWARE.items():
        hardware = parse_hardware(hardware_name)
        for engine in ("vllm", "sglang", "trtllm"):
            pricer = Pricer(load_bundle(hardware.accelerator, engine=load_engine(engine)), hardware)
            for path in sorted(folder.glob(f"{gpu}/sparse_attention/{engine}/*/dsv4_csa_context_module_perf.parquet")):
                attention_lines += attention(path.parent, gpu, engine, pricer)
            for path in sorted(folder.glob(f"{gpu}/mhc/{engine}/*/mhc_module_perf.parquet")):
                stream_lines += streams(path, gpu, engine, pricer)
    print("errors of attention blocks, %: median and median absolute, of all rows and of large ones")
    print(f"{'':48} {'rows':>8}   {'one rank':21}   eight ranks")
    print("\n".join(attention_lines))
    print("\nerrors of the residual streams of a layer, %: median and median absolute")
    print("\n".join(stream_lines))


if __name__ == "__main__":
    main()
