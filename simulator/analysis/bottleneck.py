"""What bound a run: every second of every replica, between the first arrival and the last token, belongs to one bound.

Read from step logs and journal; docs/explain.md defines the bounds. A steps' device time is divided by what limits its
operators on the roofline, as a sample of steps shows for each operator class.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from calibration.operators.operators import Collective
from calibration.operators.roofline import compute_s, memory_s, roofline_s
from catalogs.arrays import FloatArray
from simulator.analysis.request_phases import reason_between
from simulator.cluster.compiled import CompiledDeployment
from simulator.cluster.run import ReplicaRun, Run
from simulator.core.batch import BatchShape
from simulator.core.step_log import COLUMNS, StepLog
from simulator.costs.pricing import N_CLASSES, Pricer
from simulator.costs.totals import priced
from simulator.engine.event_log import BLOCKS, SEATS
from simulator.layers.drafter import draft_shard
from simulator.layers.operator_call import CLASSES, OperatorCall
from simulator.layers.shard import Shard
from simulator.layers.step import step_calls

#: Steps drawn from a pool's logs, at equal distances of time.
SAMPLES: Final = 120

#: An operator that takes this many times its roofline is bound by neither arithmetic nor bytes, but by what a kernel
#: costs whatever it does.
FIXED_COST_FACTOR: Final = 4.0

#: What the time of steps goes to, and replicas without one.
STEP_BOUNDS: Final = ("compute", "memory_bandwidth", "network", "fixed_cost", "host", "idle")

#: The same, but where requests waited for blocks or seats, that is what bound the run.
BOUNDS: Final = ("kv_capacity", "queue", *STEP_BOUNDS)


@dataclass(frozen=True, slots=True)
class Bottleneck:
    """Shares of replica time, each set adding up to 1 (all 0 where nothing arrived). replica_s: what they are of."""

    bounds: dict[str, float]
    steps: dict[str, float]
    replica_s: float


def bottleneck(run: Run) -> Bottleneck:
    """Raises ValueError for a run without plants or journal."""
    if not run.plants or run.options.journal is None:
        raise ValueError("what binds is read from a plant's costs and a run's journal")
    samples = run.options.journal.by_replica(len(run.replicas))
    bounds, steps, alive_s = dict.fromkeys(BOUNDS, 0.0), dict.fromkeys(STEP_BOUNDS, 0.0), 0.0
    for number, plant in enumerate(run.plants):
        mine = [(i, r) for i, r in enumerate(run.replicas) if r.pool == number]
        by_class = _limits(plant, StepLog.merged(log for _, r in mine for log in r.logs))
        for index, replica in mine:
            time = _ReplicaTime.of(run, plant, replica, samples[index])
            alive_s += time.alive_s
            for name, seconds in time.by_bound(by_class, free=False).items():
                steps[name] += seconds
            for name, seconds in time.by_bound(by_class, free=True).items():
                bounds[name] += seconds
            bounds["kv_capacity"] += time.blocked_s
            bounds["queue"] += time.seated_s
    return Bottleneck(_shares(bounds), _shares(steps), alive_s)


def _shares(seconds: dict[str, float]) -> dict[str, float]:
    total = sum(seconds.values()) or 1.0
    return {name: value / total for name, value in seconds.items()}


@dataclass(frozen=True, slots=True)
class _ReplicaTime:
    """Seconds of one replica within the run. Device time by operator class; `free`: while nothing waited for room."""

    alive_s: float
    device_s: FloatArray  # by class
    host_s: float
    idle_s: float
    free_device_s: FloatArray
    free_host_s: float
    free_idle_s: float
    blocked_s: float
    seated_s: float

    @classmethod
    def of(cls, run: Run, plant: CompiledDeployment, replica: ReplicaRun, samples: FloatArray) -> _ReplicaTime:
        first_s, last_s = run.span_s
        born_s, died_s = max(replica.born_s, first_s), min(replica.died_s, last_s)
        alive_s = max(0.0, died_s - born_s)
        table = np.concatenate([log.table() for log in replica.logs])
        log = StepLog.merged(replica.logs)
        device = np.zeros((0, N_CLASSES)), np.zeros(0)
        parts = [(p.device[:, :N_CLASSES], p.host_s) for p in priced(plant.cost.tables, log)] or [device]
        device_s, host_s = (np.concatenate([part[i] for part in parts]) for i in (0, 1))
        start_s, total_s = table[:, 0], table[:, COLUMNS.index("total_s")]
        stages = len(replica.logs)  # each row is of one batch of so many in flight
        held = [reason_between(samples, r, start_s, start_s + total_s) / stages for r in (BLOCKS, SEATS)]
        whole = [float(reason_between(samples, r, *np.array([[born_s], [died_s]]))[0]) for r in (BLOCKS, SEATS)]
        busy_s = total_s / stages
        free = np.clip(1.0 - sum(held) * stages / np.maximum(total_s, 1e-300), 0.0, 1.0)
        idle_s = max(0.0, alive_s - float(busy_s.sum()))
        idle_held = sum(max(0.0, w - float(h.sum())) for w, h in zip(whole, held, strict=True))
        blocked_s, seated_s = whole
        return cls(
            alive_s, device_s.sum(axis=0), float(host_s.sum()), idle_s,
            free @ device_s, float(free @ host_s), max(0.0, idle_s - idle_held), blocked_s, seated_s,
        )  # fmt: skip

    def by_bound(self, by_class: FloatArray, free: bool) -> dict[str, float]:
        """By STEP_BOUNDS; by_class: shares of the device time of each class, shape (classes, device bounds)."""
        if free:
            device_s, host_s, idle_s = self.free_device_s, self.free_host_s, self.free_idle_s
        else:
            device_s, host_s, idle_s = self.device_s, self.host_s, self.idle_s
        return dict(zip(STEP_BOUNDS, [*(device_s @ by_class).tolist(), host_s, idle_s], strict=True))


def _limits(plant: CompiledDeployment, log: StepLog) -> FloatArray:
    """Of each operator class's device time, the share that compute, memory, network and fixed costs bind."""
    found = np.zeros((N_CLASSES, 4))
    pricer, shards = plant.cost.tables.pricer, [Shard.of(plant.resolved)]
    drafter = draft_shard(plant.resolved, plant.resolved.queries)
    shards += [drafter] if drafter else []
    for shape in _draw(log, plant.cost.tables.split):
        for line in (line for shard in shards for line in step_calls(shard, shape)):
            seconds = float(pricer.price([line], ())[:N_CLASSES].sum())
            found[CLASSES.index(line.kind), _limit(line, seconds, pricer)] += seconds
    sums = found.sum(axis=1, keepdims=True)
    found[:, 3] += sums[:, 0] == 0.0  # a class that no sample met takes next to no time
    return found / np.where(sums == 0.0, 1.0, sums)


