"""Arguments of `vllm serve` for one replica; the flags come from data/launch/vllm.yaml."""

from __future__ import annotations

import json
from typing import Final

from catalogs.deployments.engine_settings import EngineSettings
from catalogs.deployments.layout import ALLGATHER_REDUCESCATTER
from catalogs.deployments.resolved import ResolvedDeployment
from catalogs.deployments.speculation import Speculation
from catalogs.engines.flags import FlagTable, flag_table
from catalogs.errors import InputError
from catalogs.launch.arguments import (
    Arguments,
    checkpoint_notes,
    folder_notes,
    own_stage_layers,
    served_weights,
    weights_at,
)
from catalogs.units import GIB

#: Dtypes that `--quantization` applies while loading a 16-bit checkpoint; others need a checkpoint in that dtype.
ON_THE_FLY: Final = {"fp8": "fp8"}

#: KV cache dtypes that a flag selects; the others follow from the weights.
KV_CHOICES: Final = ("fp8", "bf16")

#: Experts in MXFP4 take 8-bit inputs (vllm/envs.py).
MXFP8_VARIABLE: Final = "VLLM_USE_FLASHINFER_MOE_MXFP4_MXFP8"

#: What versions without --moe-backend read instead of its value marlin, for experts in MXFP4.
MARLIN_VARIABLE: Final = "VLLM_MXFP4_USE_MARLIN"

#: Layers of each pipeline stage (vllm/envs.py).
STAGES_VARIABLE: Final = "VLLM_PP_LAYER_PARTITION"

#: Versions of FlashAttention, which one backend of vLLM has (config/attention.py, flash_attn_version).
_FLASH_VERSIONS: Final = {"fa2": 2, "fa3": 3, "fa4": 4}

#: Products, experts and norms by AITER's kernels on AMD, which are off by default (vllm/envs.py); the operator times of
#: these accelerators are AITER's.
AITER_VARIABLE: Final = "VLLM_ROCM_USE_AITER"

#: The KV role of a server by the role of its pool (vllm/distributed/kv_transfer, where `kv_both` is deprecated).
_KV_ROLES: Final = {"prefill": "kv_producer", "decode": "kv_consumer"}


#: The encoder-cache role of a server in a deployment with an encoder pool (vllm/config/ec_transfer.py). A decode server
#: behind prefill servers moves no embeddings.
_EC_ROLES: Final = {"encode": "ec_producer", "prefill": "ec_consumer", "both": "ec_consumer"}

#: Architectures whose repositories hold weights and configuration in Mistral's own format (vLLM's recipe for Voxtral).
MISTRAL_FORMAT: Final = ("VoxtralForConditionalGeneration",)


