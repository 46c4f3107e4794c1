"""The legal layouts of one replica: inside a node by default, and wider ones if needed or requested."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, replace
from itertools import product
from typing import Final

from catalogs.deployments.layout import ALLGATHER_REDUCESCATTER, Layout
from catalogs.deployments.resolution.parallelism import check_copies, most_expert_ranks, tensor_parallel_choices
from catalogs.deployments.resolve import CatalogLookup, resolve_pools
from catalogs.deployments.schema import Deployment
from catalogs.errors import InputError, nearest_name
from catalogs.io.yaml_files import validate_as
from catalogs.models.spec import ModelSpec
from planner.problem.overrides import Overrides
from planner.problem.request import CONTEXT, NATIVE, PIPELINES, WIDE_EXPERTS, PlanRequest
from simulator.memory.plan import size_memory

#: Kinds of layout that are considered only on request, or if no other layout holds the model.
_WIDE_TENSOR: Final = "wide-tensor"  # only if it is needed or fixed

WIDER: Final = (_WIDE_TENSOR, PIPELINES, CONTEXT, WIDE_EXPERTS)

#: The kind of layout that a fixed size above one requires, by its key.
_IMPLIED_BY: Final = {
    "tensor_parallel": _WIDE_TENSOR,
    "pipeline_parallel": PIPELINES,
    "context_parallel": CONTEXT,
    "decode_context_parallel": CONTEXT,
    "data_parallel": WIDE_EXPERTS,
}

#: Pipeline stages, context-parallel groups and data-parallel ranks that are tried: powers of two, which divide most
#: models and nodes evenly.
_SIZES: Final = (2, 4, 8, 16)


def layouts(request: PlanRequest, names: CatalogLookup) -> list[Layout]:
    """Return every legal layout of the requested kinds, simple ones first.

    Raises:
        InputError: The values that the request fixes leave no layout.
    """
    fixed = request.fixed
    implied = (kind for key, kind in _IMPLIED_BY.items() if fixed.layout.get(key, 1) > 1)
    kinds = dict.fromkeys((*request.extensions, *implied))
    found = within_a_node(names)
    if names.hardware.n_nodes > 1 and not any(_holds(request, names, layout) for layout in found):
        kinds |= dict.fromkeys((_WIDE_TENSOR, PIPELINES, WIDE_EXPERTS))
    for kind in (kind for kind in WIDER if kind in kinds):
        fitting = (each for each in _wider(kind, names) if each not in found and replicas_of(names, each))
        found += [each for each in fitting if _is_supported(request, names, each)]
    if (backend := fixed.layout.get("all2all_backend")) is not None:
        exchanging = [each.expert_parallel and each.data_parallel * each.context_parallel > 1 for each in found]
        found = [
            replace(layout, all2all_backend=backend) if exchanges else layout
            for layout, exchanges in zip(found, exchanging, strict=True)
        ]
    if copies := fixed.layout.get("redundant_experts"):
        found = _with_copies(found, copies, names.model)
    if fixed.layout.get("two_batch_overlap"):
        found = [replace(each, two_batch_overlap=each.all2all_backend != ALLGATHER_REDUCESCATTER) for each in found]
    kept = [layout for layout in found if all(getattr(layout, k) == v for k, v in fixed.layout.items())]
    if not kept:
        values = ", ".join(f"{key}={_as_typed(value)}" for key, value in fixed.layout.items())
        rule = f"no layout of {names.model.name} on {names.hardware.text} has these values"
        raise InputError(rule, values, _nearest(found, fixed))
    return kept


def weight_dtypes(request: PlanRequest, names: CatalogLookup) -> list[str]:
    """Return the requested weight dtypes, or else the native one and fp8 if the hardware multiplies it."""
    native = names.model.weight_dtype
    if request.precisions:
        return list(dict.fromkeys(native if p == NATIVE else p for p in request.precisions))
    narrows = "weight_dtype" in names.engine.flags  # when loading; llama.cpp has no 8-bit floats
    computes = native in ("bf16", "fp16", "fp32") and "fp8" in names.hardware.accelerator.peak_flops
    return [native, "fp8"] if computes and narrows else [native]


def _with_copies(found: list[Layout], copies: int, model: ModelSpec) -> list[Layout]:
    """Return the layouts that can share the experts and `copies` of them evenly, with these copies.

    Raises:
        InputError: None can; the error is that of one that sends tokens to their experts, if there is one.
    """
    sending = [layout for layout in found if layout.all2all_backend != ALLGATHER_REDUCESCATTER]
    kept, refusals = [], []
    for layout in sending or found:
        copied = replace(layout, redundant_experts=copies)
        try:
            check_copies(copied, model)
        except InputError as error:
            refusals.append(error)
        else:
            kept.append(copied)
    if not kept:
        raise refusals[0]
    return kept


def within_a_node(names: CatalogLookup) -> list[Layout]:
    """Return the layouts inside a node: TP sizes that divide model and node evenly.

    Mixtures of experts also have layouts with attention data parallelism.
    """
    hardware, model = names.hardware, names.model
    most = 1 if hardware.accelerator.is_slice else hardware.accelerators_per_node
    if model.encodes_prompt and not names.engine.splits_text_encoders:
        most = 1
    found = [Layout(tp) for tp in tensor_parallel_choices(model, most) if most % tp == 0 or tp & (tp - 1) == 0]
    if model.is_moe and most > 1:
        ranks = min(most, most_expert_ranks(model))
        for tp in tensor_parallel_choices(model, ranks, expert_parallel=True):
            sizes = (dp for dp in (1, *_SIZES) if tp * dp <= ranks and most % (tp * dp) == 0 and tp * dp > 1)
            found += [Layout(tp, data_parallel=dp, expert_parallel=True) for dp in sizes]
    return found


def replicas_of(names: CatalogLookup, layout: Layout) -> int:
    """Return the replicas that fit: inside nodes if a replica fits in one, else across whole nodes; 0 if none fits."""
    hardware, each = names.hardware, layout.accelerators
    per_node = hardware.accelerators_per_node
    if each <= per_node:
        return hardware.n_nodes * (per_node // each)
    return hardware.n_accelerators // each if each % per_node == 0 else 0


def _wider(kind: str, names: CatalogLookup) -> Iterator[Layout]:
    hardware = names.hardware
    most = 1 if hardware.accelerator.is_slice else hardware.n_accelerators
    sizes = [n for n in (*_SIZES, hardware.n_nodes) if 1 < n <= most]
    plain = within_a_node(names)
    if kind == _WIDE_TENSOR:
        yield from (
            Layout(tp) for tp in tensor_parallel_choices(names.model, most) if tp > hardware.accelerators_per_node
        )
    elif kind == PIPELINES:
        yield from (replace(each, pipeline_parallel=n) for each, n in product(plain, dict.fromkeys(sizes)))
    elif kind == CONTEXT:
        for each, n in product(plain, _SIZES):
            yield replace(each, context_parallel=n)
            yield replace(each, context_parallel=n, decode_context_parallel=n)
            yield replace(each, decode_context_parallel=n)
    elif names.model.is_moe:
        ranks = min(most, most_expert_ranks(names.model))
        for tp in tensor_parallel_choices(names.model, hardware.accelerators_per_node, expert_parallel=True):
            yield from (Layout(tp, data_parallel=n, expert_parallel=True) for n in (*_SIZES, 32, 64) if tp * n <= ranks)


def _is_supported(
    request: PlanRequest, names: CatalogLookup, layout: Layout, weight_dtype: str | None = None, sized: bool = False
) -> bool:
    """Return whether model and engine support the layout and, if `sized`, whether the weights fit in memory."""
    try:
        pools = resolve_pools(_written(request, names, layout, weight_dtype), names)
        return not sized or size_memory(pools[-1]).free_bytes > 0
    except InputError:
        return False


def _holds(request: PlanRequest, names: CatalogLookup, layout: Layout) -> bool:
    """Return whether the weights fit in one of the precisions to choose from."""
    return any(_is_supported(request, names, layout, w, sized=True) for w in weight_dtypes(request, names))


def _written(request: PlanRequest, names: CatalogLookup, layout: Layout, weight_dtype: str | None) -> Deployment:
    named = {"model": request.model, "engine": request.engine, "hardware": names.hardware.text}
    own = {"weight_dtype": weight_dtype, **asdict(layout)}
    return validate_as(Deployment, {**named, **own, **request.further_keys.values}, "the deployment")


def _nearest(found: list[Layout], fixed: Overrides) -> str | None:
    """Return the nearest valid value of the first fixed key whose value no layout has."""
    for key, value in fixed.layout.items():
        there = dict.fromkeys(getattr(layout, key) for layout in found)
        if value not in there:
            if isinstance(value, str):
                return f"{key}={nearest_name(value, [str(each) for each in there])}"
            return f"{key}={_as_typed(min(there, key=lambda n: abs(n - value)))}"
    return None


def _as_typed(value: object) -> str:
    """Return a value as a user writes it: true and false in lower case."""
    return str(value).lower() if isinstance(value, bool) else str(value)
