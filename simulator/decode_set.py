"""The requests that decode, as sums: every one of them advances by one token a step, so nobody is visited."""

from __future__ import annotations

from heapq import heappop, heappush

from simulator.request import Request


class DecodeSet:
    """Counts over decoding requests.

    `rounds` counts scheduled steps; a member has base_tokens + rounds tokens in its cache.
    """

    __slots__ = ("_base_sum", "_block_size", "_longest", "_phases", "_serial", "n", "rounds")

    def __init__(self, block_size: int) -> None:
        self.n = 0
        self.rounds = 0
        self._block_size = block_size
        self._base_sum = 0
        self._phases = [0] * block_size  # members by base_tokens % block_size
        self._longest: list[tuple[int, int, Request]] = []  # heap of (-base, serial, request); stale entries on top go
        self._serial = 0

    def add(self, request: Request) -> None:
        """It has request.computed_tokens cached and joins from the next round on."""
        base = request.computed_tokens - self.rounds
        request.base_tokens, request.decodes_in = base, self
        self.n += 1
        self._base_sum += base
        self._phases[base % self._block_size] += 1
        self._serial += 1
        heappush(self._longest, (-base, self._serial, request))
        request.computed_tokens = -1  # marks membership; the true value is base + rounds

    def remove(self, request: Request) -> None:
        base = request.base_tokens
        self.n -= 1
        self._base_sum -= base
        self._phases[base % self._block_size] -= 1
        request.computed_tokens = base + self.rounds
        request.known_tokens = request.computed_tokens + 1

    def advance(self) -> None:
        """A round is scheduled."""
        self.rounds += 1

    def contexts(self) -> tuple[int, int]:
        """Tokens in the caches of all members before the next round: their sum, and the most."""
        longest, rounds = self._longest, self.rounds
        while longest:
            negative, _, request = longest[0]
            if request.computed_tokens < 0 and request.base_tokens == -negative and request.decodes_in is self:
                return self._base_sum + self.n * rounds, rounds - negative
            heappop(longest)
        return 0, 0

    def blocks_next(self) -> int:
        """Blocks the next round needs: members whose cache is a whole number of blocks."""
        return self._phases[-self.rounds % self._block_size]

    def blocks_for(self, rounds: int) -> int:
        """Blocks the next `rounds` rounds need, in all."""
        size = self._block_size
        whole, rest = divmod(rounds, size)
        blocks = whole * self.n
        if rest:
            # round i (0-based) meets phase (-rounds - i) mod size: `rest` neighbours ending at -rounds
            high = -self.rounds % size + 1
            low = high - rest
            phases = self._phases
            blocks += sum(phases[low:high]) if low >= 0 else sum(phases[:high]) + sum(phases[low:])
        return blocks