def vllm_arguments(resolved: ResolvedDeployment) -> Arguments:
    """Return the arguments of one replica; flags are omitted only where they equal the engine's default."""
    r, table = resolved, flag_table("vllm")
    flags = table.by_key
    found: list[tuple[str, str | None]] = _layout(r, flags)
    more, notes = shared_flags(r, table, ranks=1)
    found += more
    if r.kv_dtype not in ("bf16", "fp16", "fp8"):
        notes.append(f"KV cache in {r.kv_dtype}")
    if r.limits.prefix_caching != r.engine.prefix_caching:
        flag = flags["prefix_caching"]
        found.append((flag if r.limits.prefix_caching else negated(flag), None))
    if r.limits.block_size != r.engine.block_size_tokens:
        found.append((flags["block_size"], str(r.limits.block_size)))
    if r.api_server_count != r.layout.data_parallel:
        found.append((flags["api_server_count"], str(r.api_server_count)))
    found += _settings(r.settings, table) + _features(r)
    if r.multimodal is not None and r.multimodal.encoder_parallel != "weights":
        found.append(("--mm-encoder-tp-mode", r.multimodal.encoder_parallel))
    # As planned: no budget and no memory for their largest items. Behind an encoder pool no tower is loaded at all.
    refused = [m for m in r.model.modalities if m not in r.modalities or r.encodes_elsewhere]
    if refused:
        found.append(("--limit-mm-per-prompt", json.dumps(dict.fromkeys(refused, 0))))
    if r.role == "encode":
        found.append(("--enforce-eager", None))
    elif r.encodes_elsewhere:
        found.append(("--enable-mm-embeds", None))
    if r.model.architecture in MISTRAL_FORMAT:
        found += [(f"--{part}", "mistral") for part in ("tokenizer-mode", "config-format", "load-format")]
    if r.speculation is not None:
        found.append(("--speculative-config", json.dumps(_drafts(r.speculation))))
    if r.role in _KV_ROLES:
        connector = {"kv_connector": "NixlConnector", "kv_role": _KV_ROLES[r.role]}
        found.append(("--kv-transfer-config", json.dumps(connector)))
    if (r.encodes_elsewhere or r.role == "encode") and r.role in _EC_ROLES:
        connector = {"ec_connector": "ECMooncakeConnector", "ec_role": _EC_ROLES[r.role]}
        found += [("--enable-request-id-headers", None), ("--ec-transfer-config", json.dumps(connector))]
    at, _ = served_weights(r)
    environment = {MXFP8_VARIABLE: "1"} if r.settings.activation_dtype == "mxfp8" else {}
    if layers := own_stage_layers(r):
        environment[STAGES_VARIABLE] = ",".join(map(str, layers))
    if r.hardware.accelerator.maker == "amd":
        environment[AITER_VARIABLE] = "1"
        notes.append(f"{AITER_VARIABLE}=1 is needed: the plan's matrix products and experts run in AITER's kernels")
    return Arguments(("vllm", "serve", at), tuple(found), tuple(notes), environment, model=at)


def _settings(settings: EngineSettings, table: FlagTable) -> list[tuple[str, str | None]]:
    """Return the flags of settings that replace a default of the engine version."""
    found: list[tuple[str, str | None]] = []
    for key in ("async_scheduling", "enforce_eager"):
        value = getattr(settings, key)
        if value is not None:
            flag = table.by_key[key]
            found.append((flag if value else negated(flag), None))
    compilation: dict[str, object] = {}
    if settings.fused_allreduce is not None:
        compilation["pass_config"] = {"fuse_allreduce_rms": settings.fused_allreduce}
    if settings.cudagraph_mode is not None:
        compilation["cudagraph_mode"] = settings.cudagraph_mode.upper()
    if settings.cudagraph_capture_sizes is not None:
        compilation["cudagraph_capture_sizes"] = list(settings.cudagraph_capture_sizes)
    if compilation:
        found.append(("--compilation-config", json.dumps(compilation)))
    if settings.max_cudagraph_capture_size is not None:
        found.append((table.by_key["max_cudagraph_capture_size"], str(settings.max_cudagraph_capture_size)))
    if settings.moe_backend is not None:
        found.append((table.by_key["moe_backend"], table.name_of("moe_backend", settings.moe_backend)))
    if settings.attention_backend in _FLASH_VERSIONS:
        chosen = {"backend": "FLASH_ATTN", "flash_attn_version": _FLASH_VERSIONS[settings.attention_backend]}
        found.append(("--attention-config", json.dumps(chosen)))
    elif settings.attention_backend is not None:
        found.append((table.by_key["attention_backend"], _backend(settings.attention_backend, table)))
    return found


def _backend(chosen: str, table: FlagTable) -> str:
    names = table.row("attention_backend").names
    if chosen not in names:
        raise InputError("vLLM has no flag for this attention_backend", chosen, next(iter(names)))
    return names[chosen]


def negated(flag: str) -> str:
    """Return the flag that turns a switch off: --no-enforce-eager, --no-enable-prefix-caching."""
    return flag.replace("--", "--no-", 1)


