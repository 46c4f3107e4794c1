"""Recorded sessions of agents (Weka's form): one JSON object per session, with block ids and sub-agents.

Source of the form: callanjfox/kv-cache-tester. A session has `requests` with `t` (seconds since its start), `in` and
`out` tokens, `hash_ids` of `block_size` tokens, `api_time` and `stop`, and entries of the type "subagent" with requests
of their own, whose times count from the start of the sub-agent.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

from catalogs.arrays import BoolArray, FloatArray, IntArray
from catalogs.errors import InputError
from catalogs.workloads.sessions.agents import AgentSessions
from catalogs.workloads.sessions.texts import TextTree

#: The keys that a recorded session has, by which it is recognised.
MARKS: Final = ("requests", "hash_id_scope")

#: A sub-agent is awaited by the next request of its parent that is sent at most this long before its end, in seconds;
#: recorded times are rounded.
ROUNDED_S: Final = 0.2


@dataclass(frozen=True, slots=True)
class RecordedSessions:
    """Recorded sessions; arrays have shape (n,), session by session, each request after those that it waits for.

    Attributes:
        sessions: The requests, their recorded gaps, and the known texts of their prompts.
        previous: The turn before of the same agent or sub-agent; -1 for its first.
        is_sub: Whether a sub-agent sent the request.
        by_human: Whether the turn before ended without a call of a tool, so that a human sent this one.
    """

    sessions: AgentSessions
    previous: IntArray
    is_sub: BoolArray
    by_human: BoolArray

    @property
    def mean_turns(self) -> float:
        """Return the mean number of requests of a session."""
        return len(self.previous) / self.sessions.n_sessions

    @property
    def span_s(self) -> float:
        """Return the mean time from the first request of a session to its last if answers took ANSWER_S, seconds."""
        last = np.zeros(self.sessions.n_sessions)
        np.maximum.at(last, self.sessions.session, self.sessions.start_s())
        return float(last.mean())

    def gaps_s(self, by_human: bool) -> FloatArray:
        """Return the recorded gaps before turns that a human, or a tool, caused, without those of first turns."""
        turns = self.previous >= 0
        return self.sessions.gap_s[turns & (self.by_human if by_human else ~self.by_human)]


@dataclass(slots=True)
class _Reading:
    """What has been read so far, in lists."""

    where: str
    session: list[int] = field(default_factory=list)
    inputs: list[int] = field(default_factory=list)
    outputs: list[int] = field(default_factory=list)
    previous: list[int] = field(default_factory=list)
    is_sub: list[bool] = field(default_factory=list)
    by_human: list[bool] = field(default_factory=list)
    waits: list[tuple[int, int]] = field(default_factory=list)
    gap_s: list[float] = field(default_factory=list)
    parent: list[int] = field(default_factory=list)
    kept: list[int] = field(default_factory=list)
    known: list[int] = field(default_factory=list)

    def read(self, session: dict[str, Any], number: int) -> None:
        """Append the requests of a session; `number` is its line in the file, from 1.

        Raises:
            InputError: A value of the session is missing or invalid.
        """
        size = self._whole(session.get("block_size"), "block_size", number)
        seen: dict[int, tuple[int, int]] = {}  # block id: the text that holds it first, and its place there
        self._read_line(session["requests"], number, size, seen, (), 0.0)

    def _read_line(
        self,
        entries: Any,
        session: int,
        size: int,
        seen: dict[int, tuple[int, int]],
        after: tuple[tuple[int, float], ...],
        start_s: float,
    ) -> list[tuple[int, float]]:
        """Read the requests of one agent; return its requests that the next one of its parent waits for, with ends.

        Args:
            entries: The requests and sub-agents.
            session: The session's number.
            size: Tokens of a block.
            seen: As in `read`.
            after: The requests that the first one waits for, and their ends in seconds.
            start_s: When the agent started, in seconds of the session.
        """
        if not isinstance(entries, list):
            raise InputError(f"{self.where}: requests of session {session + 1} must be a list", entries)
        previous, stop = -1, "tool_use"
        pending: list[tuple[int, float]] = []  # last requests of sub-agents that no request has waited for
        last = list(after)
        for entry in entries:
            if not isinstance(entry, dict):
                raise InputError(f"{self.where}: a request of session {session + 1} must be a JSON object", entry)
            at_s = start_s + self._time(entry.get("t"), "t", session)
            if entry.get("type") == "subagent":
                ended = self._read_line(entry.get("requests"), session, size, seen, tuple(last), at_s)
                pending.extend(end for end in ended if end[0] >= 0)
                continue
            joined = [end for end in pending if end[1] <= at_s + ROUNDED_S]
            pending = [end for end in pending if end[1] > at_s + ROUNDED_S]
            index = self._add(entry, session, size, seen)
            waits = [*last, *joined]
            self.waits.extend((index, other) for other, _ in waits)
            self.gap_s.append(max(0.0, at_s - max([end_s for _, end_s in waits], default=at_s)))
            self.previous.append(previous)
            self.is_sub.append(bool(after))
            self.by_human.append(previous >= 0 and stop == "end_turn")
            previous, stop = index, str(entry.get("stop", ""))
            last = [(index, at_s + self._time(entry.get("api_time") or 0.0, "api_time", session))]
        return [*last, *pending] if previous >= 0 else []

    def _add(self, entry: dict[str, Any], session: int, size: int, seen: dict[int, tuple[int, int]]) -> int:
        """Add a request and its text, which begins like the earlier one with the longest common prefix."""
        index = len(self.session)
        inputs = self._whole(entry.get("in"), "in", session)
        ids = entry.get("hash_ids") or []
        if not isinstance(ids, list) or not all(type(block) is int for block in ids):
            raise InputError(f"{self.where}: hash_ids of session {session + 1} must be a list of whole numbers", ids)
        ids = ids[: inputs // size]
        parent, kept = -1, 0
        for place, block in enumerate(ids):
            if block not in seen or seen[block][1] != place:
                break
            parent, kept = seen[block][0], place + 1
        for place in range(kept, len(ids)):
            seen[ids[place]] = (index, place)
        self.session.append(session)
        self.inputs.append(inputs)
        self.outputs.append(max(1, self._whole(entry.get("out"), "out", session, 0)))
        self.parent.append(parent)
        self.kept.append(kept * size)
        self.known.append(len(ids) * size)
        return index

    def _whole(self, value: Any, name: str, session: int, low: int = 1) -> int:
        if type(value) is not int or value < low:
            raise InputError(f"{self.where}: {name} of session {session + 1} must be a whole number >= {low}", value)
        return value

    def _time(self, value: Any, name: str, session: int) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
            raise InputError(f"{self.where}: {name} of session {session + 1} must be a time in seconds", value)
        return float(value)


def is_session(value: object) -> bool:
    """Return whether a JSON value is a recorded session."""
    return isinstance(value, dict) and all(mark in value for mark in MARKS)


def recorded_sessions(sessions: Iterable[dict[str, Any]], where: str) -> RecordedSessions:
    """Return recorded sessions.

    Block ids are unique within a session, and equal ids at equal places mean equal prefixes.

    Raises:
        InputError: A session breaks a rule of the form.
    """
    reading = _Reading(where)
    for number, session in enumerate(sessions):
        reading.read(session, number)
    if not reading.session:
        raise InputError(f"{where} holds no requests")
    n = len(reading.session)
    of_session, is_sub = np.array(reading.session, dtype=np.int64), np.array(reading.is_sub)
    previous, by_human = np.array(reading.previous, dtype=np.int64), np.array(reading.by_human)
    texts = TextTree(
        parent=np.array(reading.parent, dtype=np.int64),
        kept_tokens=np.array(reading.kept, dtype=np.int64),
        tokens=np.array(reading.known, dtype=np.int64),
        text=np.arange(n),
        known_tokens=np.array(reading.known, dtype=np.int64),
    )
    found = AgentSessions(
        session=of_session,
        waits=np.array(reading.waits, dtype=np.int64).reshape(-1, 2),
        gap_s=np.array(reading.gap_s),
        by_human=(by_human | (previous < 0)) & ~is_sub,
        inputs=np.array(reading.inputs, dtype=np.int64),
        outputs=np.array(reading.outputs, dtype=np.int64),
        texts=texts,
    )
    return RecordedSessions(found, previous, is_sub, by_human)


def session_files(folder: Path) -> Sequence[Path]:
    """Return the files of a folder of recorded sessions, in the order of their names.

    Raises:
        InputError: There are none.
    """
    found = sorted(path for path in folder.iterdir() if path.name.endswith((".json", ".json.gz")))
    if not found:
        raise InputError("the folder holds no recorded sessions (.json or .json.gz)", str(folder))
    return found
