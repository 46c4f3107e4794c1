"""A run over time: queue, running requests, KV use, power and tokens in equal time steps, by replica and in total.

Every value is the mean over its time step, from an exact integral of step log and event log: the sum over the series,
multiplied by the step, is the total of the run. A fast-forwarded row contributes its tokens step by step (in a straight
line in between) and its power as the mean of the row.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil, floor
from pathlib import Path
from typing import Final

import numpy as np

from catalogs.arrays import FloatArray
from catalogs.errors import InputError
from catalogs.io.output_files import write_whole
from simulator.cluster.compiled import CompiledDeployment
from simulator.cluster.run import ReplicaRun, Run
from simulator.core.step_log import StepLog
from simulator.costs.totals import priced

#: The replica number of rows for all replicas together.
ALL: Final = -1

#: Maximum number of rows of a file.
MOST_ROWS: Final = 5_000_000

FIGURES: Final = (
    "alive_fraction",  # share of the step in which the replica lived; in total: replicas
    "busy_fraction",  # share of the step in which it ran steps; in total: replicas
    "queue",  # requests waiting in the engine
    "running",  # requests with a seat
    "kv_fraction",  # share of its KV blocks held by requests
    "power_w",  # power of its accelerators
    "input_tokens_per_s",  # prompt tokens computed
    "output_tokens_per_s",  # tokens that came out of steps
)

COLUMNS: Final = ("time_s", "replica", *FIGURES)


@dataclass(frozen=True, slots=True)
class Series:
    """Values of one replica (or ALL) by figure. Each array has shape (time steps,)."""

    replica: int
    figures: dict[str, FloatArray]


def series(run: Run, edges_s: FloatArray) -> Iterator[Series]:
    """Yield the series of each replica, then of all together, between adjacent edges.

    Power is 0 for pools without a compiled deployment.

    Args:
        run: The run.
        edges_s: Edges of the time steps in seconds, ascending and evenly spaced. Shape (steps + 1,).

    Raises:
        ValueError: The run has no event log.
    """
    if run.options.journal is None:
        raise ValueError("a time series needs the event log of the run, which has none")
    width_s = np.diff(edges_s)
    sums = {name: np.zeros(len(width_s)) for name in FIGURES}
    held, blocks = np.zeros(len(width_s)), np.zeros(len(width_s))
    samples = run.options.journal.by_replica(len(run.replicas))
    for index, (replica, seen) in enumerate(zip(run.replicas, samples, strict=True)):
        pool = run.pools[replica.pool]
        figures = _replica(run, replica, pool.plant, seen, edges_s)
        figures = {name: np.diff(grown) / width_s for name, grown in figures.items()}
        held += figures["kv_fraction"]
        blocks += figures["alive_fraction"] * pool.rules.kv_blocks
        figures["kv_fraction"] = figures["kv_fraction"] / max(1, pool.rules.kv_blocks)
        for name, values in figures.items():
            sums[name] += values
        yield Series(index, figures)
    sums["power_w"] += np.diff(_starting_j(run, edges_s)) / width_s
    yield Series(ALL, sums | {"kv_fraction": held / np.where(blocks > 0.0, blocks, 1.0)})


def _replica(
    run: Run, replica: ReplicaRun, plant: CompiledDeployment | None, seen: FloatArray, edges_s: FloatArray
) -> dict[str, FloatArray]:
    """Return the integral of each figure up to the edges; that of kv_fraction is in blocks. Each has shape (edges,)."""
    first_s, last_s = run.span_s
    born_s, died_s = max(replica.born_s, first_s), min(replica.died_s, last_s)
    alive_s = np.clip(edges_s, born_s, max(born_s, died_s)) - born_s
    log = StepLog.merged(replica.logs)
    stages = len(replica.logs)
    busy_s = _grown(log, log.total_s / stages, edges_s)
    seen = seen[seen[:, 0] <= replica.died_s]
    at_s, level = seen[:, 0], seen
    known = ~np.isnan(level[:, 2])
    return {
        "alive_fraction": alive_s,
        "busy_fraction": busy_s,
        "queue": _held(at_s, level[:, 4], replica.died_s, edges_s),
        "running": _held(at_s, level[:, 3], replica.died_s, edges_s),
        "kv_fraction": _drawn(at_s[known], level[known, 2], replica.died_s, edges_s),
        "power_w": np.zeros(len(edges_s)) if plant is None else _joules(log, plant, alive_s - busy_s, edges_s),
        "input_tokens_per_s": _grown(log, log.prefill_tokens, edges_s),
        "output_tokens_per_s": sum(
            (_tokens(each, edges_s) for each in replica.logs if len(each)), np.zeros(len(edges_s))
        ),
    }


def _starting_j(run: Run, edges_s: FloatArray) -> FloatArray:
    """Return the joules of accelerators whose replicas are starting, up to the edges. Shape (edges,)."""
    first_s, last_s = run.span_s
    found = np.zeros(len(edges_s))
    for number, ordered_s, ended_s in run.orders.tolist():
        plant = run.pools[int(number)].plant
        if plant is not None:
            begin_s, end_s = max(ordered_s, first_s), min(ended_s, last_s)
            idle_w = plant.resolved.hardware.accelerator.idle_w * plant.resolved.accelerators_per_replica
            found += idle_w * (np.clip(edges_s, begin_s, max(begin_s, end_s)) - begin_s)
    return found


def _joules(log: StepLog, plant: CompiledDeployment, idle_s: FloatArray, edges_s: FloatArray) -> FloatArray:
    """Return the joules of all accelerators of a replica up to the edges. Shape (edges,).

    `idle_s` holds the seconds without a step up to each edge.
    """
    unit = plant.resolved.hardware.accelerator
    rows = [part.joules for part in priced(plant.cost.tables, log)]
    busy_j = _grown(log, np.concatenate(rows), edges_s) if rows else np.zeros(len(edges_s))
    return np.asarray((busy_j + idle_s * unit.idle_w) * plant.resolved.accelerators_per_replica, dtype=np.float64)


def _grown(log: StepLog, amounts: FloatArray, edges_s: FloatArray) -> FloatArray:
    """Return the sum of the rows' amounts up to the edges, each spread evenly over its time. Shape (edges,).

    Rows of several lanes may overlap.
    """
    if not len(log):
        return np.zeros(len(edges_s))
    start_s, total_s = log.start_s, log.total_s
    rate = amounts / total_s
    turns = np.concatenate([start_s, start_s + total_s])
    change = np.concatenate([rate, -rate])
    order = np.argsort(turns, kind="stable")
    at_s, slope = turns[order], np.cumsum(change[order])
    grown = np.concatenate([[0.0], np.cumsum(np.diff(at_s) * slope[:-1])])
    return np.asarray(np.interp(edges_s, at_s, grown), dtype=np.float64)


def _tokens(log: StepLog, edges_s: FloatArray) -> FloatArray:
    """Return the tokens of a lane's steps up to the edges. Shape (edges,).

    A row contributes its completed steps, and the current one in part.
    """
    start_s, first_s, slope_s, steps = log.start_s, log.first_s, log.slope_s, log.steps
    each = log.logits + log.accepted  # drafts are accepted in rows of one step
    before = np.concatenate([[0.0], np.cumsum(each * steps)])
    row = np.searchsorted(start_s, edges_s, side="right") - 1
    r = np.maximum(row, 0)
    elapsed_s = np.clip(edges_s - start_s[r], 0.0, log.total_s[r])
    linear = first_s[r] - 0.5 * slope_s[r]
    root = np.sqrt(np.maximum(0.0, linear * linear + 2.0 * slope_s[r] * elapsed_s))
    done = np.minimum(2.0 * elapsed_s / (linear + root), steps[r])
    done = np.where(elapsed_s >= log.total_s[r], steps[r], done)
    return np.asarray(np.where(row < 0, 0.0, before[r] + each[r] * done), dtype=np.float64)


def _held(at_s: FloatArray, level: FloatArray, died_s: float, edges_s: FloatArray) -> FloatArray:
    """Return the integral up to the edges of a level that holds from one sample to the next. Shape (edges,)."""
    if not len(at_s):
        return np.zeros(len(edges_s))
    end_s = min(died_s, max(float(edges_s[-1]), float(at_s[-1])))
    at_s = np.append(at_s, end_s)
    grown = np.concatenate([[0.0], np.cumsum(np.diff(at_s) * level)])
    return np.asarray(np.interp(edges_s, at_s, grown), dtype=np.float64)


def _drawn(at_s: FloatArray, level: FloatArray, died_s: float, edges_s: FloatArray) -> FloatArray:
    """Return the integral up to the edges of a level that changes linearly between samples. Shape (edges,)."""
    if not len(at_s):
        return np.zeros(len(edges_s))
    end_s = min(died_s, max(float(edges_s[-1]), float(at_s[-1])))
    points = np.concatenate([at_s[:1], at_s, [end_s, end_s]])
    values = np.concatenate([[0.0], level, [level[-1], 0.0]])
    values_at = np.interp(edges_s, points, values, left=0.0, right=0.0)
    times = np.concatenate([points, edges_s])
    order = np.argsort(times, kind="stable")
    times, values = times[order], np.concatenate([values, values_at])[order]
    grown = np.concatenate([[0.0], np.cumsum(np.diff(times) * (values[1:] + values[:-1]) / 2.0)])
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order))
    return np.asarray(grown[place[len(points) :]], dtype=np.float64)


def edges(run: Run, step_s: float) -> FloatArray:
    """Return multiples of `step_s` from before the first arrival to after the last token. Shape (steps + 1,).

    Raises:
        InputError: The step is not positive, or so short that the file would be too long.
    """
    if not step_s > 0.0:
        raise InputError("a time series needs a step above 0 s", step_s)
    first_s, last_s = run.span_s
    ends = [float((log.start_s + log.total_s).max()) for log in run.logs if len(log)]
    last_s = max([last_s, *ends])
    low, high = floor(first_s / step_s), max(ceil(last_s / step_s), floor(first_s / step_s) + 1)
    n = (high - low) * (len(run.replicas) + 1)
    if n > MOST_ROWS:
        most = step_s * n / MOST_ROWS
        raise InputError(
            f"a time series has at most {MOST_ROWS:,} rows, this one would have {n:,}", step_s, f"{most:.3g} s"
        )
    return np.arange(low, high + 1, dtype=np.float64) * step_s


def write_time_series(run: Run, path: Path, step_s: float = 1.0) -> None:
    """Write one row for each time step and replica, and for all together (replica -1), as parquet or CSV by file name.

    Raises:
        InputError: The name has another ending, the step is invalid or the file cannot be written.
    """
    check_name(path)
    edges_s = edges(run, step_s)
    parts = list(series(run, edges_s))
    n = len(edges_s) - 1
    columns = {
        "time_s": np.tile(edges_s[:-1], len(parts)),
        "replica": np.repeat([part.replica for part in parts], n),
        **{name: np.concatenate([part.figures[name] for part in parts]) for name in FIGURES},
    }
    if path.suffix == ".parquet":
        _write_parquet(columns, path)
        return
    rows = zip(*(values.tolist() for values in columns.values()), strict=True)
    write_whole(path, (",".join(COLUMNS) + "\n", *(",".join(map(repr, row)) + "\n" for row in rows)))


def check_name(path: Path) -> None:
    """Check the name of a time series before long work.

    Raises:
        InputError: The ending is no known format.
    """
    if path.suffix not in (".parquet", ".csv"):
        raise InputError("a time series must be a .parquet or .csv file", str(path), f"{path.stem or 'series'}.parquet")


def _write_parquet(columns: dict[str, np.ndarray], path: Path) -> None:
    import pyarrow
    from pyarrow import parquet

    temporary = path.with_name(f".{path.name}.part")
    try:
        parquet.write_table(pyarrow.table(columns), temporary)
        temporary.replace(path)
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}") from None
    finally:
        temporary.unlink(missing_ok=True)
