"""What binds a plan at its planned rate: every resource with how much of it is used, from the simulated run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from catalogs.deployments.layout import Role
from catalogs.ui.words import human_s
from planner.answer.schema import Memory, Plan
from planner.evaluation.simulated import memory_block
from planner.studies.rerun import Rerun
from planner.studies.step_operators import BOUND_WORDS, FIXED, together
from planner.studies.step_sampling import HOST, IDLE, SAMPLES, StepSamples, take_apart
from simulator.cluster.compiled import CompiledDeployment, CompiledFleet
from simulator.cluster.run import Run
from simulator.cluster.simulate import engine_rules, run, run_rules

#: Used to this share, a cache or a set of seats keeps requests waiting.
FULL: Final = 0.95

WORDS: Final = BOUND_WORDS | {HOST: "host (scheduling, input, output)", IDLE: "nothing to do"}


@dataclass(frozen=True, slots=True)
class ResourceUse:
    """One resource. share: of the run's time, or of the capacity, 0..1. binds: it is what the plan waits for."""

    resource: str
    share: float
    of: str  # what the share is of
    words: str
    binds: bool


def anatomy_of(rerun: Rerun, plan: Plan, index: int = 0, samples: int = SAMPLES) -> StepSamples:
    """One replica of a plan under its share of the planned rate, simulated and taken apart."""
    candidate = rerun.candidates[index]
    plant, n = rerun.world_of(index).plant(candidate), 2 * rerun.bench.sizes.full
    replicas = plant.resolved.replicas
    requests = rerun.workload.materialise(rerun.request.seed, n * replicas, plan.requests_per_s)
    done = run_rules(engine_rules(plant), plant.cost, requests.every(replicas))
    return take_apart(done, plant, samples)


@dataclass(frozen=True, slots=True)
class PoolUse:
    """One kind of replica of a plan, taken apart. kv_peak: its fullest cache, 0..1; None: the plan's own figure."""

    role: Role
    anatomy: StepSamples
    memory: Memory | None
    seats: int
    kv_peak: float | None = None

    def of(self, resource: str) -> str:
        """A resource's name, with whose it is where there are several kinds."""
        return resource if self.role == "both" else f"{self.role}: {resource}"

    def answers(self, metric: str) -> bool:
        """Whether its time is part of a latency: first tokens of prefill servers, those after them of the others."""
        return {"ttft": "decode", "tpot": "prefill", "itl": "prefill"}.get(metric) != self.role


def parts_of(rerun: Rerun, plan: Plan, index: int = 0, samples: int = SAMPLES) -> list[PoolUse]:
    """Every kind of replica of a plan under its share of the planned rate: one, or prefill and decode servers."""
    candidate, world = rerun.candidates[index], rerun.world_of(index)
    if not candidate.split:
        return [
            PoolUse("both", anatomy_of(rerun, plan, index, samples), plan.memory, _seats_of(world.plant(candidate)))
        ]
    share = world.parts(candidate)
    fleet = world.serves(candidate, share)
    plants = fleet.plants if isinstance(fleet, CompiledFleet) else (fleet,)
    most = max(plant.resolved.replicas for plant in plants)
    n = 2 * rerun.bench.sizes.full * most * share
    done = run(fleet, rerun.workload.materialise(rerun.request.seed, n, plan.requests_per_s).every(share))
    return [_part(done, plant, i, samples) for i, plant in enumerate(plants)]


def _part(done: Run, plant: CompiledDeployment, pool: int, samples: int) -> PoolUse:
    memory = Memory.model_validate(memory_block(plant.memory, plant.resolved))
    peak = max(replica.kv_peak_fraction for replica in done.replicas if replica.pool == pool)
    return PoolUse(plant.resolved.role, take_apart(done, plant, samples, pool), memory, _seats_of(plant), peak)


def _seats_of(plant: CompiledDeployment) -> int:
    return plant.resolved.limits.max_num_seqs * plant.resolved.layout.data_parallel


def uses(plan: Plan, parts: Sequence[PoolUse]) -> list[ResourceUse]:
    """Of each kind of replica: time, the largest share leading, then KV cache and seats; then the queue. What binds is
    of the kind that the tightest objective waits for: one of time or space, or several."""
    found = [u for part in parts for u in _of_part(plan, part)]
    return [*found, *_queue(plan)]


def _of_part(plan: Plan, part: PoolUse) -> list[ResourceUse]:
    found = _uses(plan, part)
    waited = not plan.slo or part.answers(plan.tightest.metric)
    return [replace(u, resource=part.of(u.resource), binds=u.binds and waited) for u in found]


def _uses(plan: Plan, part: PoolUse) -> list[ResourceUse]:
    anatomy = part.anatomy
    shares = anatomy.shares
    full = [u for u in (_kv(plan, part), _seats(part)) if u is not None]
    short_of_room = any(u.binds for u in full)
    busiest = next((k for k in shares if k != IDLE), HOST)
    found = []
    for name, share in shares.items():
        binds = name == busiest and not short_of_room
        found.append(ResourceUse(WORDS[name], share, "replica time", _leading(name, anatomy), binds))
    return [*found, *full]


def _leading(bound: str, anatomy: StepSamples) -> str:
    """The operators that make up most of a bound's time."""
    rows = together(r for r in anatomy.rows if r.bound == bound)
    shown = [f"{r.name} {r.seconds / anatomy.total_s:.0%}" for r in rows[:4] if r.seconds > 0.005 * anatomy.total_s]
    if bound == FIXED and rows:
        return "short kernels far from any roofline: " + ", ".join(shown or [rows[0].name])
    return ", ".join(shown)


def _kv(plan: Plan, part: PoolUse) -> ResourceUse | None:
    peak = plan.metric("kv_peak_fraction") if part.kv_peak is None else part.kv_peak
    preempted = 0.0 if part.role == "prefill" else plan.metric("n_preemptions") or 0.0
    if peak is None:
        return None
    words = f"{preempted:,.0f} preemptions" if preempted else "no preemptions"
    return ResourceUse("KV cache", peak, "KV blocks at the peak", words, peak >= FULL or preempted > 0)


def _seats(part: PoolUse) -> ResourceUse | None:
    """Of those that decode: a prompt's seat is its time."""
    anatomy, seats = part.anatomy, part.seats
    if part.role == "prefill":
        return None
    words = (
        f"{anatomy.most_decodes:,} of {seats:,} sequences at once at the peak, {anatomy.mean_decodes:,.0f} on average"
    )
    return ResourceUse(
        "sequence seats", anatomy.most_decodes / seats, "max_num_seqs", words, anatomy.most_decodes >= FULL * seats
    )


def _queue(plan: Plan) -> list[ResourceUse]:
    """Waiting before the first step, against the time to first token it is part of."""
    metrics = plan.metrics or {}
    queue, ttft = (metrics.get("queue_s") or {}).get("mean"), (metrics.get("ttft_s") or {}).get("mean")
    if not queue or not ttft:
        return []
    words = f"a request waits {human_s(queue)} on average before its first step"
    return [ResourceUse("queue", min(queue / ttft, 1.0), "mean time to first token", words, False)]
