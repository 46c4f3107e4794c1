"""Simulates the points of public measurements in this process, for `stated_error.py` and other benchmarks.

The scorer that comes with the measurements defines the deployment and the workload of a point. Only its call of the
command `simulate` is replaced.
"""

from __future__ import annotations

import contextlib
import csv
import hashlib
import io
import json
import math
import random
import re
import tempfile
from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import patch

import numpy as np
from launch_facts import flags, why_left_out

from calibration.accuracy.regime import UNKNOWN, Regime
from calibration.accuracy.stated_error import family_of, waiting_share
from catalogs.deployments.schema import load_deployment
from catalogs.errors import InputError
from catalogs.hardware.catalog import list_hardware, parse_hardware
from catalogs.models.catalog import load_model
from catalogs.statistics import statistics
from catalogs.workloads.workload import load_workload
from planner.matrix.published_rows import ENGINES
from planner.problem.slo import Slo
from simulator.analysis.metrics import summarise
from simulator.cluster.compiled import compile_deployment
from simulator.cluster.run import Run
from simulator.cluster.simulate import simulate

#: Marks points whose settings are not published and were inferred from their own figures. Their error says nothing
#: about the simulation.
INFERRED = "inferred from the figures"
FOLDS = 10  # parts of the tables of which each is predicted from the others
LAUNCHED = ("sglang", "trtllm")  # engines whose launch scripts were read
SOURCES = {
    "closed loop": "InferenceX closed-loop points",
    "steady state": "ML.ENERGY steady-state points (vLLM 0.11.1)",
    "static batch": "LLM-Inference-Bench static batches",
}
#: Engines whose error is learned from static batches: no other table measured them. Static batches of llama.cpp ran on
#: GPUs, where the operators of torch price it; its stated error is that of a CPU.
STATIC_ENGINES = ("vllm-v0", "trtllm-tensorrt")
#: The first points of an engine in the scorer's seeded order whose error is not learned from. Host times of vllm-v0
#: were fitted on half of the first 54; models that the catalog has learned since are between them now.
FITTED = {"vllm-v0": 60}

#: Seed of the scorer's order, its default.
SEED = 7
SUMMARY = {
    "itl": ("itl_s", "p50"),
    "power": ("power", "gpu_w_mean"),
    "j_per_token": ("energy", "gpu_j_per_output_token"),
}


@dataclass(frozen=True, slots=True)
class Compared:
    """One statistic of one run, measured and simulated.

    Attributes:
        operator_error: The error of the step times of the run that is expected from the operators.
        waiting_share: The part of a time to first token that is waiting.
        fold: The part of the table in which the point is; -1 for points of no table.
        regime: What is known of the deployment before it runs.
    """

    part: str  # "open loop", "closed loop", "steady state", "static batch"
    case: str
    engine: str
    accelerator: str
    model: str
    metric: str
    stat: str
    measured: float
    simulated: float
    operator_error: float
    waiting_share: float
    fold: int
    regime: Regime = UNKNOWN

    @property
    def log_ratio(self) -> float:
        return math.log(self.measured / self.simulated)


def fold_of(identity: str) -> int:
    """Return the fold of a point, which depends only on its name."""
    return int(hashlib.sha256(identity.encode()).hexdigest(), 16) % FOLDS


def steady_identity(row: dict[str, str]) -> str:
    keys = ("model", "gpu", "n_gpus", "tensor_parallel", "expert_parallel", "data_parallel", "max_num_seqs")
    return "|".join(row[k] for k in keys)


def static_identity(row: dict[str, str]) -> str:
    return "|".join(row[k] for k in ("gpu", "n_gpus", "engine", "model", "input_tokens", "output_tokens", "batch"))


IDENTITY: dict[str, Callable[[dict[str, str]], str]] = {
    "closed loop": lambda row: row["id"],
    "steady state": steady_identity,
    "static batch": static_identity,
}


def simulated(deployment: Path, workload: Path) -> Run:
    return simulate(compile_deployment(load_deployment(deployment)), load_workload(str(workload)).materialise())


def regime_of(done: Run) -> Regime:
    """Return the regime of the first pool, as `simulate` states it."""
    first = done.compiled_pools[0].resolved
    return Regime.of(first.model, first.hardware.accelerator)


