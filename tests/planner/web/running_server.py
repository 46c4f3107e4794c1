"""A server of `plan serve` in a process of its own, and a client that speaks to it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

PLAN = [sys.executable, "-m", "planner.main"]
#: A plan of about a second: one layout, fixed limits, short requests.
SMALL = {
    "model": "llama3.2-1b",
    "hardware": "l40s",
    "slo": ["ttft.p50=5s"],
    "rate": 1,
    "input_tokens": 16,
    "output_tokens": 2,
    "precisions": ["native"],
    "fixed": {"max_num_seqs": 64, "max_num_batched_tokens": 2048, "kv_dtype": "bf16"},
}
#: A plan of some ten seconds, which finds feasible candidates early.
LONG = {"model": "llama3.1-70b", "hardware": "h100x8", "slo": ["ttft.p99=2s"]}
#: How long a server may take to start and to end, on a machine that does much else.
MOST_START_S, MOST_END_S = 180, 120


@dataclass
class RunningServer:
    """`plan serve` with a store in a folder, and a client of it."""

    folder: Path
    options: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    process: subprocess.Popen[str] | None = None
    url: str = ""

    def start(self) -> RunningServer:
        store = f"sqlite:///{self.folder / 'jobs.sqlite'}"
        options = self.options if "--store" in self.options else ("--store", store, *self.options)
        environment = os.environ | {"XDG_DATA_HOME": str(self.folder / "data")} | self.environment
        command = [*PLAN, "serve", "--port", "0", *options]
        with (self.folder / "server.log").open("w") as log:
            self.process = subprocess.Popen(command, stderr=log, env=environment, text=True, start_new_session=True)
        until = time.monotonic() + MOST_START_S
        while time.monotonic() < until:
            if found := re.search(r"plan serve: (http\S+)/ ", self.log):
                self.url = found[1]
                return self
            if self.process.poll() is not None:
                raise RuntimeError(self.log)
            time.sleep(0.05)
        raise TimeoutError(self.log)

    @property
    def log(self) -> str:
        return (self.folder / "server.log").read_text()

    def client(self, **more: Any) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=180, **more)

    def wait_until_ready(self, client: httpx.Client) -> None:
        """Wait until `/readyz` answers 200."""
        until = time.monotonic() + 60
        while client.get("/readyz").status_code == 503:
            if time.monotonic() > until:
                raise TimeoutError(self.log)
            time.sleep(0.05)

    def stop(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGINT)
        self.process.wait(MOST_END_S)

    def kill(self) -> None:
        """As a machine that loses power: nothing is tidied."""
        assert self.process is not None
        self.process.kill()
        self.process.wait(MOST_END_S)


def finished(client: httpx.Client, job: dict[str, Any], most_s: float = 900) -> dict[str, Any]:
    """The job when it has ended."""
    until = time.monotonic() + most_s
    while job["status"] in ("queued", "running"):
        assert time.monotonic() < until, job
        time.sleep(0.05)
        job = client.get(f"/api/v1/jobs/{job['id']}").json()
    return job


def submitted(client: httpx.Client, path: str, body: dict[str, Any]) -> dict[str, Any]:
    response = client.post(f"/api/v1/{path}", json=body)
    assert response.status_code in (200, 202), response.text
    found: dict[str, Any] = response.json()
    return found


def answered(client: httpx.Client, path: str, body: dict[str, Any]) -> tuple[dict[str, Any], Any]:
    """The job of a question when it is done, and its result."""
    job = finished(client, submitted(client, path, body))
    assert job["status"] == "done", job
    return job, client.get(f"/api/v1/jobs/{job['id']}/result").json()
