"""Arguments of `vllm serve` for one replica; the flags come from the engine's catalog file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final

from catalogs.deployments.engine_settings import EngineSettings
from catalogs.deployments.layout import Layout
from catalogs.deployments.resolved import ResolvedDeployment
from catalogs.deployments.speculation import Speculation
from catalogs.launch.arguments import Arguments, checkpoint_notes, folder_notes, served_weights, weights_at

#: Dtypes that `--quantization` applies while loading a 16-bit checkpoint; others need a checkpoint in that dtype.
ON_THE_FLY: Final = {"fp8": "fp8"}

#: vLLM's names of KV cache dtypes (vllm/config/cache.py, CacheDType).
_KV_NAMES: Final = {"fp8": "fp8", "bf16": "bfloat16"}

#: Images and videos per prompt where only text is served: vLLM then reserves no memory for the vision tower's pass.

#: Experts in MXFP4 take 8-bit inputs (vllm/envs.py).
MXFP8_VARIABLE: Final = "VLLM_USE_FLASHINFER_MOE_MXFP4_MXFP8"

#: Products, experts and norms by AITER's kernels on AMD, which are off by default (vllm/envs.py); the operator times of
#: these accelerators are AITER's.
AITER_VARIABLE: Final = "VLLM_ROCM_USE_AITER"

_DEFAULT_ALL2ALL: Final = Layout().all2all_backend

#: The KV role of a server by the role of its pool (vllm/distributed/kv_transfer, where `kv_both` is deprecated).
_KV_ROLES: Final = {"prefill": "kv_producer", "decode": "kv_consumer"}


#: Architectures whose repositories hold weights and configuration in Mistral's own format (vLLM's recipe for Voxtral).
MISTRAL_FORMAT: Final = ("VoxtralForConditionalGeneration",)


def vllm_arguments(resolved: ResolvedDeployment) -> Arguments:
    """Return the arguments of one replica; flags are omitted only where they equal the engine's default."""
    r, flags = resolved, resolved.engine.flags
    found: list[tuple[str, str | None]] = _layout(r)
    more, notes = shared_flags(r, kv_names=_KV_NAMES, ranks=1)
    found += more
    if r.kv_dtype not in ("bf16", "fp16", "fp8"):
        notes.append(f"KV cache in {r.kv_dtype}")
    if r.limits.prefix_caching != r.engine.prefix_caching:
        flag = flags["prefix_caching"]
        found.append((flag if r.limits.prefix_caching else flag.replace("--enable", "--no-enable"), None))
    if r.limits.block_size != r.engine.block_size_tokens:
        found.append((flags["block_size"], str(r.limits.block_size)))
    if r.api_server_count != r.layout.data_parallel:
        found.append((flags["api_server_count"], str(r.api_server_count)))
    found += _settings(r.settings)
    if r.multimodal is not None and r.multimodal.encoder_parallel != "weights":
        found.append(("--mm-encoder-tp-mode", r.multimodal.encoder_parallel))
    if refused := [modality for modality in r.model.modalities if modality not in r.modalities]:
        # As planned: no budget and no memory for their largest items.
        found.append(("--limit-mm-per-prompt", json.dumps(dict.fromkeys(refused, 0))))
    if r.model.architecture in MISTRAL_FORMAT:
        found += [(f"--{part}", "mistral") for part in ("tokenizer-mode", "config-format", "load-format")]
    if r.speculation is not None:
        found.append(("--speculative-config", json.dumps(_drafts(r.speculation))))
    if r.role in _KV_ROLES:
        connector = {"kv_connector": "NixlConnector", "kv_role": _KV_ROLES[r.role]}
        found.append(("--kv-transfer-config", json.dumps(connector)))
    at, _ = served_weights(r)
    environment = {MXFP8_VARIABLE: "1"} if r.settings.activation_dtype == "mxfp8" else {}
    if r.hardware.accelerator.maker == "amd":
        environment[AITER_VARIABLE] = "1"
        notes.append(
            f"{AITER_VARIABLE}=1 in the environment of the server: the plan's products and experts are AITER's"
        )
    return Arguments(("vllm", "serve", at), tuple(found), tuple(notes), environment, model=at)


