"""What vLLM's API server process computes per request, prompt token, streamed token and engine step, on one core.

    python benchmarks/api_server_speed.py --python VLLM/bin/python --model MODEL_DIR

Starts the server on this machine (CPU, any small model), sends it prompts of several lengths and outputs at several
concurrencies with a raw HTTP client, and reads the processor time of the server's process from /proc, its event loop
(the main thread) apart from its tokeniser threads. Processor time, not wall time: other processes and the engine do not
count. What the idle process uses is taken off. The terms are a non-negative fit over all phases. One event loop streams
at most 1 / (per token + per step / running sequences) tokens/s.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.optimize import nnls

from calibration.serve.engines import SERVED_NAME, ServedLimits, vllm
from calibration.serve.server import EngineServer
from catalogs.ui.words import percent

#: Port of the measured server, which nothing else uses as a rule.
PORT = 8137

#: Seconds over which the processor time of the idle server is measured.
IDLE_S = 5.0
#: (requests, input tokens, output tokens, concurrency) of each phase.
PHASES = (
    (160, 16, 1, 1),
    (160, 16, 1, 16),
    (40, 900, 1, 1),
    (20, 1800, 1, 1),
    (32, 900, 1, 16),
    (6, 16, 200, 1),
    (16, 16, 200, 4),
    (96, 16, 200, 32),
    (64, 16, 200, 16),
    (96, 400, 100, 32),
)
TERMS = ("per request", "per prompt token", "per streamed token", "per engine step")


@dataclass(frozen=True)
class Phase:
    """Counts of one phase, and what the process spent on it."""

    counts: tuple[float, float, float, float]  # in the order of TERMS
    loop_s: float
    other_threads_s: float


def schedstat_s(pid: int) -> tuple[float, float]:
    """Return the seconds of the main thread and those of all others, in nanosecond resolution."""
    main = others = 0.0
    for task in Path(f"/proc/{pid}/task").iterdir():
        spent = int((task / "schedstat").read_text().split()[0]) * 1e-9
        if int(task.name) == pid:
            main = spent
        else:
            others += spent
    return main, others


def words(model: Path) -> list[str]:
    vocabulary = json.loads((model / "tokenizer.json").read_text())["model"]["vocab"]
    return [w[1:] for w in vocabulary if w.startswith("Ġ") and w[1:].isalpha()]


async def ask(prompt: str, output_tokens: int) -> int:
    """One streamed completion over a connection of its own; the number of chunks with text."""
    body = {"model": SERVED_NAME, "prompt": prompt, "max_tokens": output_tokens, "ignore_eos": True, "stream": True}
    text = json.dumps(body).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", PORT)
    head = "POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nConnection: close\r\n"
    writer.write(head.encode() + f"Content-Length: {len(text)}\r\n\r\n".encode() + text)
    answer = await reader.read(-1)
    writer.close()
    if b" 200 " not in answer[:20]:
        raise RuntimeError(answer[:400].decode(errors="replace"))
    return answer.count(b'"choices"')


async def drive(prompts: list[str], output_tokens: int, concurrency: int) -> int:
    queue = iter(prompts)

    async def client() -> int:
        return sum([await ask(prompt, output_tokens) for prompt in queue])

    return sum(await asyncio.gather(*(client() for _ in range(concurrency))))


def phases(pid: int, vocabulary: list[str], idle: float) -> Iterator[Phase]:
    """`idle`: the share of a core that the waiting event loop uses."""
    draw = random.Random(0)
    for requests, inputs, outputs, concurrency in PHASES:
        prompts = [" ".join(draw.choices(vocabulary, k=inputs)) for _ in range(requests)]
        before, started = schedstat_s(pid), time.perf_counter()
        chunks = asyncio.run(drive(prompts, outputs, concurrency))
        wall_s, after = time.perf_counter() - started, schedstat_s(pid)
        counts = (requests, requests * inputs, requests * outputs, requests * outputs / concurrency)
        phase = Phase(counts, after[0] - before[0] - idle * wall_s, after[1] - before[1])
        print(
            f"{requests:4} x {inputs:5} in {outputs:4} out, {concurrency:3} at once: {chunks:6} chunks, "
            f"{wall_s:.1f} s, loop {phase.loop_s:6.3f} s, other threads {phase.other_threads_s:6.3f} s",
            flush=True,
        )
        yield phase


def fit(found: list[Phase], seconds: list[float]) -> None:
    counts = np.array([phase.counts for phase in found])
    measured = np.array(seconds)
    weight = 1.0 / measured[:, None]
    values, _ = nnls(counts * weight, np.ones(len(measured)))
    errors = counts @ values / measured - 1.0
    for name, value in zip(TERMS, values, strict=True):
        print(f"  {name:20} {value * 1e6:9.1f} us")
    print(
        f"  error of the phases: median {percent(np.median(np.abs(errors)), 1)}, "
        f"worst {percent(np.abs(errors).max(), 1)}"
    )
    per_token, per_step = values[2], values[3]
    for running in (1, 16, 64, 256):
        print(f"  streams at most {1.0 / (per_token + per_step / running):9,.0f} tokens/s with {running} running")


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--python", type=Path, required=True)
    p.add_argument("--model", type=Path, required=True)
    a = p.parse_args()
    limits = ServedLimits(
        max_model_len=2048,
        max_num_seqs=32,
        max_num_batched_tokens=2048,
        block_size=32,
        weight_dtype="fp32",
        threads=1,
    )
    launch = vllm(a.python, a.model, PORT, limits, on_cpu=True)
    with tempfile.TemporaryDirectory() as folder, EngineServer(launch, Path(folder) / "server.log") as server:
        server.start()
        pid = min(server.pids)
        vocabulary = words(a.model)
        asyncio.run(drive([" ".join(vocabulary[:64])] * 32, 32, 16))  # warm-up
        before = schedstat_s(pid)[0]
        time.sleep(IDLE_S)
        idle = (schedstat_s(pid)[0] - before) / IDLE_S
        print(f"idle: {percent(idle, 2)} of a core; {os.cpu_count()} cores")
        found = list(phases(pid, vocabulary, idle))
    print("event loop")
    fit(found, [phase.loop_s for phase in found])
    print("all threads of the process")
    fit(found, [phase.loop_s + phase.other_threads_s for phase in found])


if __name__ == "__main__":
    main()
