"""Names in start commands as names of the catalogs: models and their precision, engine versions, dtypes."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from catalogs.engines.files import list_engines, load_engine
from catalogs.engines.versions import version_in_minors
from catalogs.errors import InputError
from catalogs.launch.reading.notes import Note
from catalogs.models.catalog import load_model
from catalogs.models.names import MODELS, NAMES, load_names
from catalogs.networks.files import find_network

#: Names of dtypes that engines and checkpoints use, by the name in deployment.yaml.
DTYPES: Final = {
    "bfloat16": "bf16",
    "bf16": "bf16",
    "float16": "fp16",
    "half": "fp16",
    "fp16": "fp16",
    "f16": "fp16",
    "float32": "fp32",
    "float": "fp32",
    "fp32": "fp32",
    "f32": "fp32",
}

#: Endings of the names of quantised checkpoints, with the dtype of their weights.
_ENDINGS: Final = (
    (re.compile(r"[-_.](awq|gptq)(-int4|-4bit)?(-marlin)?$", re.I), "int4"),
    (re.compile(r"[-_.](int4|4bit|w4a16|quantized\.w4a16|iq?[34]_\w+|q4_\w+|q4)$", re.I), "int4"),
    (re.compile(r"[-_.](int8|w8a8|quantized\.w8a8|gptq-int8|q8_0)$", re.I), "int8"),
    (re.compile(r"[-_.](nvfp4|fp4|mxfp4)(-v\d)?$", re.I), "fp4"),
    (re.compile(r"[-_.](fp8|fp8-dynamic|fp8-kv|fp8-block)$", re.I), "fp8"),
    (re.compile(r"[-_.](bf16)$", re.I), "bf16"),
    (re.compile(r"[-_.](fp16|f16)$", re.I), "fp16"),
    (re.compile(r"[-_.](fp32|f32)$", re.I), "fp32"),
)


class FoundModel(NamedTuple):
    """A model of the catalog: its name for deployment.yaml, and the dtype of its weights if that is not its own."""

    name: str
    weight_dtype: str | None
    notes: tuple[Note, ...]


def find_model(written: str, other_names: tuple[str, ...] = ()) -> FoundModel:
    """Return the model that a command names by a Hugging Face id, a published checkpoint, or a path.

    Args:
        written: The name or path that the engine loads.
        other_names: Names under which the server serves the model, which may be known where a path is not.

    Raises:
        InputError: No name is one of the catalog's.
    """
    base = written.rstrip("/").rpartition("/")[2]
    cached = re.search(r"models--([^/]+)--([^/]+)", written)
    local = written.startswith((".", "/", "~", "$"))
    names = [written, f"{cached[1]}/{cached[2]}" if cached else "", base if local else "", *other_names]
    for name in dict.fromkeys(filter(None, names)):
        found = _known(name)
        if found is None:
            continue
        if name == written:
            return found
        note = Note("assumed", written, f"taken for {found.name}, by the name {name}")
        return FoundModel(found.name, found.weight_dtype, (note, *found.notes))
    network = None if local else find_network(written)
    if network is not None:
        rule = "a start command is read for language models, and this model is a network"
        raise InputError(rule, written, f"plan --model {network}")
    load_model(base if local else written)  # the message names the nearest model
    raise InputError("unknown model", written)


def _known(name: str) -> FoundModel | None:
    if load_names().exact(name) is not None:
        return FoundModel(name, None, ())
    checkpoint = _checkpoint(name) if "/" in name else None
    if checkpoint is not None:
        return FoundModel(checkpoint[0], checkpoint[1], ())
    try:
        load_model(name)
    except InputError:
        pass
    else:
        return FoundModel(name, None, ())
    for ending, dtype in _ENDINGS:
        stem = ending.sub("", name.removesuffix(".gguf"))
        for shorter in (stem, stem.rpartition("/")[2]) if stem != name else ():
            try:
                model = load_model(shorter)
            except InputError:
                continue
            note = Note("assumed", name, f"{dtype} weights of {model.name}, by the ending of its name")
            return FoundModel(model.name, None if model.weight_dtype == dtype else dtype, (note,))
    return None


def _checkpoint(name: str) -> tuple[str, str] | None:
    """Return the model and the dtype of a published checkpoint that is no entry of its own; None if it is none."""
    found = None
    for path in sorted(MODELS.glob("*.yaml")):
        if path == NAMES or name.lower() not in path.read_text(encoding="utf-8").lower():
            continue
        model = load_model(path.stem)
        for checkpoint in model.checkpoints:
            if checkpoint.repository.lower() == name.lower() and (found is None or checkpoint.of == model.hf_id):
                found = model.name, checkpoint.format.dtype
    return found


_MINOR_RELEASE: Final = re.compile(r"\d+\.\d+")

#: The first version of vLLM whose default is the V1 engine (release notes of 0.8.0).
_V1_SINCE: Final = version_in_minors("0.8")


def engine_of_version(family: str, version: str | None, source: str = "") -> tuple[str, tuple[Note, ...]]:
    """Return the engine of the catalog that is nearest to a version, and a note where it is another version.

    Args:
        family: "vllm", "sglang", "trtllm" or "llama.cpp".
        version: The version that ran, such as "0.11.2"; None if it is not known.
        source: What states the version, for the note.
    """
    wanted = None if version is None else _minor_release(version)
    if wanted is None:
        newest = load_engine(family).version
        return family, (Note("assumed", "", f"{family} {newest}, since nothing names the version"),)
    if family == "vllm" and wanted < _V1_SINCE:
        return "vllm-v0", _other_version("vllm-v0", version, source)
    numbers = {name: _minor_release(load_engine(name).version) for name in _versions(family)}
    known = {name: number for name, number in numbers.items() if number is not None}
    if not known or family == "llama.cpp":
        return family, ()
    nearest = min(known, key=lambda name: (abs(known[name] - wanted), name))
    return nearest, () if known[nearest] == wanted else _other_version(nearest, version, source)


def _other_version(name: str, version: str | None, source: str) -> tuple[Note, ...]:
    has = load_engine(name).version
    return (Note("assumed", source, f"version {version} is simulated as {name} ({has}), the nearest in the catalog"),)


def _versions(family: str) -> list[str]:
    """Return the engine itself and its versions, without variants such as vllm-0.11-async."""
    return [name for name in list_engines(supported_only=True) if re.fullmatch(rf"{family}(-[\d.]+)?", name)]


def _minor_release(version: str) -> float | None:
    """Return the number of the minor release that a text such as v0.11.2 names; None if it names none."""
    found = _MINOR_RELEASE.search(version)
    return None if found is None else version_in_minors(found[0])