def _limit(line: OperatorCall, seconds: float, pricer: Pricer) -> int:
    unit = pricer.hardware.accelerator
    if isinstance(line.op, Collective):
        return 2
    if seconds > FIXED_COST_FACTOR * line.count * float(roofline_s(line.op, unit)):
        return 3
    return 0 if float(compute_s(line.op, unit)) > float(memory_s(line.op, unit)) else 1


def _draw(log: StepLog, split: int) -> list[BatchShape]:
    """The share of one rank of steps at equal distances of busy time."""
    table = log.table()
    if not len(table):
        return []
    ends = np.cumsum(log.total_s)
    rows = np.minimum(np.searchsorted(ends, (np.arange(SAMPLES) + 0.5) / SAMPLES * ends[-1]), len(ends) - 1)
    return [_shape(dict(zip(COLUMNS, table[row].tolist(), strict=True)), split) for row in rows.tolist()]


def _shape(row: dict[str, float], split: int) -> BatchShape:
    """A rank's share of the middle step of a row."""
    middle = int(row["steps"]) // 2
    decodes, chunks = -(-int(row["decodes"]) // split), int(row["prefill_chunks"])
    parts = max(1, min(chunks, split))
    mean = row["context_sum"] / max(row["decodes"], 1.0) + middle
    return BatchShape(
        prefill_tokens=-(-int(row["prefill_tokens"]) // parts),
        prefill_pairs=row["prefill_pairs"] / parts,
        prefill_chunks=-(-chunks // parts),
        decodes=decodes,
        decode_context_sum=int(mean * decodes),
        decode_context_max=int(row["context_max"]) + middle,
        logits=-(-int(row["logits"]) // split),
    )
