"""Keys of deployment.yaml as texts on a command line: `KEY=VALUE`, with dots for a key inside a block."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

import yaml

from catalogs.errors import InputError, nearest_key
from catalogs.io.json_files import check_values, load_json
from catalogs.io.yaml_loader import load_yaml


def parse_settings(settings: Sequence[str], check: Callable[[str], None]) -> dict[str, object]:
    """Return the keys that `KEY=VALUE` texts set; values are JSON or YAML.

    A key inside a block is written with dots, for example disaggregation.prefill_replicas=2; see `with_keys`.

    Args:
        settings: The texts.
        check: Refuses a key that cannot be set.

    Raises:
        InputError: A key cannot be set, is set twice, or its value is not YAML.
    """
    found: dict[str, object] = {}
    for setting in settings:
        key, equals, value = (part.strip() for part in setting.partition("="))
        if not equals:
            raise InputError("a setting is KEY=VALUE of deployment.yaml", setting, "kv_dtype=fp8")
        check(key)
        if key in found:
            raise InputError("a key is set twice", setting, f"{key}={json.dumps(found[key])}")
        try:
            found[key] = parse_value(value)
        except yaml.YAMLError:
            raise InputError(f"the value of {key} is not valid YAML", value, f"{key}=1") from None
    return found


#: The hint where no key of deployment.yaml is near to one that does not exist.
_KEYS_HINT: Final = (
    "keys are kv_dtype, max_num_seqs, tensor_parallel, ...; docs/engines.md and docs/fleets.md name them"
)


def unknown_key(rule: str, key: str, known: Iterable[str]) -> InputError:
    """Return the error of a key that deployment.yaml does not have, with the nearest one or where to find them."""
    nearest = nearest_key(key, known)
    return InputError(rule, key, nearest, None if nearest else _KEYS_HINT)


def parse_value(text: str) -> object:
    """Return the value of a text: JSON, which reads 1e-05 as a number, or else YAML.

    Raises:
        yaml.YAMLError: The text is neither.
    """
    try:
        found: object = load_json(text)
        check_values(found, "a value")
        return found
    except ValueError:  # not JSON, or not finite
        return load_yaml(text)


def with_keys(block: Mapping[str, object], keys: Mapping[str, object]) -> dict[str, object]:
    """Return a deployment block with changed keys; a dotted key changes one key inside a block and keeps the others.

    Raises:
        InputError: A dotted key leads into a value that is not a block.
    """
    changed = dict(block)
    for key, value in keys.items():
        first, _, rest = key.partition(".")
        if not rest:
            changed[first] = value
            continue
        inner = changed.get(first) or {}
        if not isinstance(inner, Mapping):
            raise InputError(f"{first} is not a block with keys of its own", key, first)
        changed[first] = with_keys(inner, {rest: value})
    return changed
