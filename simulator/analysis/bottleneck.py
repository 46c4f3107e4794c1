"""The bottleneck of a run: every second of every replica, from first arrival to last token, belongs to one bound.

It is read from step logs and event log; docs/explain.md defines the bounds. Seconds by operator class are exact. The
division of a class into operators and bounds is estimated from steps sampled at equal distances of busy time, each
priced operator by operator. A sample represents the steps in its part of the time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from catalogs.arrays import FloatArray
from simulator.analysis.operators import COMPUTE, FIXED, LINK, MEMORY, OperatorRow, step_operators
from simulator.analysis.request_phases import reason_between
from simulator.cluster.compiled import CompiledDeployment
from simulator.cluster.run import ReplicaRun, Run
from simulator.core.step_log import COLUMNS, StepLog
from simulator.costs.partition import BatchRows
from simulator.costs.pricing import N_CLASSES
from simulator.costs.tables import StepTables
from simulator.costs.totals import priced
from simulator.engine.event_log import BLOCKS, SEATS
from simulator.layers.operator_call import CLASSES

#: Number of steps sampled from the logs of a pool.
SAMPLES: Final = 2000

#: The bounds of a run by the bounds of an operator.
DEVICE_BOUNDS: Final = {COMPUTE: "compute", MEMORY: "memory_bandwidth", LINK: "network", FIXED: "fixed_cost"}

HOST: Final = "host"

IDLE: Final = "idle"

#: Bounds of step time, and idle time without a step.
STEP_BOUNDS: Final = (*DEVICE_BOUNDS.values(), HOST, IDLE)

#: Bounds of time in which a request waited for KV blocks, or for a seat.
KV_CAPACITY: Final = "kv_capacity"

QUEUE: Final = "queue"

#: All bounds of a run. Time in which requests waited for blocks or seats has that bound, whatever the steps did.
BOUNDS: Final = (KV_CAPACITY, QUEUE, *STEP_BOUNDS)


@dataclass(frozen=True, slots=True)
class Bottleneck:
    """Shares of replica time by bound. Each set of shares adds up to 1 (all are 0 if nothing arrived).

    Attributes:
        bounds: Shares by BOUNDS.
        steps: Shares by STEP_BOUNDS.
        replica_s: The seconds of which these are shares.
    """

    bounds: dict[str, float]
    steps: dict[str, float]
    replica_s: float

    @property
    def bound_by(self) -> str:
        """Return the largest share of time with work to do; idle if there is none."""
        working = {name: share for name, share in self.bounds.items() if name != IDLE}
        return max(working, key=lambda name: working[name]) if any(working.values()) else IDLE


@dataclass(frozen=True, slots=True)
class StepSamples:
    """The contents of the steps of a pool's replicas, and the operators that they ran.

    Attributes:
        operators: By bound, of all steps together, on one accelerator of each stage.
        n_steps: Number of steps.
        mean_decodes: Mean over steps.
        mean_context_tokens: Mean context of a decoding sequence.
        mean_prefill_tokens: Mean over steps with prompts.
        prefill_step_fraction: Share of steps with prompts.
        most_decodes: Maximum over steps.
    """

    operators: list[OperatorRow]
    n_steps: float
    mean_decodes: float
    mean_context_tokens: float
    mean_prefill_tokens: float
    prefill_step_fraction: float
    most_decodes: int

    @classmethod
    def of(cls, compiled: CompiledDeployment, log: StepLog, device_s: FloatArray, samples: int) -> StepSamples:
        """Sample the steps of a log.

        Args:
            compiled: The compiled deployment that ran them.
            log: The steps of all replicas of a pool.
            device_s: Their device time by operator class, to which the times of operators are scaled. Shape (classes,).
            samples: The number of sampled steps.
        """
        steps, prompts = float(log.steps.sum()), log.prefill_tokens > 0
        decoding = float((log.decodes * log.steps).sum())
        grown = log.context_sum * log.steps + log.decodes * log.steps * (log.steps - 1) / 2
        return cls(
            _scaled(sampled_operators(compiled.cost.tables, log, samples), device_s),
            n_steps=steps,
            mean_decodes=decoding / max(steps, 1.0),
            mean_context_tokens=float(grown.sum()) / decoding if decoding else 0.0,
            mean_prefill_tokens=float(log.prefill_tokens.sum()) / max(float(prompts.sum()), 1.0),
            prefill_step_fraction=float(prompts.sum()) / max(steps, 1.0),
            most_decodes=int(log.decodes.max()) if len(log) else 0,
        )

    @property
    def shares_of_class(self) -> FloatArray:
        """Return the share of each operator class's time by device bound. Shape (classes, device bounds)."""
        found = np.zeros((N_CLASSES, len(DEVICE_BOUNDS)))
        names = list(DEVICE_BOUNDS)
        for row in self.operators:
            found[CLASSES.index(row.kind), names.index(row.bound)] += row.seconds
        sums = found.sum(axis=1, keepdims=True)
        found[:, names.index(FIXED)] += sums[:, 0] == 0.0  # a class without samples takes almost no time
        return found / np.where(sums == 0.0, 1.0, sums)


