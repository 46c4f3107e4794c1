"""Fits what ranks of a tensor-parallel group wait for each other, from real step cycles, and checks it on unseen ones.

    python benchmarks/host_terms.py STEP_CYCLES.csv

STEP_CYCLES.csv holds scheduler steps of vLLM 0.15 serving Llama-2-70B at tensor parallel 4 on H100 (inference-sim/
training): cycle time and batch contents. Over decode-only steps, skew = median of (measured cycle - predicted cycle
without skew) / collectives in a step. Predicted cycles come from the shipped H100 bundle. With --gap-ms a gap after
every step is assumed besides: it changes the skew and not the error on unseen cycles, so the profile has none.
One run fits, the other checks; the last line, fitted on both, is what the profile ships. The file has no contexts;
prompts and outputs of that data set average 580 and 248 tokens, so a running decode has seen about 700.
"""

from __future__ import annotations

import argparse
import csv
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import numpy as np

from calibration.bundles.bundle import load_bundle
from catalogs.deployments.resolve import resolve
from catalogs.deployments.schema import Deployment
from catalogs.ui.words import percent
from simulator.core.batch import BatchShape
from simulator.costs.compile import compile_step_cost
from simulator.costs.step_cost import StepCost
from simulator.layers.shard import Shard
from simulator.layers.step import step_calls

#: Mean and longest context of the running decodes, in tokens: prompts of 580 tokens and half or all of outputs of 248.
MEAN_CONTEXT, MAX_CONTEXT = 700, 830


def without_skew(gap_s: float = 0.0) -> tuple[StepCost, int]:
    """Return the step cost with the profile's host terms but without skew, and the collectives of a decode step."""
    deployment = Deployment(
        model="llama-2-70b",
        engine="vllm-0.15",
        hardware="h100x4",
        tensor_parallel=4,
        max_num_seqs=128,
        max_num_batched_tokens=2048,
    )
    resolved = resolve(deployment)
    host = replace(resolved.engine.host, collective_skew_s=0.0, step_gap_s=gap_s)
    resolved = replace(resolved, engine=replace(resolved.engine, host=host))
    lines = step_calls(Shard.of(resolved), BatchShape(0, 0.0, 0, 1, MEAN_CONTEXT, MAX_CONTEXT, 1))
    n_collectives = sum(line.count for line in lines if line.kind == "collective")
    return compile_step_cost(resolved, load_bundle(resolved.hardware.accelerator)), n_collectives


def decode_steps(path: Path) -> dict[str, np.ndarray]:
    """Return (sequences, cycle seconds) of the decode-only steps, by run."""
    runs: dict[str, list[tuple[float, float]]] = defaultdict(list)
    with path.open() as file:
        for row in csv.DictReader(file):
            n = int(row["num_decode_reqs"])
            if row["num_prefill_reqs"] == "0" and n:
                runs[row["exp"]].append((n, float(row["cycle_us"]) / 1e6))
    return {name: np.array(rows) for name, rows in runs.items()}


def predicted_s(cost: StepCost, sequences: np.ndarray) -> np.ndarray:
    shapes = [BatchShape(0, 0.0, 0, int(n), int(n) * MEAN_CONTEXT, MAX_CONTEXT, int(n)) for n in sequences]
    return np.array([cost.cycle_s(s) for s in shapes])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cycles", type=Path)
    parser.add_argument("--gap-ms", type=float, default=0.0)
    arguments = parser.parse_args()
    runs = decode_steps(arguments.cycles)
    cost, n_collectives = without_skew(arguments.gap_ms / 1e3)
    everything = np.concatenate(list(runs.values()))
    for fitted, steps in [*runs.items(), ("both runs", everything)]:
        skew = float(np.median(steps[:, 1] - predicted_s(cost, steps[:, 0]))) / n_collectives
        print(f"fitted on {fitted} ({len(steps)} steps): {skew * 1e6:.2f} us for each of {n_collectives} collectives")
        for name, other in runs.items():
            error = (predicted_s(cost, other[:, 0]) + skew * n_collectives) / other[:, 1] - 1
            kind = "held out" if fitted in runs and name != fitted else "in sample"
            print(
                f"  {kind:9} {name}: median {percent(np.median(error), 1, signed=True)}, "
                f"median |error| {percent(np.median(abs(error)), 1)}"
            )


if __name__ == "__main__":
    main()
