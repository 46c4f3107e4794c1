"""Deployment files: held against the targets' own schemas and parsers, whole or not at all, and saying the plan."""

from __future__ import annotations

import copy
import json
import os
import re
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml

from catalogs.deployments.resolve import resolve, resolve_pools
from catalogs.deployments.schema import Deployment, Disaggregation
from catalogs.errors import InputError
from catalogs.launch.arguments import Arguments
from catalogs.launch.command import serve_arguments
from catalogs.ui.entry_point import run_command
from catalogs.workloads.workload import load_workload
from planner.answer.answer_schema import Answer
from planner.cli.main import app
from planner.deploy.benchmark import trace_rows
from planner.deploy.files import write_folder
from planner.deploy.package import Package, pack
from planner.deploy.serving import Serving
from planner.deploy.targets.registry import TARGETS, find_target
from planner.problem.slo import Slo
from planner.sections.full_answer import parse_answer
from planner.verify.prediction import Prediction
from tests.planner.report.test_plan_report import answer, data

#: The Python of an environment with vLLM, where there is one.
VLLM = Path(os.environ.get("VLLM_PYTHON", Path(__file__).parents[4] / "engines" / "vllm" / "bin" / "python"))
PARSE = """
import json, sys
try:
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
except ImportError:
    from vllm.entrypoints.openai.cli_args import make_arg_parser
from vllm.benchmarks.serve import add_cli_args
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.utils.argparse_utils import FlexibleArgumentParser
server, client = make_arg_parser(FlexibleArgumentParser()), FlexibleArgumentParser()
add_cli_args(client)
asked = json.load(sys.stdin)
found = [vars(server.parse_args(words)) for words in asked["serve"]]
for words in asked["bench"]:
    client.parse_args(words)
for keywords in asked["keywords"]:
    unknown = set(keywords) - set(AsyncEngineArgs.__dataclass_fields__)
    assert not unknown, unknown
plain = (int, float, str, bool, type(None))
print("PARSED" + json.dumps([{k: v for k, v in f.items() if isinstance(v, plain)} for f in found]))
"""


def planned(engine: str = "vllm", hardware: str = "h100x8", **keys: Any) -> Answer:
    """The shared answer, its deployment another: files depend on that and on the figures alone."""
    written = data()
    plan = written["best"]
    deployment = Deployment(model="llama3.1-70b", engine=engine, hardware=hardware, **keys)
    resolved = resolve(deployment)
    plan["deployment"] = resolved.filled_in(deployment) | {"model": resolved.model.hf_id}
    written["request"]["engine"] = engine
    return parse_answer(written)


@cache
def packed(target: str, engine: str, hardware: str, keys: str) -> Package:
    found = planned(engine, hardware, **json.loads(keys))
    path = Path(os.environ.get("TMPDIR", "/tmp")) / f"deploy-answer-{os.getpid()}.json"
    path.write_text(json.dumps(data() | {"best": found.plans[0].model_dump()}))
    try:
        return pack(found, path, target)
    finally:
        path.unlink()


def made(target: str, engine: str = "vllm", hardware: str = "h100x8", **keys: Any) -> Package:
    return packed(target, engine, hardware, json.dumps({"replicas": 2, "tensor_parallel": 4} | keys, sort_keys=True))


def documents(package: Package) -> Iterator[dict[str, Any]]:
    for name, text in package.files.items():
        if name.endswith(".yaml") and name != "router.values.yaml":
            yield from yaml.safe_load_all(text)


def pods(document: dict[str, Any]) -> list[dict[str, Any]]:
    """Pod specs inside objects that Kubernetes itself does not know."""
    spec = document.get("spec", {})
    if document["kind"] == "LeaderWorkerSet":
        group = spec["leaderWorkerTemplate"]
        return [group[k]["spec"] for k in ("leaderTemplate", "workerTemplate")]
    return [spec["template"]] if document["kind"] == "LLMInferenceService" else []


#: Kinds of operators, without a schema in Kubernetes itself.
CUSTOM = {"keda.sh/v1alpha1", "monitoring.coreos.com/v1"}

