"""How much the results of simulated runs differ between seeds, with plain and with representative draws.

    python benchmarks/seed_noise.py              # three workloads, 40 sets of four runs each
    python benchmarks/seed_noise.py --sets 10

Each line is one deployment under one load. The columns are the standard deviation between sets of four runs, in per
cent of the value, and by how much the mean of all sets of representative draws is higher than that of plain ones. Four
plain runs have as many requests as four representative ones.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence

import numpy as np

from catalogs.arrays import FloatArray
from catalogs.deployments.schema import Deployment
from catalogs.workloads.synthetic import SyntheticWorkload
from catalogs.workloads.workload import Workload, load_workload
from planner.evaluation.representative_draws import BLOCK, representative_seed
from planner.evaluation.steady_state import finish_s, steady_window
from simulator.cluster.compiled import CompiledDeployment, compile_deployment
from simulator.cluster.simulate import simulate

#: Requests of a run: those of an objective at the 99th percentile.
REQUESTS = 1600

#: Deployments with their workloads and rates: two that seldom queue, one with very different prompts, and one that is
#: nearly saturated.
CASES = (
    (Deployment(model="llama3.1-405b", hardware="h100x8", tensor_parallel=8, weight_dtype="fp8"), "azure-conv", 1.5),
    (Deployment(model="llama3.1-70b", hardware="h100x4", tensor_parallel=4, weight_dtype="fp8"), "azure-conv", 5.0),
    (Deployment(model="qwen2.5-32b", hardware="h100x4", tensor_parallel=4), "azure-code", 8.0),
    (Deployment(model="llama3.1-8b", hardware="l40s", weight_dtype="fp8"), "sharegpt", 16.0),
)

STATISTICS = ("TTFT p99", "TTFT mean", "TPOT p99", "E2E p99")


def statistics_of(part: CompiledDeployment, workload: Workload, rate: float, seeds: Sequence[int]) -> list[float]:
    """Return the statistics of the steady windows of runs together, in seconds, in the order of STATISTICS."""
    ttft_s, tpot_s, e2e_s = list[FloatArray](), list[FloatArray](), list[FloatArray]()
    for seed in seeds:
        run = simulate(part, workload.materialise(seed, REQUESTS, rate))
        window = steady_window(run.arrival_s, finish_s(run)).measured & np.isfinite(run.last_token_s)
        first_s, last_s, came_s = (each[window] for each in (run.first_token_s, run.last_token_s, run.arrival_s))
        later = run.requests.output_tokens[window] - 1
        ttft_s.append(first_s - came_s)
        e2e_s.append(last_s - came_s)
        tpot_s.append((last_s - first_s)[later > 0] / later[later > 0])
    ttft, tpot, e2e = (np.concatenate(each) for each in (ttft_s, tpot_s, e2e_s))
    return [float(np.quantile(ttft, 0.99)), float(ttft.mean()), *(float(np.quantile(x, 0.99)) for x in (tpot, e2e))]


def main() -> None:
    """Print one line for each deployment and statistic."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", type=int, default=40, help="sets of four runs")
    sets = parser.parse_args().sets
    print(f"{'deployment':44} {'statistic':10} {'plain':>7} {'chosen':>7} {'higher by':>10}")
    for written, name, rate in CASES:
        part, workload = compile_deployment(written), load_workload(name)
        content = workload.content
        assert isinstance(content, SyntheticWorkload)
        plain = [[b * BLOCK + i for i in range(BLOCK)] for b in range(sets)]
        chosen = [[representative_seed(content, b, i, REQUESTS) for i in range(BLOCK)] for b in range(sets)]
        found = [np.log([statistics_of(part, workload, rate, seeds) for seeds in each]) for each in (plain, chosen)]
        label = f"{written.model} on {written.hardware}, {name} at {rate:g}/s"
        for i, statistic in enumerate(STATISTICS):
            spreads = [100 * each[:, i].std(ddof=1) for each in found]
            higher = 100 * math.expm1(found[1][:, i].mean() - found[0][:, i].mean())
            print(f"{label:44} {statistic:10} {spreads[0]:6.1f}% {spreads[1]:6.1f}% {higher:+9.1f}%")


if __name__ == "__main__":
    main()
