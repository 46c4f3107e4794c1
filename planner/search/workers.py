"""A second core that works beside this process: it assesses other candidates of a search, and runs of other seeds.

What it found counts only if the best so far is still the one it was told, so the answer is that of one process.

Who assesses the candidates of a search: this process, or hands elsewhere that look at several at once.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Final, Protocol, TypeVar

from planner.problem.candidate import Candidate
from planner.search.objectives import Assess, Outcome

#: Candidates begun with: the one wanted, one there, and one to look at here while that takes longer.
_AHEAD: Final = 3

_GIVEN_UP_S: Final = 5.0

Question = tuple[Candidate, Outcome | None]

T = TypeVar("T")

R = TypeVar("R")


@dataclass(slots=True)
class SecondCore:
    """This process and another one, at the end of `pipe`. Where that one is lost this one goes on alone."""

    assess: Assess
    pipe: Connection | None
    ahead: int = _AHEAD
    _queue: deque[Candidate] = field(default_factory=deque)  # begun with, and nobody is at it
    _there: Question | None = None  # what the other process is at
    _found: dict[Candidate, tuple[Outcome | None, Outcome]] = field(default_factory=dict)

    def begin(self, candidate: Candidate) -> None:
        at = self._there
        if candidate not in self._queue and candidate not in self._found and (at is None or at[0] != candidate):
            self._queue.append(candidate)

    def outcome(self, candidate: Candidate, best: Outcome | None) -> Outcome:
        if self._there is not None and self.pipe is not None and self.pipe.poll():
            self._collect()
        if self._there == (candidate, best):
            self._one_more(best)
            self._collect()
        against, outcome = self._found.pop(candidate, (None, None))
        with suppress(ValueError):
            self._queue.remove(candidate)
        self._hand_on(best)
        if outcome is None or against != best:
            outcome = self.assess(candidate, best)
        return outcome

    def _one_more(self, best: Outcome | None) -> None:
        """What this process does while it would wait."""
        if self._queue and self.pipe is not None and not self.pipe.poll():
            other = self._queue.popleft()
            self._found[other] = best, self.assess(other, best)

    def _hand_on(self, best: Outcome | None) -> None:
        """Give the other process something to do, if it has nothing."""
        if self._queue and self._there is None and self.pipe is not None:
            self._there = self._queue.popleft(), best
            with suppress(OSError):  # it is gone: found out when its answer is collected
                self.pipe.send(self._there)

    def _collect(self) -> None:
        """Wait for what it finds; nothing where it failed: the question is then asked here."""
        assert self.pipe is not None
        assert self._there is not None
        (candidate, best), self._there = self._there, None
        try:
            outcome = self.pipe.recv()
        except (EOFError, OSError):
            self.pipe = None
            return
        if outcome is not None:
            self._found[candidate] = best, outcome


def shared(work: Callable[[T], R], tasks: Sequence[T]) -> list[R]:
    """[work(task) for task in tasks], every second one done by a forked process where there is a core for it."""
    if len(tasks) < 2 or not _second_core():
        return [work(task) for task in tasks]
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=_send_all, args=(work, tasks[1::2], there, here), daemon=True)
    process.start()
    there.close()
    try:
        mine = [work(task) for task in tasks[::2]]
        with suppress(EOFError, OSError):
            theirs = here.recv()
            return [theirs[i // 2] if i % 2 else mine[i // 2] for i in range(len(tasks))]
        return [work(task) if i % 2 else mine[i // 2] for i, task in enumerate(tasks)]  # it is lost
    finally:
        here.close()
        process.kill()
        process.join(_GIVEN_UP_S)


def _send_all(work: Callable[[T], R], tasks: Sequence[T], pipe: Connection, other_end: Connection) -> None:
    """What fails here is done again, and fails, in the process that asked."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    other_end.close()
    with suppress(Exception):
        pipe.send([work(task) for task in tasks])


def _second_core() -> bool:
    """This machine has two cores for us, and processes can be forked; whoever works there already has none."""
    if multiprocessing.current_process().daemon:
        return False
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
    return cores > 1 and "fork" in multiprocessing.get_all_start_methods()


def with_second_core(assess: Assess) -> AbstractContextManager[WorkerPool]:
    """A crew of two where this machine has two cores for us and processes can be forked, else of one."""
    return _forked(assess) if _second_core() else alone(assess)


@contextmanager
def _forked(assess: Assess) -> Iterator[WorkerPool]:
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe()
    process = context.Process(target=_work, args=(assess, there, here), daemon=True)
    process.start()
    there.close()
    try:
        yield SecondCore(assess, here)
    finally:
        here.close()
        process.kill()  # what it is at is wanted by nobody
        process.join(_GIVEN_UP_S)


def _work(assess: Assess, pipe: Connection, other_end: Connection) -> None:
    """Answer questions until nobody is there to ask. Ctrl-C is for the other process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    other_end.close()
    with suppress(EOFError, OSError):
        while True:
            candidate, best = pipe.recv()
            try:
                found = assess(candidate, best)
            except Exception:  # asked again there, where it can be raised
                found = None
            pipe.send(found)


class WorkerPool(Protocol):
    """A search begins with candidates in an order and finishes them in that order, so its answer is one process's."""

    @property
    def ahead(self) -> int:
        """Candidates that may be begun with before the first of them is finished."""

    def begin(self, candidate: Candidate) -> None:
        """It may be wanted soon."""

    def outcome(self, candidate: Candidate, best: Outcome | None) -> Outcome:
        """What assessing it, given the best so far, finds. Waits."""


@dataclass(frozen=True, slots=True)
class SingleProcess:
    """This process."""

    assess: Assess
    ahead: int = 1

    def begin(self, candidate: Candidate) -> None:
        """Nothing is done ahead."""

    def outcome(self, candidate: Candidate, best: Outcome | None) -> Outcome:
        return self.assess(candidate, best)


#: A crew for as long as it is needed.
Hire = Callable[[Assess], AbstractContextManager[WorkerPool]]


def alone(assess: Assess) -> AbstractContextManager[WorkerPool]:
    """Nobody is hired."""
    return nullcontext(SingleProcess(assess))
