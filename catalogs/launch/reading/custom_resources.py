"""Custom resources and Helm values that stand for pods: the production stack of vLLM, KServe, and llm-d.

Each object becomes the pods that its operator or chart would create, with the command that it would write:

- Values of the production stack (`servingEngineSpec.modelSpec`) and its VLLMRuntime: vllm-project/production-stack,
  helm/templates/deployment-vllm-multi.yaml and ray-cluster.yaml, operator/internal/controller.
- LLMInferenceService and InferenceService of KServe: kserve/kserve, config/llmisvcconfig, python/huggingfaceserver.
- Values of llm-d's chart (`modelArtifacts` with `decode` and `prefill`): llm-d-incubation/llm-d-modelservice,
  charts/llm-d-modelservice/templates/_helpers.tpl.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from catalogs.launch.reading.blocks import count_under, list_under, mapping_under, mappings_under
from catalogs.launch.reading.shell import read_script

#: Flags of vLLM by the key of `vllmConfig`, and of `model` in a VLLMRuntime. Prefix caching is switched off where the
#: key is missing: the chart and the operator write --no-enable-prefix-caching unless the key is true.
_STACK_FLAGS: Final = {
    "maxModelLen": "--max-model-len",
    "dtype": "--dtype",
    "tensorParallelSize": "--tensor-parallel-size",
    "pipelineParallelSize": "--pipeline-parallel-size",
    "maxNumSeqs": "--max-num-seqs",
    "gpuMemoryUtilization": "--gpu-memory-utilization",
    "maxLoras": "--max-loras",
}

#: Arguments of KServe's Hugging Face server that are its own, by the flag of vLLM that means the same; None: it has no
#: counterpart.
_HUGGING_FACE_FLAGS: Final[Mapping[str, str | None]] = {
    "model_name": "--served-model-name",
    "model_id": "--model",
    "model_dir": None,
    "model_revision": "--revision",
    "tokenizer_revision": "--tokenizer-revision",
    "backend": None,
    "task": None,
    "disable_lower_case": None,
    "return_token_type_ids": None,
    "return_probabilities": None,
}

_GPU: Final = "nvidia.com/gpu"


class PodGroup(NamedTuple):
    """Equal pods that an object stands for: replicas of a server over `nodes` pods, in a role or ""."""

    pod: dict[str, Any]
    name: str
    replicas: int
    nodes: int = 1
    role: str = ""


def pod_groups(found: dict[str, Any]) -> Iterator[PodGroup]:
    """Yield the pods of a custom resource or of Helm values; nothing for another object.

    Raises:
        InputError: A part of the object has the wrong form.
    """
    kind = str(found.get("kind", ""))
    name = str(mapping_under(found, "metadata").get("name", ""))
    spec = mapping_under(found, "spec") if kind else {}
    if kind == "VLLMRuntime":
        yield _runtime(spec, name)
    elif kind == "InferenceService":
        yield from _inference_service(spec, name)
    elif kind == "LLMInferenceService":
        yield from _llm_inference_service(spec, name)
    elif not kind and "servingEngineSpec" in found:
        for model in mappings_under(mapping_under(found, "servingEngineSpec"), "modelSpec"):
            if model.get("enabled") is not False:
                yield _stack_model(model)
    elif not kind and "modelArtifacts" in found:
        for role in ("decode", "prefill"):
            part = mapping_under(found, role)
            if part and part.get("create") is not False:
                both = all(mapping_under(found, r).get("create", bool(found.get(r))) for r in ("decode", "prefill"))
                yield _llm_d_part(mapping_under(found, "modelArtifacts"), part, role if both else "")


def _stack_model(model: dict[str, Any]) -> PodGroup:
    """Return the pods of one entry of `modelSpec`; with `raySpec`, the head and the workers are one server."""
    words = ["vllm", "serve", str(model.get("modelURL", "")), *_stack_words(mapping_under(model, "vllmConfig"), model)]
    cache = mapping_under(model, "lmcacheConfig")
    if cache.get("enabled"):
        transfer = {"kv_connector": "LMCacheConnectorV1", "kv_role": str(cache.get("kvRole") or "kv_both")}
        words += ["--kv-transfer-config", json.dumps(transfer)]
    name = str(model.get("name", ""))
    limits = {str(model.get("requestGPUType") or _GPU): model["requestGPU"]} if model.get("requestGPU") else {}
    container = {
        "name": name,
        "image": f"{model.get('repository', '')}:{model.get('tag', '')}",
        "command": words,
        "env": mappings_under(model, "env"),
        "resources": {"limits": limits},
    }
    pod = {"containers": [container], **_affinity(mappings_under(model, "nodeSelectorTerms"))}
    count = count_under(model, "replicaCount")
    if mapping_under(model, "raySpec").get("enabled"):
        return PodGroup(pod, name, 1, count + 1)
    return PodGroup(pod, name, count)


def _stack_words(config: Mapping[str, Any], model: Mapping[str, Any]) -> list[str]:
    """Return the flags that the production stack writes for `vllmConfig` and the model's own settings."""
    words = ["--enable-lora"] if model.get("enableLoRA") else []
    if config:
        if config.get("enableChunkedPrefill") is False:
            words.append("--no-enable-chunked-prefill")
        words.append("--enable-prefix-caching" if config.get("enablePrefixCaching") else "--no-enable-prefix-caching")
    for key, flag in _STACK_FLAGS.items():
        if config.get(key):
            words += [flag, str(config[key])]
    return words + [str(word) for word in list_under(config, "extraArgs")]


