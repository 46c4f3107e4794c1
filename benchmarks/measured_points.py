"""Public measurements beside the same points simulated, in this process; for `coverage.py`.

The scorer that lies beside the measurements says what deployment and workload a point stands for; only its call of the
command `simulate` is replaced.
"""

from __future__ import annotations

import contextlib
import csv
import hashlib
import io
import json
import math
import re
import tempfile
from argparse import Namespace
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from launch_facts import flags, unlike

from calibration.accuracy.stated_error import family_of, waiting_share
from catalogs.deployments.schema import load_deployment
from catalogs.errors import InputError
from catalogs.statistics import statistics
from catalogs.workloads.workload import load_workload
from planner.problem.slo import Slo
from simulator.analysis.metrics import summarise
from simulator.cluster.compiled import compile_deployment
from simulator.cluster.run import Run
from simulator.cluster.simulate import simulate

#: Settings of the run are not published and were chosen by its figures: an error there says nothing about simulation.
INFERRED = "inferred from the figures"
FOLDS = 10  # parts of the tables of which each is predicted from the others
LAUNCHED = ("sglang", "trtllm")  # engines whose launch scripts were read
SOURCES = {
    "closed loop": "InferenceX closed-loop points",
    "steady state": "ML.ENERGY steady-state points (vLLM 0.11.1)",
}
SUMMARY = {
    "itl": ("itl_s", "p50"),
    "power": ("power", "gpu_w_mean"),
    "j_per_token": ("energy", "gpu_j_per_output_token"),
}


@dataclass(frozen=True, slots=True)
class Compared:
    """One statistic of one run. operator_error: what the operators expect of the run's step times; waiting_share: the
    part of a time to first token that is waiting; fold: its part of the table (-1: of no table)."""

    part: str  # "open loop", "closed loop", "steady state"
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

    @property
    def log_ratio(self) -> float:
        return math.log(self.measured / self.simulated)


def fold_of(identity: str) -> int:
    """Stable: it depends on the point's own name and nothing else."""
    return int(hashlib.sha256(identity.encode()).hexdigest(), 16) % FOLDS


def steady_identity(row: dict[str, str]) -> str:
    keys = ("model", "gpu", "n_gpus", "tensor_parallel", "expert_parallel", "data_parallel", "max_num_seqs")
    return "|".join(row[k] for k in keys)


IDENTITY: dict[str, Callable[[dict[str, str]], str]] = {
    "closed loop": lambda row: row["id"],
    "steady state": steady_identity,
}


def simulated(deployment: Path, workload: Path) -> Run:
    return simulate(compile_deployment(load_deployment(deployment)), load_workload(str(workload)).materialise())


def tables(score: ModuleType, data: Path, refused: list[str]) -> Iterator[Compared]:
    """Every point of the two tables whose settings are known, of points that are one run the first; points that cannot
    run go to `refused`, by name. Points of SGLang and TensorRT-LLM have the flags of their launch scripts; those of
    cold servers and with drafts are left out (`launch_facts`)."""
    for part in SOURCES:
        for row, (name, deployment, workload, want) in points(score, data, part):
            if row.get("same_run_as") or row.get("settings_from") == INFERRED:
                continue
            if row.get("backend") in LAUNCHED:
                if unlike(row):
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
                yield Compared(*about, metric, stat, measured, got, error, share, fold_of(IDENTITY[part](row)))


def points(score: ModuleType, data: Path, part: str) -> Iterator[tuple[dict[str, str], tuple[Any, ...]]]:
    """Rows of a table, and what the scorer makes of each: (name, deployment, workload, measured)."""
    rows: list[dict[str, str]] = []
    found: list[tuple[Any, ...]] = []

    def sample(path: Path, _n: int, _seed: int, _keep: object) -> list[dict[str, str]]:
        with path.open() as f:
            rows.extend(csv.DictReader(f))
        return rows

    def point(_args: object, *about: Any) -> list[float]:
        found.append(about)
        return [0.0 for _ in about[-1]]

    score.__dict__.update(sample=sample, point=point, summarise=lambda *_: None)
    only = Namespace(data=data, only="", closed_loop=1, steady_state=1, seed=0, limit=[])
    with contextlib.redirect_stdout(io.StringIO()):
        {"closed loop": score.closed_loop, "steady state": score.steady_state}[part](only)
    yield from zip(rows, found, strict=True)


@contextlib.contextmanager
def written(deployment: dict[str, Any], workload: dict[str, Any]) -> Iterator[tuple[Path, Path]]:
    """Both as files, as the command `simulate` takes them."""
    with tempfile.TemporaryDirectory() as folder:
        files = Path(folder) / "deployment.yaml", Path(folder) / "workload.yaml"
        for file, content in zip(files, (deployment, workload), strict=True):
            file.write_text(json.dumps(content))
        yield files


def _statistics(
    part: str, got: dict[str, Any], further_tokens: float, want: list[tuple[str, str, float]]
) -> Iterator[tuple[str, str, float, float]]:
    """(metric, statistic, measured, simulated). The closed-loop table has no end-to-end times: TTFT + TPOT for every
    further token of the mean output."""
    if part == "steady state":
        for (metric, (block, key)), (_, _, measured) in zip(SUMMARY.items(), want, strict=True):
            yield metric, key, measured, float(got[block][key])
        return
    ttft_s, tpot_s = (measured for _, _, measured in want)
    for metric, measured in (("ttft", ttft_s), ("tpot", tpot_s), ("e2e", ttft_s + further_tokens * tpot_s)):
        yield metric, "mean", measured, float(got[f"{metric}_s"]["mean"])


def open_loop(folder: Path, rate_scale: float = 1.0) -> list[Compared]:
    """A case's statistics, warm-up left out as its publisher does; its requests `rate_scale` times as dense."""
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
            found.append(Compared(*about, metric, stat, measured, value, error, share, -1))
    return found


_BLOCK = re.compile(r"<!-- verify (\S+) -->(.*?)<!-- /verify -->", re.S)
_ROW = re.compile(r"^\|[^|]+\| (ttft|tpot|e2e) mean \|[^|]+\|[^|]+\| ([+−-][\d.]+) ?%", re.M)


def verified(page: Path) -> dict[tuple[str, str], list[float]]:
    """log(measured / simulated) of the means in a page's own comparisons, bottom-up, by engine and metric."""
    found: dict[tuple[str, str], list[float]] = {}
    for engine, block in _BLOCK.findall(page.read_text()):
        for metric, percent in _ROW.findall(block):
            found.setdefault((engine, metric), []).append(-math.log1p(float(percent.replace("−", "-")) / 100.0))
    return found
