"""The reuse of a run under other limits, where it reached neither its own limits nor the others."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from catalogs.deployments.queueing import FCFS
from simulator.cluster.compiled import Pool
from simulator.cluster.run import Run
from simulator.core.step_log import COLUMNS, OWN

#: Columns of prefill and decode tokens in the shares of a StepLog.
OWN_TOKENS: Final = [COLUMNS.index(name) - OWN.start for name in ("prefill_tokens", "decodes")]


def reusable_run(run: Run, pool: Pool) -> Run | None:
    """Return the run of the same requests on the single replica of another pool, if it is certain without simulation.

    It is certain if the rules and costs are the same and the limits differ only where neither run reaches them.
    Otherwise the result is None.
    """
    if len(run.pools) != 1 or len(run.replicas) != 1 or pool.replicas != 1 or pool.timer is not run.pools[0].timer:
        return None
    record, rules, other = run.replicas[0], run.pools[0].rules, pool.rules
    same = {name: getattr(rules, name) for name in ("max_num_seqs", "max_num_batched_tokens", "kv_blocks")}
    if record.peak_use is None or replace(other, **same) != rules or other.queueing != FCFS or not run.completed.all():
        return None
    if run.requests.block_hashes is not None and rules.prefix_caching:
        return None  # the number of blocks determines which prefixes remain cached
    longest = int((run.requests.input_tokens + run.requests.output_tokens).max())
    rank = other.of_rank() if other.in_lockstep else other
    step_tokens = 0  # the maximum of one step
    for log in record.logs:
        most = float((log.prefill_tokens + log.decodes).max(initial=0.0))
        if log.n_ranks:
            most = log.n_ranks * float(log.shares[:, :, OWN_TOKENS].sum(axis=2).max(initial=0.0))
        step_tokens = max(step_tokens, int(most))
    if longest - 1 > rank.kv_blocks * rank.block_size or not record.peak_use.same_under(rules, other, step_tokens):
        return None
    held = round(record.kv_peak_fraction * max(1, rules.kv_blocks))
    return replace(run, pools=(pool,), replicas=(replace(record, kv_peak_fraction=held / max(1, other.kv_blocks)),))