@dataclass(frozen=True, slots=True)
class PoolBottleneck:
    """Seconds by bound of all replicas of one pool, and the contents of their steps."""

    bounds_s: dict[str, float]
    steps_s: dict[str, float]
    replica_s: float
    samples: StepSamples
    stages: int

    @property
    def shares(self) -> Bottleneck:
        """Return the bounds of this pool as shares."""
        return _bottleneck([self])

    @property
    def bound_by(self) -> str:
        """Return the largest share of time with work to do (see `Bottleneck.bound_by`)."""
        return self.shares.bound_by

    def operators_of(self, bound: str) -> list[OperatorRow]:
        """Return the operators of a bound's device time, in seconds of replica time."""
        rows = (row for row in self.samples.operators if DEVICE_BOUNDS[row.bound] == bound)
        return [row.scaled(1.0 / self.stages) for row in rows]


def bottleneck(run: Run) -> Bottleneck:
    """Return the bottleneck of a run, for all pools together.

    Raises:
        ValueError: The run has no compiled deployment or no event log.
    """
    return _bottleneck(pool_bottlenecks(run))


def pool_bottlenecks(run: Run, samples: int = SAMPLES) -> list[PoolBottleneck]:
    """Return the bottleneck of each pool of a run.

    Args:
        run: The run.
        samples: The number of sampled steps of each pool.

    Raises:
        ValueError: The run has no compiled deployment or no event log.
    """
    if not run.compiled_pools or run.options.event_log is None:
        raise ValueError("the bottleneck of a run needs its compiled deployments and its event log")
    waits = run.options.event_log.by_replica(len(run.replicas))
    pools = []
    for number, compiled in enumerate(run.compiled_pools):
        replicas = [(r, waits[i]) for i, r in enumerate(run.replicas) if r.pool == number]
        pools.append(_pool(run, compiled, replicas, samples))
    return pools


def api_server_busy(run: Run) -> list[float]:
    """Return the utilisation of the API servers' event loops in front of each pool, over the span of the run.

    It is the work on requests and tokens (simulator/engine/api_server.py). The time in which an idle loop reads an
    output is not counted: a busy loop has no such time.

    Raises:
        ValueError: The run has no compiled deployment.
    """
    if not run.compiled_pools:
        raise ValueError("the work of API servers needs the compiled deployments of the run")
    first_s, last_s = run.span_s
    found = []
    for number, compiled in enumerate(run.compiled_pools):
        host, replicas = compiled.resolved.engine.host, [r for r in run.replicas if r.pool == number]
        tokens = sum(float((log.logits * log.steps + log.accepted).sum()) for r in replicas for log in r.logs)
        ended = run.completed
        if compiled.resolved.role != "prefill":  # every request also ends on a prefill replica
            pools = np.array([r.pool for r in run.replicas])
            ended = ended & (pools[run.replica] == number)
        requests = float(ended.sum())
        if compiled.resolved.role == "encode":
            mine = [run.replicas[int(encoder)].pool == number for encoder in run.encodings[:, 1]]
            requests = float(sum(mine))
        alive_s = sum(max(min(r.removed_s, last_s) - max(r.created_s, first_s), 0.0) for r in replicas)
        work_s = tokens * host.api_token_s + requests * host.api_request_s
        found.append(work_s / max(alive_s * compiled.resolved.api_server_count, 1e-300))
    return found


def _pool(
    run: Run, compiled: CompiledDeployment, replicas: Sequence[tuple[ReplicaRun, FloatArray]], samples: int
) -> PoolBottleneck:
    times = [_ReplicaTime.of(run, compiled, replica, waits) for replica, waits in replicas]
    stages = compiled.resolved.batches_in_flight
    device_s = np.sum([time.spent[:N_CLASSES] for time in times], axis=0) * stages
    log = StepLog.merged(log for replica, _ in replicas for log in replica.logs)
    drawn = StepSamples.of(compiled, log, device_s, samples)
    by_class = drawn.shares_of_class
    steps = _total(STEP_BOUNDS, [_by_bound(time.spent, by_class) for time in times])
    bounds = _total(BOUNDS, [time.waits_s | _by_bound(time.free, by_class) for time in times])
    return PoolBottleneck(bounds, steps, sum(time.alive_s for time in times), drawn, stages)


def _bottleneck(pools: Sequence[PoolBottleneck]) -> Bottleneck:
    bounds, steps = _total(BOUNDS, [p.bounds_s for p in pools]), _total(STEP_BOUNDS, [p.steps_s for p in pools])
    return Bottleneck(_shares(bounds), _shares(steps), sum(pool.replica_s for pool in pools))


