"""Start commands of vLLM: `vllm serve`, its API server module, and Dynamo's worker around it."""

from __future__ import annotations

import json
import re
from typing import Any, Final

from catalogs.engines.flags import flag_table
from catalogs.errors import InputError
from catalogs.launch.reading.engine_reader import OTHER_KERNELS, Reading, choice, merged, named_file
from catalogs.launch.reading.lines import LaunchLine
from catalogs.launch.reading.notes import Note
from catalogs.launch.reading.words import GivenFlag
from catalogs.launch.writing.vllm import AITER_VARIABLE, MARLIN_VARIABLE, MXFP8_VARIABLE, STAGES_VARIABLE
from catalogs.models.spec import ModelSpec
from catalogs.units import GIB

#: The API server without OpenAI's interface: its usage context has no limits of its own in
#: EngineArgs.get_batch_defaults, so those of SchedulerConfig apply.
_OTHER_CONTEXT: Final = "vllm.entrypoints.api_server"

#: (max_num_batched_tokens, max_num_seqs) of SchedulerConfig (config/scheduler.py).
_CONTEXT_LIMITS: Final = (2048, 128)

#: Token budget with the batched kernels of DeepEP's low-latency mode (DEFAULT_MAX_NUM_BATCHED_TOKENS_FOR_BATCHED_DP).
_BATCHED_DP_TOKENS: Final = 256

_CONFIG_TRAP: Final = (
    "vLLM before pull request 43548 ignores --config=FILE without a message, because it searches the words for "
    "--config alone: nothing of the file is read here; write --config FILE"
)

#: Methods of --speculative-config by the name in deployment.yaml.
_METHODS: Final = {
    "draft_model": "draft_model",
    "eagle": "eagle",
    "eagle3": "eagle3",
    "ngram": "ngram",
    "mtp": "mtp",
    "deepseek_mtp": "mtp",
    "qwen3_next_mtp": "mtp",
    "glm4_moe_mtp": "mtp",
    "mimo_mtp": "mtp",
}

#: KV roles of connectors that send the cache from one server to another.
_ROLES: Final = {"kv_producer": "prefill", "kv_consumer": "decode"}

#: Flags of Dynamo's worker (components/src/dynamo/vllm/args.py).
_DYNAMO_ROLES: Final = {"--is-prefill-worker": "prefill", "--is-decode-worker": "decode"}

#: CUDA-graph modes that optimisation levels imply (config/vllm.py, OPTIMIZATION_LEVEL_00 to _03).
_LEVELS: Final = {"0": "none", "1": "piecewise"}


def read_vllm(line: LaunchLine) -> Reading:
    """Return the reading of a command of vLLM.

    Raises:
        InputError: The command names no model of the catalog, a value is invalid, or a file that it names is missing.
    """
    table = flag_table("vllm")
    words, notes = _with_config(list(line.words), line)
    reading = Reading.of(line, table, words)
    reading.notes[:0] = notes
    reading.role = _role(reading)
    special = reading.special
    named = special.get("--model")
    if named is None and not reading.others:
        raise InputError("a start command must name its model", line.program, "vllm serve MODEL")
    written = named.value if named is not None else reading.others.pop(0)
    for word in reading.others:
        reading.note("unknown", word, "no flag takes this word; it is left out")
    served = [flag for flag in words if flag.startswith("--served-model-name")]
    model = reading.model(written, written, _following(words, served))
    reading.dtype(special.get("--dtype"), model)
    reading.quantization(model)
    _compilation(reading)
    _attention(reading)
    _transfer(reading)
    _speculation(reading)
    _media(reading, model)
    _lora(reading)
    _nodes(reading)
    _limits(reading)
    _variables(reading)
    reading.leave_out_unknown_choices()
    _copies(reading)
    reading.drop_overlap_without_deepep(refused=True)
    return reading


def _role(reading: Reading) -> str:
    """Return the role that flags of Dynamo's worker state, or that of the manifest."""
    special = reading.special
    for name, role in _DYNAMO_ROLES.items():
        if name in special:
            reading.note("read", name, f"the server of a pool: {role}")
            return role
    mode = special.get("--disaggregation-mode")
    if mode is not None and mode.value in ("prefill", "decode"):
        reading.note("read", mode.text, f"the server of a pool: {mode.value}")
        return mode.value
    return reading.line.role or "both"


def _following(words: list[str], flags: list[str]) -> tuple[str, ...]:
    """Return the names that follow `--served-model-name`."""
    found = []
    for flag in flags:
        _, equals, value = flag.partition("=")
        found += [value] if equals else words[words.index(flag) + 1 : words.index(flag) + 2]
    return tuple(found)


