"""Import aiconfigurator's vLLM tables of experts, MLA blocks, collectives and quantisation.

The meaning of the columns, from the collectors' source and from how the numbers scale:

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
- quantize: `scale_matrix` is static_scaled_fp8_quant of m x k: 2 bytes read and 1 written per element. Rows of fewer
  than 1,024 or more than 16,384 columns are dropped (one block per row: they time scheduling, or one block's loop).
  `computescale` is a difference of two measurements, often zero, and is not used.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from calibration.families.mla import REFERENCE_SHAPE
from calibration.importers.aiconfigurator import COMMIT, SYSTEM_OF, newest_version
from calibration.importers.expert_routing import as_served
from calibration.rows.dataset import OPERATOR_COLUMNS
from catalogs.errors import InputError

if TYPE_CHECKING:
    import pandas as pd


ELEMENT_BYTES: Final = {"half": 2.0, "bfloat16": 2.0, "int8": 1.0}

#: There are three 4-bit kinds: nvfp4 times nvfp4; mxfp4 (gpt-oss) with 16-bit activations (Triton on Hopper, Marlin on
#: Ada and workstation Blackwell, FlashInfer on B200); mxfp4 with mxfp8 activations.
MOE_DTYPE: Final = {
    "bfloat16": "bf16",
    "fp8": "fp8",
    "fp8_block": "fp8_block",
    "int4_wo": "int4",
    "nvfp4": "fp4",
    "w4a16_mxfp4": "mxfp4",
    "w4a8_mxfp4_mxfp8": "mxfp4_mxfp8",
}

_MLA_DTYPE: Final = {"bfloat16": "bf16", "fp8_block": "fp8_block", "nvfp4": "fp4"}

_KV_DTYPE: Final = {"bfloat16": "bf16", "fp8": "fp8"}

_NCCL_KIND: Final = {
    "all_gather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "alltoall": "all_to_all",
    "all_reduce": "all_reduce",
}


def import_tables(tables: Path, hardware: str) -> dict[str, pd.DataFrame]:
    """Return the measured rows of moe, mla, collective and elementwise by family.

    Raises:
        InputError: There are no tables of this hardware, or a table cannot be read.
    """
    if hardware not in SYSTEM_OF:
        raise InputError("no public operator tables for this hardware", hardware, ", ".join(SYSTEM_OF))
    system = SYSTEM_OF[hardware]
    readers: dict[str, Callable[[Path, str], pd.DataFrame | None]] = {
        "moe": read_moe,
        "mla": read_mla,
        "collective": read_collective,
        "elementwise": read_quantize,
    }
    found = {family: reader(tables, system) for family, reader in readers.items()}
    return {family: rows for family, rows in found.items() if rows is not None and len(rows)}


def read_moe(tables: Path, system: str, distribution: str | None = None) -> pd.DataFrame | None:
    """Return expert rows at the routing of service (see expert_routing.py), or at one routing as it was timed."""
    raw = _newest(tables, system, "moe", "moe_perf")
    if raw is None:
        return None
    raw = as_served(raw) if distribution is None else raw[raw.distribution == distribution].reset_index(drop=True)
    rows = _common(raw)
    rows["tokens"] = raw.num_tokens.astype(float)
    rows["hidden_size"] = raw.hidden_size.astype(int)
    rows["intermediate_size"] = (raw.inter_size // raw.moe_tp_size).astype(int)
    rows["n_experts"] = raw.num_experts.astype(int)
    rows["experts_per_token"] = raw.topk.astype(int)
    rows["expert_ranks"] = raw.moe_ep_size.astype(int)
    rows["dtype"] = raw.moe_dtype.map(MOE_DTYPE)
    rows["distribution"] = raw.distribution
    return _without_doubles(rows)


def _without_doubles(rows: pd.DataFrame) -> pd.DataFrame:
    """Drop per-tensor fp8 rows of shapes that were also timed block scaled, so that fp8 has one time per shape.

    Published fp8 expert checkpoints are block scaled, and on Hopper the per-tensor kernel is untuned and up to four
    times slower.
    """
    shape = [c for c in OPERATOR_COLUMNS["moe"] if c not in ("tokens", "dtype")]
    block = rows.loc[rows.dtype == "fp8_block", shape].drop_duplicates().assign(doubled=True)
    doubled = rows[shape].merge(block, how="left", on=shape).doubled.notna().to_numpy()
    return rows[~(doubled & (rows.dtype == "fp8").to_numpy())].reset_index(drop=True)


def read_mla(tables: Path, system: str) -> pd.DataFrame | None:
    """Return rows of whole MLA blocks, prefill and decode; None where only parts of a block were timed."""
    import pandas as pd

    parts = []
    for stage, name in (("prefill", "mla_context_module_perf"), ("decode", "mla_generation_module_perf")):
        raw = _newest(tables, system, "mla", name)
        if raw is not None:
            parts.append(mla_rows(raw, stage))
    return pd.concat(parts, ignore_index=True) if parts else None


def mla_rows(raw: pd.DataFrame, stage: str) -> pd.DataFrame:
    """Return the rows of one stage, "prefill" or "decode", in the bf16 tables of MLA blocks."""
    raw = raw[raw.mla_dtype == "bfloat16"].reset_index(drop=True)
    rows = _common(raw)
    sequences = raw.batch_size.astype(float)
    rows["stage"], rows["sequences"] = stage, sequences
    if stage == "decode":
        rows["tokens"], rows["pairs"], rows["context_tokens"] = sequences, 0.0, sequences * raw.step
    else:
        length = raw.isl.astype(float)
        rows["tokens"], rows["pairs"], rows["context_tokens"] = sequences * length, sequences * length**2 / 2, 0.0
    rows["n_heads"] = raw.num_heads.astype(int)
    for name, value in REFERENCE_SHAPE.items():
        rows[name] = value
    rows["dtype"], rows["kv_dtype"] = raw.gemm_type.map(_MLA_DTYPE), raw.kv_cache_dtype.map(_KV_DTYPE)
    return rows


def read_collective(tables: Path, system: str) -> pd.DataFrame | None:
    """Return rows of the engine's all-reduce (graph and eager) and of NCCL's other kinds.

    NCCL's all-reduce counts only where the engine's was not timed.
    """
    import pandas as pd

    engine = _newest(tables, system, "comm", "custom_allreduce_perf")
    nccl = _newest(tables, system, "comm", "nccl_perf", engine="nccl")
    parts = []
    if engine is not None:
        rows = _messages(engine, engine.allreduce_dtype)
        rows["kind"], rows["graph"] = "all_reduce", (engine.backend == "vllm_graph").to_numpy()
        parts.append(rows)
    if nccl is not None:
        rows = _messages(nccl, nccl.nccl_dtype)
        rows["kind"], rows["graph"] = nccl.op_name.map(_NCCL_KIND), True
        rows = rows[(nccl.nccl_dtype == "half").to_numpy()]
        parts.append(rows if engine is None else rows[rows.kind != "all_reduce"])
    return pd.concat(parts, ignore_index=True) if parts else None


def _messages(raw: pd.DataFrame, dtype: pd.Series) -> pd.DataFrame:
    rows = _common(raw)
    rows["message_bytes"] = (raw.message_size * dtype.map(ELEMENT_BYTES)).astype(float)
    rows["ranks"] = raw.num_gpus.astype(int)
    return rows


def read_quantize(tables: Path, system: str) -> pd.DataFrame | None:
    """Return rows of static_scaled_fp8_quant of m tokens x k columns, at the sizes of models."""
    raw = _newest(tables, system, "quantize", "scale_matrix_perf")
    if raw is None:
        return None
    raw = raw[raw.k.between(1024, 16384) & (raw.m <= 16384)].reset_index(drop=True)
    rows = _common(raw)
    rows["kind"], rows["tokens"] = "quantize", raw.m.astype(float)
    rows["bytes_per_token"] = 3.0 * raw.k
    return rows


def _common(raw: pd.DataFrame) -> pd.DataFrame:
    rows = raw[["seconds", "source"]].copy()
    rows["kernel"] = raw.kernel_source if "kernel_source" in raw else "unknown"
    return rows


def _newest(tables: Path, system: str, folder: str, name: str, engine: str = "vllm") -> pd.DataFrame | None:
    """Return the newest version of a table with seconds and source added, or None."""
    import pandas as pd

    version = newest_version(tables, system, folder, name, engine)
    if version is None:
        return None
    file = tables / system / folder / engine / version / f"{name}.parquet"
    try:
        raw: pd.DataFrame = pd.read_parquet(file)
    except (OSError, ValueError) as error:
        raise InputError(f"table cannot be read ({type(error).__name__})", str(file)) from None
    raw["seconds"] = raw["latency"].to_numpy(float) * 1e-3
    raw["source"] = f"aiconfigurator@{COMMIT} {system} {engine} {version}"
    positive = raw["seconds"].to_numpy(float) > 0.0
    return raw.loc[positive].reset_index(drop=True)
