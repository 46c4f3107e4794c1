"""Last tokens where ranks step together: one may prefill, and its decodes stand still, while others go on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import heappop, heappush

from simulator.last_tokens import NEVER, LastTokens
from simulator.request import Request


class RankRounds(LastTokens):
    """Rounds are steps in which any rank decodes; each rank lags behind by those it stood still in. `rank_of`: where
    a request decodes."""

    __slots__ = ("_behind", "_heaps", "_rank_of")

    def __init__(self, n_ranks: int, rank_of: Callable[[Request], int]) -> None:
        super().__init__()
        self._rank_of = rank_of
        self._behind = [0] * n_ranks
        self._heaps: list[list[tuple[int, int, Request]]] = [[] for _ in range(n_ranks)]  # rounds of the rank itself

    def stand_still(self, rank: int) -> None:
        """It does not decode in the round that comes."""
        self._behind[rank] += 1
        self._look()

    def foresee(self, request: Request, rounds: int) -> None:
        if request.advances is not None:
            rounds = request.advances.foresee(rounds)
        self._serial += 1
        self._live[request] = self._serial
        if rounds:
            rank = self._rank_of(request)
            heappush(self._heaps[rank], (self.rounds - self._behind[rank] + rounds, self._serial, request))
            self._look()

    def _look(self) -> None:
        ends = (heap[0][0] + behind for heap, behind in zip(self._heaps, self._behind, strict=True) if heap)
        self.due_round = min(ends, default=NEVER)

    def due(self) -> Iterator[Request]:
        for heap, behind in zip(self._heaps, self._behind, strict=True):
            while heap and heap[0][0] + behind <= self.rounds:
                _, serial, request = heappop(heap)
                if self._live.get(request) == serial:
                    yield request
        self._look()

    def rounds_left(self) -> int:
        live = self._live
        for heap in self._heaps:
            while heap and live.get(heap[0][2]) != heap[0][1]:
                heappop(heap)
        self._look()
        return self.due_round - self.rounds if self.due_round < NEVER else 0
