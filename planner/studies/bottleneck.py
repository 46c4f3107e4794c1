"""The utilisation of every resource of a plan at its planned rate, and which of them bind.

An even part of the plan is simulated again under its share of the load, and the simulator's analysis gives the
utilisation. What binds is another question, which `planner.studies.binding` answers by counterfactuals.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from catalogs.deployments.layout import Role
from catalogs.ui.words import human_s, percent
from planner.answer.plan_schema import Memory, Plan
from planner.evaluation.facts import memory_block
from planner.problem.latency_metrics import TTFT
from planner.studies import capacity_inputs as inputs
from planner.studies.binding import LEAST_GAIN, Binding
from planner.studies.rerun import Rerun
from simulator.analysis.bottleneck import (
    DEVICE_BOUNDS,
    HOST,
    IDLE,
    PoolBottleneck,
    api_server_busy,
    pool_bottlenecks,
)
from simulator.analysis.operators import COMPUTE, FIXED, LINK, MEMORY, together
from simulator.cluster.cluster import RunOptions
from simulator.cluster.compiled import CompiledFleet
from simulator.cluster.simulate import simulate
from simulator.engine.event_log import EventLog

#: Inputs of the capacity by the bound of replica time that they determine; no input determines idle time.
INPUTS: Final = {
    DEVICE_BOUNDS[COMPUTE]: inputs.COMPUTE,
    DEVICE_BOUNDS[MEMORY]: inputs.MEMORY,
    DEVICE_BOUNDS[LINK]: inputs.LINK,
    DEVICE_BOUNDS[FIXED]: inputs.FIXED,
    HOST: inputs.HOST,
    IDLE: "idle",
}

#: Maximum number of operators named for a bound, and minimum share of the replica's time of each.
_NAMED, _MIN_SHARE = 4, 0.005


@dataclass(frozen=True, slots=True)
class ResourceUse:
    """The utilisation of one resource.

    `resource` is the name of an input of the capacity, or "idle". `share` is a fraction (0 to 1) of the quantity in
    `of`; None if the resource has no utilisation. `gain` is the relative gain of capacity from 10 % more of the
    resource; None if it was not simulated. `binds` is True for what binds: no other input gains more.
    """

    resource: str
    share: float | None
    of: str
    words: str
    gain: float | None = None
    binds: bool = False


@dataclass(frozen=True, slots=True)
class PoolUse:
    """One kind of replica of a plan.

    `seats` is the number of sequences that may run at once. `api_server` is the utilisation of the API server's event
    loops. `kv_peak` is the peak utilisation of the KV cache, 0 to 1; None stands for the figure in the plan.
    """

    role: Role
    bottleneck: PoolBottleneck
    memory: Memory | None
    seats: int
    api_server: float
    kv_peak: float | None = None


def simulated_pool_uses(rerun: Rerun, plan: Plan) -> list[PoolUse]:
    """Return the pools of the recommended plan, simulated again: one pool, or a prefill and a decode pool."""
    candidate, evaluator = rerun.candidates[0], rerun.evaluator_of(0)
    share = evaluator.deployments.even_parts(candidate)
    served = evaluator.deployments.part(candidate, share)
    pools = served.deployments if isinstance(served, CompiledFleet) else (served,)
    n = 2 * rerun.tester.sizes.full * max(pool.resolved.replicas for pool in pools) * share
    requests = rerun.workload.materialise(rerun.request.seed, n, plan.requests_per_s).every(share)
    done = simulate(served, requests, RunOptions(event_log=EventLog()))
    uses, busy = [], api_server_busy(done)
    for number, (pool, found) in enumerate(zip(pools, pool_bottlenecks(done), strict=True)):
        seats = pool.resolved.limits.max_num_seqs * pool.resolved.layout.data_parallel
        if len(pools) == 1:
            return [PoolUse("both", found, plan.memory, seats, busy[number])]
        memory = Memory.model_validate(memory_block(pool.memory, pool.resolved))
        peak = max(replica.kv_peak_fraction for replica in done.replicas if replica.pool == number)
        uses.append(PoolUse(pool.resolved.role, found, memory, seats, busy[number], peak))
    return uses


def resource_uses(plan: Plan, pools: Sequence[PoolUse], binding: Binding | None = None) -> list[ResourceUse]:
    """Return the utilisation of every resource, and the gain of capacity from 10 % more of it.

    With gains, the resources come in the order of their gains. Without, they come for each kind of replica and then for
    the queue; of each kind the shares of time come first, the largest first.
    """
    found: list[ResourceUse] = []
    for pool in pools:
        prefix = "" if pool.role == "both" else f"{pool.role}: "
        uses = [*_time(pool, _idle(plan, pool)), *_api_server(pool)]
        uses += [] if pool.role == "encode" else [*_kv(plan, pool), *_sequence_seats(pool)]
        found += [replace(use, resource=f"{prefix}{use.resource}") for use in uses]
    found += _queue(plan)
    if binding is None:
        return found
    by_name = {use.resource: use for use in found}
    rows = []
    for gain in binding.gains:
        use = by_name.pop(gain.input, ResourceUse(gain.input, None, "", ""))
        rows.append(replace(use, gain=gain.gain, binds=gain.binds))
    return [*rows, *by_name.values()]


def _idle(plan: Plan, pool: PoolUse) -> float:
    """Return the idle share of the replica time: that of the answer, or of the new run if the answer has several pools.

    The new run also fills up and drains, while the answer's share is that of the steady window over its seeds.
    """
    seconds = plan.time_breakdown or {}
    total_s = sum(seconds.values())
    return seconds.get("idle", 0.0) / total_s if pool.role == "both" and total_s else pool.bottleneck.shares.steps[IDLE]


def _time(pool: PoolUse, idle: float) -> Iterator[ResourceUse]:
    """Yield the shares of the replica time by bound, the largest first; busy time is split as in the new run."""
    found = pool.bottleneck.shares.steps
    busy = (1 - idle) / (1 - found[IDLE]) if found[IDLE] < 1 else 1.0
    shares = {name: idle if name == IDLE else share * busy for name, share in found.items()}
    for name in sorted(shares, key=lambda name: -shares[name]):
        if shares[name] or name in (HOST, IDLE):
            yield ResourceUse(INPUTS[name], shares[name], "replica time", _leading(pool, name, busy))


def _leading(pool: PoolUse, bound: str, busy: float) -> str:
    """Return the names of the operators with the largest shares of a bound's time; `busy` multiplies the shares."""
    rows, total_s = together(pool.bottleneck.operators_of(bound)), pool.bottleneck.replica_s / busy
    shown = [f"{r.name} {percent(r.seconds / total_s)}" for r in rows[:_NAMED] if r.seconds > _MIN_SHARE * total_s]
    if bound == DEVICE_BOUNDS[FIXED] and rows:
        return "short kernels far from any roofline: " + ", ".join(shown or [rows[0].name])
    return ", ".join(shown)


