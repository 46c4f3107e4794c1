"""Hands on the machines of a Ray cluster that assess the candidates of one search.

Hands are sent the question once, with all that was read to answer it, so no file needs to be on their machines; the
planner itself must be, in the same version. A hand that dies gives its candidate to another one, and a machine that
joins gets hands. Where none is left this process goes on alone.
"""

from __future__ import annotations

import hashlib
import time
from collections import Counter, deque
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from catalogs.command import OUR_PACKAGES
from catalogs.errors import InputError
from planner.assess import Assess, Outcome
from planner.candidate import Candidate

if TYPE_CHECKING:
    from planner.ray_cluster import Cluster

INSTALL: Final = "pip install '.[ray]'"
#: Candidates begun with for each hand: so many that none waits while the first in line is bisected.
_AHEAD: Final = 3
#: Seconds to wait for the first hand, and for a new one where all were lost.
PATIENCE_S: Final = 60.0
_LOOK_S: Final = 1.0
#: A candidate whose hands died so often is looked at here.
_TRIES: Final = 3
#: Hands lost, for each there was, after which nobody is hired any more.
_LOSSES: Final = 3


class Hand:
    """What runs on the cluster, one on each CPU."""

    def __init__(self, assess: Assess) -> None:
        self._assess = assess

    def code(self) -> str:
        """Names the planner it runs."""
        return code_digest()

    def look(self, candidate: Candidate, best: Outcome | None) -> Outcome:
        """Assess; what was simulated for earlier candidates is remembered."""
        return self._assess(candidate, best)


@cache
def code_digest() -> str:
    """Names the source code of our packages, wherever they are installed."""
    root, found = Path(__file__).resolve().parent.parent, hashlib.sha256()
    for package in OUR_PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            found.update(str(path.relative_to(root)).encode() + path.read_bytes())
    return found.hexdigest()[:16]


@dataclass(slots=True)
class _Job:
    hand: Any
    candidate: Candidate
    best: Outcome | None


@dataclass(slots=True)
class RayCrew:
    """Hands, what each is at, and what they found. An outcome against an older best is asked for again."""

    cluster: Cluster
    assess: Assess
    hands: int = 1
    _question: Any = None
    _hired: dict[Any, Any] = field(default_factory=dict)  # hands that have not reported yet, by their first answer
    _free: list[Any] = field(default_factory=list)
    _busy: dict[Any, _Job] = field(default_factory=dict)
    _asked: set[Candidate] = field(default_factory=set)
    _queue: deque[Candidate] = field(default_factory=deque)
    _found: dict[Candidate, tuple[Outcome | None, Outcome]] = field(default_factory=dict)
    _losses: Counter[Candidate] = field(default_factory=Counter)
    _why: str = ""
    _counted_s: float = 0.0

    @property
    def ahead(self) -> int:
        return _AHEAD * self.hands

    def open(self) -> None:
        """Hire one hand for each CPU and wait for the first."""
        self._question = self.cluster.ray.put(self.assess)
        self.hands = max(1, self.cluster.cpus)
        for _ in range(self.hands):
            self._hire()
        until = time.monotonic() + PATIENCE_S
        while not self._free:
            if not self._hired:
                raise InputError(f"the cluster's machines cannot run the planner ({self._why})", None, INSTALL)
            if time.monotonic() > until:
                raise InputError(
                    f"no CPU of the cluster became free in {PATIENCE_S:.0f} s", f"{self.cluster.cpus} CPUs"
                )
            self._collect()

    def close(self) -> None:
        with suppress(ConnectionError, self.cluster.ray.exceptions.RayError):
            for hand in (*self._free, *self._hired.values(), *(job.hand for job in self._busy.values())):
                self.cluster.ray.kill(hand)

    def begin(self, candidate: Candidate) -> None:
        if candidate not in self._asked:
            self._asked.add(candidate)
            self._queue.append(candidate)

    def outcome(self, candidate: Candidate, best: Outcome | None) -> Outcome:
        self.begin(candidate)
        found = self._wait(candidate, best)
        self._asked.discard(candidate)
        return found

    def _wait(self, candidate: Candidate, best: Outcome | None) -> Outcome:
        alone_at = time.monotonic() + PATIENCE_S
        while True:
            against, outcome = self._found.pop(candidate, (None, None))
            if outcome is not None and against == best:
                return outcome
            if outcome is not None:
                self._queue.appendleft(candidate)
            nobody = not (self._free or self._busy or self._hired) or time.monotonic() > alone_at
            if nobody or self._losses[candidate] >= _TRIES:
                self._queue.remove(candidate)
                return self.assess(candidate, best)
            self._dispatch(best)
            if self._busy:
                alone_at = time.monotonic() + PATIENCE_S
            try:
                self._collect()
                self._grow()
            except ConnectionError as error:  # to the whole cluster
                self._lose_all(error)

    # ---- hands

    def _hire(self) -> None:
        hand = self.cluster.ray.remote(num_cpus=1, max_restarts=0)(Hand).remote(self._question)
        self._hired[hand.code.remote()] = hand

    def _dispatch(self, best: Outcome | None) -> None:
        while self._free and self._queue:
            hand, candidate = self._free.pop(), self._queue.popleft()
            self._busy[hand.look.remote(candidate, best)] = _Job(hand, candidate, best)

    def _collect(self) -> None:
        """Wait a little for anybody to report."""
        waiting = [*self._busy, *self._hired]
        ready, _ = self.cluster.ray.wait(waiting, num_returns=1, timeout=_LOOK_S) if waiting else ([], [])
        for ref in ready:
            if ref in self._hired:
                self._welcome(ref, self._hired.pop(ref))
            else:
                self._take(ref, self._busy.pop(ref))
        self.cluster.n_hands = len(self._free) + len(self._busy)

    def _grow(self) -> None:
        """Hands for machines that have joined, and in place of those that died."""
        if time.monotonic() > self._counted_s + _LOOK_S and self.cluster.lost < _LOSSES * self.hands:
            self._counted_s = time.monotonic()
            for _ in range(self.cluster.cpus - self.cluster.n_hands - len(self._hired)):
                self._hire()

    def _welcome(self, ref: Any, hand: Any) -> None:
        try:
            code = self.cluster.ray.get(ref)
        except self.cluster.ray.exceptions.RayError as error:
            self._lose(error)
            return
        if code != code_digest():
            raise InputError("a machine of the cluster has another version of the planner", code, code_digest())
        self._free.append(hand)

    def _take(self, ref: Any, job: _Job) -> None:
        try:
            outcome = self.cluster.ray.get(ref)
        except self.cluster.ray.exceptions.RayTaskError as error:  # what assessing raises here, too
            raise error.cause from None
        except self.cluster.ray.exceptions.RayError as error:
            self._losses[job.candidate] += 1
            self._queue.appendleft(job.candidate)
            self._lose(error)
            return
        self._free.append(job.hand)
        self._found[job.candidate] = (job.best, outcome)

    def _lose(self, error: Exception) -> None:
        self._why = next(
            (line.strip() for line in reversed(str(error).splitlines()) if line.strip()), "no reason given"
        )
        self.cluster.lost += 1

    def _lose_all(self, error: Exception) -> None:
        for job in self._busy.values():
            self._queue.appendleft(job.candidate)
        for _ in (*self._busy, *self._free):
            self._lose(error)
        for held in (self._busy, self._free, self._hired):
            held.clear()
        self.cluster.n_hands = 0
