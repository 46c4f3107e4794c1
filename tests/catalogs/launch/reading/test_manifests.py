"""Manifests as deployments: pods, groups of pods, Dynamo's graphs, and Compose."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from catalogs.deployments.schema import Deployment
from catalogs.errors import InputError
from catalogs.launch.reading.read import read_launch_file

POD = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: llm}
spec:
  replicas: 2
  template:
    spec:
      nodeSelector: {nvidia.com/gpu.product: NVIDIA-H100-80GB-HBM3}
      containers:
      - name: server
        image: vllm/vllm-openai:v0.15.0
        args: [--model, meta-llama/Llama-3.3-70B-Instruct, --tensor-parallel-size, "4", --max-num-seqs, $(SEQS)]
        env: [{name: SEQS, value: "96"}]
        resources: {limits: {nvidia.com/gpu: "4"}}
"""

GROUP = """
apiVersion: leaderworkerset.x-k8s.io/v1
kind: LeaderWorkerSet
metadata: {name: r1}
spec:
  replicas: 1
  leaderWorkerTemplate:
    size: 2
    leaderTemplate:
      spec:
        nodeSelector: {cloud.google.com/gke-accelerator: nvidia-h200-141gb}
        containers:
        - name: leader
          image: lmsysorg/sglang:v0.5.4
          command: [sh, -c]
          args:
          - |
            python3 -m sglang.launch_server --model-path deepseek-ai/DeepSeek-R1 --tp 16 --nnodes 2 \\
              --dist-init-addr $(LWS_LEADER_ADDRESS):20000 --node-rank 0 --trust-remote-code
          resources: {limits: {nvidia.com/gpu: "8"}}
"""

GRAPH = """
apiVersion: nvidia.com/v1alpha1
kind: DynamoGraphDeployment
metadata: {name: g}
spec:
  services:
    Frontend:
      replicas: 1
      extraPodSpec: {mainContainer: {image: "nvcr.io/nvidia/ai-dynamo/vllm-runtime:0.8.0"}}
    decode:
      subComponentType: decode
      replicas: 3
      resources: {limits: {gpu: "2"}}
      extraPodSpec:
        mainContainer:
          image: nvcr.io/nvidia/ai-dynamo/vllm-runtime:0.8.0
          command: [/bin/sh, -c]
          args: ["exec python3 -m dynamo.vllm --model openai/gpt-oss-120b -tp 2 --max-num-seqs 512"]
    prefill:
      subComponentType: prefill
      replicas: 2
      resources: {limits: {gpu: "1"}}
      extraPodSpec:
        mainContainer:
          image: nvcr.io/nvidia/ai-dynamo/vllm-runtime:0.8.0
          command: [python3, -m, dynamo.vllm]
          args: [--model, openai/gpt-oss-120b, --is-prefill-worker]
"""

NEWER_GRAPH = """
apiVersion: nvidia.com/v1beta1
kind: DynamoGraphDeployment
metadata: {name: g}
spec:
  components:
  - name: Worker
    type: worker
    replicas: 4
    multinode: {nodeCount: 2}
    podTemplate:
      spec:
        nodeSelector: {nvidia.com/gpu.product: NVIDIA-B200}
        containers:
        - name: main
          image: nvcr.io/nvidia/ai-dynamo/tensorrtllm-runtime:1.0.1
          command: [python3, -m, dynamo.trtllm]
          args: [--model-path, deepseek-ai/DeepSeek-R1, --extra-engine-args, /config/agg.yaml, --request-plane, nats]
          resources: {limits: {nvidia.com/gpu: "4"}}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: c}
data:
  agg.yaml: |
    tensor_parallel_size: 8
    moe_expert_parallel_size: 8
    enable_attention_dp: true
    max_batch_size: 8
    max_num_tokens: 8192
    disable_overlap_scheduler: true
    kv_cache_config: {dtype: fp8, tokens_per_block: 64, enable_block_reuse: false}
    cuda_graph_config: {max_batch_size: 8, enable_padding: true}
"""

