"""Files of prefill and decode servers: the engines' own words, nothing shared on a machine, the router before them."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml

from catalogs.deployments.resolve import resolve
from catalogs.deployments.schema import Deployment
from catalogs.errors import InputError
from planner.deploy.package import Package, pack
from planner.deploy.serving import Serving
from planner.deploy.targets.registry import TARGETS
from planner.sections.full_answer import parse_answer
from tests.planner.deploy.test_deploy_files import documents
from tests.planner.report.test_plan_report import data

#: The engine of a plan by target, for every target that starts prefill and decode servers.
CAN = {name: "sglang" if name == "sglang" else "vllm" for name, target in TARGETS.items() if target.disaggregates}


def made(
    target: str, tmp: Path, prefill: dict[str, Any] | None = None, apart: tuple[int, int] = (2, 1), **keys: Any
) -> Package:
    """2 prefill x TP2 + 1 decode x TP4 of the shared answer's figures, where nothing else is said."""
    plain: dict[str, Any] = {"engine": CAN.get(target, "vllm"), "model": "llama3.1-70b", "hardware": "h100x8"}
    keys = plain | {"tensor_parallel": 4} | keys
    one = Deployment(**keys)
    resolved = resolve(one)
    n_prefill, n_decode = apart
    split = {"prefill_replicas": n_prefill, "decode_replicas": n_decode, "prefill": prefill or {"tensor_parallel": 2}}
    block = resolved.filled_in(one) | {"model": resolved.model.hf_id, "disaggregation": split}
    written = data()
    written["best"]["deployment"] = block
    written["request"]["engine"] = keys["engine"]
    path = tmp / "answer.json"
    path.write_text(json.dumps(written))
    return pack(parse_answer(written), path, target)


def starts(package: Package) -> list[list[str]]:
    """Every command that serve.sh starts, in words, variables first."""
    lines = package.files["serve.sh"].splitlines()
    return [shlex.split(line.partition(" > ")[0]) for line in lines if line.endswith("2>&1 &")]


def value(words: list[str], name: str) -> str:
    return (
        next((w.removeprefix(f"{name}=") for w in words if w.startswith(f"{name}=")), "")
        or (words[words.index(name) + 1])
    )


@pytest.mark.parametrize(("target", "meets"), [("vllm", "VLLM_NIXL_SIDE_CHANNEL_PORT"), ("sglang", None)])
def test_servers_of_one_machine_share_nothing(target: str, meets: str | None, tmp_path: Path) -> None:
    *found, router = starts(made(target, tmp_path))
    cards = [value(words, "CUDA_VISIBLE_DEVICES").split(",") for words in found]
    assert [len(c) for c in cards] == [2, 2, 4]
    assert sorted(n for c in cards for n in c) == [str(n) for n in range(8)]
    ports = [value(words, "--port") for words in (*found, router)]
    assert len(set(ports)) == len(ports)
    met = [value(words, meets or "--disaggregation-bootstrap-port") for words in (found if meets else found[:2])]
    assert len(set(met)) == len(met)
    urls = [w for w in router if w.startswith("http://")]
    assert urls == [f"http://127.0.0.1:{port}" for port in ports[:-1]]
    if meets is None:
        assert [router[router.index(url) + 1] for url in urls[:2]] == met


def test_each_server_is_told_its_side(tmp_path: Path) -> None:
    *vllm, _ = starts(made("vllm", tmp_path))
    roles = [json.loads(value(words, "--kv-transfer-config"))["kv_role"] for words in vllm]
    assert roles == ["kv_producer", "kv_producer", "kv_consumer"]
    *sglang, router = starts(made("sglang", tmp_path))
    assert [value(words, "--disaggregation-mode") for words in sglang] == ["prefill", "prefill", "decode"]
    assert router.count("--prefill") == 2
    assert router.count("--decode") == 1


def test_data_parallel_ranks_have_ports_of_their_own(tmp_path: Path) -> None:
    """Rank r of a server meets others at its server's port plus r."""
    split = {"tensor_parallel": 1, "data_parallel": 2, "expert_parallel": True}
    keys = {"model": "mixtral-8x7b", "tensor_parallel": 2, "data_parallel": 1}
    *found, _ = starts(made("vllm", tmp_path, split, (2, 2), weight_dtype="fp8", **keys))
    first = [int(value(words, "VLLM_NIXL_SIDE_CHANNEL_PORT")) for words in found]
    assert [b - a for a, b in pairwise(first)] == [2, 2, 1]


