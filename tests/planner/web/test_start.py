"""The server starts without the planner: what handlers compute with is imported later."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from fastapi.testclient import TestClient

from planner.web.app import create_app
from planner.web.settings import ServerSettings
from tests.planner.web.running_server import RunningServer

#: Packages that take long to import, and none of which the first page needs.
HEAVY = (
    "numpy", "pandas", "optuna", "scipy", "plotly", "simulator", "calibration.bundles", "planner.search",
    "planner.evaluation", "planner.answer", "planner.report", "planner.studies", "catalogs.models",
)  # fmt: skip

SCRIPT = """
import sys
import uvicorn
import planner.main
import planner.web.app
print(*(name for name in sys.argv[1:] if name in sys.modules))
"""


LOADED = """
import json
import sys
from planner.web.warm_up import load_everything
load_everything()
from calibration.bundles.bundle import _read_once
from planner.problem.scenario import request_of_keys
from planner.web.documents.guess import guess_document
before, read = set(sys.modules), _read_once.cache_info().misses
keys = {"model": "qwen3-32b", "hardware": "h200x8", "slo": ["ttft.p99=2s"], "rate": 3}
guess_document(request_of_keys(keys))
own = ("catalogs.", "calibration.", "simulator.", "planner.", "pandas", "scipy")
found = sorted(name for name in set(sys.modules) - before if name.startswith(own))
print(json.dumps({"modules": found, "calibrations": _read_once.cache_info().misses - read}))
"""


def test_the_server_starts_without_heavy_packages() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT, *HEAVY], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_the_server_is_ready_when_first_questions_need_not_wait(tmp_path: Path) -> None:
    server = RunningServer(tmp_path).start()
    try:
        with server.client() as client:
            seen = client.get("/readyz")
            assert client.get("/healthz").json()["status"] == "ok"
            if seen.status_code == 503:
                assert "calibrations" in seen.json()["detail"]
            server.wait_until_ready(client)
            assert client.get("/readyz").json()["status"] == "ready"
    finally:
        server.stop()


def test_loading_ahead_reads_what_a_first_guess_needs() -> None:
    """After it, a guess imports no module and reads no calibration."""
    done = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == {"modules": [], "calibrations": 0}


def test_a_damaged_calibration_does_not_stop_the_loading(tmp_path: Path) -> None:
    environment = os.environ | {"XDG_DATA_HOME": str(tmp_path)}
    show = [sys.executable, "-c", "from calibration.bundles.bundle import user_folder; print(user_folder())"]
    folder = Path(subprocess.run(show, env=environment, capture_output=True, text=True, check=True).stdout.strip())
    (folder / "h100").mkdir(parents=True)
    (folder / "h100" / "bundle.json").write_text("{}")
    load = [sys.executable, "-c", "from planner.web.warm_up import load_everything; load_everything()"]
    done = subprocess.run(load, env=environment, capture_output=True, text=True, check=True)
    assert "h100" in done.stderr
    assert "Traceback" not in done.stderr


def test_an_application_can_be_served_again(tmp_path: Path) -> None:
    app = create_app(ServerSettings(store=f"sqlite:///{tmp_path / 'jobs.sqlite'}"))
    for _ in range(2):
        with TestClient(app, base_url="http://127.0.0.1") as client:
            assert client.get("/healthz").status_code == 200
