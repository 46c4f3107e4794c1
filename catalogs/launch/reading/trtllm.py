"""Start commands of TensorRT-LLM: `trtllm-serve` with its YAML file, and Dynamo's worker around it."""

from __future__ import annotations

import re
from typing import Any, Final

from catalogs.engines.flags import flag_table
from catalogs.errors import InputError
from catalogs.launch.reading.engine_reader import OTHER_KERNELS, Reading, merged, named_file
from catalogs.launch.reading.lines import LaunchLine
from catalogs.launch.reading.names import DTYPES
from catalogs.launch.writing.trtllm import ATTENTION_BACKENDS, MOE_BACKENDS

#: Keys of the file that state one key of deployment.yaml (llmapi/llm_args.py).
_KEYS: Final = {
    "max_batch_size": "max_num_seqs",
    "max_num_tokens": "max_num_batched_tokens",
    "max_seq_len": "max_model_len",
    "pipeline_parallel_size": "pipeline_parallel",
    "pp_partition": "pipeline_layers",
    "tensor_parallel_size": "tensor_parallel",
}

#: Keys of the file that do not change a step.
_NO_EFFECT: Final = (
    "backend",
    "trust_remote_code",
    "print_iter_log",
    "enable_iter_perf_stats",
    "cache_transceiver_config",
    "perf_metrics_max_requests",
    "return_perf_metrics",
    "gpus_per_node",
    "served_model_name",
    "model",
    "iter_stats_max_iterations",
    "enable_iter_req_stats",
    "hostname",
    "port",
)

_METHODS: Final = {"mtp": "mtp", "eagle3": "eagle3", "eagle": "eagle3", "draft_target": "draft_model", "ngram": "ngram"}


def read_trtllm(line: LaunchLine) -> Reading:
    """Return the reading of a command of TensorRT-LLM; the YAML file takes precedence over the command, as it does.

    Raises:
        InputError: The command names no model of the catalog, a value is invalid, or its file is missing.
    """
    reading = Reading.of(line, flag_table("trtllm"), line.words)
    special = reading.special
    named = special.get("--model-path")
    if named is None and not reading.others:
        raise InputError("a start command must name its model", line.program, "trtllm-serve MODEL")
    written = named.value if named is not None else reading.others.pop(0)
    for word in reading.others:
        reading.note("unknown", word, "no option takes this word; it is left out")
    mode = special.get("--disaggregation-mode") or special.get("--server_role")
    roles = {"prefill": "prefill", "decode": "decode", "context": "prefill", "generation": "decode"}
    reading.role = line.role or "both"
    if mode is not None and mode.value.lower() in roles:
        reading.role = roles[mode.value.lower()]
        reading.note("read", mode.text, f"the server of a pool: {reading.role}")
    _backend(reading)
    model = reading.model(written, written)
    config = special.get("--config")
    options = {} if config is None else named_file(config.value, line.files)
    if config is not None:
        reading.note("read", config.text, f"{len(options)} options of the file")
    options = merged(options, reading.objects.get("--override-engine-args", {}))
    if "--enable-attention-dp" in special:
        options.setdefault("enable_attention_dp", True)
    _options(reading, dict(options), model.encodes_prompt)
    experts = special.get("--ep_size")
    if experts is not None:
        _experts(reading, experts.integer(), experts.text)
    if "--cp_size" in special and special["--cp_size"].integer() > 1:
        reading.note("not simulated", special["--cp_size"].text, "prompts are not split over context ranks")
    return reading


def _backend(reading: Reading) -> None:
    """State the engine of the backend: PyTorch, or TensorRT, the default before 1.0."""
    given = reading.special.get("--backend")
    version = re.match(r"(\d+)\.", reading.line.version or "")
    older = version is not None and int(version[1]) < 1
    name = given.value.lower() if given is not None else "tensorrt" if older else "pytorch"
    flag = given.text if given is not None else reading.line.image
    if name in ("tensorrt", "cpp", "trt"):
        reading.keys["engine"] = "trtllm-tensorrt"
        reading.note("read", flag, "engine: trtllm-tensorrt, the TensorRT backend")
    elif given is not None and name == "pytorch":
        reading.note("read", flag, "the backend that is simulated")
    elif given is not None:
        reading.note("not simulated", flag, "steps are those of the pytorch backend")


def _experts(reading: Reading, size: int, flag: str) -> None:
    keys = reading.keys
    ranks = int(keys.get("tensor_parallel", 1)) * int(keys.get("data_parallel", 1))
    if size > 1:
        reading.state("expert_parallel", True, flag)
        if size != ranks:
            reading.note("not simulated", flag, f"experts are spread over all {ranks} ranks, not over {size}")