def test_a_router_that_takes_no_token_ids_gets_text(tmp_path: Path) -> None:
    assert "requests.jsonl" in made("vllm", tmp_path).files
    text = made("sglang", tmp_path).files
    assert "requests.jsonl" not in text
    assert "--dataset-name random" in text["verify.sh"].replace(" \\\n ", "")


def test_objects_are_valid_and_the_sidecar_stands_before_the_decode_server(tmp_path: Path) -> None:
    validate = pytest.importorskip("kubernetes_validate")
    package = made("llm-d", tmp_path)
    deployments = [d for d in documents(package) if d["kind"] == "Deployment"]
    found = {d["metadata"]["labels"]["llm-d.ai/role"]: d for d in deployments}
    for document in found.values():
        validate.validate(document, validate.latest_version(), strict=True)
    prefill, decode = (found[role]["spec"]["template"]["spec"] for role in ("prefill", "decode"))
    assert [found[r]["spec"]["replicas"] for r in ("prefill", "decode")] == [2, 1]
    cards = [pod["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] for pod in (prefill, decode)]
    assert cards == ["2", "4"]
    (sidecar,) = decode["initContainers"]
    engine = decode["containers"][0]
    assert sidecar["ports"][0]["containerPort"] == 8000
    assert engine["readinessProbe"]["httpGet"]["port"] == 8200
    assert f"--vllm-port={value(engine['command'], '--port')}" in sidecar["args"]
    assert "initContainers" not in prefill
    values = yaml.safe_load(package.files["router.values.yaml"])["router"]
    plugins = yaml.safe_load(values["epp"]["pluginsCustomConfig"][values["epp"]["pluginsConfigFile"]])
    known = {p["type"] for p in plugins["plugins"]}
    used = {p["pluginRef"] for profile in plugins["schedulingProfiles"] for p in profile["plugins"]}
    assert used < known
    chosen = values["modelServers"]["matchLabels"].items()
    assert all(chosen <= d["spec"]["template"]["metadata"]["labels"].items() for d in found.values())


@pytest.mark.parametrize(
    ("module", "target", "switch"),
    [
        ("vllm_router.router_args", "vllm", "vllm_pd_disaggregation"),
        ("sglang_router.router_args", "sglang", "pd_disaggregation"),
    ],
)
def test_the_routers_themselves_take_their_arguments(module: str, target: str, switch: str, tmp_path: Path) -> None:
    import argparse

    args = pytest.importorskip(module, reason="a router is not installed (pip install '.[routers]')").RouterArgs
    router = starts(made(target, tmp_path))[-1]
    parser = argparse.ArgumentParser()
    args.add_cli_args(parser)
    found = args.from_cli_args(parser.parse_args(router[router.index("--policy") - 1 :]), use_router_prefix=False)
    assert getattr(found, switch)
    assert (len(found.prefill_urls), len(found.decode_urls)) == (2, 1)


@pytest.mark.parametrize("target", sorted(set(TARGETS) - set(CAN) - {"llama.cpp"}))
def test_other_targets_refuse_in_one_line_and_name_those_that_can(target: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="prefill and decode") as caught:
        made(target, tmp_path, apart=(1, 1))
    assert str(caught.value).endswith("nearest valid choice: vllm, compose, kubernetes, leaderworkerset")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("target", "tp", "keys", "says"),
    [
        ("vllm", 2, {"hardware": "2*h100x8"}, "2 machines"),
        ("llm-d", 8, {"model": "qwen3-30b-a3b", "hardware": "a100-40gbx16"}, "copies of 4 KV heads"),
        (
            "llm-d",
            1,
            {"model": "llama3.2-1b", "tensor_parallel": 1, "hardware": "a100-80gb:1g.10gbx4"},
            "no known transfer",
        ),
    ],
)
def test_what_cannot_be_started_says_why(target: str, tp: int, keys: dict[str, Any], says: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=says):
        made(target, tmp_path, {"tensor_parallel": tp}, (1, 1), **keys)


def test_a_way_of_transfer_that_no_router_has_is_refused() -> None:
    plan = parse_answer(data()).plans[0]
    split = {"prefill_replicas": 1, "decode_replicas": 1, "max_prefill_queue": 4}
    with pytest.raises(InputError, match="max_prefill_queue"):
        Serving.of(plan.model_copy(update={"deployment": plan.deployment | {"disaggregation": split}}))


@pytest.mark.parametrize("target", sorted(CAN))
def test_folders_hold_the_plan_and_what_verifies_it(target: str, tmp_path: Path) -> None:
    package = made(target, tmp_path)
    assert {"verify.sh", "prediction.json", "plan.json", "README.md"} < set(package.files)
    assert package.words.startswith("2 prefill x TP2 + 1 decode x TP4 of meta-llama/Llama-3.1-70B on h100x8")
    kept = json.loads(package.files["prediction.json"])
    assert kept["deployment"]["disaggregation"]["prefill_replicas"] == 2
    for name, text in package.files.items():
        if name.endswith(".sh"):
            subprocess.run(["bash", "-n"], input=text, text=True, check=True)
    assert re.search(r"^vllm bench serve", package.files["verify.sh"], flags=re.M)


@pytest.mark.parametrize(
    ("target", "engine"), [("kubernetes", "vllm"), ("kubernetes", "sglang"), ("leaderworkerset", "vllm")]
)
def test_the_router_of_a_cluster_knows_every_server(target: str, engine: str, tmp_path: Path) -> None:
    """Pods of a StatefulSet have the addresses NAME-i.NAME; the router has one for each replica, prefill first."""
    package = made(target, tmp_path, engine=engine)
    found = list(documents(package))
    names = [d["metadata"]["name"] for d in found if d["kind"] in ("StatefulSet", "LeaderWorkerSet")]
    assert names == ["llama-3-1-70b-prefill", "llama-3-1-70b-decode"]
    (router,) = [d for d in found if d["metadata"]["name"].endswith("-router")]
    (container,) = router["spec"]["template"]["spec"]["containers"]
    words = container["command"][-1].split()
    urls = [f"http://{name}-{i}.{name}:8000" for name, n in zip(names, (2, 1), strict=True) for i in range(n)]
    assert [w for w in words if w.startswith("http://")] == urls
    assert [words[words.index(url) - 1] for url in urls] == ["--prefill", "--prefill", "--decode"]
    if target == "kubernetes":
        assert {d["metadata"]["name"] for d in found if d["kind"] == "Service"} >= {*names, "llama-3-1-70b"}


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_objects_of_pairs_are_valid_by_the_schemas_of_kubernetes(engine: str, tmp_path: Path) -> None:
    validate = pytest.importorskip("kubernetes_validate")
    for document in documents(made("kubernetes", tmp_path, engine=engine)):
        validate.validate(document, validate.latest_version(), strict=True)


def test_compose_pairs_servers_as_the_script_does(tmp_path: Path) -> None:
    """The same ports, accelerators and router as serve.sh, in containers on the network of the machine."""
    (whole,) = documents(made("compose", tmp_path))
    services = whole["services"]
    *scripted, router = starts(made("vllm", tmp_path))
    assert list(services) == ["prefill-0", "prefill-1", "decode-0", "router"]
    for words, service in zip(scripted, services.values(), strict=False):
        ids = service["deploy"]["resources"]["reservations"]["devices"][0]["device_ids"]
        assert ids == value(words, "CUDA_VISIBLE_DEVICES").split(",")
        command = service["command"]
        assert command[command.index("--port") + 1] == value(words, "--port")
        meets = "VLLM_NIXL_SIDE_CHANNEL_PORT"
        assert service["environment"][meets] == value(words, meets)
        assert service["network_mode"] == "host"
    assert shlex.join(router) in services["router"]["command"][-1]


def test_ray_and_kserve_state_both_kinds(tmp_path: Path) -> None:
    (application,) = yaml.safe_load(made("ray-serve", tmp_path).files["serve.yaml"])["applications"]
    assert application["import_path"] == "ray.serve.llm:build_pd_openai_app"
    prefill, decode = (application["args"][f"{role}_config"] for role in ("prefill", "decode"))
    assert [c["deployment_config"]["num_replicas"] for c in (prefill, decode)] == [2, 1]
    assert [c["engine_kwargs"]["tensor_parallel_size"] for c in (prefill, decode)] == [2, 4]
    roles = [c["engine_kwargs"]["kv_transfer_config"]["kv_role"] for c in (prefill, decode)]
    assert roles == ["kv_producer", "kv_consumer"]
    (service,) = documents(made("kserve", tmp_path))
    spec = service["spec"]
    assert (spec["prefill"]["replicas"], spec["replicas"]) == (2, 1)
    assert (spec["prefill"]["parallelism"], spec["parallelism"]) == ({"tensor": 2}, {"tensor": 4})
    with pytest.raises(InputError, match="vLLM only"):
        made("kserve", tmp_path, engine="sglang")


def pooled(target: str, tmp: Path, split: dict[str, Any] | None = None, **keys: Any) -> Package:
    """2 encoder servers and 2 servers of a vision-language model, where nothing else is said."""
    plain: dict[str, Any] = {"engine": "vllm", "model": "qwen2.5-vl-7b", "hardware": "h100x4", "replicas": 2}
    written = Deployment(**(plain | keys), multimodal={"modalities": ["image"]})  # type: ignore[arg-type]
    block = resolve(written).filled_in(written)
    block |= {"encoder_pool": {"replicas": 2}, "disaggregation": split}
    answer = data()
    answer["best"]["deployment"] = block
    answer["request"]["engine"] = block["engine"]
    path = tmp / "answer.json"
    path.write_text(json.dumps(answer))
    return pack(parse_answer(answer), path, target)


def test_vllms_encoder_servers_and_their_proxy(tmp_path: Path) -> None:
    package = pooled("vllm", tmp_path)
    *encoders_and_servers, proxy = starts(package)
    encoders, servers = encoders_and_servers[:2], encoders_and_servers[2:]
    assert [json.loads(value(words, "--ec-transfer-config"))["ec_role"] for words in encoders] == ["ec_producer"] * 2
    consumers = [json.loads(value(words, "--ec-transfer-config")) for words in servers]
    assert [consumer["ec_role"] for consumer in consumers] == ["ec_consumer"] * 2
    assert all("--enforce-eager" in words for words in encoders)
    assert all("--enable-mm-embeds" in words for words in servers)
    assert [value(words, "CUDA_VISIBLE_DEVICES") for words in encoders_and_servers] == ["0", "1", "2", "3"]
    urls = [f"http://127.0.0.1:{value(words, '--port')}" for words in encoders_and_servers]
    assert value(proxy, "--encode-servers-urls").split(",") == urls[:2]
    assert value(proxy, "--decode-servers-urls").split(",") == urls[2:]
    ports = [f"tcp://127.0.0.1:{consumer['ec_port']}" for consumer in consumers]
    assert value(proxy, "--ec-consumer-zmq-addrs").split(",") == ports
    assert len(set(ports)) == 2
    assert any("disagg_epd_proxy.py" in step for step in package.steps)


def test_sglangs_language_servers_know_their_encoders(tmp_path: Path) -> None:
    found = starts(pooled("sglang", tmp_path, engine="sglang"))
    encoders, servers = found[:2], found[2:4]
    assert all("--encoder-only" in words for words in encoders)
    urls = [f"http://127.0.0.1:{value(words, '--port')}" for words in encoders]
    for words in servers:
        at = words.index("--encoder-urls")
        assert words[at + 1 : at + 3] == urls
        assert "--language-only" in words


@pytest.mark.parametrize("target", sorted(set(TARGETS) - {"vllm", "sglang", "llama.cpp"}))
def test_other_targets_start_no_encoder_servers(target: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not start encoder servers"):
        pooled(target, tmp_path)


def test_vllms_proxy_does_not_pair_encoders_with_prefill_servers(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="not with prefill servers"):
        pooled("vllm", tmp_path, {"prefill_replicas": 1, "decode_replicas": 1}, replicas=1)
