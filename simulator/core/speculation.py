"""Speculative decoding: the rules of a replica, and the accepted drafts drawn for each request.

The draws depend only on the seed of the run, the request's row in the workload and the number of its rounds so far.
They do not depend on when or where the rounds run, or on the other requests in the batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

import numpy as np

if TYPE_CHECKING:
    from catalogs.deployments.speculation import Speculation


#: Number of rounds drawn at once.
DRAWN: Final = 64

#: Increment of the SplitMix64 generator, 2**64 over the golden ratio, and the low 64 bits in which it wraps.
_GOLDEN, _MASK = 0x9E3779B97F4A7C15, (1 << 64) - 1


class AcceptedDrafts:
    """The number of tokens that one request gains in each of its speculative rounds."""

    __slots__ = (
        "_key",
        "_rules",
        "_tokens",
        "before",
        "drafted",
        "held_blocks",
        "in_flight",
        "last_round",
        "round",
        "surplus",
    )

    def __init__(self, rules: SpeculationRules, index: int) -> None:
        self._rules = rules
        self._key = _mixed(np.array([(rules.seed * _GOLDEN + index + 1) & _MASK], dtype=np.uint64))
        self._tokens: list[int] = []  # of each round; 0: no drafts were found, and the round gives one token
        self.round = 0  # the next round
        self.last_round = -1  # the round count at which the request ends, once that is known
        self.surplus = 0  # tokens of the last round beyond the request's end
        self.drafted = True  # whether the most recently scheduled round brought drafts
        self.before = 0  # cached tokens before the most recently scheduled round
        self.in_flight = 0  # tokens of that round that are rolled back: rejected drafts
        self.held_blocks = 0  # blocks held while decoding, including those beyond its tokens

    def take(self) -> int:
        """Schedule the next round and return its number of output tokens."""
        drawn = self._at(self.round)
        self.round += 1
        self.drafted = drawn > 0
        tokens = drawn or 1
        self.in_flight = self._rules.queries - tokens if drawn else 0
        return tokens

    def rounds_for(self, tokens: int) -> int:
        """Return the number of further rounds that give `tokens` tokens, after which the request ends."""
        rounds = given = 0
        while given < tokens:
            given += self._at(self.round + rounds) or 1
            rounds += 1
        self.last_round, self.surplus = self.round + rounds, given - tokens
        return rounds

    def _at(self, number: int) -> int:
        while number >= len(self._tokens):
            self._tokens += self._draw(len(self._tokens))
        return self._tokens[number]

    def _draw(self, first: int) -> list[int]:
        """Return the tokens of DRAWN rounds from `first` on: one each plus the accepted drafts, or 0 without drafts."""
        bits = _mixed(np.arange(first + 1, first + 1 + DRAWN, dtype=np.uint64) * np.uint64(_GOLDEN) + self._key)
        chance = (bits >> np.uint64(11)) * 2.0**-53
        found = self._rules.draft_rate
        tokens = 1 + (chance[:, None] < found * np.array(self._rules.rates)).sum(axis=1)
        drawn: list[int] = np.where(chance < found, tokens, 0).tolist()
        return drawn


def _mixed(x: np.ndarray) -> np.ndarray:
    """Return the output of splitmix64's finaliser for 64-bit integers (Steele et al. 2014). Shape (n,), as `x`."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(x ^ (x >> np.uint64(31)))


@dataclass(frozen=True, slots=True)
class SpeculationRules:
    """The rules of speculative decoding on one replica.

    In each round a decode computes `queries` tokens in a step: its last token and the drafts.

    Attributes:
        queries: Tokens that each decode computes per step.
        rates: `rates[i]` is the fraction of rounds with drafts in which at least i + 1 consecutive drafts are accepted.
            The values never increase with i.
        draft_rate: The fraction of rounds for which the drafter finds drafts; below 1 only for n-gram lookup.
        lookahead_tokens: KV slots that the drafter needs beyond those of the step's tokens.
        budget_tokens: Tokens of the step's token budget that each decode takes beyond its queries.
        recomputes_block: Whether a cached prefix is used without its last block.
        seed: The seed of the accepted drafts.
    """

    queries: int
    rates: tuple[float, ...]
    draft_rate: float = 1.0
    lookahead_tokens: int = 0
    budget_tokens: int = 0
    recomputes_block: bool = False
    seed: int = 0

    @property
    def drafts(self) -> int:
        """Return the maximum number of drafts that a round accepts."""
        return len(self.rates)

    def most_spare_tokens(self, lag: int) -> int:
        """Return the maximum number of KV slots that a request holds beyond its tokens.

        They hold the drafts of a step, those of a step in flight, and the lookahead of the drafter.
        """
        return (1 + lag) * (self.queries - 1) + self.lookahead_tokens

    @classmethod
    def of(cls, options: Speculation, seed: int) -> Self:
        """Return the rules of a deployment's replicas; `seed` is the seed of the accepted drafts."""
        names = ("queries", "rates", "draft_rate", "lookahead_tokens", "budget_tokens", "recomputes_block")
        return cls(**{name: getattr(options, name) for name in names}, seed=seed)
