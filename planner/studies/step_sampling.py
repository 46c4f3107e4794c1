"""Where the time of a simulated run goes: its steps sampled by time, each taken apart into operators.

A sample stands for as many steps as share its part of the busy time, so sums over the samples estimate the run. One
replica under its share of the requests, figures of one of its accelerators.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from catalogs.arrays import FloatArray
from planner.studies.step_operators import OperatorRow, operator_rows, seconds_by_bound
from simulator.analysis.metrics import duration_s
from simulator.cluster.compiled import CompiledDeployment
from simulator.cluster.run import Run
from simulator.core.step_log import COLUMNS, RankStepLog, StepLog, with_share
from simulator.costs.tables import StepTables, graph_limit
from simulator.costs.totals import ranked_channels
from simulator.layers.operator_call import OperatorCall
from simulator.layers.step import StepCalls

SAMPLES: Final = 400

HOST, IDLE = "host", "idle"


@dataclass(frozen=True, slots=True)
class StepSamples:
    """rows: by operator and limit, seconds of device time within the run. The rest of the run is host and idle time."""

    rows: list[OperatorRow]
    host_s: float
    idle_s: float
    n_steps: float
    mean_decodes: float  # of a step, weighted by steps, as the next three
    mean_context_tokens: float  # of a decoding sequence
    mean_prefill_tokens: float
    prefill_step_fraction: float
    most_decodes: int

    @property
    def device_s(self) -> float:
        return sum(r.seconds for r in self.rows)

    @property
    def total_s(self) -> float:
        return self.device_s + self.host_s + self.idle_s

    @property
    def shares(self) -> dict[str, float]:
        """Of the run: what each bound takes, host and idle, the largest first."""
        found = seconds_by_bound(self.rows) | {HOST: self.host_s, IDLE: self.idle_s}
        total = self.total_s or 1.0
        return dict(sorted(((k, v / total) for k, v in found.items()), key=lambda item: -item[1]))


@dataclass(frozen=True, slots=True)
class _Samples:
    """Steps drawn evenly over the busy time; arrays of one entry each, counts of one rank: of the slowest, where ranks
    schedule for themselves."""

    weights: FloatArray  # steps that each stands for
    seconds: FloatArray
    decodes: FloatArray
    mean_context: FloatArray
    max_context: FloatArray
    prefill_tokens: FloatArray
    chunks: FloatArray
    prior: FloatArray  # tokens before a prompt chunk
    logits: FloatArray
    widest: FloatArray  # tokens of the rank with most
    group: FloatArray  # of the expert group

    def only(self, here: np.ndarray) -> _Samples:
        values = [getattr(self, name)[here] for name in self.__slots__]
        return _Samples(*values)

    @property
    def tokens(self) -> FloatArray:
        return self.decodes + self.prefill_tokens


def take_apart(run: Run, plant: CompiledDeployment, samples: int = SAMPLES, pool: int = 0) -> StepSamples:
    """Anatomy of a finished run of replicas of `plant`: those of one pool, their time together."""
    logs = tuple(log for replica in run.replicas if replica.pool == pool for log in replica.logs)
    log = StepLog.merged(logs)
    busy_s, steps = float(log.total_s.sum()), float(log.steps.sum())
    drawn = _draw(log, plant.cost.tables, samples)
    rows = _rows(drawn, plant)
    prompts = log.prefill_tokens > 0
    decoding = float((log.decodes * log.steps).sum())
    grown = log.context_sum * log.steps + log.decodes * log.steps * (log.steps - 1) / 2
    return StepSamples(
        rows,
        host_s=max(busy_s - sum(r.seconds for r in rows), 0.0),
        idle_s=max(duration_s(run) * len(logs) - busy_s, 0.0),
        n_steps=steps,
        mean_decodes=decoding / steps,
        mean_context_tokens=float(grown.sum()) / decoding if decoding else 0.0,
        mean_prefill_tokens=float(log.prefill_tokens.sum()) / max(float(prompts.sum()), 1.0),
        prefill_step_fraction=float(prompts.sum()) / steps,
        most_decodes=int(log.decodes.max()),
    )


def _draw(log: StepLog, tables: StepTables, n: int) -> _Samples:
    """n steps at equal distances of busy time."""
    split = tables.split
    ends = np.cumsum(log.total_s)
    at = (np.arange(n) + 0.5) / n * ends[-1]
    row = np.minimum(np.searchsorted(ends, at), len(ends) - 1)
    rows = log.table()[row]
    columns = dict(zip(COLUMNS, rows.T, strict=True))
    share = (at - (ends[row] - columns["total_s"])) / columns["total_s"]
    place = np.minimum(np.floor(share * columns["steps"]), columns["steps"] - 1)  # which step of a run of decodes
    seconds = columns["first_s"] + columns["slope_s"] * place
    uneven = None
    if isinstance(log, RankStepLog):
        uneven = _Uneven.of(tables, rows, log.shares[row])
        columns, split = dict(zip(COLUMNS, uneven.slowest.T, strict=True)), uneven.split
    decodes, chunks = columns["decodes"], columns["prefill_chunks"]
    parts = np.ones(n) if uneven else np.clip(chunks, 1.0, split)
    each = columns["prefill_tokens"] / np.maximum(chunks, 1.0)
    mine = np.ceil(decodes / split) + np.ceil(columns["prefill_tokens"] / parts)
    return _Samples(
        weights=ends[-1] / n / seconds,
        seconds=seconds,
        decodes=np.ceil(decodes / split),
        mean_context=columns["context_sum"] / np.maximum(decodes, 1.0) + place,
        max_context=columns["context_max"] + place,
        prefill_tokens=np.ceil(columns["prefill_tokens"] / parts),
        chunks=chunks / parts,
        prior=columns["prefill_pairs"] / np.maximum(columns["prefill_tokens"], 1.0) - each / 2.0,
        logits=uneven.logits if uneven else np.ceil(columns["logits"] / split),
        widest=uneven.widest if uneven else mine,
        group=uneven.tokens if uneven else tables.resolved.layout.data_parallel * mine,
    )


@dataclass(frozen=True, slots=True)
class _Uneven:
    """Steps in which data-parallel ranks hold unequal shares. slowest: rows of the log, of the slowest rank's share."""

    slowest: FloatArray
    split: int  # ranks among which each of them shares its decodes
    widest: FloatArray
    tokens: FloatArray  # of all
    logits: FloatArray

    @classmethod
    def of(cls, tables: StepTables, rows: FloatArray, shares: FloatArray) -> _Uneven:
        split = tables.split // tables.prompt_split
        place = ranked_channels(tables, rows, shares)[2]
        prompts, decodes, logits = shares[:, :, 0], shares[:, :, 3], shares[:, :, 6]
        tokens = np.ceil(decodes / split) + np.ceil(prompts / tables.context_ranks)
        slowest = with_share(rows, shares[np.arange(len(rows)), place])
        ending = np.ceil(logits / split).max(axis=1)
        return cls(slowest, split, tokens.max(axis=1), (prompts + decodes).sum(axis=1), ending)


