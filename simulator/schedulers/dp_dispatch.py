"""The dispatch of requests to the data-parallel ranks of a replica, as each engine does it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Final, Protocol

from simulator.core.request import Request

#: vLLM's weight of a waiting request (DPLBAsyncMPClient.get_core_engine_for_request, versions up to 0.15).
WAITING_WEIGHT: Final = 4

#: Weight in later versions, per waiting request and fraction of the cache in use beyond one half.
PRESSURE_WEIGHT: Final = 6.0

PRESSURE_FROM: Final = 0.5


class RankQueue(Protocol):
    """The state of a rank that dispatch reads."""

    @property
    def n_running(self) -> int:
        """The number of requests with a seat."""

    @property
    def n_waiting(self) -> int:
        """The number of waiting requests."""

    @property
    def used_fraction(self) -> float:
        """The share of KV blocks in use."""

    @property
    def n_requests(self) -> int:
        """The number of unfinished requests."""

    @property
    def prompt_tokens(self) -> int:
        """The prompt tokens of unfinished requests."""


class RankDispatch(ABC):
    """The base class of dispatch policies, which are deterministic and do not know output lengths."""

    @abstractmethod
    def choose(self, request: Request, ranks: Sequence[RankQueue]) -> int:
        """Return the index of the rank that gets the request."""


class RankRoundRobin(RankDispatch):
    """One rank after the other, SGLang's default (`round_robin_scheduler`)."""

    def __init__(self) -> None:
        self._turn = -1

    def choose(self, request: Request, ranks: Sequence[RankQueue]) -> int:  # noqa: ARG002 (depends on neither)
        """Return the index of the next rank in turn."""
        self._turn = (self._turn + 1) % len(ranks)
        return self._turn


class _LeastScore(RankDispatch):
    """The rank with the lowest score; among equals the next in turn (vLLM: the next client's own first rank)."""

    def __init__(self) -> None:
        self._first = 0

    def choose(self, request: Request, ranks: Sequence[RankQueue]) -> int:  # noqa: ARG002 (requests are treated alike)
        """Return the index of the rank with the lowest score."""
        scores = [self.score(rank) for rank in ranks]
        n, first, least = len(ranks), self._first, min(scores)
        self._first = (first + 1) % n
        return next(i % n for i in range(first, first + n) if scores[i % n] == least)

    @abstractmethod
    def score(self, rank: RankQueue) -> float:
        """Return the score of a rank."""


class RankLeastRequests(_LeastScore):
    """The rank with the fewest unfinished requests, with a penalty for requests that wait for a full cache.

    This is the newest vLLM. Without the penalty it is SGLang's total_requests and shortest_queue.
    """

    def score(self, rank: RankQueue) -> float:
        """Return the unfinished requests plus the penalty for waiting ones."""
        waiting = rank.n_waiting
        if not waiting:
            return rank.n_requests
        return rank.n_requests + waiting * PRESSURE_WEIGHT * max(0.0, rank.used_fraction - PRESSURE_FROM)


class RankQueueScore(_LeastScore):
    """The rank with the lowest sum of four times its waiting requests and its running ones (vLLM up to 0.15)."""

    def score(self, rank: RankQueue) -> float:
        """Return four times the waiting requests plus the running ones."""
        return WAITING_WEIGHT * rank.n_waiting + rank.n_running


class RankLeastTokens(RankDispatch):
    """The rank with the fewest unfinished prompt tokens, among ranks with fewer requests than an even share.

    This is TensorRT-LLM (`balance_requests_across_ranks`).
    """

    def choose(self, request: Request, ranks: Sequence[RankQueue]) -> int:  # noqa: ARG002 (requests arrive one at a time)
        """Return the index of the rank with the fewest unfinished prompt tokens."""
        counts = [rank.n_requests for rank in ranks]
        even = max(-(-(sum(counts) + 1) // len(ranks)), max(counts))
        open_ranks = [i for i, n in enumerate(counts) if n < even] or range(len(ranks))
        return min(open_ranks, key=lambda i: (ranks[i].prompt_tokens, counts[i], i))


DISPATCHES: Final[dict[str, type[RankDispatch]]] = {
    "round_robin": RankRoundRobin,
    "least_requests": RankLeastRequests,
    "queue_score": RankQueueScore,
    "least_tokens": RankLeastTokens,
}