def _with_config(words: list[str], line: LaunchLine) -> tuple[list[str], list[Note]]:
    """Return the words with those of the file of `--config FILE` before them, as vLLM inserts them."""
    ignored = [word for word in words if re.match(r"--config=", word)]
    kept = [word for word in words if word not in ignored]
    notes = [Note("trap", word, _CONFIG_TRAP) for word in ignored]
    if "--config" not in kept:
        return kept, notes
    at = kept.index("--config")
    path = "".join(kept[at + 1 : at + 2])
    keys = named_file(path, line.files)
    inserted: list[str] = []
    positional = []
    for key, value in keys.items():
        flag = f"--{key.replace('_', '-')}"
        if key == "model":
            positional = [str(value)]
        elif value is True:
            inserted.append(flag)
        elif value is False:
            inserted.append(flag.replace("--", "--no-", 1))
        elif isinstance(value, list):
            inserted += [flag, *map(str, value)]
        elif value is not None:
            inserted += [flag, json.dumps(value) if isinstance(value, dict) else str(value)]
    rest = kept[:at] + kept[at + 2 :]
    first = rest[:1] if rest and not rest[0].startswith("-") else positional
    rest = rest[1:] if rest and not rest[0].startswith("-") else rest
    notes.append(Note("read", f"--config {path}", f"{len(keys)} keys of the file"))
    return [*first, *inserted, *rest], notes


def _compilation(reading: Reading) -> None:
    """Read --compilation-config and -O into the settings of CUDA graphs and fused passes."""
    level = reading.special.get("--optimization-level")
    config = reading.objects.get("--compilation-config", {})
    plain = reading.special.get("--compilation-config")
    if plain is not None and "--compilation-config" not in reading.objects:
        level = plain
    if level is not None and level.value.startswith("{"):
        config, level = merged(config, level.mapping()), None
    if level is not None:
        _level(reading, level)
    known = {"cudagraph_mode", "cudagraph_capture_sizes", "max_cudagraph_capture_size", "pass_config", "mode", "level"}
    flag = "--compilation-config"
    mode = config.get("cudagraph_mode")
    if isinstance(mode, str):
        names = {name: name for name in ("none", "piecewise", "full", "full_decode_only", "full_and_piecewise")}
        reading.state("cudagraph_mode", choice(mode, names, "vLLM has no such cudagraph_mode"), flag)
    elif config.get("full_cuda_graph"):
        reading.state("cudagraph_mode", "full", flag)
    for key in ("cudagraph_capture_sizes", "max_cudagraph_capture_size"):
        if config.get(key):
            reading.state(key, config[key], flag)
    passes = config.get("pass_config", {})
    for name in ("fuse_allreduce_rms", "enable_fi_allreduce_fusion"):
        if name in passes:
            reading.state("fused_allreduce", bool(passes[name]), flag)
    left = [f"pass_config.{key}" for key in passes if "allreduce" not in key]
    left += [key for key in config if key not in known and key != "full_cuda_graph"]
    if config.get("mode", config.get("level", 3)) in (0, "NONE"):
        left.append("mode 0")
    if left:
        text = "steps are priced with the fused kernels of the engine's default"
        reading.note("not simulated", f"{flag}: {', '.join(left)}", text)


def _level(reading: Reading, level: GivenFlag) -> None:
    value = level.value.removeprefix("O")
    if value in _LEVELS:
        if value == "0":
            reading.state("enforce_eager", True, level.text)
        else:
            reading.state("cudagraph_mode", _LEVELS[value], level.text)
    else:
        reading.note("no effect", level.text, "the default level, or a higher one with the same passes and graphs")


def _attention(reading: Reading) -> None:
    config = reading.objects.get("--attention-config", {})
    version = config.get("flash_attn_version")
    backend = str(config.get("backend") or "")
    variable = reading.line.environment.get("VLLM_ATTENTION_BACKEND", "")
    if version in (2, 3, 4):
        reading.state("attention_backend", f"fa{version}", "--attention-config")
    elif backend or variable:
        row = reading.table.row("attention_backend")
        found = {name.lower(): value for value, name in row.names.items()}
        found |= {name.lower(): value for name, value in row.also.items() if value is not None}
        value = found.get((backend or variable).lower())
        if value is not None:
            reading.state("attention_backend", value, backend or f"VLLM_ATTENTION_BACKEND={variable}")
        else:
            reading.note("not simulated", backend or f"VLLM_ATTENTION_BACKEND={variable}", OTHER_KERNELS)


