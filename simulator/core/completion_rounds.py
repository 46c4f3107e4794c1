"""The rounds in which decoding requests schedule their last tokens, which the step loop knows and schedulers do not."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import heapify, heappop, heappush
from typing import Final

from simulator.core.mypyc_modules import mypyc_attr
from simulator.core.request import Request

NEVER: Final = 1 << 62


@mypyc_attr(allow_interpreted_subclasses=True)
class CompletionRounds:
    """The round in which each decoding request of one step loop schedules its last token.

    A round is a batch with decodes. All decoding requests advance in each round, so the round of a request's last token
    is known when it begins to decode.
    """

    __slots__ = ("_heap", "_live", "_serial", "due_round", "rounds")

    def __init__(self) -> None:
        self.rounds = 0  # scheduled rounds
        self.due_round = NEVER  # the first round that may contain a last token
        # (round, serial, request); an entry is stale, and dropped at the top, unless _live has its serial
        self._heap: list[tuple[int, int, Request]] = []
        self._live: dict[Request, int] = {}
        self._serial = 0

    def schedule_completion(self, request: Request, rounds: int) -> None:
        """Record that a request schedules its last token `rounds` rounds from now; 0 means in the latest batch.

        If rounds give more than one token (speculative decoding), `rounds` counts tokens.
        """
        if request.advances is not None:
            rounds = request.advances.rounds_for(rounds)
        self._serial += 1
        self._live[request] = self._serial
        if rounds:
            self._push(request, rounds)

    def _push(self, request: Request, rounds: int) -> None:
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

    def restore(self, rounds: int, serial: int, due: list[tuple[int, int, Request]], ending: Iterable[Request]) -> None:
        """Take over the decoding requests from `simulator/engine/fast_path.py`.

        Args:
            rounds: Scheduled rounds.
            serial: A number above all serials.
            due: The decoding requests as (round of the last token, serial, request).
            ending: Requests whose last token is in flight.
        """
        self.rounds, self._serial, self._heap = rounds, serial, due
        heapify(due)
        self._live = dict.fromkeys(ending, serial) | {request: serial for _, serial, request in due}
        self.due_round = due[0][0] if due else NEVER

    def rounds_left(self) -> int:
        """Return the rounds until the next last token; 0 if there is no decoding request."""
        heap, live = self._heap, self._live
        while heap and live.get(heap[0][2]) != heap[0][1]:
            heappop(heap)
        self.due_round = heap[0][0] if heap else NEVER
        return self.due_round - self.rounds if heap else 0
