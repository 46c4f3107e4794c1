"""The public steady-state points again, on the engine and the workload they were measured with.

    python benchmarks/steady_state.py SCORE.py [--points 132] [--engine NAME] [--as-scored] [--seats] [--prompts]

SCORE.py is the scorer that lies beside the measurements; its points and its reading of them are used as they are. The
scorer serves them with the newest engine and short prompts, since neither the version nor the prompts are in the table.
The benchmark's own repository (ml-energy/benchmark, configs/vllm/lm-arena-chat and mlenergy/llm) has both:

- vLLM 0.11.1 started with --async-scheduling, 8,192 batched tokens, lengths to 20,480; temperature 0.8, top_p 0.95;
- all requests sent at once, 1,024 of them (here four times the seats where that is more);
- power and energy from the moment as many requests as there are seats have their first token, until as many still wait;
- prompts that are conversations so far, each turn a request. Their mean length is not published.

Declared calibration: that mean (PROMPT_TOKENS) is read from two points whose seats are not full because key-value
memory was: how many requests ran there follows from the lengths (--seats prints it: 840 and 600, between them 700).
Both points are left out of the medians.
Nothing else was fitted on any of these points.

--prompts prints the time that prompts take from the decodes, for each request: its output tokens times what the mean
step exceeds the median one. Of a measured run it follows from the published power, energy per token and median
inter-token latency. Two more columns are printed: the same time in a simulation of the scorer's workload, and the least
time that the prompt tokens of that workload need, with matrix products at the peak of all accelerators.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import statistics
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from error_budget import load

from catalogs.deployments.schema import Deployment
from catalogs.workloads.workload import load_workload
from simulator.analysis.metrics import summarise
from simulator.cluster.compiled import CompiledDeployment, compile_deployment
from simulator.cluster.run import Run
from simulator.cluster.simulate import simulate
from simulator.core.step_log import StepLog
from simulator.costs.totals import StepTotals

#: Lengths of prompts. The mean is read from the two points of SEATS.
PROMPT_TOKENS: Final = {"lognormal": {"mean": 700, "cv": 2.0}}

#: Requests of a run, as in the benchmark's repository; four times the seats where that is more.
LEAST_REQUESTS: Final = 1024
#: Point -> mean requests in a batch, as measured: what PROMPT_TOKENS was read from.
SEATS: Final = {
    "H100x1 Llama-3.1-8B-Instruct bfloat16 seqs768": 690.9,
    "H100x4 Llama-3.1-70B-Instruct bfloat16 seqs1024": 898.5,
}
FIGURES: Final = ("itl_p50", "power", "j_per_token")

#: Ranges of batch sizes in the printed tables.
BATCHES: Final = ((0, 32), (32, 128), (128, 512), (512, 10_000))


@dataclass(frozen=True, slots=True)
class Point:
    """One measurement, and the scorer's way of simulating it."""

    name: str
    deployment: dict[str, Any]
    workload: dict[str, Any]
    measured: tuple[float, float, float]  # median inter-token latency in s, W of an accelerator, J a token

    @property
    def seats(self) -> int:
        return int(self.name.rsplit("seqs", 1)[1])

    @property
    def kind(self) -> str:
        """Return model and hardware as a text."""
        return " ".join(self.name.split()[:2])


def points_of(score: Path, n: int) -> list[Point]:
    """Return the scorer's first n points of its own seeded order, as it gives them to `simulate`."""
    module = load(score)
    found: list[Point] = []

    def collect(
        _args: object, name: str, deployment: Any, workload: Any, want: list[tuple[str, str, float]]
    ) -> list[float]:
        first, second, third = (value for _, _, value in want)
        found.append(Point(name, deployment, workload, (first, second, third)))
        return [0.0] * len(want)

    module.__dict__.update(point=collect, summarise=lambda *_: None)
    arguments = argparse.Namespace(
        data=module.HERE.parent / "validation", only="", steady_state=n, seed=0, limit=[], timeout=300
    )
    with contextlib.redirect_stdout(io.StringIO()):
        module.steady_state(arguments)
    return found


def serve(deployment: dict[str, Any], workload: dict[str, Any]) -> tuple[CompiledDeployment, Run]:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "workload.yaml"
        file.write_text(json.dumps(workload))
        requests = load_workload(str(file)).materialise()
    plant = compile_deployment(Deployment(**deployment))
    return plant, simulate(plant, requests)


def as_scored(point: Point, engine: str) -> list[float]:
    """Return errors in percent over the whole run that the scorer simulates; on an engine that sorts, with top_p."""
    asked = point.deployment | {"engine": engine} | ({} if engine == "vllm" else {"sampling": "top_p"})
    metrics = summarise(serve(asked, point.workload)[1])["metrics"]
    got = (metrics["itl_s"]["p50"], metrics["power"]["gpu_w_mean"], metrics["energy"]["gpu_j_per_output_token"])
    return _errors(got, point)


def as_measured(point: Point, engine: str) -> list[float]:
    """Return errors in percent over the benchmark's own window, with its requests."""
    plant, done = served(point, engine, PROMPT_TOKENS)
    window = steady(done, point.seats)
    totals = plant.cost.totals(window)
    tokens = float((window.logits * window.steps).sum())
    joules = totals.joules_per_accelerator
    itl = summarise(done)["metrics"]["itl_s"]["p50"]
    each = plant.resolved.accelerators_per_replica
    return _errors((itl, joules / _seconds(totals), joules * each / tokens), point)


