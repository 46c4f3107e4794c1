"""The queue: cancel keeps the best, a killed server loses nothing, limits hold, and too many jobs are refused."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.planner.web.running_server import LONG, MOST_END_S, SMALL, RunningServer, answered, finished, submitted

#: Time within which the process of a cancelled job must be gone.
GONE_S = 3.0


def settings(folder: Path, **limits: object) -> tuple[str, str]:
    file = folder / "serve.yaml"
    file.write_text("".join(f"{name}: {value}\n" for name, value in limits.items()))
    return "--settings", str(file)


@pytest.fixture
def started() -> Iterator[list[RunningServer]]:
    """Servers that a test starts, which end with it."""
    servers: list[RunningServer] = []
    yield servers
    for server in servers:
        if server.process is not None and server.process.poll() is None:
            server.stop()


def with_best(client: httpx.Client, job: dict[str, Any]) -> dict[str, Any]:
    """The job as soon as its search has a best candidate."""
    until = time.monotonic() + 600
    while not ((job.get("progress") or {}).get("best")):
        assert job["status"] in ("queued", "running"), job
        assert time.monotonic() < until
        time.sleep(0.05)
        job = client.get(f"/api/v1/jobs/{job['id']}").json()
    return job


def processes_of(id_: str) -> list[int]:
    """The processes that work in the folder of a job."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if os.readlink(process / "cwd").removesuffix(" (deleted)").endswith(id_):
                found.append(int(process.name))
        except OSError:
            continue
    return found


def test_a_cancelled_plan_is_gone_soon_and_keeps_its_best(tmp_path: Path, started: list[RunningServer]) -> None:
    started.append(server := RunningServer(tmp_path).start())
    with server.client() as client:
        job = with_best(client, submitted(client, "plans", LONG))
        assert processes_of(job["id"])
        asked = time.monotonic()
        assert client.delete(f"/api/v1/jobs/{job['id']}").status_code == 200
        while processes_of(job["id"]):
            assert time.monotonic() < asked + GONE_S
            time.sleep(0.02)
        job = finished(client, job)
        assert job["status"] == "cancelled"
        result = client.get(f"/api/v1/jobs/{job['id']}/result").json()
        kept = result["best"]["deployment"] if "best" in result else result["best_so_far"]["deployment"]
        assert kept["model"]
        waiting = submitted(client, "plans", LONG | {"seed": 1})
        assert client.delete(f"/api/v1/jobs/{waiting['id']}").status_code == 200
        assert finished(client, waiting)["status"] == "cancelled"
        again = client.post("/api/v1/plans", json=LONG)  # a cancelled answer is not the answer
        assert again.status_code == 202
        assert again.json()["id"] != job["id"]
        client.delete(f"/api/v1/jobs/{again.json()['id']}")


@pytest.mark.slow
def test_a_killed_server_loses_no_job_and_none_runs_twice(tmp_path: Path, started: list[RunningServer]) -> None:
    started.append(server := RunningServer(tmp_path, ("--workers", "1")).start())
    with server.client() as client:
        running = submitted(client, "plans", SMALL | {"workload": "chat", "input_tokens": None, "output_tokens": None})
        waiting = submitted(client, "plans", SMALL)
        while client.get(f"/api/v1/jobs/{running['id']}").json()["status"] != "running":
            time.sleep(0.02)
    server.kill()
    until = time.monotonic() + MOST_END_S
    while processes_of(running["id"]):  # they end with it
        assert time.monotonic() < until
        time.sleep(0.02)
    started.append(again := RunningServer(tmp_path).start())
    with again.client() as client:
        for job in (running, waiting):
            assert finished(client, client.get(f"/api/v1/jobs/{job['id']}").json())["status"] == "done"
        assert len(client.get("/api/v1/jobs").json()["items"]) == 2


@pytest.mark.slow
def test_a_killed_process_is_replaced(tmp_path: Path, started: list[RunningServer]) -> None:
    started.append(server := RunningServer(tmp_path, ("--workers", "1")).start())
    with server.client() as client:
        job = submitted(client, "plans", SMALL)
        while not (found := processes_of(job["id"])):
            time.sleep(0.01)
        os.kill(found[0], signal.SIGKILL)
        assert finished(client, job)["status"] == "done"


