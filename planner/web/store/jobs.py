"""The jobs in the database, with their states, events and results, and the servers that run them.

A running job belongs to one attempt of one server. Every change of a running job names its attempt, so a server that
was taken for dead cannot write into a job that another one has taken over.
"""

from __future__ import annotations

import json
import secrets
import time
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import sqlalchemy as sa

from planner.web.store.database import Database
from planner.web.store.tables import ARTIFACTS, EVENTS, JOBS, SERVERS

QUEUED, RUNNING, DONE, FAILED, CANCELLED = "queued", "running", "done", "failed", "cancelled"

ACTIVE: Final = (QUEUED, RUNNING)

#: Name of the artifact that is the result of a job.
RESULT: Final = "result.json"


class UnknownJobError(LookupError):
    """There is no job of this id: there never was one, or another request has deleted it."""


@dataclass(frozen=True, slots=True)
class Job:
    """One job as stored; times are seconds since 1970."""

    id: str
    number: int
    kind: str
    title: str
    owner: str
    key: str
    question: dict[str, Any]
    status: str
    created: float
    started: float | None
    ended: float | None
    progress: dict[str, Any] | None
    verdict: str | None
    error: dict[str, Any] | None
    parent: str | None
    attempt: int
    crashes: int
    server: str | None
    cancelled: bool

    @property
    def is_active(self) -> bool:
        """Return whether the job is waiting or running."""
        return self.status in ACTIVE


@dataclass(frozen=True, slots=True)
class NewJob:
    """A job to add: its kind, title, owner, the key of its result, its question, and the job that it is about."""

    kind: str
    title: str
    owner: str
    key: str
    question: Mapping[str, Any]
    parent: str | None = None


