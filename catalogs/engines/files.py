"""Engine files: one YAML per engine version in data/engines/."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any, Final

from pydantic import TypeAdapter

from catalogs.engines.profile import EngineProfile
from catalogs.errors import InputError, nearest_name
from catalogs.io.yaml_files import DATA, build_as, read_yaml

FOLDER = DATA / "engines"

_SCHEMA: Final = TypeAdapter(EngineProfile)


def engine_file_names() -> list[str]:
    """Return the names of all shipped engine files, sorted."""
    return sorted(p.stem for p in FOLDER.glob("*.yaml"))


@cache
def read_engine_file(name: str) -> dict[str, Any]:
    """Return the keys of an engine file, with those of the file that its key `base` names where it has none.

    The rules under `further_model_defaults` follow those of the base. An engine that is known by name but not simulated
    has only the keys `name`, `supported: false` and `why`.

    Raises:
        InputError: The file is not valid YAML.
    """
    data = read_yaml(FOLDER / f"{name}.yaml")
    base = data.pop("base", None)
    merged = data if base is None else read_engine_file(str(base)) | data
    if further := merged.pop("further_model_defaults", None):
        merged["model_defaults"] = [*merged.get("model_defaults", []), *further]
    return merged


def engine_profile(keys: dict[str, Any]) -> EngineProfile:
    """Return the profile with the keys of an engine file.

    Raises:
        InputError: A key is missing or unknown, or a value is out of range.
    """
    own = {key: value for key, value in keys.items() if key != "as_of"} | {"max_graph_tokens": 0}
    source = f"{keys['source']} (as of {keys['as_of']})"
    found = build_as(_SCHEMA, own | {"source": source}, f"{keys['name']}.yaml")
    return replace(found, max_graph_tokens=max(found.graph_capture_sizes, default=0))


def list_engines(supported_only: bool = False) -> list[str]:
    """Return the engine names, sorted; versions are written `vllm-0.15`, and the bare name is the newest version."""
    return [n for n in engine_file_names() if not supported_only or "why" not in read_engine_file(n)]


def unsupported_reason(name: str) -> str:
    """Return why an engine of the catalog is not simulated; empty if it is, and for an unknown name."""
    folded = name.strip().lower()
    return str(read_engine_file(folded).get("why", "")) if folded in engine_file_names() else ""


@cache
def load_engine(name: str) -> EngineProfile:
    """Return the profile of a supported engine by name.

    Raises:
        InputError: The name is unknown, or the engine is known but not simulated.
    """
    folded = name.strip().lower()
    if folded not in engine_file_names():
        raise InputError("unknown engine", name, nearest_name(folded, engine_file_names()) or "vllm")
    keys = read_engine_file(folded)
    if "why" in keys:
        can = ", ".join(list_engines(supported_only=True))
        raise InputError(f"engine is known but not supported yet ({keys['why']}); supported: {can}", name, "vllm")
    return engine_profile(keys)