def served(point: Point, engine: str, prompts: dict[str, Any]) -> tuple[CompiledDeployment, Run]:
    asked = {"engine": engine, "sampling": "top_p", "max_num_batched_tokens": 8192, "max_model_len": 20480}
    workload = point.workload | {
        "arrivals": "all_at_once",
        "requests": max(LEAST_REQUESTS, 4 * point.seats),
        "input_tokens": prompts,
    }
    return serve(point.deployment | asked, workload)


def steady(done: Run, seats: int) -> StepLog:
    """Steps between the first tokens of the request that fills the seats and of the one that leaves as many waiting."""
    first = np.sort(done.first_token_s[~np.isnan(done.first_token_s)])
    return StepLog.merged(done.logs).between(first[seats - 1], first[len(first) - seats - 1])


def _seconds(totals: StepTotals) -> float:
    return totals.busy_s


def _errors(got: tuple[float, float, float], point: Point) -> list[float]:
    return [100.0 * (g / want - 1.0) for g, want in zip(got, point.measured, strict=True)]


def print_seats(points: list[Point], engine: str) -> None:
    """Print how many requests run at once, by mean prompt length, where memory limits them."""
    for point in points:
        if point.name not in SEATS:
            continue
        for mean in (120, 400, 600, 700, 800):
            _, done = served(point, engine, {"lognormal": {"mean": mean, "cv": 2.0}})
            window = steady(done, point.seats)
            running = float((window.decodes * window.total_s).sum() / window.total_s.sum())
            print(f"{point.name:52}{SEATS[point.name]:8.1f} measured{running:8.1f} with prompts of {mean}")


def print_prompts(points: list[Point]) -> None:
    """Print milliseconds of prompts for each request, by model on hardware: medians over 32 to 512 seats."""
    found: dict[str, list[tuple[float, float, float, float]]] = {}
    for point in points:
        if 32 <= point.seats <= 512:
            found.setdefault(point.kind, []).append(_prompt_times(point))
    print(f"\n{'prompts, ms a request':60}{'n':>4}{'measured':>10}{'scored':>10}{'at the peak':>13}{'tokens':>9}")
    for kind, rows in sorted(found.items()):
        measured, scored, least, tokens = (statistics.median(values) for values in zip(*rows, strict=True))
        figures = f"{1e3 * measured:>10.1f}{1e3 * scored:>10.1f}{1e3 * least:>13.1f}{tokens:>9.0f}"
        print(f"{kind:60}{len(rows):>4}{figures}")


def _prompt_times(point: Point) -> tuple[float, float, float, float]:
    """Return the prompt seconds of a request as measured, as simulated and at the peak, and its prompt tokens."""
    plant, done = serve(point.deployment, point.workload)
    window, resolved = steady(done, point.seats), plant.resolved
    output, each = float(done.requests.output_tokens.mean()), resolved.accelerators_per_replica
    itl_s, watts, joules = point.measured
    tokens = float((window.logits * window.steps).sum())
    seats = float((window.decodes * window.total_s).sum() / window.total_s.sum())
    median_s = summarise(done)["metrics"]["itl_s"]["p50"]
    computed = float((window.prefill_tokens * window.steps).sum()) * output / tokens
    unit, model = resolved.hardware.accelerator, resolved.model
    flops = 2.0 * (model.n_active_params - 2.0 * model.vocab_size * model.hidden_size) * computed  # without the head
    return (
        output * (joules / (watts * each) - itl_s / point.seats),
        output * (float(window.total_s.sum()) / tokens - median_s / seats),
        flops / (each * unit.flops_for(resolved.weight_dtype)),
        computed,
    )


def print_table(title: str, points: list[Point], errors: list[list[float]]) -> None:
    print(f"\n{title}\n{'point':74}" + "".join(f"{f:>13}" for f in FIGURES))
    for point, row in zip(points, errors, strict=True):
        mark = "  (left out)" if point.name in SEATS else ""
        print(f"{point.name[:73]:74}" + "".join(f"{e:>+13.1f}" for e in row) + mark)
    kept = [(p, row) for p, row in zip(points, errors, strict=True) if p.name not in SEATS]
    groups = {kind: [row for p, row in kept if p.kind == kind] for kind in sorted({p.kind for p, _ in kept})}
    for low, high in BATCHES:
        groups[f"{low} < seats <= {high}"] = [row for p, row in kept if low < p.seats <= high]
    groups["latency within 10 %"] = [row for _, row in kept if abs(row[0]) < 10.0]
    groups["all"] = [row for _, row in kept]
    print(f"\n{'median of absolute errors, %':60}{'n':>4}" + "".join(f"{f:>13}" for f in FIGURES))
    for name, rows in groups.items():
        if rows:
            middle = [statistics.median(abs(row[i]) for row in rows) for i in range(len(FIGURES))]
            print(f"{name[:59]:60}{len(rows):>4}" + "".join(f"{m:>13.1f}" for m in middle))


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("score", type=Path)
    p.add_argument("--points", type=int, default=132)
    p.add_argument("--engine", default="vllm-0.11-async")
    p.add_argument("--as-scored", action="store_true", help="the scorer's workload and window too, by engine")
    p.add_argument("--seats", action="store_true", help="only what the prompts' length was read from")
    p.add_argument("--prompts", action="store_true", help="only the time that prompts take")
    a = p.parse_args()
    points = points_of(a.score, a.points)
    if a.seats:
        print_seats(points, a.engine)
        return
    if a.prompts:
        print_prompts(points)
        return
    if a.as_scored:
        for engine in ("vllm", "vllm-0.11", "vllm-0.11-async"):
            print_table(f"as scored, {engine}", points, [as_scored(point, engine) for point in points])
    print_table(f"as measured, {a.engine}", points, [as_measured(point, a.engine) for point in points])


if __name__ == "__main__":
    main()
