"""Compares this simulator with other simulators on the same measured closed-loop points of vLLM.

    python benchmarks/peers.py SCORE.py --peer-python ENV/bin/python [--peer-python ...] [--page docs/accuracy.md]

SCORE.py is the scorer that comes with the public measurements. ENV is an environment with another simulator's package
(`peer_worker.py` says which are known). The points are a seeded sample; the requests, the clients and the limits of the
engine are equal for all. The last table is the CPU time of 10,000 requests of 1,024 tokens in and out by 256 clients.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from error_budget import load
from measured_points import INFERRED, points, written
from page_section import around_section, write_section

from catalogs.deployments.schema import load_deployment
from catalogs.errors import InputError
from catalogs.workloads.workload import load_workload
from simulator.analysis.metrics import summarise
from simulator.cluster.compiled import CompiledDeployment, compile_deployment
from simulator.cluster.simulate import engine_rules, simulate

SECTION: Final = "peers"
WORKER: Final = Path(__file__).with_name("peer_worker.py")
TITLES: Final = {"replay": "replay of ai-dynamo", "estimate": "AIConfigurator"}
OURS: Final = "this simulator"

#: Checkpoint of (model, precision) for the other packages, and the format of its matrices where no checkpoint has it.
CHECKPOINTS: Final = {
    ("meta-llama/Llama-3.1-70B", "fp8"): ("nvidia/Llama-3.1-70B-Instruct-FP8", ""),
    ("meta-llama/Llama-3.1-70B", "fp4"): ("meta-llama/Meta-Llama-3.1-70B", "nvfp4"),
    ("openai/gpt-oss-120b", "fp4"): ("openai/gpt-oss-120b", ""),
    ("MiniMaxAI/MiniMax-M2.5", "fp8"): ("MiniMaxAI/MiniMax-M2.5", ""),
    ("MiniMaxAI/MiniMax-M2.5", "fp4"): ("nvidia/MiniMax-M2.5-NVFP4", ""),
}

#: The load with which the speed of simulators is compared.
SPEED: Final = {"requests": 10_000, "clients": 256, "tokens": 1024}


@dataclass(frozen=True)
class Prediction:
    """The answer of one simulator for one point: mean seconds and CPU seconds, or the reason why there is no answer."""

    cpu_s: float
    ttft_s: float = 0.0
    tpot_s: float = 0.0
    error: str = ""


@dataclass(frozen=True)
class Point:
    """A point of the comparison; `measured` holds mean TTFT and TPOT in seconds, None for the comparison of speed."""

    group: str
    inputs: dict[str, Any]
    measured: tuple[float, float]
    predictions: dict[str, Prediction] = field(default_factory=dict)

    def errors(self, name: str) -> tuple[float, float]:
        """Return the absolute errors of TTFT and TPOT in percent."""
        got = self.predictions[name]
        pairs = zip((got.ttft_s, got.tpot_s), self.measured, strict=True)
        ttft, tpot = (100.0 * abs(value / measured - 1.0) for value, measured in pairs)
        return ttft, tpot


@dataclass(frozen=True)
class Peer:
    """The package of another simulator, installed in its own environment."""

    python: Path
    adapter: str
    packages: dict[str, str]

    @property
    def name(self) -> str:
        return TITLES[self.adapter]

    @property
    def versions(self) -> str:
        return ", ".join(f"{package} {version}" for package, version in self.packages.items())

    def predict(self, inputs: list[dict[str, Any]]) -> list[Prediction]:
        if not inputs:
            return []
        lines = "".join(json.dumps(point) + "\n" for point in inputs)
        done = subprocess.run(
            [str(self.python), str(WORKER)], input=lines, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        answers = [Prediction(**json.loads(line)) for line in done.stdout.splitlines()]
        missing = Prediction(0.0, error=f"the package ended the process with status {done.returncode}")
        return answers + [missing] * (len(inputs) - len(answers))


def find_peer(python: Path) -> Peer:
    """Return the package of another simulator in an environment.

    Raises:
        InputError: If there is no such Python, or no package in it that this benchmark knows.
    """
    try:
        done = subprocess.run([str(python), str(WORKER)], capture_output=True, stdin=subprocess.DEVNULL, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise InputError("--peer-python names a Python that starts", str(python)) from error
    about = json.loads(done.stdout)
    if not about["adapter"]:
        raise InputError(
            "--peer-python has no package of another simulator that this benchmark knows",
            str(python),
            "an environment with ai-dynamo and aiconfigurator, or with aiconfigurator",
        )
    return Peer(python, about["adapter"], about["packages"])


def sampled(score: Path, n: int, seed: int) -> tuple[list[Point], list[str]]:
    """Return simulated points of vLLM with published settings, and the names of those that this simulator refuses."""
    kept = [
        (row, point)
        for row, point in points(load(score), score.parent.parent / "validation", "closed loop")
        if row["backend"] == "vllm" and not row["same_run_as"] and row["settings_from"] != INFERRED
    ]
    found, refused = [], []
    for row, (name, *about) in random.Random(seed).sample(kept, min(n, len(kept))):
        try:
            found.append(simulated_point(row, *about))
        except InputError:
            refused.append(name)
    return found, refused


def simulated_point(
    row: dict[str, str], deployment: dict[str, Any], workload: dict[str, Any], want: list[tuple[str, str, float]]
) -> Point:
    group = f"{row['model'].split('/')[-1]} {row['precision']}, {row['system'].partition('_')[0].upper()}"
    (_, _, ttft_s), (_, _, tpot_s) = want
    with written(deployment, workload) as (deployment_file, workload_file):
        requests = load_workload(str(workload_file)).materialise()
        started = time.process_time()
        compiled = compile_deployment(load_deployment(deployment_file))
        got = summarise(simulate(compiled, requests))["metrics"]
        cpu_s = time.process_time() - started
    asked = {
        "input_tokens": requests.input_tokens.tolist(),
        "output_tokens": requests.output_tokens.tolist(),
        "clients": int(float(row["concurrency"])),
    }
    point = Point(group, peer_inputs(row, compiled) | asked, (ttft_s, tpot_s))
    point.predictions[OURS] = Prediction(cpu_s, got["ttft_s"]["mean"], got["tpot_s"]["mean"])
    return point


def peer_inputs(row: dict[str, str], compiled: CompiledDeployment) -> dict[str, Any]:
    """Return the inputs of the other packages for a deployment, with the limits that this simulator resolved."""
    rules, ranks = engine_rules(compiled), int(row["attention_data_parallel"])
    checkpoint, quantisation = CHECKPOINTS[row["model"], row["precision"]]
    return {
        "engine": row["backend"],
        "engine_version": row["backend_version"] if row["backend_version"][:1].isdigit() else "",
        "system": row["system"],
        "checkpoint": checkpoint,
        "quantisation": quantisation,
        "kv_dtype": row["kv_dtype"],
        "tensor_parallel": int(row["tensor_parallel"]),
        "data_parallel": ranks,
        "experts": compiled.resolved.model.is_moe,
        "moe_tensor_parallel": int(row["moe_tensor_parallel"] or 1),
        "moe_expert_parallel": int(row["moe_expert_parallel"] or 1),
        "max_num_seqs": rules.max_num_seqs // ranks,
        "max_num_batched_tokens": rules.max_num_batched_tokens // ranks,
        "kv_blocks": rules.kv_blocks // ranks,
        "block_size": rules.block_size,
    }


def accuracy_table(sample: list[Point], peer: str) -> str:
    """Return a table of median absolute errors by model and hardware, of the points that both simulators ran."""
    common = [p for p in sample if not p.predictions[peer].error]
    if not common:
        return f"There is no point that {peer} could run."
    names = (OURS, peer)
    head = [f"{metric}, {name}" for metric in ("TTFT", "TPOT") for name in names]
    lines = ["| model, GPU | points | " + " | ".join(head) + " |", "|---" * (2 + len(head)) + "|"]
    for group in [*sorted({p.group for p in common}), "all"]:
        found = [p for p in common if group in (p.group, "all")]
        errors = {name: [p.errors(name) for p in found] for name in names}
        medians = [statistics.median(e[i] for e in errors[name]) for i in range(2) for name in names]
        lines.append(f"| {group} | {len(found)} | " + " | ".join(f"{m:.1f} %" for m in medians) + " |")
    return "\n".join(lines)


def cpu_lines(sample: list[Point], names: list[str]) -> list[str]:
    """Return one line for each simulator: the points that it could run, its CPU time, and the reasons of the others."""
    lines = []
    for name in names:
        got = [p.predictions[name] for p in sample]
        ran = [p for p in got if not p.error]
        reasons = Counter(p.error[:72] for p in got if p.error)
        line = f"- {name}: {len(ran)} of {len(got)} points, {sum(p.cpu_s for p in ran):.0f} CPU seconds."
        lines.append(line + "".join(f" Without an answer: {n} ({reason})." for reason, n in reasons.most_common()))
    return lines


def speed_point() -> Point:
    """Return the point on which speeds are compared, simulated here; it was not measured."""
    n, clients, tokens = SPEED["requests"], SPEED["clients"], SPEED["tokens"]
    deployment = {"model": "meta-llama/Llama-3.1-70B", "weight_dtype": "fp8", "hardware": "h100x8"}
    deployment |= {"engine": "vllm-0.11", "tensor_parallel": 8, "max_num_seqs": 512}
    lengths = {f"{side}_tokens": {"constant": tokens} for side in ("input", "output")}
    workload = {"arrivals": {"closed_loop": {"concurrency": clients}}, "requests": n, "seed": 0} | lengths
    row = dict.fromkeys(("kv_dtype", "moe_tensor_parallel", "moe_expert_parallel"), "")
    row |= {"model": "meta-llama/Llama-3.1-70B", "precision": "fp8", "backend": "vllm", "backend_version": "0.11.0"}
    row |= {"system": "h100_sxm", "tensor_parallel": "8", "attention_data_parallel": "1", "concurrency": str(clients)}
    return simulated_point(row, deployment, workload, [("", "", 1.0), ("", "", 1.0)])


def speed_table(point: Point) -> str:
    """Return a table of the CPU seconds for one closed loop, without the time to import a package."""
    lines = ["| simulator | CPU seconds | mean TTFT | mean TPOT |", "|---|---|---|---|"]
    for name, got in point.predictions.items():
        answer = (
            f"{got.error} | | |" if got.error else f"{got.cpu_s:.1f} | {got.ttft_s:.3f} s | {1e3 * got.tpot_s:.1f} ms |"
        )
        lines.append(f"| {name} | {answer}")
    return "\n".join(lines)


def page_text(sample: list[Point], refused: list[str], peers: list[Peer], speed: str) -> str:
    parts = []
    for peer in peers:
        parts += [
            f"Median absolute errors beside {peer.name} ({peer.versions}):",
            "",
            accuracy_table(sample, peer.name),
            "",
        ]
    return "\n".join(
        [
            *parts,
            *cpu_lines(sample, [OURS, *(peer.name for peer in peers)]),
            *(f"- Refused by this simulator: {name}." for name in refused),
            "",
            f"{SPEED['requests']:,} requests of {SPEED['tokens']:,} tokens in and out, {SPEED['clients']} clients, "
            "Llama-3.1-70B FP8 on eight H100:",
            "",
            speed,
        ]
    )


def part(text: str) -> slice:
    """Return the slice that --part states.

    Raises:
        InputError: It is no START:STOP:STEP of whole numbers.
    """
    numbers = text.split(":")
    if len(numbers) > 3 or not all(n.isdecimal() or not n for n in numbers) or numbers[2:] == ["0"]:
        raise InputError("--part is START:STOP:STEP in points of the sample", text, "0:30")
    return slice(*(int(n) if n else None for n in [*numbers, "", ""][:3]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("score", type=Path)
    parser.add_argument("--peer-python", type=Path, action="append", required=True)
    parser.add_argument("--points", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--part", default=":", help="START:STOP:STEP of the sample, to run it in parts")
    parser.add_argument("--page", type=Path)
    given = parser.parse_args()
    try:
        peers = [find_peer(python) for python in given.peer_python]
        chosen = part(given.part)
        if given.points < 1:
            raise InputError("--points is a number of points", str(given.points), "60")
        if not given.score.is_file():
            raise InputError("SCORE.py is the scorer of the measurements", str(given.score))
        if given.page:
            around_section(given.page, SECTION)  # before the long work
        speed = speed_point()
        sample, refused = sampled(given.score, given.points, given.seed)
        sample = sample[chosen]
    except InputError as error:
        print(error, file=sys.stderr)
        raise SystemExit(2) from None
    for peer in peers:
        asked = [speed, *sample]
        for point, got in zip(asked, peer.predict([p.inputs for p in asked]), strict=True):
            point.predictions[peer.name] = got
    text = page_text(sample, refused, peers, speed_table(speed))
    print(text)
    if given.page:
        write_section(given.page, SECTION, text)


if __name__ == "__main__":
    main()
