"""Import ai-dynamo/aiconfigurator's tables: products, attention, experts, MLA, linear attention and collectives.

The meaning of the columns, from the collectors' source and from how the numbers scale (`latency` is in ms everywhere):

- attention: `step` tokens are in the cache.
- moe: `num_tokens` are all tokens routed by the expert-parallel group (time falls with `moe_ep_size` at equal tokens,
  and the weights of one rank bound it at small batches); `inter_size` is before the TP split; the timed rank is the one
  with the most work. `latency` in ms covers sorting, both products and the weighted sum, not router, shared expert or
  dispatch.
- mla: a whole attention block of one layer of DeepSeek-V3; `num_heads` are heads per rank; decode `step` is the tokens
  in the cache. The A100 tables are not imported: they time the attention operator alone, launched eagerly, and have a
  host floor of 300 us with outliers of 2 ms.
- comm: `message_size` counts elements, not bytes, in both tables: 2^28 "half" and 2^29 "int8" take the same time, and
  two H100 moving 2^28 bf16 elements in 1.7 ms use 71 % of their link (in bytes it would be 36 %, below nccl-tests on
  the same hardware). all_gather and reduce_scatter count the whole gathered tensor.
- linear_attention: `num_v_heads` are those of one rank; the state is in fp32 (`recurrent_state` in the collectors).
- quantize: `scale_matrix` is static_scaled_fp8_quant of m x k: 2 bytes read and 1 written per element. Rows of fewer
  than 1,024 or more than 16,384 columns are dropped (one block per row: they time scheduling, or one block's loop).
  `computescale` is a difference of two measurements, often zero, and is not used.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from calibration.families.fixed_tiles import TABLED
from calibration.families.mla import REFERENCE_SHAPE
from calibration.importers.expert_routing import as_served
from calibration.importers.mla_blocks import (
    TABLE_OF,
    as_fused,
    decode_blocks,
    flashinfer_prompts,
    with_older_products,
)
from calibration.importers.repeated_timings import TIMED_ALIKE, median_products, shorter_decodes
from calibration.importers.shared_kernels import of_experts, with_shared_kernels, without_mistuned
from calibration.operators.operators import window_pairs
from calibration.rows.dataset import OPERATOR_COLUMNS
from catalogs.errors import InputError
from catalogs.hardware.catalog import parse_hardware

COMMIT: Final = "095f58a51"

#: Folder of the tables by hardware name of the catalog.
SYSTEM_OF: Final = {
    "h100": "h100_sxm",
    "h200": "h200_sxm",
    "b200": "b200_sxm",
    "l40s": "l40s",
    "a100-80gb": "a100_sxm",
    "rtxpro6000": "rtx_pro_6000_server",
    "b300": "b300_sxm",
    "gb200": "gb200",
    "gb300": "gb300",
    "b60": "b60",
}

#: Versions with attention tables that leave out the kernel that writes new keys and values to the cache. vLLM 0.14's
#: attention wrote them itself; from 0.24 on the collector calls the write and the attention in turn (H200: 2.8 us over
#: the rows of 0.22 at one sequence whatever its context, 5 ns a token of prompts with 8 heads).
WITHOUT_CACHE_WRITE: Final = ("0.22.0",)

#: Versions of vLLM whose rows of experts leave out the choice of each token's experts: the collector called
#: fused_experts with experts that were chosen before. From 0.24 on it calls the layer with the scores of the router.
#: Those of SGLang (TopK, then the layer) and TensorRT-LLM (MoE.forward with the scores) time the choice as well.
WITHOUT_CHOICE: Final = r" vllm 0\.(?:1\d|2[0-3])\."

#: Dtypes of products that a collector did not time as the engine runs them. TensorRT-LLM tunes its nvfp4 products as
#: it starts; its rows are of one untuned tactic: 21 us for one row of k = 8,192 whatever n, in proportion to k.
NOT_TUNED: Final = {"trtllm": ("nvfp4",)}

#: Releases that are read for their products alone, by engine (see `older_products`).
ONLY_PRODUCTS: Final = {"trtllm": ("1.2.0rc5",)}

#: A product keeps at least this share of its time when the time of its scales is taken off. A judgement: it only bounds
#: a subtraction of noisy times.
LEAST_SHARE: Final = 0.3

#: Bytes of an element of a collective's message, by the names of data types in the tables.
ELEMENT_BYTES: Final = {"half": 2.0, "bfloat16": 2.0, "int8": 1.0}

#: Attention kernels without a mask by the tables' names. vLLM's tables have FlashAttention; SGLang's times of the same
#: kernels are not read, because rows of two collectors would disagree on one grid.
KERNEL_OF: Final = {
    "vllm_vit_flash_attn_fa2": "fa2",
    "vllm_vit_flash_attn_fa3": "fa3",
    "vllm_vit_flash_attn_fa4": "fa4",
    "torch_flow": "trtllm",
    "triton": "triton",
}

#: Dtypes by the tables' names. There are three 4-bit kinds: nvfp4 times nvfp4; mxfp4 (gpt-oss) with 16-bit activations
#: (Triton on Hopper, FlashInfer on B200; rows of Marlin's kernels are mxfp4_marlin); mxfp4 with mxfp8 activations.
DTYPE: Final = {
    "bfloat16": "bf16",
    "fp8": "fp8",
    "fp8_block": "fp8_block",
    "int4_wo": "int4",
    "nvfp4": "fp4",
    "w4a16_mxfp4": "mxfp4",
    "w4a8_mxfp4_mxfp8": "mxfp4_mxfp8",
}

#: TensorRT-LLM's kernels for nvfp4 experts on Blackwell (moe_config.backend: TRTLLM).
LOW_LATENCY: Final = "_min_latency"

#: Experts (hidden size, intermediate size, experts per token, experts) for which its reference configurations select
#: them (examples/configs/database: DeepSeek-R1, Qwen3-235B). Elsewhere the default runs: CUTLASS in 1.0, and in 1.2 by
#: ModelConfig.resolve_moe_backend for all models but gpt-oss. On B200 CUTLASS takes 2 to 3 times as long.
LOW_LATENCY_EXPERTS: Final = {(7168, 2048, 8, 256), (4096, 1536, 8, 128)}

#: Columns that tell rows of attention or experts from each other, besides dtype of arithmetic and kernel.
SHAPE: Final = (
    *("batch_size", "isl", "step", "num_heads", "num_key_value_heads", "head_dim", "window_size", "kv_cache_dtype"),
    *("moe_dtype", "num_tokens", "hidden_size", "inter_size", "topk", "num_experts", "moe_tp_size", "moe_ep_size"),
    "distribution",
)


def import_tables(
    tables: Path, hardware: str, engine: str = "vllm", version: str | None = None
) -> dict[str, pd.DataFrame]:
    """Return the rows of one accelerator and engine by family.

    Without a version, each family has the rows of the engine's newest table, and the collectives include those of NCCL.
    With a version, a family without tables of this very version is left out.

    Raises:
        InputError: There are no tables of this hardware, or a table cannot be read.
    """
    if hardware not in SYSTEM_OF:
        raise InputError("no public operator tables for this hardware", hardware, ", ".join(SYSTEM_OF))
    system = SYSTEM_OF[hardware]
    found = {f: rows for f in TABLES if (rows := read_family(tables, system, f, engine, version)) is not None}
    if not found:
        raise InputError("no operator tables in this folder", str(tables / system))
    found |= _repeated(tables, hardware, engine, version, found)
    if "mla" in found and engine == "vllm" and parse_hardware(hardware).accelerator.has_hbm:
        own = version or newest_version(tables, system, "mla", TABLE_OF["decode"], engine)
        found["mla"] = as_fused(found["mla"], tables, system, own or "")
    if "mla" not in found and version is not None:
        found |= _composed_mla(tables, hardware, engine, version, found)
    return {family: rows for family, rows in found.items() if len(rows)}


def _repeated(
    tables: Path, hardware: str, engine: str, version: str | None, found: dict[str, pd.DataFrame]
) -> dict[str, pd.DataFrame]:
    """Return the families of `found` of which other releases timed the same kernels, with all of their timings."""
    system, better = SYSTEM_OF[hardware], {}
    if "gemm" in found:
        own = version or newest_version(tables, system, "gemm", "gemm_perf", engine)
        releases_of = [r for r in releases(tables, hardware) if r != (engine, own) and reads_all_tables(*r)]
        others = [read_family(tables, system, "gemm", *release) for release in releases_of]
        known = [rows for rows in others if rows is not None]
        better["gemm"] = median_products(found["gemm"], known, parse_hardware(hardware).accelerator)
    if "decode_attention" in found and engine == "vllm":
        own = version or newest_version(tables, system, "attention", "generation_attention_perf")
        alike = TIMED_ALIKE.get(own or "")
        older = None if alike is None else read_family(tables, system, "decode_attention", engine, alike)
        better["decode_attention"] = shorter_decodes(found["decode_attention"], older)
    return better


def _composed_mla(
    tables: Path, hardware: str, engine: str, version: str, found: dict[str, pd.DataFrame]
) -> dict[str, pd.DataFrame]:
    """Return rows of "mla" composed from their parts; empty where a part was not timed."""
    system = SYSTEM_OF[hardware]
    attention = _table(tables, system, "mla", "generation_mla_perf", engine, version)
    absorbed = _table(tables, system, "mla_bmm", "mla_bmm_perf", engine, version)
    if attention is None or absorbed is None or "gemm" not in found:
        return {}
    attention = attention.assign(kv_cache_dtype=attention.kv_cache_dtype.map(DTYPE))
    absorbed, unit = absorbed[absorbed.bmm_dtype == "bfloat16"], parse_hardware(hardware).accelerator
    rows = [decode_blocks(attention, absorbed, found["gemm"], unit)]
    if engine == "sglang" and unit.is_data_center_blackwell:
        lender = newest_version(tables, system, "mla", TABLE_OF["prefill"])
        blocks = read_family(tables, system, "mla", "vllm", lender)
        products = read_family(tables, system, "gemm", "vllm", lender)
        if lender is not None and blocks is not None and products is not None:
            rows.append(flashinfer_prompts(as_fused(blocks, tables, system, lender), products, unit))
    return {"mla": pd.concat(rows, ignore_index=True)}


def releases(tables: Path, hardware: str) -> list[tuple[str, str]]:
    """Return (engine, version) of every engine release with tables of products on this hardware, in order."""
    files = (tables / SYSTEM_OF[hardware] / "gemm").glob("*/*/gemm_perf.parquet")
    return sorted((f.parent.parent.name, f.parent.name) for f in files)


def reads_all_tables(engine: str, version: str) -> bool:
    """Return whether all tables of a release count, and not its products alone."""
    return version not in ONLY_PRODUCTS.get(engine, ())


def older_products(tables: Path, hardware: str, engine: str, version: str) -> dict[str, pd.DataFrame]:
    """Return the rows of a release in which block-scaled FP8 products took another time than today.

    They are those of TensorRT-LLM before its pull request 11607 (merged on 2026-02-24), on Blackwell. Until then a
    Triton kernel quantised the input of such a product and laid out its scales for DeepGEMM. On B200 its products take
    1.4 times as long as those of 1.3.0rc20 with few rows and 3.4 times with 8,192, whereas products in bf16 and nvfp4
    take the same time in both tables. On Hopper, where another kernel quantises, block-scaled products take the same
    time too (1.00 to 1.02). A release has two families here: the products, and blocks of MLA, which are those of the
    engine's newest release with these products in place of their own. The result is empty for other accelerators.
    """
    unit, system = parse_hardware(hardware).accelerator, SYSTEM_OF[hardware]
    newest = newest_version(tables, system, "mla", TABLE_OF["prefill"], engine)
    products = read_family(tables, system, "gemm", engine, version)
    if not unit.is_data_center_blackwell or newest is None or products is None:
        return {}
    found, older = import_tables(tables, hardware, engine, newest), products[products.dtype == TABLED]
    older = older.reset_index(drop=True)
    return {"gemm": older, "mla": with_older_products(found["mla"], found["gemm"], older, unit)}


def read_family(
    tables: Path, system: str, family: str, engine: str = "vllm", version: str | None = None
) -> pd.DataFrame | None:
    """Return the rows of a family under the folder of a system, or None where it has none of the family's tables."""
    sources = [
        (_table(tables, system, folder, name, own or engine, version), read)
        for folder, name, own, read in TABLES[family]
        if own is None or version is None
    ]
    if family == "moe":
        table_of = partial(newest_table, tables, system, "moe", "moe_perf")
        sources = [(with_shared_kernels(raw, engine, table_of), read) for raw, read in sources]
    parts = [read(raw) for raw, read in sources if raw is not None]
    if family == "gemm" and parts:
        scales = _table(tables, system, "quantize", "computescale_perf", engine, version)
        parts = [with_static_scales(part, scales) for part in parts]
    if family == "collective" and len(parts) > 1:  # the library's all-reduce counts only where the engine's is missing
        parts[1] = parts[1][parts[1].kind != "all_reduce"]
    return pd.concat(parts, ignore_index=True) if parts else None


