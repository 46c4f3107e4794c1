"""Response times of `plan serve` with a hundred finished jobs, against their limits; exit status 1 if one is exceeded.

    python benchmarks/serve_speed.py [--requests 60]

Every question is new: another model, hardware, batch or rate, as when one moves the controls of a page, so that no
answer is one that was kept. The server is asked as soon as it says that it is ready, and first requests count as all
others do. The first page counts with every file that it loads. Times are of requests one after
another. The processor time of the server is what remains of them on a machine that is idle otherwise (Linux only).
"""

from __future__ import annotations

import argparse
import http.client
import json
import math
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from urllib.parse import urlencode

from planner.web.store.database import Database
from planner.web.store.jobs import DONE, RESULT, JobStore, NewJob

#: Finished jobs in the store.
N_JOBS = 100
#: Limits of the 95th percentile, seconds.
LIMITS_S = {
    "start": 2.0,
    "ready": 5.0,
    "live strip": 0.3,
    "analysis of a step": 0.5,
    "graph of a step": 0.5,
    "first page": 1.0,
    "list of jobs": 0.3,
    "result of a job": 0.3,
}
QUESTION = {
    "model": "llama3.2-1b", "hardware": "l40s", "slo": ["ttft.p50=5s"], "rate": 1, "input_tokens": 16,
    "output_tokens": 2, "precisions": ["native"], "fixed": {"max_num_seqs": 64, "kv_dtype": "bf16"},
}  # fmt: skip
MODELS = ("llama3.1-8b", "llama3.1-70b", "llama3.1-405b", "deepseek-v3", "gpt-oss-120b", "gemma-3-27b", "qwen3-32b")
HARDWARE = ("h100x8", "h200x8", "b200x8", "a100-80gbx8")


class Server:
    """`plan serve` on a free port."""

    def __init__(self, folder: Path) -> None:
        command = [sys.executable, "-m", "planner.main", "serve", "--port", "0"]
        command += ["--store", f"sqlite:///{folder / 'jobs.sqlite'}"]
        environment = os.environ | {"XDG_DATA_HOME": str(folder)}
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
        assert self.process.stderr is not None
        found = re.search(r"http://([\d.]+):(\d+)/", self.process.stderr.readline())
        assert found, "the server did not start"
        self.connection = http.client.HTTPConnection(found[1], int(found[2]), timeout=60)

    def get(self, path: str) -> bytes:
        return self.send("GET", path)

    def send(self, method: str, path: str, body: object = None) -> bytes:
        content = None if body is None else json.dumps(body)
        self.connection.request(method, path, content, {"Content-Type": "application/json"})
        response = self.connection.getresponse()
        text = response.read()
        if response.status >= 400:
            raise RuntimeError(f"{method} {path}: {response.status} {text[:300]!r}")
        return text

    def wait_until_ready(self) -> None:
        """Wait until the server has read what all questions share."""
        while True:
            self.connection.request("GET", "/readyz")
            response = self.connection.getresponse()
            response.read()
            if response.status == 200:
                return
            time.sleep(0.05)

    def processor_s(self) -> float:
        """Return the processor time of the server so far, in steps of a hundredth of a second; NaN if not known."""
        file = Path(f"/proc/{self.process.pid}/stat")
        if not file.exists():
            return math.nan
        user, system = file.read_text().rpartition(")")[2].split()[11:13]
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(20)


def fill(folder: Path) -> None:
    """Plan once, and store the finished job a hundred times."""
    server = Server(folder)
    job = json.loads(server.send("POST", "/api/v1/plans", QUESTION))
    while job["status"] in ("queued", "running"):
        time.sleep(0.1)
        job = json.loads(server.get(f"/api/v1/jobs/{job['id']}"))
    assert job["status"] == "done", job
    server.stop()
    store = JobStore(Database(f"sqlite:///{folder / 'jobs.sqlite'}"))
    content = store.artifact(job["id"]) or b""
    for number in range(N_JOBS - 1):
        store.add(NewJob("plan", f"{job['title']} {number}", "", f"key {number}", QUESTION))
        copy = store.claim("benchmark", (), only=False)
        assert copy is not None
        store.write_progress(copy, job["progress"])
        store.finish(copy, DONE, {RESULT: content}, "yes")
    store.database.close()


