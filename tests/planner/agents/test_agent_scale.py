"""60,000 requests of about 100,000 tokens take at most 120 s and 3 GB."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

SCRIPT = """
import json, resource, time
from catalogs.deployments.schema import Deployment
from catalogs.workloads.workload import load_workload
from planner.agents.load import requests_of
from simulator.analysis.prefix_hits import PrefixHits
from simulator.cluster.compiled import compile_deployment
from simulator.cluster.simulate import simulate

keys = {"model": "qwen3-coder-30b-a3b", "hardware": "h200x8", "replicas": 8, "router": "session_affinity"}
served = compile_deployment(Deployment.model_validate(keys))
begun = time.perf_counter()
work = requests_of(load_workload("agentic-coding"), 200, 60_000, 0)
drawn = time.perf_counter()
from simulator.cluster.cluster import RunOptions
run = simulate(served, work, RunOptions(router="session_affinity"))
done = time.perf_counter()
hits = PrefixHits.of(run)
print(json.dumps({
    "mean_tokens": float(work.input_tokens.mean()),
    "n": int(run.completed.sum()),
    "hit_rate": hits.rate,
    "theoretical": hits.theoretical_rate,
    "draw_s": drawn - begun,
    "run_s": done - drawn,
    "count_s": time.perf_counter() - done,
    "max_rss_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9,
}))
"""


@pytest.mark.slow
def test_many_requests_with_long_prompts_take_little_time_and_memory() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    print(found)
    assert found["n"] == 60_000
    assert found["mean_tokens"] > 90_000
    assert found["draw_s"] + found["run_s"] + found["count_s"] < 120
    assert found["max_rss_gb"] < 3