def read_experts(tables: Path, hardware: str, engine: str, version: str) -> pd.DataFrame | None:
    """Return the rows of experts of one release on one accelerator, or None where they were not timed."""
    return read_family(tables, SYSTEM_OF[hardware], "moe", engine, version)


def newest_version(tables: Path, system: str, folder: str, name: str, engine: str = "vllm") -> str | None:
    """Return the highest version of an engine with a table `name` under SYSTEM/FOLDER/ENGINE, or None.

    A development build counts as older than its release.
    """
    versions = [p.parent.name for p in (tables / system / folder / engine).glob(f"*/{name}.parquet")]
    return max(versions, key=lambda v: [int(part) if part.isdigit() else -1 for part in v.split(".")], default=None)


def newest_table(tables: Path, system: str, folder: str, name: str, engine: str = "vllm") -> pd.DataFrame | None:
    """Return the newest version of a table with the columns seconds and source added, or None.

    Raises:
        InputError: The table cannot be read.
    """
    return _table(tables, system, folder, name, engine, None)


def _table(tables: Path, system: str, folder: str, name: str, engine: str, version: str | None) -> pd.DataFrame | None:
    version = version or newest_version(tables, system, folder, name, engine)
    file = tables / system / folder / engine / (version or "") / f"{name}.parquet"
    if version is None or not file.is_file():
        return None
    try:
        raw = pd.read_parquet(file)
    except (OSError, ValueError) as error:
        raise InputError(f"table cannot be read ({type(error).__name__})", str(file)) from None
    source = f"aiconfigurator@{COMMIT} {system} {engine} {version}"
    raw = raw.assign(seconds=raw["latency"].to_numpy(float) * 1e-3, source=source)
    return raw[raw.seconds > 0.0].reset_index(drop=True)


