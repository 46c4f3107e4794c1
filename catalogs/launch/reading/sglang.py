"""Start commands of SGLang: `python -m sglang.launch_server`, `sglang serve`, and Dynamo's worker around it."""

from __future__ import annotations

from typing import Any, Final

from catalogs.deployments.layout import ALLGATHER_REDUCESCATTER
from catalogs.engines.flags import flag_table
from catalogs.errors import InputError
from catalogs.launch.reading.engine_reader import OTHER_EXCHANGE, Reading, named_file
from catalogs.launch.reading.lines import LaunchLine
from catalogs.launch.reading.notes import Note
from catalogs.launch.writing.sglang import DEEPEP_MODES, STAGES_VARIABLE, TEXT_BY_DEFAULT
from catalogs.models.spec import ModelSpec

#: Algorithms of speculative decoding by the method in deployment.yaml.
_METHODS: Final = {
    "EAGLE": "eagle",
    "EAGLE3": "eagle3",
    "NEXTN": "mtp",
    "STANDALONE": "draft_model",
    "NGRAM": "ngram",
}


#: Variables that ask for FlashInfer's block-scaled FP8 products, and the values that do (environ.py, EnvBool).
_FLASHINFER_PRODUCTS: Final = ("SGLANG_ENABLE_FLASHINFER_GEMM", "SGLANG_ENABLE_FLASHINFER_FP8_GEMM")
_TRUE: Final = ("true", "1", "yes", "y")


def read_sglang(line: LaunchLine) -> Reading:
    """Return the reading of a command of SGLang.

    Raises:
        InputError: The command names no model of the catalog, or a value is invalid.
    """
    words, notes = _with_config(list(line.words), line)
    reading = Reading.of(line, flag_table("sglang"), words)
    reading.notes[:0] = notes
    special = reading.special
    named = special.get("--model-path")
    if named is None and not (reading.others and line.program.endswith("serve")):
        raise InputError("a start command must name its model", line.program, "--model-path MODEL")
    written = named.value if named is not None else reading.others.pop(0)
    for word in reading.others:
        reading.note("unknown", word, "no flag takes this word; it is left out")
    mode = special.get("--disaggregation-mode")
    reading.role = line.role or "both"
    if mode is not None and mode.value in ("prefill", "decode"):
        reading.role = mode.value
        reading.note("read", mode.text, f"the server of a pool: {mode.value}")
    served = tuple(w for i, w in enumerate(words) if i and words[i - 1] == "--served-model-name")
    model = reading.model(written, f"--model-path {written}", served)
    reading.dtype(special.get("--dtype"), model)
    reading.quantization(model)
    _layout(reading)
    reading.stage_variable(STAGES_VARIABLE)
    _limits(reading)
    _speculation(reading)
    _media(reading, model)
    _rest(reading)
    return reading


def _with_config(words: list[str], line: LaunchLine) -> tuple[list[str], list[Note]]:
    """Return the words with those of the file of --config before them; the command takes precedence."""
    at = next((i for i, word in enumerate(words) if word.partition("=")[0] == "--config"), None)
    if at is None:
        return words, []
    _, equals, value = words[at].partition("=")
    path = value if equals else "".join(words[at + 1 : at + 2])
    keys = named_file(path, line.files)
    inserted: list[str] = []
    for key, entry in keys.items():
        flag = f"--{key.replace('_', '-')}"
        if entry is True:
            inserted.append(flag)
        elif entry not in (False, None):
            inserted += [flag, *map(str, entry)] if isinstance(entry, list) else [flag, str(entry)]
    rest = words[:at] + words[at + (1 if equals else 2) :]
    return [*inserted, *rest], [Note("read", f"--config {path}", f"{len(keys)} keys of the file")]


def _layout(reading: Reading) -> None:
    """Read the sizes of the layout; attention ranks lie inside the tensor group, as --attn-dp-size states."""
    keys, special = reading.keys, reading.special
    ranks = int(keys.get("tensor_parallel", 1))
    size = special.get("--data-parallel-size")
    attention = special.get("--attn-dp-size")
    within = attention if attention is not None else size if "--enable-dp-attention" in special else None
    if within is not None:
        data = within.integer()
        if data > 1 and ranks % data:
            fits = max(n for n in range(1, ranks + 1) if ranks % n == 0 and n <= data)
            raise InputError(f"{within.written} must divide --tp-size ({ranks})", data, str(fits))
        keys["tensor_parallel"], keys["data_parallel"] = ranks // data, data
        text = f"data_parallel: {data}, tensor_parallel: {ranks // data}; attention ranks lie inside --tp-size {ranks}"
        reading.note("read", within.text, text)
    if size is not None and size is not within and size.integer() > 1:
        keys["replicas"] = size.integer()
        reading.note(
            "read", size.text, f"replicas: {size.integer()}, which share nothing without --enable-dp-attention"
        )
    experts = special.get("--ep-size")
    older = [name for name in ("--enable-ep-moe", "--enable-deepep-moe") if name in special]
    backend = keys.get("all2all_backend")
    if (experts is not None and experts.integer() > 1) or older or (backend or "").startswith("deepep"):
        keys["expert_parallel"] = True
        flag = experts.text if experts is not None else older[0] if older else "--moe-a2a-backend"
        reading.note("read", flag, "expert_parallel: true")
        if experts is not None and experts.integer() not in (1, ranks):
            text = f"experts are spread over all {ranks} ranks, not over {experts.integer()}"
            reading.note("not simulated", experts.text, text)
    if "--enable-deepep-moe" in special:
        keys["all2all_backend"] = "deepep_auto"
    if str(keys.get("all2all_backend", "")).startswith("deepep"):
        mode = special.get("--deepep-mode")
        modes = {mode: backend for backend, mode in DEEPEP_MODES.items()}
        keys["all2all_backend"] = modes.get("auto" if mode is None else mode.value, "deepep_auto")
        if keys.get("data_parallel", 1) == 1:
            del keys["all2all_backend"]
            reading.note(
                "not simulated", "--moe-a2a-backend deepep", "tensor ranks hold the same tokens in a simulation"
            )
    elif backend not in (None, ALLGATHER_REDUCESCATTER):
        del keys["all2all_backend"]
        reading.note("not simulated", f"--moe-a2a-backend {backend}", OTHER_EXCHANGE)
    reading.balancer("--enable-eplb")
    reading.drop_overlap_without_deepep(refused=False)
    if keys.get("data_parallel", 1) == 1 and keys.pop("rank_dispatch", None) is not None:
        reading.note(
            "no effect", reading.table.by_key["rank_dispatch"], "the server has no attention ranks to choose from"
        )


