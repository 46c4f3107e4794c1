"""Measured rows to compare with predictions: published tables of static batches and of closed loops.

The format of a file is recognised by its columns. Every row becomes a point: a deployment, a workload, and the measured
statistics. Its prediction is simulated exactly as that deployment, with the error that answers of its engine state.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from catalogs.engines.files import load_engine
from catalogs.errors import InputError
from catalogs.io.input_files import MOST_DATA_BYTES, read_text


@dataclass(frozen=True, slots=True)
class MeasuredPoint:
    """One measured row.

    Attributes:
        model: As the file names it.
        engine: The engine as the file names it.
        hardware: Accelerators in the text of deployment.yaml.
        workload: The lengths in words.
        batch: Requests in the batch, or clients.
        deployment: Keys of deployment.yaml; without `engine` where the catalog has none.
        keys: Keys of the workload.
        values: Measured statistics by their dotted key in the block `metrics`, seconds.
        source: Where the row was published.
    """

    model: str
    engine: str
    hardware: str
    workload: str
    batch: int
    deployment: Mapping[str, Any] = field(hash=False)
    keys: Mapping[str, Any] = field(hash=False)
    values: Mapping[str, float] = field(hash=False)
    source: str

    @property
    def precision(self) -> str:
        """Return the number formats of weights and KV cache that the row states, such as `fp8/fp8`; may be empty."""
        return "/".join(str(self.deployment[k]) for k in ("weight_dtype", "kv_dtype") if k in self.deployment)

    @property
    def name(self) -> str:
        """Return the point in one text, as the name of a cell."""
        layout = "tp{} pp{}".format(*(self.deployment.get(f"{k}_parallel", 1) for k in ("tensor", "pipeline")))
        axes = (self.model, self.engine, self.hardware, self.workload, f"batch {self.batch}", self.precision, layout)
        return " / ".join(filter(None, (*axes, self.source)))

    @property
    def workload_text(self) -> str:
        """Return the workload as text for `--workload`."""
        return json.dumps(dict(self.keys))


#: Engine of the catalog for each engine of published tables. The names with capitals are those of tables of static
#: batches from the middle of 2024, when vLLM ran its engine V0 and TensorRT-LLM its TensorRT backend.
ENGINES: Final = {
    "vLLM": "vllm-v0",
    "vLLM V1": "vllm",
    "TensorRT-LLM": "trtllm-tensorrt",
    "llama.cpp": "llama.cpp",
    "HF": "transformers-static",
    "transformers": "transformers-static",
    "vllm": "vllm",
    "sglang": "sglang",
    "trtllm": "trtllm",
}

_VERSION: Final = re.compile(r"\d+\.\d+")

Row = Mapping[str, str]


def read_measured(path: Path) -> list[MeasuredPoint]:
    """Return the points of a table.

    Raises:
        InputError: The file cannot be read, its columns are those of no known table, or a row breaks a rule.
    """
    rows = list(csv.DictReader(io.StringIO(read_text(path, "measurements cannot be read", MOST_DATA_BYTES))))
    if not rows:
        raise InputError("the table of measurements has no rows", str(path))
    for known in TABLES:
        if known.columns <= rows[0].keys():
            return [point for i, row in enumerate(rows, 2) if (point := _read(known.read, row, path, i)) is not None]
    columns = " or ".join(", ".join(sorted(table.columns)) for table in TABLES)
    raise InputError("this is no known table of measurements", str(path), hint=f"it needs the columns {columns}")


def _read(read: Callable[[Row], MeasuredPoint | None], row: Row, path: Path, line: int) -> MeasuredPoint | None:
    try:
        return read(row)
    except (KeyError, ValueError) as error:
        raise InputError(f"{path.name} line {line} is not a measurement ({error})") from None


def engine_of(name: str, version: str) -> str | None:
    """Return the engine of the catalog for a published name, with its version where the catalog has it; else None."""
    found = ENGINES.get(name)
    number = _VERSION.search(version)
    if found is None or number is None or found == "vllm-v0":
        return found
    try:
        load_engine(f"{found}-{number[0]}")
    except InputError:
        return found
    return f"{found}-{number[0]}"


def static_batch(row: Row) -> MeasuredPoint:
    """Return a row of one batch of equal prompts that start together: seconds until the last token."""
    n, batch = int(row["n_gpus"]), int(row["batch"])
    engine = engine_of(row["engine"], row["source"].split(",")[-1] if row["engine"] == "vLLM V1" else "")
    in_turn = engine is not None and load_engine(engine).stages_in_turn
    deployment: dict[str, Any] = {
        "model": row["model"],
        "hardware": f"{row['gpu']}x{n}",
        "pipeline_parallel" if in_turn else "tensor_parallel": n,
    }
    deployment |= {} if engine is None else {"engine": engine}
    deployment |= {key: row[key] for key in ("weight_dtype", "kv_dtype") if row.get(key)}
    inputs, outputs = int(row["input_tokens"]), int(row["output_tokens"])
    return MeasuredPoint(
        model=row["model"],
        engine=row["engine"],
        hardware=f"{row['gpu']}x{n}",
        workload=f"{inputs}/{outputs} tokens",
        batch=batch,
        deployment=deployment,
        keys={"arrivals": "all_at_once", "requests": batch, "input_tokens": inputs, "output_tokens": outputs},
        values={"duration_s": _positive(row["latency_s"])},
        source=row["source"],
    )


#: Prefix of the name of a system in InferenceX's tables, and the accelerator of the catalog.
_SYSTEMS: Final = {
    "h100_sxm": "h100",
    "h200_sxm": "h200",
    "b200_sxm": "b200",
    "b300_sxm": "b300",
    "a100_sxm": "a100-80gb",
    "l40s": "l40s",
    "gb200": "gb200-nvl72",
}

#: Requests of a closed loop, as a multiple of its clients, and at least LEAST.
_PER_CLIENT: Final = 10

_LEAST: Final = 40


def closed_loop(row: Row) -> MeasuredPoint | None:
    """Return a row of InferenceX: mean TTFT and TPOT of clients in a closed loop, lengths 80 to 100 % of the largest.

    The same run under a second name is left out.
    """
    if row.get("same_run_as"):
        return None
    gpus, clients = int(float(row["gpus"])), int(float(row["concurrency"]))
    unit = _SYSTEMS.get(row["system"], row["system"])
    hardware = f"{unit}x{gpus}" if gpus <= 8 else f"{-(-gpus // 8)}*{unit}x8"
    engine = engine_of(row["backend"], row["backend_version"])
    deployment: dict[str, Any] = {
        "model": row["model"],
        "hardware": hardware,
        "tensor_parallel": int(float(row["tensor_parallel"] or 1)),
        "pipeline_parallel": int(float(row["pipeline_parallel"] or 1)),
        "data_parallel": int(float(row["attention_data_parallel"] or 1)),
        "expert_parallel": row["expert_parallel"] == "true",
    }
    deployment |= {} if engine is None else {"engine": engine}
    deployment |= {"weight_dtype": row["precision"]} if row["precision"] in ("fp8", "fp4", "bf16") else {}
    for key in ("max_num_seqs", "max_num_batched_tokens"):
        deployment |= {key: int(float(row[key]))} if row.get(key) else {}
    deployment |= {"kv_dtype": row["kv_dtype"]} if row.get("kv_dtype") else {}
    longest_in, longest_out = int(float(row["input_tokens_max"])), int(float(row["output_tokens_max"]))
    keys = {
        "arrivals": {"closed_loop": {"concurrency": clients}},
        "requests": max(_PER_CLIENT * clients, _LEAST),
        "input_tokens": _near(longest_in),
        "output_tokens": _near(longest_out),
    }
    values = {"ttft_s.mean": _positive(row["ttft_mean_ms"]) / 1e3, "tpot_s.mean": _positive(row["tpot_mean_ms"]) / 1e3}
    return MeasuredPoint(
        model=row["model"],
        engine=row["backend"],
        hardware=hardware,
        workload=f"{longest_in}/{longest_out} tokens",
        batch=clients,
        deployment=deployment,
        keys=keys,
        values=values,
        source=row.get("id") or row["source"],
    )


def _near(longest: int) -> dict[str, Any]:
    return {"uniform": {"low": max(1, round(0.8 * longest)), "high": longest}}


def _positive(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise ValueError(f"{text} is not a positive number")
    return value


@dataclass(frozen=True, slots=True)
class MeasuredTable:
    """A kind of table: the columns by which it is recognised, and the function that reads one of its rows."""

    columns: frozenset[str]
    read: Callable[[Row], MeasuredPoint | None]


TABLES: Final = (
    MeasuredTable(
        frozenset({"gpu", "n_gpus", "engine", "model", "input_tokens", "output_tokens", "batch", "latency_s"}),
        static_batch,
    ),
    MeasuredTable(
        frozenset({"system", "backend", "model", "gpus", "concurrency", "input_tokens_max", "ttft_mean_ms"}),
        closed_loop,
    ),
)