def with_static_scales(rows: pd.DataFrame, scales: pd.DataFrame | None) -> pd.DataFrame:
    """Return rows of products with the time to find the scale of their input taken off per-tensor fp8 rows.

    The collectors time fp8 products with dynamic scales, and in `computescale_perf` what finding them adds (7 us on
    H200 in TensorRT-LLM, 1 us in vLLM). Checkpoints with per-tensor scales state the scales of their inputs.
    """
    if scales is None or scales.empty:
        return rows
    added = scales.groupby(["m", "k"]).seconds.median().rename("added").reset_index().astype(float)
    found = rows[["m", "k"]].merge(added, how="left", on=["m", "k"]).added.fillna(0.0).to_numpy(float)
    least = LEAST_SHARE * rows.seconds
    shorter = np.maximum(rows.seconds - found, least)
    return rows.assign(seconds=np.where((rows.dtype == "fp8").to_numpy(), shorter, rows.seconds))


def _common(raw: pd.DataFrame) -> pd.DataFrame:
    return raw[["seconds", "source"]].assign(kernel=raw.get("kernel_source", "unknown"))


def _gemm(raw: pd.DataFrame) -> pd.DataFrame:
    for engine, dtypes in NOT_TUNED.items():
        raw = raw[~(raw.source.str.contains(f" {engine} ") & raw.gemm_dtype.isin(dtypes))]
    raw = raw.reset_index(drop=True)
    return _common(raw).join(raw[["m", "n", "k"]].astype(float)).assign(dtype=raw.gemm_dtype.map(DTYPE))


