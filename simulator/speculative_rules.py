"""How the replicas of a deployment speculate: all that a scheduler and the draws of accepted drafts know of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from catalogs.speculation import Speculation


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