KUBERNETES = [
    ("kubernetes", {}),
    ("kubernetes", {"replicas": 1}),
    ("kubernetes", {"engine": "sglang", "hardware": "h200x8"}),
    ("kubernetes", {"engine": "llama.cpp", "tensor_parallel": 1, "max_model_len": 4096}),
    ("kubernetes", {"hardware": "mi300xx8"}),
    ("kubernetes", {"hardware": "2*a100-80gb:3g.40gbx2", "tensor_parallel": 1, "weight_dtype": "int4"}),
    ("leaderworkerset", {}),
    ("leaderworkerset", {"hardware": "2*h100x8", "replicas": 1, "tensor_parallel": 8, "pipeline_parallel": 2}),
    ("kserve", {}),
    ("kserve", {"engine": "sglang"}),
    ("llm-d", {}),
]


@pytest.mark.parametrize(("target", "keys"), KUBERNETES)
def test_objects_are_valid_by_the_schemas_of_kubernetes(target: str, keys: dict[str, Any]) -> None:
    validate = pytest.importorskip("kubernetes_validate")
    version = validate.latest_version()
    seen = 0
    for document in (d for d in documents(made(target, **keys)) if d["apiVersion"] not in CUSTOM):
        inside = pods(document)
        for pod in inside:
            document = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": pod}
            validate.validate(document, version, strict=True)
        if not inside:
            validate.validate(document, version, strict=True)
        seen += 1
    assert seen
    broken = copy.deepcopy(document) | {"spec": {"containers": [{"nam": "x"}], "replicas": "two"}}
    with pytest.raises(Exception, match=r"."):
        validate.validate(broken, version, strict=True)


def compose_schema() -> dict[str, Any]:
    package = find_spec("check_jsonschema")
    if package is None or package.origin is None:
        pytest.skip("check-jsonschema, which carries the schema, is not installed")
    path = Path(package.origin).parent / "builtin_schemas" / "vendor" / "compose-spec.json"
    schema: dict[str, Any] = json.loads(path.read_text())
    return schema


@pytest.mark.parametrize(
    "keys",
    [
        {},
        {"replicas": 1},
        {"hardware": "mi300xx8"},
        {"engine": "sglang"},
        {"engine": "llama.cpp", "tensor_parallel": 1, "max_model_len": 4096},
    ],
)
def test_compose_files_are_valid_by_the_specification(keys: dict[str, Any]) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    schema = compose_schema()
    (whole,) = documents(made("compose", **keys))
    jsonschema.validate(whole, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(whole | {"services": {"x": {"imag": "y"}}}, schema)


def test_compose_gives_each_replica_accelerators_of_its_own() -> None:
    (whole,) = documents(made("compose"))
    engines = [s for name, s in whole["services"].items() if name.startswith("engine-")]
    ids = [d for s in engines for d in s["deploy"]["resources"]["reservations"]["devices"][0]["device_ids"]]
    assert sorted(map(int, ids)) == list(range(8))
    assert "server engine-0:8000" in whole["configs"]["router"]["content"]
    assert whole["services"]["router"]["depends_on"]["engine-1"] == {"condition": "service_healthy"}
    assert whole["secrets"] == {"hf_token": {"environment": "HF_TOKEN"}}


def test_pods_ask_for_the_planned_accelerators_and_wait_for_the_model() -> None:
    found = {d["kind"]: d for d in documents(made("kubernetes")) if d["metadata"]["name"] == "llama-3-1-70b"}
    spec = found["Deployment"]["spec"]
    (container,) = spec["template"]["spec"]["containers"]
    assert spec["replicas"] == 2
    assert container["resources"] == {"limits": {"nvidia.com/gpu": "4"}}
    assert container["readinessProbe"]["httpGet"] == {"path": "/health", "port": 8000}
    assert container["env"][0]["valueFrom"]["secretKeyRef"]["name"] == "hf-token"
    assert spec["template"]["spec"]["nodeSelector"] == {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}
    assert container["image"] == "vllm/vllm-openai:v0.33.0"


def of_kind(package: Package, kind: str) -> list[dict[str, Any]]:
    return [d for d in documents(package) if d["kind"] == kind]


@pytest.mark.parametrize("target", ["kubernetes", "leaderworkerset", "llm-d"])
def test_the_weights_are_downloaded_once_to_the_volume_that_every_pod_mounts(target: str) -> None:
    package = made(target, weight_dtype="fp8")
    ((claim,), (job,)) = (of_kind(package, kind) for kind in ("PersistentVolumeClaim", "Job"))
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]  # of two replicas
    model = resolve(Deployment(model="llama3.1-70b", hardware="h100x8", weight_dtype="fp8")).model
    gib = int(claim["spec"]["resources"]["requests"]["storage"].removesuffix("Gi"))
    assert model.weight_bytes("fp8") / 2**30 < gib < 2 * model.weight_bytes("fp8") / 2**30
    (download,) = job["spec"]["template"]["spec"]["containers"]
    assert download["command"] == ["hf", "download", "nvidia/Llama-3.1-70B-Instruct-FP8"]
    name = claim["metadata"]["name"]
    workloads = [d for d in documents(package) if d["kind"] in ("Deployment", "LeaderWorkerSet")]
    engines = [d for d in workloads if "router" not in d["metadata"]["name"]]
    specs = [pod for d in engines for pod in (pods(d) or [d["spec"]["template"]["spec"]])]
    assert specs
    for spec in specs:
        volumes = {v["name"]: v for v in spec["volumes"]}
        assert volumes["weights"]["persistentVolumeClaim"] == {"claimName": name}
        assert spec["tolerations"] == [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]
    steps = package.steps
    first = next(i for i, step in enumerate(steps) if "weights.yaml" in step)
    assert any("condition=Complete" in step for step in steps[first:])


