"""Modules and their inputs on the meta device: no weights are loaded and no memory is used."""

from __future__ import annotations

import importlib
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from catalogs.errors import InputError, nearest_name
from catalogs.networks.polynomials import Polynomial
from catalogs.trace.recipes import StageRecipe

#: Libraries that are searched for a class given without its library.
LIBRARIES: Final = ("transformers", "diffusers", "timm")


def library(name: str) -> Any:
    """Return a library of the extra `trace`.

    Raises:
        InputError: It is not installed.
    """
    try:
        with quiet():
            return importlib.import_module(name)
    except (ImportError, RuntimeError) as error:
        hint = "python -m pip install '.[trace]'"
        raise InputError(f"tracing needs the library {name} ({error})", hint=hint) from None


@contextmanager
def quiet() -> Iterator[None]:
    """Keep warnings and log messages of libraries off the terminal."""
    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)


def full_name(module: str) -> str:
    """Return a class or a timm model with its library: `transformers.BertModel`, `timm.resnet50`.

    Raises:
        InputError: No library of the extra has it.
    """
    if "." in module or ":" in module:
        return module
    names: list[str] = []
    for name in LIBRARIES:
        try:
            found = library(name)
        except InputError:
            continue
        known = found.list_models() if name == "timm" else dir(found)
        if module in known:
            return f"{name}.{module}"
        names += known
    raise InputError("no class of transformers, diffusers or timm has this name", module, nearest_name(module, names))


def build_module(stage: StageRecipe) -> Any:
    """Return the module of a stage on the meta device, for inference and in its dtype.

    Raises:
        InputError: The class is unknown, or does not take the configuration.
    """
    torch = library("torch")
    make = module_maker(stage.module, dict(stage.config))
    try:
        with quiet(), torch.device("meta"):
            module = make()
    except InputError:
        raise
    except Exception as error:
        reason = " ".join(str(error).split())[:300]
        rule = f"{stage.module} cannot be built from this configuration ({type(error).__name__}: {reason})"
        raise InputError(rule) from None
    for name in stage.part.split(".") if stage.part else ():
        if not hasattr(module, name):
            children = [child for child, _ in module.named_children()]
            raise InputError(f"{stage.module} has no such part", stage.part, nearest_name(name, children))
        module = getattr(module, name)
    from catalogs.trace.record import DTYPES

    if stage.dtype not in DTYPES:
        raise InputError("unknown dtype", stage.dtype, nearest_name(stage.dtype, DTYPES) or "bf16")
    torch.nn.Module.to(module, DTYPES[stage.dtype])
    return module.eval()


def module_maker(name: str, config: dict[str, Any]) -> Callable[[], Any]:
    """Return what makes the module called `name`.

    Raises:
        InputError: The name is unknown.
    """
    place, _, attribute = name.replace(":", ".").rpartition(".")
    found = library(place)
    if place == "timm":
        if not found.is_model(attribute):
            raise InputError("timm has no such model", attribute, nearest_name(attribute, found.list_models()))
        return lambda: found.create_model(attribute, pretrained=False, **config)
    if not hasattr(found, attribute):
        raise InputError(f"{place} has no such class", attribute, nearest_name(attribute, dir(found)))
    cls = getattr(found, attribute)
    if hasattr(cls, "config_class") and cls.config_class is not None:  # transformers
        return lambda: cls(cls.config_class(**config))
    return lambda: cls(**{key: value for key, value in config.items() if not key.startswith("_")})


def make_inputs(spec: Any, sizes: Mapping[str, int], dtype: Any) -> Any:
    """Return the inputs that a specification describes, at sizes, on the meta device.

    Raises:
        InputError: An extent is not a count, or a dtype is unknown.
    """
    torch = library("torch")
    from catalogs.trace.record import DTYPES

    if isinstance(spec, list):
        return torch.empty([Polynomial.of(extent).count(sizes) for extent in spec], dtype=dtype, device="meta")
    if "value" in spec:
        return spec["value"]
    if "shape" in spec:
        stated = str(spec["dtype"])
        if stated not in DTYPES:
            raise InputError("unknown dtype", stated, nearest_name(stated, DTYPES) or "int64")
        return make_inputs(spec["shape"], sizes, DTYPES[stated])
    if "tuple" in spec:
        return tuple(make_inputs(inner, sizes, dtype) for inner in spec["tuple"])
    return {name: make_inputs(inner, sizes, dtype) for name, inner in spec.items()}
