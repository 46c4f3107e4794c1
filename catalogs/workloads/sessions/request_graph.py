"""Requests that wait for the end of others: turns of a conversation, started sub-agents, and joins."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from catalogs.arrays import FloatArray, IntArray
from catalogs.errors import InputError


@dataclass(frozen=True, slots=True)
class RequestGraph:
    """Which requests of a set wait for which, as a graph without cycles.

    A request is sent `gap_s` after the last of the requests that it waits for has ended. A request that waits for none
    is the first of its session. It is sent `gap_s` after the session's start, which is its arrival time in an open loop
    and the end of the client's previous session in a closed one.

    Attributes:
        waits: Pairs (request, the earlier request that it waits for), by index. Shape (pairs, 2).
        gap_s: Shape (n,).
        longest_idle_s: When no request is under way for longer than this, all clients send their next requests earlier
            by the excess, as some benchmarks do; None for no limit.
    """

    waits: IntArray
    gap_s: FloatArray
    longest_idle_s: float | None = None

    def checked(self) -> RequestGraph:
        """Return the graph if it is sound.

        Raises:
            InputError: A request waits for one that is not before it, or a gap is not a time.
        """
        n, (later, earlier) = len(self.gap_s), self.waits.reshape(-1, 2).T
        wrong = np.flatnonzero((earlier < 0) | (earlier >= later) | (later >= n))
        if len(wrong):
            rule = f"request {int(later[wrong[0]])} waits for a request that is not before it"
            raise InputError(rule, int(earlier[wrong[0]]))
        strange = np.flatnonzero(~(np.isfinite(self.gap_s) & (self.gap_s >= 0)))
        if len(strange):
            raise InputError(
                f"request {int(strange[0])}: a gap is a time of at least 0 s", float(self.gap_s[strange[0]])
            )
        return self

    def taken(self, rows: slice | IntArray) -> RequestGraph:
        """Return the graph of some of the requests, which wait for those of the others that are taken too."""
        n = len(self.gap_s)
        kept = np.arange(n)[rows]
        place = np.full(n, -1, dtype=np.int64)
        place[kept] = np.arange(len(kept))
        waits = place[self.waits.reshape(-1, 2)]
        return replace(self, waits=waits[(waits >= 0).all(axis=1)], gap_s=self.gap_s[rows])

    def followers(self) -> list[list[int]]:
        """Return the requests that wait for each request, by index."""
        found: list[list[int]] = [[] for _ in range(len(self.gap_s))]
        for later, earlier in self.waits.tolist():
            found[earlier].append(later)
        return found

    def awaited(self) -> list[int]:
        """Return the number of requests that each request waits for."""
        counts: list[int] = np.bincount(self.waits[:, 0], minlength=len(self.gap_s)).tolist()
        return counts

    def earliest_s(self, ended_s: FloatArray) -> FloatArray:
        """Return the earliest time at which each request may be sent, given when the others ended. Shape (n,).

        It is -inf for requests that wait for none. Gaps do not count where idle times are cut.
        """
        latest = np.full(len(self.gap_s), -np.inf)
        np.maximum.at(latest, self.waits[:, 0], ended_s[self.waits[:, 1]])
        return latest + (self.gap_s if self.longest_idle_s is None else 0.0)
