"""Content shared between prompts: common prefixes, and the growing context of conversations."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from catalogs.arrays import IntArray
from catalogs.errors import InputError
from catalogs.workloads.sessions.texts import TextTree
from catalogs.workloads.sessions.turns import MOST_CONTEXT_TOKENS, MOST_TURNS, SharedPrefix, Turns


@dataclass(frozen=True, slots=True)
class Sessions:
    """The session and turn of each request, in the order of sessions.

    Arrays have shape (n,); first[i] is the index of the first turn in the session of request i.
    """

    session: IntArray
    turn: IntArray
    first: IntArray

    @property
    def n_sessions(self) -> int:
        """Return the number of sessions."""
        return int(self.session[-1]) + 1

    @classmethod
    def single(cls, n: int) -> Sessions:
        """Return n sessions with one turn each."""
        index = np.arange(n, dtype=np.int64)
        return cls(index, np.zeros(n, dtype=np.int64), index)

    @classmethod
    def drawn(cls, turns: Turns, rng: np.random.Generator, n: int) -> Sessions:
        """Return the fewest whole sessions that together have at least n turns.

        Raises:
            InputError: They have more than MOST_TURNS turns.
        """
        counts = turns.per_session.sample(rng, n)
        ends = np.cumsum(counts)
        last = min(int(np.searchsorted(ends, n)), len(ends) - 1)
        if ends[last] > MOST_TURNS:
            raise InputError(f"sessions have at most {MOST_TURNS:,} turns together", int(ends[last]))
        counts = counts[: last + 1]
        starts = np.repeat(np.cumsum(counts) - counts, counts)
        session = np.repeat(np.arange(len(counts)), counts)
        return cls(session, np.arange(len(starts)) - starts, starts)

    def context_tokens(self, inputs: IntArray, outputs: IntArray) -> IntArray:
        """Return the tokens of all earlier turns of the same session. Shape (n,)."""
        before = np.cumsum(inputs + outputs) - (inputs + outputs)
        context: IntArray = before - before[self.first]
        return context


def conversation_texts(
    sessions: Sessions, known_tokens: IntArray, prefix: SharedPrefix | None, groups: IntArray
) -> TextTree:
    """Return the texts of conversations: each turn begins with the whole turn before it, the first with the prefix.

    Args:
        sessions: The sessions that the requests belong to.
        known_tokens: Tokens of each request whose content is known. Shape (requests,).
        prefix: The prefix that sessions of a group share, if there is one.
        groups: The group of each session. Shape (sessions,).

    Raises:
        InputError: A conversation has more tokens than any context.
    """
    if known_tokens.max(initial=0) > MOST_CONTEXT_TOKENS:
        rule = f"a conversation with shared content has at most {MOST_CONTEXT_TOKENS:,} tokens"
        raise InputError(rule, int(known_tokens.max()))
    n_groups, shared = (prefix.groups, prefix.tokens) if prefix else (0, 0)
    n = len(known_tokens)
    text, is_first = n_groups + np.arange(n), sessions.turn == 0
    before = np.concatenate([[0], known_tokens[:-1]])
    parent = np.where(is_first, groups[sessions.session] if prefix else -1, text - 1)
    kept = np.where(is_first, np.minimum(shared, known_tokens), np.minimum(before, known_tokens))
    return TextTree(
        parent=np.concatenate([np.full(n_groups, -1), parent]),
        kept_tokens=np.concatenate([np.zeros(n_groups, dtype=np.int64), kept]),
        tokens=np.concatenate([np.full(n_groups, shared), known_tokens]),
        text=text,
        known_tokens=known_tokens,
    )
