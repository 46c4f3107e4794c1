"""What binds a plan at its planned rate: every resource with how much of it is used.

The plan is simulated once more under its share of the load; what bound that run is the simulator's analysis, of each
kind of replica.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from catalogs.deployments.layout import Role
from catalogs.ui.words import human_s
from planner.answer.plan_schema import Memory, Plan
from planner.evaluation.facts import memory_block
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

#: Resources by bound of replica time.
WORDS: Final = {DEVICE_BOUNDS[bound]: words for bound, words in BOUND_WORDS.items()} | {
    HOST: "host (scheduling, input, output)",
    IDLE: "nothing to do",
}

#: Operators named for a bound, each with at least this share of the replica's time.
_NAMED, _LEAST_SHARE = 4, 0.005


@dataclass(frozen=True, slots=True)
class ResourceUse:
    """One resource. share: of the run's time, or of the capacity, 0..1. binds: it is what the plan waits for."""

    resource: str
    share: float
    of: str  # what the share is of
    words: str
    binds: bool


@dataclass(frozen=True, slots=True)
class PoolUse:
    """One kind of replica of a plan. kv_peak: its fullest cache, 0..1; None: the plan's own figure."""

    role: Role
    bottleneck: PoolBottleneck
    memory: Memory | None
    seats: int
    kv_peak: float | None = None

    def name_of(self, resource: str) -> str:
        """Return a resource's name, with the kind of replica where there are several."""
        return resource if self.role == "both" else f"{self.role}: {resource}"

    def is_part_of(self, metric: str) -> bool:
        """Whether its time is part of a latency: first tokens of prefill servers, those after them of the others."""
        return {"ttft": "decode", "tpot": "prefill", "itl": "prefill"}.get(metric) != self.role


def pool_uses(rerun: Rerun, plan: Plan, index: int = 0, samples: int = SAMPLES) -> list[PoolUse]:
    """Simulate an even part of a plan under its share of the planned rate: one pool, or prefill and decode servers."""
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
    """Return the resources of each kind of replica: time, the largest share leading, then KV cache and seats; then the
    queue. What binds is of the replicas whose time is part of the tightest objective."""
    return [*(use for pool in pools for use in _pool_resources(plan, pool)), *_queue(plan)]


def _pool_resources(plan: Plan, pool: PoolUse) -> Iterator[ResourceUse]:
    waited = not plan.slo or pool.is_part_of(plan.tightest.metric)
    for use in (*_time(pool), *_kv(plan, pool), *_sequence_seats(pool)):
        yield replace(use, resource=pool.name_of(use.resource), binds=use.binds and waited)


def _time(pool: PoolUse) -> list[ResourceUse]:
    """The time of one kind of replica, by what its steps wait for."""
    shares, bound_by = pool.bottleneck.shares.steps, pool.bottleneck.bound_by
    named = (name for name in shares if shares[name] or name in (HOST, IDLE))
    order = sorted(named, key=lambda name: -shares[name])
    return [
        ResourceUse(WORDS[name], shares[name], "replica time", _leading(pool, name), name == bound_by) for name in order
    ]


def _leading(pool: PoolUse, bound: str) -> str:
    """The operators that make up most of a bound's time."""
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
    return [ResourceUse("KV cache", peak, "KV blocks at the peak", words, pool.bottleneck.bound_by == KV_CAPACITY)]


def _sequence_seats(pool: PoolUse) -> list[ResourceUse]:
    """Of replicas that decode: a prompt's seat is its time."""
    if pool.role == "prefill":
        return []
    steps, seats = pool.bottleneck.samples, pool.seats
    words = f"{steps.most_decodes:,} of {seats:,} sequences at once at the peak, {steps.mean_decodes:,.0f} on average"
    binds = pool.bottleneck.bound_by == QUEUE
    return [ResourceUse("sequence seats", steps.most_decodes / seats, "max_num_seqs", words, binds)]


def _queue(plan: Plan) -> list[ResourceUse]:
    """Waiting before the first step, against the time to first token it is part of."""
    metrics = plan.metrics or {}
    queue, ttft = (metrics.get("queue_s") or {}).get("mean"), (metrics.get("ttft_s") or {}).get("mean")
    if not queue or not ttft:
        return []
    words = f"a request waits {human_s(queue)} on average before its first step"
    return [ResourceUse("queue", min(queue / ttft, 1.0), "mean time to first token", words, False)]
