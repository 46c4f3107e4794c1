"""The requests of one run, drawn before it starts."""

from __future__ import annotations

from dataclasses import dataclass, replace

from catalogs.arrays import FloatArray, IntArray
from catalogs.workloads.service_classes import ServiceLevels


@dataclass(frozen=True, slots=True)
class RequestSet:
    """The requests of one run, in the order of the workload; arrays have shape (n,).

    Open loop: arrival_s is non-decreasing and concurrency is None. Closed loop: arrival_s is all zeros and ignored;
    `concurrency` clients take requests in order, and each sends its next request when its previous one ends. Where
    think_s is given, they wait for that time before each request, including their first.

    block_hashes[i] holds content ids of the full blocks of request i (prompt first, then generated), in blocks of
    hash_block_tokens tokens; None means that contents are unique to each request. Equal ids mean equal blocks with
    equal prefixes. A list may stop early: later blocks are unique to the request.
    """

    arrival_s: FloatArray
    input_tokens: IntArray
    output_tokens: IntArray
    concurrency: int | None = None
    block_hashes: tuple[tuple[int, ...], ...] | None = None
    hash_block_tokens: int = 16
    wanted_models: IntArray | None = None  # model of each request, where one router serves several, as an index in
    models: tuple[str, ...] = ()  # these names, or in the models of the fleet where there are no names
    sessions: IntArray | None = None  # conversation of each request
    adapters: IntArray | None = None  # LoRA adapter of each request; -1: none
    terms: ServiceLevels | None = None  # priority, deadline and timeout of each request
    think_s: FloatArray | None = None  # closed loop: seconds a client waits before it sends the i-th request
    name: str = ""
    source: str = ""
    seed: int = 0

    @property
    def n(self) -> int:
        """The number of requests."""
        return len(self.input_tokens)

    def every(self, k: int) -> RequestSet:
        """Return the requests of one of k replicas behind a round-robin router: rows 0, k, 2k, ... (open loop only)."""
        return self if k == 1 else self.taken(slice(None, None, k))

    def taken(self, rows: slice | IntArray) -> RequestSet:
        """Return some of the requests by index, in the given order."""
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
