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
from planner.problem.latency_metrics import LATENCY_METRICS, TTFT
from planner.studies.rerun import Rerun
from simulator.analysis.bottleneck import (
    DEVICE_BOUNDS,
    HOST,
    IDLE,
    KV_CAPACITY,
    QUEUE,
    PoolBottleneck,
    pool_bottlenecks,
)
from simulator.analysis.operators import BOUND_WORDS, FIXED, together
from simulator.cluster.cluster import RunOptions
from simulator.cluster.compiled import CompiledFleet
from simulator.cluster.simulate import simulate
from simulator.engine.event_log import EventLog

#: Names of the resources that bound replica time.
WORDS: Final = {DEVICE_BOUNDS[bound]: words for bound, words in BOUND_WORDS.items()} | {
    HOST: "host (scheduling, input, output)",
    IDLE: "idle",
}

#: Maximum number of operators named for a bound, and minimum share of the replica's time of each.
_NAMED, _MIN_SHARE = 4, 0.005


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

    `seats` is the number of sequences that may run at once. `kv_peak` is the peak utilisation of the KV cache, 0 to 1;
    None stands for the figure in the plan.
    """

    role: Role
    bottleneck: PoolBottleneck
    memory: Memory | None
    seats: int
    kv_peak: float | None = None


def pool_uses(rerun: Rerun, plan: Plan) -> list[PoolUse]:
    """Return the pools of the recommended plan, simulated again: one pool, or a prefill and a decode pool."""
    candidate, evaluator = rerun.candidates[0], rerun.evaluator_of(0)
    share = evaluator.deployments.even_parts(candidate)
    served = evaluator.deployments.part(candidate, share)
    pools = served.deployments if isinstance(served, CompiledFleet) else (served,)
    n = 2 * rerun.tester.sizes.full * max(pool.resolved.replicas for pool in pools) * share
    requests = rerun.workload.materialise(rerun.request.seed, n, plan.requests_per_s).every(share)
    done = simulate(served, requests, RunOptions(journal=EventLog()))
    uses = []
    for number, (pool, found) in enumerate(zip(pools, pool_bottlenecks(done), strict=True)):
        seats = pool.resolved.limits.max_num_seqs * pool.resolved.layout.data_parallel
        if len(pools) == 1:
            return [PoolUse("both", found, plan.memory, seats)]
        memory = Memory.model_validate(memory_block(pool.memory, pool.resolved))
        peak = max(replica.kv_peak_fraction for replica in done.replicas if replica.pool == number)
        uses.append(PoolUse(pool.resolved.role, found, memory, seats, peak))
    return uses


def resource_uses(plan: Plan, pools: Sequence[PoolUse]) -> list[ResourceUse]:
    """Return the utilisation of every resource, for each kind of replica and then for the queue.

    Per kind come the shares of time, the largest first, then KV cache and running sequences. Only replicas whose time
    is part of the tightest objective can hold the bottleneck: prefill replicas determine the time to first token,
    decode replicas the time between tokens.
    """
    found: list[ResourceUse] = []
    for pool in pools:
        decisive = not plan.slo or LATENCY_METRICS[plan.tightest.metric].involves(pool.role)
        prefix = "" if pool.role == "both" else f"{pool.role}: "
        uses = (*_time(pool), *_kv(plan, pool), *_sequence_seats(pool))
        found += [replace(u, resource=f"{prefix}{u.resource}", binds=u.binds and decisive) for u in uses]
    return [*found, *_queue(plan)]


def _time(pool: PoolUse) -> Iterator[ResourceUse]:
    """Yield the shares of the replica time by bound, the largest first."""
    shares, bound_by = pool.bottleneck.shares.steps, pool.bottleneck.bound_by
    for name in sorted(shares, key=lambda name: -shares[name]):
        if shares[name] or name in (HOST, IDLE):
            yield ResourceUse(WORDS[name], shares[name], "replica time", _leading(pool, name), name == bound_by)


def _leading(pool: PoolUse, bound: str) -> str:
    """Return the names of the operators with the largest shares of a bound's time."""
    rows, total_s = together(pool.bottleneck.operators_of(bound)), pool.bottleneck.replica_s
    shown = [f"{r.name} {r.seconds / total_s:.0%}" for r in rows[:_NAMED] if r.seconds > _MIN_SHARE * total_s]
    if bound == DEVICE_BOUNDS[FIXED] and rows:
        return "short kernels far from any roofline: " + ", ".join(shown or [rows[0].name])
    return ", ".join(shown)


def _kv(plan: Plan, pool: PoolUse) -> Iterator[ResourceUse]:
    peak = plan.metric("kv_peak_fraction") if pool.kv_peak is None else pool.kv_peak
    if peak is not None:
        preempted = 0.0 if pool.role == "prefill" else plan.metric("n_preemptions") or 0.0
        words = f"{preempted:,.0f} preemptions" if preempted else "no preemptions"
        binds = pool.bottleneck.bound_by == KV_CAPACITY
        yield ResourceUse("KV cache", peak, "KV blocks at their peak", words, binds)


def _sequence_seats(pool: PoolUse) -> Iterator[ResourceUse]:
    """Yield the utilisation of `max_num_seqs`; nothing for prefill replicas."""
    if pool.role != "prefill":
        steps, binds = pool.bottleneck.samples, pool.bottleneck.bound_by == QUEUE
        peak = f"{steps.most_decodes:,} of {pool.seats:,} concurrent sequences at the peak"
        words = f"{peak}, {steps.mean_decodes:,.0f} on average"
        yield ResourceUse("running sequences", steps.most_decodes / pool.seats, "max_num_seqs", words, binds)


def _queue(plan: Plan) -> Iterator[ResourceUse]:
    """Yield the queueing time as a share of the mean time to first token."""
    queue_s, ttft_s = (plan.latency_s(metric, "mean") for metric in ("queue", TTFT.name))
    if queue_s and ttft_s:
        words = f"a request waits {human_s(queue_s)} on average before its first step"
        yield ResourceUse("queue", min(queue_s / ttft_s, 1.0), "the mean TTFT", words, False)
