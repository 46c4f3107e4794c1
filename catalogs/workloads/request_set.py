"""The requests of one run, drawn before it starts."""

from __future__ import annotations

from dataclasses import dataclass, replace

from catalogs.arrays import FloatArray, IntArray
from catalogs.workloads.service_classes import ServiceLevels


@dataclass(frozen=True, slots=True)
class RequestSet:
    """The requests of one run, in workload order.

    Open loop: arrival_s is non-decreasing, concurrency is None.
    Closed loop: arrival_s is all zeros and ignored; `concurrency` clients each send their next request when the
    previous one ends, taking requests in order; where think_s is given, they wait so long before it (their first too).
    block_hashes[i]: content ids of the full blocks of request i (prompt first, then generated), in blocks of
    hash_block_tokens tokens, or None where contents are unique to the request. Equal id = equal block *and* equal
    prefix before it. A list may stop early: blocks past its end are unique to the request.
    """

    arrival_s: FloatArray
    input_tokens: IntArray
    output_tokens: IntArray
    concurrency: int | None = None
    block_hashes: tuple[tuple[int, ...], ...] | None = None
    hash_block_tokens: int = 16
    wanted_models: IntArray | None = None  # where one router stands before several models: which each asks for,
    models: tuple[str, ...] = ()  # as a place in these names; no names: in the order of the fleet's models
    sessions: IntArray | None = None  # which conversation each request belongs to
    adapters: IntArray | None = None  # which LoRA adapter each asks for; -1: none
    terms: ServiceLevels | None = None  # how urgent each is, by when it should be answered, when its client gives up
    think_s: FloatArray | None = None  # closed loop: seconds a client waits before the i-th request that is begun
    name: str = ""
    source: str = ""
    seed: int = 0

    @property
    def n(self) -> int:
        return len(self.input_tokens)

    def every(self, k: int) -> RequestSet:
        """What one of k replicas gets from a round-robin router: rows 0, k, 2k, … Open loop only."""
        return self if k == 1 else self.taken(slice(None, None, k))

    def taken(self, rows: slice | IntArray) -> RequestSet:
        """Some of the requests, by place, in the order given."""
        hashes = self.block_hashes
        if hashes is not None:
            picked = hashes[rows] if isinstance(rows, slice) else tuple([hashes[i] for i in rows.tolist()])
        return replace(
            self,
            arrival_s=self.arrival_s[rows],
            input_tokens=self.input_tokens[rows],
            output_tokens=self.output_tokens[rows],
            block_hashes=None if hashes is None else picked,
            wanted_models=None if self.wanted_models is None else self.wanted_models[rows],
            sessions=None if self.sessions is None else self.sessions[rows],
            adapters=None if self.adapters is None else self.adapters[rows],
            terms=None if self.terms is None else self.terms.take(rows),
            think_s=None if self.think_s is None else self.think_s[rows],
        )