def _rows(drawn: _Samples, plant: CompiledDeployment) -> list[OperatorRow]:
    """The operators of every sample, as `StepCost` prices them: padded to graphs, attention of mixed steps apart."""
    lines, pricer = plant.cost.tables.lines, plant.cost.tables.pricer
    priced = [*_token_parts(drawn, plant), *_decode_parts(drawn, lines)]
    prompts, ending = drawn.only(drawn.chunks > 0), drawn.only(drawn.logits > 0)
    each = prompts.prefill_tokens / prompts.chunks
    priced.append((prompts, lines.prefill(prompts.chunks, each, prompts.prior)))
    priced.append((ending, lines.logits(ending.logits)))
    return [row for part, here in priced if len(part.weights) for row in operator_rows(here, pricer, part.weights)]


def _token_parts(drawn: _Samples, plant: CompiledDeployment) -> Iterator[tuple[_Samples, list[OperatorCall]]]:
    """What follows the tokens of a step: in CUDA graphs, and beyond."""
    padded, lines = plant.cost.tables.padded, plant.cost.tables.lines
    graphed = drawn.widest <= graph_limit(plant.resolved)
    for graph in (True, False):
        part = drawn.only(graphed == graph)
        tokens = part.widest if graph else part.tokens
        fits = padded[np.minimum(tokens, len(padded) - 1).astype(np.int64)]
        ran = np.where(tokens < len(padded), fits, tokens)
        group = lines.shard.dp * ran if graph else part.group
        yield part, lines.rank(ran, graph) + lines.group(group, graph)


def _decode_parts(drawn: _Samples, lines: StepCalls) -> Iterator[tuple[_Samples, list[OperatorCall]]]:
    """Attention of decodes: alone, and beside prompts."""
    alone = drawn.only((drawn.decodes > 0) & (drawn.chunks == 0))
    yield alone, lines.decode(alone.decodes, alone.mean_context, alone.max_context)
    beside = drawn.only((drawn.decodes > 0) & (drawn.chunks > 0))
    yield beside, lines.mixed_decode(beside.decodes, beside.mean_context, beside.max_context)
