"""The API against its own description: no request of any form makes the server fail."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from planner.web.app import create_app
from planner.web.settings import ServeFile, ServerSettings

schemathesis = pytest.importorskip("schemathesis")

FOLDER = Path(tempfile.mkdtemp(prefix="planner-openapi-"))
KEYS = ServeFile(hosts=("testserver", "localhost"))
APP = create_app(ServerSettings(store=f"sqlite:///{FOLDER / 'jobs.sqlite'}", file=KEYS))
#: Read without the life span of the app: its threads would import modules while other tests are collected, and threads
#: that compile at the same time fail at times in Python 3.11 ("AST constructor recursion depth mismatch").
SCHEMA = schemathesis.openapi.from_dict(TestClient(APP, base_url="http://127.0.0.1").get("/openapi.json").json())
SCHEMA.app, SCHEMA.location = APP, "/openapi.json"


def test_the_description_is_openapi_3_1_and_every_error_is_a_problem() -> None:
    found = TestClient(APP, base_url="http://127.0.0.1").get("/openapi.json").json()
    assert found["openapi"].startswith("3.1")
    problem = {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}}
    for path, operations in found["paths"].items():
        for method, operation in operations.items():
            assert operation["responses"]["4XX"]["content"] == problem, (method, path)
            assert operation.get("summary"), (method, path)
    body = found["paths"]["/api/v1/plans"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert {"model", "hardware", "slo"} <= set(body["properties"])


@pytest.mark.slow
@SCHEMA.parametrize()
def test_no_request_makes_the_server_fail(case: Any) -> None:
    response = case.call()
    starts = case.operation.path == "/readyz" and response.status_code == 503  # what a server that starts has to say
    assert response.status_code < 500 or starts, (case.as_curl_command(), response.text[:400])
    if response.status_code >= 400:
        assert response.headers["content-type"] == ["application/problem+json"] or response.json()["title"]