def test_a_job_whose_folder_cannot_be_made_fails_and_the_queue_goes_on(
    tmp_path: Path, started: list[RunningServer]
) -> None:
    (tmp_path / "jobs").write_text("a file where the folder of all jobs would be")
    started.append(server := RunningServer(tmp_path, ("--workers", "1")).start())
    with server.client() as client:
        job = finished(client, submitted(client, "plans", SMALL))
        assert job["status"] == "failed"
        assert job["error"]["title"] == "The job could not start"
        assert str(tmp_path) not in job["error"]["detail"]
        (tmp_path / "jobs").unlink()
        assert finished(client, submitted(client, "plans", SMALL | {"seed": 1}))["status"] == "done"


@pytest.mark.slow
def test_limits_of_memory_and_time_end_a_job_and_say_so(tmp_path: Path, started: list[RunningServer]) -> None:
    started.append(server := RunningServer(tmp_path, settings(tmp_path, job_memory_mib=8)).start())
    with server.client() as client:
        job = finished(client, submitted(client, "plans", SMALL))
        assert job["status"] == "failed"
        assert "8 MiB of memory" in job["error"]["detail"]
    server.stop()
    started.append(server := RunningServer(tmp_path, settings(tmp_path, job_cpu_s=2)).start())
    with server.client() as client:
        job = finished(client, submitted(client, "plans", LONG))
        assert job["status"] == "failed"
        assert "2 s of processor time" in job["error"]["detail"]


@pytest.mark.slow
def test_a_full_queue_refuses_and_loses_nothing(tmp_path: Path, started: list[RunningServer]) -> None:
    started.append(server := RunningServer(tmp_path, ("--workers", "1", *settings(tmp_path, max_queued=3))).start())
    with server.client() as client:
        sent = [client.post("/api/v1/plans", json=SMALL | {"seed": seed}) for seed in range(8)]
        assert {response.status_code for response in sent} == {202, 429}
        refused = next(response for response in sent if response.status_code == 429)
        assert refused.headers["content-type"] == "application/problem+json"
        accepted = [response.json() for response in sent if response.status_code == 202]
        assert len(accepted) in (3, 4)
        assert {finished(client, job)["status"] for job in accepted} == {"done"}


@pytest.mark.slow
def test_fifty_jobs_at_once_are_answered_or_refused_and_none_is_lost(
    tmp_path: Path, started: list[RunningServer]
) -> None:
    started.append(server := RunningServer(tmp_path, settings(tmp_path, max_queued=24)).start())
    with server.client() as client, ThreadPoolExecutor(50) as threads:
        sent = list(threads.map(lambda seed: client.post("/api/v1/plans", json=SMALL | {"seed": seed}), range(50)))
        accepted = [response.json() for response in sent if response.status_code == 202]
        assert {response.status_code for response in sent} == {202, 429}
        assert len(accepted) >= 24
        ended = [finished(client, job) for job in accepted]
        assert {job["status"] for job in ended} == {"done"}
        assert len({job["id"] for job in ended}) == len(accepted)
        counts = client.get("/metrics").text
        assert f'planner_jobs{{status="done"}} {len(accepted)}' in counts


@pytest.mark.slow
def test_a_plan_that_a_killed_server_began_continues_with_the_same_answer(
    tmp_path: Path, started: list[RunningServer]
) -> None:
    (tmp_path / "whole").mkdir()
    started.append(whole := RunningServer(tmp_path / "whole").start())
    with whole.client() as client:
        _, expected = answered(client, "plans", LONG)
    whole.stop()
    started.append(server := RunningServer(tmp_path).start())
    with server.client() as client:
        job = with_best(client, submitted(client, "plans", LONG))
    server.kill()
    started.append(again := RunningServer(tmp_path).start())
    with again.client() as client:
        job = finished(client, job)
        found = client.get(f"/api/v1/jobs/{job['id']}/result").json()
    assert found["search"]["n_resumed"] > 0
    assert found["best"] == expected["best"]
    assert found["search"]["n_simulated"] == expected["search"]["n_simulated"]