def first_page(server: Server) -> None:
    """Read the first page, and the files and jobs that it shows."""
    page = server.get("/").decode()
    loaded = set(re.findall(r'(?:src|href)="(/static/[^"]+)"', page))
    seen: set[str] = set()
    while loaded - seen:
        path = min(loaded - seen)
        seen.add(path)
        text = server.get(path)
        if path.endswith(".js"):
            loaded |= set(re.findall(r'from "(/static/js/[\w./]+)"', text.decode()))
    server.get("/api/v1/jobs?limit=10")


def step(draw: random.Random) -> str:
    """Return the query of a step that a page might show."""
    stage, batch = draw.choice(("decode", "prefill")), draw.choice((1, 4, 16, 64, 128))
    context = draw.choice((128, 1024, 2048, 8000)) + draw.randrange(100)
    values = {"model": draw.choice(MODELS), "hardware": draw.choice(HARDWARE)}
    return urlencode(values | {"stage": stage, "batch": batch, "context": context})


def question(draw: random.Random) -> str:
    """Return the query of a question that a form might hold; one in five compares two kinds of hardware."""
    hardware = draw.choice(HARDWARE) if draw.random() < 0.8 else ",".join(draw.sample(HARDWARE, 2))
    slo = [f"ttft.p99={draw.choice((1, 2, 5))}s", f"tpot.p99={draw.choice((30, 50, 100))}ms"]
    values = {"model": draw.choice(MODELS), "hardware": hardware, "rate": round(draw.uniform(0.5, 60), 2)}
    return urlencode([*values.items(), *(("slo", text) for text in slo)])


def times_s(server: Server, ask: Callable[[int], object], n: int) -> list[tuple[float, float]]:
    """Return the times of requests and of the processor in them, seconds, from the first request on."""
    found = []
    for i in range(n):
        started, before = time.perf_counter(), server.processor_s()
        ask(i)
        found.append((time.perf_counter() - started, server.processor_s() - before))
    return found


def _middle_and_late(values: Sequence[float]) -> tuple[float, float]:
    return statistics.median(values), statistics.quantiles(values, n=20)[-1]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=60, metavar="N")
    n, draw = parser.parse_args().requests, random.Random(1)
    missed = 0
    with tempfile.TemporaryDirectory(prefix="serve-speed-") as name:
        folder = Path(name)
        fill(folder)
        started = time.perf_counter()
        server = Server(folder)
        server.get("/")
        start_s, started_s = time.perf_counter() - started, server.processor_s()
        server.wait_until_ready()
        ready_s, readied_s = time.perf_counter() - started, server.processor_s()
        try:
            job = json.loads(server.get("/api/v1/jobs?limit=1"))["items"][0]["id"]

            asked: dict[str, Callable[[int], object]] = {
                "live strip": lambda _: server.get(f"/api/v1/guess?{question(draw)}"),
                "analysis of a step": lambda _: server.get(f"/api/v1/analyze?{step(draw)}"),
                "graph of a step": lambda _: server.get(f"/api/v1/graph?{step(draw)}"),
                "first page": lambda _: first_page(server),
                "list of jobs": lambda _: server.get("/api/v1/jobs?limit=50"),
                "result of a job": lambda _: server.get(f"/api/v1/jobs/{job}/result"),
            }
            head = f"{'request':20} {'median':>9} {'p95':>9} {'limit':>9} {'processor':>10}"
            print(f"{head}   ({N_JOBS} finished jobs, {n} requests)")
            begun = {"start": [(start_s, started_s)] * 2, "ready": [(ready_s, readied_s)] * 2}
            measured = begun | {what: times_s(server, ask, n) for what, ask in asked.items()}
            for what, found in measured.items():
                (middle, p95), (_, worked) = (_middle_and_late(column) for column in zip(*found, strict=True))
                ok = p95 <= LIMITS_S[what]
                missed += not ok
                shown = [f"{1e3 * s:6.0f} ms" for s in (middle, p95, LIMITS_S[what], worked)]
                print(f"{what:20} {' '.join(shown)}   {'' if ok else 'MISSED'}")
        finally:
            server.stop()
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
