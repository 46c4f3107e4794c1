"""The rules for the parallel layouts that a model and a cluster allow.

Blocks of the KV cache move between servers of unequal width by the rules of `transfer_refusal`. The caches of two
servers are cut by tensor ranks, and every decode rank reads from the prefill ranks that hold its heads. All engines
need one tensor-parallel size to be a multiple of the other. Beyond that:

- vLLM up to 0.13 reads only from prefill servers that are at most as wide (NixlConnector, `tp_ratio`: "Local tensor
  parallel size is not divisible by remote tensor parallel size"); pull request 27274 (December 2025) added the rest.
- Newer vLLM cannot read copies: where more prefill ranks than KV heads hold the cache, fewer decode ranks are refused
  (kv_connector/v1/nixl, 0.33).
- SGLang (disaggregation/common/conn.py, `required_dst_info_num`) and TensorRT-LLM (cacheFormatter) read them.

A latent (MLA) is whole on every rank, so there are no heads to be copied.
"""

from __future__ import annotations

import math
from dataclasses import fields, replace
from typing import Final

from catalogs.deployments.layout import ALLGATHER_REDUCESCATTER, Layout
from catalogs.deployments.schema import Deployment
from catalogs.engines.profile import EngineProfile
from catalogs.errors import InputError
from catalogs.hardware.specs import Hardware
from catalogs.models.mixers import Attention
from catalogs.models.spec import ModelSpec

#: The largest tensor-parallel size that is tried as the nearest valid choice.
_MOST_TENSOR_PARALLEL: Final = 1024


def resolve_layout(deployment: Deployment, model: ModelSpec, hardware: Hardware) -> tuple[int, Layout, tuple[str, ...]]:
    """Return the number of replicas, the layout of each, and notices about the layout.

    Data parallelism inside a replica is for mixture-of-experts models, whose ranks step together. With expert_parallel,
    the experts are spread over all data x tensor ranks; without it, every expert is cut over them. The ranks of a dense
    model never communicate, so they are counted as replicas.

    Raises:
        InputError: The model cannot be cut in this way, or the replicas do not fit in the hardware.
    """
    d = deployment
    if d.expert_parallel and not model.is_moe:
        raise InputError("expert_parallel needs a mixture-of-experts model", d.model, "expert_parallel: false")
    if d.pipeline_parallel > model.n_layers:
        raise InputError(f"pipeline_parallel exceeds the layers of {d.model}", d.pipeline_parallel, str(model.n_layers))
    replicas = d.replicas
    found = Layout(**{f.name: getattr(d, f.name) for f in fields(Layout)})
    _check_exchange(found, model)
    check_copies(found, model)
    found, notices = _spread_experts(replicas, found, hardware)
    check_tensor_parallel(model, found.tensor_parallel, found.expert_parallel)
    _check_whole_experts(found, model)
    check_context_parallel(model, found)
    notices += _unmeasured_groups(found, hardware)
    if found.data_parallel > 1 and not model.is_moe:
        replicas, found = replicas * found.data_parallel, replace(found, data_parallel=1)
        notices += (f"{model.name} is dense: its {d.data_parallel} data-parallel ranks are counted as replicas",)
    _check_fit_of_groups(found, hardware)
    _check_fits(replicas, found, hardware)
    return replicas, found, notices


def _spread_experts(replicas: int, layout: Layout, hardware: Hardware) -> tuple[Layout, tuple[str, ...]]:
    """Return the layout that `expert_parallel` means on a single replica with one rank, and a notice about it.

    Experts are spread over data x tensor ranks, so the flag has no effect over one rank. For a single replica that has
    the node to itself, it is taken to mean all accelerators of the node, with tensor-parallel attention, as in
    published runs.
    """
    single = replicas * layout.accelerators == 1
    if not (layout.expert_parallel and single and hardware.n_nodes == 1 and hardware.accelerators_per_node > 1):
        return layout, ()
    count = hardware.accelerators_per_node
    notice = f"expert_parallel has no effect on one accelerator: assumed tensor_parallel {count} ({hardware.text})"
    return replace(layout, tensor_parallel=count), (notice,)


def tensor_parallel_choices(model: ModelSpec, most: int, expert_parallel: bool = False) -> list[int]:
    """Return the tensor-parallel sizes up to `most` that divide the model evenly, ascending; 1 is always among them."""
    return [tp for tp in range(1, most + 1) if not _broken_rules(model, tp, expert_parallel)]


