"""The dispatch of requests to the data-parallel ranks of a replica, as each engine does it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from simulator.schedulers.continuous_batching import ContinuousBatching
from simulator.schedulers.rules import PRESSURE_FROM

#: vLLM's weight of a waiting request (DPLBAsyncMPClient.get_core_engine_for_request, versions up to 0.17).
WAITING_WEIGHT: Final = 4

#: Weight in later versions, per waiting request and fraction of the cache in use beyond PRESSURE_FROM.
PRESSURE_WEIGHT: Final = 6.0

#: The low 64 bits, in which hashes wrap.
_BITS: Final = (1 << 64) - 1


class RankLoad(Protocol):
    """What a dispatch policy reads of a rank."""

    @property
    def n_requests(self) -> int:
        """Return the number of its unfinished requests."""

    @property
    def prompt_tokens(self) -> int:
        """Return the prompt tokens of these requests."""

    @property
    def n_waiting(self) -> int:
        """Return the number of its waiting requests."""

    @property
    def n_running(self) -> int:
        """Return the number of its requests with a seat."""

    @property
    def used_fraction(self) -> float:
        """Return the share of its KV blocks in use."""


class Rank:
    """One of the ranks among which requests are dispatched.

    Attributes:
        scheduler: The rank's own scheduler.
        n_requests: The number of its unfinished requests.
        prompt_tokens: The prompt tokens of these requests.
        idle: It had nothing to schedule since its last request.
    """

    def __init__(self, scheduler: ContinuousBatching, rounds_ahead: Callable[[], int]) -> None:
        """Create a rank; `rounds_ahead` returns the rounds of a run of steps that are not recorded yet."""
        self.scheduler, self._rounds_ahead = scheduler, rounds_ahead
        self.n_requests = self.prompt_tokens = 0
        self.idle = True

    @property
    def n_waiting(self) -> int:
        """Return the number of waiting requests."""
        return self.scheduler.n_waiting

    @property
    def n_running(self) -> int:
        """Return the number of requests with a seat."""
        return self.scheduler.n_running

    @property
    def used_fraction(self) -> float:
        """Return the share of the rank's KV blocks in use."""
        kv = self.scheduler.kv
        return (kv.held + self.scheduler.blocks_for(self._rounds_ahead())) / max(1, kv.total)


class RankDispatch(ABC):
    """The base class of dispatch policies, which are deterministic and do not know output lengths."""

    @abstractmethod
    def choose(self, index: int, ranks: Sequence[RankLoad]) -> int:
        """Return the index of the rank that gets the request with this index."""


class _LeastScore(RankDispatch):
    """The rank with the lowest score; among equals the next in turn (vLLM: the next client's own first rank)."""

    def __init__(self) -> None:
        self._first = 0

    def choose(self, index: int, ranks: Sequence[RankLoad]) -> int:  # noqa: ARG002 (requests are treated alike)
        """Return the index of the rank with the lowest score."""
        scores = [self.score(rank) for rank in ranks]
        n, first, least = len(ranks), self._first, min(scores)
        self._first = (first + 1) % n
        return next(i % n for i in range(first, first + n) if scores[i % n] == least)

    @abstractmethod
    def score(self, rank: RankLoad) -> float:
        """Return the score of a rank."""


class RankRoundRobin(_LeastScore):
    """One rank after the other, SGLang's default (`round_robin_scheduler`)."""

    def score(self, rank: RankLoad) -> float:  # noqa: ARG002 (the turn decides alone)
        """Return 0 for every rank."""
        return 0.0


class RankLeastRequests(_LeastScore):
    """The rank with the fewest unfinished requests, with a penalty for requests that wait for a full cache.

    This is the newest vLLM. Without the penalty it is SGLang's total_requests and shortest_queue.
    """

    def score(self, rank: RankLoad) -> float:
        """Return the unfinished requests plus the penalty for waiting ones."""
        waiting = rank.n_waiting
        if not waiting:
            return rank.n_requests
        return rank.n_requests + waiting * PRESSURE_WEIGHT * max(0.0, rank.used_fraction - PRESSURE_FROM)


class RankQueueScore(_LeastScore):
    """The rank with the lowest sum of four times its waiting requests and its running ones (vLLM up to 0.17)."""

    def score(self, rank: RankLoad) -> float:
        """Return four times the waiting requests plus the running ones."""
        return WAITING_WEIGHT * rank.n_waiting + rank.n_running


class RankLeastTokens(RankDispatch):
    """The rank with the fewest unfinished prompt tokens, among ranks with fewer requests than an even share.

    This is TensorRT-LLM (`balance_requests_across_ranks`).
    """

    def choose(self, index: int, ranks: Sequence[RankLoad]) -> int:  # noqa: ARG002 (requests arrive one at a time)
        """Return the index of the rank with the fewest unfinished prompt tokens."""
        counts = [rank.n_requests for rank in ranks]
        even = max(-(-(sum(counts) + 1) // len(ranks)), max(counts))
        open_ranks = [i for i, n in enumerate(counts) if n < even] or range(len(ranks))
        return min(open_ranks, key=lambda i: (ranks[i].prompt_tokens, counts[i], i))


class RankRandom(RankDispatch):
    """A rank drawn for each request.

    This is SGLang where prefill and decode are separate (`follow_bootstrap_room`): the rank is the bootstrap room
    modulo the number of ranks, and routers draw the room at random. The draw depends on the request alone.
    """

    def choose(self, index: int, ranks: Sequence[RankLoad]) -> int:
        """Return the index of a rank that is drawn for this request alone."""
        return _mixed(index) % len(ranks)


def _mixed(number: int) -> int:
    """Return 64 well mixed bits of a number (the finalizer of SplitMix64, Steele et al. 2014)."""
    bits = (number + 1) * 0x9E3779B97F4A7C15 & _BITS
    bits = (bits ^ bits >> 30) * 0xBF58476D1CE4E5B9 & _BITS
    bits = (bits ^ bits >> 27) * 0x94D049BB133111EB & _BITS
    return bits ^ bits >> 31


DISPATCHES: Final[dict[str, type[RankDispatch]]] = {
    "round_robin": RankRoundRobin,
    "least_requests": RankLeastRequests,
    "queue_score": RankQueueScore,
    "least_tokens": RankLeastTokens,
    "random": RankRandom,
}