def _options(reading: Reading, options: dict[str, Any], encodes_prompt: bool) -> None:
    """Read the options of the YAML file."""
    for name, key in _KEYS.items():
        if options.get(name) is not None:
            reading.state(key, options[name], name)
        options.pop(name, None)
    keys = reading.keys
    stages = int(keys.get("pipeline_parallel", 1))
    if stages > 1 and "max_num_seqs" in keys:
        keys["max_num_seqs"] = stages * int(keys["max_num_seqs"])
        reading.note("read", "max_batch_size", f"of each micro-batch: max_num_seqs counts those of {stages} stages")
    ranks = int(keys.get("tensor_parallel", 1))
    if options.pop("enable_attention_dp", False) and ranks > 1:
        keys["tensor_parallel"], keys["data_parallel"] = 1, ranks
        reading.note("read", "enable_attention_dp", f"data_parallel: {ranks}, attention is whole on every rank")
    size = options.pop("moe_expert_parallel_size", None)
    if size:
        _experts(reading, int(size), "moe_expert_parallel_size")
    cache = dict(options.pop("kv_cache_config", None) or {})
    _cache(reading, cache)
    graphs = options.pop("cuda_graph_config", ...)
    if graphs is None:
        reading.state("cudagraph_mode", "none", "cuda_graph_config")
    elif isinstance(graphs, dict):
        _graphs(reading, graphs)
    elif not encodes_prompt:
        reading.note("assumed", "cuda_graph_config", "padded graphs, as in the reference configurations")
    if options.pop("disable_overlap_scheduler", False):
        reading.state("async_scheduling", False, "disable_overlap_scheduler")
    scheduler = options.pop("scheduler_config", None) or {}
    if scheduler.get("capacity_scheduler_policy") == "MAX_UTILIZATION":
        reading.keys["engine"] = "trtllm-max-utilization"
        reading.note("read", "capacity_scheduler_policy", "engine: trtllm-max-utilization")
    chunked = options.pop("enable_chunked_prefill", "--enable_chunked_prefill" in reading.special)
    if not chunked and not encodes_prompt:
        text = "chunked prompts are off by default and are simulated as if they were on"
        reading.note("not simulated", "enable_chunked_prefill", text)
    _kernels(reading, options)
    _speculation(reading, options.pop("speculative_config", None) or options.pop("speculative_decoding", None))
    dtype = DTYPES.get(str(options.pop("dtype", "auto")))
    if dtype is not None:
        reading.note("no effect", f"dtype {dtype}", "the weights have the dtype of the checkpoint")
    for name, value in options.items():
        own = encodes_prompt and name in ("attn_backend", "max_beam_width", "max_input_len")
        if name in _NO_EFFECT or own:
            reading.note("no effect", name, "it does not change a step")
        else:
            reading.note("not simulated", f"{name}: {value}", "the simulator does not have this option")


def _cache(reading: Reading, cache: dict[str, Any]) -> None:
    reuse, fraction = cache.pop("enable_block_reuse", None), cache.pop("free_gpu_memory_fraction", None)
    if reuse is not None:
        reading.state("prefix_caching", bool(reuse), "enable_block_reuse")
    if fraction is not None:
        reading.state("gpu_memory_utilization", float(fraction), "free_gpu_memory_fraction")
    dtype = cache.pop("dtype", "auto")
    if dtype not in ("auto", None):
        reading.state("kv_dtype", DTYPES.get(dtype, dtype), "kv_cache_config.dtype")
    block = cache.pop("tokens_per_block", None)
    if block is not None:
        reading.state("block_size", int(block), "tokens_per_block")
    for name, value in cache.items():
        if name in ("cross_kv_cache_fraction", "use_kv_cache_manager_v2"):
            reading.note("no effect", name, "the simulator counts both pools of the cache as one")
        else:
            reading.note("not simulated", f"kv_cache_config.{name}: {value}", "the simulator does not have this option")


def _graphs(reading: Reading, graphs: dict[str, Any]) -> None:
    if graphs.get("batch_sizes"):
        reading.state("cudagraph_capture_sizes", list(graphs["batch_sizes"]), "cuda_graph_config.batch_sizes")
    if graphs.get("max_batch_size"):
        reading.state("max_cudagraph_capture_size", int(graphs["max_batch_size"]), "cuda_graph_config.max_batch_size")
    if graphs.get("enable_padding") is False:
        text = "batches are simulated as padded to the next captured size"
        reading.note("not simulated", "cuda_graph_config.enable_padding", text)


def _kernels(reading: Reading, options: dict[str, Any]) -> None:
    experts = options.pop("moe_config", None) or {}
    pairs = [(experts.get("backend"), MOE_BACKENDS, "moe_backend")]
    if not options.get("max_input_len"):
        pairs.append((options.pop("attn_backend", None), ATTENTION_BACKENDS, "attention_backend"))
    for named, names, key in pairs:
        known = {name.lower(): value for value, name in names.items()}
        if named is not None and str(named).lower() in known:
            reading.state(key, known[str(named).lower()], key)
        elif named not in (None, "AUTO"):
            reading.note("not simulated", f"{key} {named}", OTHER_KERNELS)


def _speculation(reading: Reading, config: dict[str, Any] | None) -> None:
    if not config:
        return
    named = str(config.get("decoding_type", "")).lower()
    method = _METHODS.get(named, named)
    drafts = config.get("num_nextn_predict_layers") or config.get("max_draft_len") or 1
    reading.keys["speculative"] = {"method": method, "num_speculative_tokens": int(drafts)}
    model = config.get("speculative_model_dir") or config.get("speculative_model")
    if model and method not in ("mtp", "ngram"):
        reading.keys["speculative"]["model"] = str(model)
    reading.note("read", "speculative_config", f"speculative: {method}, {drafts} drafts")
