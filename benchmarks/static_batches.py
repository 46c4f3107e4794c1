"""The public static batches of vLLM and TensorRT-LLM on A100 and H100, as scored and on the engines that ran.

    python benchmarks/static_batches.py SCORE.py

SCORE.py is the scorer that lies beside the measurements; its points are used as they are. It names `trtllm` for
TensorRT-LLM, because neither its table nor its deployment has a version or a date. The runs are of the middle of 2024:
the requirements of LLM-Inference-Bench pin TensorRT-LLM 0.11.0, which is the engine `trtllm-tensorrt`. vLLM is
`vllm-v0` in both columns. The errors are medians of |simulated / measured - 1|.
"""

from __future__ import annotations

import argparse
import json
import statistics
from functools import cache
from pathlib import Path
from typing import Any, Final

from error_budget import load
from measured_points import points, written

from catalogs.deployments.schema import Deployment
from catalogs.workloads.workload import load_workload
from simulator.analysis.metrics import summarise
from simulator.cluster.compiled import CompiledDeployment, compile_deployment
from simulator.cluster.simulate import simulate

ENGINES: Final = ("vLLM", "TensorRT-LLM")
GPUS: Final = ("a100-40gb", "h100")
#: Engine of the scorer -> engine of the version that ran.
RAN: Final = {"trtllm": "trtllm-tensorrt"}


@cache
def plant(deployment: str) -> CompiledDeployment:
    """Return the compiled deployment of a JSON text; points share it."""
    return compile_deployment(Deployment(**json.loads(deployment)))


def error(deployment: dict[str, Any], workload: dict[str, Any], latency_s: float) -> float:
    """Return |simulated / measured - 1| of the seconds until the last token of a batch, in percent."""
    with written(deployment, workload) as (_, file):
        requests = load_workload(str(file)).materialise()
    metrics = summarise(simulate(plant(json.dumps(deployment, sort_keys=True)), requests))["metrics"]
    return abs(100.0 * (float(metrics["duration_s"]) / latency_s - 1.0))


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("score", type=Path)
    score = load(p.parse_args().score)
    groups: dict[str, list[tuple[float, float]]] = {}
    for row, (_, deployment, workload, want) in points(score, score.HERE.parent / "validation", "static batch"):
        if row["engine"] not in ENGINES or row["gpu"] not in GPUS:
            continue
        engine, latency_s = deployment["engine"], want[0][2]
        scored = error(deployment, workload, latency_s)
        ran = error(deployment | {"engine": RAN[engine]}, workload, latency_s) if engine in RAN else scored
        for name in (f"{row['gpu']} {row['engine']}", row["engine"], "all"):
            groups.setdefault(name, []).append((scored, ran))
    print(f"{'median error of the latency, %':36}{'n':>6}{'as scored':>12}{'as it ran':>12}")
    for name, errors in sorted(groups.items()):
        scored, ran = (statistics.median(values) for values in zip(*errors, strict=True))
        print(f"{name:36}{len(errors):>6}{scored:>12.1f}{ran:>12.1f}")


if __name__ == "__main__":
    main()
