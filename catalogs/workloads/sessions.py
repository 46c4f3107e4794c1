"""Content shared between prompts: common prefixes, and the growing context of conversations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from pydantic import NonNegativeFloat, field_validator

from catalogs.arrays import IntArray
from catalogs.errors import InputError
from catalogs.io.yaml_files import YamlBlock
from catalogs.workloads.arrivals import Count
from catalogs.workloads.lengths import Lengths, parse_lengths

#: Tokens per block of the ids drawn here; also the default block size of engines.
BLOCK_TOKENS: Final = 16

#: Most tokens of one conversation with block ids; the longest published context has as many.
MOST_CONTEXT_TOKENS: Final = 10_000_000

#: Most block ids of a workload; each takes 36 bytes of memory.
MOST_BLOCKS: Final = 100_000_000

#: Most turns of the sessions of a workload, which are drawn whole.
MOST_TURNS: Final = 20_000_000


class SharedPrefix(YamlBlock):
    """A shared prefix: the first `tokens` of each prompt (or conversation) are one of `groups` texts, picked at random.

    They count as part of input_tokens; a prompt of at most `tokens` tokens is shared completely.
    """

    tokens: Count
    groups: Count = 1


class Turns(YamlBlock):
    """Conversations: a prompt holds every earlier prompt and answer of its session, then its own input_tokens.

    `per_session` is the distribution of the number of turns. `think_time_s` is the mean of the exponential time from
    the arrival of one turn to that of the next. It does not shrink when the request rate rises (more users, not faster
    ones).
    """

    per_session: Lengths
    think_time_s: NonNegativeFloat = 10.0

    @property
    def span_s(self) -> float:
        """Return the mean time from the first turn of a session to its last, seconds."""
        return self.think_time_s * (float(self.per_session.sample(np.random.default_rng(0), 4096).mean()) - 1.0)

    @field_validator("per_session", mode="before")
    @classmethod
    def _parse(cls, data: Any) -> Lengths:
        return data if isinstance(data, Lengths) else parse_lengths(data, "turns.per_session")


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


def block_ids(
    sessions: Sessions, known_tokens: IntArray, prefix: SharedPrefix | None, groups: IntArray
) -> tuple[tuple[int, ...], ...]:
    """Return the ids of the full blocks of the first `known_tokens` tokens of each request.

    Args:
        sessions: The sessions that the requests belong to.
        known_tokens: Tokens of each request whose content is known. Shape (requests,).
        prefix: The prefix that sessions of a group share, if there is one.
        groups: The group of each session. Shape (sessions,).

    Raises:
        InputError: A conversation has more tokens than any context, or all have too many blocks for the memory.
    """
    if known_tokens.max(initial=0) > MOST_CONTEXT_TOKENS:
        rule = f"a conversation with shared content has at most {MOST_CONTEXT_TOKENS:,} tokens"
        raise InputError(rule, int(known_tokens.max()))
    if known_tokens.sum() // BLOCK_TOKENS > MOST_BLOCKS:
        rule = f"a workload has at most {MOST_BLOCKS:,} blocks of {BLOCK_TOKENS} tokens with shared content"
        raise InputError(rule, int(known_tokens.sum()) // BLOCK_TOKENS, hint="draw fewer requests")
    shared = prefix.tokens // BLOCK_TOKENS if prefix else 0
    n_shared_ids = shared * (prefix.groups if prefix else 0)
    blocks = known_tokens // BLOCK_TOKENS
    longest = np.zeros(sessions.n_sessions, dtype=np.int64)
    np.maximum.at(longest, sessions.session, blocks)
    base = (n_shared_ids + np.cumsum(longest) - longest)[sessions.session].tolist()
    group_start = (groups[sessions.session] * shared).tolist()
    return tuple(
        [
            (*range(g, g + min(shared, k)), *range(b + shared, b + k))
            for b, g, k in zip(base, group_start, blocks.tolist(), strict=True)
        ]
    )