def test_one_pod_needs_no_shared_volume() -> None:
    (claim,) = of_kind(made("kubernetes", replicas=1), "PersistentVolumeClaim")
    assert claim["spec"]["accessModes"] == ["ReadWriteOnce"]
    llama = made("kubernetes", engine="llama.cpp", tensor_parallel=1, max_model_len=4096)
    assert not of_kind(llama, "PersistentVolumeClaim")  # the user provides the GGUF file


@pytest.mark.parametrize(("target", "kind"), [("kubernetes", "Deployment"), ("leaderworkerset", "LeaderWorkerSet")])
def test_replicas_are_added_when_they_hold_more_requests_than_planned(target: str, kind: str) -> None:
    """The threshold is Little's law at the planned load; the planned number of replicas is the minimum."""
    package = made(target)
    (scaler,), (monitor,) = (of_kind(package, kind) for kind in ("ScaledObject", "PodMonitor"))
    spec, plan = scaler["spec"], answer().plans[0]
    assert spec["scaleTargetRef"]["kind"] == kind
    assert spec["scaleTargetRef"]["name"] in {d["metadata"]["name"] for d in of_kind(package, kind)}
    assert spec["minReplicaCount"] == 2 < spec["maxReplicaCount"]
    ((trigger,), stay_s) = spec["triggers"], plan.latency_s("e2e", "mean")
    assert stay_s is not None
    held = max((plan.requests_per_s or 0.0) * stay_s / 2, 1.0)
    assert float(trigger["metadata"]["threshold"]) == pytest.approx(held, rel=0.01)
    assert "vllm:num_requests_waiting" in trigger["metadata"]["query"]
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    assert endpoint["port"] == "http"
    assert any("autoscaling.yaml" in step and "optional" in step for step in package.steps)


#: A process that is found by its own number of seconds.
SLEEP = f"sleep 60.{os.getpid()}"


def script_of(package: Package, replicas: int, dies: str) -> str:
    """Return serve.sh with servers that sleep, except one that ends at once, and health checks that never succeed."""
    lines = []
    for line in package.files["serve.sh"].splitlines():
        if line.endswith("2>&1 &"):
            log = line.rpartition(" > ")[2]
            lines.append(f"{'exit 3' if log.startswith(dies) else SLEEP} > {log}")
        else:
            lines.append(line.replace("curl -sf", "false"))
    assert sum(line.startswith("started replica") for line in lines) == replicas
    return "\n".join(lines)