def as_run(raw: pd.DataFrame) -> pd.DataFrame:
    """Return rows of attention or experts with one time for each shape: that of the kernel that the engine runs.

    The arithmetic is in the dtype of the cache where that was timed: SGLang casts queries to the dtype of the cache
    (flashattention_backend.py), and TensorRT-LLM runs fp8 attention where checkpoint and cache are fp8 (attention.py,
    use_fp8_context_fmha). Of several kernels the one that was timed on the most shapes of a dtype and head size counts:
    the collectors time the engine's default everywhere, and others where a model or a flag selects them. TensorRT-LLM's
    low-latency experts come first for the models whose recipes select them, and last for all others.
    """
    kind = [c for c in ("kv_cache_dtype", "head_dim", "moe_dtype") if c in raw]
    ranked = raw.assign(
        native=(raw.attn_dtype == raw.kv_cache_dtype) if "attn_dtype" in raw else True,
        low_latency=_low_latency(raw),
        shapes=raw.groupby([*kind, "kernel_source"]).kernel_source.transform("size"),
    ).sort_values(["native", "low_latency", "shapes"], ascending=False, kind="stable")
    shape = [c for c in SHAPE if c in raw]
    return raw.loc[ranked.drop_duplicates(shape).index.sort_values()].reset_index(drop=True)