def check_tensor_parallel(model: ModelSpec, tp: int, expert_parallel: bool = False) -> None:
    """Check that `tp` divides what vLLM splits over tensor ranks.

    These are the attention heads (KV heads are replicated where `tp` exceeds their number), the heads of linear
    attention, and the feed-forward widths. With expert_parallel, experts stay whole and are not cut.

    Raises:
        InputError: `tp` does not divide one of these sizes.
    """
    broken = _broken_rules(model, tp, expert_parallel)
    if broken:
        fits = tensor_parallel_choices(model, min(tp, _MOST_TENSOR_PARALLEL), expert_parallel)
        raise InputError(f"tensor_parallel does not divide {broken[0]} of {model.name}", tp, str(fits[-1]))


def _broken_rules(model: ModelSpec, tp: int, expert_parallel: bool) -> list[str]:
    """Return descriptions of the sizes that `tp` does not divide, in the order of the layers."""
    groups = (*model.groups, *model.encoder_groups)
    return [size for group in groups for size in group.indivisible_sizes(tp, expert_parallel)]


def check_engine(layout: Layout, engine: EngineProfile) -> None:
    """Check that the engine has an option for each way of splitting replicas that the layout uses.

    Raises:
        InputError: The engine's catalog file lists no option for one of them.
    """
    if engine.stages_in_turn and layout.tensor_parallel > 1 and layout.pipeline_parallel > 1:
        rule = f"{engine.name} splits a model by layers or by tensors, not both ways"
        value = f"tensor_parallel: {layout.tensor_parallel}, pipeline_parallel: {layout.pipeline_parallel}"
        raise InputError(rule, value, f"pipeline_parallel: {layout.accelerators}")
    for key in (
        "context_parallel",
        "decode_context_parallel",
        "all2all_backend",
        "redundant_experts",
        "two_batch_overlap",
    ):
        requested, default = getattr(layout, key), getattr(Layout(), key)
        if requested != default and key not in engine.flags:
            raise InputError(f"{key} is not simulated for {engine.name}", requested, str(default))


def _check_exchange(layout: Layout, model: ModelSpec) -> None:
    """Check that a non-default all-to-all backend has whole experts and ranks with different tokens.

    Within one group of tensor ranks, every rank already holds every token.
    """
    if layout.two_batch_overlap and not model.is_moe:
        rule = f"two_batch_overlap overlaps the exchange of tokens with experts; {model.name} has none"
        raise InputError(rule, "true", "two_batch_overlap: false")
    if layout.all2all_backend == ALLGATHER_REDUCESCATTER:
        if layout.two_batch_overlap:  # vLLM refuses it too; SGLang falls back to steps in one batch
            rule = "two_batch_overlap is simulated with the backends that send tokens to their experts only"
            raise InputError(rule, layout.all2all_backend, "all2all_backend: deepep_low_latency")
        return
    if not layout.expert_parallel:
        rule = "all2all_backend needs expert_parallel: it sends tokens to whole experts"
        raise InputError(rule, layout.all2all_backend, "expert_parallel: true")
    if layout.data_parallel * layout.context_parallel == 1:
        rule = "all2all_backend needs data_parallel or context_parallel: tensor ranks hold the same tokens"
        raise InputError(rule, layout.all2all_backend, ALLGATHER_REDUCESCATTER)


def most_expert_ranks(model: ModelSpec) -> int:
    """Return the most ranks that can share whole experts: one expert each, in the layer with the fewest of them."""
    return min(g.ffn.routed_experts for g in model.groups if g.ffn is not None and g.ffn.routed)


def _check_whole_experts(layout: Layout, model: ModelSpec) -> None:
    ranks = layout.tensor_parallel * layout.data_parallel * layout.context_parallel
    if layout.expert_parallel and ranks > most_expert_ranks(model) + layout.redundant_experts:
        rule = f"{ranks} ranks cannot share the {most_expert_ranks(model)} whole experts of {model.name}"
        raise InputError(rule, "expert_parallel: true", "expert_parallel: false")


