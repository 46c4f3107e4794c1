"""Which of a replica's data-parallel ranks gets a request: each engine's own way."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Final, Protocol

from simulator.core.request import Request

#: vLLM's weight of a waiting request (DPLBAsyncMPClient.get_core_engine_for_request up to 0.15).
WAITING_WEIGHT: Final = 4

#: Later versions': per waiting request and fraction of the cache in use beyond a half.
PRESSURE_WEIGHT: Final = 6.0

PRESSURE_FROM: Final = 0.5


class RankQueue(Protocol):
    """What dispatch sees of a rank."""

    @property
    def n_running(self) -> int: ...

    @property
    def n_waiting(self) -> int: ...

    @property
    def used_fraction(self) -> float: ...

    @property
    def n_requests(self) -> int:
        """Unfinished."""

    @property
    def prompt_tokens(self) -> int:
        """Of unfinished requests."""


class RankDispatch(ABC):
    """Chooses among ranks; draws nothing and knows no output lengths."""

    @abstractmethod
    def choose(self, request: Request, ranks: Sequence[RankQueue]) -> int:
        """The place of the rank that gets the request."""


class RankRoundRobin(RankDispatch):
    """SGLang's default (`round_robin_scheduler`)."""

    def __init__(self) -> None:
        self._turn = -1

    def choose(self, request: Request, ranks: Sequence[RankQueue]) -> int:  # noqa: ARG002 - looks at nobody
        self._turn = (self._turn + 1) % len(ranks)
        return self._turn


class _LeastScore(RankDispatch):
    """The lowest score, among equals the next in turn (vLLM: the next client's own first rank)."""

    def __init__(self) -> None:
        self._first = 0

    def choose(self, request: Request, ranks: Sequence[RankQueue]) -> int:  # noqa: ARG002 - requests are alike
        scores = [self.score(rank) for rank in ranks]
        n, first, least = len(ranks), self._first, min(scores)
        self._first = (first + 1) % n
        return next(i % n for i in range(first, first + n) if scores[i % n] == least)

    @abstractmethod
    def score(self, rank: RankQueue) -> float: ...


class RankLeastRequests(_LeastScore):
    """Fewest unfinished requests, those that wait for a full cache counting more (vLLM, newest; with no more than the
    first, SGLang's total_requests and shortest_queue)."""

    def score(self, rank: RankQueue) -> float:
        waiting = rank.n_waiting
        if not waiting:
            return rank.n_requests
        return rank.n_requests + waiting * PRESSURE_WEIGHT * max(0.0, rank.used_fraction - PRESSURE_FROM)


class RankQueueScore(_LeastScore):
    """Waiting requests four times, running ones once (vLLM up to 0.15)."""

    def score(self, rank: RankQueue) -> float:
        return WAITING_WEIGHT * rank.n_waiting + rank.n_running


class RankLeastTokens(RankDispatch):
    """Fewest prompt tokens under way, of ranks that hold fewer requests than an even share (TensorRT-LLM,
    `balance_requests_across_ranks`)."""

    def choose(self, request: Request, ranks: Sequence[RankQueue]) -> int:  # noqa: ARG002 - one at a time
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
