"""Fits the host time of an engine's eager steps on declared points of a public table, and checks it on all others.

    python benchmarks/engine_host_terms.py SCORE.py [sglang|trtllm|trtllm-experts]

SCORE.py is the scorer that lies beside the public measurements. SGLang and TensorRT-LLM capture decode steps only; a
step with a prompt is launched kernel by kernel, and where the model has many layers of many kernels that is what its
first token waits for. The fitted constant is the time per kernel (`simulator.layers.step` counts them), or per layer of
experts, at which the median signed TTFT error of the calibration set is zero. Points of the sets are left out of
published tables (`in_calibration_set`).

- SGLang, `kernel_launch`: DeepSeek-R1 and -V3 (one measurement under two names) on H200 with prompts of 1024 tokens,
  where the launch script sets no flag that delays requests.
- TensorRT-LLM, `latent_launch`: the same models in nvfp4 on B200 with prompts of 1024 tokens and without attention data
  parallelism, in the images 1.2.0rc6.post2: the only ones whose runs sent requests to warm the server, left
  `max_num_tokens` at 8192 or more, and drafted no tokens. Models without latent attention keep vLLM's constant, which
  agrees with Llama and gpt-oss there.
- TensorRT-LLM, `triton_experts`: gpt-oss-120b over four H200 without expert parallelism, with prompts of 1024 tokens.
  Its launch script selects Triton's experts (`moe_config.backend: TRITON`), whose Python code runs before each kernel.

Every other model and GPU is held out.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import io
from argparse import Namespace
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import numpy as np
from error_budget import host, in_process, load

import catalogs.deployments.resolve
from catalogs.engines.files import load_engine

Row = dict[str, str]

PROMPT_TOKENS = "1024"  # of all sets

DEEPSEEK = ("deepseek-ai/DeepSeek-R1", "deepseek-ai/DeepSeek-V3")


@dataclass(frozen=True)
class Fit:
    """A host time of an engine, the models and columns of the points that it is fitted on, and its bounds.

    `before_s` is the value that the engine had before the term was fitted.
    """

    engine: str
    term: str
    models: tuple[str, ...]
    columns: Row
    before_s: float
    lowest_s: float = 10e-6
    highest_s: float = 200e-6
    within_s: float = 0.5e-6

    def holds(self, row: Row) -> bool:
        columns = self.columns | {"backend": self.engine, "input_tokens_max": PROMPT_TOKENS}
        return row["model"] in self.models and all(row[key] == value for key, value in columns.items())


#: The time of a launch in vLLM, which other engines share where they have none of their own.
VLLM_LAUNCH_S = load_engine("vllm").host.kernel_launch_s

FITS = {
    "sglang": Fit("sglang", "kernel_launch_s", DEEPSEEK, {"system": "h200_sxm"}, before_s=VLLM_LAUNCH_S),
    "trtllm": Fit(
        "trtllm",
        "latent_launch_s",
        DEEPSEEK,
        {
            "system": "b200_sxm",
            "precision": "fp4",
            "backend_version": "1.2.0rc6.post2",
            "attention_data_parallel": "1",
        },
        before_s=VLLM_LAUNCH_S,
    ),
    "trtllm-experts": Fit(
        "trtllm",
        "triton_experts_s",
        ("openai/gpt-oss-120b",),
        {"system": "h200_sxm", "tensor_parallel": "4", "expert_parallel": "false"},
        before_s=0.0,
        lowest_s=0.0,
        highest_s=4e-3,
        within_s=1e-5,
    ),
}


def in_calibration_set(row: Row) -> bool:
    """Return whether a row of the closed-loop table is in the calibration set, by its own columns."""
    return any(fit.holds(row) for fit in FITS.values())


def errors(score: ModuleType, of: Fit, rows: list[Row], term_s: float) -> np.ndarray:
    """Return the signed errors of TTFT and TPOT in percent, shape (rows, 2); a row that cannot run has +100 twice."""
    table: list[list[float]] = []
    change = host(**{of.term: term_s})
    catalogs.deployments.resolve.__dict__["load_engine"] = lambda name: change(load_engine(name))
    score.__dict__.update(simulate=in_process, sample=lambda *_: rows, summarise=lambda found, *_: table.extend(found))
    arguments = Namespace(data=score.HERE.parent / "validation", only="", closed_loop=1, seed=0, timeout=300, limit=[])
    with contextlib.redirect_stdout(io.StringIO()):
        score.closed_loop(arguments)
    return np.array(table)


def fit(score: ModuleType, of: Fit, rows: list[Row]) -> float:
    """Return the seconds at which the median signed TTFT error crosses zero, found by bisection."""
    low, high = of.lowest_s, of.highest_s
    while high - low > of.within_s:
        middle = (low + high) / 2
        found = errors(score, of, rows, middle)
        if (found == 100.0).all(axis=1).any():
            raise SystemExit("a point of the calibration set cannot run")
        if np.median(found[:, 0]) < 0.0:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def report(of: Fit, rows: list[Row], before: np.ndarray, after: np.ndarray) -> None:
    """Print the median absolute errors by group, before and after."""
    groups: dict[str, list[int]] = defaultdict(list)
    for i, row in enumerate(rows):
        kind = "calibration" if of.holds(row) else "held out"
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
    parser.add_argument("fit", nargs="?", choices=FITS, default="sglang")
    arguments = parser.parse_args()
    score, of = load(arguments.score), FITS[arguments.fit]
    with (score.HERE.parent / "validation/steady_state/inferencex_closed_loop.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["backend"] == of.engine]
    found_s = fit(score, of, [row for row in rows if of.holds(row)])
    print(f"{of.term}: {found_s * 1e6:.0f} us (before: {of.before_s * 1e6:.0f})")
    report(of, rows, *(errors(score, of, rows, seconds) for seconds in (of.before_s, found_s)))


if __name__ == "__main__":
    main()