def _transfer(reading: Reading) -> None:
    """Read --kv-transfer-config: the role of a disaggregated server, or a tier of the KV cache in host memory."""
    config = reading.objects.get("--kv-transfer-config")
    if config is None:
        return
    connector, flag = str(config.get("kv_connector")), "--kv-transfer-config"
    role = _ROLES.get(str(config.get("kv_role")))
    extra = config.get("kv_connector_extra_config", {})
    size = extra.get("cpu_bytes_to_use") or extra.get("cpu_bytes_to_use_per_rank")
    if connector == "OffloadingConnector" and isinstance(size, int | float):
        reading.state("kv_offload.host_gib", float(size) / GIB, flag)
    elif role is not None:
        reading.role = role
        reading.note("read", flag, f"the server of a pool: {role}")
    elif reading.role != "both":
        reading.note("read", flag, f"{connector} sends the cache; the role is that of the worker: {reading.role}")
    else:
        reading.note("not simulated", flag, f"{connector} with kv_role {config.get('kv_role')}")


def _speculation(reading: Reading) -> None:
    config = reading.objects.get("--speculative-config", {})
    if reading.keys.pop("speculative", None) is not None:
        raise InputError("--speculative-config needs a JSON mapping", hint='{"method": "mtp", ...}')
    given = {"method": "--spec-method", "model": "--spec-model", "num_speculative_tokens": "--spec-tokens"}
    given |= {} if reading.special.get("--speculative-model") is None else {"model": "--speculative-model"}
    if "--num-speculative-tokens" in reading.special:
        given["num_speculative_tokens"] = "--num-speculative-tokens"
    config = dict(config) | {key: f.value for key, name in given.items() if (f := reading.special.get(name))}
    if not config:
        return
    model = config.get("model")
    method = str(config.get("method") or ("ngram" if model in ("ngram", "[ngram]") else "draft_model")).lower()
    stated: dict[str, Any] = {"method": _METHODS.get(method, method)}
    stated["num_speculative_tokens"] = int(config.get("num_speculative_tokens") or 1)
    if model and stated["method"] not in ("ngram", "mtp"):
        stated["model"] = str(model)
    reading.keys["speculative"] = stated
    reading.note("read", "--speculative-config", f"speculative: {stated['method']}, {stated['num_speculative_tokens']}")
    left = set(config) - {"model", "method", "num_speculative_tokens", "prompt_lookup_max", "prompt_lookup_min"}
    if left:
        reading.note(
            "not simulated", f"--speculative-config: {', '.join(sorted(left))}", "drafting is simulated without them"
        )


def _media(reading: Reading, model: ModelSpec) -> None:
    """State which images, videos and audio are served: a model with towers reads all of them unless limits are 0."""
    limits = reading.objects.get("--limit-mm-per-prompt", {})
    if "--limit-mm-per-prompt" in reading.special and not limits:
        pairs = re.findall(r"(\w+)=(\d+)", reading.special["--limit-mm-per-prompt"].value)
        limits = {name: int(number) for name, number in pairs}
    if not model.towers:
        for name in ("--limit-mm-per-prompt", "--language-model-only"):
            if name in reading.special:
                reading.note("no effect", reading.special[name].text, f"{model.name} reads text")
        if reading.keys.pop("multimodal", None) is not None:
            text = f"the catalog knows no encoder of {model.name} for images, videos or audio: only text is simulated"
            reading.note("not simulated", "--mm-encoder-tp-mode", text)
        return
    text_only = "--language-model-only" in reading.special
    kept = [m for m in model.modalities if not text_only and _limit(limits.get(m)) != 0]
    if not kept:
        reading.keys.pop("multimodal", None)
        reading.note("read", "--limit-mm-per-prompt", "multimodal: null, only text is served")
        return
    block = reading.keys.setdefault("multimodal", {})
    if len(kept) < len(model.modalities):
        block["modalities"] = kept
    reading.note("read", "--limit-mm-per-prompt", f"multimodal: {', '.join(kept)}")


def _limit(value: Any) -> Any:
    return value.get("count") if isinstance(value, dict) else value


def _lora(reading: Reading) -> None:
    """Complete the block of adapters, whose number a command states only if it loads them."""
    if "--enable-lora" not in reading.special:
        if "lora" in reading.keys:
            reading.note("trap", "", "flags of adapters without --enable-lora: the engine serves none")
            del reading.keys["lora"]
        return
    block = reading.keys.setdefault("lora", {})
    if "adapters" not in block:
        block["adapters"] = int(block.get("max_cpu_loras") or block.get("max_loras") or 1)
        text = f"{block['adapters']} adapters, as many as the host keeps; --set lora.adapters=N states another number"
        reading.note("assumed", "--enable-lora", text)


