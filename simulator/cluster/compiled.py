"""Everything a run of one deployment needs, built once: names looked up, memory sized, steps priced.

Replicas that are alike: the rules they run by, what their steps cost, how many there are and what they do.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from calibration.bundles import engine_calibration
from calibration.bundles.bundle import Bundle, load_bundle
from catalogs.deployments.layout import Role
from catalogs.deployments.resolve import resolve, resolve_pools
from catalogs.deployments.resolved import OffloadTiers, ResolvedDeployment
from catalogs.deployments.schema import Deployment
from catalogs.engines.profile import HostTimes, KvTransfer
from catalogs.errors import InputError
from catalogs.units import GIGA
from simulator.cache.offload import OffloadRules, SwapRules
from simulator.cluster.options import AS_COMPUTED, DisaggregationPolicy
from simulator.core.batch import BatchShape
from simulator.core.step_timer import StepTimer
from simulator.costs.compile import compile_step_cost
from simulator.costs.step_cost import StepCost
from simulator.layers.shard import Shard
from simulator.layers.step import step_calls
from simulator.memory.plan import MemoryPlan, size_memory
from simulator.schedulers.rules import EngineRules

#: A cache shorter than this serves nobody: the deployment does not fit.
SHORTEST_SEQUENCE_TOKENS: Final = 512

HOST_NOTICE: Final = "host times are the engine file's, not measured here: `calibrate verify` measures them"

#: One of everything, to ask which operators nobody measured.
SAMPLE_STEP: Final = BatchShape(64, 2048.0, 1, 4, 1024, 256, 5)


@dataclass(frozen=True, slots=True)
class CompiledDeployment:
    """One deployment, ready to run. Its kv_blocks are filled; bundle and cost may be shared between plants."""

    resolved: ResolvedDeployment
    memory: MemoryPlan
    cost: StepCost
    bundle: Bundle

    @property
    def notices(self) -> tuple[str, ...]:
        """What the reader of any result must know, one sentence each."""
        operators = [line.op for line in step_calls(Shard.of(self.resolved), SAMPLE_STEP)]
        age = self.bundle.version_notice(self.resolved.engine.name, self.resolved.engine.version)
        own = [*self.resolved.notices, *self.bundle.notices, *self.bundle.notices_for(operators)]
        if self.bundle.provenance.get("engine") == "torch" and not self.resolved.engine.host.measured:
            own.append(HOST_NOTICE)
        return (*own, age) if age else tuple(own)


def compile_deployment(
    deployment: Deployment, bundle_path: Path | None = None, measured_host: bool = True
) -> CompiledDeployment:
    """Resolves, sizes and prices a deployment; with `measured_host`, on the host times the user measured, if any.

    Raises InputError for bad names and sizes, and where the model does not fit, with the nearest choice that does. A
    max_model_len left open is lowered to what the cache holds, with a notice.
    """
    return _build(resolve(deployment), deployment, bundle_path, measured_host)


def _build(
    resolved: ResolvedDeployment, written: Deployment, bundle_path: Path | None, measured_host: bool
) -> CompiledDeployment:
    resolved, memory = _fit(resolved, written, measured_host)
    bundle = load_bundle(resolved.hardware.accelerator, bundle_path)
    return CompiledDeployment(resolved, memory, compile_step_cost(resolved, bundle), bundle)


@dataclass(frozen=True, slots=True)
class CompiledFleet:
    """Several plants behind one router. transfer_bytes_per_s: of each accelerator, for KV on its way from prefill to
    decode; None: the rate of the link between them. transfer_queues: EngineProfile.transfer_queues."""

    plants: tuple[CompiledDeployment, ...]
    transfer_bytes_per_s: float | None = None
    hand_over: DisaggregationPolicy = AS_COMPUTED
    transfer: KvTransfer = "at_end"
    transfer_queues: int | None = None

    @classmethod
    def apart(cls, *plants: CompiledDeployment) -> CompiledFleet:
        """Plants that each stand on hardware of their own, whatever it is called."""
        return cls(tuple(replace(p, resolved=replace(p.resolved, site=str(i))) for i, p in enumerate(plants)))


def compile_fleet(deployment: Deployment, bundle_path: Path | None = None, measured_host: bool = True) -> CompiledFleet:
    """The plant of every pool of a deployment. Raises what compile_deployment does."""
    apart = deployment.disaggregation
    plants = [
        _build(resolved, part.written, bundle_path, measured_host)
        for resolved, part in zip(resolve_pools(deployment), deployment.slices, strict=True)
    ]
    engine = plants[-1].resolved.engine  # streams to the client
    if apart is None:
        return CompiledFleet(
            tuple(plants), None, DisaggregationPolicy(engine.first_token), engine.kv_transfer, engine.transfer_queues
        )
    hand_over = DisaggregationPolicy(engine.first_token, apart.max_local_prefill_tokens or 0, apart.max_prefill_queue)
    asked, moment = apart.transfer_gb_per_s, apart.transfer or engine.kv_transfer
    return CompiledFleet(
        tuple(plants), None if asked is None else asked * GIGA, hand_over, moment, engine.transfer_queues
    )


def swap_rules(resolved: ResolvedDeployment, memory: MemoryPlan) -> SwapRules:
    """Return the swap space of one replica: every accelerator moves its part of a block at once, over its own link to
    the host."""
    part_bytes = memory.kv_bytes_per_token * memory.block_size
    return SwapRules(int(resolved.swap_bytes / part_bytes), part_bytes / resolved.hardware.node.host_bytes_per_s)


def offload_rules(tiers: OffloadTiers, memory: MemoryPlan) -> OffloadRules:
    """Return the host and disk tiers of one replica: a block lies on every accelerator, and all copy their part at
    once."""
    part_bytes = memory.kv_bytes_per_token * memory.block_size
    block_bytes = part_bytes * memory.accelerators
    return OffloadRules(
        int(tiers.host_bytes / block_bytes),
        part_bytes / tiers.host_bytes_per_s,
        int(tiers.disk_bytes / block_bytes),
        block_bytes / tiers.disk_bytes_per_s,
    )


def with_host(plant: CompiledDeployment, host: HostTimes) -> CompiledDeployment:
    """The same plant with other host times."""
    resolved = replace(plant.resolved, engine=replace(plant.resolved.engine, host=host))
    return replace(plant, resolved=resolved, cost=compile_step_cost(resolved, plant.bundle))


def fit(
    deployment: Deployment, measured_host: bool = True, resolved: ResolvedDeployment | None = None
) -> tuple[ResolvedDeployment, MemoryPlan]:
    """A deployment that fits, its kv_blocks filled, and its memory plan; InputError of one that does not fit.

    resolved: the same deployment with its names looked up, where the caller has done so already.
    """
    return _fit(resolved or resolve(deployment), deployment, measured_host)


def _fit(
    resolved: ResolvedDeployment, deployment: Deployment, measured_host: bool
) -> tuple[ResolvedDeployment, MemoryPlan]:
    resolved = _with_measured_host(resolved) if measured_host else resolved
    memory = size_memory(resolved)
    if memory.fits:
        return _with_limits(resolved, kv_blocks=memory.kv_blocks), memory
    if deployment.max_model_len is None and memory.longest_sequence_tokens >= SHORTEST_SEQUENCE_TOKENS:
        longest = memory.longest_sequence_tokens
        notice = f"{memory.why}; simulated with max_model_len {longest}, without which the engine would not start"
        resolved = _with_limits(replace(resolved, notices=(*resolved.notices, notice)), max_model_len=longest)
        memory = size_memory(resolved)
        return _with_limits(resolved, kv_blocks=memory.kv_blocks), memory
    raise InputError(
        f"{resolved.model.name} does not fit on {resolved.hardware.text}: {memory.why}",
        None,
        _nearest(resolved, memory),
    )


def _with_limits(resolved: ResolvedDeployment, **changes: Any) -> ResolvedDeployment:
    return replace(resolved, limits=replace(resolved.limits, **changes))


def _with_measured_host(resolved: ResolvedDeployment) -> ResolvedDeployment:
    """Host times that a probe of this engine measured on this hardware, where the user has them."""
    found = engine_calibration.find(resolved.hardware.accelerator.name, resolved.engine.name)
    if found is None:
        return resolved
    if not resolved.engine.graph_capture_sizes and not found.suits(resolved.model.n_layers):
        depths = f"{found.n_layers} layers, this model has {resolved.model.n_layers}"
        notice = f"host times measured with {found.model} are not used: it has {depths}"
        return replace(resolved, notices=(*resolved.notices, notice))
    engine = replace(resolved.engine, host=found.host_times(resolved.engine.host))
    return replace(resolved, engine=engine, notices=(*resolved.notices, found.notice))


def _nearest(resolved: ResolvedDeployment, memory: MemoryPlan) -> str:
    """The smallest change that makes the deployment fit: a shorter length, narrower weights, more accelerators."""
    if memory.longest_sequence_tokens >= SHORTEST_SEQUENCE_TOKENS:
        return f"max_model_len {memory.longest_sequence_tokens}"
    unit = resolved.hardware.accelerator
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
    """Part of a run. `replicas` is how many there are when it begins; `model` which of the run's models they serve
    (RequestSet.wanted_models). plant: None where a bare timer runs, without energy and calibration."""

    rules: EngineRules
    timer: StepTimer
    replicas: int = 1
    role: Role = "both"
    model: int = 0
    plant: CompiledDeployment | None = None
