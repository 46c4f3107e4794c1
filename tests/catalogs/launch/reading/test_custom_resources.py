"""Custom resources and Helm values as deployments: the production stack, KServe, and llm-d."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from catalogs.errors import InputError
from catalogs.launch.reading.read import ReadLaunch, read_launch_file

STACK = """
servingEngineSpec:
  modelSpec:
  - name: chat
    repository: vllm/vllm-openai
    tag: v0.15.0
    modelURL: Qwen/Qwen2.5-7B-Instruct
    replicaCount: 3
    requestGPU: 2
    vllmConfig: {tensorParallelSize: 2, maxModelLen: 8192, extraArgs: [--max-num-seqs, "96"]}
    env: [{name: VLLM_LOGGING_LEVEL, value: INFO}]
    nodeSelectorTerms:
    - matchExpressions: [{key: nvidia.com/gpu.product, operator: In, values: [NVIDIA-L40S]}]
  - {name: other, enabled: false, repository: x, tag: y, modelURL: z}
"""

RAY = """
servingEngineSpec:
  modelSpec:
  - name: wide
    repository: vllm/vllm-openai
    tag: v0.15.0
    modelURL: Qwen/Qwen2.5-7B-Instruct
    replicaCount: 1
    requestGPU: 2
    vllmConfig: {tensorParallelSize: 2, pipelineParallelSize: 2, enablePrefixCaching: true}
    raySpec: {enabled: true, headNode: {requestGPU: 2}}
"""

RUNTIME = """
apiVersion: production-stack.vllm.ai/v1alpha1
kind: VLLMRuntime
metadata: {name: r}
spec:
  model: {modelURL: Qwen/Qwen2.5-7B-Instruct, maxModelLen: 4096, maxNumSeqs: 32}
  vllmConfig: {enablePrefixCaching: true, gpuMemoryUtilization: "0.8"}
  deploymentConfig: {replicas: 2, resources: {gpu: "1"}, image: {name: "vllm/vllm-openai:v0.15.0"}}
"""

KSERVE = """
apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata: {name: k}
spec:
  predictor:
    minReplicas: 2
    nodeSelector: {nvidia.com/gpu.product: NVIDIA-H100-80GB-HBM3}
    model:
      modelFormat: {name: huggingface}
      args: [--model_name=qwen, --backend, vllm, --model_id=Qwen/Qwen2.5-7B-Instruct, --max_model_len=4096]
      resources: {limits: {nvidia.com/gpu: "1"}}
