"""An uploaded config.json stands wherever a model does, and its path on the server is shown nowhere."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from tests.planner.web.own_model import CONFIG
from tests.planner.web.running_server import RunningServer

#: What a question needs besides the model, by address.
QUESTIONS: dict[str, dict[str, Any]] = {
    "analyze": {"hardware": "l40s", "batch": 4},
    "graph": {"hardware": "l40s", "batch": 4},
    "memory": {"hardware": "l40s", "batch": 4},
    "guess": {"hardware": "l40s", "slo": "ttft.p99=2s", "rate": 1},
}


def uploaded(client: httpx.Client, config: dict[str, Any], name: str = "config.json") -> str:
    sent = client.post("/api/v1/uploads", files={"file": (name, json.dumps(config).encode())})
    assert sent.status_code == 201
    found: str = sent.json()["upload"]
    return found


@pytest.mark.parametrize("address", QUESTIONS)
def test_an_uploaded_model_is_computed_like_one_of_the_catalog(
    client: httpx.Client, server: RunningServer, address: str
) -> None:
    model = uploaded(client, CONFIG)
    found = client.get(f"/api/v1/{address}", params={"model": model, **QUESTIONS[address]})
    assert found.status_code == 200, found.text
    assert str(server.folder) not in found.text
    assert address == "guess" or found.json()["question"]["model"] == "config.json"


@pytest.mark.parametrize("address", QUESTIONS)
def test_more_layers_of_an_uploaded_model_need_more_memory(client: httpx.Client, address: str) -> None:
    def weights(layers: int) -> float:
        model = uploaded(client, CONFIG | {"num_hidden_layers": layers})
        found = client.get(f"/api/v1/{address}", params={"model": model, **QUESTIONS[address]}).json()
        if address == "graph":
            return sum(group["weights_bytes"] * group["layers"] for group in found["groups"])
        total: float = found["totals" if address == "memory" else "memory"]["weights_bytes"]
        return total

    assert weights(12) > weights(6)


@pytest.mark.parametrize("address", QUESTIONS)
def test_a_fault_of_an_uploaded_model_names_its_file(client: httpx.Client, server: RunningServer, address: str) -> None:
    model = uploaded(client, {"model_type": "unheard-of"}, "mine.json")
    found = client.get(f"/api/v1/{address}", params={"model": model, **QUESTIONS[address]})
    assert found.status_code == 422
    assert "mine.json" in found.text
    assert str(server.folder) not in found.text


@pytest.mark.parametrize("address", QUESTIONS)
@pytest.mark.parametrize("model", ["/etc/passwd", "../config.json", f"upload:{'0' * 64}"])
def test_a_path_or_an_unknown_upload_is_refused(client: httpx.Client, address: str, model: str) -> None:
    found = client.get(f"/api/v1/{address}", params={"model": model, **QUESTIONS[address]})
    assert found.status_code == 422
    assert found.json()["rule"] in ("no such upload", "the server reads no files by their path")
