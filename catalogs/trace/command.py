"""What `catalog trace` does: a recipe by name, or a module with its configuration and inputs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from catalogs.errors import InputError, nearest_name
from catalogs.io.yaml_files import parse_yaml, read_yaml, validate_as
from catalogs.networks.files import write_network
from catalogs.networks.network import NeuralNetwork
from catalogs.trace.recipes import NetworkRecipe, find_recipe, recipe_like

#: Keys of --inputs that the stage takes as they are, and all keys.
STAGE_KEYS: Final = ("method", "part", "prepare", "dtype", "runs")

KEYS: Final = ("inputs", "sizes", *STAGE_KEYS)


def trace_command(
    module: str, config: Path | None, inputs: str | None, sizes: Sequence[str], out: Path
) -> NeuralNetwork:
    """Trace a module, write its network file and return the network.

    Args:
        module: The name or model id of a shipped recipe; a class or model of transformers, diffusers or timm; or
            `package.module:Class`.
        config: A JSON or YAML file with the configuration; without it the class has its defaults.
        inputs: The inputs, as YAML text or as a file that may also hold `sizes`; without it those of the shipped
            recipe of the same class.
        sizes: Sizes as NAME=DEFAULT[:STEP[:MINIMUM]], which take precedence.
        out: The file to write; its stem becomes the name of the network.

    Raises:
        InputError: Something is missing or wrong, or the module cannot be traced.
    """
    from catalogs.trace.trace import trace_network

    recipe = _recipe(module, config, inputs, sizes)
    network = trace_network(out.stem, recipe)
    write_network(network, out)
    return network


def _recipe(module: str, config: Path | None, inputs: str | None, sizes: Sequence[str]) -> NetworkRecipe:
    found = find_recipe(module)
    if found is not None:
        if config is not None or inputs is not None or sizes:
            raise InputError("a shipped recipe takes no configuration, inputs or sizes", module, hint="name its class")
        return found[1]
    from catalogs.trace.modules import full_name

    name = full_name(module)
    like = recipe_like(name)
    data: dict[str, Any] = {"inputs": {}, "sizes": {}}
    if inputs is not None:
        data |= _inputs(inputs)
    elif like is not None:
        stage = next(iter(like.stages.values()))
        plain = like.model_dump(include={"sizes"})
        data |= {"inputs": stage.inputs, "sizes": plain["sizes"]}
    else:
        hint = "--inputs 'pixel_values: [batch, 3, height, width]' --size batch=1 --size height=224:32"
        raise InputError(f"{name} is in no shipped recipe, so its inputs are needed", hint=hint)
    data["sizes"] = {**data["sizes"], **dict(map(_size, sizes))}
    stage_data = {"module": name, "config": read_yaml(config) if config else {}, "inputs": data["inputs"]}
    stage_data |= {key: data[key] for key in STAGE_KEYS if key in data}
    source = f"{name} with {config.name if config else 'its default configuration'}"
    whole = {"family": "traced module", "source": source, "sizes": data["sizes"], "stages": {"forward": stage_data}}
    return validate_as(NetworkRecipe, whole, "--inputs")


def _inputs(text: str) -> dict[str, Any]:
    """Return the keys of --inputs: a file, or YAML text. Without a key `inputs` the whole mapping is the inputs.

    Raises:
        InputError: It is neither a file nor a mapping, or has an unknown key besides `inputs`.
    """
    data = read_yaml(Path(text)) if Path(text).suffix in (".yaml", ".yml", ".json") else parse_yaml(text, "--inputs")
    if "inputs" not in data:
        return {"inputs": data}
    for key in data:
        if key not in KEYS:
            raise InputError("--inputs has no such key", key, nearest_name(str(key), KEYS) or ", ".join(KEYS))
    if not isinstance(data.get("sizes", {}), dict):
        raise InputError("sizes are a mapping by name", data["sizes"], "{batch: {default: 1}}")
    return data


def _size(text: str) -> tuple[str, dict[str, int]]:
    """Return the name and the fields of a size.

    Raises:
        InputError: The text has another form.
    """
    name, _, numbers = text.partition("=")
    try:
        found = list(map(int, numbers.split(":")))
    except ValueError:
        found = []
    if not name or not 1 <= len(found) <= 3:
        raise InputError("a size is NAME=DEFAULT[:STEP[:MINIMUM]]", text, "height=224:32")
    step = found[1] if len(found) > 1 else 1
    return name, {"default": found[0], "multiple_of": step, "minimum": found[2] if len(found) > 2 else step}
