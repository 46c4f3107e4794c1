"""Start commands of llama.cpp: `llama-server`."""

from __future__ import annotations

from math import isfinite
from typing import Final

from catalogs.deployments.resolution.stages import by_shares
from catalogs.engines.flags import flag_table
from catalogs.errors import InputError
from catalogs.launch.reading.engine_reader import Reading, value_of
from catalogs.launch.reading.lines import LaunchLine
from catalogs.launch.reading.names import find_model
from catalogs.launch.reading.words import GivenFlag
from catalogs.models.catalog import load_model
from catalogs.models.spec import ModelSpec
from catalogs.units import MXFP4_BYTES

#: Slots of the default -np -1 (common/arg.cpp).
_SLOTS: Final = 4

#: Micro-batch of the engine's profile (-ub).
_PHYSICAL_TOKENS: Final = 512


#: The storage of the file of a repository that is loaded if the flag states none (--hf-repo in tools/server/README.md).
_DEFAULT_FILE: Final = "Q4_K_M"


def read_llama_cpp(line: LaunchLine) -> Reading:
    """Return the reading of a command of llama.cpp, which spreads a model over all accelerators that it sees.

    Raises:
        InputError: The command names no model of the catalog, or a value is invalid.
    """
    reading = Reading.of(line, flag_table("llama.cpp"), line.words)
    special = reading.special
    for word in reading.others:
        reading.note("unknown", word, "no flag takes this word; it is left out")
    alias, path, hub = (special.get(name) for name in ("--alias", "-m", "-hf"))
    if path is None and hub is None:
        raise InputError("a start command must name its model", line.program, "-m FILE.gguf")
    if hub is not None:
        name = _file_of_repository(reading, hub)
    else:
        assert path is not None
        name = path.value.rpartition("/")[2]
    names = () if alias is None else (alias.value,)
    model = reading.model(name, (hub or path).text, names)  # type: ignore[union-attr]
    if alias is not None and not reading.line.model and _same_model(alias.value, model):
        reading.keys["model"] = alias.value
    _cache(reading)
    _context(reading)
    _split(reading)
    for flag in ("--cpu-moe", "--n-cpu-moe", "--no-kv-offload", "--model-draft", "--no-cont-batching", "--embedding"):
        if flag in special:
            reading.note("not simulated", special[flag].text, "the whole model decodes on the accelerators")
    return reading


def _file_of_repository(reading: Reading, hub: GivenFlag) -> str:
    """Return the name of a repository with the storage of the file that llama.cpp takes from it.

    Without :QUANT it is Q4_K_M, or that of the first file where the repository has no such file (--hf-repo in
    tools/server/README.md). A repository of a model that is published in MXFP4 need not quantise it: ggml stores MXFP4
    blocks as they are (convert_hf_to_gguf.py).

    Raises:
        InputError: The command names no model of the catalog.
    """
    repository, _, storage = hub.value.partition(":")
    stem = repository.removesuffix("-GGUF").removesuffix("-gguf")
    if storage and reading.line.model:
        return f"{stem}-{storage}"
    try:
        found = find_model(f"{stem}-{storage or _DEFAULT_FILE}")
    except InputError as error:
        raise InputError(error.rule, hub.value, error.nearest, error.hint) from error
    if storage:
        return f"{stem}-{storage}"
    model = load_model(found.name)
    published = model.weight_format(model.weight_dtype)
    is_mxfp4 = published.dtype == "fp4" and published.bytes_per_weight == MXFP4_BYTES  # int4 has as many bytes
    why = f"without :QUANT, the file {_DEFAULT_FILE}, or the first one of the repository if there is none"
    if is_mxfp4:
        why += f"; {model.name} is published in MXFP4, which GGUF files keep"
    reading.note("assumed", hub.text, why)
    return f"{stem}-{'MXFP4' if is_mxfp4 else _DEFAULT_FILE}"


