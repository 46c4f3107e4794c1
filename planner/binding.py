"""What binds a plan at its planned rate: every resource with how much of it is used, from the simulated run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from planner.anatomy import HOST, IDLE, SAMPLES, Anatomy, take_apart
from planner.answer_file import Plan
from planner.operators import BOUND_WORDS, FIXED, together
from planner.rerun import Rerun
from planner.slo import human_s
from simulator.simulate import engine_rules, run_rules

#: Used to this share, a cache or a set of seats keeps requests waiting.
FULL: Final = 0.95
WORDS: Final = BOUND_WORDS | {HOST: "host (scheduling, input, output)", IDLE: "nothing to do"}


@dataclass(frozen=True, slots=True)
class Use:
    """One resource. share: of the run's time, or of the capacity, 0..1. binds: it is what the plan waits for."""

    resource: str
    share: float
    of: str  # what the share is of
    words: str
    binds: bool


def anatomy_of(rerun: Rerun, plan: Plan, index: int = 0, samples: int = SAMPLES) -> Anatomy:
    """One replica of a plan under its share of the planned rate, simulated and taken apart."""
    candidate = rerun.candidates[index]
    plant, n = rerun.world_of(index).plant(candidate), 2 * rerun.bench.sizes.full
    replicas = plant.resolved.replicas
    requests = rerun.workload.materialise(rerun.request.seed, n * replicas, plan.requests_per_s)
    done = run_rules(engine_rules(plant), plant.cost, requests.every(replicas))
    return take_apart(done, plant, samples)


def uses(plan: Plan, anatomy: Anatomy) -> list[Use]:
    """Time first, the largest share leading, then KV cache, seats and queue. One of time or space binds, or several."""
    shares = anatomy.shares
    full = [u for u in (_kv(plan), _seats(plan, anatomy)) if u is not None]
    short_of_room = any(u.binds for u in full)
    busiest = next((k for k in shares if k != IDLE), HOST)
    found = []
    for name, share in shares.items():
        binds = name == busiest and not short_of_room
        found.append(Use(WORDS[name], share, "replica time", _leading(name, anatomy), binds))
    return [*found, *full, *_queue(plan)]


def _leading(bound: str, anatomy: Anatomy) -> str:
    """The operators that make up most of a bound's time."""
    rows = together(r for r in anatomy.rows if r.bound == bound)
    shown = [f"{r.name} {r.seconds / anatomy.total_s:.0%}" for r in rows[:4] if r.seconds > 0.005 * anatomy.total_s]
    if bound == FIXED and rows:
        return "short kernels far from any roofline: " + ", ".join(shown or [rows[0].name])
    return ", ".join(shown)


def _kv(plan: Plan) -> Use | None:
    peak, preempted = plan.metric("kv_peak_fraction"), plan.metric("n_preemptions") or 0.0
    if peak is None:
        return None
    words = f"{preempted:,.0f} preemptions" if preempted else "no preemptions"
    return Use("KV cache", peak, "KV blocks at the peak", words, peak >= FULL or preempted > 0)


def _seats(plan: Plan, anatomy: Anatomy) -> Use:
    d = plan.deployment
    seats = int(d["max_num_seqs"]) * int(d["data_parallel"])
    words = (
        f"{anatomy.most_decodes:,} of {seats:,} sequences at once at the peak, {anatomy.mean_decodes:,.0f} on average"
    )
    return Use(
        "sequence seats", anatomy.most_decodes / seats, "max_num_seqs", words, anatomy.most_decodes >= FULL * seats
    )


def _queue(plan: Plan) -> list[Use]:
    """Waiting before the first step, against the time to first token it is part of."""
    metrics = plan.metrics or {}
    queue, ttft = (metrics.get("queue_s") or {}).get("mean"), (metrics.get("ttft_s") or {}).get("mean")
    if not queue or not ttft:
        return []
    words = f"a request waits {human_s(queue)} on average before its first step"
    return [Use("queue", min(queue / ttft, 1.0), "mean time to first token", words, False)]
