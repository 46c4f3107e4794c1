"""The requests that decode, where each advances by as many tokens as it has drafts accepted: one by one."""

from __future__ import annotations

from simulator.acceptance import Advances
from simulator.decode_set import DecodeSet
from simulator.request import Request
from simulator.speculative_rules import SpeculationRules


class SpeculativeSet(DecodeSet):
    """Counts over decoding requests. A member has base_tokens + rounds tokens in its cache, as in a DecodeSet: its base
    grows with every token beyond one that a round gives it.

    Blocks are those of vLLM V1: a step that is scheduled while another is in flight counts all drafts of that as
    accepted; what is rejected later is not given back, but need not be taken again.
    """

    __slots__ = ("_longest_tokens", "_members", "_rules", "_slack", "accepted")

    def __init__(self, block_size: int, rules: SpeculationRules, lag: int, longest_tokens: int) -> None:
        super().__init__(block_size)
        self._members: dict[Request, Advances] = {}
        self._rules, self._slack, self._longest_tokens = rules, lag, longest_tokens
        self.accepted = 0  # drafts of the round scheduled last

    def add(self, request: Request) -> None:
        advances = request.advances
        assert advances is not None
        tokens = request.computed_tokens
        advances.before, advances.in_flight = tokens - 1, 0
        advances.held_blocks = max(-(-tokens // self._block_size), request.shared_blocks)
        request.base_tokens, request.decodes_in = tokens - self.rounds, self
        request.computed_tokens = -1
        self.n += 1
        self._members[request] = advances

    def remove(self, request: Request) -> None:
        advances = self._members.pop(request)
        self.n -= 1
        request.computed_tokens = request.base_tokens + self.rounds
        request.known_tokens = request.computed_tokens + 1
        request.spare_blocks = advances.held_blocks - self._least(request)

    def end(self, request: Request) -> int:
        """Its last token is scheduled: it leaves. Returns how many tokens of the round were beyond its end."""
        advances = self._members[request]
        surplus = advances.surplus if advances.round == advances.last_round else 0
        request.base_tokens -= surplus
        self.remove(request)
        return surplus

    def advance(self) -> None:
        accepted, rounds = 0, self.rounds
        for request, advances in self._members.items():
            advances.held_blocks = max(advances.held_blocks, self._needs(request, advances))
            advances.before = request.base_tokens + rounds
            more = advances.take() - 1
            request.base_tokens += more
            accepted += more
        self.accepted = accepted
        self.rounds = rounds + 1

    def contexts(self) -> tuple[int, int]:
        tokens = [request.base_tokens + self.rounds for request in self._members]
        return sum(tokens), max(tokens, default=0)

    def blocks_next(self) -> int:
        return sum(max(0, self._needs(r, advances) - advances.held_blocks) for r, advances in self._members.items())

    def blocks_for(self, rounds: int) -> int:
        if rounds > 1:
            raise ValueError("how many blocks speculative rounds need is known one by one")
        return self.blocks_next() if rounds else 0

    def _needs(self, request: Request, advances: Advances) -> int:
        """Blocks it holds in the next round."""
        rules = self._rules
        tokens = request.base_tokens + self.rounds + rules.queries + rules.lookahead_tokens
        if self._slack:
            tokens += advances.in_flight
        return -(-min(tokens, self._longest_tokens) // self._block_size)

    def _least(self, request: Request) -> int:
        """Blocks of its tokens alone."""
        return max(-(-request.computed_tokens // self._block_size), request.shared_blocks)