def check_copies(layout: Layout, model: ModelSpec) -> None:
    """Check that the ranks can share the experts and their copies evenly, and that tokens are sent to them.

    A rank without copies of experts computes as many rows as the routing gives it, so only the copies balance the load.

    Raises:
        InputError: The model has no experts, tokens are gathered by all ranks, or experts and copies do not divide by
            the ranks.
    """
    copies, ranks = layout.redundant_experts, layout.tensor_parallel * layout.data_parallel * layout.context_parallel
    if not copies:
        return
    if not model.is_moe:
        rule = f"redundant_experts are copies of experts; {model.name} has none"
        raise InputError(rule, copies, "redundant_experts: 0")
    if layout.all2all_backend == ALLGATHER_REDUCESCATTER:
        rule = "redundant_experts is simulated with the backends that send tokens to their experts only"
        raise InputError(rule, layout.all2all_backend, "all2all_backend: deepep_low_latency")
    for experts in {group.ffn.routed_experts for group in model.groups if group.ffn is not None}:
        if experts and (experts + copies) % ranks:
            over = (experts + copies) % ranks
            fits = copies - over if over < ranks - over and copies > over else copies - over + ranks
            rule = f"{experts} experts and their copies must divide by the {ranks} ranks that share them"
            raise InputError(rule, f"redundant_experts: {copies}", f"redundant_experts: {fits}")


def check_context_parallel(model: ModelSpec, layout: Layout) -> None:
    """Check that prompts can be split over context_parallel ranks and KV over decode_context_parallel ranks.

    The rules are vLLM's (ParallelConfig and ModelConfig.verify_with_parallel_config, 0.32). The ranks that share KV are
    tensor ranks, or all context ranks. Where a model has KV heads, each head must already be on several tensor ranks,
    and the query heads of each KV head must divide evenly.

    Raises:
        InputError: The layout breaks one of these rules.
    """
    tp, cp, dcp = layout.tensor_parallel, layout.context_parallel, layout.decode_context_parallel
    if (cp > 1 or dcp > 1) and model.has_recurrent_layers:
        rule = f"context parallelism needs attention in every layer; {model.name} has linear attention"
        raise InputError(rule, f"context_parallel: {cp}, decode_context_parallel: {dcp}", "1")
    if cp > 1 and dcp not in (1, cp):
        raise InputError("decode_context_parallel must be 1 or equal to context_parallel", dcp, str(cp))
    if cp == 1 and tp % dcp:
        nearest = max(n for n in range(1, tp + 1) if tp % n == 0 and n <= dcp)
        raise InputError(f"decode_context_parallel does not divide tensor_parallel ({tp})", dcp, str(nearest))
    for attention in dict.fromkeys(a for g in model.groups if (a := g.plain_attention)) if dcp > 1 else ():
        _check_repeated_heads(model.name, attention, tp, dcp)


def _check_repeated_heads(name: str, attention: Attention, tp: int, dcp: int) -> None:
    copies, queries = tp // attention.n_kv_heads, attention.n_heads // attention.n_kv_heads
    if dcp > copies:
        rule = f"decode_context_parallel exceeds the copies of each of the {attention.n_kv_heads} KV heads of {name}"
        raise InputError(rule, dcp, str(max(copies, 1)))
    if queries % dcp:
        nearest = max(n for n in range(1, dcp) if queries % n == 0)
        rule = f"decode_context_parallel does not divide the {queries} query heads of each KV head of {name}"
        raise InputError(rule, dcp, str(nearest))


def _check_fit_of_groups(layout: Layout, hardware: Hardware) -> None:
    """Check that a tensor-parallel group lies inside one node or fills whole nodes.

    MIG instances have no peer link (NCCL refuses them), so a replica on MIG is a single instance.
    """
    tp = layout.tensor_parallel
    if hardware.accelerator.is_slice:
        for key in ("tensor_parallel", "pipeline_parallel", "data_parallel", "context_parallel"):
            if getattr(layout, key) > 1:
                raise InputError(f"{key} over MIG slices is not possible (no peer link)", getattr(layout, key), "1")
    per_node = hardware.accelerators_per_node
    if tp > per_node and (tp % per_node or tp > hardware.n_accelerators):
        raise InputError(f"tensor_parallel must fit in one node of {hardware.text}", tp, str(per_node))


#: Ranks of the largest group inside one link domain for which public tables have measurements.
MOST_MEASURED: Final = 8


