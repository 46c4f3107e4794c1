"""When the requests that decode on a lane schedule their last tokens: only the clock of the requests knows it."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush
from typing import Final

from simulator.core.request import Request

NEVER: Final = 1 << 62


class CompletionRounds:
    """Rounds are batches with decodes: all that decode advance in each, so a request's last token has its round."""

    __slots__ = ("_heap", "_live", "_serial", "due_round", "rounds")

    def __init__(self) -> None:
        self.rounds = 0  # scheduled
        self.due_round = NEVER  # the first that may hold a last token
        # (round, serial, request); an entry is stale, and dropped when met, unless its serial is the request's in _live
        self._heap: list[tuple[int, int, Request]] = []
        self._live: dict[Request, int] = {}
        self._serial = 0

    def foresee(self, request: Request, rounds: int) -> None:
        """It schedules its last token so many rounds from now; 0: it has just done so. Where rounds give more than one
        token, so many tokens from now."""
        if request.advances is not None:
            rounds = request.advances.foresee(rounds)
        self._serial += 1
        self._live[request] = self._serial
        if rounds:
            heappush(self._heap, (self.rounds + rounds, self._serial, request))
            self.due_round = self._heap[0][0]

    def forget(self, request: Request) -> bool:
        """It ends, or begins again. False where it was not decoding here."""
        return self._live.pop(request, None) is not None

    def due(self) -> Iterator[Request]:
        """Those whose round has come, once."""
        heap = self._heap
        while heap and heap[0][0] <= self.rounds:
            _, serial, request = heappop(heap)
            if self._live.get(request) == serial:
                yield request
        self.due_round = heap[0][0] if heap else NEVER

    def rounds_left(self) -> int:
        """Until the next last token; 0 where nobody decodes."""
        heap, live = self._heap, self._live
        while heap and live.get(heap[0][2]) != heap[0][1]:
            heappop(heap)
        self.due_round = heap[0][0] if heap else NEVER
        return self.due_round - self.rounds if heap else 0