@dataclass(frozen=True, slots=True)
class JobStore:
    """The jobs in a database; every method is one transaction and may be called from any thread."""

    database: Database

    def add(self, new: NewJob) -> Job:
        """Add a waiting job and return it."""
        now = time.time()
        row = {
            "id": secrets.token_hex(8), "number": time.time_ns(), "kind": new.kind, "title": new.title,
            "owner": new.owner, "key": new.key, "question": json.dumps(new.question), "status": QUEUED,
            "created": now, "parent": new.parent, "attempt": 0, "crashes": 0, "cancelled": False,
        }  # fmt: skip
        with self.database.writing() as connection:
            connection.execute(JOBS.insert().values(row))
        return self.job(str(row["id"]))

    def job(self, id_: str) -> Job:
        """Return a job.

        Raises:
            UnknownJobError: There is no such job.
        """
        with self.database.reading() as connection:
            row = connection.execute(sa.select(JOBS).where(JOBS.c.id == id_)).one_or_none()
        if row is None:
            raise UnknownJobError(id_)
        return _job(row)

    def jobs(
        self, owner: str | None, limit: int, kind: str | None = None, without: Sequence[str] = (), before: int = 0
    ) -> list[Job]:
        """Return jobs, newest first: of one owner or of all, of one kind or of all kinds except `without`."""
        query = sa.select(JOBS).order_by(JOBS.c.number.desc()).limit(limit)
        if owner is not None:
            query = query.where(JOBS.c.owner == owner)
        if kind is not None:
            query = query.where(JOBS.c.kind == kind)
        if without:
            query = query.where(JOBS.c.kind.not_in(without))
        if before:
            query = query.where(JOBS.c.number < before)
        with self.database.reading() as connection:
            return [_job(row) for row in connection.execute(query)]

    def find_by_key(self, owner: str, key: str) -> Job | None:
        """Return the last job of an owner with this key that is waiting, running or done; None if there is none."""
        query = sa.select(JOBS).where(JOBS.c.owner == owner, JOBS.c.key == key, ~JOBS.c.cancelled)
        query = query.where(JOBS.c.status.in_((*ACTIVE, DONE))).order_by(JOBS.c.number.desc()).limit(1)
        with self.database.reading() as connection:
            row = connection.execute(query).one_or_none()
        return None if row is None else _job(row)

    def counts(self, owner: str | None = None) -> dict[str, int]:
        """Return the number of jobs by status, of one owner or of all."""
        query = sa.select(JOBS.c.status, sa.func.count()).group_by(JOBS.c.status)
        if owner is not None:
            query = query.where(JOBS.c.owner == owner)
        with self.database.reading() as connection:
            return {str(status): int(n) for status, n in connection.execute(query)}

    def claim(self, server: str, first_kinds: Sequence[str], only: bool) -> Job | None:
        """Take the first waiting job for a server and return it; None if none is waiting.

        Args:
            server: Id of the server.
            first_kinds: Kinds of jobs that are taken before others.
            only: Whether no other kinds are taken.
        """
        preferred = JOBS.c.kind.in_(first_kinds)
        first = sa.select(JOBS.c.id).where(JOBS.c.status == QUEUED).limit(1)
        first = first.where(preferred) if only else first
        first = first.order_by(sa.case((preferred, 0), else_=1), JOBS.c.number)
        if self.database.engine.dialect.name == "postgresql":
            first = first.with_for_update(skip_locked=True)
        taken = {"status": RUNNING, "server": server, "attempt": JOBS.c.attempt + 1, "started": time.time()}
        here = sa.and_(JOBS.c.id == first.scalar_subquery(), JOBS.c.status == QUEUED)
        with self.database.writing() as connection:
            row = connection.execute(JOBS.update().where(here).values(taken).returning(*JOBS.c)).one_or_none()
        return None if row is None else _job(row)

    def release(self, job: Job, crashed: bool) -> None:
        """Let a running job wait again, for the next free server; `crashed` counts the crash of its process."""
        with self.database.writing() as connection:
            values = {"status": QUEUED, "server": None, "started": None, "crashes": job.crashes + crashed}
            connection.execute(JOBS.update().where(_of_attempt(job)).values(values))

    def request_cancel(self, id_: str) -> Job:
        """Ask for the end of a job: a waiting one ends at once, a running one when its server sees the request.

        Raises:
            UnknownJobError: There is no such job, or it was deleted meanwhile.
        """
        now = time.time()
        with self.database.writing() as connection:
            waiting = JOBS.update().where(JOBS.c.id == id_, JOBS.c.status == QUEUED)
            connection.execute(waiting.values(status=CANCELLED, cancelled=True, ended=now))
            running = JOBS.update().where(JOBS.c.id == id_, JOBS.c.status == RUNNING)
            connection.execute(running.values(cancelled=True))
        return self.job(id_)

    def cancelled(self, ids: Sequence[str]) -> set[str]:
        """Return which of these jobs someone has asked to end."""
        if not ids:
            return set()
        with self.database.reading() as connection:
            query = sa.select(JOBS.c.id).where(JOBS.c.id.in_(ids), JOBS.c.cancelled)
            return set(connection.execute(query).scalars())

    def delete(self, id_: str) -> None:
        """Delete a job that is not active, with its events and results."""
        with self.database.writing() as connection:
            self._delete(connection, [id_])

    @staticmethod
    def _delete(connection: sa.Connection, ids: Sequence[str]) -> None:
        ended = JOBS.c.status.not_in(ACTIVE)
        gone = connection.execute(JOBS.delete().where(JOBS.c.id.in_(ids), ended).returning(JOBS.c.id)).scalars()
        gone_ids = list(gone)
        connection.execute(EVENTS.delete().where(EVENTS.c.job.in_(gone_ids)))
        connection.execute(ARTIFACTS.delete().where(ARTIFACTS.c.job.in_(gone_ids)))

    def write_progress(self, job: Job, progress: Mapping[str, Any]) -> None:
        """Set the progress of a running job and add it to its events."""
        data = json.dumps(progress)
        with self.database.writing() as connection:
            done = connection.execute(JOBS.update().where(_of_attempt(job)).values(progress=data))
            if done.rowcount:
                connection.execute(EVENTS.insert().values(job=job.id, data=data))

    def finish(
        self,
        job: Job,
        status: str,
        artifacts: Mapping[str, bytes],
        verdict: str | None = None,
        error: Mapping[str, Any] | None = None,
    ) -> bool:
        """End a running job with its results, and return whether it was still running in this attempt."""
        values = {"status": status, "verdict": verdict, "ended": time.time()}
        values["error"] = None if error is None else json.dumps(error)
        packed = [(name, zlib.compress(content, 6)) for name, content in artifacts.items()]
        with self.database.writing() as connection:
            done = connection.execute(JOBS.update().where(_of_attempt(job)).values(values))
            if not done.rowcount:
                return False
            for name, content in packed:
                connection.execute(ARTIFACTS.insert().values(job=job.id, name=name, content=content))
        return True

    def events(self, id_: str, after: int) -> list[tuple[int, str]]:
        """Return the events of a job after a number, as pairs of number and JSON text."""
        query = sa.select(EVENTS.c.number, EVENTS.c.data).where(EVENTS.c.job == id_, EVENTS.c.number > after)
        with self.database.reading() as connection:
            return [(int(number), str(data)) for number, data in connection.execute(query.order_by(EVENTS.c.number))]

    def artifact(self, id_: str, name: str = RESULT) -> bytes | None:
        """Return a result of a job; None if it has none of this name."""
        query = sa.select(ARTIFACTS.c.content).where(ARTIFACTS.c.job == id_, ARTIFACTS.c.name == name)
        with self.database.reading() as connection:
            content = connection.execute(query).scalar_one_or_none()
        return None if content is None else zlib.decompress(content)

    def artifact_names(self, ids: Sequence[str]) -> dict[str, list[str]]:
        """Return the names of the results of several jobs, by job."""
        found: dict[str, list[str]] = {id_: [] for id_ in ids}
        query = sa.select(ARTIFACTS.c.job, ARTIFACTS.c.name).where(ARTIFACTS.c.job.in_(ids))
        with self.database.reading() as connection:
            for id_, name in connection.execute(query.order_by(ARTIFACTS.c.name)):
                found[id_].append(name)
        return found

    def expire(self, before: float) -> int:
        """Delete jobs that ended before a time, with their events and results, and return their number."""
        with self.database.writing() as connection:
            ids = list(connection.execute(sa.select(JOBS.c.id).where(JOBS.c.ended < before)).scalars())
            self._delete(connection, ids)
        return len(ids)

    # ---- servers

    def heartbeat(self, server: str, host: str, process: str) -> None:
        """Record that a server is alive."""
        with self.database.writing() as connection:
            seen = SERVERS.update().where(SERVERS.c.id == server).values(seen=time.time())
            if not connection.execute(seen).rowcount:
                connection.execute(SERVERS.insert().values(id=server, host=host, process=process, seen=time.time()))

    def servers(self) -> list[tuple[str, str, str, float]]:
        """Return every server as (id, host, process, time of the last heartbeat)."""
        with self.database.reading() as connection:
            query = sa.select(SERVERS.c.id, SERVERS.c.host, SERVERS.c.process, SERVERS.c.seen)
            return [(str(i), str(host), str(name), float(seen)) for i, host, name, seen in connection.execute(query)]

    def forget_server(self, server: str) -> None:
        """Delete a server that is gone; the jobs that it ran have no server then."""
        with self.database.writing() as connection:
            connection.execute(SERVERS.delete().where(SERVERS.c.id == server))

    def orphans(self) -> list[Job]:
        """Return the running jobs whose server is gone."""
        alive = sa.select(SERVERS.c.id)
        query = sa.select(JOBS).where(JOBS.c.status == RUNNING, JOBS.c.server.not_in(alive))
        with self.database.reading() as connection:
            return [_job(row) for row in connection.execute(query)]


def _of_attempt(job: Job) -> sa.ColumnElement[bool]:
    """Return the condition that a job is still running in the attempt that the caller knows."""
    return sa.and_(JOBS.c.id == job.id, JOBS.c.attempt == job.attempt, JOBS.c.status == RUNNING)


def _job(row: sa.Row[Any]) -> Job:
    values = row._asdict()
    for name in ("question", "progress", "error"):
        values[name] = None if values[name] is None else json.loads(values[name])
    return Job(**values)
