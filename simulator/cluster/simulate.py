"""Simulate pools of replicas under one set of requests.

Requests beyond max_model_len are truncated here if the engine truncates instead of rejecting them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, fields, replace
from typing import Any, Final

import numpy as np

from catalogs.deployments.resolution.encoder_pools import encoding_place
from catalogs.deployments.resolved import ResolvedDeployment
from catalogs.engines.profile import EngineProfile
from catalogs.errors import InputError, nearest_name
from catalogs.workloads.request_set import RequestSet
from simulator.cache.encoder_cache import EncoderLimits
from simulator.cluster.cluster import Cluster, RunOptions
from simulator.cluster.compiled import (
    CompiledDeployment,
    CompiledFleet,
    Pool,
    offload_rules,
    retention_rules,
    swap_rules,
)
from simulator.cluster.run import Run
from simulator.cluster.transfer_paths import transfer_links
from simulator.core.speculation import SpeculationRules
from simulator.core.step_timer import StepTimer
from simulator.memory.adapters import lora_rules
from simulator.memory.cache_groups import even_blocks
from simulator.schedulers.rules import EngineRules

#: The scheduling fields that EngineRules and EngineProfile share under the same names.
ENGINE_RULES: Final = tuple(
    {f.name for f in fields(EngineRules)} & {f.name for f in fields(EngineProfile)} - {"rank_dispatch"}
)


def simulate(
    served: CompiledDeployment | CompiledFleet, requests: RequestSet, options: RunOptions | None = None
) -> Run:
    """Serve `requests` with the replicas of a compiled deployment or fleet behind one router.

    Requests that can never run are rejected individually (Run.status).

    Raises:
        InputError: If a request has no tokens or the router is unknown.
    """
    fleet, options = served if isinstance(served, CompiledFleet) else CompiledFleet((served,)), options or RunOptions()
    if options.transfer is None:
        options = replace(options, transfer=transfer_links(fleet), hand_over=fleet.hand_over)
    names = list(dict.fromkeys(compiled.resolved.model.name for compiled in fleet.deployments))
    pools = [pool_of(compiled, names.index(compiled.resolved.model.name), requests) for compiled in fleet.deployments]
    return run_pools(pools, _with_model_indices(names, requests), options)


def _with_model_indices(served: Sequence[str], requests: RequestSet) -> RequestSet:
    """Return the requests with their models as indices into `served`.

    Raises:
        InputError: If a request wants a model that is not served.
    """
    if requests.requested_models is None and len(served) > 1:
        rule = f"{len(served)} models are served, so every request must name its model (a trace's column `model`)"
        weights = ", ".join(f"{name}: 1" for name in served)
        raise InputError(rule, hint=f"write models: {{{weights}}} in the workload")
    if requests.requested_models is None or not requests.models:
        return requests
    from catalogs.models.catalog import load_model

    found = []
    for text in requests.models:
        name = text if text in served else load_model(text).name
        if name not in served:
            raise InputError("the requests name a model that is not served", text, nearest_name(text, served, 0.0))
        found.append(served.index(name))
    return replace(requests, requested_models=np.array(found)[requests.requested_models], models=tuple(served))


def run_pools(pools: Sequence[Pool], requests: RequestSet, options: RunOptions | None = None) -> Run:
    """Serve `requests` with explicitly constructed pools."""
    if requests.n and min(int(requests.input_tokens.min()), int(requests.output_tokens.min())) < 1:
        raise InputError("every request needs at least one input and one output token")
    if requests.concurrency is not None and requests.concurrency < 1:
        raise InputError("closed-loop concurrency must be at least 1", requests.concurrency)
    if requests.graph is not None:
        requests.graph.checked()
    check_media(requests, [pool.rules for pool in pools])
    fitting = truncated(requests, [pool.rules for pool in pools])
    run = _run(pools, fitting, options or RunOptions())
    if fitting is requests:
        return run
    cut = (fitting.input_tokens < requests.input_tokens) | (fitting.output_tokens < requests.output_tokens)
    return replace(run, n_truncated=int(cut.sum()))


def _run(pools: Sequence[Pool], requests: RequestSet, options: RunOptions) -> Run:
    several = options.fast_path and sum(pool.replicas for pool in pools) > 1
    if several or options.processes > 1 or options.spread is not None:
        from simulator.cluster.parallel import independent_cluster, run_independent

        independent = independent_cluster(pools, requests, options)
        if independent is not None:
            return run_independent(independent)
    cluster = Cluster(pools, requests, options)
    cluster.run()
    run = Run.of(cluster)
    if options.check_invariants:
        from simulator.cluster.run_invariants import check_run

        check_run(run)
    return run


def run_rules(
    rules: EngineRules,
    timer: StepTimer,
    requests: RequestSet,
    n_replicas: int = 1,
    options: RunOptions | None = None,
) -> Run:
    """Serve `requests` with any step timer and without a compiled deployment, energy model or calibration."""
    return run_pools([Pool(rules, timer, n_replicas)], requests, options)


def pool_of(compiled: CompiledDeployment, model: int = 0, requests: RequestSet | None = None) -> Pool:
    """Return the pool of a compiled deployment, with its cache sized for sequences such as those of `requests`."""
    resolved, rules = compiled.resolved, engine_rules(compiled, 0 if requests is None else requests.seed)
    if requests is not None:
        blocks = even_blocks(resolved, compiled.memory, requests) * resolved.layout.data_parallel
        rules = replace(rules, kv_blocks=blocks)
    if not resolved.runs_language_model:
        rules = encoder_server_rules(rules, resolved)
    return Pool(rules, compiled.cost, resolved.replicas, resolved.role, model, compiled)


def engine_rules(compiled: CompiledDeployment, seed: int = 0) -> EngineRules:
    """Return the scheduling rules of one replica; `seed` is the seed of the draws during a run (accepted drafts).

    With attention data parallelism (data_parallel > 1), seats, token budget and blocks are the sums over the ranks, and
    each rank schedules with its share of them (simulator/schedulers/data_parallel.py). If rank_dispatch is "balanced",
    one scheduler represents the whole group: imbalance between ranks is not simulated, and a single prompt may use more
    than one rank's budget in a step.

    Replicas that only prefill or only decode have no receive interval: decode servers look for transferred requests
    before every step, and no published recipe sets an interval for either kind of server.

    Raises:
        InputError: If the KV cache has no blocks.
    """
    resolved, limits, engine = compiled.resolved, compiled.resolved.limits, compiled.resolved.engine
    ranks, stages = resolved.layout.data_parallel, resolved.batches_in_flight
    if compiled.memory.kv_blocks < 1:
        raise InputError("the KV cache has no blocks", compiled.memory.kv_blocks)
    shared: dict[str, Any] = {name: getattr(engine, name) for name in ENGINE_RULES} | asdict(limits)
    shared |= {
        "max_num_seqs": limits.max_num_seqs * ranks,
        "max_num_batched_tokens": limits.max_num_batched_tokens * ranks,
        "kv_blocks": compiled.memory.kv_blocks * ranks,
    }
    if resolved.role == "decode":
        shared["balance_steps"] = 0  # it is prompts that wait for each other
    if resolved.role != "both":
        shared["receiving"] = None
    lag = 1 if engine.async_scheduling and stages == 1 else 0
    return EngineRules(
        **shared,
        lag=lag,
        held_launch_s=compiled.cost.tables.launch_s if lag and engine.launches_before_outputs else 0.0,
        pipeline_stages=stages,
        stage_layers=resolved.stage_layers if stages > 1 else (),
        attention_ranks=ranks,
        api_servers=resolved.api_server_count,
        rank_dispatch="" if resolved.rank_dispatch in (None, "balanced") else resolved.rank_dispatch,
        queueing=resolved.queueing,
        lora=lora_rules(resolved, compiled.bundle),
        speculation=SpeculationRules.of(resolved.speculation, seed) if resolved.speculation else None,
        swap=swap_rules(resolved, compiled.memory) if resolved.swap_bytes else None,
        offload=offload_rules(resolved, compiled.memory),
        retention=retention_rules(resolved),
        encoder_limits=encoder_limits(resolved),
        encoder_tokens=resolved.model.encoder_tokens if resolved.model.is_encoder_decoder else 0,
        side_tokens=resolved.side_tokens,
    )


def encoder_limits(resolved: ResolvedDeployment) -> EncoderLimits | None:
    """Return the encoder budget and the encoder cache of a replica; None if it serves text only."""
    if not resolved.towers:
        return None
    rejects = resolved.engine.embedding_cache_bytes is None
    place = encoding_place(resolved)
    return EncoderLimits(resolved.encoder_budget, resolved.encoder_cache_tokens, rejects, place)


def encoder_server_rules(rules: EngineRules, resolved: ResolvedDeployment) -> EngineRules:
    """Return the rules of a replica of an encoder pool.

    If the engine's encoder server is a loop that takes a number of requests at a time (SGLang), this number is the only
    limit of a step, and no step is prepared while another one runs.
    """
    server = resolved.engine.encoder_server
    if server is None or server.most_requests is None:
        return rules
    return replace(
        rules,
        max_num_seqs=server.most_requests,
        max_num_batched_tokens=server.most_requests * rules.max_model_len,
        lag=0,
    )


def check_media(requests: RequestSet, rules: Sequence[EngineRules]) -> None:
    """Check that every pool serves the images, videos and audio of the requests.

    Raises:
        InputError: A pool serves text only, or no model has read the items.
    """
    if requests.media is None:
        return
    if not requests.media.is_read:
        raise InputError(
            "no model has read the images, videos and audio of these requests", hint="use workload.for_model(model)"
        )
    if any(each.encoder_limits is None for each in rules):
        rule = f"the requests have {requests.media.modalities[0]} items, and the deployment serves text only"
        raise InputError(rule, None, "multimodal: {}")


def truncated(requests: RequestSet, rules: Sequence[EngineRules]) -> RequestSet:
    """Return the requests with prompts cut to their last max_model_len - 1 tokens and outputs ending at max_model_len.

    SGLang's --allow-auto-truncate does so with prompts (validate_input_length), and every engine does so with outputs
    whose client sets no limit. Requests are cut only if all pools truncate, at the shortest max_model_len. A request
    with a cut prompt shares no prefix any more. An encoder that reads the prompt cuts it to its own positions.
    """
    if not requests.n or any(each.queueing.too_long != "truncate" for each in rules):
        return requests
    longest = min(each.max_model_len for each in rules)
    side = min(each.side_tokens or longest for each in rules)
    inputs = np.minimum(requests.input_tokens, max(1, min(side, longest - 1)))
    cut = inputs < requests.input_tokens
    if cut.any():
        requests = requests.with_known(np.where(cut, 0, requests.input_tokens + requests.output_tokens))
    outputs = np.maximum(np.minimum(requests.output_tokens, np.minimum(longest - inputs, side)), 1)
    return replace(requests, input_tokens=inputs, output_tokens=outputs)
