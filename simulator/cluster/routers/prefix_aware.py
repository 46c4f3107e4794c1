"""Routers that send a prompt to a replica that has probably cached its prefix."""

from __future__ import annotations

from abc import abstractmethod
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

from catalogs.deployments.routing import PrefixAware, Scored
from simulator.cluster.routers.base import ReplicaView, Router
from simulator.core.request import Request
from simulator.engine.replica import Replica


class PrefixRecord:
    """The router's estimate of the content that replicas have cached, from the prompts it has sent to them.

    A replica is assumed to keep the most recently used units, up to the capacity of its cache. A key identifies its
    whole prefix, and the last keys of a prompt are evicted first, so a replica with a key has all keys before it.
    """

    def __init__(self) -> None:
        self._holders: dict[int, set[int]] = {}  # key: indices of replicas
        self._kept: dict[int, OrderedDict[int, int]] = {}  # by replica: blocks by key, the one forgotten next first
        self._blocks: dict[int, int] = {}  # by replica: the sum of these blocks
        self.sent_tokens: dict[int, int] = {}  # by replica: prompt tokens that were new to it

    def keys_of(self, request: Request, replica: Replica) -> tuple[int, ...]:
        """Return the content keys of a request's prompt, without its output, which is not known yet."""
        return request.keys[: replica.scheduler.kv.units_in(request, request.input_tokens)] if request.keys else ()

    def matches(self, keys: Sequence[int]) -> dict[int, int]:
        """Return the number of leading keys that each replica has, by index; replicas without any are omitted."""
        found: dict[int, int] = {}
        high = len(keys)
        while n_held := self._n_held(keys, high):
            for replica in self._holders[keys[n_held - 1]]:
                found.setdefault(replica, n_held)
            high = n_held - 1
        return found

    def _n_held(self, keys: Sequence[int], high: int) -> int:
        """Return how many of the first `high` keys, counted from the start, some replica has."""
        return bisect_left(range(high), True, key=lambda i: not self._holders.get(keys[i]))

    def add(self, keys: Sequence[int], request: Request, replica: Replica) -> None:
        """Record that a request with these keys is sent to a replica."""
        kept = self._kept.setdefault(replica.index, OrderedDict())
        kv, blocks = replica.scheduler.kv, self._blocks.get(replica.index, 0)
        end = kv.blocks_of(request, len(keys))
        new = request.input_tokens - end * kv.block_size
        for unit in range(len(keys) - 1, -1, -1):
            key, begin = keys[unit], kv.blocks_of(request, unit)
            if key in kept:
                kept.move_to_end(key)
            else:
                kept[key] = end - begin
                self._holders.setdefault(key, set()).add(replica.index)
                blocks += end - begin
                new += (end - begin) * kv.block_size
            end = begin
        self.sent_tokens[replica.index] = self.sent_tokens.get(replica.index, 0) + new
        while blocks > kv.total:
            gone, n = kept.popitem(last=False)
            self._forget(gone, replica.index)
            blocks -= n
        self._blocks[replica.index] = blocks

    def keep_only(self, replicas: Sequence[Replica]) -> None:
        """Remove the records of all other replicas, which have ended."""
        if len(self._kept) > len(replicas):
            alive = {replica.index for replica in replicas}
            for gone in [index for index in self._kept if index not in alive]:
                for key in self._kept.pop(gone):
                    self._forget(key, gone)
                del self._blocks[gone]

    def _forget(self, key: int, index: int) -> None:
        holders = self._holders[key]
        holders.discard(index)
        if not holders:
            del self._holders[key]


class PrefixRouter(Router):
    """A router that records the prompts that it sends to replicas."""

    def __init__(self, view: ReplicaView, options: Any) -> None:
        super().__init__(view)
        self._options = options
        self._record = PrefixRecord()

    def choose(self, request: Request, replicas: Sequence[Replica]) -> int:
        """Return the index in `replicas` of the replica that receives the request."""
        self._record.keep_only(replicas)
        keys = self._record.keys_of(request, replicas[0])
        at = self._pick(request, keys, replicas)
        self._record.add(keys, request, replicas[at])
        return at

    @abstractmethod
    def _pick(self, request: Request, keys: Sequence[int], replicas: Sequence[Replica]) -> int:
        """Return the index in `replicas` of the replica that receives a request with these content keys."""


class LongestPrefixRouter(PrefixRouter):
    """The policy of SGLang's cache-aware router.

    With uneven load it chooses the replica with the fewest unfinished requests. Otherwise it chooses the replica with
    the longest prefix match, if that is long enough, and else the replica that has been sent the fewest new tokens.
    """

    _options: PrefixAware

    def _pick(self, request: Request, keys: Sequence[int], replicas: Sequence[Replica]) -> int:
        loads = [seen.outstanding for seen in self.view.of(replicas)]
        most, fewest, options = max(loads), min(loads), self._options
        if most - fewest > options.balance_abs_threshold and most > fewest * options.balance_rel_threshold:
            return loads.index(fewest)
        found = self._record.matches(keys)
        lengths = [found.get(replica.index, 0) for replica in replicas]
        longest, kv = max(lengths), replicas[0].scheduler.kv
        matched_tokens = kv.blocks_of(request, longest) * kv.block_size
        if longest and matched_tokens > options.cache_threshold * request.input_tokens:
            return lengths.index(longest)
        sent = [self._record.sent_tokens.get(replica.index, 0) for replica in replicas]
        return sent.index(min(sent))


class ScoredRouter(PrefixRouter):
    """The policy of llm-d's scheduler: a weighted sum of the scorers of the Gateway API inference extension.

    The score `prefix` is the estimated fraction of the prompt's blocks that a replica has cached. `queue` is 1 for the
    shortest queue and 0 for the longest, or 1 for all if they are equal. `kv` is the free fraction of the cache. The
    first replica with the highest sum is chosen.
    """

    _options: Scored

    def _pick(self, request: Request, keys: Sequence[int], replicas: Sequence[Replica]) -> int:
        options, found, seen = self._options, self._record.matches(keys), self.view.of(replicas)
        waiting = [each.n_waiting for each in seen]
        shortest, spread = min(waiting), max(waiting) - min(waiting)
        kv = replicas[0].scheduler.kv
        whole = kv.blocks_of(request, len(keys))
        scores = [
            options.prefix * (kv.blocks_of(request, found.get(replica.index, 0)) / whole if whole else 0.0)
            + options.queue * (1.0 - (n - shortest) / spread if spread else 1.0)
            + options.kv * (1.0 - each.kv_used_fraction)
            for replica, each, n in zip(replicas, seen, waiting, strict=True)
        ]
        return scores.index(max(scores))
