"""The files that start a plan of a network state what the plan was sized with."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from catalogs.errors import InputError
from catalogs.hardware.catalog import parse_hardware
from catalogs.ui.entry_point import run_command
from planner.cli.main import app
from planner.networks.deploy import pack_network
from planner.networks.plan import plan_network
from planner.networks.request import network_request
from planner.networks.schema import NetworkAnswer
from planner.networks.targets.text_embeddings import image_of
from planner.networks.targets.triton import triton_files


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


def test_triton_runs_on_a_cpu_and_on_no_tpu(batched: NetworkAnswer) -> None:
    assert batched.best is not None
    on = {
        name: batched.best.model_copy(update={"deployment": batched.best.deployment | {"hardware": name}})
        for name in ("epyc-9654", "tpu-v5ex1")
    }
    (text,) = triton_files(batched.job, on["epyc-9654"]).values()
    assert "kind: KIND_CPU }" in text
    with pytest.raises(InputError, match="Triton has instances for CPUs and for GPUs"):
        triton_files(batched.job, on["tpu-v5ex1"])


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
    with pytest.raises(InputError, match=r"the answer has 0 alternatives.*nearest valid choice: 0"):
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
    for command in (["spares"], ["spares", "--mtbf", "30d", "--restart", "10min"], ["verify"], ["drift"]):
        assert run_command("plan", app, [command[0], str(file), *command[1:]]) == 2
        refused = capsys.readouterr().err  # before options are asked for
        assert "takes the answer for a language model, and this one is for a network" in refused
        assert refused.count("\n") == 1


@pytest.fixture(scope="module")
def embedding() -> NetworkAnswer:
    keys = {
        "model": "bge-large",
        "hardware": "l4x2",
        "slo": "e2e.p90=200ms",
        "rate": 60,
        "modes": "compiled",
        "precisions": "bf16",
    }
    return plan_network(network_request(keys | {"tariff.usd_per_hour": 2.0, "search.trials": 2}))


def test_text_embeddings_have_the_batches_and_replicas_of_the_plan(embedding: NetworkAnswer) -> None:
    assert embedding.best is not None
    keys = embedding.best.deployment
    package = pack_network(embedding, "text-embeddings-inference")
    deployment, service = yaml.safe_load_all(package.files["kubernetes.yaml"])
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    options = dict(zip(container["args"][::2], container["args"][1::2], strict=True))
    assert options == {
        "--model-id": "BAAI/bge-large-en-v1.5",
        "--dtype": "float16",
        "--max-batch-tokens": str(keys["max_batch"] * 128),
        "--max-batch-requests": str(keys["max_batch"]),
    }
    assert container["image"] == "ghcr.io/huggingface/text-embeddings-inference:89-1.9"
    assert container["resources"] == {"limits": {"nvidia.com/gpu": "1"}}
    assert deployment["spec"]["replicas"] == keys["replicas"]
    assert service["spec"]["selector"] == deployment["spec"]["selector"]["matchLabels"]
    assert package.files["serve.sh"].count("docker run") == keys["replicas"]
    assert any("float16" in note for note in package.notes)


def test_text_embeddings_serve_no_other_network(batched: NetworkAnswer) -> None:
    with pytest.raises(
        InputError, match=r"this plan is for triton: got '--target text-.*nearest valid choice: --target triton$"
    ):
        pack_network(batched, "text-embeddings-inference")


@pytest.mark.parametrize(
    ("hardware", "tag"),
    [("t4", "turing-1.9"), ("a100-80gb", "1.9"), ("a10", "86-1.9"), ("b200", "100-1.9"), ("rtx5090", "120-1.9")],
)
def test_each_architecture_has_its_image(hardware: str, tag: str) -> None:
    assert image_of(parse_hardware(hardware).accelerator).rpartition(":")[2] == tag


def test_an_accelerator_without_an_image_is_refused() -> None:
    with pytest.raises(InputError, match="has no image for this accelerator"):
        image_of(parse_hardware("mi300x").accelerator)
    with pytest.raises(InputError, match="has no image for this accelerator"):
        image_of(parse_hardware("v100-16gb").accelerator)


def test_the_pooling_runner_has_the_batches_and_replicas_of_the_plan(embedding: NetworkAnswer) -> None:
    assert embedding.best is not None
    keys = embedding.best.deployment
    package = pack_network(embedding, "vllm")
    lines = [line for line in package.files["serve.sh"].splitlines() if "vllm serve" in line]
    assert len(lines) == keys["replicas"]
    assert "CUDA_VISIBLE_DEVICES=0 vllm serve BAAI/bge-large-en-v1.5 --runner pooling --dtype bfloat16" in lines[0]
    assert f"--max-model-len 128 --max-num-seqs {keys['max_batch']}" in lines[0]
    assert f"--max-num-batched-tokens {128 * keys['max_batch']}" in lines[0]
    assert any("sized with the batches of triton" in note for note in package.notes)


def test_a_plan_for_the_pooling_runner_never_waits_for_a_batch() -> None:
    keys = {"model": "bge-large", "hardware": "l4", "slo": "e2e.p90=200ms", "rate": 20, "modes": "compiled"}
    more = {"precisions": "bf16", "tariff.usd_per_hour": 1.0, "search.trials": 2, "engine": "vllm"}
    answer = plan_network(network_request(keys | more))
    assert answer.best is not None
    assert (answer.best.deployment["engine"], answer.best.deployment["queue_delay_s"]) == ("vllm", 0.0)
    package = pack_network(answer, "vllm")
    assert not any("sized with" in note for note in package.notes)
    other = pack_network(answer, "text-embeddings-inference")
    assert any("sized with the batches of vllm" in note for note in other.notes)


def test_the_pooling_runner_serves_no_other_network() -> None:
    with pytest.raises(
        InputError, match=r"vllm does not serve networks of .*: got 'vllm'; nearest valid choice: triton"
    ):
        plan_network(network_request({"model": "resnet50", "hardware": "l4", "slo": "e2e.p90=80ms", "engine": "vllm"}))
    with pytest.raises(InputError, match="an engine of networks"):
        network_request({"model": "bge-large", "hardware": "l4", "slo": "e2e.p90=80ms", "engine": "trtllm"})
