"""Sessions of agents: turns that wait for each other, sub-agents, and contexts that grow and begin again."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from catalogs.arrays import BoolArray, FloatArray, IntArray
from catalogs.errors import InputError
from catalogs.workloads.lengths import Lengths
from catalogs.workloads.sessions.texts import TextTree
from catalogs.workloads.sessions.turns import ANSWER_S, MOST_CONTEXT_TOKENS, MOST_TURNS, SharedPrefix, Turns


@dataclass(slots=True)
class Lines:
    """The requests of sessions, session by session, in an order in which each follows those that it waits for.

    A line is the turns of one agent or sub-agent.
    """

    session: list[int] = field(default_factory=list)
    previous: list[int] = field(default_factory=list)  # the turn before in the same line; -1 for its first turn
    is_sub: list[bool] = field(default_factory=list)
    waits: list[tuple[int, int]] = field(default_factory=list)

    def add_line(self, session: int, turns: int, after: list[int], is_sub: bool) -> int:
        """Add a line of turns, the first of which waits for the requests `after`; return its last request."""
        previous = -1
        for _ in range(turns):
            previous = self.add_turn(session, previous, after, is_sub)
            after = [previous]
        return previous

    def add_turn(self, session: int, previous: int, after: list[int], is_sub: bool) -> int:
        """Add a request and return its index."""
        index = len(self.session)
        self.session.append(session)
        self.previous.append(previous)
        self.is_sub.append(is_sub)
        self.waits.extend((index, other) for other in after)
        return index


def draw_lines(turns: Turns, streams: list[np.random.Generator], n: int) -> Lines:
    """Return the fewest whole sessions that together have at least n requests.

    Args:
        turns: The description of the sessions.
        streams: Two random streams, for the turns and for the sub-agents.
        n: The number of requests.

    Raises:
        InputError: They have more than MOST_TURNS turns.
    """
    lines, session, subagents = Lines(), 0, turns.subagents
    while len(lines.session) < n:
        for count in turns.per_session.sample(streams[0], 64).tolist():
            if count > MOST_TURNS:
                raise InputError(f"sessions have at most {MOST_TURNS:,} turns together", count)
            spawns = np.zeros(count) if subagents is None else streams[1].random(count) < subagents.share
            last = -1
            after: list[int] = []
            for turn in range(count):
                last = lines.add_turn(session, last, after, is_sub=False)
                after = [last]
                if spawns[turn] and turn + 1 < count and subagents is not None:
                    n_parallel = int(subagents.parallel.sample(streams[1], 1)[0])
                    sizes = subagents.turns.sample(streams[1], n_parallel).tolist()
                    after = [lines.add_line(session, size, [last], is_sub=True) for size in sizes]
            session += 1
            if len(lines.session) >= n:
                break
    return lines


@dataclass(frozen=True, slots=True)
class AgentSessions:
    """Drawn sessions; arrays have shape (n,), in the order of `Lines`.

    Attributes:
        session: Session of each request, from 0.
        waits: As in RequestGraph.
        gap_s: Time from the end of the last request that each waits for; 0 for the first of a session.
        by_human: Whether a human sent the request: the first of a session, and others after the time of a human.
        inputs: Tokens of each prompt.
        outputs: Tokens of each output.
        texts: The texts of prompts and outputs.
    """

    session: IntArray
    waits: IntArray
    gap_s: FloatArray
    by_human: BoolArray
    inputs: IntArray
    outputs: IntArray
    texts: TextTree

    @property
    def n_sessions(self) -> int:
        """Return the number of sessions."""
        return int(self.session[-1]) + 1

    def tasks(self) -> IntArray:
        """Return the task of each request, from 0: what an agent does from one request of a human to the next.

        Shape (n,). Sub-agents work on the task of the request that starts them.
        """
        return np.asarray(np.cumsum(self.by_human) - 1)

    def plays(self, sessions: IntArray) -> AgentSessions:
        """Return these sessions, each with texts of its own, also where a session is played more than once.

        Requests of a session must be in a row, and text i must be that of request i. Shape (plays,).
        """
        size = np.bincount(self.session)
        first = np.cumsum(size) - size
        n = size[sessions]
        begin = np.cumsum(n) - n
        rows = np.arange(int(n.sum())) + np.repeat(first[sessions] - begin, n)
        moved = np.repeat(begin - first[sessions], n)
        per_session = np.bincount(self.session[self.waits[:, 0]], minlength=len(size))
        first_wait = np.cumsum(per_session) - per_session
        k = per_session[sessions]
        wait_rows = np.arange(int(k.sum())) + np.repeat(first_wait[sessions] - (np.cumsum(k) - k), k)
        parent = self.texts.parent[rows]
        texts = TextTree(
            parent=np.where(parent < 0, -1, parent + moved),
            kept_tokens=self.texts.kept_tokens[rows],
            tokens=self.texts.tokens[rows],
            text=np.arange(len(rows)),
            known_tokens=self.texts.known_tokens[rows],
        )
        return AgentSessions(
            session=np.repeat(np.arange(len(sessions)), n),
            waits=self.waits[wait_rows] + np.repeat(begin - first[sessions], k)[:, None],
            gap_s=self.gap_s[rows],
            by_human=self.by_human[rows],
            inputs=self.inputs[rows],
            outputs=self.outputs[rows],
            texts=texts,
        )

    def start_s(self) -> FloatArray:
        """Return when each request would be sent if every answer took ANSWER_S, from the start of its session.

        Shape (n,). Only the order of requests, and how far sessions have come at the start of a run, depend on it.
        """
        start = self.gap_s.tolist()
        ready = [0.0] * len(start)
        at = 0
        waits = self.waits.tolist()
        for index in range(len(start)):
            while at < len(waits) and waits[at][0] == index:
                ready[index] = max(ready[index], start[waits[at][1]] + ANSWER_S)
                at += 1
            start[index] += ready[index]
        return np.array(start)

    def client_times_s(self, clients: int) -> FloatArray:
        """Return `start_s` where each client takes every clients-th session, one after the other. Shape (n,)."""
        start, n = self.start_s(), self.n_sessions
        span = np.zeros(n)
        np.maximum.at(span, self.session, start + ANSWER_S)
        padded = np.zeros(-(-n // clients) * clients)
        padded[:n] = span
        begun = (np.cumsum(padded.reshape(-1, clients), axis=0) - padded.reshape(-1, clients)).ravel()[:n]
        return np.asarray(start + begun[self.session])


def draw_sessions(
    turns: Turns,
    lengths: tuple[Lengths, Lengths],
    prefix: SharedPrefix | None,
    streams: list[np.random.Generator],
    n: int,
) -> AgentSessions:
    """Return whole sessions with at least n requests in all.

    Args:
        turns: The description of the sessions, with `gap_s`.
        lengths: Tokens that a turn adds to its prompt, and tokens of an output.
        prefix: The text that first prompts of sessions and sub-agents begin with; None for none.
        streams: Eight random streams: turns, sub-agents, inputs, first inputs, outputs, gaps, restarts, prefix groups.
        n: The number of requests.

    Raises:
        InputError: A context has more tokens than any, or there are too many turns.
    """
    assert turns.gap_s is not None
    lines = draw_lines(turns, streams[:2], n)
    m = len(lines.session)
    session, is_sub = np.array(lines.session), np.array(lines.is_sub)
    previous = np.array(lines.previous)
    added, outputs = lengths[0].sample(streams[2], m), lengths[1].sample(streams[4], m)
    first = (turns.first_input_tokens or lengths[0]).sample(streams[3], m)
    if turns.subagents is not None:
        first = np.where(is_sub, turns.subagents.first_input_tokens.sample(streams[3], m), first)
    gap_s, by_human = turns.gap_s.draw(streams[5], m, is_sub)
    begins = previous < 0
    gap_s[begins & ~is_sub] = 0.0
    by_human |= begins & ~is_sub
    again = np.zeros(m, dtype=np.int64)
    forced, above = np.zeros(m, dtype=np.bool_), MOST_CONTEXT_TOKENS + 1
    if turns.restarts is not None:
        again = turns.restarts.input_tokens.sample(streams[6], m)
        forced = streams[6].random(m) < turns.restarts.share
        above = turns.restarts.above_tokens or above
    inputs, anew = _contexts(previous, np.where(begins, first, added), outputs, again, forced | begins, above)
    longest = int((inputs + outputs).max(initial=0))
    if longest > MOST_CONTEXT_TOKENS:
        rule = f"a conversation with shared content has at most {MOST_CONTEXT_TOKENS:,} tokens"
        raise InputError(rule, longest)
    n_groups, shared = (prefix.groups, prefix.tokens) if prefix else (0, 0)
    groups = streams[7].integers(0, n_groups or 1, int(session[-1]) + 1)[session]
    known = inputs + outputs
    texts = TextTree(
        parent=np.concatenate([np.full(n_groups, -1), np.where(anew, groups if prefix else -1, n_groups + previous)]),
        kept_tokens=np.concatenate(
            [np.zeros(n_groups, dtype=np.int64), np.where(anew, np.minimum(shared, inputs), known[previous])]
        ),
        tokens=np.concatenate([np.full(n_groups, shared), known]),
        text=n_groups + np.arange(m),
        known_tokens=known,
    )
    waits = np.array(lines.waits, dtype=np.int64).reshape(-1, 2)
    return AgentSessions(session, waits, gap_s, by_human, inputs, outputs, texts)


def _contexts(
    previous: IntArray, added: IntArray, outputs: IntArray, again: IntArray, forced: Any, above: int
) -> tuple[IntArray, Any]:
    """Return the tokens of each prompt, and whether its context begins anew. Shapes (n,).

    Args:
        previous: The turn before in the same line. Shape (n,).
        added: Tokens that each turn adds, or the whole prompt of a first turn. Shape (n,).
        outputs: Tokens of each output. Shape (n,).
        again: Tokens of the prompt of each turn if it restarts; 0 for no restarts. Shape (n,).
        forced: Whether the context of each turn begins anew in any case. Shape (n,).
        above: Contexts with more tokens begin anew, and prompts that begin a context are cut to it.
    """
    most = np.maximum(above - outputs, 1)
    inputs, anew, out = (
        np.where(previous < 0, np.minimum(added, most), added).tolist(),
        forced.tolist(),
        outputs.tolist(),
    )
    restart = np.minimum(again, most).tolist()
    for index, before in enumerate(previous.tolist()):
        if before < 0:
            continue
        tokens = inputs[before] + out[before] + inputs[index]
        anew[index] = (anew[index] or tokens + out[index] > above) and restart[index] > 0
        inputs[index] = restart[index] if anew[index] else tokens
    return np.array(inputs, dtype=np.int64), np.array(anew, dtype=np.bool_)
