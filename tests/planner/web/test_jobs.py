"""Jobs over HTTP: an answer is that of the command, an equal question has one job, events resume, files download."""

from __future__ import annotations

import html
import io
import json
import re
import subprocess
import zipfile
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pandas as pd
import pytest

from tests.planner.web.running_server import PLAN, SMALL, answered, finished, submitted

TRACE = b"arrival_s,input_tokens,output_tokens\n" + b"".join(b"%d,64,16\n" % i for i in range(50))


def without_times(document: dict[str, Any]) -> dict[str, Any]:
    search = {key: value for key, value in document["search"].items() if key != "seconds"}
    return document | {"search": search}


@pytest.fixture(scope="module")
def plan(server: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    with server.client() as client:
        return answered(client, "plans", SMALL)


def test_a_plan_is_that_of_the_command(plan: tuple[dict[str, Any], dict[str, Any]], tmp_path: Path) -> None:
    scenario, out = tmp_path / "scenario.json", tmp_path / "answer.json"
    scenario.write_text(json.dumps(SMALL))
    done = subprocess.run([*PLAN, str(scenario), "--json", str(out)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    job, document = plan
    assert job["verdict"] == "yes"
    assert without_times(document) == without_times(json.loads(out.read_text()))


def test_an_equal_question_has_one_job(client: httpx.Client, plan: tuple[dict[str, Any], dict[str, Any]]) -> None:
    job, _ = plan
    spelled = SMALL | {"slo": "p50=5s", "rate": 1.0, "objective": "cost", "search": {"trials": 40}}
    again = client.post("/api/v1/plans", json=spelled)
    assert again.status_code == 200
    assert again.json()["id"] == job["id"]
    assert again.headers["location"] == f"/api/v1/jobs/{job['id']}"
    assert client.post("/api/v1/question", json=spelled).json()["key"] == job["key"]


def events(text: str) -> list[tuple[str, int, Any]]:
    blocks = [dict(line.split(": ", 1) for line in block.splitlines()) for block in text.strip().split("\n\n")]
    return [(b["event"], int(b["id"]), json.loads(b["data"])) for b in blocks if "event" in b]


def test_events_ascend_end_with_the_job_and_resume(client: httpx.Client) -> None:
    job = submitted(client, "plans", SMALL | {"seed": 5})
    seen = events(client.get(f"/api/v1/jobs/{job['id']}/events").text)
    assert [kind for kind, _, _ in seen][-1] == "done"
    numbers = [number for _, number, _ in seen]
    assert numbers == sorted(numbers)
    assert seen[-1][2]["status"] == "done"
    assert seen[0][0] == "progress"
    assert {"done", "total", "words", "best"} == set(seen[0][2])
    last = {"Last-Event-ID": str(numbers[-1])}
    again = events(client.get(f"/api/v1/jobs/{job['id']}/events", headers=last).text)
    assert [kind for kind, _, _ in again] == ["done"]


def test_a_refused_question_is_a_problem_and_a_refusal_a_verdict(client: httpx.Client) -> None:
    wrong = client.post("/api/v1/plans", json=SMALL | {"modle": "x"})
    assert wrong.status_code == 422
    assert wrong.headers["content-type"] == "application/problem+json"
    assert wrong.json()["nearest"] == "model"
    job, document = answered(client, "plans", SMALL | {"slo": ["ttft.p50=1us"]})
    assert job["verdict"] == "no"
    assert document["feasible"] is False


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("model", "no-such-model", "unknown model"),
        ("hardware", "a100-80g", "unknown hardware"),
        ("hardware", "h100x999999999999", "at most 8"),
        ("workload", "no-such-workload", "no-such-workload"),
        ("input_tokens", 10**21, "at most 1,000,000,000"),
    ],
)
@pytest.mark.parametrize("kind", ["plans", "fronts"])
def test_an_unknown_name_is_refused_before_it_is_a_job(
    client: httpx.Client, kind: str, key: str, value: object, words: str
) -> None:
    before = client.get("/api/v1/jobs").json()
    refused = client.post(
        f"/api/v1/{kind}", json={name: SMALL[name] for name in ("model", "hardware", "slo")} | {key: value}
    )
    assert refused.status_code == 422
    assert words in refused.json()["detail"]
    assert client.get("/api/v1/jobs").json() == before


def test_a_fault_of_a_request_names_the_rule_the_place_and_the_value(client: httpx.Client) -> None:
    step = {"model": "llama3.1-8b", "hardware": "h100"}
    wrong = client.get("/api/v1/analyze", params=step | {"batch": "abc"}).json()
    assert wrong["rule"].startswith("batch: ")
    assert wrong["value"] == "abc"
    assert client.get("/api/v1/analyze").json()["rule"] == "model is missing"
    form = client.post("/api/v1/plans", content="{}", headers={"Content-Type": "text/plain"}).json()
    assert "application/json" in form["hint"]


def test_a_browser_sees_a_page_where_there_is_none(client: httpx.Client) -> None:
    browser = client.get("/no-such-page", headers={"Accept": "text/html"})
    assert browser.status_code == 404
    assert "There is no such page" in browser.text
    assert client.get("/api/v1/no-such", headers={"Accept": "text/html"}).json()["status"] == 404


def test_a_plan_downloads_as_table_page_and_files(
    client: httpx.Client, plan: tuple[dict[str, Any], dict[str, Any]]
) -> None:
    here = f"/api/v1/jobs/{plan[0]['id']}"
    rows = pd.read_csv(io.StringIO(client.get(f"{here}/result.csv").text))
    columns = pd.read_parquet(io.BytesIO(client.get(f"{here}/result.parquet").content))
    assert list(rows.columns) == list(columns.columns)
    assert rows["model"][0] == plan[1]["best"]["deployment"]["model"]
    packed = client.get(f"{here}/files.zip", params={"target": "kubernetes"})
    names = zipfile.ZipFile(io.BytesIO(packed.content)).namelist()
    assert {"kubernetes/README.md", "kubernetes/plan.json"} <= set(names)
    assert client.get(f"{here}/files.zip", params={"target": "nomad"}).status_code == 422
    assert client.get(f"{here}/deployment.yaml").text.startswith("model: ")
    assert client.get(f"{here}/secret.csv").status_code == 404
    listed = client.get("/api/v1/jobs").json()["items"]
    assert {item["kind"] for item in listed} <= {"plan", "simulation", "front", "whatif"}


def test_a_report_is_the_page_of_its_plan(client: httpx.Client, plan: tuple[dict[str, Any], dict[str, Any]]) -> None:
    here, best = f"/api/v1/jobs/{plan[0]['id']}", plan[1]["best"]
    page = client.get(f"{here}/result.html")
    assert page.headers["content-type"].startswith("text/html")
    assert "sandbox" in page.headers["content-security-policy"]
    assert "default-src 'none'" in page.headers["content-security-policy"]
    shown = html.unescape(page.text)
    assert shown.lstrip().lower().startswith("<!doctype html>")
    assert SMALL["model"] in shown
    assert best["command"].split(" --")[0] in shown
    loaded = r"<(?:script|link|img|iframe)\b[^>]*(?:src|href)=.?(?:https?:)?//"
    assert re.findall(loaded, page.text) == []
    again = client.get(f"{here}/result.html")
    assert again.content == page.content


def measured(slower: float, plan: dict[str, Any], n: int = 200) -> bytes:
    """A result of `vllm bench serve` at one request per second, with latencies `slower` times those of the plan."""
    cdf, levels = plan["best"]["latency_cdf"], (np.arange(n) + 0.5) / n
    first, gap = (
        slower * np.interp(levels, np.array(cdf["quantiles"], float), np.array(cdf[name], float))
        for name in ("ttft_s", "tpot_s")
    )
    return json.dumps({
        "model_id": SMALL["model"], "duration": float(n), "completed": n, "request_throughput": 1.0,
        "input_lens": [SMALL["input_tokens"]] * n, "output_lens": [2] * n, "ttfts": first.tolist(),
        "itls": [[g] for g in gap.tolist()], "latencies": (first + gap).tolist(),
        "start_times": np.cumsum(np.random.default_rng(5).exponential(size=n)).tolist(), "errors": [""] * n,
    }).encode()  # fmt: skip


@pytest.mark.parametrize(("slower", "verdict"), [(1.0, "yes"), (50.0, "no")])
def test_a_measured_run_is_compared_with_its_plan(
    client: httpx.Client, plan: tuple[dict[str, Any], dict[str, Any]], tmp_path: Path, slower: float, verdict: str
) -> None:
    content = measured(slower, plan[1])
    sent = client.post("/api/v1/uploads", files={"file": ("result.json", content)}).json()
    assert sent["kind"] == "result"
    job, document = answered(client, "verifications", {"job": plan[0]["id"], "results": [sent["upload"]]})
    assert job["verdict"] == verdict, document
    assert job["parent"] == plan[0]["id"]
    assert "result.json" in job["title"]
    (tmp_path / "result.json").write_bytes(content)
    (tmp_path / "plan.json").write_text(json.dumps(plan[1]))
    command = [*PLAN, "verify", "plan.json", "--results", "result.json", "--json", "out.json"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == (0 if verdict == "yes" else 1), done.stderr
    assert document == json.loads((tmp_path / "out.json").read_text())


def test_a_trace_is_uploaded_named_by_its_hash_and_shown_by_its_name(client: httpx.Client) -> None:
    sent = client.post("/api/v1/uploads", files={"file": ("../../my trace.csv", TRACE)})
    assert sent.status_code == 201
    upload = sent.json()["upload"]
    body = {**SMALL, "workload": upload, "input_tokens": None, "output_tokens": None}
    assert client.get(f"/api/v1/uploads/{upload}").json() == sent.json()
    job, document = answered(client, "plans", body)
    assert document["request"]["workload"] == "my_trace.csv"
    assert "my_trace.csv" in document["reproduce"]["command"]
    assert job["question"]["workload"] == upload
    changed, found = answered(client, "whatifs", {"job": job["id"], "changes": {"rate": "x2"}})
    assert changed["parent"] == job["id"]
    assert found["comparison"]["figures"]
    missing = client.post("/api/v1/plans", json=SMALL | {"workload": f"upload:{'0' * 64}"})
    assert missing.json()["rule"] == "no such upload"


def test_a_simulation_has_requests_series_and_trace(client: httpx.Client) -> None:
    deployment = {"model": "llama3.2-1b", "hardware": "l40s"}
    job, document = answered(client, "simulations", {"deployment": deployment, "rate": 2, "requests": 60})
    assert document["metrics"]["n_completed"] == 60
    here = f"/api/v1/jobs/{job['id']}"
    assert len(client.get(f"{here}/requests.json").json()["ttft_s"]) == 60
    assert client.get(f"{here}/time_series.json").json()["time_s"][0] == 1.0
    assert client.get(f"{here}/trace.json").json()["traceEvents"]
    wrong = {"deployment": deployment | {"kv_dtpe": "fp8"}}
    assert client.post("/api/v1/simulations", json=wrong).json()["nearest"] == "kv_dtype"


def test_a_front_is_that_of_its_axes(client: httpx.Client) -> None:
    body = {key: value for key, value in SMALL.items() if key != "fixed"}
    job, document = answered(client, "fronts", body | {"axes": ["cost", "tpot.mean"], "search": {"trials": 2}})
    assert [axis["name"] for axis in document["axes"]] == ["cost", "tpot.mean"]
    assert job["question"]["axes"] == ["cost", "tpot.mean"]
    assert client.get(f"/api/v1/jobs/{job['id']}/result.csv").text.count("\n") == len(document["simulated"]) + 1


def test_a_finished_job_is_deleted(client: httpx.Client) -> None:
    job = finished(client, submitted(client, "plans", SMALL | {"seed": 6}))
    assert client.delete(f"/api/v1/jobs/{job['id']}").status_code == 204
    assert client.get(f"/api/v1/jobs/{job['id']}").status_code == 404
    assert client.get(f"/api/v1/jobs/{job['id']}/result").status_code == 404
