"""The queue of jobs: starts a process for each, watches it, and records its outcome in the store.

One thread does all of this. A job is taken from the store in one step, so several servers may share a store. A server
that is gone leaves running jobs behind: another one returns them to the queue, and they continue where they stopped.
"""

from __future__ import annotations

import multiprocessing
import os
import secrets
import shutil
import signal
import socket
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Final

from sqlalchemy.exc import SQLAlchemyError

from catalogs.errors import InputError
from planner.web.jobs.kind import Prepared, json_bytes
from planner.web.jobs.registry import DERIVED, KINDS
from planner.web.jobs.worker import (
    FINISHED,
    INTERRUPTED,
    INVALID,
    LIMIT,
    PRELOADED,
    PROGRESS,
    JobOrder,
    JobOutcome,
    run_job,
)
from planner.web.problems import INVALID_INPUT, input_details, problem_details
from planner.web.questions import result_key
from planner.web.settings import ServerSettings
from planner.web.store.jobs import (
    CANCELLED,
    DONE,
    FAILED,
    QUEUED,
    RESULT,
    RUNNING,
    Job,
    JobStore,
    NewJob,
    UnknownJobError,
)
from planner.web.uploads import Uploads, mapped, references, unique_names

#: How a worker process is started: forked from a process with one thread, where the system can do this.
START_METHOD: Final = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"

#: Time for which a cancelled job may still measure its best plan, seconds; then its process is killed.
CANCEL_GRACE_S: Final = 2.4

#: Characters of a job's title; the question itself is kept in full.
LONGEST_TITLE: Final = 160

#: Crashes of a job's process after which the job runs again.
MOST_CRASHES: Final = 2

#: Longest time between two looks at the store, seconds.
_TICK_S: Final = 0.25

LIMIT_TITLE: Final = "A limit of the server is reached"

#: Time between two heartbeats of a server, seconds. A judgement: six fit into `GONE_AFTER_S`.
_HEARTBEAT_S: Final = 5.0

#: Time without a heartbeat after which a server on another machine counts as gone, seconds.
GONE_AFTER_S: Final = 30.0

#: Time until the next attempt where the database does not answer, seconds.
_RETRY_S: Final = 1.0

#: Time between two looks for jobs that are kept no longer, seconds.
_EXPIRE_EVERY_S: Final = 3600.0

#: Seconds of a day.
_DAY_S: Final = 86400.0


class QueueFull(Exception):
    """The queue, or the share of one user in it, is full; the text is the rule."""


@dataclass(slots=True)
class _Run:
    """A job that runs in a process of this server."""

    job: Job
    process: BaseProcess
    connection: Connection
    started_s: float
    stop_at_s: float | None = None  # when the process is killed
    stop_reason: str | None = None  # why this server stops it: CANCELLED, or the limit that it broke
    best: dict[str, Any] | None = None
    outcome: JobOutcome | None = None