def _unmeasured_groups(layout: Layout, hardware: Hardware) -> tuple[str, ...]:
    """Return one notice for each kind of group whose collectives have not been measured."""
    tp, cp, stages = layout.tensor_parallel, layout.context_parallel, layout.pipeline_parallel
    experts = tp * cp * layout.data_parallel * stages if layout.data_parallel > 1 else 1
    own = "NCCL's own model"
    of_experts = own if layout.all2all_backend == ALLGATHER_REDUCESCATTER else "the latencies that DeepEP publishes"
    found = []
    for what, ranks in (("tensor_parallel", tp), ("context_parallel", tp * cp if cp > 1 else 1), ("experts", experts)):
        domains, model = -(-ranks // hardware.link_domain), of_experts if what == "experts" else own
        if domains > 1:
            found.append(
                f"{what}: {ranks} ranks over {domains} link domains of {hardware.link_domain}: their collectives cross "
                f"the network in every layer; their times follow {model} and are not measured"
            )
        elif what == "tensor_parallel" and ranks > MOST_MEASURED:
            found.append(f"{what}: collectives of {ranks} ranks are extrapolated from {MOST_MEASURED}, not measured")
    return tuple(found)


def _check_fits(replicas: int, layout: Layout, hardware: Hardware) -> None:
    tp, per_node = layout.tensor_parallel, hardware.accelerators_per_node
    groups = hardware.n_accelerators // tp if tp > per_node else hardware.n_nodes * (per_node // tp)
    per_replica = layout.pipeline_parallel * layout.data_parallel * layout.context_parallel
    if replicas * per_replica <= groups:
        return
    requested = replicas * layout.accelerators
    parts = "replicas x tensor x pipeline x data x context parallel"
    rule = f"{parts} must fit in the {hardware.n_accelerators} of {hardware.text}"
    fits = groups // per_replica
    raise InputError(rule, requested, f"replicas: {fits}" if fits else _smaller(layout, groups))


def _smaller(layout: Layout, groups: int) -> str:
    """Return the largest size of a replica that does not fit, reduced to the value that the other sizes allow."""
    sizes = {key: int(getattr(layout, key)) for key in ("data_parallel", "context_parallel", "pipeline_parallel")}
    largest = max(sizes, key=lambda key: sizes[key])
    others = math.prod(sizes.values()) // sizes[largest]
    return f"{largest}: {max(groups // others, 1)}"


def transfer_refusal(model: ModelSpec, engine: EngineProfile, prefill: Layout, decode: Layout) -> str | None:
    """Return why a decode server cannot read the KV blocks of a prefill server, or None if it can.

    Args:
        model: The model that both serve.
        engine: The engine of both.
        prefill: The layout of the server that computes the blocks.
        decode: The layout of the server that reads them.
    """
    wrote, reads = prefill.tensor_parallel, decode.tensor_parallel
    pair, version = f"from TP{wrote} to TP{reads}", f"{engine.name} {engine.version}"
    if max(wrote, reads) % min(wrote, reads):
        return f"KV blocks move only if one TP is a multiple of the other, not {pair}"
    if reads < wrote and engine.kv_readers == "as wide":
        return f"{version} moves KV blocks only to decode replicas that are at least as wide, not {pair}"
    split = (group.mixer.kv_heads_to_split for group in model.groups if group.mixer is not None)
    heads = min((n for n in split if n is not None), default=wrote)
    if reads < wrote and wrote > heads and engine.kv_readers == "no copies":
        return f"{version} cannot read copies of {heads} KV heads with fewer ranks ({pair})"
    return None


def check_transfer(model: ModelSpec, engine: EngineProfile, prefill: Layout, decode: Layout) -> None:
    """Check that the decode replicas of a deployment can read what its prefill replicas write.

    Raises:
        InputError: They cannot; the message names the nearest size of the prefill replicas that they can read.
    """
    why = transfer_refusal(model, engine, prefill, decode)
    if why is None:
        return
    wrote = prefill.tensor_parallel
    choices = tensor_parallel_choices(model, max(wrote, decode.tensor_parallel), prefill.expert_parallel)
    fits = [n for n in choices if transfer_refusal(model, engine, Layout(n), decode) is None]
    near = min(fits, key=lambda n: (abs(n - wrote), n), default=decode.tensor_parallel)
    raise InputError(why, f"prefill: {{tensor_parallel: {wrote}}}", f"prefill: {{tensor_parallel: {near}}}")