def _cache(reading: Reading) -> None:
    special = reading.special
    values = special.get("--cache-type-v")
    stated = reading.keys.get("kv_dtype")
    if stated in ("int8", "int4"):
        del reading.keys["kv_dtype"]
        reading.note("not simulated", f"--cache-type-k {stated}", "the cache is simulated in 16 bit")
    row = reading.table.row("kv_dtype")
    if values is not None and value_of(values, row) != stated:
        reading.note("not simulated", values.text, "keys and values are stored alike in a simulation")
    elif values is not None:
        reading.note("read", values.text, f"kv_dtype: {stated}")
    if "--no-cache-prompt" in special:
        reading.state("prefix_caching", False, "--no-cache-prompt")
    else:
        reading.note("not simulated", "--cache-prompt", "reuse of a slot's last prompt, which is on by default")


def _context(reading: Reading) -> None:
    """Divide the context of the server among its slots, each of which holds one sequence.

    Without -c, or with -c 0, the context of the server is that of the model (n_ctx_train, src/llama-context.cpp).
    """
    special, keys = reading.special, reading.keys
    context = special.get("-c")
    slots = int(keys.get("max_num_seqs", _SLOTS))
    if slots < 1:
        del keys["max_num_seqs"]
        slots = _SLOTS
    shared = "-kvu" in special or ("max_num_seqs" not in keys and "--no-kv-unified" not in special)
    stated = context is not None and context.integer() > 0
    if stated or (slots > 1 and not shared):
        tokens = context.integer() if context is not None and stated else load_model(keys["model"]).max_position_tokens
        text = f"{slots} slots share the context of the model" if context is None else context.text
        reading.state("max_model_len", tokens if shared else tokens // slots, text)
        if shared:
            reading.note("not simulated", "--kv-unified", "each slot has a cache of its own in a simulation")
    physical = special.get("-ub")
    if physical is not None and physical.integer() not in (_PHYSICAL_TOKENS, keys.get("max_num_batched_tokens")):
        reading.note("not simulated", physical.text, f"micro-batches have {_PHYSICAL_TOKENS} tokens in a simulation")
    elif physical is not None:
        reading.note("read", physical.text, "the micro-batch that is simulated")


def _split(reading: Reading) -> None:
    special = reading.special
    layers = special.get("-ngl")
    if (
        layers is not None
        and layers.value not in ("all", "auto", "-1")
        and not (layers.value.isdigit() and int(layers.value) >= _layers(reading))
    ):
        reading.note("not simulated", layers.text, "the whole model is on the accelerators in a simulation")
    elif layers is not None:
        reading.note("read", layers.text, "the whole model is on the accelerators")
    mode, shares = special.get("--split-mode"), special.get("--tensor-split")
    count = len(shares.value.split(",")) if shares is not None else reading.line.gpus or 1
    named = "layer" if mode is None else mode.value
    if count > 1 and named != "none":
        key = "tensor_parallel" if named in ("tensor", "row") else "pipeline_parallel"
        reading.state(key, count, mode.text if mode is not None else "--split-mode layer")
    if shares is not None:
        _shares(reading, shares, named)


def _shares(reading: Reading, shares: GivenFlag, mode: str) -> None:
    """Read the share of each GPU, which decides the layers of each stage where the split is by layers."""
    try:
        parts = [float(part) for part in shares.value.split(",")]
    except ValueError:
        parts = []
    if not parts or not all(map(isfinite, parts)):
        raise InputError("--tensor-split is a list of numbers with commas", shares.value, "1,1")
    if mode != "layer" or len(parts) < 2 or len(set(parts)) == 1:
        text = "the GPUs have equal shares" if len(set(parts)) == 1 else "tensors are divided evenly in a simulation"
        reading.note("no effect", shares.text, text)
        return
    layers = by_shares(parts, _layers(reading)) if min(parts) > 0.0 else (0,)
    if min(layers):
        reading.state("pipeline_layers", list(layers), shares.text)
    else:
        reading.note("not simulated", shares.text, "every GPU has layers in a simulation; they are divided evenly")


def _same_model(name: str, model: ModelSpec) -> bool:
    """Return whether a name is one of the model's."""
    try:
        return load_model(name).name == model.name
    except InputError:
        return False


def _layers(reading: Reading) -> int:
    """Return the layers of the model that a command names."""
    return load_model(reading.keys["model"]).n_layers
