"""Compiled deployments: names resolved, memory sized and step costs prepared, once for all runs.

A Pool describes identical replicas: their scheduling rules, step costs, number and role.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path
from typing import Any, Final

from calibration.bundles import engine_calibration
from calibration.bundles.bundle import Bundle, load_bundle
from calibration.bundles.engine_calibration import EngineCalibration
from catalogs.deployments.layout import Role
from catalogs.deployments.resolve import resolve, resolve_pools
from catalogs.deployments.resolved import ResolvedDeployment
from catalogs.deployments.schema import Deployment, Disaggregation, EncoderPool
from catalogs.engines.profile import EngineProfile, HostTimes, TransferMoment
from catalogs.errors import InputError
from catalogs.hardware.host_copies import copy_rates
from catalogs.hardware.specs import Accelerator
from catalogs.units import GIGA
from catalogs.workloads.workload import Workload
from simulator.cache.offload import OffloadRules, OffloadTierPair, SwapRules
from simulator.cache.retention import RetentionRules
from simulator.cluster.disaggregation import DisaggregationPolicy
from simulator.core.batch import BatchShape
from simulator.core.step_timer import StepTimer
from simulator.costs.compile import compile_step_cost
from simulator.costs.generate_host import with_generate_host
from simulator.costs.step_cost import StepCost
from simulator.layers.shard import Shard
from simulator.layers.step import step_calls
from simulator.memory.plan import MemoryPlan, size_memory
from simulator.schedulers.rules import EngineRules

#: A deployment whose KV cache holds fewer tokens per sequence than this does not fit. A judgement: such a cache is of
#: no use.
SHORTEST_SEQUENCE_TOKENS: Final = 512

HOST_NOTICE: Final = "host times are the engine file's, not measured here: `calibrate verify` measures them"

#: A step that contains every kind of operator, used to find operators without measurements.
SAMPLE_STEP: Final = BatchShape(64, 2048.0, 1, 4, 1024, 256, 5)


class DeploymentDoesNotFit(InputError):
    """A valid deployment whose weights and caches are larger than the memory of its accelerators."""


@dataclass(frozen=True, slots=True)
class CompiledDeployment:
    """One deployment, ready to run.

    The limits contain kv_blocks. The bundle and the cost may be shared between compiled deployments.
    """

    resolved: ResolvedDeployment
    memory: MemoryPlan
    cost: StepCost
    bundle: Bundle

    @property
    def notices(self) -> tuple[str, ...]:
        """Return the notices that apply to every result, one sentence each."""
        serves = self.resolved.runs_language_model
        operators = [line.op for line in step_calls(Shard.of(self.resolved), SAMPLE_STEP)] if serves else []
        age = self.bundle.version_notice(self.resolved.engine.name, self.resolved.engine.version)
        own = [*self.resolved.notices, *self.bundle.notices, *self.bundle.notices_for(operators)]
        if self.bundle.provenance.get("engine") == "torch" and not self.resolved.engine.host.measured:
            own.append(HOST_NOTICE)
        return (*own, age) if age else tuple(own)


def compile_deployment(
    deployment: Deployment,
    bundle_path: Path | None = None,
    measured_host: bool = True,
    resolved: ResolvedDeployment | None = None,
) -> CompiledDeployment:
    """Resolve a deployment, size its memory and prepare its step costs.

    A max_model_len that the deployment leaves open is lowered to what the cache holds, with a notice.

    Args:
        deployment: The deployment as written.
        bundle_path: Path of a calibration bundle; None selects the bundle of the accelerator.
        measured_host: Whether to use host times that the user measured, if there are any.
        resolved: The same deployment with its names resolved, if the caller has it already.

    Raises:
        InputError: If a name or size is invalid, or if the model does not fit; the error names the nearest
            configuration that fits.
    """
    resolved, memory = fit(deployment, measured_host, resolved)
    bundle = load_bundle(resolved.hardware.accelerator, bundle_path, resolved.engine)
    resolved = with_generate_host(resolved, bundle) if measured_host else resolved
    return CompiledDeployment(resolved, memory, compile_step_cost(resolved, bundle), bundle)


@dataclass(frozen=True, slots=True)
class CompiledFleet:
    """Several compiled deployments behind one router.

    Attributes:
        deployments: The compiled deployment of each pool.
        transfer_bytes_per_s: Rate per accelerator of KV transfers from prefill to decode; None for the rate of the link
            between them.
        hand_over: The policy for transfers between prefill and decode pools.
        transfer: When KV blocks are transferred (EngineProfile.kv_transfer).
        transfer_queues: Number of transfer queues per source (EngineProfile.transfer_queues).
        embedding_bytes_per_s: Rate of transfers of embeddings from an encoder pool; None for the rate of the link
            between the replicas.
    """

    deployments: tuple[CompiledDeployment, ...]
    transfer_bytes_per_s: float | None = None
    hand_over: DisaggregationPolicy = field(default_factory=DisaggregationPolicy)
    transfer: TransferMoment = "at_end"
    transfer_queues: int | None = None
    embedding_bytes_per_s: float | None = None

    def reads(self, workload: Workload) -> Workload:
        """Return a workload as the model of the fleet reads it: images, videos and audio are tokens of the prompts.

        Raises:
            InputError: The workload sends media that the model does not read, or there are several models.
        """
        models = {compiled.resolved.model.name: compiled.resolved.model for compiled in self.deployments}
        if workload.sends_media and len(models) > 1:
            raise InputError(
                "images, videos and audio are simulated with one model at a time", ", ".join(models), next(iter(models))
            )
        return workload.for_model(next(iter(models.values())))


def compile_fleet(deployment: Deployment, bundle_path: Path | None = None, measured_host: bool = True) -> CompiledFleet:
    """Compile every pool of a deployment.

    Raises:
        InputError: For the same reasons as compile_deployment.
    """
    compiled = tuple(
        compile_deployment(part.written, bundle_path, measured_host, resolved)
        for resolved, part in zip(resolve_pools(deployment), deployment.slices, strict=True)
    )
    return fleet_of(compiled, deployment.disaggregation, deployment.encoder_pool)


def fleet_of(
    compiled: tuple[CompiledDeployment, ...], split: Disaggregation | None, encoders: EncoderPool | None = None
) -> CompiledFleet:
    """Return the pools behind one router.

    Args:
        compiled: The compiled deployment of each pool.
        split: The `disaggregation` block of the deployment, if it has one.
        encoders: Its `encoder_pool` block, if it has one.
    """
    engine = compiled[-1].resolved.engine  # the engine that streams to the client
    hand_over = DisaggregationPolicy(engine.first_token)
    rate = None if encoders is None else encoders.transfer_gb_per_s
    embeddings = None if rate is None else rate * GIGA
    if split is None:
        return CompiledFleet(compiled, None, hand_over, engine.kv_transfer, engine.transfer_queues, embeddings)
    most_tokens, rate = split.max_local_prefill_tokens or 0, split.transfer_gb_per_s
    hand_over = replace(hand_over, max_local_tokens=most_tokens, max_queue=split.max_prefill_queue)
    bytes_per_s = None if rate is None else rate * GIGA
    moment = split.transfer or engine.kv_transfer
    return CompiledFleet(compiled, bytes_per_s, hand_over, moment, engine.transfer_queues, embeddings)


def swap_rules(resolved: ResolvedDeployment, memory: MemoryPlan) -> SwapRules:
    """Return the swap space of one replica.

    All accelerators move their parts of a block at the same time, each over its own link to the host. A block that goes
    to the host comes back, so each move takes the mean of both directions.
    """
    part_bytes = memory.kv_bytes_per_token * memory.block_size
    to_host, to_device = copy_rates(resolved.hardware.node, None)
    return SwapRules(int(resolved.swap_bytes / part_bytes), (part_bytes / to_host + part_bytes / to_device) / 2)


def offload_rules(resolved: ResolvedDeployment, memory: MemoryPlan) -> OffloadRules | None:
    """Return the host and disk tiers of one replica; None if the deployment has none.

    A block is spread over all accelerators, and all of them copy their parts at the same time. The blocks of a pool
    that replicas share are spread evenly over the nodes, and pass the network unless they are on the replica's own.
    Copies over the network and over the link to the host overlap, so that the slower of the two determines the time.
    """
    tiers = resolved.offload
    if tiers is None:
        return None
    part_bytes = memory.kv_bytes_per_token * memory.block_size
    block_bytes = part_bytes * memory.accelerators
    elsewhere = 1.0 - 1.0 / resolved.hardware.n_nodes
    network_s = part_bytes / tiers.pool_bytes_per_s * elsewhere if tiers.shared else 0.0
    return OffloadRules(
        int(tiers.host_bytes / block_bytes),
        max(part_bytes / tiers.host_bytes_per_s, network_s),
        int(tiers.disk_bytes / block_bytes),
        max(block_bytes / tiers.disk_bytes_per_s, network_s),
        None if tiers.to_host_bytes_per_s is None else max(part_bytes / tiers.to_host_bytes_per_s, network_s),
        tiers.shared,
        tiers.expire_s,
    )


def retention_rules(resolved: ResolvedDeployment) -> RetentionRules | None:
    """Return which blocks of a replica are evicted last; None if the deployment has no such blocks."""
    wanted = resolved.kv_retention
    if wanted is None:
        return None
    tokens, duration_s = wanted.prompt_tokens, wanted.duration_s
    return RetentionRules(inf if tokens is None else tokens, inf if duration_s is None else duration_s)


def with_host(compiled: CompiledDeployment, host: HostTimes) -> CompiledDeployment:
    """Return the same compiled deployment with other host times."""
    resolved = replace(compiled.resolved, engine=replace(compiled.resolved.engine, host=host))
    return replace(compiled, resolved=resolved, cost=compile_step_cost(resolved, compiled.bundle))


def fit(
    deployment: Deployment, measured_host: bool = True, resolved: ResolvedDeployment | None = None
) -> tuple[ResolvedDeployment, MemoryPlan]:
    """Return the resolved deployment with kv_blocks filled in, and its memory plan.

    Args:
        deployment: The deployment as written.
        measured_host: Whether to use host times that the user measured, if there are any.
        resolved: The same deployment with its names resolved, if the caller has it already.

    Raises:
        DeploymentDoesNotFit: The deployment does not fit; the error names the nearest that does.
    """
    resolved = resolved or resolve(deployment)
    if measured_host:
        found = measured_host_of(resolved.hardware.accelerator, resolved.engine)
        resolved = with_measured_host(resolved, found)
    return fit_resolved(resolved, size_memory(resolved), deployment.max_model_len is not None)


def fit_resolved(
    resolved: ResolvedDeployment, memory: MemoryPlan, states_length: bool
) -> tuple[ResolvedDeployment, MemoryPlan]:
    """Return a resolved deployment with kv_blocks filled in, and its memory plan.

    Args:
        resolved: The deployment.
        memory: Its memory plan.
        states_length: Whether the deployment states its max_model_len, which then is not shortened.

    Raises:
        DeploymentDoesNotFit: The deployment does not fit; the error names the nearest that does.
    """
    longest = memory.longest_sequence_tokens
    if not memory.fits:
        if states_length or longest < SHORTEST_SEQUENCE_TOKENS:
            rule = f"{resolved.model.name} does not fit on {resolved.hardware.text}: {memory.why}"
            raise DeploymentDoesNotFit(rule, None, _nearest(resolved, memory))
        notice = f"{memory.why}; simulated with max_model_len {longest}, without which the engine would not start"
        resolved = _with_limits(replace(resolved, notices=(*resolved.notices, notice)), max_model_len=longest)
        memory = size_memory(resolved)
    if not resolved.runs_language_model:
        return resolved, memory
    _check_given_blocks(resolved, memory)
    return _with_limits(resolved, kv_blocks=memory.kv_blocks), memory


def _check_given_blocks(resolved: ResolvedDeployment, memory: MemoryPlan) -> None:
    """Refuse given KV blocks that no accelerator has the memory for beside the weights, whatever the engine reserves.

    Raises:
        DeploymentDoesNotFit: The error names the most blocks that fit.
    """
    given = resolved.limits.kv_blocks
    left_bytes = resolved.hardware.accelerator.memory_bytes - memory.weights_bytes
    if given and memory.kv_bytes > left_bytes:
        rule = f"kv_blocks must fit in the memory of {resolved.hardware.text} beside the weights"
        raise DeploymentDoesNotFit(rule, given, str(int(given * left_bytes / memory.kv_bytes)))


def _with_limits(resolved: ResolvedDeployment, **changes: Any) -> ResolvedDeployment:
    return replace(resolved, limits=replace(resolved.limits, **changes))


def measured_host_of(accelerator: Accelerator, engine: EngineProfile) -> EngineCalibration | None:
    """Return the host times that a probe of an engine measured on the user's hardware, or None.

    Raises:
        InputError: Their file is damaged.
    """
    return engine_calibration.find(accelerator.name, engine.name)


def with_measured_host(resolved: ResolvedDeployment, found: EngineCalibration | None) -> ResolvedDeployment:
    """Return the deployment with measured host times in place of its own, if there are any that suit it."""
    if found is None:
        return resolved
    if not resolved.engine.graph_capture_sizes and not found.suits(resolved.model.n_layers):
        depths = f"{found.n_layers} layers, this model has {resolved.model.n_layers}"
        notice = f"host times measured with {found.model} are not used: it has {depths}"
        return replace(resolved, notices=(*resolved.notices, notice))
    engine = replace(resolved.engine, host=found.host_times(resolved.engine.host))
    return replace(resolved, engine=engine, notices=(*resolved.notices, found.notice))


#: Limits that hardly any engine exceeds by default, for the advice to those who set far more.
_USUAL_LIMITS: Final = {"max_num_seqs": 2048, "max_num_batched_tokens": 16384}

#: Largest share of the memory of an accelerator that the advice names.
_LARGEST_SHARE: Final = 0.95


def _nearest(resolved: ResolvedDeployment, memory: MemoryPlan) -> str:
    """Return the smallest change that makes the deployment fit.

    Candidates are, in this order, a shorter max_model_len, usual batches, a larger share of the memory, narrower
    weights and more accelerators.
    """
    if memory.longest_sequence_tokens >= SHORTEST_SEQUENCE_TOKENS:
        return f"max_model_len {memory.longest_sequence_tokens}"
    limits, unit = resolved.limits, resolved.hardware.accelerator
    smaller = {key: size for key, size in _USUAL_LIMITS.items() if size < getattr(limits, key)}
    if smaller and _holds(_with_limits(resolved, **smaller)):
        return ", ".join(f"{key} {size}" for key, size in smaller.items())
    more_share = replace(resolved, gpu_memory_utilization=_LARGEST_SHARE)
    if resolved.gpu_memory_utilization < _LARGEST_SHARE and _holds(more_share):
        return f"gpu_memory_utilization {_LARGEST_SHARE:g}"
    for dtype in ("fp8", "int4"):
        narrower = replace(resolved, weight_dtype=dtype)
        if dtype != resolved.weight_dtype and (dtype in unit.peak_flops or dtype == "int4") and _holds(narrower):
            return f"weight_dtype {dtype}"
    for more in (2, 4, 8, 16):
        wider = replace(resolved.layout, tensor_parallel=resolved.layout.tensor_parallel * more)
        if _holds(replace(resolved, layout=wider)):
            return f"tensor_parallel {wider.tensor_parallel} ({wider.accelerators} accelerators)"
    return "a smaller model"


def _holds(resolved: ResolvedDeployment) -> bool:
    return size_memory(resolved).longest_sequence_tokens >= min(SHORTEST_SEQUENCE_TOKENS, resolved.limits.max_model_len)


@dataclass(frozen=True, slots=True)
class Pool:
    """Identical replicas in a run.

    Attributes:
        rules: The scheduling rules of each replica.
        timer: The cost model of their steps.
        replicas: Number of replicas when the run begins.
        role: Whether they compute prompts, decode, or both.
        model: Index of the model that they serve among the models of the run (RequestSet.requested_models).
        compiled: The compiled deployment; None for a bare timer, which has no energy model and no calibration.
    """

    rules: EngineRules
    timer: StepTimer
    replicas: int = 1
    role: Role = "both"
    model: int = 0
    compiled: CompiledDeployment | None = None


def kv_pools(pools: Sequence[Pool]) -> dict[int, OffloadTierPair]:
    """Return the KV pool of each model whose replicas share one.

    Raises:
        InputError: They share it, and their blocks are not of one size or do not expire at one age.
    """
    found: dict[int, OffloadTierPair] = {}
    for model in {pool.model for pool in pools}:
        sharing = [pool for pool in pools if pool.model == model and pool.rules.offload and pool.rules.offload.shared]
        sizes = {pool.rules.block_size for pool in sharing}
        if len(sizes) > 1:
            raise InputError("replicas that share a KV pool need the same block_size", max(sizes), str(min(sizes)))
        ages_s = list(dict.fromkeys(pool.rules.offload.expire_s for pool in sharing if pool.rules.offload))
        if len(ages_s) > 1:
            rule = "replicas that share a KV pool need the same kv_offload.expire_s"
            raise InputError(rule, str(ages_s[1]), str(ages_s[0]))
        tiers = OffloadTierPair.pooled((pool.rules.offload, pool.replicas) for pool in sharing if pool.rules.offload)
        if tiers is not None:
            found[model] = tiers
    return found
