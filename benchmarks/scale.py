"""How far a run goes: a thousand replicas and a million requests, and a day of load with autoscaling.

    python benchmarks/scale.py                 # 10,000, 100,000 and 1,000,000 requests over 1,000 replicas
    python benchmarks/scale.py --day           # 24 hours that rise and fall, replicas that come and go
    python benchmarks/scale.py --requests 10000 100000 --replicas 100 --processes 1

Each size runs in a process of its own, so that its peak of memory is its own: the parent's and its largest child's, as
the operating system counts them (pages that were shared since a fork count in both). Llama-3.1-8B on an H100 each,
lengths like the Azure conversation trace (mean 1155 in, 211 out), 8 requests a second for each replica, round robin.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import time

import numpy as np

from catalogs.deployments.schema import Deployment
from catalogs.workloads.arrivals import parse_arrivals
from catalogs.workloads.request_set import RequestSet
from simulator.analysis.metrics import fleet_metrics, latency_metrics, summarise
from simulator.cluster.cluster import RunOptions
from simulator.cluster.compiled import CompiledFleet, compile_fleet
from simulator.cluster.serving_options import serving_options
from simulator.cluster.simulate import simulate

#: Requests per second for each replica.
RATE_PER_REPLICA = 8.0

#: Bytes of a gibibyte.
GIB = 2.0**30


def conversations(arrival_s: np.ndarray) -> RequestSet:
    rng = np.random.default_rng(0)
    n = len(arrival_s)
    inputs = rng.lognormal(np.log(1155) - 0.5, 1.0, n).clip(1, 16000).astype(np.int64)
    outputs = rng.lognormal(np.log(211) - 0.32, 0.8, n).clip(1, 2000).astype(np.int64)
    return RequestSet(arrival_s, inputs, outputs)


def cpu_s() -> float:
    """Return the processor seconds of this process and its children, which other work hardly changes."""
    both = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(used.ru_utime + used.ru_stime for used in both)


def peak_bytes() -> float:
    """Return the peak memory of this process and of the largest of its children, bytes."""
    both = (resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return 1024.0 * sum(both)


def many(n: int, replicas: int, processes: int) -> None:
    fleet = compile_fleet(Deployment(model="llama3.1-8b", hardware=f"{-(-replicas // 8)}*h100x8", replicas=replicas))
    gaps = np.random.default_rng(1).exponential(1.0 / (RATE_PER_REPLICA * replicas), n)
    work = conversations(np.cumsum(gaps))
    began, before_s = time.perf_counter(), cpu_s()
    done = simulate(fleet, work, RunOptions(processes=processes))
    ran = time.perf_counter()
    shown = summarise(done)["metrics"]
    ended = time.perf_counter()
    print(
        f"{n:9,} requests, {replicas} replicas, {processes} processes: {ran - began:6.1f} s simulated, "
        f"{ended - ran:5.1f} s summarised, {1e6 * (cpu_s() - before_s) / n:6.1f} us of CPU a request, "
        f"{peak_bytes() / GIB:.2f} GiB, p99 TTFT {1e3 * shown['ttft_s']['p99']:.0f} ms",
        flush=True,
    )


def day(requests_per_s: float) -> None:
    scaling = {"metric": "outstanding", "target": 8, "max_replicas": 16, "cold_start": {"image_gb": 0}}
    written = Deployment(
        model="llama3.1-8b", hardware="2*h100x8", replicas=1, router="least_outstanding", autoscaling=scaling
    )
    fleet: CompiledFleet = compile_fleet(written)
    curve = parse_arrivals({"diurnal": {"requests_per_s": requests_per_s, "swing": 0.8}})
    n = round(86400 * requests_per_s)
    work = conversations(curve.starts_s(np.random.default_rng(1), n, requests_per_s))
    began, before_s = time.perf_counter(), cpu_s()
    done = simulate(fleet, work, serving_options(written, fleet))
    seconds, used_s = time.perf_counter() - began, cpu_s() - before_s
    shown, counts = latency_metrics(done), fleet_metrics(done)
    print(
        f"{n:9,} requests in {shown['duration_s'] / 3600:.1f} h, {counts['replicas']['min']} to "
        f"{counts['replicas']['max']} replicas ({counts['replicas']['mean']:.2f} on average, {len(done.orders)} "
        f"ordered): {seconds:.1f} s ({used_s:.1f} s of CPU), p99 TTFT {1e3 * shown['ttft_s']['p99']:.0f} ms"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--replicas", type=int, default=1000)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--day", action="store_true")
    parser.add_argument("--rate", type=float, default=4.0, help="requests per second of the day, on average")
    asked = parser.parse_args()
    if asked.day:
        day(asked.rate)
        return
    if len(asked.requests) == 1:
        many(asked.requests[0], asked.replicas, asked.processes)
        return
    for n in asked.requests:
        further = ["--replicas", str(asked.replicas), "--processes", str(asked.processes)]
        subprocess.run([sys.executable, __file__, "--requests", str(n), *further], check=True)


if __name__ == "__main__":
    main()
