"""The layers of each pipeline stage: as `pipeline_layers` states them, otherwise as the engine divides them.

Sources of the engines' rules, for L layers over S stages:

- "before last": L // S layers each, and one more on as many stages as are left over, counted back from the last but
  one, because the last stage has the output projection (vLLM, distributed/utils.py, get_pp_indices).
- "all on last": L // S layers each, and everything that is left over on the last stage (the same function of vLLM up to
  0.6.4).
- "last": one more on the last stages (SGLang, srt/distributed/utils.py, get_pp_indices).
- "first": one more on the first stages (TensorRT-LLM, mapping.py, Mapping.pp_layers).
- "with output": the output layer counts as one more layer, and layer i of L + 1 is on the stage in whose share of the
  whole i / (L + 1) lies (llama.cpp, src/llama-model.cpp, load_tensors; equal shares, as --tensor-split 1,1 sets them).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate

from catalogs.deployments.layout import Layout
from catalogs.engines.profile import EngineProfile
from catalogs.errors import InputError
from catalogs.models.spec import ModelSpec


def resolve_stage_layers(
    given: Sequence[int] | None, layout: Layout, model: ModelSpec, engine: EngineProfile
) -> tuple[int, ...]:
    """Return the layers of each pipeline stage, first stage first; empty for one stage.

    Args:
        given: The key `pipeline_layers`; None is the engine's own division.
        layout: The layout of a replica, whose number of stages counts.
        model: The model, whose layers are divided.
        engine: The engine, whose rule divides them.

    Raises:
        InputError: The key does not name a number of layers for each stage, or they do not add up to the model's; or
            the engine's own division leaves a stage without layers, as llama.cpp's does where twice the stages exceed
            the layers by two or more: its last device then holds only the output layer.
    """
    stages = layout.pipeline_parallel
    if stages == 1 and given is None:
        return ()
    own = divided(engine.spare_layers, model.n_layers, stages)
    if given is None:
        if min(own) == 0:
            rule = f"{engine.name} leaves a stage without layers of {model.name}, which has {model.n_layers}"
            fewer = next(n for n in range(stages - 1, 0, -1) if min(divided(engine.spare_layers, model.n_layers, n)))
            raise InputError(rule, f"pipeline_parallel: {stages}", f"pipeline_parallel: {fewer}")
        return own
    nearest = f"pipeline_layers: {list(own)}"
    if len(given) != stages:
        raise InputError(f"pipeline_layers needs one number for each of {stages} stages", list(given), nearest)
    if sum(given) != model.n_layers:
        rule = f"pipeline_layers must add up to the {model.n_layers} layers of {model.name}"
        raise InputError(rule, list(given), nearest)
    return tuple(given) if stages > 1 else ()


def divided(rule: str, n_layers: int, stages: int) -> tuple[int, ...]:
    """Return the layers of each stage as an engine divides them (see the module).

    Args:
        rule: The engine's `spare_layers`.
        n_layers: The layers of the model, at least one for each stage.
        stages: The number of stages.
    """
    if rule == "with output":
        return by_shares([1.0] * stages, n_layers)
    each, spare = divmod(n_layers, stages)
    layers = [each] * stages
    if rule == "all on last":
        layers[-1] += spare
        return tuple(layers)
    first = {"first": 0, "last": stages - spare, "before last": stages - 1 - spare}[rule]
    for stage in range(first, first + spare):
        layers[stage] += 1
    return tuple(layers)


def by_shares(shares: Sequence[float], n_layers: int) -> tuple[int, ...]:
    """Return the layers of each stage as llama.cpp divides them by the shares of --tensor-split.

    Args:
        shares: A positive share for each stage; their sum does not matter.
        n_layers: The layers of the model, without the output layer that llama.cpp adds.
    """
    ends = list(accumulate(shares))
    ends = [end / ends[-1] for end in ends]
    layers = [0] * len(shares)
    for layer in range(n_layers):
        layers[bisect_right(ends, layer / (n_layers + 1))] += 1
    return tuple(layers)
