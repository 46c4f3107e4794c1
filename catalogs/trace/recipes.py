"""Recipes: which module, configuration and inputs make each stage of a network, as YAML."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

from pydantic import Field

from catalogs.errors import InputError, nearest_name
from catalogs.io.yaml_files import YamlBlock, read_yaml, validate_as
from catalogs.networks.files import Expression, SizeBlock
from catalogs.networks.names import load_names
from catalogs.networks.network import JobSize
from catalogs.networks.polynomials import Polynomial

RECIPES: Final = Path(__file__).with_name("recipes.yaml")


class StageRecipe(YamlBlock):
    """One stage: a class of a library with its configuration, and the tensors that it is called with.

    An input is a list of extents (a tensor of the stage's dtype), `{shape: [...], dtype: int64}`, `{value: ...}` (a
    plain argument), `{tuple: [...]}` of inputs, or a mapping of inputs. `method` is called instead of `forward`, and
    `part` is the submodule that is traced.
    """

    module: str
    config: dict[str, Any] = Field(default_factory=dict)
    inputs: dict[str, Any] = Field(min_length=1)
    runs: Expression = 1
    dtype: str = "bf16"
    method: str | None = None
    part: str | None = None


class NetworkRecipe(YamlBlock):
    """The recipe of one shipped network: what is traced for each of its stages."""

    family: str
    source: str
    sizes: dict[str, SizeBlock] = Field(min_length=1)
    stages: dict[str, StageRecipe] = Field(min_length=1)

    def job_sizes(self) -> tuple[JobSize, ...]:
        """Return the sizes of a job."""
        return tuple(JobSize(name, **size.model_dump()) for name, size in self.sizes.items())


class RecipeFile(YamlBlock):
    """The shipped list of recipes; `shared` holds what several of them repeat by YAML anchors."""

    shared: dict[str, Any] = Field(default_factory=dict)
    networks: dict[str, NetworkRecipe]


@cache
def shipped_recipes() -> Mapping[str, NetworkRecipe]:
    """Return the shipped recipes by the name of the network."""
    return validate_as(RecipeFile, read_yaml(RECIPES), RECIPES.name).networks


def find_recipe(name: str) -> tuple[str, NetworkRecipe] | None:
    """Return the shipped recipe that a name of a network means, and its own name; None if there is none.

    Raises:
        InputError: The name fits several networks.
    """
    found = load_names().find(name, shipped_recipes())
    return None if found is None else (found, shipped_recipes()[found])


def recipe_like(module: str) -> NetworkRecipe | None:
    """Return a shipped recipe of a single stage of the same class, whose inputs then serve; None if there is none."""
    for recipe in shipped_recipes().values():
        if [stage.module for stage in recipe.stages.values()] == [module]:
            return recipe
    return None


def check_inputs(stage: StageRecipe, sizes: Mapping[str, object]) -> frozenset[str]:
    """Return the sizes that the inputs of a stage use.

    Raises:
        InputError: An extent names no size.
    """
    used = frozenset(name for extent in _extents(stage.inputs) for name in Polynomial.of(extent).names)
    for name in sorted(used):
        if name not in sizes:
            hint = f"state it: --size {name}=DEFAULT"
            raise InputError("an input has an extent without a size", name, nearest_name(name, sizes), hint)
    return used


def _extents(spec: Any) -> list[int | str]:
    """Return every extent of a specification of inputs.

    Raises:
        InputError: The specification has another form.
    """
    if isinstance(spec, list):
        if not all(isinstance(extent, int | str) for extent in spec):
            raise InputError("an input is a list of extents", spec, "[batch, 3, height, width]")
        return spec
    if not isinstance(spec, Mapping):
        raise InputError("an input is a list of extents", spec, "[batch, 3, height, width]")
    if "value" in spec:
        return []
    if "shape" in spec:
        if "dtype" not in spec:
            raise InputError("an input with a shape needs a dtype", spec, "{shape: [batch, 8], dtype: int64}")
        return _extents(spec["shape"])
    inner = spec.get("tuple", list(spec.values()))
    if not isinstance(inner, list):
        raise InputError("a tuple is a list of inputs", inner, "{tuple: [[batch, 8], [batch, 8]]}")
    return [extent for one in inner for extent in _extents(one)]