def _features(r: ResolvedDeployment) -> list[tuple[str, str | None]]:
    """Return the flags of adapters, of the host tier of the KV cache and of the order of waiting requests."""
    found: list[tuple[str, str | None]] = []
    if r.lora is not None:
        sizes = {"--max-loras": r.lora.max_loras, "--max-lora-rank": r.lora.max_rank, "--max-cpu-loras": r.lora.in_host}
        found += [("--enable-lora", None), *((flag, str(size)) for flag, size in sizes.items())]
    if r.offload is not None:
        found.append(("--kv-offloading-size", f"{r.offload.host_bytes / GIB:.12g}"))
    if r.queueing.order != "fcfs":  # clients send deadlines as priorities
        found.append(("--scheduling-policy", "priority"))
    return found


def _drafts(s: Speculation) -> dict[str, object]:
    """Return vLLM's SpeculativeConfig; an n-gram drafter searches for matches up to the number of tokens it drafts."""
    found: dict[str, object] = {"method": s.method, "num_speculative_tokens": s.num_speculative_tokens}
    if s.draft_name is not None:
        found["model"] = s.draft_name
    return found | ({"prompt_lookup_max": s.num_speculative_tokens} if s.method == "ngram" else {})


def _layout(r: ResolvedDeployment, flags: dict[str, str]) -> list[tuple[str, str | None]]:
    keys = ("tensor_parallel", "pipeline_parallel", "data_parallel", "context_parallel", "decode_context_parallel")
    sizes = [(flags[key], getattr(r.layout, key)) for key in keys]
    found: list[tuple[str, str | None]] = [(flag, str(size)) for flag, size in sizes if size > 1]
    if r.layout.expert_parallel:
        found.append((flags["expert_parallel"], None))
        if r.layout.all2all_backend != ALLGATHER_REDUCESCATTER:
            found.append((flags["all2all_backend"], r.layout.all2all_backend))
        if r.layout.redundant_experts:
            config = json.dumps({"num_redundant_experts": r.layout.redundant_experts})
            found += [("--enable-eplb", None), (flags["redundant_experts"], config)]
        if r.layout.two_batch_overlap:
            found.append((flags["two_batch_overlap"], None))
    return found


def shared_flags(r: ResolvedDeployment, table: FlagTable, ranks: int) -> tuple[list[tuple[str, str | None]], list[str]]:
    """Return the flags of dtypes, limits and memory, which vLLM and SGLang share, and notes about the weights.

    `table` is that of the engine's command line. An engine follows the KV cache dtype that a checkpoint
    declares; where the plan has another one, the flag is written out. The limits of sequences and tokens are those of
    `ranks` ranks together.
    """
    flags, notes = table.by_key, folder_notes(r.model)
    found: list[tuple[str, str | None]] = []
    _, checkpoint = served_weights(r)
    declared = None if checkpoint is None else checkpoint.format.kv_dtype
    if checkpoint is not None:
        notes += checkpoint_notes(r.model, checkpoint)
    elif r.weight_dtype != r.model.weight_dtype in ("bf16", "fp16") and r.weight_dtype in ON_THE_FLY:
        found.append((flags["weight_dtype"], ON_THE_FLY[r.weight_dtype]))
        notes.append(f"no published {r.weight_dtype} checkpoint is in the catalog: the engine quantises while it loads")
    elif r.weight_dtype != r.model.weight_dtype:
        at = weights_at(r.model)
        notes.append(f"needs a {r.weight_dtype} checkpoint of {at}: use its name in place of the model")
    if r.kv_dtype in KV_CHOICES and (r.kv_dtype == "fp8" or declared not in (None, r.kv_dtype)):
        found.append((flags["kv_dtype"], table.name_of("kv_dtype", r.kv_dtype)))
    found += [(flags[k], str(getattr(r.limits, k) * ranks)) for k in ("max_num_seqs", "max_num_batched_tokens")]
    found.append((flags["max_model_len"], str(r.limits.max_model_len)))
    found.append((flags["gpu_memory_utilization"], f"{r.gpu_memory_utilization:.12g}"))
    return found, notes
