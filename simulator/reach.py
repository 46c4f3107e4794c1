"""How near a run came to the limits it ran under: under others that it keeps as clear of, it would be the same run."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from catalogs.queueing import FCFS
from simulator.rank_dispatch import PRESSURE_FROM
from simulator.rank_log import OWN, RankLog
from simulator.step_log import COLUMNS, StepLog

if TYPE_CHECKING:
    from simulator.pool import Pool
    from simulator.rules import EngineRules
    from simulator.run_record import Run

OWN_TOKENS: Final = [COLUMNS.index(name) - OWN.start for name in ("prefill_tokens", "decodes")]


@dataclass(frozen=True, slots=True)
class Reach:
    """Of one engine; of ranks in lockstep, which share all limits evenly, as if all had been as full as the fullest."""

    seats: int  # most requests with a seat at once
    spare_blocks: int  # fewest that were left free, or would have been at the end of a run of steps; < 0: too few

    def same_under(self, own: EngineRules, other: EngineRules, step_tokens: int) -> bool:
        """Whether a run under `other`, which differs from `own` in limits alone, would be the same. step_tokens: the
        most of a step. A limit that does not differ may have been reached."""
        seats = own.max_num_seqs, other.max_num_seqs
        tokens = own.max_num_batched_tokens, other.max_num_batched_tokens
        clear = seats[0] == seats[1] or self.seats < min(seats)
        clear = clear and (tokens[0] == tokens[1] or (own.chunked_prefill and step_tokens < min(tokens)))
        blocks = own.kv_blocks, other.kv_blocks
        if blocks[0] == blocks[1]:
            return clear
        quiet = not own.in_lockstep or blocks[0] - self.spare_blocks <= PRESSURE_FROM * min(blocks)  # for dispatch
        return clear and quiet and self.spare_blocks >= max(0, blocks[0] - blocks[1])


def same_run(run: Run, pool: Pool) -> Run | None:
    """The run of the same requests on the one replica of another pool, if that is certain without simulating it: by the
    same rules and costs, under limits that neither run comes to. Else None."""
    if len(run.pools) != 1 or len(run.replicas) != 1 or pool.replicas != 1 or pool.timer is not run.pools[0].timer:
        return None
    did, rules, other = run.replicas[0], run.pools[0].rules, pool.rules
    same = {name: getattr(rules, name) for name in ("max_num_seqs", "max_num_batched_tokens", "kv_blocks")}
    if did.reach is None or replace(other, **same) != rules or other.queueing != FCFS or not run.completed.all():
        return None
    if run.requests.block_hashes is not None and rules.prefix_caching:
        return None  # what is still cached depends on how many blocks there are
    longest = int((run.requests.input_tokens + run.requests.output_tokens).max())
    rank = other.of_rank() if other.in_lockstep else other
    step_tokens = max(map(_step_tokens, did.logs))
    if longest - 1 > rank.kv_blocks * rank.block_size or not did.reach.same_under(rules, other, step_tokens):
        return None
    held = round(did.kv_peak_fraction * max(1, rules.kv_blocks))
    did = replace(did, kv_peak_fraction=held / max(1, other.kv_blocks))
    return replace(run, pools=(pool,), replicas=(did,))


def _step_tokens(log: StepLog) -> int:
    """The most of a step."""
    if isinstance(log, RankLog):
        held = log.shares[:, :, OWN_TOKENS].sum(axis=2)
        return log.n_ranks * int(held.max(initial=0.0))
    return int((log.prefill_tokens + log.decodes).max(initial=0.0))
