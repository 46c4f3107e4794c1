"""The simulate, fronts, compare, calibrate and inference pages in a real browser, whole flows with their jobs."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from calibration.bundles.archive import export_bundle
from catalogs.hardware.catalog import parse_hardware
from tests.hostile_server import HostileServer, hostile
from tests.planner.web.running_server import SMALL, RunningServer, answered
from tests.planner.web.watched_page import watched

if TYPE_CHECKING:
    from playwright.sync_api import Browser

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"

MOST_MS = 180_000


def streams_text(connection: Any) -> None:
    """Answer as a model does that generates four tokens, one of them markup."""
    connection.sendall(HEAD)
    for text in ("<img src=x onerror=alert(1)>", " is", " no", " markup"):
        connection.sendall(b"data: " + json.dumps({"choices": [{"delta": {"content": text}}]}).encode() + b"\n\n")
        time.sleep(0.01)
    usage = {"prompt_tokens": 20, "completion_tokens": 4}
    connection.sendall(b"data: " + json.dumps({"choices": [], "usage": usage}).encode() + b"\n\ndata: [DONE]\n\n")


@pytest.fixture(scope="module")
def model() -> Iterator[HostileServer]:
    with hostile(streams_text) as server:
        yield server


@pytest.fixture(scope="module")
def task_server(tmp_path_factory: pytest.TempPathFactory, model: HostileServer) -> Iterator[RunningServer]:
    folder = tmp_path_factory.mktemp("tasks")
    deployment = {"model": "llama3.2-1b", "hardware": "l40s"}
    listed = {"served": {"url": f"{model.url}/v1", "models": ["m"], "usd_per_hour": 3.6, "deployment": deployment}}
    (folder / "endpoints.yaml").write_text(json.dumps(listed))
    server = RunningServer(folder, ("--workers", "1", "--endpoints", str(folder / "endpoints.yaml"))).start()
    yield server
    server.stop()


def test_an_inference_task_is_a_job(task_server: RunningServer, model: HostileServer) -> None:
    body = {"endpoint": "served", "prompt": "Hello", "requests": 3, "concurrency": 2, "output_tokens": 8}
    with task_server.client() as client:
        (endpoint,) = client.get("/api/v1/endpoints").json()["items"]
        assert (endpoint["name"], endpoint["models"]) == ("served", ["m"])
        job, found = answered(client, "inference-tasks", body)
        assert [row["output_tokens"] for row in found["requests"]] == [4, 4, 4]
        assert found["simulated"]["n_completed"] == 3
        assert found["simulated"]["e2e_s"]["p50"] > 0
        assert f":{model.port}" not in json.dumps([job, found, endpoint])
        again = client.post("/api/v1/inference-tasks", json=body)
        assert again.status_code == 202  # it measures: the same question is sent again
        for change in ({"endpoint": "http://169.254.169.254/"}, {"url": "http://x"}, {"requests": 10**9}):
            refused = client.post("/api/v1/inference-tasks", json=body | change)
            assert refused.status_code == 422, refused.text


def test_a_calibration_and_results_are_imported(task_server: RunningServer, tmp_path: Path) -> None:
    archive = export_bundle("l40s", tmp_path / "l40s.tar.gz")
    with task_server.client() as client:
        upload = client.post("/api/v1/uploads", files={"file": ("l40s.tar.gz", archive.read_bytes())}).json()
        job, found = answered(client, "imports", {"calibration": upload["upload"]})
        assert (job["verdict"], found["hardware"]) == ("yes", "l40s")
        items = {item["name"]: item for item in client.get("/api/v1/calibrations").json()["items"]}
        assert items["l40s"]["own"] is True
        assert items["h100"]["own"] is False
        for body in ({}, {"calibration": "l40s.tar.gz"}, {"calibration": upload["upload"], "results": ["x"]}):
            assert client.post("/api/v1/imports", json=body).status_code == 422


def test_tables_of_operators_are_checked_fitted_and_installed(task_server: RunningServer) -> None:
    rows = gemm_rows()
    with task_server.client() as client:
        upload = client.post("/api/v1/uploads", files={"file": ("gemm.csv", rows)}).json()["upload"]
        body = {"tables": [upload], "hardware": "l4"}
        job, found = answered(client, "imports", body)
        assert (job["verdict"], found["hardware"]) == ("yes", "l4")
        assert found["rows"]["gemm"] == rows.count(b"\n") - 2
        assert any("gemm: 1 of" in line for line in found["notices"])  # the row that no l4 could have
        items = {item["name"]: item for item in client.get("/api/v1/calibrations").json()["items"]}
        measured = {family["family"] for family in items["l4"]["families"] if family["measured"]}
        assert (items["l4"]["own"], measured) == (True, {"gemm"})
        wrong = client.post("/api/v1/uploads", files={"file": ("gems.csv", rows + b"\n\n")}).json()["upload"]
        second = client.post("/api/v1/uploads", files={"file": ("gemm.csv", rows + b"\n")}).json()["upload"]
        for change, nearest in (
            ({"tables": [wrong]}, "gemm.parquet"),
            ({"tables": [upload, second]}, "one file for each family"),
            ({"hardware": None}, "hardware: h100"),
        ):
            refused = client.post("/api/v1/imports", json=body | change)
            assert (refused.status_code, refused.json()["nearest"]) == (422, nearest)


def gemm_rows() -> bytes:
    """Matrix products as an l4 might run them, at 60 % of its peaks, and one at a hundred times its peak."""
    l4 = parse_hardware("l4").accelerator
    lines = ["m,n,k,dtype,seconds,source"]
    for n, k in ((1024, 1024), (4096, 1024), (4096, 4096), (8192, 4096), (14336, 4096), (4096, 14336)):
        for m in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096):
            flops, size = 2.0 * m * n * k, 2.0 * (m * k + k * n + m * n)
            seconds = max(flops / l4.peak_flops["bf16"], size / l4.memory_bandwidth_bytes_per_s) / 0.6 + 4e-6
            lines.append(f"{m},{n},{k},bf16,{seconds:.9g},own measurement")
    lines.append(f"4096,4096,4096,bf16,{2 * 4096**3 / l4.peak_flops['bf16'] / 100:.9g},own measurement")
    return ("\n".join(lines) + "\n").encode()


@pytest.mark.slow
def test_the_text_of_a_model_is_shown_as_text(browser: Browser, task_server: RunningServer) -> None:
    with watched(browser, task_server.url) as found:
        page = found.open("/run")
        page.locator("#requests").fill("2")
        page.locator("#go").click()
        page.locator("#answer pre", has_text="is no markup").first.wait_for(timeout=MOST_MS)
        assert page.locator("#answer img").count() == 0
        assert "simulated" in page.locator("#answer .cards").inner_text()
        assert page.locator("#answer tbody tr").count() == 2
        page.locator("#answer .main-svg").first.wait_for()
        address = page.url
        assert "job=" in address
        tab = page.context.new_page()
        tab.goto(address)
        tab.locator("#answer pre", has_text="is no markup").first.wait_for(timeout=MOST_MS)
        assert tab.locator("#requests").input_value() == "2"


@pytest.mark.slow
def test_a_deployment_is_mended_and_simulated(browser: Browser, task_server: RunningServer) -> None:
    with watched(browser, task_server.url) as found:
        page = found.open("/simulate")
        page.locator("#deployment").fill("model: llama3.2-1b\nhardware: l40s\nreplica: 1\n")
        page.locator("#faults li", has_text="unknown key 'replica'").wait_for()
        assert page.locator("#lines .wrong").inner_text() == "3"
        page.locator("#faults").get_by_role("button", name="Use it").click()
        page.locator("#faults li").wait_for(state="detached")
        assert "replicas: 1" in page.locator("#deployment").input_value()
        page.locator("#requests").fill("40")
        page.locator("#rate").fill("4")
        page.locator("#go").focus()
        page.keyboard.press("Enter")
        page.locator("#answer .cards").wait_for(timeout=MOST_MS)
        page.locator("#answer .main-svg").first.wait_for()
        for title in ("Over time", "Phases of a request", "Where the time goes"):
            page.locator("#answer summary", has_text=title).click()
        page.locator("#answer table[class], #answer tbody tr", has_text="completed").first.wait_for()
        with page.expect_download() as download:
            page.get_by_role("link", name="Trace for Perfetto").click()
        trace = json.loads(Path(download.value.path()).read_text())
        assert trace["traceEvents"]
        address = page.url
        tab = page.context.new_page()
        tab.goto(address)
        tab.locator("#answer .cards").wait_for(timeout=MOST_MS)
        assert tab.locator("#deployment").input_value() == page.locator("#deployment").input_value()
        assert tab.locator("#rate").input_value() == "4"


@pytest.mark.slow
def test_a_front_has_a_best_balance(browser: Browser, task_server: RunningServer) -> None:
    query = "model=llama3.2-1b&hardware=l40s&input_tokens=64&output_tokens=16&search.trials=6&slo=ttft.p50%3D5s"
    with watched(browser, task_server.url) as found:
        page = found.open(f"/fronts?{query}")
        assert page.locator("#users").is_hidden()
        page.locator("#axis-1").select_option("e2e.mean")
        page.locator("#go").click()
        page.locator("#answer .verdict", has_text="Best balance").wait_for(timeout=MOST_MS)
        page.locator("#answer .main-svg").first.wait_for()
        assert page.locator("#answer tbody tr", has_text="★").count() == 1
        assert "axes=cost%2Ce2e.mean" in page.url


@pytest.mark.slow
def test_finished_plans_side_by_side(browser: Browser, task_server: RunningServer) -> None:
    with task_server.client() as client:
        for hardware in ("l40s", "h100"):
            answered(client, "plans", SMALL | {"hardware": hardware})
    with watched(browser, task_server.url) as found:
        page = found.open("/compare")
        page.locator("#answer tbody tr", has_text="$ per million output tokens").wait_for()
        assert page.locator("#answer tbody .good").count() > 0
        page.locator("#rate").fill("x2")
        page.get_by_role("button", name="Simulate the change").click()
        page.locator("#changed tbody tr", has_text="planned requests/s").wait_for(timeout=MOST_MS)
        address = page.url
        tab = page.context.new_page()
        tab.goto(address)
        tab.locator("#changed tbody tr", has_text="planned requests/s").wait_for(timeout=MOST_MS)
        page.locator("#plans input").first.uncheck()
        page.get_by_text("Choose two plans or more").wait_for()


@pytest.mark.slow
def test_a_profile_can_be_started_and_cancelled(browser: Browser, task_server: RunningServer) -> None:
    with watched(browser, task_server.url) as found:
        page = found.open("/calibrate")
        page.locator("#known .main-svg").first.wait_for()
        page.locator("#budget_s").fill("600")
        page.get_by_role("button", name="Start the profile").click()
        page.locator(".progress").wait_for()
        page.get_by_role("button", name="Cancel").click()
        page.locator("#answer > *").first.wait_for(timeout=60_000)
