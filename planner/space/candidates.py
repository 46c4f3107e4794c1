"""The legal candidates: the choices of the planner before memory and latency are considered."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import product
from typing import Final

from catalogs.deployments.layout import Layout
from catalogs.deployments.resolution.scale_blocks import check_scale_blocks, refusal
from catalogs.deployments.resolve import CatalogLookup
from catalogs.errors import InputError
from catalogs.hardware.catalog import with_count, with_nodes
from catalogs.hardware.specs import Hardware
from planner.problem.candidate import Candidate, DeploymentOverrides
from planner.problem.overrides import NOT_FIXED, Overrides
from planner.problem.request import PlanRequest
from planner.space.layouts import layouts, replicas_of, weight_dtypes
from planner.space.speculative import SPECULATIVE, may_draft, parse_drafts

#: Values of max_num_seqs that are tried below the engine's default. A judgement: powers of two; between neighbours the
#: time per token changes by less than a factor of two.
SEQS_LADDER: Final = (64, 128, 256, 512, 1024)

#: Sizes of padded batches; their engine has no default of its own.
BATCH_LADDER: Final = (1, 2, 4, 8, 16, 32, 64, 128)

#: Values of max_num_batched_tokens that are tried beside the engine's default, up to twice as large. A judgement: the
#: defaults of vLLM and SGLang on devices of different sizes (`default_limits` in catalogs/data/engines), and the power
#: of two between them.
TOKENS_LADDER: Final = (2048, 4096, 8192, 16384)

#: Most numbers of nodes that are tried for a rate. A judgement of cost: a geometric selection keeps the largest step
#: small.
_MAX_COUNTS: Final = 8


def candidates(request: PlanRequest, names: CatalogLookup) -> list[Candidate]:
    """Return every legal candidate in a fixed order: small hardware first, the engine's default limits first."""
    found = _each(
        request,
        names,
        lambda layout: placements(request, names, layout),
        kv_dtypes(names, request.fixed),
        limits(names, request.fixed),
    )
    if request.speculative is not None:  # at the default limits of the engine: one more candidate per placement
        own = limits(names, request.fixed)[0]
        plain = [c for c in found if (c.max_num_seqs, c.max_num_batched_tokens) == own and may_draft(c)]
        drafts = parse_drafts(request.speculative)
        found += [replace(c, rest=DeploymentOverrides({**c.rest.values, SPECULATIVE: drafts})) for c in plain]
    return sorted(found, key=lambda c: (c.hardware.n_accelerators, distance_from_defaults(c, names), c))


def single_replicas(request: PlanRequest, names: CatalogLookup) -> list[Candidate]:
    """Return one replica of each legal layout and weight dtype, the fewest accelerators first.

    Each has the engine's default limits and KV dtype, on the whole hardware.

    Raises:
        InputError: The values that the request fixes leave no layout or no limits.
    """
    whole = names.hardware.without_notices()
    own_dtype, own_limits = kv_dtypes(names, request.fixed)[0], limits(names, request.fixed)[0]
    found = _each(request, names, lambda _: ((whole, 1),), (own_dtype,), (own_limits,))

    def order(candidate: Candidate) -> tuple[object, ...]:
        layout = candidate.layout
        return layout.accelerators, layout.expert_parallel, distance_from_defaults(candidate, names), candidate

    return sorted(found, key=order)


def _each(
    request: PlanRequest,
    names: CatalogLookup,
    placed: Callable[[Layout], Iterable[tuple[Hardware, int]]],
    caches: Sequence[str],
    batches: Sequence[tuple[int, int]],
) -> list[Candidate]:
    """Return a candidate for each combination of layout, placement, weight dtype, KV dtype and limits.

    Args:
        request: The request.
        names: The model, the engine and the hardware.
        placed: Returns pairs (hardware, replicas) for a layout.
        caches: KV dtypes.
        batches: Pairs (max_num_seqs, max_num_batched_tokens).

    Raises:
        InputError: The engine refuses every layout that the request leaves.
    """
    rest = request.further_keys
    found = [
        Candidate(
            hardware=hardware,
            replicas=replicas,
            layout=layout,
            weight_dtype=w,
            kv_dtype=kv,
            max_num_seqs=s,
            max_num_batched_tokens=t,
            rest=rest,
        )
        for layout in layouts(request, names)
        for hardware, replicas in placed(layout)
        for w in weight_dtypes(request, names)
        if refusal(names.model, w, layout, names.engine) is None
        for kv in caches
        for s, t in batches
    ]
    if not found:  # the engine refuses every layout that the request leaves
        for layout, w in product(layouts(request, names), weight_dtypes(request, names)):
            check_scale_blocks(names.model, w, layout, names.engine)
    return [c for each in found if (c := _behind_encoders(each)).replicas > 0]


def _behind_encoders(candidate: Candidate) -> Candidate:
    """Return the candidate with the replicas that fit behind the encoder pool that the request fixes, if any."""
    taken = candidate.encoder_accelerators
    if not taken:
        return candidate
    left = (candidate.hardware.n_accelerators - taken) // candidate.layout.accelerators
    return replace(candidate, replicas=max(min(candidate.replicas, left), 0))


