"""Response times of `plan serve` with a hundred finished jobs, against their limits; exit status 1 if one is exceeded.

    python benchmarks/serve_speed.py [--requests 60]

A request of each kind is sent again and again with other values, so that no answer is one that was kept. The first page
counts with every file that it loads. Times are of requests one after another, on this machine.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

from planner.web.store import DONE, RESULT, NewJob, Store

#: Finished jobs in the store.
N_JOBS = 100
#: Limits of the 95th percentile, seconds.
LIMITS_S = {
    "start": 2.0,
    "live strip": 0.3,
    "analysis of a step": 0.5,
    "first page": 1.0,
    "list of jobs": 0.3,
    "result of a job": 0.3,
}
QUESTION = {
    "model": "llama3.2-1b", "hardware": "l40s", "slo": ["ttft.p50=5s"], "rate": 1, "input_tokens": 16,
    "output_tokens": 2, "precisions": ["native"], "fixed": {"max_num_seqs": 64, "kv_dtype": "bf16"},
}  # fmt: skip
MODELS = ("llama3.1-8b", "llama3.1-70b", "qwen3-32b", "mixtral-8x7b")


class Server:
    """`plan serve` on a free port."""

    def __init__(self, folder: Path) -> None:
        command = [sys.executable, "-m", "planner.cli.main", "serve", "--port", "0"]
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
    store = Store(f"sqlite:///{folder / 'jobs.sqlite'}")
    content = store.artifact(job["id"]) or b""
    for number in range(N_JOBS - 1):
        store.add(NewJob("plan", f"{job['title']} {number}", "", f"key {number}", QUESTION))
        copy = store.claim("benchmark", (), only=False)
        assert copy is not None
        store.write_progress(copy, job["progress"])
        store.finish(copy, DONE, {RESULT: content}, "yes")
    store.close()


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
            names = re.findall(r'from "\./([\w.]+)"', text.decode())
            loaded |= {f"/static/js/{name}" for name in names}
    server.get("/api/v1/jobs?limit=10")


def times_s(ask: Callable[[int], object], n: int) -> list[float]:
    """Return the times of requests, seconds; the first is left out, which reads the catalogs."""
    found = []
    for i in range(n + 1):
        started = time.perf_counter()
        ask(i)
        found.append(time.perf_counter() - started)
    return found[1:]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=60, metavar="N")
    n = parser.parse_args().requests
    missed = 0
    with tempfile.TemporaryDirectory(prefix="serve-speed-") as name:
        folder = Path(name)
        fill(folder)
        started = time.perf_counter()
        server = Server(folder)
        server.get("/")
        start_s = time.perf_counter() - started
        try:
            described = json.loads(server.get("/openapi.json"))["paths"]
            job = json.loads(server.get("/api/v1/jobs?limit=1"))["items"][0]["id"]

            def strip(i: int) -> bytes:
                model, slo = MODELS[i % len(MODELS)], quote(f"ttft.p99={1 + i / 100}s")
                return server.get(f"/api/v1/guess?model={model}&hardware=h100x8&slo={slo}&rate={1 + i % 7}")

            def analysis(i: int) -> bytes:
                step = f"batch={1 + i % 64}&context={512 + 16 * i}&stage={('decode', 'prefill')[i % 2]}"
                return server.get(f"/api/v1/analyze?model={MODELS[i % len(MODELS)]}&hardware=h100x8&{step}")

            asked: dict[str, Callable[[int], object]] = {
                "analysis of a step": analysis,
                "first page": lambda _: first_page(server),
                "list of jobs": lambda _: server.get("/api/v1/jobs?limit=50"),
                "result of a job": lambda _: server.get(f"/api/v1/jobs/{job}/result"),
            }
            if "/api/v1/guess" in described:
                asked = {"live strip": strip} | asked
            print(f"{'request':20} {'median':>9} {'p95':>9} {'limit':>9}   ({N_JOBS} finished jobs, {n} requests)")
            measured = {"start": [start_s, start_s]} | {what: times_s(ask, n) for what, ask in asked.items()}
            for what, found in measured.items():
                p95 = statistics.quantiles(found, n=20)[-1]
                ok = p95 <= LIMITS_S[what]
                missed += not ok
                shown = [f"{1e3 * s:6.0f} ms" for s in (statistics.median(found), p95, LIMITS_S[what])]
                print(f"{what:20} {' '.join(shown)}   {'' if ok else 'MISSED'}")
        finally:
            server.stop()
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
