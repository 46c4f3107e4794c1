"""What data-parallel ranks that schedule for themselves cost, in processor time and in results.

    python benchmarks/rank_speed.py [--model deepseek-r1 --hardware h200x8 --ranks 8]

The same requests are served by one scheduler that stands for all ranks (rank_dispatch: balanced) and by one for each,
with lengths that are nearly equal and with lengths that are not.
"""

from __future__ import annotations

import argparse
import time

import numpy as np

from catalogs.deployments.schema import Deployment
from catalogs.workloads.request_set import RequestSet
from simulator.cluster.compiled import compile_deployment
from simulator.cluster.simulate import simulate

ENGINES = ("vllm", "vllm-0.15", "sglang", "trtllm")


def workload(even: bool, clients: int, n: int, mean: int) -> RequestSet:
    """Return a closed loop with uniform lengths of 80 to 100 % of the longest, or lognormal ones with a CV near 1."""
    rng = np.random.default_rng(0)
    if even:
        inputs, outputs = (rng.integers(mean * 4 // 5, mean + 1, n) for _ in range(2))
    else:
        inputs, outputs = (rng.lognormal(np.log(mean) - 0.35, 0.83, n).clip(4, 16000).astype(np.int64) for _ in "io")
    return RequestSet(np.zeros(n), inputs, outputs, concurrency=clients)


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--model", default="deepseek-r1")
    p.add_argument("--hardware", default="h200x8")
    p.add_argument("--ranks", type=int, default=8)
    p.add_argument("--clients", type=int, default=64)
    p.add_argument("--mean", type=int, default=1024, help="tokens of a prompt, and of an answer")
    p.add_argument("--repeats", type=int, default=3)
    a = p.parse_args()
    print("| engine | lengths | ranks | TTFT mean s | TPOT mean ms | requests/s | processor s | rows |")
    print("|---|---|---|---|---|---|---|---|")
    for engine in ENGINES:
        keys = {"model": a.model, "engine": engine, "hardware": a.hardware, "data_parallel": a.ranks}
        for even in (True, False):
            requests = workload(even, a.clients, 10 * a.clients, a.mean)
            for asked in ("balanced", None):
                plant = compile_deployment(Deployment(**keys, expert_parallel=True, rank_dispatch=asked))
                spent = []
                for _ in range(a.repeats):
                    start = time.process_time()
                    done = simulate(plant, requests)
                    spent.append(time.process_time() - start)
                rate = requests.n / (done.span_s[1] - done.span_s[0])
                print(
                    f"| {engine} | {'even' if even else 'uneven'} | {plant.resolved.rank_dispatch} "
                    f"| {np.nanmean(done.ttft_s):.3f} | {1e3 * np.nanmean(done.tpot_s):.2f} | {rate:.3f} "
                    f"| {min(spent):.3f} | {len(done.logs[0])} |"
                )


if __name__ == "__main__":
    main()