def _copies(reading: Reading) -> None:
    """Read --eplb-config, of which only the number of copies decides a step."""
    config = reading.objects.get("--eplb-config", {})
    for key, value in config.items():
        if key != "num_redundant_experts":
            reading.note("not simulated", f"--eplb-config.{key} {value}", "the balancer keeps loads equal at no cost")
    copies = str(config.get("num_redundant_experts") or 0)
    if not copies.isdecimal():
        raise InputError("num_redundant_experts of --eplb-config is a whole number", copies, "32")
    if int(copies):
        reading.state("redundant_experts", int(copies), reading.special["--eplb-config"].text)
    reading.balancer("--enable-eplb")


def _nodes(reading: Reading) -> None:
    special = reading.special
    for name in ("--nnodes", "--node-rank", "--headless", "--data-parallel-size-local", "--data-parallel-rank"):
        if name in special:
            text = "the sizes of the layout count for all nodes and ranks together; one of their commands is enough"
            reading.note("no effect", special[name].text, text)
    if "--data-parallel-external-lb" in special:
        reading.note("no effect", special["--data-parallel-external-lb"].text, "ranks are the same behind any balancer")
    device = special.get("--device")
    if device is not None:
        reading.note("no effect", device.text, "--hw names the hardware")
    load = special.get("--load-format")
    if load is not None:
        reading.note("no effect", load.text, "how weights are loaded does not change a step")
    chunked = special.get("--enable-chunked-prefill")
    if chunked is not None and chunked.negated:
        reading.note("not simulated", chunked.text, "V1 is simulated with chunked prompts, which is its default")
    elif chunked is not None:
        reading.note("no effect", chunked.text, "the default of V1")


def _limits(reading: Reading) -> None:
    """State the limits that follow from the entry point or from other flags, where no flag states them."""
    keys, special = reading.keys, reading.special
    if _OTHER_CONTEXT in reading.line.program:
        for key, value in zip(("max_num_batched_tokens", "max_num_seqs"), _CONTEXT_LIMITS, strict=True):
            keys.setdefault(key, value)
        text = (
            f"without OpenAI's interface, vLLM does not use its defaults for API servers: limits that no flag "
            f"states are {_CONTEXT_LIMITS[0]} tokens and {_CONTEXT_LIMITS[1]} sequences (EngineArgs.get_batch_defaults)"
        )
        reading.note("trap", reading.line.program, text)
    ranks = keys.get("data_parallel", 1) > 1 and keys.get("expert_parallel")
    if ranks and keys.get("all2all_backend") == "deepep_low_latency" and "max_num_batched_tokens" not in keys:
        keys["max_num_batched_tokens"] = _BATCHED_DP_TOKENS
        text = f"vLLM's default budget with these kernels is {_BATCHED_DP_TOKENS} tokens a step (EngineArgs)"
        reading.note("trap", "--all2all-backend deepep_low_latency", text)
    mode = special.get("--performance-mode")
    if mode is not None and mode.value == "throughput":
        reading.note("not simulated", mode.text, "it doubles default limits: state --max-num-seqs and the token budget")
    elif mode is not None:
        reading.note("not simulated", mode.text, "CUDA graphs of all small batches are not simulated")


def _variables(reading: Reading) -> None:
    """Read the environment variables that decide a step."""
    environment = reading.line.environment
    reading.stage_variable(STAGES_VARIABLE)
    if environment.get(MXFP8_VARIABLE) in ("0", "1"):
        value = "mxfp8" if environment[MXFP8_VARIABLE] == "1" else "bf16"
        reading.state_by_variable("activation_dtype", value, MXFP8_VARIABLE)
    if environment.get(MARLIN_VARIABLE) == "1" and "moe_backend" not in reading.keys:
        reading.state_by_variable("moe_backend", "marlin", MARLIN_VARIABLE)
    if environment.get(AITER_VARIABLE) == "1":
        text = "the operator tables of AMD's accelerators time these kernels, and other accelerators do not have them"
        reading.note_variable("no effect", AITER_VARIABLE, text)
    if environment.get("VLLM_USE_V1") == "0":
        reading.version = "0.6"
        reading.note("read", "VLLM_USE_V1=0", "the V0 engine")
    backend = environment.get("VLLM_ALL2ALL_BACKEND")
    if backend:
        row = reading.table.row("all2all_backend")
        reading.state("all2all_backend", row.also.get(backend, backend), f"VLLM_ALL2ALL_BACKEND={backend}")
