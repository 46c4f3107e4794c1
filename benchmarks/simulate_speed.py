"""Simulated requests per second of one core, and memory per request.

    python benchmarks/simulate_speed.py            # trivial step timer and the compiled cost model
    python benchmarks/simulate_speed.py --profile  # where the time goes

Open loop: Poisson arrivals with lengths like the Azure conversation trace (mean 1155 in, 211 out), an engine at
moderate load. Closed loop: 10,000 requests of 1024 in and 1024 out at concurrency 256. Best of a few repeats.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import time
import tracemalloc

import numpy as np

from catalogs.deployments.schema import Deployment
from catalogs.engines.files import load_engine
from catalogs.ui.installation import is_compiled
from catalogs.workloads.request_set import RequestSet
from simulator.cluster.compiled import compile_deployment
from simulator.cluster.simulate import engine_rules, run_rules
from simulator.core.batch import BatchShape
from simulator.core.step_timer import StepTimer
from simulator.schedulers.rules import EngineRules

RULES = EngineRules(256, 8192, 131072, kv_blocks=30000, host=load_engine("vllm").host)


class TrivialTimer:
    """Linear in the counts: what the simulator itself costs."""

    def cycle_s(self, shape: BatchShape) -> float:
        return 0.008 + 2e-5 * shape.decodes + 1e-5 * shape.prefill_tokens + 2e-9 * shape.decode_context_sum

    def decode_segment(self, decodes: int, context_sum: int, context_max: int) -> tuple[float, float, int]:  # noqa: ARG002
        return 0.008 + 2e-5 * decodes + 2e-9 * context_sum, 2e-9 * decodes, 1 << 40


def conversations(n: int, requests_per_s: float) -> RequestSet:
    rng = np.random.default_rng(0)
    arrivals = np.cumsum(rng.exponential(1.0 / requests_per_s, n))
    inputs = rng.lognormal(np.log(1155) - 0.5, 1.0, n).clip(1, 16000).astype(np.int64)
    outputs = rng.lognormal(np.log(211) - 0.32, 0.8, n).clip(1, 2000).astype(np.int64)
    return RequestSet(arrivals, inputs, outputs)


def closed_loop(spread: bool) -> RequestSet:
    n = 10_000
    rng = np.random.default_rng(0)
    inputs, outputs = (rng.integers(820, 1025, n) if spread else np.full(n, 1024) for _ in range(2))
    return RequestSet(np.zeros(n), inputs, outputs, concurrency=256)


def measure(name: str, rules: EngineRules, timer: StepTimer, requests: RequestSet, repeats: int = 3) -> None:
    seconds = []
    for _ in range(repeats):
        started = time.perf_counter()
        run = run_rules(rules, timer, requests)
        seconds.append(time.perf_counter() - started)
    rows = len(run.logs[0]) / requests.n
    best = min(seconds)
    print(f"{name:44} {requests.n / best:9,.0f} requests/s {best:7.3f} s {rows:6.2f} log rows per request")


def measure_memory(requests: RequestSet) -> None:
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    run = run_rules(RULES, TrivialTimer(), requests)
    kept, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    n = run.requests.n
    print(f"memory per request: {(kept - before) / n:.0f} bytes kept, {(peak - before) / n:.0f} at the peak")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--profile", action="store_true")
    asked = parser.parse_args()
    print("compiled modules" if is_compiled() else "plain Python")
    plant = compile_deployment(Deployment(model="llama3.1-8b", hardware="h100"))
    worlds: list[tuple[str, EngineRules, StepTimer]] = [
        ("trivial timer", RULES, TrivialTimer()),
        ("llama3.1-8b on h100", engine_rules(plant), plant.cost),
    ]
    if asked.profile:
        for name, rules, timer in worlds:
            print(name)
            with cProfile.Profile() as profile:
                run_rules(rules, timer, conversations(asked.requests, 8.0))
            pstats.Stats(profile).sort_stats("tottime").print_stats(18)
        return
    for name, rules, timer in worlds:
        for rate in (2.0, 8.0, 16.0):
            measure(f"{name}, conversations at {rate:.0f}/s", rules, timer, conversations(asked.requests, rate))
        measure(f"{name}, closed loop 1024/1024", rules, timer, closed_loop(spread=False))
        measure(f"{name}, closed loop 80..100 %", rules, timer, closed_loop(spread=True))
    measure_memory(conversations(asked.requests, 8.0))


if __name__ == "__main__":
    main()
