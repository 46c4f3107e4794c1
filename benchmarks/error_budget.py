"""What each modelled mechanism is worth: the score tables with one term of the engine profiles changed at a time.

    python benchmarks/error_budget.py SCORE.py [--closed-loop 100] [--steady-state 50] [--page docs/accuracy.md]

SCORE.py is the scorer that lies beside the public measurements. Its cases and statistics are used as they are; only the
call of the command `simulate` is replaced by the same run in this process, with changed profiles. With --page the table
is written between the budget marks of that page.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import importlib.util
import io
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

from page_section import write_section

import catalogs.deployments.resolve
from catalogs.deployments.schema import load_deployment
from catalogs.engines.files import load_engine
from catalogs.engines.profile import EngineProfile
from catalogs.workloads.workload import load_workload
from simulator.analysis.metrics import summarise
from simulator.analysis.time_series import write_time_series
from simulator.cli.outputs import write_csv
from simulator.cluster.cluster import RunOptions
from simulator.cluster.compiled import compile_deployment
from simulator.cluster.simulate import simulate
from simulator.engine.event_log import EventLog

SECTION = "budget"
Change = Callable[[EngineProfile], EngineProfile]


def host(**terms: Any) -> Change:
    return lambda engine: replace(engine, host=replace(engine.host, **terms))


def synchronous(engine: EngineProfile) -> EngineProfile:
    return replace(engine, async_scheduling=False)


VARIANTS: dict[str, Change] = {
    "as shipped": lambda engine: engine,
    "no launch time outside graphs": host(kernel_launch_s=0.0),
    "no wait before collectives": host(collective_skew_s=0.0),
    "no client path": host(
        request_s=0.0, request_s_per_input_token=0.0, output_s=0.0, api_request_s=0.0, api_step_s=0.0, api_token_s=0.0
    ),
    "nothing queues in the API process": host(api_request_s=0.0, api_step_s=0.0, api_token_s=0.0),
    "prompts of random tokens (1.6 us more each)": host(request_s_per_input_token=4.9e-6),
    "steps not scheduled ahead": synchronous,
}


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("score", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def in_process(
    deployment: Path, workload: Path, out: Path, _timeout: float, *series: str
) -> tuple[Any, list[dict[str, str]], float]:
    """Return what the scorer's `simulate` returns: (summary, one row per request, wall seconds).

    `series` holds the arguments --time-series FILE --time-step SECONDS, or none.
    """
    started = time.perf_counter()
    options = RunOptions(event_log=EventLog() if series else None)
    requests = load_workload(str(workload)).materialise()
    done = simulate(compile_deployment(load_deployment(deployment)), requests, options)
    if series:
        write_time_series(done, Path(series[1]), float(series[3]))
    write_csv(done, out / "requests.csv")
    with (out / "requests.csv").open() as file:
        rows = list(csv.DictReader(file))
    return summarise(done), rows, time.perf_counter() - started


def medians(score: ModuleType, arguments: argparse.Namespace) -> Iterator[float]:
    """Return the median absolute errors of the three tables, in the order of COLUMNS."""
    found: dict[str, float] = {}

    def collect(table: list[list[float | None]], names: list[str], _limits: object) -> None:
        for i, name in enumerate(names):
            errors = [abs(row[i]) for row in table if row[i] is not None]  # type: ignore[arg-type]
            found[name] = statistics.median(errors)

    score.__dict__.update(simulate=in_process, summarise=collect)
    for part, names in PARTS.items():
        only = argparse.Namespace(
            data=score.HERE.parent / "validation",
            only="vllm" if part == "closed loop, vLLM" else "",
            closed_loop=arguments.closed_loop,
            steady_state=arguments.steady_state,
            seed=0,
            timeout=300,
            limit=[],
        )
        with contextlib.redirect_stdout(io.StringIO()):
            {"open": score.open_loop, "clos": score.closed_loop, "stea": score.steady_state}[part[:4]](only)
        yield from (found[name] for name in names)


PARTS = {
    "open loop": ("ttft_mean", "tpot_mean", "e2e_mean"),
    "closed loop, vLLM": ("ttft_mean", "tpot_mean"),
    "closed loop, all": ("ttft_mean", "tpot_mean"),
    "steady state": ("itl_p50", "power", "j_per_token"),
}


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("score", type=Path)
    p.add_argument("--closed-loop", type=int, default=100)
    p.add_argument("--steady-state", type=int, default=50)
    p.add_argument("--page", type=Path)
    a = p.parse_args()
    score = load(a.score)
    columns = [f"{part}: {name}" for part, names in PARTS.items() for name in names]
    lines = ["| " + " | ".join(["median error, %", *columns]) + " |", "|---" * (len(columns) + 1) + "|"]
    for name, change in VARIANTS.items():
        catalogs.deployments.resolve.__dict__["load_engine"] = lambda engine, change=change: change(load_engine(engine))
        lines.append("| " + " | ".join([name, *(f"{m:.1f}" for m in medians(score, a))]) + " |")
        print(lines[-1], file=sys.stderr, flush=True)
    table = "\n".join(lines)
    print(table)
    if a.page:
        write_section(a.page, SECTION, table)


if __name__ == "__main__":
    main()
