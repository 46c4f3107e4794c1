"""The files that start a plan of a network state what the plan was sized with."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from catalogs.errors import InputError
from catalogs.ui.entry_point import run_command
from planner.cli.main import app
from planner.networks.deploy import pack_network
from planner.networks.plan import plan_network
from planner.networks.request import network_request
from planner.networks.schema import NetworkAnswer


@pytest.fixture(scope="module")
def batched() -> NetworkAnswer:
    keys = {
        "model": "resnet50",
        "hardware": "l4x4",
        "slo": "e2e.p90=80ms",
        "rate": 3000,
        "modes": "compiled",
        "precisions": "bf16",
    }
    return plan_network(network_request(keys | {"tariff.usd_per_hour": 4.0, "search.trials": 2}))


@pytest.fixture(scope="module")
def diffusion() -> NetworkAnswer:
    keys = {
        "model": "sdxl",
        "hardware": "h100x2",
        "slo": "e2e.p90=60s",
        "modes": "compiled",
        "precisions": "bf16",
        "max_batch": 1,
    }
    return plan_network(network_request(keys | {"tariff.usd_per_hour": 4.0, "search.trials": 2, "rate": 0.3}))


def test_triton_has_the_batcher_and_the_accelerators_of_the_plan(batched: NetworkAnswer) -> None:
    assert batched.best is not None
    keys = batched.best.deployment
    files = pack_network(batched, "triton").files
    text = files["model_repository/resnet50/config.pbtxt"]
    assert f"max_batch_size: {keys['max_batch']}\n" in text
    assert text.count("kind: KIND_GPU") == 1
    assert f"gpus: [ {', '.join(map(str, range(keys['replicas'])))} ]" in text
    assert ("dynamic_batching {" in text) == (keys["max_batch"] > 1)
    assert text.count("{") == text.count("}")


def test_sglang_starts_one_server_for_each_replica(diffusion: NetworkAnswer) -> None:
    assert diffusion.best is not None
    script = pack_network(diffusion, "sglang").files["serve.sh"]
    servers = [line for line in script.split("\n") if "sglang serve" in line]
    assert len(servers) == diffusion.best.deployment["replicas"]
    assert all("--enable-torch-compile true" in line for line in servers)
    assert len({line.split("--port ")[1] for line in servers}) == len(servers)


def test_another_target_is_refused_with_the_right_one(batched: NetworkAnswer) -> None:
    with pytest.raises(InputError, match="this plan is for triton: got '--target vllm'; nearest"):
        pack_network(batched, "vllm")
    with pytest.raises(InputError, match="this answer has 1 plans"):
        pack_network(batched, "triton", 5)


def test_the_command_writes_a_folder_and_replaces_only_with_force(
    batched: NetworkAnswer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, out = tmp_path / "answer.json", tmp_path / "out"
    file.write_text(json.dumps(batched.document()))
    command = ["deploy", str(file), "--target", "triton", "--out", str(out)]
    assert run_command("plan", app, command) == 0
    assert {p.name for p in out.rglob("*") if p.is_file()} == {"deployment.yaml", "config.pbtxt", "prediction.json"}
    assert "config.pbtxt" in capsys.readouterr().out
    assert run_command("plan", app, command) == 2
    assert run_command("plan", app, [*command, "--force"]) == 0


def test_commands_for_language_models_refuse_the_answer_in_one_line(
    batched: NetworkAnswer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "answer.json"
    file.write_text(json.dumps(batched.document()))
    assert run_command("plan", app, ["explain", str(file)]) == 2
    assert "takes the answer for a language model, and this one is for a network" in capsys.readouterr().err