def test_the_start_ends_when_one_replica_does_and_stops_the_others(tmp_path: Path) -> None:
    """One of two replicas dies before it is ready: one line names it, and no other process is left."""
    script = tmp_path / "serve.sh"
    script.write_text(script_of(made("vllm"), 2, "replica-1"))
    done = subprocess.run(["bash", str(script)], capture_output=True, text=True, timeout=50, cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "replica-1 has ended, so all others are stopped; see replica-1.log"
    left = subprocess.run(["pgrep", "-f", SLEEP], capture_output=True, text=True)
    assert not left.stdout.strip()


def test_one_replica_needs_no_router() -> None:
    assert "nginx" not in json.dumps(list(documents(made("kubernetes", replicas=1))))
    assert "nginx.conf" not in made("vllm", replicas=1).files
    assert "nginx.conf" in made("vllm").files


def test_a_replica_over_nodes_is_a_group_of_pods() -> None:
    package = made("leaderworkerset", hardware="2*h100x8", replicas=1, tensor_parallel=8, pipeline_parallel=2)
    group = next(d for d in documents(package) if d["kind"] == "LeaderWorkerSet")["spec"]
    template = group["leaderWorkerTemplate"]
    leader, worker = (template[k]["spec"]["containers"][0] for k in ("leaderTemplate", "workerTemplate"))
    assert (group["replicas"], template["size"]) == (1, 2)
    assert leader["resources"] == {"limits": {"nvidia.com/gpu": "8"}}
    assert "--headless" in worker["command"]
    assert "--headless" not in leader["command"]
    assert "readinessProbe" not in worker


@pytest.mark.parametrize("target", ["ray-serve", "triton"])
def test_python_targets_say_the_layout_in_vllms_keywords(target: str) -> None:
    package = made(target, replicas=1 if target == "triton" else 2)
    if target == "triton":
        keywords = json.loads(package.files["model_repository/llama-3-1-70b/1/model.json"])
        assert 'backend: "vllm"' in package.files["model_repository/llama-3-1-70b/config.pbtxt"]
    else:
        (application,) = yaml.safe_load(package.files["serve.yaml"])["applications"]
        (config,) = application["args"]["llm_configs"]
        keywords = config["engine_kwargs"]
        assert application["import_path"] == "ray.serve.llm:build_openai_app"
        assert config["deployment_config"]["num_replicas"] == 2
        assert config["accelerator_type"] == "H100"
    assert keywords["tensor_parallel_size"] == 4
    assert keywords["max_num_seqs"] == 1024


@pytest.mark.vllm
def test_vllm_itself_takes_every_argument() -> None:
    if not VLLM.is_file():
        pytest.skip(f"there is no vLLM at {VLLM}; VLLM_PYTHON names another")
    kinds: list[dict[str, Any]] = [
        {},
        {"weight_dtype": "fp8", "kv_dtype": "fp8", "prefix_caching": False, "block_size": 32},
        {"pipeline_parallel": 2, "replicas": 1},
    ]
    packages = [made("vllm", **keys) for keys in kinds]
    packages.append(made("leaderworkerset", hardware="2*h100x8", replicas=1, tensor_parallel=8, pipeline_parallel=2))
    moe = resolve(Deployment(model="mixtral-8x7b", hardware="h100x8", data_parallel=8, expert_parallel=True))
    serve = [p.serving.listening().words[2:] for p in packages] + [serve_arguments(moe).words[2:]]
    group = next(d for d in documents(packages[-1]) if d["kind"] == "LeaderWorkerSet")
    serve += [
        serve_arguments(replace(moe, role="prefill")).words[2:],
        serve_arguments(replace(moe, role="decode")).words[2:],
    ]
    worker = group["spec"]["leaderWorkerTemplate"]["workerTemplate"]["spec"]["containers"][0]["command"][2:]
    serve.append([word.replace("$(LWS_WORKER_INDEX)", "1") for word in worker])
    quantised_online = resolve(Deployment(model="qwen2.5-14b", hardware="h100", weight_dtype="fp8"))
    serve.append(serve_arguments(quantised_online).words[2:])
    bench = [_bench(made("vllm").files["verify.sh"]), _bench(made("triton", replicas=1).files["verify.sh"])]
    keywords = [json.loads(made("triton", replicas=1).files["model_repository/llama-3-1-70b/1/model.json"])]
    asked = json.dumps({"serve": serve, "bench": bench, "keywords": keywords})
    environment = os.environ | {"VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1", "PYTHONPATH": ""}
    done = subprocess.run(
        [str(VLLM), "-c", PARSE], input=asked, capture_output=True, text=True, timeout=240, env=environment
    )
    assert done.returncode == 0, done.stderr[-2000:]
    parsed = json.loads(done.stdout.partition("PARSED")[2])
    assert (parsed[0]["tensor_parallel_size"], parsed[0]["max_num_seqs"]) == (4, 1024)
    # A published FP8 checkpoint states its own quantisation; without one, the engine quantises the weights itself.
    assert "FP8" in serve[1][0]
    assert (parsed[1]["quantization"], parsed[1]["kv_cache_dtype"]) == (None, "fp8")
    assert parsed[1]["enable_prefix_caching"] is False
    assert parsed[2]["pipeline_parallel_size"] == 2
    assert (parsed[4]["data_parallel_size"], parsed[4]["enable_expert_parallel"]) == (8, True)
    assert (parsed[7]["node_rank"], parsed[7]["headless"]) == (1, True)
    assert parsed[8]["quantization"] == "fp8"


def _bench(script: str) -> list[str]:
    command = re.search(r"^vllm bench serve (.*?)^plan verify", script, flags=re.S | re.M)
    assert command is not None
    return command[1].replace("\\\n", " ").replace('"$BASE_URL"', "http://localhost:8000").split()


def test_llama_server_and_sglang_flags() -> None:
    llama = resolve(Deployment(model="llama3.1-8b", hardware="h100", engine="llama.cpp", max_model_len=4096))
    text = serve_arguments(llama).text
    assert "-np 4 -c 16384 -b 2048 -ub 512 --no-kv-unified" in text
    assert "--no-cache-prompt --cache-ram 0" in text
    written = Deployment(
        model="mixtral-8x7b",
        hardware="h200x8",
        engine="sglang",
        data_parallel=4,
        tensor_parallel=2,
        expert_parallel=True,
    )
    ranks = resolve(written)
    words = serve_arguments(ranks).text
    assert "--load-balance-method" not in words
    fewest = resolve(written.model_copy(update={"rank_dispatch": "least_requests"}))
    assert "--load-balance-method total_requests" in serve_arguments(fewest).text
    pools = {"prefill_replicas": 1, "decode_replicas": 1, "prefill": {"rank_dispatch": "round_robin"}}
    apart = written.model_copy(update={"hardware": "2*h200x8", "disaggregation": Disaggregation(**pools)})
    for pool, stated in zip(resolve_pools(apart), (True, False), strict=True):  # prefill servers draw ranks by default
        assert ("--load-balance-method round_robin" in serve_arguments(pool).text) is stated
    assert "--tp-size 8 --attn-dp-size 4 --ep-size 8" in words
    assert f"--max-running-requests {4 * ranks.limits.max_num_seqs} " in words
    fp8 = resolve(Deployment(model="llama3.1-8b", hardware="h100", engine="llama.cpp", weight_dtype="fp8"))
    with pytest.raises(InputError, match="GGUF"):
        serve_arguments(fp8)


def test_flags_become_keywords() -> None:
    found = Arguments(("x",), (("--a-b", "2"), ("--no-enable-c", None), ("--d", "0.5"), ("--e", None), ("--f", "g")))
    assert found.keywords == {"a_b": 2, "enable_c": False, "d": 0.5, "e": True, "f": "g"}


@pytest.mark.parametrize(
    ("target", "keys", "says"),
    [
        ("kubernets", {}, "kubernetes"),
        ("sglang", {}, "does not serve with vllm"),
        ("triton", {"engine": "sglang"}, "does not serve with sglang"),
        ("triton", {}, "starts 1"),
        ("triton", {"hardware": "mi300xx8", "replicas": 1}, "no image"),
        ("vllm", {"hardware": "2*h100x8", "replicas": 4}, "2 machines"),
        (
            "kubernetes",
            {"hardware": "2*h100x8", "replicas": 1, "tensor_parallel": 8, "pipeline_parallel": 2},
            "2 nodes",
        ),
        ("ray-serve", {"api_server_count": 2}, "2 API server processes"),
        ("triton", {"replicas": 1, "api_server_count": 2}, "2 API server processes"),
        ("compose", {"hardware": "a100-80gb:3g.40gbx2", "tensor_parallel": 1, "weight_dtype": "int4"}, "MIG"),
    ],
)
def test_what_a_target_cannot_start_is_refused_with_one_that_can(target: str, keys: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says) as caught:
        made(target, **keys)
    assert "nearest valid choice: " in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("target", ["vllm", "compose", "kubernetes"])
def test_the_files_start_the_api_servers_of_the_plan(target: str) -> None:
    text = "".join(made(target, api_server_count=2).files.values())
    assert re.search(r"--api-server-count['\",\s-]+2", text)


def test_a_deployment_the_files_could_not_say_is_refused() -> None:
    plan = planned(replicas=2, tensor_parallel=4).plans[0]
    offloads = plan.model_copy(update={"deployment": plan.deployment | {"kv_offload": {"host_gib": 10}}})
    with pytest.raises(InputError, match="kv_offload"):
        Serving.of(offloads)


def test_the_prediction_is_the_answers_own() -> None:
    prediction = Prediction.of(answer(), answer().plans[0])
    assert prediction is not None
    rows = {row.name: row for row in prediction.rows()}
    for slo in answer().plans[0].slo:
        own = rows[slo.name]
        assert (own.value_s, own.low_s, own.limit_s) == (slo.value_s, slo.ci_low_s, slo.limit_s)
        # the same arithmetic from the answer's curve alone, without the noise of its seeds
        low, high = prediction._ends(Slo(slo.metric, slo.stat, 1.0), own.value_s, prediction.requests_per_s)
        assert own.low_s <= low * 1.05
        assert own.high_s >= high / 1.05
        assert (low, high) == (pytest.approx(own.low_s, rel=0.1), pytest.approx(own.high_s, rel=0.1))
    assert all(row.low_s < row.high_s for row in rows.values())
    kept = json.loads(made("vllm").files["prediction.json"])
    assert kept["requests_per_s"] == prediction.requests_per_s
    assert len(kept["latencies"]) == len(rows)


def test_the_benchmark_sends_the_planned_requests() -> None:
    package = made("vllm")
    rows = [json.loads(line) for line in package.files["requests.jsonl"].splitlines()]
    kept = json.loads(package.files["prediction.json"])
    n = len(rows)
    assert f"--num-prompts {n} " in package.files["verify.sh"]
    assert sum(r["input_length"] for r in rows) / n == pytest.approx(kept["input_mean_tokens"], rel=0.2)
    assert n / rows[-1]["timestamp"] == pytest.approx(kept["requests_per_s"], rel=0.2)
    assert all(len(r["hash_ids"]) == -(-r["input_length"] // 512) for r in rows)
    ids = [h for r in rows for h in r["hash_ids"]]
    assert len(set(ids)) == len(ids)  # no prompt shares text with another


def test_the_benchmark_of_a_load_over_time_has_the_lengths_of_all_of_its_trace(tmp_path: Path) -> None:
    """The first requests of a trace have other lengths than the plan, so that `plan verify` refused their results."""
    trace, path = tmp_path / "day.csv", tmp_path / "plan.json"
    rows = "".join(f"{k * 0.5},100,{10 + k // 10}\n" for k in range(4000))
    trace.write_text("arrival_s,input_tokens,output_tokens\n" + rows)
    written = planned(replicas=2, tensor_parallel=4).document()
    written["request"] |= {"workload": str(trace), "over_time": True, "rate": 2.0}
    path.write_text(json.dumps(written))
    package = pack(parse_answer(written), path, "kubernetes")
    lengths = [json.loads(line)["output_length"] for line in package.files["requests.jsonl"].splitlines()]
    assert sum(lengths) / len(lengths) == pytest.approx(10 + 399 / 2, rel=0.1)


def test_shared_prefixes_stay_shared_in_the_benchmark() -> None:
    requests = load_workload("lmsys-turns").materialise(0, 3, 1.0)
    shared = replace(requests, input_tokens=requests.input_tokens * 0 + 40, block_hashes=((7, 8), (7, 9, 11), ()))
    ids = [row["hash_ids"] for row in trace_rows(shared)]
    assert ids == [[7, 8, 12], [7, 9, 13], [14, 15, 16]]


@pytest.mark.parametrize("target", TARGETS)
def test_scripts_are_shell_and_everything_is_there(target: str, tmp_path: Path) -> None:
    engine = target if target in ("sglang", "llama.cpp") else "vllm"
    keys: dict[str, Any] = {"replicas": 1} if target == "triton" else {}
    keys |= {"tensor_parallel": 1, "max_model_len": 4096} if engine == "llama.cpp" else {}
    package = made(target, engine, **keys)
    write_folder(tmp_path / "out", package.files)
    for name in ("README.md", "plan.json", "prediction.json", "verify.sh"):
        assert (tmp_path / "out" / name).is_file()
    scripts = list((tmp_path / "out").glob("*.sh"))
    for script in scripts:
        assert os.access(script, os.X_OK)
        subprocess.run(["bash", "-n", str(script)], check=True)
    assert find_target(target).checked in (tmp_path / "out" / "README.md").read_text()


def test_a_folder_is_whole_or_not_there(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(InputError):
        write_folder(out, {"a": "1", "a/b": "a file is no folder"})
    assert list(tmp_path.iterdir()) == []
    write_folder(out, {"prediction.json": "{}", "deep/er.sh": "true"})
    with pytest.raises(InputError, match="--force"):
        write_folder(out, {"prediction.json": "new"})
    with pytest.raises(InputError):
        write_folder(out, {"a": "1", "a/b": "2"}, force=True)
    assert (out / "deep" / "er.sh").is_file()  # the old one stays
    write_folder(out, {"prediction.json": "new"}, force=True)
    assert [p.name for p in out.iterdir()] == ["prediction.json"]
    assert [p.name for p in tmp_path.iterdir()] == ["out"]
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    with pytest.raises(InputError, match="other files"):
        write_folder(tmp_path / "mine", {"prediction.json": "{}"}, force=True)


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["--target", "nomad"], "must be one of"),
        (["--target", "text-embeddings-inference"], "this answer is for a language model"),
        (["--target", "vllm", "--out", "/nowhere/x"], "no such folder"),
        (["--target", "vllm", "--alternative", "9"], "alternatives"),
        (["--target", "vllm", "--out", "/etc/hostname"], "folder"),
    ],
)
def test_bad_input_is_one_line_and_writes_nothing(
    args: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "answer.json"
    path.write_text(json.dumps(data()))
    out = [] if "--out" in args else ["--out", str(tmp_path / "out")]
    assert run_command("plan", app, ["deploy", str(path), *args, *out]) == 2
    written, said = capsys.readouterr()
    assert written == ""
    assert said.count("\n") == 1
    assert says in said
    assert [p.name for p in tmp_path.iterdir()] == ["answer.json"]


def test_the_command_end_to_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, out = tmp_path / "answer.json", tmp_path / "out"
    path.write_text(json.dumps(data()))
    assert run_command("plan", app, ["deploy", str(path), "--target", "compose", "--out", str(out)]) == 0
    screen = capsys.readouterr().out
    assert "compose.yaml" in screen
    assert run_command("plan", app, ["deploy", str(path), "--target", "compose", "--out", str(out)]) == 2
    args = [
        "deploy",
        str(path),
        "--target",
        "compose",
        "--out",
        str(out),
        "--force",
        "--json",
        "-",
        "--image",
        "mine:1",
    ]
    capsys.readouterr()
    assert run_command("plan", app, args) == 0
    assert json.loads(capsys.readouterr().out)["image"] == "mine:1"
    assert "image: mine:1" in (out / "compose.yaml").read_text()


@pytest.mark.parametrize("target", ["vllm", "compose", "kubernetes"])
def test_amd_runs_the_kernels_that_were_timed(target: str) -> None:
    assert "VLLM_ROCM_USE_AITER" in "".join(made(target, hardware="mi300xx8").files.values())
    assert "VLLM_ROCM_USE_AITER" not in "".join(made(target).files.values())


@pytest.mark.parametrize("hardware", ["b60x4", "tpu-v6ex8"])
def test_accelerators_without_a_published_image_get_no_files(hardware: str) -> None:
    with pytest.raises(InputError, match="has no image for") as caught:
        made("kubernetes", hardware=hardware, replicas=1)
    assert "\n" not in str(caught.value)
