"""The bottleneck of a plan at its planned rate, and the utilisation of every resource.

An even part of the plan is simulated again under its share of the load. The simulator's analysis names the bottleneck
of each kind of replica.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from catalogs.deployments.layout import Role
from catalogs.ui.words import human_s
from planner.answer.plan_schema import Memory, Plan
from planner.evaluation.facts import memory_block
from planner.problem.latency_metrics import LATENCY_METRICS
from planner.studies.rerun import Rerun
from simulator.analysis.bottleneck import (
    DEVICE_BOUNDS,
    HOST,
    IDLE,
    KV_CAPACITY,
    QUEUE,
    SAMPLES,
    PoolBottleneck,
    pool_bottlenecks,
)
from simulator.analysis.operators import BOUND_WORDS, FIXED, together
from simulator.cluster.cluster import RunOptions
from simulator.cluster.compiled import CompiledDeployment, CompiledFleet
from simulator.cluster.run import Run
from simulator.cluster.simulate import simulate
from simulator.engine.event_log import EventLog

#: Names of the resources that bound replica time.
WORDS: Final = {DEVICE_BOUNDS[bound]: words for bound, words in BOUND_WORDS.items()} | {
    HOST: "host (scheduling, input, output)",
    IDLE: "idle",
}

#: Maximum number of operators named for a bound, and minimum share of the replica's time of each.
_NAMED, _LEAST_SHARE = 4, 0.005


@dataclass(frozen=True, slots=True)
class ResourceUse:
    """The utilisation of one resource.

    `share` is a fraction (0 to 1) of the quantity in `of`. `binds` is True for the bottleneck.
    """

    resource: str
    share: float
    of: str
    words: str
    binds: bool


@dataclass(frozen=True, slots=True)
class PoolUse:
    """One kind of replica of a plan.

    `kv_peak` is the peak utilisation of its KV cache, 0 to 1; None stands for the figure in the plan.
    """

    role: Role
    bottleneck: PoolBottleneck
    memory: Memory | None
    seats: int
    kv_peak: float | None = None

    def name_of(self, resource: str) -> str:
        """Return the name of a resource, with the kind of replica if there are several."""
        return resource if self.role == "both" else f"{self.role}: {resource}"

    def is_part_of(self, metric: str) -> bool:
        """Return True if the time of these replicas is part of a latency metric.

        Prefill replicas determine the time to first token, decode replicas the time between tokens.
        """
        return LATENCY_METRICS[metric].involves(self.role)


def pool_uses(rerun: Rerun, plan: Plan, index: int = 0, samples: int = SAMPLES) -> list[PoolUse]:
    """Return the pools of a plan, simulated again: one pool, or a prefill and a decode pool."""
    candidate, world = rerun.candidates[index], rerun.world_of(index)
    share = world.deployments.even_parts(candidate)
    served = world.deployments.part(candidate, share)
    plants = served.plants if isinstance(served, CompiledFleet) else (served,)
    n = 2 * rerun.bench.sizes.full * max(plant.resolved.replicas for plant in plants) * share
    requests = rerun.workload.materialise(rerun.request.seed, n, plan.requests_per_s).every(share)
    done = simulate(served, requests, RunOptions(journal=EventLog()))
    found = pool_bottlenecks(done, samples)
    if len(plants) == 1:
        return [PoolUse("both", found[0], plan.memory, _seats(plants[0]))]
    return [_pool_use(done, plant, i, found[i]) for i, plant in enumerate(plants)]


def _pool_use(done: Run, plant: CompiledDeployment, pool: int, found: PoolBottleneck) -> PoolUse:
    memory = Memory.model_validate(memory_block(plant.memory, plant.resolved))
    peak = max(replica.kv_peak_fraction for replica in done.replicas if replica.pool == pool)
    return PoolUse(plant.resolved.role, found, memory, _seats(plant), peak)


def _seats(plant: CompiledDeployment) -> int:
    return plant.resolved.limits.max_num_seqs * plant.resolved.layout.data_parallel


def resource_uses(plan: Plan, pools: Sequence[PoolUse]) -> list[ResourceUse]:
    """Return the utilisation of every resource, for each kind of replica and then for the queue.

    Per kind come the shares of time, the largest first, then KV cache and running sequences. Only replicas whose time
    is part of the tightest objective can hold the bottleneck.
    """
    return [*(use for pool in pools for use in _pool_resources(plan, pool)), *_queue(plan)]


def _pool_resources(plan: Plan, pool: PoolUse) -> Iterator[ResourceUse]:
    waited = not plan.slo or pool.is_part_of(plan.tightest.metric)
    for use in (*_time(pool), *_kv(plan, pool), *_sequence_seats(pool)):
        yield replace(use, resource=pool.name_of(use.resource), binds=use.binds and waited)


def _time(pool: PoolUse) -> list[ResourceUse]:
    """Return the shares of the replica time by bound."""
    shares, bound_by = pool.bottleneck.shares.steps, pool.bottleneck.bound_by
    named = (name for name in shares if shares[name] or name in (HOST, IDLE))
    order = sorted(named, key=lambda name: -shares[name])
    return [
        ResourceUse(WORDS[name], shares[name], "replica time", _leading(pool, name), name == bound_by) for name in order
    ]


def _leading(pool: PoolUse, bound: str) -> str:
    """Return the names of the operators with the largest shares of a bound's time."""
    rows, total_s = together(pool.bottleneck.operators_of(bound)), pool.bottleneck.replica_s
    shown = [f"{r.name} {r.seconds / total_s:.0%}" for r in rows[:_NAMED] if r.seconds > _LEAST_SHARE * total_s]
    if bound == DEVICE_BOUNDS[FIXED] and rows:
        return "short kernels far from any roofline: " + ", ".join(shown or [rows[0].name])
    return ", ".join(shown)


def _kv(plan: Plan, pool: PoolUse) -> list[ResourceUse]:
    peak = plan.metric("kv_peak_fraction") if pool.kv_peak is None else pool.kv_peak
    if peak is None:
        return []
    preempted = 0.0 if pool.role == "prefill" else plan.metric("n_preemptions") or 0.0
    words = f"{preempted:,.0f} preemptions" if preempted else "no preemptions"
    return [ResourceUse("KV cache", peak, "KV blocks at their peak", words, pool.bottleneck.bound_by == KV_CAPACITY)]


def _sequence_seats(pool: PoolUse) -> list[ResourceUse]:
    """Return the utilisation of `max_num_seqs`; none for prefill replicas."""
    if pool.role == "prefill":
        return []
    steps, seats = pool.bottleneck.samples, pool.seats
    words = (
        f"{steps.most_decodes:,} of {seats:,} concurrent sequences at the peak, {steps.mean_decodes:,.0f} on average"
    )
    binds = pool.bottleneck.bound_by == QUEUE
    return [ResourceUse("running sequences", steps.most_decodes / seats, "max_num_seqs", words, binds)]


def _queue(plan: Plan) -> list[ResourceUse]:
    """Return the queueing time as a share of the mean time to first token."""
    metrics = plan.metrics or {}
    queue, ttft = (metrics.get("queue_s") or {}).get("mean"), (metrics.get("ttft_s") or {}).get("mean")
    if not queue or not ttft:
        return []
    words = f"a request waits {human_s(queue)} on average before its first step"
    return [ResourceUse("queue", min(queue / ttft, 1.0), "the mean TTFT", words, False)]
