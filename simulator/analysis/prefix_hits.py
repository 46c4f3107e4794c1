"""Prefix-cache hits of a run, and those that a cache without limits would give."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from catalogs.arrays import BoolArray, IntArray
from catalogs.workloads.sessions.texts import TextUnits
from simulator.cluster.routing_stage import content_keys
from simulator.cluster.run import Run


@dataclass(frozen=True, slots=True)
class PrefixHits:
    """The share of prompt tokens found in the cache, and the share that earlier requests had computed at all.

    Attributes:
        prompt_tokens: All tokens of the prompts.
        cached_tokens: Those that were found in a cache of the engine, on the device or behind it.
        seen_tokens: Those that a cache without limits, shared by all replicas, would have held.
    """

    prompt_tokens: int
    cached_tokens: int
    seen_tokens: int

    @property
    def rate(self) -> float:
        """Return the realised hit rate; nan without prompts."""
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens else float("nan")

    @property
    def theoretical_rate(self) -> float:
        """Return the hit rate of a cache without limits; nan without prompts."""
        return self.seen_tokens / self.prompt_tokens if self.prompt_tokens else float("nan")

    @classmethod
    def of(cls, run: Run, measured: BoolArray | None = None) -> PrefixHits:
        """Return the hits of a run's completed requests, or of those that `measured` marks. Shape (n,)."""
        counted = run.completed if measured is None else run.completed & measured
        prompts = int(run.requests.input_tokens[counted].sum())
        cached = int(np.maximum(run.cached_tokens[counted], 0).sum())
        return cls(prompts, cached, int(seen_tokens(run)[counted].sum()))


def seen_tokens(run: Run) -> IntArray:
    """Return the tokens of each prompt that requests sent before it contain, in whole units of the cache. Shape (n,).

    At least the last token of a prompt is computed, and with it its block. The last token of an output is never
    computed, so no block that it ends can be found. Requests that were not sent have none.
    """
    requests, rules = run.requests, replace(run.pools[0].rules, prefix_caching=True)
    found = np.zeros(requests.n, dtype=np.int64)
    if requests.block_hashes is None:
        return found
    keys, unit_blocks = content_keys(requests, rules)
    size, seen = rules.block_size, set[int]()
    last_tokens = ((requests.input_tokens - 1) // size * size).tolist()
    held_blocks = ((requests.input_tokens + requests.output_tokens - 1) // size).tolist()
    order = np.argsort(run.arrival_s, kind="stable")
    for index in order[run.arrived[order]].tolist():
        ids, known_ends = keys.of(index) if isinstance(keys, TextUnits) else (keys[index], None)
        ends: Sequence[int] = known_ends or range(unit_blocks, unit_blocks * len(ids) + 1, unit_blocks)
        n_seen = next((unit for unit, key in enumerate(ids) if key not in seen), len(ids))
        found[index] = min(ends[n_seen - 1] * size if n_seen else 0, last_tokens[index])
        seen.update(ids[n_seen : bisect_right(ends, held_blocks[index])])
    return found
