"""Where the router stands: the living replicas that may take a request next, and why a request is refused there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf

import numpy as np

from catalogs.workloads.block_hashes import EngineBlocks
from catalogs.workloads.request_set import RequestSet
from simulator.cluster.compiled import Pool
from simulator.cluster.routers.base import Router
from simulator.core.outcomes import TOO_LARGE, TOO_LONG, TOO_WIDE
from simulator.core.request import Request
from simulator.engine.context import EngineContext
from simulator.engine.replica import Replica
from simulator.schedulers.registry import scheduler_class
from simulator.schedulers.rules import EngineRules


@dataclass(frozen=True, slots=True)
class ReplicaLimits:
    """What one replica of a pool can hold, tokens."""

    longest: int  # input and output
    widest: float  # of one step, where all a request may have to compute at once must fit in one
    recomputes: bool  # and that may be its output too
    cached: int
    spare: int = 0  # held beyond its tokens, for drafts

    @classmethod
    def of(cls, rules: EngineRules) -> ReplicaLimits:
        scheduler = scheduler_class(rules)
        rules = rules.of_rank() if rules.in_lockstep else rules
        widest = inf if rules.chunked_prefill and scheduler.chunks else rules.max_num_batched_tokens
        recomputes = scheduler.preempts
        spare = rules.speculation.most_spare_tokens(rules.lag) if rules.speculation else 0
        cached = (rules.kv_blocks - rules.cross_blocks) * rules.block_size
        return cls(rules.max_model_len, widest, recomputes, cached, spare)


@dataclass(frozen=True, slots=True)
class RunningPool:
    """A pool in a run."""

    pool: Pool
    context: EngineContext
    keys: Sequence[tuple[int, ...]]  # content keys by request; none where nothing is shared
    refusals: bytes  # why it cannot serve a request, as a code of results.STATUS, 0 where it can; empty: all 0

    @classmethod
    def of(
        cls, pool: Pool, context: EngineContext, requests: RequestSet, keys: Sequence[tuple[int, ...]]
    ) -> RunningPool:
        """Which requests it refuses depends on their sizes alone, and is known before the run."""
        room, inputs = ReplicaLimits.of(pool.rules), requests.input_tokens
        tokens = inputs + np.array(context.output_tokens, dtype=np.int64)
        widest = (tokens if room.recomputes else inputs) > room.widest
        held = np.minimum(tokens - 1 + room.spare, room.longest)
        codes = np.where(held > room.cached, TOO_LARGE, 0)
        codes = np.where(tokens > room.longest, TOO_LONG, np.where(widest, TOO_WIDE, codes)).astype(np.int8)
        return cls(pool, context, keys, codes.tobytes() if codes.any() else b"")

    def refusal(self, index: int) -> int:
        """Why it cannot serve the request; 0 where it can."""
        return self.refusals[index] if self.refusals else 0


@dataclass(slots=True)
class RoutingStage:
    """One choice of the router: among those that compute prompts, or those that decode what others prefilled."""

    router: Router
    pools: dict[int, RunningPool] = field(default_factory=dict)  # that had a replica, by number
    replicas: list[Replica] = field(default_factory=list)  # that take requests

    refusing: bool = False  # each of the pools refuses somebody

    def add(self, replica: Replica, pool: RunningPool) -> None:
        """It takes requests from now on."""
        self.replicas.append(replica)
        if replica.pool not in self.pools:
            self.pools[replica.pool] = pool
            self.refusing = all(each.refusals for each in self.pools.values())

    def refusal(self, index: int) -> int:
        """Why none of its pools can serve the request; 0 where one can."""
        refusal = 0
        for pool in self.pools.values():
            refusal = pool.refusal(index)
            if not refusal:
                break
        return refusal

    def choose(self, request: Request) -> Replica | None:
        """The replica that gets it; None where none that could is alive. Sets the request's content keys."""
        able, several = self.replicas, len(self.pools) > 1
        if several:
            able = [r for r in able if not self.pools[r.pool].refusal(request.index)]
        if not able:
            return None
        seen = self.pools[able[0].pool]
        if seen.keys:
            request.keys = seen.keys[request.index]
        replica = able[self.router.choose(request, able)]
        if several:
            chosen = self.pools[replica.pool]
            if chosen is not seen:  # contents are named by blocks, and its may have another size
                request.keys = chosen.keys[request.index] if chosen.keys else ()
        return replica


def content_keys(requests: RequestSet, rules: EngineRules) -> tuple[Sequence[tuple[int, ...]], int]:
    """(content keys by request, KV blocks per key); no keys where nothing is shared or caching is off."""
    hashes = requests.block_hashes
    if hashes is None or not rules.prefix_caching:
        return (), 1
    if requests.hash_block_tokens % rules.block_size == 0:
        return hashes, requests.hash_block_tokens // rules.block_size
    return EngineBlocks(hashes, requests.hash_block_tokens, rules.block_size), 1
