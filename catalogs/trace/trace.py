"""From a recipe to a network: each stage is traced, and its FLOPs are compared with torch's own counter."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from catalogs.errors import InputError
from catalogs.networks.network import DerivedSize, JobSize, NeuralNetwork, Stage
from catalogs.networks.polynomials import Polynomial
from catalogs.trace.modules import build_module, library, make_inputs, quiet
from catalogs.trace.recipes import NetworkRecipe, StageRecipe, check_inputs

#: The largest relative difference from the FLOPs that torch counts.
FLOP_TOLERANCE: Final = 1e-3


def trace_network(name: str, recipe: NetworkRecipe) -> NeuralNetwork:
    """Return the network that a recipe describes.

    Raises:
        InputError: A module cannot be built or traced, or its FLOPs differ from those that torch counts.
    """
    sizes = recipe.job_sizes()
    stages = []
    derived = {name: block.build(name) for name, block in recipe.derived.items()}
    for key, stage in recipe.stages.items():
        used = check_inputs(stage, recipe.sizes)
        try:
            traced, found = _traced_stage(key, stage, [size for size in sizes if size.name in used])
        except InputError as error:
            rule = f"stage {key} of {name}: {error.rule}"
            raise InputError(rule, error.value, error.nearest, error.hint) from None
        stages.append(traced)
        derived |= {size.name: size for size in found}
    libraries = dict.fromkeys(["torch", *(lib for stage in recipe.stages.values() for lib in _libraries(stage))])
    with_versions = [f"{lib} {getattr(sys.modules.get(lib), '__version__', '')}".strip() for lib in libraries]
    return NeuralNetwork(
        name,
        recipe.family,
        sizes,
        tuple(stages),
        tuple(derived.values()),
        recipe.source,
        ", ".join(text.partition("+")[0] for text in with_versions),
    )


def _libraries(stage: StageRecipe) -> tuple[str, ...]:
    """Return the libraries whose versions determine what a stage launches."""
    place = sys.modules.get(stage.module.replace(":", ".").rpartition(".")[0])
    return getattr(place, "LIBRARIES", None) or (stage.module.partition(".")[0],)


#: Traced stages of this process by all that determines them: networks share text encoders and decoders.
_TRACED: Final[dict[str, tuple[Stage, tuple[DerivedSize, ...]]]] = {}


def _traced_stage(key: str, stage: StageRecipe, sizes: list[JobSize]) -> tuple[Stage, tuple[DerivedSize, ...]]:
    """Return a stage, traced once for all stages of the process that differ in their name and runs only."""
    content = repr((stage.model_dump(exclude={"runs"}), [replace(size, meaning="") for size in sizes]))
    if content not in _TRACED:
        _TRACED[content] = _trace_stage(key, stage, sizes)
    traced, derived = _TRACED[content]
    return replace(traced, name=key, runs=Polynomial.of(stage.runs)), derived


def _trace_stage(key: str, stage: StageRecipe, sizes: list[JobSize]) -> tuple[Stage, tuple[DerivedSize, ...]]:
    library("torch")
    from catalogs.trace.equal_modules import EqualModules
    from catalogs.trace.meta_cache import MetaCache
    from catalogs.trace.record import DTYPES, record
    from catalogs.trace.stage import trace_operators

    module = build_module(stage)
    dtype = DTYPES[stage.dtype]
    results = MetaCache()
    fixed = {size.name: size.minimum for size in sizes if size.maximum == size.minimum}

    def run(job: Mapping[str, int], equal: EqualModules | None = None) -> Any:
        inputs = make_inputs(stage.inputs, {**fixed, **job}, dtype)
        with quiet():
            inputs = _prepared(module, stage, inputs, results)
            return record(module, lambda: _call(_entry(module, stage), stage, inputs), [inputs], dtype, equal, results)

    free = [size for size in sizes if size.name not in fixed]
    equal = EqualModules(module)
    try:
        traced = trace_operators(lambda job: run(job, equal), free, run)
    except InputError:  # what looks equal is not, or the module cannot be traced
        traced = trace_operators(run, free, run)
    notices = tuple(f"{operator} is of unknown kind and counted by its bytes" for operator in traced.unknown)
    parameters = sum(parameter.numel() for parameter in {id(p): p for p in module.parameters()}.values())
    place = f"{stage.module}.{stage.part}" if stage.part else stage.module
    label = f"{place}.{stage.method}" if stage.method else place
    once = Polynomial.of(1)
    found = Stage(key, once, traced.items, parameters, stage.dtype, traced.peak, label, notices)
    _check_flops(module, stage, found, {size.name: size.default for size in sizes}, traced.derived, results)
    return found, traced.derived


def _prepared(module: Any, stage: StageRecipe, inputs: Any, results: Any) -> Any:
    """Return the inputs of the traced call: those that the method `prepare` of a recipe makes of the stated ones."""
    if not stage.prepare:
        return inputs
    from catalogs.trace.meta_cache import EqualCallsOnce

    torch = library("torch")
    with torch.no_grad(), torch.device("meta"), EqualCallsOnce(results):
        return _call(getattr(module, stage.prepare), stage, inputs)


def _entry(module: Any, stage: StageRecipe) -> Any:
    return getattr(module, stage.method) if stage.method else module


def _call(function: Any, stage: StageRecipe, inputs: Mapping[str, Any]) -> Any:
    """Run a module or one of its methods once.

    Raises:
        InputError: The module needs values, which tensors without memory do not have, or does not take the inputs.
    """
    try:
        return function(**inputs)
    except InputError:
        raise
    except Exception as error:
        reason = " ".join(str(error).split())[:300]
        if "meta" in reason or "data-dependent" in reason or "data dependent" in reason:
            rule = f"{stage.module} decides by the value of a tensor ({reason})"
            hint = "leave out the optional input (such as a mask) that it reads, or trace the part before or after"
            raise InputError(rule, hint=hint) from None
        shapes = ", ".join(f"{name} {_shape(value)}" for name, value in inputs.items())
        rule = f"{stage.module} does not run with {shapes} ({type(error).__name__}: {reason})"
        raise InputError(rule, hint="correct --inputs or the configuration") from None


def _shape(value: Any) -> str:
    return "x".join(map(str, value.shape)) if hasattr(value, "shape") else type(value).__name__


def _check_flops(
    module: Any, made: StageRecipe, stage: Stage, job: dict[str, int], derived: tuple[DerivedSize, ...], results: Any
) -> None:
    """Compare the FLOPs of a stage at the default job with those of torch's own counter.

    Raises:
        InputError: They differ by more than the tolerance.
    """
    from torch.utils.flop_counter import FlopCounterMode

    from catalogs.trace.meta_cache import EqualCallsOnce
    from catalogs.trace.record import DTYPES

    torch = library("torch")
    inputs = make_inputs(made.inputs, job, DTYPES[made.dtype])
    with quiet():
        inputs = _prepared(module, made, inputs, results)
        with torch.no_grad(), torch.device("meta"), EqualCallsOnce(results), FlopCounterMode(display=False) as counter:
            _call(_entry(module, made), made, inputs)
    counted = counter.get_total_flops()
    ours = stage.at(job | {size.name: size.value(job) for size in derived}).flops
    if abs(counted - ours) > FLOP_TOLERANCE * counted:
        raise InputError(f"the FLOPs differ from the {counted} that torch counts", ours)
