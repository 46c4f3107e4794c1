"""The rounds in which decoding requests schedule their last tokens, which only the step loop knows."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush
from typing import Final

from simulator.core.request import Request

NEVER: Final = 1 << 62


class CompletionRounds:
    """The round of the last token of every decoding request of one step loop.

    A round is a batch with decodes. All decoding requests advance in each round, so the last token of a request has a
    known round.
    """

    __slots__ = ("_heap", "_live", "_serial", "due_round", "rounds")

    def __init__(self) -> None:
        self.rounds = 0  # scheduled rounds
        self.due_round = NEVER  # the first round that may contain a last token
        # (round, serial, request); an entry is stale, and dropped at the top, unless _live has its serial
        self._heap: list[tuple[int, int, Request]] = []
        self._live: dict[Request, int] = {}
        self._serial = 0

    def foresee(self, request: Request, rounds: int) -> None:
        """Schedule the last token of a request `rounds` rounds from now; 0 means that it has just been scheduled.

        If rounds give more than one token (speculative decoding), `rounds` counts tokens.
        """
        if request.advances is not None:
            rounds = request.advances.foresee(rounds)
        self._serial += 1
        self._live[request] = self._serial
        if rounds:
            heappush(self._heap, (self.rounds + rounds, self._serial, request))
            self.due_round = self._heap[0][0]

    def forget(self, request: Request) -> bool:
        """Drop a request that ends or restarts; return False if it was not decoding here."""
        return self._live.pop(request, None) is not None

    def due(self) -> Iterator[Request]:
        """Yield the requests whose round has come, once."""
        heap = self._heap
        while heap and heap[0][0] <= self.rounds:
            _, serial, request = heappop(heap)
            if self._live.get(request) == serial:
                yield request
        self.due_round = heap[0][0] if heap else NEVER

    def rounds_left(self) -> int:
        """Return the rounds until the next last token; 0 if there is no decoding request."""
        heap, live = self._heap, self._live
        while heap and live.get(heap[0][2]) != heap[0][1]:
            heappop(heap)
        self.due_round = heap[0][0] if heap else NEVER
        return self.due_round - self.rounds if heap else 0
