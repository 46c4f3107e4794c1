"""Public points of prefill and decode pools: where their time to first token goes, in the run and in the simulation.

    python benchmarks/disaggregated_points.py SCORE.py [PART_OF_A_NAME] [--recipes FOLDER]

SCORE.py is the scorer that lies beside the measurements; it says what deployment and workload a point stands for. One
line a point: mean time to first token measured and simulated, the simulated parts (client and tokeniser, wait, prompt,
hand-over), requests a second that the measured means imply, and the mean number of requests per prefill server that
wait for their first token (Little's law), both measured and simulated. Medians follow: of all points, of halves by
hash, and of points whose layout is that of their recipe.

The recipes of these runs (NVIDIA/srt-slurm, recipes/trtllm, the same from January to July 2026) name the layout. The
table of points took it from a list that was corrected in March, so several runs of one recipe stand under two layouts
(`has_recipe_layout`).

With `--recipes`, only the points are simulated whose recipe is in FOLDER (a checkout of these recipes), with the seats,
the tokens of a step and the KV cache that it states (pool_recipes.py). `--without-limits` takes the same points without
them.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import io
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from types import ModuleType
from typing import Any
from unittest.mock import patch

import numpy as np
from error_budget import load
from launch_facts import Row
from measured_points import SEED, written
from pool_recipes import Recipe, limits_of, recipes

from catalogs.deployments.schema import load_deployment
from catalogs.engines.files import list_engines
from catalogs.hardware.catalog import list_hardware
from catalogs.workloads.workload import load_workload
from simulator.cluster.compiled import compile_fleet
from simulator.cluster.run import Run
from simulator.cluster.simulate import simulate


@dataclass(frozen=True, slots=True)
class Point:
    """A measured point and its run."""

    row: Row
    name: str
    deployment: dict[str, Any]
    clients: int
    measured_ttft_s: float
    measured_tpot_s: float
    run: Run

    @property
    def ttft_s(self) -> float:
        return float(np.nanmean(self.run.ttft_s))

    @property
    def tpot_s(self) -> float:
        return float(np.nanmean(self.run.tpot_s))

    @property
    def parts_s(self) -> list[float]:
        """Return the mean parts of the time to first token: client and tokeniser, wait, prompt, hand-over."""
        run = self.run
        instants = [run.arrival_s, run.routed_s, run.started_s, run.prefilled_s, run.first_token_s]
        return [float(np.nanmean(b - a)) for a, b in pairwise(instants)]

    def requests_per_s(self, ttft_s: float, tpot_s: float) -> float:
        """Return the rate at which a number of clients send requests with these mean latencies."""
        return self.clients / (ttft_s + (float(self.run.requests.output_tokens.mean()) - 1.0) * tpot_s)

    @property
    def half(self) -> int:
        return int(hashlib.sha256(self.row["id"].encode()).hexdigest(), 16) % 2


def has_recipe_layout(row: Row) -> bool:
    """Whether the prefill servers have the layout of the run's recipe, where that is known to differ.

    TensorRT-LLM with DeepSeek in fp8: on H200 tensor ranks for prompts of 8,192 tokens and attention ranks for 1,024;
    on B200 attention ranks without expert parallelism for 8,192, but tensor ranks for the one client.
    """
    if row["engine"] != "trtllm" or row["precision"] != "fp8" or row["system"] not in ("h200_sxm", "b200_sxm"):
        return True
    ranks, long = int(float(row["prefill_attention_dp_size"])) > 1, row["input_tokens_max"] == "8192"
    if row["system"] == "h200_sxm":
        return ranks != long
    if row["client_concurrency"] == "1":
        return not ranks
    return not long or row["prefill_moe_ep_size"] in ("", "1", "1.0")


def points(
    score: ModuleType, part: str = "", known: list[Recipe] | None = None, with_limits: bool = True
) -> Iterator[Point]:
    """Yield every point that the scorer takes and whose name contains `part`, simulated.

    If recipes are given, only points with a recipe are returned, with its limits unless `with_limits` is False.
    """
    rows: list[Row] = []
    found: list[tuple[str, dict[str, Any], dict[str, Any], list[tuple[str, str, float]]]] = []
    known_rows: Callable[..., list[Row]] = score.known_rows

    def kept(*about: Any, **options: Any) -> list[Row]:
        rows[:] = known_rows(*about, **options)
        return rows

    def point(_args: object, *about: Any) -> list[float]:
        found.append(about)  # type: ignore[arg-type]
        return [0.0 for _ in about[-1]]

    exchanged: dict[str, Any] = {
        "known_rows": kept,
        "point": point,
        "catalog": lambda kind: {"hardware": list_hardware, "engines": list_engines}[kind](),
        "by_group": lambda *_: None,
        "summarise": lambda *_: None,
    }
    every = Namespace(data=score.HERE.parent / "validation", only="", disaggregated=10**9, seed=SEED, limit=[])
    with contextlib.redirect_stdout(io.StringIO()), patch.dict(vars(score), exchanged):
        score.disaggregated(every)
    for row, (name, deployment, workload, want) in zip(rows, found, strict=True):
        limits = {} if known is None else limits_of(row, known)
        if part not in name or limits is None:
            continue
        if with_limits:
            deployment = with_pools(deployment, limits)
        with written(deployment, workload) as files:
            run = simulate(compile_fleet(load_deployment(files[0])), load_workload(str(files[1])).materialise())
        yield Point(row, name, deployment, int(row["client_concurrency"]), want[0][2], want[1][2], run)


def with_pools(deployment: dict[str, Any], limits: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the deployment with further keys of its pools."""
    pools = deployment["disaggregation"]
    return deployment | {"disaggregation": pools | {role: pools[role] | dict(own) for role, own in limits.items()}}


