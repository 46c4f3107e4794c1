"""How far speculative decoding gets: drafts that are accepted, drawn for each request from the run's seed.

What is drawn depends on nothing but the seed, the request's row in the workload and how many rounds it has had: not on
when those run, nor where, nor with whom.

How the replicas of a deployment speculate: all that a scheduler and the draws of accepted drafts know of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

import numpy as np

if TYPE_CHECKING:
    from catalogs.deployments.speculation import Speculation


#: Rounds drawn at once.
DRAWN: Final = 64

_GOLDEN, _MASK = 0x9E3779B97F4A7C15, (1 << 64) - 1


class AcceptedDrafts:
    """The rounds of one request: so many tokens in each."""

    __slots__ = ("_key", "_rules", "_tokens", "before", "held_blocks", "in_flight", "last_round", "round", "surplus")

    def __init__(self, rules: SpeculationRules, index: int) -> None:
        self._rules = rules
        self._key = _mixed((rules.seed * _GOLDEN + index + 1) & _MASK)
        self._tokens: list[int] = []
        self.round = 0  # the next
        self.last_round = -1  # after which it has ended, where that is known
        self.surplus = 0  # tokens of that round beyond the request's end
        self.before = 0  # cached tokens before the round scheduled last
        self.in_flight = 0  # tokens of that round that may be taken back: rejected drafts
        self.held_blocks = 0  # while it decodes: those beyond its tokens among them

    def take(self) -> int:
        """The tokens of the next round, which is scheduled now."""
        tokens = self._at(self.round)
        self.round += 1
        self.in_flight = self._rules.queries - tokens
        return tokens

    def foresee(self, tokens: int) -> int:
        """How many further rounds give so many tokens."""
        rounds = given = 0
        while given < tokens:
            given += self._at(self.round + rounds)
            rounds += 1
        self.last_round, self.surplus = self.round + rounds, given - tokens
        return rounds

    def _at(self, number: int) -> int:
        while number >= len(self._tokens):
            self._tokens += self._draw(len(self._tokens))
        return self._tokens[number]

    def _draw(self, first: int) -> list[int]:
        """Tokens of the rounds from `first` on: one, and as many drafts as are accepted."""
        with np.errstate(over="ignore"):
            numbers = np.arange(first + 1, first + 1 + DRAWN, dtype=np.uint64) * np.uint64(_GOLDEN)
            bits = _mixed_all(numbers + np.uint64(self._key))
        chance = (bits >> np.uint64(11)) * 2.0**-53
        drawn: list[int] = (1 + (chance[:, None] < np.array(self._rules.rates)).sum(axis=1)).tolist()
        return drawn


def _mixed(x: int) -> int:
    """splitmix64's finaliser (Steele et al. 2014)."""
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)


def _mixed_all(x: np.ndarray) -> np.ndarray:
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(x ^ (x >> np.uint64(31)))


@dataclass(frozen=True, slots=True)
class SpeculationRules:
    """How one replica speculates. Each round a decode brings `queries` tokens into a step: its last one, and drafts.

    rates[i]: of all rounds, those in which at least i + 1 drafts in a row are accepted; never rising.
    lookahead_tokens: KV slots that the drafter needs beyond those of the step's tokens.
    budget_tokens: what each decode takes of the step's token budget beyond its queries.
    recomputes_block: a cached prefix is used but for its last block.
    """

    queries: int
    rates: tuple[float, ...]
    lookahead_tokens: int = 0
    budget_tokens: int = 0
    recomputes_block: bool = False
    seed: int = 0

    @property
    def drafts(self) -> int:
        """Most that a round accepts."""
        return len(self.rates)

    def most_spare_tokens(self, lag: int) -> int:
        """KV slots a request may hold beyond all its tokens: a step's drafts, those of a step in flight, and more."""
        return (1 + lag) * (self.queries - 1) + self.lookahead_tokens

    @classmethod
    def of(cls, asked: Speculation, seed: int) -> Self:
        """What a deployment's speculation makes of its replicas; `seed`: of the drafts that are accepted."""
        return cls(
            asked.queries, asked.rates, asked.lookahead_tokens, asked.budget_tokens, asked.recomputes_block, seed
        )