def refused_layouts(request: PlanRequest, names: CatalogLookup) -> list[str]:
    """Return one line for each reason why the engine does not load the weights in some of the layouts."""
    found: dict[str, list[str]] = {}
    scaled = [w for w in weight_dtypes(request, names) if names.model.weight_format(w).block_size]
    for layout in layouts(request, names) if scaled else ():
        for w in scaled:
            if (why := refusal(names.model, w, layout, names.engine)) is not None:
                found.setdefault(why, []).append(layout.words)
    return [f"not compared, {', '.join(words)}: {why}" for why, words in found.items()]


def placements(request: PlanRequest, names: CatalogLookup, layout: Layout) -> Iterator[tuple[Hardware, int]]:
    """Yield pairs (hardware, replicas) for a layout.

    The hardware is all of the requested hardware. If there is a load and the objective is cost, energy or carbon, it is
    also any part of one node, and any smaller number of nodes. If the loss of nodes must be tolerated, it is also any
    equal part of each of several nodes, since the parts of one node are lost together.
    """
    hardware = names.hardware.without_notices()
    most = replicas_of(names, layout)
    if most < 1:
        return
    whole_only = hardware.text == "local" or hardware.accelerator.is_slice
    if request.demand.given and request.objective in ("cost", "energy", "carbon") and not whole_only:
        lost = request.demand.spare.nodes
        for n_nodes in _node_counts(hardware.n_nodes):
            if n_nodes == 1 or 0 < lost < n_nodes:
                yield from _equal_parts(names, layout, n_nodes)
            replicas = replicas_of(replace(names, hardware=with_nodes(hardware, n_nodes)), layout)
            if replicas and n_nodes < hardware.n_nodes:
                yield with_nodes(hardware, n_nodes), replicas
    yield hardware, most


def _equal_parts(names: CatalogLookup, layout: Layout, n_nodes: int) -> Iterator[tuple[Hardware, int]]:
    """Yield every part of `n_nodes` nodes that has the same number of replicas on each, in ascending order.

    Whole nodes are not among them; a layout across nodes has none.
    """
    nodes = with_nodes(names.hardware, n_nodes)
    per_node = nodes.accelerators_per_node // layout.accelerators
    for n in range(1, per_node):
        yield with_count(nodes, n * layout.accelerators), n * n_nodes


def _node_counts(most: int) -> Sequence[int]:
    """Return numbers of nodes up to `most`: all of them if there are few, else a geometric selection."""
    if most - 1 <= _MAX_COUNTS:
        return range(1, most + 1)
    return sorted({round(most ** (i / _MAX_COUNTS)) for i in range(_MAX_COUNTS + 1)})


def kv_dtypes(names: CatalogLookup, fixed: Overrides = NOT_FIXED) -> list[str]:
    """Return the fixed KV dtype, or else 16 bit and fp8 if hardware and engine support it."""
    if "kv_dtype" in fixed.values:
        return [str(fixed.values["kv_dtype"])]
    computes = names.hardware.accelerator.peak_flops
    wide = "bf16" if "bf16" in computes else "fp16"
    if wide not in names.engine.kv_dtypes:
        raise InputError(f"{names.engine.name} does not support a {wide} KV cache", wide, names.engine.kv_dtypes[0])
    return [wide, "fp8"] if "fp8" in computes and "fp8" in names.engine.kv_dtypes else [wide]


def limits(names: CatalogLookup, fixed: Overrides = NOT_FIXED) -> list[tuple[int, int]]:
    """Return pairs (max_num_seqs, max_num_batched_tokens), the defaults first, then others up to twice as large.

    Raises:
        InputError: A fixed limit leaves no pair.
    """
    tokens, seqs = names.default_limits
    own_seqs, own_tokens = fixed.number("max_num_seqs"), fixed.number("max_num_batched_tokens")
    ladder = BATCH_LADDER if names.engine.policy == "static" else [s for s in SEQS_LADDER if s < seqs]
    all_seqs = [own_seqs] if own_seqs else [seqs, *(s for s in ladder if s != seqs)]
    other_tokens = [t for t in TOKENS_LADDER if t != tokens and t <= 2 * tokens]
    all_tokens = [own_tokens] if own_tokens else [tokens, *other_tokens]
    found = [(s, t) for s in all_seqs for t in all_tokens if t >= s]
    if not found:
        nearest = f"max_num_batched_tokens={min(all_seqs)}"
        raise InputError("max_num_batched_tokens must be at least max_num_seqs", max(all_tokens), nearest)
    return found


def widest_limits(names: CatalogLookup, fixed: Overrides = NOT_FIXED) -> tuple[int, int]:
    """Return the largest (max_num_batched_tokens, max_num_seqs) of `limits`."""
    found = limits(names, fixed)
    return max(t for _, t in found), max(s for s, _ in found)


def distance_from_defaults(candidate: Candidate, names: CatalogLookup) -> tuple[int, ...]:
    """Return how far a candidate is from the engine's defaults, as a sort key (simplest first).

    The parts are precision, KV cache, limits, other features, and API servers, in order of importance.
    """
    tokens, seqs = names.default_limits
    return (
        int(candidate.weight_dtype != names.model.weight_dtype),
        int(candidate.kv_dtype == "fp8"),
        int(candidate.max_num_seqs != seqs) + int(candidate.max_num_batched_tokens != tokens),
        int(candidate.layout.expert_parallel)
        + 2 * bool(candidate.split)
        + 4 * candidate.drafts
        + 8 * bool(candidate.encoders[0])
        + int(candidate.whole_towers),
        candidate.api_servers - candidate.layout.data_parallel,
    )