def _low_latency(raw: pd.DataFrame) -> npt.NDArray[np.int64]:
    """Return 1 for rows of low-latency experts that a recipe selects, -1 for those of others, else 0; shape (rows,)."""
    found = raw.kernel_source.str.endswith(LOW_LATENCY).to_numpy(dtype=bool)
    if not found.any():
        return np.zeros(len(raw), dtype=np.int64)
    return np.where(found, np.where(of_experts(raw, LOW_LATENCY_EXPERTS), 1, -1), 0)


def _attention(raw: pd.DataFrame) -> pd.DataFrame:
    heads = {"num_heads": "n_heads", "num_key_value_heads": "n_kv_heads", "head_dim": "head_dim"}
    rows = _common(raw).join(raw[list(heads)].rename(columns=heads).astype(int))
    window = raw.get("window_size", pd.Series(0, index=raw.index)).astype(int)
    return rows.assign(kv_dtype=raw.kv_cache_dtype.map(DTYPE), window_tokens=window)


def _prefill(raw: pd.DataFrame) -> pd.DataFrame:
    raw = as_run(raw)
    rows = _attention(raw)
    q, context, chunks = (raw[c].to_numpy(float) for c in ("isl", "step", "batch_size"))
    pairs = chunks * window_pairs(q, context, rows.window_tokens.to_numpy(float))
    return rows.assign(chunks=chunks, tokens=chunks * q, pairs=pairs)