@dataclass(slots=True)
class JobQueue:
    """The jobs of one server."""

    store: JobStore
    uploads: Uploads
    settings: ServerSettings
    id: str = field(default_factory=lambda: secrets.token_hex(8))
    _runs: dict[str, _Run] = field(default_factory=dict)
    _stop: threading.Event = field(default_factory=threading.Event)
    _admission: threading.Lock = field(default_factory=threading.Lock)
    _thread: threading.Thread | None = None
    _wakeup: tuple[Connection, Connection] = field(default_factory=lambda: multiprocessing.Pipe(duplex=False))
    _next_heartbeat_s: float = 0.0
    _next_expiry_s: float = 0.0

    # ---- requests

    def submit(self, kind: str, prepared: Prepared, owner: str) -> tuple[Job, bool]:
        """Return the job of a question, and whether it is new: an equal question has one job.

        Raises:
            QueueFull: No further job may wait.
        """
        file = self.settings.file
        key = result_key(kind, prepared.question, prepared.parent)
        with self._admission:
            known = self.store.find_by_key(owner, key)
            if known is not None and (known.is_active or not KINDS[kind].measures):
                return known, False
            if self.store.counts().get(QUEUED, 0) >= file.max_queued:
                raise QueueFull(f"at most {file.max_queued} jobs may wait")
            own = self.store.counts(owner)
            if file.owner_header is not None and own.get(QUEUED, 0) + own.get(RUNNING, 0) >= file.max_jobs_per_owner:
                raise QueueFull(f"at most {file.max_jobs_per_owner} jobs of one user may wait or run")
            title = (
                prepared.title if len(prepared.title) <= LONGEST_TITLE else f"{prepared.title[: LONGEST_TITLE - 1]}…"
            )
            new = NewJob(kind, title, owner, key, prepared.question, prepared.parent)
            job = self.store.add(new)
        self.wake()
        return job, True

    def cancel(self, id_: str) -> Job:
        """Ask for the end of a job and return it."""
        job = self.store.request_cancel(id_)
        self.wake()
        return job

    def wake(self) -> None:
        """Wake the thread of the queue."""
        with suppress(OSError):
            self._wakeup[1].send_bytes(b"")

    @property
    def is_running(self) -> bool:
        """Return whether the thread of the queue works."""
        return self._thread is not None and self._thread.is_alive()

    def processes(self) -> dict[str, int]:
        """Return the process of each job that runs here."""
        return {id_: run.process.pid or 0 for id_, run in list(self._runs.items())}

    # ---- the thread

    def start(self) -> None:
        """Start the thread that gives waiting jobs to worker processes."""
        self._stop.clear()
        self._thread = threading.Thread(target=self._work, name="job queue", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End all processes; their jobs wait again and continue when a server starts."""
        self._stop.set()
        self.wake()
        if self._thread is not None:
            self._thread.join()

    def _work(self) -> None:
        context = multiprocessing.get_context(START_METHOD)
        if START_METHOD == "forkserver":
            context.set_forkserver_preload(list(PRELOADED))
        try:
            while not self._stop.is_set():
                try:
                    self._look(context)
                except SQLAlchemyError as error:  # the database may come back; what is to be written stays known
                    print(f"plan serve: the database does not answer ({type(error).__name__})", file=sys.stderr)
                    self._stop.wait(_RETRY_S)
        finally:
            for run in self._runs.values():
                _kill(run.process)
            with suppress(SQLAlchemyError):
                for run in self._runs.values():
                    self.store.release(run.job, crashed=False)
                self.store.forget_server(self.id)
            self._runs.clear()

    def _look(self, context: Any) -> None:
        """Run one iteration: expire, stop, start, wait for the next event, and read from the processes."""
        now = time.monotonic()
        if now >= self._next_heartbeat_s:
            self._heartbeat()
            self._next_heartbeat_s = now + _HEARTBEAT_S
        if now >= self._next_expiry_s:
            self._expire()
            self._next_expiry_s = now + _EXPIRE_EVERY_S
        self._stop_overdue(now)
        while (job := self._claim()) is not None:
            self._start(job, context)
        waited = [run.connection for run in self._runs.values() if run.outcome is None]
        waited_for: list[Any] = [self._wakeup[0], *waited, *(run.process.sentinel for run in self._runs.values())]
        for ready in wait(waited_for, _TICK_S):
            if ready is self._wakeup[0]:
                self._wakeup[0].recv_bytes()
        for run in list(self._runs.values()):
            self._read(run)
            if run.outcome is not None or not run.process.is_alive():
                self._read(run)
                self._finish(run)

    def _claim(self) -> Job | None:
        """Take a waiting job if there is a place for it; a derived job has a place beyond those of the others."""
        derived = sum(run.job.kind in DERIVED for run in self._runs.values())
        if len(self._runs) < self.settings.n_workers:
            return self.store.claim(self.id, DERIVED, only=False)
        return None if derived else self.store.claim(self.id, DERIVED, only=True)

    def _expire(self) -> None:
        """Delete old jobs and uploads, and the files of those that are gone."""
        before = time.time() - self.settings.file.keep_days * _DAY_S
        self.store.expire(before)
        self.uploads.store.expire(before)
        for folder in (self.settings.folder / "jobs").glob("*"):
            try:
                self.store.job(folder.name)
            except UnknownJobError:
                shutil.rmtree(folder, ignore_errors=True)
        for folder in (self.settings.folder / "files").glob("*"):
            if next(self.uploads.store.chunks(folder.name), None) is None:
                shutil.rmtree(folder, ignore_errors=True)

    def _heartbeat(self) -> None:
        """Record that this server is alive, and take over the jobs of servers that are gone."""
        host, own = socket.gethostname(), process_name(os.getpid())
        self.store.heartbeat(self.id, host, own)
        for id_, where, name, seen in self.store.servers():
            here_and_gone = where == host and name != process_name(int(name.partition(":")[0]))
            if id_ != self.id and (here_and_gone or seen < time.time() - GONE_AFTER_S):
                self.store.forget_server(id_)
        for job in self.store.orphans():
            self._lost(job, "its server was lost")

    def _stop_overdue(self, now: float) -> None:
        """Stop jobs that someone has cancelled, or that have run too long."""
        cancelled = self.store.cancelled(list(self._runs))
        for id_, run in self._runs.items():
            if run.stop_reason is None and id_ in cancelled:
                self._interrupt(run, CANCELLED)
            elif run.stop_reason is None and now - run.started_s > self.settings.file.job_wall_s:
                self._interrupt(run, f"the job runs longer than {self.settings.file.job_wall_s} s")
            elif run.stop_at_s is not None and now > run.stop_at_s:
                _kill(run.process)

    @staticmethod
    def _interrupt(run: _Run, reason: str) -> None:
        run.stop_reason, run.stop_at_s = reason, time.monotonic() + CANCEL_GRACE_S
        with suppress(ProcessLookupError):
            os.kill(run.process.pid or 0, signal.SIGINT)

    def _start(self, job: Job, context: Any) -> None:
        """Start the process of a job in its folder, with its uploads."""
        file = self.settings.file
        try:
            folder = self._folder(job)
            question = self._place(job, folder)
        except OSError as error:  # no space, or no rights
            print(f"plan serve: job {job.id} could not start ({error})", file=sys.stderr)
            text = f"the server cannot write the files of the job: {error.strerror}"
            self.store.finish(job, FAILED, {}, error=problem_details(503, "The job could not start", text))
            return
        except (InputError, UnknownJobError) as error:
            text = str(error) if isinstance(error, InputError) else "the plan of this job was deleted"
            self.store.finish(job, FAILED, {}, error=problem_details(422, INVALID_INPUT, text))
            return
        parent = None if job.parent is None else self.store.artifact(job.parent)
        cores = self.settings.cores_per_job
        memory_mib = None if KINDS[job.kind].uses_device else file.job_memory_mib
        listed = self.settings.endpoints_file and self.settings.endpoints_file.absolute()
        order = JobOrder(job.kind, question, parent, folder, cores, memory_mib, file.job_cpu_s, listed)
        ours, theirs = context.Pipe(duplex=False)
        process = context.Process(target=run_job, args=(order, theirs), name=f"job {job.id}")
        process.start()
        theirs.close()
        self._runs[job.id] = _Run(job, process, ours, time.monotonic())

    def _folder(self, job: Job) -> Path:
        folder = self.settings.folder / "jobs" / job.id
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def _place(self, job: Job, folder: Path) -> dict[str, Any]:
        """Put the uploads of a job into its folder, and return the question with their names."""
        parent = {} if job.parent is None else self.store.job(job.parent).question  # its answer names its files
        files = [self.uploads.find(reference, job.owner) for reference in references([parent, job.question])]
        names = unique_names(files)
        for file in files:
            shutil.copyfile(file.path, folder / names[file.reference])
        question: dict[str, Any] = mapped(job.question, lambda text: names.get(text, text))
        return question

    def _read(self, run: _Run) -> None:
        """Take what the process has sent."""
        try:
            while run.outcome is None and run.connection.poll():
                word, data = run.connection.recv()
                if word == PROGRESS:
                    run.best = data["best"]
                    self.store.write_progress(run.job, data)
                else:
                    run.outcome = data
        except (EOFError, OSError):
            run.process.join(_TICK_S)

    def _finish(self, run: _Run) -> None:
        """Write the end of a job and forget its process."""
        job, outcome = run.job, run.outcome
        run.process.join(1.0)
        _kill(run.process)
        run.connection.close()
        is_kept = False  # the folder: for the next attempt, or for the search for a defect
        if run.stop_reason is not None and (outcome is None or outcome.word != FINISHED):
            self._end_early(run)
        elif outcome is None or outcome.word == INTERRUPTED:
            is_kept = self._lost(job, f"its process ended with status {run.process.exitcode}")
        elif outcome.word == FINISHED:
            self.store.finish(job, DONE, outcome.files, _verdict(outcome))
        elif outcome.word == LIMIT:
            files = outcome.files or _best_so_far(run)
            self.store.finish(job, FAILED, files, _verdict(outcome), problem_details(503, LIMIT_TITLE, outcome.detail))
        elif outcome.word == INVALID:
            self.store.finish(job, FAILED, {}, error=input_details(InputError(*outcome.detail)))
        else:
            is_kept = True
            self.store.finish(job, FAILED, {}, error=problem_details(500, "A defect of the planner", outcome.detail))
        del self._runs[job.id]
        if not is_kept:
            shutil.rmtree(self._folder(job), ignore_errors=True)

    def _end_early(self, run: _Run) -> None:
        """Write the end of a job that this server has stopped, with its best result so far."""
        outcome = run.outcome or JobOutcome(INTERRUPTED)
        files, verdict = outcome.files or _best_so_far(run), _verdict(outcome)
        if run.stop_reason == CANCELLED:
            self.store.finish(run.job, CANCELLED, files, verdict)
        else:
            self.store.finish(run.job, FAILED, files, verdict, problem_details(503, LIMIT_TITLE, str(run.stop_reason)))

    def _lost(self, job: Job, how: str) -> bool:
        """Let a job wait again whose process is gone, and return True; after several crashes it has failed."""
        if job.cancelled:
            self.store.finish(job, CANCELLED, {})
        elif job.crashes < MOST_CRASHES:
            self.store.release(job, crashed=True)
            return True
        else:
            text = f"the process of the job was lost {MOST_CRASHES + 1} times, and {how}"
            self.store.finish(job, FAILED, {}, error=problem_details(500, "The job was lost", text))
        return False


def _verdict(outcome: JobOutcome) -> str | None:
    return None if outcome.verdict is None else "yes" if outcome.verdict else "no"


def _best_so_far(run: _Run) -> dict[str, bytes]:
    """Return the result of a job whose process was killed: the best that it had reported."""
    return {} if run.best is None else {RESULT: json_bytes({"interrupted": True, "best_so_far": run.best})}


def _kill(process: BaseProcess) -> None:
    """End a process and its own worker processes at once."""
    if process.pid is not None and hasattr(os, "killpg"):
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    if process.is_alive():
        process.kill()
    process.join(5.0)


def process_name(pid: int) -> str:
    """Return a name of a process that no later process has: its number, and its start time where the system tells."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
        return f"{pid}:{stat.rpartition(')')[2].split()[19]}"
    except OSError:
        alive = True
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            alive = False
        except PermissionError:
            pass
        return f"{pid}:" if alive and not Path("/proc/self").exists() else ""
