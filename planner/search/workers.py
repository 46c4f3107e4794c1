"""Worker processes that share the work of a plan or of a study.

A search evaluates candidates one after another, because each is compared with the best before it. A `Lookahead` keeps
the other processors busy: while a candidate is evaluated, workers evaluate the next ones against the same best. An
outcome that was computed against another best is never used, so the answer does not depend on the number of workers.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import pickle
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, Generic, Protocol, TypeVar

from catalogs.errors import InputError
from catalogs.ui.interrupts import ENDINGS, interrupts_held
from catalogs.ui.progress import ProgressCallback
from planner.problem.candidate import Candidate
from planner.search.candidate_tester import Assess, Outcome

#: Forked workers inherit what was compiled and simulated before; elsewhere a fork is not safe.
START_METHOD: Final = "fork" if sys.platform == "linux" else "spawn"

#: Candidates that are submitted ahead for each other worker: the one that it evaluates and the one it takes next.
_DEPTH_PER_WORKER: Final = 2

#: Losses of workers after which this process goes on alone.
_MAX_LOSSES: Final = 3

_CGROUP_CPU_LIMIT: Final = Path("/sys/fs/cgroup/cpu.max")

T = TypeVar("T")

R = TypeVar("R")


class Lookahead(Protocol):
    """Evaluates candidates in order, and later ones in advance."""

    @property
    def depth(self) -> int:
        """Return the number of later candidates that can be evaluated in advance."""

    def evaluate(self, candidate: Candidate, best: Outcome | None, upcoming: Sequence[Candidate]) -> Outcome:
        """Return the outcome of `candidate` against `best`; free workers begin with `upcoming` against that."""


class WorkerPool(Protocol):
    """Evaluates the candidates of a plan, or runs other tasks, in processes of this machine or on a cluster."""

    def lookahead(self, assess: Assess, n_candidates: int) -> AbstractContextManager[Lookahead]:
        """Return the workers for one search over `n_candidates` candidates; they end with the block."""

    def map(self, work: Callable[[T], R], tasks: Sequence[T], /) -> list[R]:
        """Return `work(task)` for each task, in order."""


@dataclass(frozen=True, slots=True)
class SerialLookahead:
    """Evaluates every candidate in this process, at its turn."""

    assess: Assess
    depth: int = 0

    def evaluate(self, candidate: Candidate, best: Outcome | None, upcoming: Sequence[Candidate]) -> Outcome:  # noqa: ARG002
        """Return the outcome of `candidate` against `best`."""
        return self.assess(candidate, best)


@dataclass(frozen=True, slots=True)
class ProcessPool:
    """This process and `n_workers - 1` others on this machine.

    Raises:
        InputError: `n_workers` is less than one.
    """

    n_workers: int = 1
    start_method: str = START_METHOD

    def __post_init__(self) -> None:
        if self.n_workers < 1:
            raise InputError("a plan needs at least one worker process", self.n_workers, "1")

    @contextmanager
    def lookahead(self, assess: Assess, n_candidates: int) -> Iterator[Lookahead]:
        """Yield the workers for one search over `n_candidates` candidates."""
        n_others = self._n_others(n_candidates, assess)
        if n_others == 0:
            yield SerialLookahead(assess)
            return
        lookahead = ProcessLookahead(assess, n_others, self.start_method)
        try:
            yield lookahead
        finally:
            lookahead.close()

    def map(self, work: Callable[[T], R], tasks: Sequence[T], /) -> list[R]:
        """Return `work(task)` for each task, in order. Tasks that a worker loses are repeated in this process."""
        n_others = self._n_others(len(tasks), work)
        if n_others == 0:
            return _each(work, tasks)
        processes = _Processes(partial(_attempt, partial(_each, work)), n_others, self.start_method)
        queue = _TaskQueue(work, tasks, processes)
        try:
            return queue.results(n_others)
        finally:
            queue.stop()
            processes.kill()

    def _n_others(self, n_tasks: int, work: object) -> int:
        """Return the number of processes to start: none inside a worker, or for work that cannot be sent to one."""
        n_others = min(self.n_workers, n_tasks) - 1
        if n_others < 1 or _function is not None:
            return 0
        return n_others if self.start_method == "fork" or _is_picklable(work) else 0


#: This process alone.
ONE_PROCESS: Final = ProcessPool(1)


def run_tasks(
    each: Callable[[Callable[[int], T], Sequence[int]], Iterable[T]], tasks: Sequence[Callable[[], T]]
) -> list[T]:
    """Return the results of tasks, in order; a forked worker inherits the tasks, and only gets the number of its task.

    What the tasks share should be computed before: otherwise each worker computes it for itself. Where processes are
    not forked, the tasks run in this process, because functions cannot be sent.

    Args:
        each: Applies a function to each of several numbers, such as `WorkerPool.map`.
        tasks: The tasks.
    """
    return list(each(lambda number: tasks[number](), range(len(tasks))))


def silent_in_workers(tell: ProgressCallback) -> ProgressCallback:
    """Return `tell` for tasks that workers may run.

    It does nothing in a worker, because the progress bar belongs to the process that started it.
    """
    return lambda text: None if _function is not None else tell(text)


class ProcessLookahead:
    """Evaluates candidates in this process and in `n_others` that are started when first needed.

    Raises what evaluating a candidate raises, at the turn of that candidate. When a worker dies, its candidate is
    evaluated here and new workers are started; after three such losses this process goes on alone.
    """

    def __init__(self, assess: Assess, n_others: int, start_method: str = START_METHOD) -> None:
        self.assess = assess
        self.depth = _DEPTH_PER_WORKER * n_others + 1
        self._n_others = n_others
        self._start_method = start_method
        # Guards all attributes below: the executor's thread submits the next candidate when a worker is free.
        self._lock = threading.RLock()
        self._best: Outcome | None = None
        self._queue: deque[Candidate] = deque()
        self._futures: dict[Candidate, Future[Outcome | None]] = {}  # evaluations in progress, all against `_best`
        self._n_running = 0  # including evaluations against an earlier best
        self._processes: _Processes | None = None
        self._n_losses = 0

    def evaluate(self, candidate: Candidate, best: Outcome | None, upcoming: Sequence[Candidate]) -> Outcome:
        """Return the outcome of `candidate` against `best`; free workers begin with `upcoming`."""
        with self._lock:
            if best != self._best:
                self._best = best
                self._futures.clear()
            future = self._futures.pop(candidate, None)
            self._queue = deque(c for c in upcoming[: self.depth] if c not in self._futures)
        self._replace_lost()
        self._submit_next()
        if future is None:
            return self.assess(candidate, best)
        while not future.done() and self._evaluate_next():
            pass
        outcome = _result(future)
        return self.assess(candidate, best) if outcome is None else outcome

    def close(self) -> None:
        """End the workers, whatever they are evaluating."""
        with self._lock:
            self._queue.clear()
            processes, self._processes = self._processes, None
        if processes is not None:
            processes.kill()

    def _replace_lost(self) -> None:
        """Start other workers where one died: the executor then ends all of them."""
        if self._processes is None or not self._processes.is_broken:
            return
        queue = self._queue.copy()
        self.close()
        self._queue, self._n_losses = queue, self._n_losses + 1
        for candidate in [c for c, f in self._futures.items() if _result(f) is None]:
            del self._futures[candidate]

    def _submit_next(self) -> None:
        """Give each free worker the next candidate."""
        with self._lock:
            while self._queue and self._n_running < self._n_others and self._n_losses < _MAX_LOSSES:
                if self._processes is None:
                    evaluate = partial(_attempt, self.assess)
                    self._processes = _Processes(evaluate, self._n_others, self._start_method)
                if self._processes.is_broken:
                    break
                candidate = self._queue.popleft()
                self._n_running += 1
                future = self._futures[candidate] = self._processes.submit(candidate, self._best)
                future.add_done_callback(self._on_done)

    def _on_done(self, _: Future[Outcome | None]) -> None:
        with self._lock:
            self._n_running -= 1
            if self._processes is not None:
                self._submit_next()

    def _evaluate_next(self) -> bool:
        """Evaluate one candidate here that no worker has begun. Return whether there was one."""
        with self._lock:
            if not self._queue:
                return False
            candidate, best = self._queue.popleft(), self._best
            future = self._futures[candidate] = Future()
        future.set_result(_attempt(self.assess, candidate, best))
        return True


def _attempt(function: Callable[..., Any], *arguments: object) -> Any:
    """Return the result of a call, or None if it fails: the caller repeats the call, which then raises the error."""
    try:
        return function(*arguments)
    except Exception:
        return None


def _each(work: Callable[[T], R], tasks: Sequence[T]) -> list[R]:
    return [work(task) for task in tasks]


class _TaskQueue(Generic[T, R]):
    """The tasks of one map. Each process, this one included, takes the next task as soon as it has finished its last.

    Equal shares that are fixed in advance would leave processes idle, because tasks differ in length.
    """

    def __init__(self, work: Callable[[T], R], tasks: Sequence[T], processes: _Processes) -> None:
        self._work, self._tasks, self._processes = work, tasks, processes
        # Guards the two attributes below: a thread of the executor submits the next task when one is done.
        self._lock = threading.RLock()
        self._left = deque(range(len(tasks)))
        self._futures: dict[int, Future[list[R] | None]] = {}

    def results(self, n_others: int) -> list[R]:
        """Return `work(task)` for each task, in order. Tasks that a worker loses are repeated in this process."""
        found: dict[int, R] = {}
        own = self._take()  # the first task is done here
        for _ in range(n_others):
            self._submit_next()
        while own is not None:
            found[own] = self._work(self._tasks[own])
            own = self._take()
        for number, future in self._futures.items():
            found[number] = (_result(future) or _each(self._work, [self._tasks[number]]))[0]
        return [found[number] for number in range(len(self._tasks))]

    def stop(self) -> None:
        """Give no more tasks to the other processes."""
        with self._lock:
            self._left.clear()

    def _take(self) -> int | None:
        with self._lock:
            return self._left.popleft() if self._left else None

    def _submit_next(self) -> None:
        with self._lock:
            if self._processes.is_broken or (number := self._take()) is None:
                return
            self._futures[number] = self._processes.submit([self._tasks[number]])
            self._futures[number].add_done_callback(lambda _: self._submit_next())


class _Processes:
    """`n` worker processes that run one function. A forked worker inherits it, a spawned one gets it once, pickled."""

    def __init__(self, function: Callable[..., Any], n: int, start_method: str) -> None:
        context = multiprocessing.get_context(start_method)
        self._executor = ProcessPoolExecutor(n, context, initializer=_start_worker, initargs=(function,))
        self.is_broken = False

    def submit(self, *arguments: object) -> Future[Any]:
        """Return the future of the function's result. Workers that died fail it."""
        future: Future[Any] = Future()
        try:
            with interrupts_held():  # the first call starts the processes, which keep this
                future = self._executor.submit(_run, *arguments)
        except BrokenProcessPool as error:
            self.is_broken = True
            future.set_exception(error)
        future.add_done_callback(self._note_loss)
        return future

    def kill(self) -> None:
        """End all processes at once and wait until they are gone."""
        for process in list((self._executor._processes or {}).values()):
            process.kill()
        # A worker that was killed while it sent a result has left a part of it, for whose rest the executor would wait.
        # Once no process can write any more, it reads the end instead.
        if (results := self._executor._result_queue) is not None:
            results._writer.close()  # type: ignore[attr-defined]
        self._executor.shutdown(wait=True)

    def _note_loss(self, future: Future[Any]) -> None:
        self.is_broken = self.is_broken or isinstance(future.exception(), BrokenProcessPool)


def usable_cores() -> int:
    """Return the number of processor cores this process may use, by its affinity and its control group's limit."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = _CGROUP_CPU_LIMIT.read_text().split()
        return cores if quota == "max" else max(1, min(cores, math.ceil(int(quota) / int(period))))
    except (OSError, ValueError):
        return cores


_function: Callable[..., Any] | None = None  # what this process runs if it is a worker


def _start_worker(function: Callable[..., Any]) -> None:
    """Prepare a worker: Ctrl-C is for the process that started it, with which it ends."""
    global _function
    _function = function
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for number in ENDINGS:
        signal.signal(number, signal.SIG_DFL)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDINGS)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    if (parent := multiprocessing.parent_process()) is not None:
        parent.join()
        os._exit(1)


def _run(*arguments: object) -> Any:
    assert _function is not None
    return _function(*arguments)


def _result(future: Future[T]) -> T | None:
    """Return the result of a worker; None if it died or could not send one."""
    try:
        return future.result()
    except Exception:  # many types: BrokenProcessPool, errors of pickling
        return None


def _is_picklable(work: object) -> bool:
    try:
        pickle.dumps(work)
    except Exception:  # of many kinds: AttributeError of a lambda, TypeError of a lock
        return False
    return True
