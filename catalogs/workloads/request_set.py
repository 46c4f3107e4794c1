"""The requests of one run, drawn before it starts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Final, Self

import numpy as np

from catalogs.arrays import FloatArray, IntArray
from catalogs.workloads.media import RequestMedia
from catalogs.workloads.service_classes import ServiceLevels
from catalogs.workloads.sessions.request_graph import RequestGraph
from catalogs.workloads.sessions.schedule import ScheduledRequests
from catalogs.workloads.sessions.texts import BLOCK_TOKENS, TextTree

#: The fields of a request set with one entry for each request, except block_hashes and graph.
COLUMNS: Final = (
    "arrival_s",
    "input_tokens",
    "output_tokens",
    "requested_models",
    "sessions",
    "tasks",
    "adapters",
    "terms",
    "think_s",
    "media",
)

BlockHashes = tuple[tuple[int, ...], ...] | TextTree | None


def rows_of(source: object, names: Iterable[str], rows: slice | IntArray) -> dict[str, Any]:
    """Return some rows of named columns (Shape (n,)) of a request set or a trace; None where a column is missing."""
    columns = {name: getattr(source, name) for name in names}
    return {name: None if column is None else column[rows] for name, column in columns.items()}


@dataclass(frozen=True, slots=True)
class RequestSet:
    """The requests of one run, in the order of the workload; arrays have shape (n,).

    Open loop: arrival_s is non-decreasing and concurrency is None. Closed loop: arrival_s is all zeros and ignored;
    `concurrency` clients take requests in order, and each sends its next request when its previous one ends. Where
    think_s is given, they wait for that time before each request, including their first.

    With `graph`, requests wait for the ends of others, and arrival_s counts only for the first requests of sessions. In
    a closed loop `concurrency` clients then take whole sessions, in the order of their first requests.

    block_hashes[i] holds content ids of the full blocks of request i (prompt first, then generated), in blocks of
    hash_block_tokens tokens; None means that contents are unique to each request. Equal ids mean equal blocks with
    equal prefixes. A list may stop early: later blocks are unique to the request. Conversations are a TextTree instead,
    which makes these ids when they are needed.
    """

    arrival_s: FloatArray
    input_tokens: IntArray
    output_tokens: IntArray
    concurrency: int | None = None
    block_hashes: BlockHashes = None
    hash_block_tokens: int = 16
    requested_models: IntArray | None = None  # model of each request, where one router serves several, as an index in
    models: tuple[str, ...] = ()  # these names, or in the models of the fleet where there are no names
    sessions: IntArray | None = None  # conversation of each request
    tasks: IntArray | None = None  # of agents: the task that each request belongs to, from one human's turn to the next
    adapters: IntArray | None = None  # LoRA adapter of each request; -1: none
    terms: ServiceLevels | None = None  # priority, deadline and timeout of each request
    think_s: FloatArray | None = None  # closed loop: seconds a client waits before it sends the i-th request
    graph: RequestGraph | None = None  # which requests wait for which; needs sessions
    media: RequestMedia | None = None  # input_tokens includes their tokens once a model has read them
    random_prompts: bool = False  # prompts are random tokens, as load generators draw them; False: text
    name: str = ""
    source: str = ""
    seed: int = 0

    @classmethod
    def of_sessions(cls, found: ScheduledRequests, **columns: Any) -> Self:
        """Return the requests of sessions, with further columns."""
        return cls(
            arrival_s=found.arrival_s,
            input_tokens=found.input_tokens,
            output_tokens=found.output_tokens,
            concurrency=found.concurrency,
            block_hashes=found.texts,
            hash_block_tokens=BLOCK_TOKENS,
            sessions=found.sessions,
            tasks=found.tasks,
            graph=found.graph,
            **columns,
        )

    @property
    def n(self) -> int:
        """Return the number of requests."""
        return len(self.input_tokens)

    def every(self, k: int) -> RequestSet:
        """Return the requests of one of k replicas behind a round-robin router: rows 0, k, 2k, ... (open loop only).

        Requests that wait for each other stay together: every k-th session is taken.
        """
        if k == 1:
            return self
        if self.graph is None or self.sessions is None:
            return self.taken(slice(None, None, k))
        return self.taken(np.flatnonzero(np.unique(self.sessions, return_inverse=True)[1] % k == 0))

    def taken(self, rows: slice | IntArray) -> RequestSet:
        """Return some of the requests by index, in the given order."""
        graph = None if self.graph is None else self.graph.taken(rows)
        return replace(self, block_hashes=taken(self.block_hashes, rows), graph=graph, **rows_of(self, COLUMNS, rows))

    def with_known(self, tokens: IntArray) -> RequestSet:
        """Return the requests with at most `tokens` of each text shared, in whole blocks. Shape (n,)."""
        hashes = self.block_hashes
        if isinstance(hashes, TextTree):
            hashes = hashes.limited(tokens)
        elif hashes is not None:
            counts = (tokens // self.hash_block_tokens).tolist()
            hashes = tuple(ids[:n] for ids, n in zip(hashes, counts, strict=True))
        return replace(self, block_hashes=hashes)


def taken(hashes: BlockHashes, rows: slice | IntArray) -> BlockHashes:
    """Return the contents of some requests, in the given order. Shape of `rows`: (requests,)."""
    if hashes is None or isinstance(hashes, TextTree):
        return hashes if hashes is None else hashes.taken(rows)
    return hashes[rows] if isinstance(rows, slice) else tuple([hashes[i] for i in rows.tolist()])