def _total(names: Sequence[str], parts: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {name: sum((part[name] for part in parts), 0.0) for name in names}


def _shares(seconds: dict[str, float]) -> dict[str, float]:
    total = sum(seconds.values()) or 1.0
    return {name: value / total for name, value in seconds.items()}


def _by_bound(seconds: FloatArray, shares_of_class: FloatArray) -> dict[str, float]:
    """Return the seconds by STEP_BOUNDS.

    Args:
        seconds: Seconds by operator class, of the host and without a step. Shape (classes + 2,).
        shares_of_class: As `StepSamples.shares_of_class`. Shape (classes, device bounds).
    """
    device = seconds[:N_CLASSES] @ shares_of_class
    return dict(zip(STEP_BOUNDS, [*device.tolist(), *seconds[N_CLASSES:].tolist()], strict=True))


@dataclass(frozen=True, slots=True)
class _ReplicaTime:
    """Seconds of one replica within the run.

    Attributes:
        alive_s: Seconds during which it existed.
        spent: Those seconds by operator class, of the host and without a step. Shape (classes + 2,).
        free: The part of `spent` in which no request waited for blocks or for a seat. Shape (classes + 2,).
        waits_s: Seconds in which a request waited for blocks (KV_CAPACITY) or for a seat (QUEUE).
    """

    alive_s: float
    spent: FloatArray
    free: FloatArray
    waits_s: dict[str, float]

    @classmethod
    def of(cls, run: Run, compiled: CompiledDeployment, replica: ReplicaRun, waits: FloatArray) -> _ReplicaTime:
        """Return the seconds of a replica.

        Args:
            run: The run.
            compiled: The compiled deployment of the replica.
            replica: The replica.
            waits: Samples of the replica's queue, from the event log.
        """
        first_s, last_s = run.span_s
        created_s, removed_s = max(replica.created_s, first_s), min(replica.removed_s, last_s)
        alive_s = max(0.0, removed_s - created_s)
        table = np.concatenate([log.table() for log in replica.logs])
        start_s, total_s = table[:, COLUMNS.index("start_s")], table[:, COLUMNS.index("total_s")]
        parts = list(priced(compiled.cost.tables, StepLog.merged(replica.logs)))
        device_s = np.concatenate([np.zeros((0, N_CLASSES)), *(part.device[:, :N_CLASSES] for part in parts)])
        host_s = np.concatenate([np.zeros(0), *(part.host_s for part in parts)])
        stages = len(replica.logs)  # the number of batches in flight, each with its own log
        blocked, seated = (reason_between(waits, reason, start_s, start_s + total_s) for reason in (BLOCKS, SEATS))
        free = np.clip(1.0 - (blocked + seated) / np.maximum(total_s, 1e-300), 0.0, 1.0)
        alive = np.array([created_s]), np.array([removed_s])
        blocked_s, seated_s = (float(reason_between(waits, reason, *alive)[0]) for reason in (BLOCKS, SEATS))
        idle_s = max(0.0, alive_s - float(total_s.sum()) / stages)
        idle_blocked_s = max(0.0, blocked_s - float(blocked.sum()) / stages)
        idle_seated_s = max(0.0, seated_s - float(seated.sum()) / stages)
        free_idle_s = max(0.0, idle_s - idle_blocked_s - idle_seated_s)
        spent = np.array([*device_s.sum(axis=0), host_s.sum(), idle_s])
        free_s = np.array([*(free @ device_s), free @ host_s, free_idle_s])
        return cls(alive_s, spent, free_s, {KV_CAPACITY: blocked_s, QUEUE: seated_s})


def sampled_operators(tables: StepTables, log: StepLog, samples: int = SAMPLES) -> list[OperatorRow]:
    """Return the operators of steps sampled at equal distances of busy time, weighted to represent all steps."""
    if not len(log):
        return []
    table, ends = log.table(), np.cumsum(log.total_s)
    at_s = (np.arange(samples) + 0.5) / samples * ends[-1]
    row = np.minimum(np.searchsorted(ends, at_s), len(ends) - 1)
    drawn = table[row]
    columns = dict(zip(COLUMNS, drawn.T, strict=True))
    passed = (at_s - (ends[row] - columns["total_s"])) / columns["total_s"]
    step = np.minimum(np.floor(passed * columns["steps"]), columns["steps"] - 1)  # within a run of decodes
    weights = ends[-1] / samples / (columns["first_s"] + columns["slope_s"] * step)
    ranks = BatchRows.of_ranks(drawn, log.shares[row], step) if log.n_ranks else [BatchRows.of_log(drawn, step)]
    return step_operators(tables, ranks, weights)


def _scaled(operators: Sequence[OperatorRow], device_s: FloatArray) -> list[OperatorRow]:
    """Return operators whose seconds add up to those of each class."""
    found = np.zeros(N_CLASSES)
    for operator in operators:
        found[CLASSES.index(operator.kind)] += operator.seconds
    factors = np.divide(device_s, found, out=np.zeros(N_CLASSES), where=found > 0)
    return [operator.scaled(float(factors[CLASSES.index(operator.kind)])) for operator in operators]