def tables(score: ModuleType, data: Path, refused: list[str]) -> Iterator[Compared]:
    """Yield every point of the tables whose settings are known, and of points that are one run the first.

    Points that cannot run are added to `refused`, by name. Points of SGLang and TensorRT-LLM have the flags of their
    launch scripts; those of cold servers and with drafts are left out (`launch_facts`). Static batches are those of
    `static_batches`.
    """
    for part in SOURCES:
        rows = static_batches(score, data) if part == "static batch" else points(score, data, part)
        for row, (name, deployment, workload, want) in rows:
            if row.get("same_run_as") or row.get("settings_from") == INFERRED:
                continue
            if row.get("backend") in LAUNCHED:
                if why_left_out(row):
                    continue
                deployment |= flags(row)
            try:
                with written(deployment, workload) as files:
                    done = simulated(*files)
            except InputError:
                refused.append(name)
                continue
            about = (
                part,
                name,
                family_of(deployment["engine"]),
                row.get("system", row.get("gpu", "")).lower()[:4],
                row["model"],
            )
            summary = summarise(done)
            error = float(summary["calibration"]["operator_error"])
            further = float(done.requests.output_tokens.mean()) - 1.0
            share = waiting_share(done.ttft_s[done.completed], done.queue_s[done.completed], np.mean)
            for metric, stat, measured, got in _statistics(part, summary["metrics"], further, want):
                fold = fold_of(IDENTITY[part](row))
                yield Compared(*about, metric, stat, measured, got, error, share, fold, regime_of(done))


def static_batches(score: ModuleType, data: Path) -> Iterator[tuple[dict[str, str], tuple[Any, ...]]]:
    """Yield the static batches from which an error is learned, on the engines that `plan matrix --measured` simulates.

    They are those of models and hardware in the catalog, without the points on which host times were fitted, and
    without those in which the engine cannot have computed all tokens.
    """
    seen: Counter[str] = Counter()
    for row, (name, deployment, workload, want) in points(score, data, "static batch"):
        engine = ENGINES[row["engine"]]
        seen[engine] += 1
        learned = engine in STATIC_ENGINES and seen[engine] > FITTED.get(engine, 0)
        if learned and float(row["latency_s"]) >= least_static_s(row):
            yield row, (name, deployment | {"engine": engine}, workload, want)


def least_static_s(row: dict[str, str]) -> float:
    """Return the least possible seconds of a static batch.

    Every output token needs a step, and every step reads the weights that one token uses, of at least one byte a
    parameter, at the bandwidth of the memory.
    """
    unit, model = parse_hardware(row["gpu"]).accelerator, load_model(row["model"])
    per_step_s = model.n_active_params / (int(row["n_gpus"]) * unit.memory_bandwidth_bytes_per_s)
    return int(row["output_tokens"]) * per_step_s


def points(score: ModuleType, data: Path, part: str) -> Iterator[tuple[dict[str, str], tuple[Any, ...]]]:
    """Yield each row of a table as the scorer reads it: (name, deployment, workload, measured).

    Static batches come in the scorer's seeded order, and only those of models and hardware in the catalog.
    """
    rows: list[dict[str, str]] = []
    found: list[tuple[Any, ...]] = []
    known_rows = score.known_rows

    def sample(path: Path, _n: int, seed: int, _keep: object) -> list[dict[str, str]]:
        with path.open() as f:
            rows.extend(csv.DictReader(f))
        return random.Random(seed).sample(rows, len(rows)) if part == "static batch" else rows

    def kept(*about: Any, **options: Any) -> list[dict[str, str]]:
        rows[:] = known_rows(*about, **options)
        return rows

    def point(_args: object, *about: Any) -> list[float]:
        found.append(about)
        return [0.0 for _ in about[-1]]

    exchanged: dict[str, Any] = {
        "sample": sample,
        "point": point,
        "by_group": lambda *_: None,
        "summarise": lambda *_: None,
    }
    if part == "static batch":
        exchanged |= {
            "known_rows": kept,
            "catalog": lambda _kind: list_hardware(),
            "known": lambda _key, model: _has_model(model),
        }
    every = 10**9
    only = Namespace(data=data, only="", closed_loop=every, steady_state=every, static_batch=every, seed=SEED, limit=[])
    with contextlib.redirect_stdout(io.StringIO()), patch.dict(vars(score), exchanged):
        getattr(score, part.replace(" ", "_"))(only)
    yield from zip(rows, found, strict=True)


