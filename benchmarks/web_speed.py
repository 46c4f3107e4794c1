"""How long the API takes to analyse a step, to draw its graph and to guess a plan, one question after another.

    python benchmarks/web_speed.py [--questions N]

Every question is new: another model, hardware, batch or rate, as when one moves the controls of a page. It measures the
documents without the network, and prints the median and the 95th percentile in milliseconds with the limit of each; the
CPU time beside them is what remains on an idle core when other programs share the machine.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from planner.problem.scenario import request_of_keys
from planner.studies.step_analysis import StepQuery
from planner.web.documents.analysis import analyze_document
from planner.web.documents.graph import graph_document
from planner.web.documents.guess import guess_document

MODELS = ("llama3.1-8b", "llama3.1-70b", "llama3.1-405b", "deepseek-v3", "gpt-oss-120b", "gemma-3-27b", "qwen3-32b")
HARDWARE = ("h100x8", "h200x8", "b200x8", "a100-80gbx8")
#: Limits on the 95th percentile, seconds.
LIMITS_S = {"analyze": 0.5, "graph": 0.5, "guess": 0.3}


def step(draw: random.Random) -> StepQuery:
    """Return a step that a page might ask for."""
    stage, batch = draw.choice(("decode", "prefill")), draw.choice((1, 4, 16, 64, 128))
    return StepQuery(draw.choice(MODELS), draw.choice(HARDWARE), batch, draw.choice((128, 1024, 2048, 8000)), stage)


def question(draw: random.Random) -> dict[str, Any]:
    """Return a question that a form might hold; one in five compares several kinds of hardware."""
    hardware = draw.choice(HARDWARE) if draw.random() < 0.8 else ",".join(draw.sample(HARDWARE, 2))
    slo = [f"ttft.p99={draw.choice((1, 2, 5))}s", f"tpot.p99={draw.choice((30, 50, 100))}ms"]
    return {"model": draw.choice(MODELS), "hardware": hardware, "slo": slo, "rate": round(draw.uniform(0.5, 60), 2)}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--questions", type=int, default=60, help="questions of each kind")
    n, draw = parser.parse_args().questions, random.Random(1)
    kinds: dict[str, Callable[[], object]] = {
        "analyze": lambda: analyze_document(step(draw)),
        "graph": lambda: graph_document(step(draw)),
        "guess": lambda: guess_document(request_of_keys(question(draw))),
    }
    for name, ask in kinds.items():
        ask()  # imports
        times, worked = [], []
        for _ in range(n):
            started, before = time.perf_counter(), time.process_time()
            ask()
            times.append(time.perf_counter() - started)
            worked.append(time.process_time() - before)
        middle, late = np.quantile(times, [0.5, 0.95])
        within = "within" if late <= LIMITS_S[name] else "ABOVE"
        cpu = f"CPU {1e3 * np.quantile(worked, 0.95):.0f} ms"
        figures = f"{name:<8} median {1e3 * middle:4.0f} ms, p95 {1e3 * late:4.0f} ms ({cpu})"
        print(f"{figures}: {within} {1e3 * LIMITS_S[name]:.0f} ms")


if __name__ == "__main__":
    main()