def _decode(raw: pd.DataFrame) -> pd.DataFrame:
    raw = as_run(raw)
    rows = _attention(raw)
    sequences, context = raw["batch_size"].to_numpy(float), raw["step"].to_numpy(float) + 1.0
    window = rows.window_tokens.to_numpy(float)
    seen = np.where(window > 0, np.minimum(context, window), context)
    writes = ~raw.source.str.endswith(tuple(f" {v}" for v in WITHOUT_CACHE_WRITE))
    lengths = {"context_tokens": sequences * seen, "max_context_tokens": seen}
    return rows.assign(sequences=sequences, **lengths, writes_cache=writes)


def moe_rows(raw: pd.DataFrame) -> pd.DataFrame:
    """Return rows of experts at the routing in the column `distribution`, with one time for each shape in fp8."""
    sizes = {
        "hidden_size": raw.hidden_size,
        "intermediate_size": raw.inter_size // raw.moe_tp_size,
        "n_experts": raw.num_experts,
        "experts_per_token": raw.topk,
        "expert_ranks": raw.moe_ep_size,
    }
    rows = _common(raw).assign(tokens=raw.num_tokens.astype(float), **{c: v.astype(int) for c, v in sizes.items()})
    even = {"even_seconds": raw.even_seconds} if "even_seconds" in raw else {}
    marlin = (raw.moe_dtype == "w4a16_mxfp4") & raw.kernel_source.str.contains("marlin")
    dtype = raw.moe_dtype.map(DTYPE).where(~marlin, "mxfp4_marlin")
    chooses = ~raw.source.str.contains(WITHOUT_CHOICE)
    return _without_doubles(rows.assign(dtype=dtype, distribution=raw.distribution, chooses_experts=chooses, **even))


def _without_doubles(rows: pd.DataFrame) -> pd.DataFrame:
    """Drop per-tensor fp8 rows of shapes that were also timed block scaled, so that fp8 has one time per shape.

    Published fp8 expert checkpoints are block scaled, and on Hopper the per-tensor kernel of vLLM is untuned and up to
    four times slower. TensorRT-LLM tunes both when it starts.
    """
    if rows.source.str.contains(" trtllm ").all():
        return rows
    shape = [c for c in OPERATOR_COLUMNS["moe"] if c not in ("tokens", "dtype")]
    block = rows.loc[rows.dtype == "fp8_block", shape].drop_duplicates().assign(doubled=True)
    doubled = rows[shape].merge(block, how="left", on=shape).doubled.notna().to_numpy()
    return rows[~(doubled & (rows.dtype == "fp8").to_numpy())].reset_index(drop=True)


def mla_rows(raw: pd.DataFrame, stage: str) -> pd.DataFrame:
    """Return the rows of one stage, "prefill" or "decode", in the bf16 tables of MLA blocks."""
    raw = raw[raw.mla_dtype == "bfloat16"].reset_index(drop=True)
    sequences, length = raw.batch_size.astype(float), raw.isl.astype(float)
    if stage == "decode":
        work: dict[str, Any] = {"tokens": sequences, "pairs": 0.0, "context_tokens": sequences * raw.step}
    else:
        work = {"tokens": sequences * length, "pairs": sequences * length**2 / 2, "context_tokens": 0.0}
    dtypes = {"dtype": raw.gemm_type.map(DTYPE), "kv_dtype": raw.kv_cache_dtype.map(DTYPE)}
    heads = raw.num_heads.astype(int)
    return _common(raw).assign(stage=stage, sequences=sequences, **work, n_heads=heads, **REFERENCE_SHAPE, **dtypes)


def _encoder(raw: pd.DataFrame) -> pd.DataFrame:
    """Return rows of encoder attention, square and without a mask, of the kernels in KERNEL_OF."""
    raw = raw[raw.kernel_source.isin(KERNEL_OF)].reset_index(drop=True)
    heads = {"num_heads": "n_heads", "head_dim": "head_dim"}
    rows = raw[["seconds", "source"]].join(raw[list(heads)].rename(columns=heads).astype(int))
    length = raw["isl"].to_numpy(float)
    sizes = {"sequences": raw["batch_size"].to_numpy(float), "query_tokens": length, "key_tokens": length}
    return rows.assign(**sizes, kernel=raw.kernel_source.map(KERNEL_OF), dtype="bf16")