def _has_model(name: str) -> bool:
    try:
        load_model(name)
    except InputError:
        return False
    return True


@contextlib.contextmanager
def written(deployment: dict[str, Any], workload: dict[str, Any]) -> Iterator[tuple[Path, Path]]:
    """Write a deployment and a workload as the files that the command `simulate` reads, and yield their paths."""
    with tempfile.TemporaryDirectory() as folder:
        files = Path(folder) / "deployment.yaml", Path(folder) / "workload.yaml"
        for file, content in zip(files, (deployment, workload), strict=True):
            file.write_text(json.dumps(content))
        yield files


def _statistics(
    part: str, got: dict[str, Any], further_tokens: float, want: list[tuple[str, str, float]]
) -> Iterator[tuple[str, str, float, float]]:
    """Yield (metric, statistic, measured, simulated) of a run.

    The closed-loop table has no end-to-end times: they are TTFT plus TPOT for every further token of the mean output.
    """
    if part == "steady state":
        for (metric, (block, key)), (_, _, measured) in zip(SUMMARY.items(), want, strict=True):
            yield metric, key, measured, float(got[block][key])
        return
    if part == "static batch":
        yield "e2e", "duration", want[0][2], float(got["duration_s"])
        return
    ttft_s, tpot_s = (measured for _, _, measured in want)
    for metric, measured in (("ttft", ttft_s), ("tpot", tpot_s), ("e2e", ttft_s + further_tokens * tpot_s)):
        yield metric, "mean", measured, float(got[f"{metric}_s"]["mean"])


def open_loop(folder: Path, rate_scale: float = 1.0) -> list[Compared]:
    """Return the statistics of an open-loop case, without the warm-up that its publisher leaves out.

    The simulated requests arrive at `rate_scale` times the measured rate.
    """
    case = json.loads((folder / "case.json").read_text())
    trace = str((folder / "requests.jsonl.gz").resolve())
    content = {"trace": trace, "hash_block_tokens": case["hash_block_tokens"] or 16, "rate_scale": rate_scale}
    deployment = load_deployment(folder / "deployment.yaml")
    with tempfile.TemporaryDirectory() as temporary:
        workload = Path(temporary) / "workload.yaml"
        workload.write_text(json.dumps(content))
        done = simulated(folder / "deployment.yaml", workload)
    error = float(summarise(done)["calibration"]["operator_error"])
    about = ("open loop", folder.name, deployment.engine.partition("-")[0], folder.name.split("-")[0], deployment.model)
    found = []
    columns = {"ttft": done.ttft_s, "tpot": done.tpot_s, "e2e": done.e2e_s}
    first_s, queue_s = (values[case["warmup_requests"] :] for values in (done.ttft_s, done.queue_s))
    for metric, values in columns.items():
        got = statistics(values[case["warmup_requests"] :])
        for stat, measured in case["measured"].get(f"{metric}_s", {}).items():
            value = got[stat]
            assert value is not None
            share = waiting_share(first_s, queue_s, Slo(metric, stat, measured).value_s)
            found.append(Compared(*about, metric, stat, measured, value, error, share, -1, regime_of(done)))
    return found


_BLOCK = re.compile(r"<!-- verify (\S+) -->(.*?)<!-- /verify -->", re.S)
_ROW = re.compile(r"^\|[^|]+\| (ttft|tpot|e2e) mean \|[^|]+\|[^|]+\| ([+−-][\d.]+) ?%", re.M)


def verified(page: Path) -> dict[tuple[str, str], list[float]]:
    """Return log(measured / simulated) of the means in the comparisons of a page, by engine and metric, last first."""
    found: dict[tuple[str, str], list[float]] = {}
    for engine, block in _BLOCK.findall(page.read_text()):
        for metric, percent in _ROW.findall(block):
            found.setdefault((engine, metric), []).append(-math.log1p(float(percent.replace("−", "-")) / 100.0))
    return found
