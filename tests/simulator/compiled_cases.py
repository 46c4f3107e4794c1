"""Write the outputs of many runs to a folder: the script that is run with and without compiled modules.

python tests/simulator/compiled_cases.py OUT
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import yaml

from catalogs.ui.entry_point import run_command
from catalogs.ui.installation import is_compiled
from planner.main import app as plan
from simulator.cli.main import app as simulate

LLAMA: dict[str, object] = {"model": "llama3.1-8b", "hardware": "h100"}
#: Deployments by name, and the options of their run.
CASES: dict[str, tuple[dict[str, object], list[str]]] = {
    **{
        engine: ({**LLAMA, "engine": engine}, ["--rate", "12"])
        for engine in ("vllm", "vllm-v0", "sglang", "trtllm", "trtllm-max-utilization", "transformers", "llama.cpp")
    },
    "closed": (LLAMA, ["--concurrency", "64"]),
    "preempting": ({**LLAMA, "kv_blocks": 1200}, ["--rate", "20"]),
    "sglang-small": ({**LLAMA, "engine": "sglang", "kv_blocks": 20000}, ["--rate", "20"]),
    "sessions": ({**LLAMA, "prefix_caching": True}, ["--workload", "lmsys-turns", "--rate", "20"]),
    "offload": (
        {**LLAMA, "kv_blocks": 3000, "kv_offload": {"host_gib": 8.0}},
        ["--workload", "lmsys-turns", "--rate", "20"],
    ),
    "pipeline": ({**LLAMA, "hardware": "h100x2", "pipeline_parallel": 2}, ["--rate", "12"]),
    **{
        f"{engine}-pipeline": (
            {**LLAMA, "engine": engine, "hardware": "h100x2", "pipeline_parallel": 2, "kv_blocks": 20000},
            ["--rate", "20"],
        )
        for engine in ("sglang", "trtllm")
    },
    "ranks-by-cache": (
        {
            **{"model": "deepseek-v3", "hardware": "2*h200x8", "data_parallel": 8, "expert_parallel": True},
            **{"engine": "sglang", "replicas": 2, "router": "kv_aware"},
        },
        ["--rate", "6"],
    ),
    "replicas": (
        {**LLAMA, "hardware": "h100x2", "replicas": 2, "router": "least_outstanding"},
        ["--rate", "25"],
    ),
    "ranks": (
        {"model": "deepseek-v3", "hardware": "h200x8", "data_parallel": 8, "expert_parallel": True},
        ["--rate", "6"],
    ),
    "drafts": (
        {**LLAMA, "speculative": {"method": "ngram", "num_speculative_tokens": 3, "acceptance": 0.6}},
        ["--rate", "6"],
    ),
}
#: A plan from few candidates.
PLAN = ["--model", "llama3.1-8b", "--slo", "ttft.p99=500ms,tpot.p99=30ms", "--hw", "h100", "--set", "search.trials=6"]


def main(folder: Path) -> None:
    (folder / "compiled").write_text(str(is_compiled()))
    for name, (deployment, options) in CASES.items():
        written = folder / f"{name}.yaml"
        written.write_text(yaml.safe_dump(deployment))
        outputs = ["--json", str(folder / f"{name}.json"), "--requests-out", str(folder / f"{name}.csv")]
        args = [str(written), "--requests", "1500", "--seed", "3", *options, *outputs]
        if run_command("simulate", simulate, args):
            raise SystemExit(f"{name} failed")
    file = folder / "plan.json"
    if run_command("plan", plan, [*PLAN, "--json", str(file)]):
        raise SystemExit("the plan failed")
    answer = json.loads(file.read_text())
    del answer["search"]["seconds"]  # which the answer took
    file.write_text(json.dumps(answer))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