def _messages(raw: pd.DataFrame, dtype: pd.Series[str]) -> pd.DataFrame:
    size = (raw.message_size * dtype.map(ELEMENT_BYTES)).astype(float)
    return _common(raw).assign(message_bytes=size, ranks=raw.num_gpus.astype(int))


def _engine_collectives(raw: pd.DataFrame) -> pd.DataFrame:
    """Return rows of the engine's all-reduce, graph and eager."""
    modes = raw.backend.str.endswith("_graph") if "backend" in raw else True  # TensorRT-LLM's were timed in graphs
    return _messages(raw, raw.allreduce_dtype).assign(kind="all_reduce", graph=modes)


def _nccl(raw: pd.DataFrame) -> pd.DataFrame:
    raw = raw[raw.nccl_dtype == "half"]
    return _messages(raw, raw.nccl_dtype).assign(kind=raw.op_name.replace("alltoall", "all_to_all"), graph=True)


def _scans(raw: pd.DataFrame) -> pd.DataFrame:
    """Return rows of gated delta rules, prompts and decodes; the convolution before them is another operator.

    `num_v_heads` are the heads of one rank. The kernel of decodes has several names, one for each way of writing the
    same step.
    """
    raw = raw[raw.kernel_source.str.startswith(SCAN_KERNELS)].reset_index(drop=True)
    sizes = {"num_v_heads": "n_heads", "head_k_dim": "key_head_dim", "head_v_dim": "value_head_dim"}
    rows = _common(raw).join(raw[list(sizes)].rename(columns=sizes).astype(int))
    counts = {"tokens": raw.num_tokens.astype(float), "sequences": raw.batch_size.astype(float)}
    return rows.assign(stage=raw.phase.map({"context": "prefill", "generation": "decode"}), **counts)


def _quantize(raw: pd.DataFrame) -> pd.DataFrame:
    """Return rows of static_scaled_fp8_quant of m tokens x k columns, at the sizes of models."""
    raw = raw[raw.k.between(1024, 16384) & (raw.m <= 16384)].reset_index(drop=True)
    return _common(raw).assign(kind="quantize", tokens=raw.m.astype(float), bytes_per_token=3.0 * raw.k)


#: Beginnings of the names of kernels that scan the state of linear attention.
SCAN_KERNELS: Final = ("chunk_gated_delta_rule", "fused_recurrent_gated_delta_rule")

#: Tables by family as (folder, name, engine or None for any engine, reader); MLA has a table only where whole blocks
#: were timed.
TABLES: Final[dict[str, tuple[tuple[str, str, str | None, Callable[[pd.DataFrame], pd.DataFrame]], ...]]] = {
    "gemm": (("gemm", "gemm_perf", None, _gemm),),
    "prefill_attention": (("attention", "context_attention_perf", None, _prefill),),
    "decode_attention": (("attention", "generation_attention_perf", None, _decode),),
    "noncausal_attention": tuple(
        ("encoder_attention", "encoder_attention_perf", engine, _encoder) for engine in ("vllm", "trtllm", "sglang")
    ),
    "moe": (("moe", "moe_perf", None, lambda raw: moe_rows(without_mistuned(as_served(as_run(raw))))),),
    "mla": (
        ("mla", "mla_context_module_perf", None, partial(mla_rows, stage="prefill")),
        ("mla", "mla_generation_module_perf", None, partial(mla_rows, stage="decode")),
    ),
    "linear_attention": (("linear_attention", "gdn_perf", None, _scans),),
    "collective": (
        ("comm", "custom_allreduce_perf", None, _engine_collectives),
        ("comm", "nccl_perf", "nccl", _nccl),
        ("comm", "oneccl_perf", "oneccl", _nccl),  # Intel's library, with the columns of NCCL's table
    ),
    "elementwise": (("quantize", "scale_matrix_perf", "vllm", _quantize),),
}