def _runtime(spec: dict[str, Any], name: str) -> PodGroup:
    """Return the pods of a VLLMRuntime."""
    model, config = mapping_under(spec, "model"), mapping_under(spec, "vllmConfig")
    own = {key: model[key] for key in _STACK_FLAGS if key in model}
    merged = {"enablePrefixCaching": False, **config, **own}
    words = ["vllm", "serve", str(model.get("modelURL", "")), *_stack_words(merged, model)]
    if mapping_under(spec, "lmCacheConfig").get("enabled"):
        words += ["--kv-transfer-config", '{"kv_connector": "LMCacheConnectorV1", "kv_role": "kv_both"}']
    deployment = mapping_under(spec, "deploymentConfig")
    resources, image = mapping_under(deployment, "resources"), mapping_under(deployment, "image")
    limits = {str(resources.get("gpuType") or _GPU): resources["gpu"]} if resources.get("gpu") else {}
    container = {
        "name": name,
        "image": str(image.get("name", "")),
        "command": words,
        "env": mappings_under(config, "env"),
        "resources": {"limits": limits},
    }
    pod = {"containers": [container], **_affinity(mappings_under(deployment, "nodeSelectorTerms"))}
    return PodGroup(pod, name, count_under(deployment, "replicas"))


def _affinity(terms: list[dict[str, Any]]) -> dict[str, Any]:
    required = {"nodeSelectorTerms": terms}
    node = {"requiredDuringSchedulingIgnoredDuringExecution": required}
    return {"affinity": {"nodeAffinity": node}} if terms else {}


def _inference_service(spec: dict[str, Any], name: str) -> Iterator[PodGroup]:
    """Yield the pods of a predictor: its containers, or its model for KServe's Hugging Face server around vLLM."""
    predictor = mapping_under(spec, "predictor")
    model = mapping_under(predictor, "model")
    worker = mapping_under(predictor, "workerSpec")
    replicas = max(count_under(predictor, "minReplicas"), 1)
    if not model:
        yield PodGroup(predictor, name, replicas)
        return
    runtime = str(mapping_under(model, "modelFormat").get("name", "")).lower()
    words = [str(word) for word in list_under(model, "args")]
    if runtime == "huggingface":
        words = _hugging_face_words(words, str(model.get("storageUri") or ""))
    elif "vllm" not in f"{runtime} {model.get('runtime', '')} {model.get('image', '')}".lower():
        return
    elif not any(word.startswith("--model") for word in words):
        words = ["--model", _named(str(model.get("storageUri") or "")), *words]
    for key, flag in (
        ("pipelineParallelSize", "--pipeline-parallel-size"),
        ("tensorParallelSize", "--tensor-parallel-size"),
    ):
        if worker.get(key):
            words += [flag, str(worker[key])]
    own = {**model, "name": name, "command": ["vllm", "serve"], "args": words}
    pod = {**predictor, "containers": [own]}
    yield PodGroup(pod, name, replicas, count_under(worker, "pipelineParallelSize") or 1)


def _hugging_face_words(words: list[str], storage: str) -> list[str]:
    """Return the arguments of the Hugging Face server as flags of vLLM."""
    split = [part for word in words for part in (word.split("=", 1) if word.startswith("--") else [word])]
    kept: list[str] = []
    dropped = False
    for word in split:
        name = word.removeprefix("--").replace("-", "_") if word.startswith("--") else ""
        if name in _HUGGING_FACE_FLAGS:
            flag = _HUGGING_FACE_FLAGS[name]
            dropped = flag is None
            kept += [flag] if flag is not None else []
        elif word.startswith("--") or not dropped:
            kept.append(word)
            dropped = False
        else:
            dropped = False
    return kept if "--model" in kept or not storage else ["--model", _named(storage), *kept]


