"""Fits the step gap of the vLLM profile from real step cycles, and shows how well it predicts cycles it has not seen.

    python benchmarks/host_terms.py STEP_CYCLES.csv

STEP_CYCLES.csv holds scheduler steps of vLLM 0.15 serving Llama-2-70B at tensor parallel 4 on H100 (inference-sim/
training): cycle time and batch contents. gap(n) = measured cycle - device time of the step, over decode-only steps;
device time comes from the shipped H100 bundle. One run fits, the other checks; the last line, fitted on both, is what
the profile ships. The file has no contexts; prompts and outputs of that data set average 580 and 248 tokens, so a
running decode has seen about 700.
"""

from __future__ import annotations

import argparse
import csv
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import numpy as np
from scipy.optimize import linprog

from calibration.bundle import load_bundle
from catalogs.deployment import Deployment, resolve
from simulator.batch import BatchShape
from simulator.step_cost import StepCost

MEAN_CONTEXT, MAX_CONTEXT = 700, 830


def device_cost() -> StepCost:
    """Step cost with every host term at zero."""
    deployment = Deployment(
        model="llama-2-70b",
        engine="vllm-0.15",
        hardware="h100x4",
        tensor_parallel=4,
        max_num_seqs=128,
        max_num_batched_tokens=2048,
    )
    resolved = resolve(deployment)
    host = replace(
        resolved.engine.host, step_s=0.0, step_s_per_sequence=0.0, step_gap_s=0.0, step_gap_s_per_sequence=0.0
    )
    resolved = replace(resolved, engine=replace(resolved.engine, host=host))
    return StepCost.compile(resolved, load_bundle(resolved.hardware.accelerator))


def decode_steps(path: Path) -> dict[str, np.ndarray]:
    """(sequences, cycle seconds) of decode-only steps, by run."""
    runs: dict[str, list[tuple[float, float]]] = defaultdict(list)
    with path.open() as file:
        for row in csv.DictReader(file):
            n = int(row["num_decode_reqs"])
            if row["num_prefill_reqs"] == "0" and n:
                runs[row["exp"]].append((n, float(row["cycle_us"]) / 1e6))
    return {name: np.array(rows) for name, rows in runs.items()}


def device_s(cost: StepCost, sequences: np.ndarray) -> np.ndarray:
    shapes = [BatchShape(0, 0.0, 0, int(n), int(n) * MEAN_CONTEXT, MAX_CONTEXT, int(n)) for n in sequences]
    return np.array([cost.cycle_s(s) for s in shapes])


def least_absolute(n: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """(a, b) >= 0 that minimise sum |y - a - b n|."""
    ones, count = np.ones_like(n), len(n)
    a_ub = np.block([[ones[:, None], n[:, None], -np.eye(count)], [-ones[:, None], -n[:, None], -np.eye(count)]])
    found = linprog(np.r_[0, 0, np.ones(count)], A_ub=a_ub, b_ub=np.r_[y, -y], bounds=[(0, None)] * (count + 2))
    return float(found.x[0]), float(found.x[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cycles", type=Path)
    runs = decode_steps(parser.parse_args().cycles)
    cost = device_cost()
    everything = np.concatenate(list(runs.values()))
    for fitted, steps in [*runs.items(), ("both runs", everything)]:
        n, cycle = steps[:, 0], steps[:, 1]
        gap, per_sequence = least_absolute(n, cycle - device_s(cost, n))
        print(
            f"fitted on {fitted} ({len(n)} steps): "
            f"step_gap {gap * 1e3:.3f} ms + {per_sequence * 1e6:.2f} us per sequence"
        )
        for name, other in runs.items():
            predicted = device_s(cost, other[:, 0]) + gap + per_sequence * other[:, 0]
            error = predicted / other[:, 1] - 1
            kind = "held out" if fitted in runs and name != fitted else "in sample"
            print(f"  {kind:9} {name}: median {np.median(error):+.1%}, median |error| {np.median(abs(error)):.1%}")


if __name__ == "__main__":
    main()
