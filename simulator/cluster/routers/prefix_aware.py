"""Routers that send a prompt where its beginning was computed before."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from catalogs.deployments.routing import PrefixAware, Scored
from simulator.cluster.routers.base import ReplicaView, Router, least
from simulator.core.request import Request
from simulator.engine.replica import Replica


class PrefixRecord:
    """Which prompts were sent where: the router's own guess of what replicas have cached, in units of content keys.

    A replica is believed to keep as many units as its cache has, those used last. A key names its whole prefix, and of
    a prompt's keys the last are forgotten first, so who has a key has all before it.
    """

    def __init__(self) -> None:
        self._holders: dict[int, set[int]] = {}  # key: indices of replicas
        self._kept: dict[int, OrderedDict[int, None]] = {}  # by replica: keys, the one forgotten next first
        self.sent_tokens: dict[int, int] = {}  # by replica: prompt tokens that were new to it

    def keys_of(self, request: Request, replica: Replica) -> tuple[int, ...]:
        """Of the prompt alone: an answer is not known yet."""
        return request.keys[: request.input_tokens // replica.scheduler.kv.unit_tokens] if request.keys else ()

    def matches(self, keys: Sequence[int]) -> dict[int, int]:
        """By replica: how many keys from the first it has; those with none are left out."""
        found: dict[int, int] = {}
        high = len(keys)
        while high:
            low = self._known(keys, high)
            if not low:
                break
            for replica in self._holders[keys[low - 1]]:
                found.setdefault(replica, low)
            high = low - 1
        return found

    def _known(self, keys: Sequence[int], high: int) -> int:
        """The most of the first `high` keys that anybody has: known keys come first."""
        low = 0
        while low < high:
            middle = (low + high + 1) // 2
            if self._holders.get(keys[middle - 1]):
                low = middle
            else:
                high = middle - 1
        return low

    def add(self, keys: Sequence[int], request: Request, replica: Replica) -> None:
        """The request goes there."""
        kept = self._kept.setdefault(replica.index, OrderedDict())
        unit_tokens = replica.scheduler.kv.unit_tokens
        new = request.input_tokens - len(keys) * unit_tokens
        for key in reversed(keys):
            if key in kept:
                kept.move_to_end(key)
                continue
            kept[key] = None
            self._holders.setdefault(key, set()).add(replica.index)
            new += unit_tokens
        self.sent_tokens[replica.index] = self.sent_tokens.get(replica.index, 0) + new
        most = replica.scheduler.kv.total // replica.scheduler.kv.unit_blocks
        while len(kept) > most:
            self._forget(kept.popitem(last=False)[0], replica.index)

    def keep_only(self, replicas: Sequence[Replica]) -> None:
        """Forget those that are gone."""
        if len(self._kept) > len(replicas):
            alive = {replica.index for replica in replicas}
            for gone in [index for index in self._kept if index not in alive]:
                for key in self._kept.pop(gone):
                    self._forget(key, gone)

    def _forget(self, key: int, index: int) -> None:
        holders = self._holders[key]
        holders.discard(index)
        if not holders:
            del self._holders[key]


class LongestPrefixRouter(Router):
    """SGLang's cache-aware router: where load is uneven, the fewest unfinished requests; else the longest match, if it
    is long enough; else the replica that was sent least."""

    def __init__(self, sight: ReplicaView, options: PrefixAware) -> None:
        super().__init__(sight)
        self._options = options
        self._record = PrefixRecord()

    def choose(self, request: Request, replicas: Sequence[Replica]) -> int:
        record = self._record
        record.keep_only(replicas)
        keys = record.keys_of(request, replicas[0])
        at = self._pick(request, keys, replicas)
        record.add(keys, request, replicas[at])
        return at

    def _pick(self, request: Request, keys: Sequence[int], replicas: Sequence[Replica]) -> int:
        loads = [seen.outstanding for seen in self.sight.of(replicas)]
        most, fewest, options = max(loads), min(loads), self._options
        uneven = most - fewest > options.balance_abs_threshold and most > fewest * options.balance_rel_threshold
        if uneven:
            return loads.index(fewest)
        found = self._record.matches(keys)
        lengths = [found.get(replica.index, 0) for replica in replicas]
        longest = max(lengths)
        matched_tokens = longest * replicas[0].scheduler.kv.unit_tokens
        if longest and matched_tokens > options.cache_threshold * request.input_tokens:
            return lengths.index(longest)
        return least([self._record.sent_tokens.get(replica.index, 0) for replica in replicas])


class ScoredRouter(Router):
    """llm-d's scheduler: scorers of the Gateway API inference extension, weighted and added; the first of equals.

    prefix: share of the prompt's blocks it is believed to have. queue: 1 for the shortest queue, 0 for the longest, 1
    for all where they are equal. kv: free share of its cache.
    """

    def __init__(self, sight: ReplicaView, options: Scored) -> None:
        super().__init__(sight)
        self._options = options
        self._record = PrefixRecord()

    def choose(self, request: Request, replicas: Sequence[Replica]) -> int:
        record, options = self._record, self._options
        record.keep_only(replicas)
        keys = record.keys_of(request, replicas[0])
        found, seen = record.matches(keys) if keys else {}, self.sight.of(replicas)
        waiting = [each.n_waiting for each in seen]
        shortest, spread = min(waiting), max(waiting) - min(waiting)
        scores = [
            options.prefix * (found.get(replica.index, 0) / len(keys) if keys else 0.0)
            + options.queue * (1.0 - (n - shortest) / spread if spread else 1.0)
            + options.kv * (1.0 - each.kv_used_fraction)
            for replica, each, n in zip(replicas, seen, waiting, strict=True)
        ]
        at = scores.index(max(scores))
        record.add(keys, request, replicas[at])
        return at
