"""Generation of T5-small and BART-base, measured in torch on this machine, against a simulation from a calibration.

The machine is calibrated first (`calibrate run`, three minutes by default, with the shapes of both models), in a data
folder of its own. Then `generate` of transformers runs each model with random weights at four workloads, each a padded
batch. The simulation is that of the engine `transformers-static` with the same batch, without the times of its server.
Rows are measured in turn, several rounds, and the median counts, so that drift of the machine affects all of them. Both
use one thread: with two, every product waits for the later one, and another process that runs on one of two cores
doubles its time. Where others preempt that thread, its processor time counts in place of wall time, as in a profile.

`--published` needs no measurement: it compares the simulation of TensorRT-LLM on an H100 with the latencies of whole
batches that NVIDIA publishes (docs/source/models/encoder-decoder.md of NVIDIA/TensorRT-LLM, "Performance"). Inputs have
260 to 440 tokens. Of the outputs only the mean is known (from the tokens per second) and the limit of 128: they are
taken as evenly spaced up to it. The same table has the latencies of the older engines with a runtime in C++, which have
no Python between steps: what the PyTorch backend takes longer is its executor on the host.

python benchmarks/text_generation.py                       # eight minutes
python benchmarks/text_generation.py --published           # seconds
python benchmarks/text_generation.py --budget 0 --out DIR  # with the calibration that an earlier run left in DIR
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from calibration.profile.machine.device import open_device
from calibration.whole_models.subjects import load_subject
from calibration.whole_models.workers import Workers
from calibration.whole_models.workloads import Point
from catalogs.deployments.schema import Deployment
from catalogs.engines.profile import HostTimes
from catalogs.workloads.request_set import RequestSet
from simulator.cluster.compiled import CompiledDeployment, compile_deployment
from simulator.cluster.run import Run
from simulator.cluster.simulate import engine_rules, run_rules

MODELS = ("t5-small", "bart-base")

#: Batch, input and output tokens of each workload; the lengths are within those of `calibrate models`.
WORKLOADS = {
    "summarisation": (4, 384, 48),
    "translation": (8, 48, 48),
    "question answering": (1, 256, 16),
    "generation": (2, 64, 64),
}

DTYPE = "fp32"

#: Batch size, seconds and output tokens per second of the PyTorch backend, and seconds of the runtime in C++.
PUBLISHED = {
    "flan-t5-xl": ((32, 0.7061, 3312, 0.7276), (64, 1.1367, 4184, 1.2250), (128, 1.9993, 4768, 2.0568)),
    "bart-large-cnn": ((32, 0.2802, 10662, 0.2299), (64, 0.3430, 16209, 0.2522), (128, 0.4727, 23518, 0.3523)),
}

#: Most output tokens of a request.
OUTPUT_LIMIT = 128

#: Threads of both programs.
THREADS = 1

#: Rounds in which both are measured in turn.
ROUNDS = 3

#: Seconds of the repeats of one point.
REPEATS_S = 4.0


@dataclass(frozen=True)
class Compared:
    """One workload of one model: seconds of a whole batch, and of its first step and a mean further one."""

    model: str
    workload: str
    batch: int
    input_tokens: int
    output_tokens: int
    measured_s: float
    simulated_s: float
    measured_first_s: float
    simulated_first_s: float
    others_share: float

    @property
    def error(self) -> float:
        """Return simulated / measured - 1."""
        return self.simulated_s / self.measured_s - 1.0

    @property
    def decode_error(self) -> float:
        """Return the same of the steps after the first."""
        return (self.simulated_s - self.simulated_first_s) / (self.measured_s - self.measured_first_s) - 1.0


def calibrate(out: Path, budget_s: float) -> None:
    """Calibrate this CPU with the shapes of the models; the calibration is installed in the data folder."""
    command = [
        sys.executable,
        "-m",
        "calibration.cli.main",
        "run",
        "--budget",
        f"{budget_s:g}s",
        "--device",
        "cpu",
        "--threads",
        str(THREADS),
    ]
    command += ["--allow-contended"]  # into a data folder of its own; the bundle states the share
    command += ["--dtype", DTYPE, "--out", str(out / "profile"), *(w for m in MODELS for w in ("--model", m))]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def simulated(point: Point) -> tuple[float, float]:
    """Return the seconds of a whole batch and of its first step."""
    plant = compile_deployment(
        Deployment(
            model=point.model,
            engine="transformers-static",
            hardware="local",
            weight_dtype=DTYPE,
            max_num_seqs=point.batch,
            sampling="greedy",
        )
    )
    n = point.batch
    requests = RequestSet(np.zeros(n), np.full(n, point.input_tokens), np.full(n, point.output_tokens))
    run = in_process(plant, requests)
    return float(run.last_token_s.max()), float(run.replicas[0].logs[0].total_s[0])


def in_process(plant: CompiledDeployment, requests: RequestSet) -> Run:
    """Serve the requests by the engine alone, without the times of its API server."""
    host = plant.resolved.engine.host
    steps_only = HostTimes(step_s=host.step_s, step_s_per_sequence=host.step_s_per_sequence, step_gap_s=host.step_gap_s)
    return run_rules(replace(engine_rules(plant), host=steps_only), plant.cost, requests)


def against_published() -> None:
    """Print the simulated seconds of whole batches next to the published ones."""
    print("model           batch  published  simulated   error  runtime in C++   error")
    for model, rows in PUBLISHED.items():
        limits = {"max_num_batched_tokens": 65536, "max_num_seqs": 128, "sampling": "greedy"}
        keys = {"model": model, "engine": "trtllm", "hardware": "h100x1", **limits}
        plant = compile_deployment(Deployment.model_validate(keys))
        for batch, seconds, tokens_per_s, native_s in rows:
            mean = seconds * tokens_per_s / batch
            outputs = np.linspace(max(2 * mean - OUTPUT_LIMIT, 1), OUTPUT_LIMIT, batch).round().astype(np.int64)
            inputs = np.linspace(260, 440, batch).round().astype(np.int64)
            found = float(in_process(plant, RequestSet(np.zeros(batch), inputs, outputs)).last_token_s.max())
            native = f"{native_s:13.3f} s {found / native_s - 1:+7.0%}"
            print(f"{model:15s} {batch:5d} {seconds:8.3f} s {found:8.3f} s {found / seconds - 1:+7.0%} {native}")


def compare(rounds: int = ROUNDS) -> list[Compared]:
    """Measure every workload of every model `rounds` times in turn, and compare the medians with the simulation."""
    device = open_device("cpu", THREADS)
    points = [Point(m, w, *sizes) for m in MODELS for w, sizes in WORKLOADS.items()]
    samples: dict[Point, list[dict[str, float]]] = {point: [] for point in points}
    with Workers({name: load_subject(name) for name in MODELS}, device, DTYPE) as workers:
        for _ in range(rounds):
            for point in points:
                row = workers.measure(point, REPEATS_S, 0.5 * device.free_bytes(), 300.0)
                if row["status"] != "ok":
                    raise RuntimeError(f"{point.key}: {row['reason']}")
                samples[point].append(row)
    found = []
    for point, rows in samples.items():
        measured = float(np.median([min(row["total_s"], row["cpu_s"]) for row in rows]))
        first = measured * float(np.median([row["prefill_s"] / row["total_s"] for row in rows]))
        whole, step = simulated(point)
        sizes = (point.batch, point.input_tokens, point.output_tokens)
        others = max(row["others_share"] for row in rows)
        found.append(Compared(point.model, point.workload, *sizes, measured, whole, first, step, others))
    return found


def main() -> None:
    """Calibrate, measure and print the comparison."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--budget", type=float, default=180.0, help="seconds of calibration; 0: use the one in --out")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--out", type=Path, help="data folder (default: a new one that is removed)")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--published", action="store_true", help="compare with published latencies; measure nothing")
    given = parser.parse_args()
    if given.published:
        against_published()
        return
    with tempfile.TemporaryDirectory() as folder:
        out = given.out or Path(folder)
        os.environ["XDG_DATA_HOME"] = str(out)
        if given.budget:
            calibrate(out, given.budget)
        rows = compare(given.rounds)
    print("model      workload             batch  in  out  measured  simulated   error  first step  others")
    for row in rows:
        first = row.simulated_first_s / row.measured_first_s - 1.0
        sizes = f"{row.batch:5d} {row.input_tokens:4d} {row.output_tokens:4d}"
        seconds = f"{row.measured_s:7.3f} s {row.simulated_s:8.3f} s {row.error:+7.1%} {first:+11.1%}"
        print(f"{row.model:10s} {row.workload:20s} {sizes} {seconds} {row.others_share:7.0%}")
    errors = np.abs([row.error for row in rows])
    print(f"median error {np.median(errors):.1%}, largest {errors.max():.1%}")
    if given.json:
        given.json.write_text(json.dumps([asdict(row) | {"error": row.error} for row in rows], indent=1))


if __name__ == "__main__":
    main()