"""

LLM_SERVICE = """
apiVersion: serving.kserve.io/v1alpha1
kind: LLMInferenceService
metadata: {name: q}
spec:
  replicas: 2
  model: {uri: hf://Qwen/Qwen3-30B-A3B, name: Qwen/Qwen3-30B-A3B}
  parallelism: {data: 4, dataLocal: 4, tensor: 1, expert: true}
  template:
    containers:
    - name: main
      env: [{name: VLLM_ADDITIONAL_ARGS, value: "--max-model-len 4096 --kv_transfer_config '{\\"kv_connector\\":\\"NixlConnector\\",\\"kv_role\\":\\"kv_both\\"}'"}]
      resources: {limits: {nvidia.com/gpu: "4"}}
  prefill:
    replicas: 1
    parallelism: {tensor: 2}
    template: {containers: [{name: main, resources: {limits: {nvidia.com/gpu: "2"}}}]}
"""  # noqa: E501

LLM_D = """
modelArtifacts: {name: Qwen/Qwen2.5-7B-Instruct, uri: hf://Qwen/Qwen2.5-7B-Instruct}
decode:
  replicas: 2
  parallelism: {tensor: 2}
  acceleratorTypes: {labelKey: nvidia.com/gpu.product, labelValues: [NVIDIA-H100-80GB-HBM3]}
  containers: [{name: vllm, image: "ghcr.io/llm-d/llm-d-cuda:v0.4.0", modelCommand: vllmServe, args: [--max-num-seqs, "64"]}]
prefill:
  replicas: 1
  acceleratorTypes: {labelKey: nvidia.com/gpu.product, labelValues: [NVIDIA-H100-80GB-HBM3]}
  containers: [{name: vllm, image: "ghcr.io/llm-d/llm-d-cuda:v0.4.0", modelCommand: custom,
                command: [/bin/sh, -c], args: ["vllm serve Qwen/Qwen2.5-7B-Instruct -tp ${TP_SIZE}"]}]
"""  # noqa: E501

EXPECTED: dict[str, tuple[str, str | None, dict[str, Any]]] = {
    "stack": (STACK, None, {"engine": "vllm-0.15", "hardware": "l40sx6", "replicas": 3, "tensor_parallel": 2,
                            "max_model_len": 8192, "max_num_seqs": 96, "prefix_caching": False}),
    "ray": (RAY, "2*h100x2", {"replicas": 1, "pipeline_parallel": 2, "tensor_parallel": 2}),
    "runtime": (RUNTIME, "l40sx2", {"replicas": 2, "max_num_seqs": 32, "max_model_len": 4096,
                                    "gpu_memory_utilization": 0.8, "prefix_caching": True}),
    "kserve": (KSERVE, None, {"hardware": "h100x2", "replicas": 2, "max_model_len": 4096}),
    "service": (LLM_SERVICE, "2*h200x8", {"data_parallel": 4, "expert_parallel": True, "max_model_len": 4096}),
    "llm-d": (LLM_D, None, {"hardware": "h100x5", "tensor_parallel": 2, "max_num_seqs": 64}),
}  # fmt: skip


def read(folder: Path, text: str, hardware: str | None = None, **more: Any) -> ReadLaunch:
    file = folder / "values.yaml"
    file.write_text(text, encoding="utf-8")
    return read_launch_file(file, hardware, **more)


@pytest.mark.parametrize("name", EXPECTED)
def test_resources_and_values_mean_the_pods_that_they_become(tmp_path: Path, name: str) -> None:
    text, hardware, keys = EXPECTED[name]
    found = read(tmp_path, text, hardware).deployment.model_dump()
    assert {key: found[key] for key in keys} == keys


def test_two_roles_are_disaggregated(tmp_path: Path) -> None:
    served = read(tmp_path, LLM_SERVICE, "2*h200x8").deployment.disaggregation
    values = read(tmp_path, LLM_D).deployment.disaggregation
    assert served is not None
    assert values is not None
    assert (served.prefill_replicas, served.decode_replicas, served.prefill["tensor_parallel"]) == (1, 2, 2)
    assert (values.prefill_replicas, values.decode_replicas, values.prefill["tensor_parallel"]) == (1, 2, 1)


def test_the_production_stack_switches_prefix_caching_off_unless_it_is_named(tmp_path: Path) -> None:
    """The chart writes --no-enable-prefix-caching for a vllmConfig without the key, and nothing without vllmConfig."""
    named = STACK.replace("vllmConfig: {", "vllmConfig: {enablePrefixCaching: true, ")
    without = STACK.replace("    vllmConfig: {", "    ignored: {")
    assert read(tmp_path, named).keys["prefix_caching"] is True
    assert "prefix_caching" not in read(tmp_path, without).keys


@pytest.mark.parametrize(
    ("before", "after", "rule"),
    [
        ("replicaCount: 3", "replicaCount: three", "replicaCount of a manifest is a whole number: got 'three'"),
        ('extraArgs: [--max-num-seqs, "96"]', "extraArgs: yes", "extraArgs of a manifest is a list"),
        ("tag: v0.15.0\n    modelURL: Qwen/Qwen2.5-7B-Instruct", "tag: v0.15.0", "unknown model|must name its model"),
    ],
)
def test_values_of_the_wrong_form_are_named(tmp_path: Path, before: str, after: str, rule: str) -> None:
    assert before in STACK
    with pytest.raises(InputError, match=rule):
        read(tmp_path, STACK.replace(before, after))


@pytest.mark.parametrize(
    ("text", "before", "key"),
    [
        (LLM_SERVICE, "data: 4", "data"),
        (LLM_SERVICE, "dataLocal: 4", "dataLocal"),
        (LLM_D, "tensor: 2", "tensor"),
    ],
)
def test_sizes_that_are_no_numbers_are_named(tmp_path: Path, text: str, before: str, key: str) -> None:
    assert before in text
    wrong = text.replace(before, f"{key}: two", 1)
    with pytest.raises(InputError, match=f"{key} of a manifest is a whole number: got 'two'"):
        read(tmp_path, wrong)