COMPOSE = """
services:
  router: {image: "nginx:1.28"}
  llm:
    image: vllm/vllm-openai:v0.11.0
    environment: [HF_TOKEN=x, CUDA_VISIBLE_DEVICES=0]
    command: >
      --model meta-llama/Llama-3.1-8B-Instruct --max-model-len ${LEN:-8192}
      --gpu-memory-utilization 0.8
    deploy:
      replicas: 2
      resources: {reservations: {devices: [{driver: nvidia, count: 1, capabilities: [gpu]}]}}
"""

EXPECTED: dict[str, tuple[str, str | None, dict[str, Any]]] = {
    "pod": (POD, None, {"engine": "vllm-0.15", "hardware": "h100x8", "replicas": 2, "tensor_parallel": 4,
                        "max_num_seqs": 96}),
    "group": (GROUP, None, {"engine": "sglang", "hardware": "2*h200x8", "tensor_parallel": 16}),
    "newer graph": (NEWER_GRAPH, None, {"engine": "trtllm", "hardware": "4*b200x8", "replicas": 4, "data_parallel": 8,
                                        "expert_parallel": True, "async_scheduling": False, "block_size": 64}),
    "compose": (COMPOSE, "l40sx2", {"engine": "vllm-0.11", "replicas": 2, "max_model_len": 8192,
                                    "gpu_memory_utilization": 0.8}),
}  # fmt: skip


def read(folder: Path, text: str, hardware: str | None = None, **more: Any) -> Deployment:
    file = folder / "launch.yaml"
    file.write_text(text, encoding="utf-8")
    return read_launch_file(file, hardware, **more).deployment


@pytest.mark.parametrize("name", EXPECTED)
def test_manifests_mean_what_they_start(tmp_path: Path, name: str) -> None:
    text, hardware, keys = EXPECTED[name]
    found = read(tmp_path, text, hardware).model_dump()
    assert {key: found[key] for key in keys} == keys


def test_a_graph_with_two_roles_is_disaggregated(tmp_path: Path) -> None:
    found = read(tmp_path, GRAPH, "h200x8")
    assert found.disaggregation is not None
    assert (found.disaggregation.prefill_replicas, found.disaggregation.decode_replicas) == (2, 3)
    assert (found.tensor_parallel, found.disaggregation.prefill["tensor_parallel"]) == (2, 1)
    assert found.disaggregation.prefill["max_num_seqs"] is None
    with pytest.raises(InputError, match=r"does not name one kind of accelerator.*h100x8"):
        read(tmp_path, GRAPH)


def test_one_service_of_several(tmp_path: Path) -> None:
    found = read(tmp_path, GRAPH, "h200x6", service="decode")
    assert (found.disaggregation, found.replicas) == (None, 3)
    with pytest.raises(InputError, match="no server of the text has this name"):
        read(tmp_path, GRAPH, "h200x8", service="decoder")


@pytest.mark.parametrize(
    ("text", "rule"),
    [("kind: Service\n", "a manifest must start"), ("a: [1\n", "is not valid YAML"), ("services: {}\n", "must start")],
)
def test_other_files_are_refused(tmp_path: Path, text: str, rule: str) -> None:
    with pytest.raises(InputError, match=rule):
        read(tmp_path, text)


@pytest.mark.parametrize(
    ("before", "after", "rule"),
    [
        ("replicas: 2", "replicas: two", "replicas of a manifest is a whole number: got 'two'"),
        ("replicas: 2", "replicas: true", "replicas of a manifest is a whole number"),
        ('nvidia.com/gpu: "4"', "nvidia.com/gpu: many", "nvidia.com/gpu of a manifest is a whole number: got 'many'"),
        ("metadata: {name: llm}", "metadata: [llm]", "metadata of a manifest is a mapping"),
        ("containers:\n", "containers:\n      - server\n", "each entry of containers in a manifest is a mapping"),
        ('env: [{name: SEQS, value: "96"}]', "env: {SEQS: 96}", "env of a manifest is a list"),
    ],
)
def test_a_part_of_the_wrong_form_is_named(tmp_path: Path, before: str, after: str, rule: str) -> None:
    assert before in POD
    with pytest.raises(InputError, match=rule):
        read(tmp_path, POD.replace(before, after))


