"""Simulate pools of replicas under one set of requests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, fields, replace
from itertools import product
from typing import Any, Final

from catalogs.engines import EngineProfile
from catalogs.errors import InputError
from catalogs.request_set import RequestSet
from simulator.cluster import Cluster, RunOptions
from simulator.host_cache import OffloadRules
from simulator.plant import Fleet, Plant
from simulator.pool import Pool
from simulator.replica import StepTimer
from simulator.rules import EngineRules
from simulator.run_record import Run
from simulator.transfer import Ports, RankPath

#: What an engine's profile says of scheduling, under the same names.
ENGINE_RULES: Final = tuple({f.name for f in fields(EngineRules)} & {f.name for f in fields(EngineProfile)})


def run(served: Plant | Fleet, requests: RequestSet, options: RunOptions | None = None) -> Run:
    """Serve `requests` with a plant's replicas, or with those of a fleet of plants, behind one router.

    Raises InputError for requests without tokens or an unknown router; requests that can never run are rejected one by
    one (Run.status).
    """
    fleet, options = served if isinstance(served, Fleet) else Fleet((served,)), options or RunOptions()
    if options.transfer is None:
        options = replace(options, transfer=_ports(fleet))
    models = {model: number for number, model in enumerate(dict.fromkeys(p.resolved.model.name for p in fleet.plants))}
    return run_pools([pool_of(plant, models[plant.resolved.model.name]) for plant in fleet.plants], requests, options)


def run_pools(pools: Sequence[Pool], requests: RequestSet, options: RunOptions | None = None) -> Run:
    """The same with pools made by hand."""
    cluster = Cluster(pools, requests, options or RunOptions())
    cluster.run()
    return Run.of(cluster)


def run_rules(
    rules: EngineRules,
    timer: StepTimer,
    requests: RequestSet,
    n_replicas: int = 1,
    options: RunOptions | None = None,
) -> Run:
    """The same with any step timer and no plant: what tests and sketches use. No energy, no calibration."""
    return run_pools([Pool(rules, timer, n_replicas)], requests, options)


def pool_of(plant: Plant, model: int = 0) -> Pool:
    """A plant's replicas, as many as its deployment says."""
    resolved = plant.resolved
    return Pool(engine_rules(plant), plant.cost, resolved.replicas, resolved.role, model, plant)


def engine_rules(plant: Plant) -> EngineRules:
    """The rules of one replica.

    With attention data parallelism (data_parallel > 1) one scheduler stands for the whole group: its seats, token
    budget and blocks are the ranks' summed, so imbalance between ranks is not simulated (StepCost prices the shapes per
    rank). A single prompt may then take more than one rank's budget in a step.
    """
    resolved, limits, engine = plant.resolved, plant.resolved.limits, plant.resolved.engine
    ranks, stages = resolved.layout.data_parallel, resolved.layout.pipeline_parallel
    unit = resolved.hardware.accelerator
    if plant.memory.kv_blocks < 1:
        raise InputError("the KV cache has no blocks", plant.memory.kv_blocks)
    told: dict[str, Any] = {name: getattr(engine, name) for name in ENGINE_RULES} | asdict(limits)
    told |= {
        "max_num_seqs": limits.max_num_seqs * ranks,
        "max_num_batched_tokens": limits.max_num_batched_tokens * ranks,
        "kv_blocks": plant.memory.kv_blocks * ranks,
    }
    return EngineRules(
        **told,
        lag=1 if engine.async_scheduling and stages == 1 else 0,
        pipeline_stages=stages,
        attention_ranks=ranks,
        offload=OffloadRules.of(resolved.offload, plant.memory) if resolved.offload else None,
        receiving=engine.limits_rule(unit.memory_bytes, unit.name, unit.kind).receiving,
    )


def _ports(fleet: Fleet) -> Ports | None:
    """What carries blocks from prefill pools to decode pools; None where there are none."""
    numbered = list(enumerate(fleet.plants))
    paths = {
        (i, j): RankPath.between(source, target, fleet.transfer_bytes_per_s)
        for (i, source), (j, target) in product(numbered, numbered)
        if (source.resolved.role, target.resolved.role) == ("prefill", "decode")
    }
    return Ports(paths) if paths else None
