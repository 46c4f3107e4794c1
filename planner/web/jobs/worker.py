"""The process that runs one job, within limits of memory and processor time.

The process reports to the server through a pipe and never touches the database. It ends with the server, and SIGINT
asks it to end early, with the best result so far.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

from catalogs.errors import InputError, printable
from catalogs.ui.interrupts import endings_as_interrupt
from catalogs.units import MIB

#: Modules that most jobs need; the process from which the others are forked imports them once.
PRELOADED: Final = (
    "planner.web.jobs.registry",
    "planner.pipeline",
    "planner.search.pareto_answer",
    "planner.sections.full_answer",
    "simulator.cluster.simulate",
    "pandas",
)

#: Least time between two reports of progress, seconds.
_REPORT_EVERY_S: Final = 0.2

#: Processor time between the signal that the time is over and the end, seconds.
_CPU_GRACE_S: Final = 10

#: Words of the pairs that the process sends.
PROGRESS, OUTCOME = "progress", "outcome"

FINISHED, INTERRUPTED, INVALID, LIMIT, DEFECT = "finished", "interrupted", "invalid", "limit", "defect"


@dataclass(frozen=True, slots=True)
class JobOrder:
    """What a worker process receives: a job in its folder, and the limits.

    Attributes:
        kind: Name of the kind.
        question: The question, with uploads by the names of their files.
        parent: Result of the job that the question is about.
        folder: The folder of the job.
        cores: Processes that the job may use.
        memory_mib: Memory of one process beyond what it has at its start, MiB; None for no limit.
        cpu_s: Processor time of one process, seconds.
        endpoints_file: File that lists the endpoints to which an inference task may be sent; None for none.
    """

    kind: str
    question: dict[str, Any]
    parent: bytes | None
    folder: Path
    cores: int
    memory_mib: int | None
    cpu_s: int
    endpoints_file: Path | None = None


@dataclass(frozen=True, slots=True)
class JobOutcome:
    """What becomes of a job.

    Attributes:
        word: FINISHED, INTERRUPTED, INVALID, LIMIT or DEFECT.
        verdict: Whether the answer is yes or no; None for neither.
        files: The results by name.
        detail: What is wrong, in words; for INVALID the parts of an InputError.
    """

    word: str
    verdict: bool | None = None
    files: Mapping[str, bytes] = field(default_factory=dict)
    detail: Any = None


class _TimeOver(KeyboardInterrupt):
    """The processor time of the job is used up."""


@dataclass(slots=True)
class _Clock:
    """Whether the processor time of this process is used up."""

    is_over: bool = False


_clock: Final = _Clock()


def run_job(order: JobOrder, connection: Connection) -> None:
    """Run a job, and send its reports and its outcome as pairs of a word and data."""
    _become_worker(order)
    try:
        with endings_as_interrupt():
            outcome = _answer(order, connection)
    except KeyboardInterrupt:
        outcome = JobOutcome(INTERRUPTED)
    if _clock.is_over and outcome.word == INTERRUPTED:
        text = f"the job needs more than {order.cpu_s} s of processor time"
        outcome = JobOutcome(LIMIT, outcome.verdict, outcome.files, text)
    with contextlib.suppress(OSError):
        connection.send((OUTCOME, outcome))
        connection.close()


def _answer(order: JobOrder, connection: Connection) -> JobOutcome:
    from planner.web.jobs.kind import Task
    from planner.web.jobs.registry import KINDS

    report = _Reporter(connection).report
    try:
        task = Task(order.question, order.folder, order.cores, report, order.parent, order.endpoints_file)
        result = KINDS[order.kind].run(task)
    except InputError as error:
        value = None if error.value is None else str(error.value)
        return JobOutcome(INVALID, detail=(error.rule, value, error.nearest, error.hint))
    except ModuleNotFoundError as error:
        rule = "this needs a package that the server does not have"
        return JobOutcome(INVALID, detail=(rule, error.name, None, None))
    except MemoryError:
        return JobOutcome(LIMIT, detail=f"the job needs more than {order.memory_mib} MiB of memory")
    except Exception as error:
        traceback.print_exc()
        return JobOutcome(DEFECT, detail=printable(f"{type(error).__name__}: {error}"[:300]))
    return JobOutcome(INTERRUPTED if result.interrupted else FINISHED, result.verdict, result.files())


class _Reporter:
    """Sends reports of progress, but not more often than a reader follows."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._sent_at = 0.0

    def report(self, done: int, total: int | None, words: str, best: Mapping[str, Any] | None) -> None:
        """Send the progress of the job, unless the last report was sent a moment ago; the final one is always sent."""
        now = time.monotonic()
        if now - self._sent_at >= _REPORT_EVERY_S or done == total:
            self._sent_at = now
            progress = {"done": done, "total": total, "words": words, "best": best}
            self._connection.send((PROGRESS, progress))


def _become_worker(order: JobOrder) -> None:
    """Give the process its folder, its limits and a process group of its own."""
    threading.Thread(target=_end_with_server, daemon=True).start()
    os.chdir(order.folder)
    log = os.open(order.folder / "job.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    sys.stdout.flush()
    sys.stderr.flush()
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    if os.name != "posix":
        return
    import resource

    os.setpgid(0, 0)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGXCPU, _stop_at_limit)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (order.cpu_s, order.cpu_s + _CPU_GRACE_S))
    if order.memory_mib is None:
        return
    most = _address_space() + order.memory_mib * MIB
    with contextlib.suppress(ValueError, OSError):  # the system has a lower limit
        resource.setrlimit(resource.RLIMIT_AS, (most, most))


def _stop_at_limit(_number: int, _frame: object) -> None:
    _clock.is_over = True
    raise _TimeOver


def _address_space() -> int:
    """Return the address space of this process, bytes; 0 where the system does not tell."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        return pages * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return 0


def _end_with_server() -> None:
    if (parent := multiprocessing.parent_process()) is not None:
        parent.join()
        with contextlib.suppress(OSError, AttributeError):
            os.killpg(0, signal.SIGKILL)
        os._exit(1)
