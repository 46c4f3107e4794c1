"""One routing stage: the live replicas that may receive a request next, and the reasons to reject a request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import inf

import numpy as np

from catalogs.workloads.block_hashes import EngineBlocks
from catalogs.workloads.request_set import RequestSet
from catalogs.workloads.sessions.texts import TextTree, TextUnits
from simulator.cluster.compiled import Pool
from simulator.cluster.routers.base import Router
from simulator.core.outcomes import ITEM_TOO_LARGE, TOO_LARGE, TOO_LONG, TOO_WIDE
from simulator.core.request import Request
from simulator.engine.context import EngineContext
from simulator.engine.replica import Replica
from simulator.schedulers.registry import scheduler_class
from simulator.schedulers.rules import EngineRules


@dataclass(frozen=True, slots=True)
class RunningPool:
    """A pool in a run, with the requests that it rejects."""

    pool: Pool
    context: EngineContext
    keys: Sequence[tuple[int, ...]] | TextUnits  # content keys by request; empty if no content is shared
    refusals: bytes  # by request: 0, or the code in outcomes.STATUS why it is rejected; empty: all 0

    @classmethod
    def of(
        cls, pool: Pool, context: EngineContext, requests: RequestSet, keys: Sequence[tuple[int, ...]] | TextUnits
    ) -> RunningPool:
        """Create a pool; the rejected requests depend only on their sizes and are determined before the run."""
        scheduler = scheduler_class(pool.rules)
        rules = pool.rules.of_rank() if pool.rules.in_lockstep else pool.rules
        inputs = requests.input_tokens
        tokens = inputs + np.array(context.output_tokens, dtype=np.int64)
        # A prompt may have to be computed in one step, with its output after a preemption.
        most = inf if rules.chunked_prefill and scheduler.chunks else rules.max_num_batched_tokens
        too_wide = (tokens if scheduler.preempts else inputs) > most
        spare = rules.speculation.most_spare_tokens(rules.lag) if rules.speculation else 0  # held for drafts
        held = np.minimum(tokens - 1 + spare, rules.max_model_len)
        too_large = held > (rules.kv_blocks - rules.cross_blocks) * rules.block_size
        too_long = tokens > rules.max_model_len
        if rules.side_tokens:
            too_long |= np.maximum(inputs, tokens - inputs) > rules.side_tokens
        reasons = {TOO_LONG: too_long, TOO_WIDE: too_wide, TOO_LARGE: too_large}
        if rules.encoder_limits is not None and requests.media is not None:
            reasons[ITEM_TOO_LARGE] = requests.media.largest_embeddings > rules.encoder_limits.largest_item
        codes = np.select(list(reasons.values()), list(reasons))
        return cls(pool, context, keys, codes.astype(np.int8).tobytes() if codes.any() else b"")

    def give_keys(self, request: Request) -> None:
        """Set the content keys of a request."""
        keys = self.keys
        if isinstance(keys, TextUnits):
            request.keys, request.ends = keys.of(request.index)
        else:
            request.keys, request.ends = keys[request.index] if keys else (), None

    def refusal(self, index: int) -> int:
        """Return the code of the reason why the pool rejects a request; 0 if it accepts it."""
        return self.refusals[index] if self.refusals else 0


@dataclass(slots=True)
class RoutingStage:
    """One routing decision, among the replicas that compute prompts or those that decode transferred requests."""

    router: Router
    pools: dict[int, RunningPool] = field(default_factory=dict)  # pools that have had a replica, by index
    replicas: list[Replica] = field(default_factory=list)  # replicas that accept requests

    refusing: bool = False  # whether each of the pools rejects some request

    def add(self, replica: Replica, pool: RunningPool) -> None:
        """Add a replica, which accepts requests from now on."""
        self.replicas.append(replica)
        if replica.pool not in self.pools:
            self.pools[replica.pool] = pool
            self.refusing = all(each.refusals for each in self.pools.values())

    def refusal(self, index: int) -> int:
        """Return the code of the reason why all pools reject a request; 0 if one of them accepts it."""
        refusals = [pool.refusal(index) for pool in self.pools.values()]
        return refusals[-1] if all(refusals) else 0

    def choose(self, request: Request) -> Replica | None:
        """Return the replica for a request and set the request's content keys; None if no live replica accepts it."""
        able, several = self.replicas, len(self.pools) > 1
        if several:
            able = [r for r in able if not self.pools[r.pool].refusal(request.index)]
        if not able:
            return None
        seen = self.pools[able[0].pool]
        seen.give_keys(request)
        replica = able[self.router.choose(request, able)]
        if several and (chosen := self.pools[replica.pool]) is not seen:  # its block size and keys may differ
            chosen.give_keys(request)
        return replica


def content_keys(requests: RequestSet, rules: EngineRules) -> tuple[Sequence[tuple[int, ...]] | TextUnits, int]:
    """Return (content keys by request, KV blocks per key); no keys if no content is shared or caching is off."""
    hashes = requests.block_hashes
    if hashes is None or not rules.prefix_caching:
        return (), 1
    if isinstance(hashes, TextTree):
        return TextUnits(hashes, rules.block_size), 1
    if requests.hash_block_tokens % rules.block_size == 0:
        return hashes, requests.hash_block_tokens // rules.block_size
    return EngineBlocks(hashes, requests.hash_block_tokens, rules.block_size), 1


def items_alone(requests: RequestSet) -> RequestSet:
    """Return the requests as an encoder pool gets them: prompts of the items without the text.

    A request without items, which never gets there, has one token.
    """
    tokens = np.zeros(requests.n, dtype=np.int64) if requests.media is None else requests.media.tokens
    return replace(requests, input_tokens=np.maximum(tokens, 1))


def of_items(request: Request) -> Request:
    """Return the request as an encoder replica gets it: a prompt of its items, one after the other."""
    found, start = [], 0
    for item in request.media:
        found.append(item._replace(start=start))
        start += item.layout.tokens
    alone = Request(request.index, start)
    alone.media = tuple(found)
    return alone