def _llm_inference_service(spec: dict[str, Any], name: str) -> Iterator[PodGroup]:
    """Yield the decode pods and, where the object has them, the prefill pods of an LLMInferenceService."""
    prefill = mapping_under(spec, "prefill")
    model = mapping_under(spec, "model")
    for part, role in ((spec, "decode" if prefill else ""), (prefill, "prefill")):
        if not part:
            continue
        pod = dict(mapping_under(part, "template"))
        sizes = mapping_under(part, "parallelism")
        containers = mappings_under(pod, "containers") or [{"name": "main"}]
        main = next((c for c in containers if c.get("name") == "main"), containers[0])
        pod["containers"] = [_llm_main(main, model, sizes)]
        data = count_under(sizes, "data") or 1
        local = count_under(sizes, "dataLocal") if sizes.get("dataLocal") else data
        nodes = max(data // local, 1)
        if not sizes.get("data") and mapping_under(part, "worker"):
            nodes = count_under(sizes, "pipeline") or 1
        yield PodGroup(pod, f"{name}-{role}" if role else name, count_under(part, "replicas"), nodes, role)


def _llm_main(main: dict[str, Any], model: Mapping[str, Any], sizes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the container of the server: its own command, or the one of KServe's template."""
    variables = {str(e.get("name")): str(e["value"]) for e in mappings_under(main, "env") if e.get("value") is not None}
    if main.get("command"):
        return main
    words = ["vllm", "serve", str(model.get("name") or _named(str(model.get("uri") or "")))]
    for key, flag in (
        ("tensor", "--tensor-parallel-size"),
        ("data", "--data-parallel-size"),
        ("pipeline", "--pipeline-parallel-size"),
    ):
        if sizes.get(key):
            words += [flag, str(sizes[key])]
    words += ["--enable-expert-parallel"] if sizes.get("expert") else []
    extra = read_script(variables.get("VLLM_ADDITIONAL_ARGS", "")).commands
    words += [word for command in extra for word in command.words]
    image = {"image": "ghcr.io/llm-d/llm-d-cuda"} if not main.get("image") else {}
    return {**main, **image, "command": words, "args": list_under(main, "args")}


def _llm_d_part(artifacts: dict[str, Any], part: dict[str, Any], role: str) -> PodGroup:
    """Return the prefill or decode pods of llm-d's values."""
    sizes = mapping_under(part, "parallelism")
    tensor, local, workers = (count_under(sizes, key) or 1 for key in ("tensor", "dataLocal", "workers"))
    data = count_under(sizes, "data") if sizes.get("data") else local * workers
    if not sizes.get("dataLocal"):
        local = max(data // workers, 1)
    nodes = workers if sizes.get("workers") else max(data // local, 1)
    model = str(artifacts.get("name") or _named(str(artifacts.get("uri") or "")))
    containers = []
    for container in mappings_under(part, "containers"):
        given = [str(word) for word in list_under(container, "args")]
        if container.get("modelCommand") in ("vllmServe", "imageDefault"):
            words = ["vllm", "serve", model]
            words += ["--tensor-parallel-size", str(tensor)] if tensor > 1 else []
            words += ["--data-parallel-size", str(data)] if data > 1 else []
            container = {**container, "command": words, "args": given}
        sets = {"DP_SIZE": data, "TP_SIZE": tensor, "DP_SIZE_LOCAL": local}
        variables = [{"name": key, "value": str(value)} for key, value in sets.items()]
        limits = mapping_under(mapping_under(container, "resources"), "limits")
        resources = {"limits": limits if any("gpu" in str(key) for key in limits) else {**limits, _GPU: tensor * local}}
        containers.append({**container, "env": [*variables, *mappings_under(container, "env")], "resources": resources})
    kinds = mapping_under(part, "acceleratorTypes")
    match = {"key": kinds.get("labelKey"), "operator": "In", "values": list_under(kinds, "labelValues")}
    terms = [{"matchExpressions": [match]}] if kinds.get("labelKey") else []
    return PodGroup(
        {"containers": containers, **_affinity(terms)}, role or "decode", count_under(part, "replicas"), nodes, role
    )


def _named(uri: str) -> str:
    """Return the model that a storage address names: hf://ORG/NAME, pvc://CLAIM/PATH, or the path as it is."""
    found = re.match(r"(?:hf|pvc\+hf|s3|gs|pvc|oci)://\"?([^\"]*)", uri)
    return uri if found is None else found[1] if uri.startswith("hf") else f"/{found[1]}"
