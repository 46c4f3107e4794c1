"""Models by name: `load_model` turns an alias, a Hugging Face id or a config.json into a ModelSpec.

The classes are in layers.py (the parts of a layer) and spec.py (the whole model).
"""

from __future__ import annotations

import dataclasses

from catalogs.errors import InputError
from catalogs.io.input_files import exists, user_path
from catalogs.models.files import load_entry
from catalogs.models.hf_config import load_config
from catalogs.models.names import load_names
from catalogs.models.spec import ModelSpec


def list_models() -> list[str]:
    """Return the aliases in the catalog, sorted."""
    return sorted(load_names().aliases)


def load_model(text: str) -> ModelSpec:
    """Return the model that `text` names: a catalog alias, a Hugging Face id (in any case), or a path.

    A path leads to a config.json or to its folder. The catalog takes precedence over a path of the same spelling;
    `./name` is always a path. A model that is named by one of its Hugging Face ids keeps that id.

    Raises:
        InputError: The name is unknown or ambiguous (the message names the nearest), or a config.json cannot be read.
    """
    names = load_names()
    wanted = text.strip()
    alias = names.exact(wanted)
    if alias is None and wanted:
        path = user_path(wanted)
        if exists(path):
            return load_config(path, wanted)
        if wanted.startswith((".", "/", "~")) or wanted.endswith(".json"):
            raise InputError("no such model file or directory", wanted)
    model = load_entry(alias or names.similar(wanted))
    written = names.repository(model.name, wanted)
    return model if written is None else dataclasses.replace(model, hf_id=written)
