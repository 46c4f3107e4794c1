"""Fits the launch time of an engine's eager steps on declared points of a public table, and checks it on all others.

    python benchmarks/engine_host_terms.py SCORE.py [sglang|trtllm]

SCORE.py is the scorer that lies beside the public measurements. SGLang and TensorRT-LLM capture decode steps only; a
step with a prompt is launched kernel by kernel, and where the model has many layers of many kernels that is what its
first token waits for. The fitted constant is the time per kernel (`simulator.layers.step` counts them) at which the
median signed TTFT error of the calibration set is zero. Points of the set are left out of published tables
(`in_calibration_set`).

- SGLang, `kernel_launch`: DeepSeek-R1 and -V3 (one measurement under two names) on H200 with prompts of 1024 tokens,
  where the launch script sets no flag that delays requests.
- TensorRT-LLM, `latent_launch`: the same models in nvfp4 on B200 with prompts of 1024 tokens and without attention data
  parallelism, in the images 1.2.0rc6.post2: the only ones whose runs sent requests to warm the server, left
  `max_num_tokens` at 8192 or more, and drafted no tokens. Models without latent attention keep vLLM's constant, which
  agrees with Llama and gpt-oss there.

Every other model and GPU is held out.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import io
from argparse import Namespace
from collections import defaultdict
from pathlib import Path
from types import ModuleType

import numpy as np
from error_budget import host, in_process, load

import catalogs.deployments.resolve
from catalogs.engines.files import load_engine

TERMS = {"sglang": "kernel_launch_s", "trtllm": "latent_launch_s"}
LOWEST_S, HIGHEST_S, WITHIN_S = 10e-6, 200e-6, 0.5e-6
Row = dict[str, str]

#: Columns of the points of each set; all have the models and the prompts of `in_calibration_set`.
SETS: dict[str, Row] = {
    "sglang": {"system": "h200_sxm"},
    "trtllm": {
        "system": "b200_sxm",
        "precision": "fp4",
        "backend_version": "1.2.0rc6.post2",
        "attention_data_parallel": "1",
    },
}


def in_calibration_set(row: Row) -> bool:
    """Of the closed-loop table, by its own columns."""
    deepseek = row["model"] in ("deepseek-ai/DeepSeek-R1", "deepseek-ai/DeepSeek-V3")
    columns = SETS.get(row["backend"])
    if columns is None or not deepseek or row["input_tokens_max"] != "1024":
        return False
    return all(row[key] == value for key, value in columns.items())


def errors(score: ModuleType, engine: str, rows: list[Row], launch_s: float) -> np.ndarray:
    """Signed percent errors (TTFT, TPOT) of each row, shape (rows, 2); a row that cannot run has +100 twice."""
    table: list[list[float]] = []
    change = host(**{TERMS[engine]: launch_s})
    catalogs.deployments.resolve.__dict__["load_engine"] = lambda name: change(load_engine(name))
    score.__dict__.update(simulate=in_process, sample=lambda *_: rows, summarise=lambda found, *_: table.extend(found))
    arguments = Namespace(data=score.HERE.parent / "validation", only="", closed_loop=1, seed=0, timeout=300, limit=[])
    with contextlib.redirect_stdout(io.StringIO()):
        score.closed_loop(arguments)
    return np.array(table)


def fit(score: ModuleType, engine: str, rows: list[Row]) -> float:
    """Seconds per kernel where the median signed TTFT error crosses zero, by halving."""
    low, high = LOWEST_S, HIGHEST_S
    while high - low > WITHIN_S:
        middle = (low + high) / 2
        found = errors(score, engine, rows, middle)
        if (found == 100.0).all(axis=1).any():
            raise SystemExit("a point of the calibration set cannot run")
        if np.median(found[:, 0]) < 0.0:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def report(rows: list[Row], before: np.ndarray, after: np.ndarray) -> None:
    """Median absolute errors by group, before and after."""
    groups: dict[str, list[int]] = defaultdict(list)
    for i, row in enumerate(rows):
        kind = "calibration" if in_calibration_set(row) else "held out"
        groups[kind].append(i)
        groups[f"{kind}: {row['system'][:4]} {row['model'].split('/')[-1]}"].append(i)
    for name, chosen in sorted(groups.items(), key=lambda group: (group[0].startswith("held"), group[0])):
        was, now = (np.median(np.abs(e[chosen]), axis=0) for e in (before, after))
        change = "   ".join(
            f"{what} {w:5.1f} -> {n:5.1f} %" for what, w, n in zip(("TTFT", "TPOT"), was, now, strict=True)
        )
        print(f"{name:44} n={len(chosen):4}   {change}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("score", type=Path)
    parser.add_argument("engine", nargs="?", choices=TERMS, default="sglang")
    arguments = parser.parse_args()
    score, engine = load(arguments.score), arguments.engine
    with (score.HERE.parent / "validation/steady_state/inferencex_closed_loop.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["backend"] == engine]
    launch_s = fit(score, engine, [row for row in rows if in_calibration_set(row)])
    borrowed_s = load_engine("vllm").host.kernel_launch_s
    print(f"{launch_s * 1e6:.0f} us for each kernel of an eager step (vLLM: {borrowed_s * 1e6:.0f})")
    report(rows, *(errors(score, engine, rows, seconds) for seconds in (borrowed_s, launch_s)))


if __name__ == "__main__":
    main()
