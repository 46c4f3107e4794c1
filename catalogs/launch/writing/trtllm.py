"""Arguments of `trtllm-serve` for one replica, with the options that only its YAML file takes.

The command line is that of commands/serve.py of NVIDIA/TensorRT-LLM 1.2. The file `--config` is written by the shell
that starts the server. Encoder-decoder models need the options of docs/source/models/encoder-decoder.md.
"""

from __future__ import annotations

import json
from typing import Any, Final

from catalogs.deployments.engine_settings import EngineSettings
from catalogs.deployments.resolved import ResolvedDeployment
from catalogs.deployments.schema import KvRetention
from catalogs.engines.flags import flag_table
from catalogs.errors import InputError
from catalogs.launch.arguments import Arguments, checkpoint_notes, folder_notes, own_stage_layers, served_weights

#: TensorRT-LLM's names of dtypes (llmapi/llm_args.py).
_DTYPES: Final = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}

#: The share of the KV memory for the keys and values of prompts. The simulator counts both pools as one.
CROSS_SHARE: Final = 0.5

CONFIG: Final = "trtllm-config.yaml"


def trtllm_arguments(resolved: ResolvedDeployment) -> Arguments:
    """Return the arguments of one replica.

    Raises:
        InputError: The deployment uses speculative decoding or disaggregation, which this command does not write.
    """
    r, limits, table = resolved, resolved.limits, flag_table("trtllm")
    flags = table.by_key
    if r.speculation is not None or r.role != "both":
        what = "disaggregation" if r.speculation is None else "speculative decoding"
        raise InputError(f"no start command is written for {what} of this engine", r.engine.name, "vllm")
    at, checkpoint = served_weights(r)
    found: list[tuple[str, str | None]] = [("--backend", "pytorch")]
    ranks = r.layout.tensor_parallel * r.layout.data_parallel  # attention ranks lie inside the tensor group
    sizes = {"tensor_parallel": ranks, "pipeline_parallel": r.layout.pipeline_parallel}
    found += [(flags[key], str(size)) for key, size in sizes.items() if size > 1]
    if r.layout.expert_parallel:
        found.append(("--ep_size", str(ranks)))
    longest = max(limits.max_model_len, r.side_tokens)
    found += [
        # The flag limits each micro-batch of a pipeline, max_num_seqs all of them together.
        (flags["max_num_seqs"], str(max(1, limits.max_num_seqs // r.layout.pipeline_parallel))),
        (flags["max_num_batched_tokens"], str(limits.max_num_batched_tokens)),
        (flags["max_model_len"], str(longest)),
        (flags["gpu_memory_utilization"], f"{r.gpu_memory_utilization:g}"),
        ("--config", CONFIG),
    ]
    notes = [f"write {CONFIG} first: {json.dumps(config(r))} (JSON is YAML)", *folder_notes(r.model)]
    if r.layout.data_parallel > 1 and r.layout.tensor_parallel > 1:
        notes.append("enable_attention_dp leaves attention whole on every rank: it is not split over tensor ranks")
    if checkpoint is not None:
        notes += checkpoint_notes(r.model, checkpoint)
    elif r.weight_dtype != r.model.weight_dtype:
        notes.append(f"needs a {r.weight_dtype} checkpoint of {at}: use its name in place of the model")
    if r.kv_retention is not None:
        notes.append(f"each request needs a kv_cache_retention_config: {_retention(r.kv_retention)}")
    if r.model.encodes_prompt:
        share = "the share of prompt tokens in all tokens of a request"
        notes.append(f"cross_kv_cache_fraction {CROSS_SHARE:g} is TensorRT-LLM's starting point; better is {share}")
    return Arguments(("trtllm-serve", at), tuple(found), tuple(notes), model=at)


def _retention(kept: KvRetention) -> str:
    """Return the retention of a request as a call of TensorRT-LLM's LLM API."""
    lasts = "None" if kept.duration_s is None else f"timedelta(seconds={kept.duration_s:g})"
    first = f"TokenRangeRetentionConfig(0, {kept.prompt_tokens}, {kept.priority}, {lasts})"
    rest = f", {kept.priority}, {lasts}" if kept.prompt_tokens is None else ""
    return f"KvCacheRetentionConfig([{first}]{rest})"


#: TensorRT-LLM's names of kernels for experts (llmapi/llm_args.py, MoeConfig.backend).
MOE_BACKENDS: Final = {"cutlass": "CUTLASS", "trtllm": "TRTLLM", "deepgemm": "DEEPGEMM", "triton": "TRITON"}

#: TensorRT-LLM's names of kernels for attention (attn_backend).
ATTENTION_BACKENDS: Final = {"trtllm": "TRTLLM", "flashinfer": "FLASHINFER", "sdpa": "VANILLA"}


def _set(found: dict[str, Any], settings: EngineSettings) -> None:
    """Set the options of settings that replace a default of the engine.

    Raises:
        InputError: The engine has no kernels of this name, or no such mode of CUDA graphs.
    """
    if settings.async_scheduling is False:
        found["disable_overlap_scheduler"] = True
    graphs = found["cuda_graph_config"]
    if settings.cudagraph_mode == "none":
        found["cuda_graph_config"] = None
    elif settings.cudagraph_mode is not None:
        raise InputError("TensorRT-LLM has no option for this cudagraph_mode", settings.cudagraph_mode, "none")
    if settings.cudagraph_capture_sizes is not None:
        graphs["batch_sizes"] = list(settings.cudagraph_capture_sizes)
    if settings.max_cudagraph_capture_size is not None:
        graphs["max_batch_size"] = settings.max_cudagraph_capture_size
    if settings.moe_backend is not None:
        found["moe_config"] = {"backend": _named(settings.moe_backend, MOE_BACKENDS)}
    if settings.attention_backend is not None:
        found["attn_backend"] = _named(settings.attention_backend, ATTENTION_BACKENDS)


def _named(backend: str, names: dict[str, str]) -> str:
    if backend not in names:
        raise InputError("TensorRT-LLM has no such kernels", backend, next(iter(names)))
    return names[backend]


def config(r: ResolvedDeployment) -> dict[str, Any]:
    """Return the options that the command line lacks, under their names in the file of `--config`."""
    cache: dict[str, Any] = {"enable_block_reuse": r.limits.prefix_caching}
    found: dict[str, Any] = {"cuda_graph_config": {"enable_padding": True}, "kv_cache_config": cache}
    scheduler: dict[str, Any] = {}
    if r.engine.policy == "trtllm-max-utilization":
        scheduler["capacity_scheduler_policy"] = "MAX_UTILIZATION"
        found["scheduler_config"] = scheduler
    if r.layout.data_parallel > 1:
        found["enable_attention_dp"] = True
    if r.kv_dtype == "fp8":
        cache["dtype"] = "fp8"
    if r.limits.block_size != r.engine.block_size_tokens:
        cache["tokens_per_block"] = r.limits.block_size
    if layers := own_stage_layers(r):
        found["pp_partition"] = layers
    _set(found, r.settings)
    if not r.model.encodes_prompt:
        return found | {"enable_chunked_prefill": r.engine.chunked_prefill}
    cache |= {"cross_kv_cache_fraction": CROSS_SHARE, "use_kv_cache_manager_v2": False}
    own = {"attn_backend": "TRTLLM", "enable_chunked_prefill": False, "max_beam_width": 1}
    own |= {"dtype": _DTYPES.get(r.weight_dtype, "auto"), "max_input_len": r.side_tokens}
    return found | own | {"scheduler_config": scheduler | {"use_python_scheduler": True}}