@pytest.mark.parametrize(
    ("before", "after", "rule"),
    [
        ("environment: [HF_TOKEN=x, CUDA_VISIBLE_DEVICES=0]", "environment: 5", "environment of a manifest is a list"),
        ("deploy:\n      replicas: 2", "scale: two\n    deploy:", "scale of a manifest is a whole number: got 'two'"),
    ],
)
def test_a_part_of_a_service_of_the_wrong_form_is_named(tmp_path: Path, before: str, after: str, rule: str) -> None:
    assert before in COMPOSE
    with pytest.raises(InputError, match=rule):
        read(tmp_path, COMPOSE.replace(before, after), "l40sx2")


@pytest.mark.parametrize("replicas", ["replicas:", ""])
def test_replicas_that_a_manifest_leaves_out_are_one(tmp_path: Path, replicas: str) -> None:
    assert read(tmp_path, POD.replace("replicas: 2", replicas)).replicas == 1


def test_aliases_do_not_expand_without_end(tmp_path: Path) -> None:
    levels = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    levels += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 9)]
    with pytest.raises(InputError, match="values, counting what aliases stand for"):
        read(tmp_path, "\n".join(levels))


def test_variables_of_a_file_are_whole_names(tmp_path: Path) -> None:
    """--env TP=2 sets $TP, ${TP} and ${TP:-1}, and not $TP_MOST, which begins with it."""
    path = tmp_path / "compose.yaml"
    line = "--model Qwen/Qwen2.5-7B-Instruct -tp $TP -pp ${TP} -dp ${TP:-1} --max-num-seqs ${TP_MOST:-64}"
    path.write_text(f'services: {{a: {{image: vllm/vllm-openai, command: "{line}"}}}}')
    keys = read_launch_file(path, "h100x8", variables={"TP": "2"}).keys
    assert [keys[f"{kind}_parallel"] for kind in ("tensor", "pipeline", "data")] == [2, 2, 2]
    assert keys["max_num_seqs"] == 64
    path.write_text(
        'services: {a: {image: vllm/vllm-openai, command: "--model Qwen/Qwen2.5-7B-Instruct -tp $TP_MOST"}}'
    )
    with pytest.raises(InputError, match="TP_MOST"):
        read_launch_file(path, "h100x8", variables={"TP": "2"})


def test_variables_of_config_maps_of_the_same_file_are_read(tmp_path: Path) -> None:
    source = "valueFrom: {configMapKeyRef: {name: limits, key: seqs}}"
    limits = "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: limits}\ndata: {seqs: '48', LEN: '4096'}\n"
    pod = POD.replace('{name: SEQS, value: "96"}', f"{{name: SEQS, {source}}}")
    assert read(tmp_path, pod + limits).max_num_seqs == 48
    every = POD.replace("$(SEQS)]", '"8", --max-model-len, $(LEN)]').replace(
        "        env:", "        envFrom: [{configMapRef: {name: limits}}]\n        env:"
    )
    assert read(tmp_path, every + limits).max_model_len == 4096


def test_a_group_knows_its_size(tmp_path: Path) -> None:
    """The controller of LeaderWorkerSets sets LWS_GROUP_SIZE; the address of the leader may stay unknown."""
    words = "-dp $((LWS_GROUP_SIZE * DP_LOCAL)) --data-parallel-address ${SOME_ADDRESS}"
    text = GROUP.replace(
        "python3 -m sglang.launch_server --model-path deepseek-ai/DeepSeek-R1 --tp 16 --nnodes 2 \\\n", ""
    )
    text = text.replace(
        "--dist-init-addr $(LWS_LEADER_ADDRESS):20000 --node-rank 0 --trust-remote-code",
        f"vllm serve deepseek-ai/DeepSeek-R1 --enable-expert-parallel {words}",
    )
    text = text.replace("          resources:", "          env: [{name: DP_LOCAL, value: '8'}]\n          resources:")
    assert read(tmp_path, text).data_parallel == 16


def test_a_server_beside_its_pod_counts(tmp_path: Path) -> None:
    beside = POD.replace("containers:\n      - name", "initContainers:\n      - restartPolicy: Always\n        name")
    assert read(tmp_path, beside).max_num_seqs == 96
    with pytest.raises(InputError, match="a manifest must start"):
        read(tmp_path, beside.replace("restartPolicy: Always", "restartPolicy: Never"))