def line(point: Point) -> str:
    servers = point.deployment["disaggregation"]["prefill_replicas"]
    rate = point.requests_per_s(point.measured_ttft_s, point.measured_tpot_s)
    own = point.requests_per_s(point.ttft_s, point.tpot_s)
    parts = "".join(f"{1e3 * seconds:7.0f}" for seconds in point.parts_s)
    return (
        f"{point.name:72}{1e3 * point.measured_ttft_s:8.0f}{1e3 * point.ttft_s:8.0f} {parts}{rate:8.2f}"
        f"{rate * point.measured_ttft_s / servers:8.1f}{own * point.ttft_s / servers:8.1f}"
    )


def medians(name: str, chosen: Sequence[Point]) -> str:
    errors = [100.0 * (p.ttft_s / p.measured_ttft_s - 1.0) for p in chosen]
    steps = [100.0 * abs(p.tpot_s / p.measured_tpot_s - 1.0) for p in chosen]
    size = median(abs(error) for error in errors)
    return f"{name:28} n {len(chosen):3}   TTFT {size:5.1f} ({median(errors):+.1f}) %   TPOT {median(steps):5.1f} %"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("score", type=Path)
    parser.add_argument("part", nargs="?", default="")
    parser.add_argument("--recipes", type=Path, metavar="FOLDER")
    parser.add_argument("--without-limits", action="store_true")
    arguments = parser.parse_args()
    known = None if arguments.recipes is None else recipes(arguments.recipes)
    head = "".join(f"{word:>7}" for word in ("client", "wait", "prompt", "hand"))
    print(f"{'ms; requests a second':72}{'TTFT':>8}{'ours':>8} {head}{'req/s':>8}{'held':>8}{'ours':>8}")
    found = []
    for point in points(load(arguments.score), arguments.part, known, not arguments.without_limits):
        found.append(point)
        print(line(point), flush=True)
    groups: dict[str, Callable[[Point], bool]] = {
        "all": lambda _: True,
        "half 0": lambda p: p.half == 0,
        "half 1": lambda p: p.half == 1,
        "sglang": lambda p: p.row["engine"] == "sglang",
        "trtllm, B200": lambda p: p.row["engine"] == "trtllm" and p.row["system"] == "b200_sxm",
        "trtllm, H100": lambda p: p.row["engine"] == "trtllm" and p.row["system"] == "h100_sxm",
        "trtllm, H200": lambda p: p.row["engine"] == "trtllm" and p.row["system"] == "h200_sxm",
        "trtllm": lambda p: p.row["engine"] == "trtllm",
        "trtllm, layout of recipe": lambda p: p.row["engine"] == "trtllm" and has_recipe_layout(p.row),
        "trtllm, another layout": lambda p: p.row["engine"] == "trtllm" and not has_recipe_layout(p.row),
    }
    for name, of in groups.items():
        chosen = [point for point in found if of(point)]
        if chosen:
            print(medians(name, chosen))


if __name__ == "__main__":
    main()
