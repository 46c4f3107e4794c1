"""Models by name: `load_model` turns an alias, a Hugging Face id or a config.json into a ModelSpec.

The nouns themselves live in model_parts.py (what a layer holds) and model_spec.py (the whole model).
"""

from __future__ import annotations

from pathlib import Path

from catalogs.errors import InputError
from catalogs.models.files import load_entry
from catalogs.models.hf_config import load_config
from catalogs.models.names import load_names
from catalogs.models.spec import ModelSpec


def list_models() -> list[str]:
    """The aliases of the catalog, sorted."""
    return sorted(load_names().aliases)


def load_model(text: str) -> ModelSpec:
    """The model `text` names: catalog alias, Hugging Face id (any case), or a path to a config.json or its directory.

    The catalog wins over a path of the same spelling; `./name` is always a path. InputError, with the nearest name, for
    a name that is unknown or ambiguous, and for a config.json that cannot be read.
    """
    names = load_names()
    wanted = text.strip()
    alias = names.exact(wanted)
    if alias is None and wanted:
        path = Path(wanted).expanduser()
        if path.exists():
            return load_config(path, wanted)
        if wanted.startswith((".", "/", "~")) or wanted.endswith(".json"):
            raise InputError("no such model file or directory", wanted)
    return load_entry(alias or names.similar(wanted))
