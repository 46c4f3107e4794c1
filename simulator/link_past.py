"""What links carried lately: a transfer that leaves piece by piece began before anybody was told of it.

Where the blocks of a prompt go is known when it is done. What could have left by then is what was ready, over what
others had left of every link it crosses; those who were told of first keep what they had.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Hashable, Mapping
from itertools import pairwise
from math import inf
from typing import Final, NamedTuple

#: Uses of a link that are always remembered; what came long before counts as taken.
REMEMBERED: Final = 2048


class Pieces(NamedTuple):
    """n equal parts of what was computed from begun_s until done_s, evenly; none leaves before free_s."""

    begun_s: float
    done_s: float
    n: int
    free_s: float = 0.0

    def ready_s(self, i: int) -> float:
        """When part i, counted from 1, is there."""
        return self.done_s if i == self.n else self.begun_s + i * (self.done_s - self.begun_s) / self.n

    def alone_end_s(self, wire_s: float) -> float:
        """When the last part is sent if nobody else sends: at once after the first, or when it is ready itself."""
        return max(max(self.ready_s(1), self.free_s) + wire_s, self.done_s + wire_s / self.n)


class LinkPast:
    """Shares of each link that were used, from when to when; uses at one time add up."""

    def __init__(self) -> None:
        self._uses: dict[Hashable, list[tuple[float, float, float]]] = {}  # until when, from when, share
        self._known_s: dict[Hashable, float] = {}

    def note(self, link: Hashable, from_s: float, to_s: float, share: float) -> None:
        """So much of it was used then."""
        uses = self._uses.setdefault(link, [])
        insort(uses, (to_s, from_s, share))
        if len(uses) > 2 * REMEMBERED:
            self._known_s[link] = uses[REMEMBERED - 1][0]
            del uses[:REMEMBERED]

    def catch_up(self, seconds: Mapping[Hashable, float], pieces: Pieces) -> tuple[float, bool]:
        """The part of a transfer that was sent by done_s, and whether anybody else was met there. seconds: that all of
        it takes on each link. Notes what it used."""
        first_s = max(pieces.ready_s(1), pieces.free_s, *(self._known_s.get(link, 0.0) for link in seconds))
        changes = self._changes(seconds, first_s, pieces.done_s)
        ready = [pieces.ready_s(i) for i in range(1, pieces.n)]
        marks = sorted({first_s, *(t for t, _, _ in changes), *(t for t in ready if t > first_s), pieces.done_s})
        used, sent, at, there = dict.fromkeys(seconds, 0.0), 0.0, 0, 0
        for start_s, end_s in pairwise(marks):
            while at < len(changes) and changes[at][0] <= start_s:
                used[changes[at][1]] += changes[at][2]
                at += 1
            while there < len(ready) and ready[there] <= start_s:
                there += 1
            speed = min(max(0.0, 1.0 - used[link]) / s for link, s in seconds.items())
            part = min(speed * (end_s - start_s), there / pieces.n - sent)
            if part > 1e-12 and speed > 0.0:
                sent += part
                for link, s in seconds.items():
                    self.note(link, start_s, min(end_s, start_s + part / speed), speed * s)
        return sent, bool(changes) or first_s > max(pieces.ready_s(1), pieces.free_s)

    def _changes(
        self, links: Mapping[Hashable, float], first_s: float, last_s: float
    ) -> list[tuple[float, Hashable, float]]:
        """By how much the use of each link rose or fell between the two, in order of time."""
        found: list[tuple[float, Hashable, float]] = []
        for link in links:
            uses = self._uses.get(link, [])
            for to_s, from_s, share in uses[bisect_right(uses, (first_s, inf, inf)) :]:
                if from_s < last_s:
                    found += ((max(from_s, first_s), link, share), (min(to_s, last_s), link, -share))
        return sorted(found, key=lambda change: change[0])