def _limits(reading: Reading) -> None:
    """Turn the limits of all attention ranks together into those of one rank."""
    keys, ranks = reading.keys, int(reading.keys.get("data_parallel", 1))
    chunk = keys.get("max_num_batched_tokens")
    if chunk is not None and chunk < 1:
        del keys["max_num_batched_tokens"]
        reading.note("not simulated", f"--chunked-prefill-size {chunk}", "prompts are simulated in chunks")
    for key in ("max_num_batched_tokens", "max_num_seqs"):
        if key in keys and ranks > 1:
            keys[key] = max(keys[key] // ranks, 1)
            reading.note("read", key, f"{keys[key]} for each of {ranks} attention ranks, which share the flag's value")
    most = reading.special.get("--max-total-tokens")
    if most is not None:
        block = int(keys.get("block_size", 1))
        reading.state("kv_blocks", max(most.integer() // block, 1), most.text)
    order = keys.get("queue", {}).get("order")
    if order not in (None, "fcfs", "prefix"):
        del keys["queue"]["order"]
        reading.note("not simulated", f"--schedule-policy {order}", "waiting requests are served in order of arrival")


def _speculation(reading: Reading) -> None:
    special = reading.special
    algorithm = special.get("--speculative-algorithm")
    if algorithm is None:
        return
    steps, top = special.get("--speculative-num-steps"), special.get("--speculative-eagle-topk")
    tokens = special.get("--speculative-num-draft-tokens")
    stated: dict[str, Any] = {"method": _METHODS.get(algorithm.value.upper(), algorithm.value.lower())}
    drafts = tokens.integer() - 1 if steps is None and tokens is not None else 3 if steps is None else steps.integer()
    stated["num_speculative_tokens"] = drafts
    model = special.get("--speculative-draft-model-path")
    if model is not None and stated["method"] not in ("mtp", "ngram"):
        stated["model"] = model.value
    if top is not None and top.integer() > 1:
        stated["topk"] = top.integer()
        if tokens is not None:
            stated["num_draft_tokens"] = tokens.integer()
    if stated["method"] == "eagle" and model is None:
        stated["method"] = "mtp"  # SGLang drafts with the model's own head, as with NEXTN
    reading.keys["speculative"] = stated
    reading.note("read", algorithm.text, f"speculative: {stated['method']}, {drafts} drafts")


def _media(reading: Reading, model: ModelSpec) -> None:
    special, keys = reading.special, reading.keys
    if model.towers and (model.architecture not in TEXT_BY_DEFAULT or "--enable-multimodal" in special):
        keys["multimodal"] = {"encoder_parallel": "data"} if "--mm-enable-dp-encoder" in special else {}
        reading.note("read", "", f"multimodal: {', '.join(model.modalities)}, which {model.name} reads")


def _rest(reading: Reading) -> None:
    special, keys = reading.special, reading.keys
    interval = special.get("--scheduler-recv-interval")
    if interval is not None and interval.integer() > 1:
        reading.note("read", interval.text, "the interval of the published recipes, where memory is 160 GiB and more")
    for name in _FLASHINFER_PRODUCTS:
        if reading.line.environment.get(name, "").lower() in _TRUE and "gemm_backend" not in keys:
            reading.state_by_variable("gemm_backend", "flashinfer", name)
    for name in ("--nnodes", "--node-rank"):
        if name in special:
            text = "the sizes of the layout count for all nodes together; one of their commands is enough"
            reading.note("no effect", special[name].text, text)
    if "--device" in special:
        reading.note("no effect", special["--device"].text, "--hw names the hardware")
    if "lora" in keys or "--enable-lora" in special:
        keys.pop("lora", None)
        reading.note("not simulated", "--enable-lora", "adapters are simulated for vLLM only")
    reading.leave_out_unknown_choices()