def _settings(settings: EngineSettings) -> list[tuple[str, str | None]]:
    """Return the flags of settings that replace a default of the engine version."""
    found: list[tuple[str, str | None]] = []
    if settings.async_scheduling is not None:
        found.append(("--async-scheduling" if settings.async_scheduling else "--no-async-scheduling", None))
    if settings.fused_allreduce is not None:
        passes = {"pass_config": {"fuse_allreduce_rms": settings.fused_allreduce}}
        found.append(("--compilation-config", json.dumps(passes)))
    return found


def _drafts(s: Speculation) -> dict[str, object]:
    """Return vLLM's SpeculativeConfig; an n-gram drafter searches for matches up to the number of tokens it drafts."""
    found: dict[str, object] = {"method": s.method, "num_speculative_tokens": s.num_speculative_tokens}
    if s.draft_name is not None:
        found["model"] = s.draft_name
    return found | ({"prompt_lookup_max": s.num_speculative_tokens} if s.method == "ngram" else {})


def _layout(r: ResolvedDeployment) -> list[tuple[str, str | None]]:
    flags = r.engine.flags
    sizes = [(flags[k], getattr(r.layout, k)) for k in ("tensor_parallel", "pipeline_parallel", "data_parallel")]
    sizes += [
        ("--prefill-context-parallel-size", r.layout.context_parallel),
        ("--decode-context-parallel-size", r.layout.decode_context_parallel),
    ]
    found: list[tuple[str, str | None]] = [(flag, str(size)) for flag, size in sizes if size > 1]
    if r.layout.expert_parallel:
        found.append((flags["expert_parallel"], None))
        if r.layout.all2all_backend != _DEFAULT_ALL2ALL:
            found.append(("--all2all-backend", r.layout.all2all_backend))
    return found


def shared_flags(
    r: ResolvedDeployment, kv_names: Mapping[str, str], ranks: int
) -> tuple[list[tuple[str, str | None]], list[str]]:
    """Return the flags of dtypes, limits and memory, which vLLM and SGLang share, and notes about the weights.

    `kv_names` are the engine's names of KV cache dtypes. An engine follows the KV cache dtype that a checkpoint
    declares; where the plan has another one, the flag is written out. The limits of sequences and tokens are those of
    `ranks` ranks together.
    """
    flags, notes = r.engine.flags, folder_notes(r.model)
    found: list[tuple[str, str | None]] = []
    _, checkpoint = served_weights(r)
    declared = None if checkpoint is None else checkpoint.format.kv_dtype
    if checkpoint is not None:
        notes += checkpoint_notes(r.model, checkpoint)
    elif r.weight_dtype != r.model.weight_dtype and r.weight_dtype in ON_THE_FLY:
        found.append((flags["weight_dtype"], ON_THE_FLY[r.weight_dtype]))
        notes.append(f"no published {r.weight_dtype} checkpoint is in the catalog: the engine quantises while it loads")
    elif r.weight_dtype != r.model.weight_dtype:
        at = weights_at(r.model)
        notes.append(f"needs a {r.weight_dtype} checkpoint of {at}: use its name in place of the model")
    if r.kv_dtype in kv_names and (r.kv_dtype == "fp8" or declared not in (None, r.kv_dtype)):
        found.append((flags["kv_dtype"], kv_names[r.kv_dtype]))
    found += [(flags[k], str(getattr(r.limits, k) * ranks)) for k in ("max_num_seqs", "max_num_batched_tokens")]
    found.append((flags["max_model_len"], str(r.limits.max_model_len)))
    found.append((flags["gpu_memory_utilization"], f"{r.gpu_memory_utilization:.12g}"))
    return found, notes