def _api_server(pool: PoolUse) -> Iterator[ResourceUse]:
    """Yield the utilisation of the API server; nothing for prefill replicas, which stream one token of a request."""
    if pool.role != "prefill":
        words = "reads requests and streams tokens; waits grow long before it is always busy"
        yield ResourceUse(inputs.API_SERVER, pool.api_server, "time of its event loops", words)


def _kv(plan: Plan, pool: PoolUse) -> Iterator[ResourceUse]:
    peak = plan.metric("kv_peak_fraction") if pool.kv_peak is None else pool.kv_peak
    if peak is not None:
        preempted = 0.0 if pool.role == "prefill" else plan.metric("n_preemptions") or 0.0
        words = f"{preempted:,.0f} preemptions" if preempted else "no preemptions"
        yield ResourceUse(inputs.KV_CACHE, peak, "KV blocks at their peak", words)


def _sequence_seats(pool: PoolUse) -> Iterator[ResourceUse]:
    """Yield the utilisation of `max_num_seqs`; nothing for prefill replicas."""
    if pool.role != "prefill":
        steps = pool.bottleneck.samples
        peak = f"{steps.most_decodes:,} of {pool.seats:,} concurrent sequences at the peak"
        words = f"{peak}, {steps.mean_decodes:,.0f} on average"
        yield ResourceUse(inputs.SEATS, steps.most_decodes / pool.seats, "max_num_seqs", words)


def _queue(plan: Plan) -> Iterator[ResourceUse]:
    """Yield the queueing time as a share of the mean time to first token."""
    queue_s, ttft_s = (plan.latency_s(metric, "mean") for metric in ("queue", TTFT.name))
    if queue_s and ttft_s:
        words = f"a request waits {human_s(queue_s)} on average before its first step"
        yield ResourceUse(inputs.ARRIVALS, min(queue_s / ttft_s, 1.0), "the mean TTFT", words)


def gain_text(use: ResourceUse) -> str:
    """Return the gain of capacity as text; empty if it was not simulated."""
    if use.gain is None:
        return ""
    return percent(use.gain, 1, signed=True) if use.gain >= LEAST_GAIN else f"under {percent(LEAST_GAIN)}"


def used_text(use: ResourceUse) -> str:
    """Return the utilisation as text; empty if the resource has none."""
    return "" if use.share is None else percent(use.share)
