"""The database of jobs: their states, events and results, the uploads, and the servers that share it.

A running job belongs to one attempt of one server. Every change of a running job names its attempt, so a server that
was taken for dead cannot write into a job that another one has taken over.
"""

from __future__ import annotations

import json
import secrets
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.exc import ArgumentError, SQLAlchemyError

from catalogs.errors import InputError
from catalogs.io.http import without_password
from planner.web.settings import SQLITE

QUEUED, RUNNING, DONE, FAILED, CANCELLED = "queued", "running", "done", "failed", "cancelled"

ACTIVE: Final = (QUEUED, RUNNING)

#: Name of the artifact that is the result of a job.
RESULT: Final = "result.json"

_metadata: Final = sa.MetaData()

_jobs: Final = sa.Table(
    "jobs",
    _metadata,
    sa.Column("id", sa.String(32), primary_key=True),
    sa.Column("number", sa.BigInteger, nullable=False, index=True),
    sa.Column("kind", sa.String(32), nullable=False),
    sa.Column("title", sa.Text, nullable=False),
    sa.Column("owner", sa.Text, nullable=False, index=True),
    sa.Column("key", sa.String(64), nullable=False, index=True),
    sa.Column("question", sa.Text, nullable=False),
    sa.Column("status", sa.String(16), nullable=False, index=True),
    sa.Column("created", sa.Float, nullable=False),
    sa.Column("started", sa.Float),
    sa.Column("ended", sa.Float),
    sa.Column("progress", sa.Text),
    sa.Column("verdict", sa.String(8)),
    sa.Column("error", sa.Text),
    sa.Column("parent", sa.String(32)),
    sa.Column("attempt", sa.Integer, nullable=False, default=0),
    sa.Column("losses", sa.Integer, nullable=False, default=0),
    sa.Column("server", sa.String(32)),
    sa.Column("cancelled", sa.Boolean, nullable=False, default=False),
)

_events: Final = sa.Table(
    "events",
    _metadata,
    sa.Column("number", sa.Integer, primary_key=True, autoincrement=True),
    sa.Column("job", sa.String(32), nullable=False, index=True),
    sa.Column("data", sa.Text, nullable=False),
    sqlite_autoincrement=True,
)

_artifacts: Final = sa.Table(
    "artifacts",
    _metadata,
    sa.Column("job", sa.String(32), primary_key=True),
    sa.Column("name", sa.String(64), primary_key=True),
    sa.Column("content", sa.LargeBinary, nullable=False),
)

_uploads: Final = sa.Table(
    "uploads",
    _metadata,
    sa.Column("hash", sa.String(64), primary_key=True),
    sa.Column("owner", sa.Text, primary_key=True),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("kind", sa.String(32), nullable=False),
    sa.Column("bytes", sa.BigInteger, nullable=False),
    sa.Column("created", sa.Float, nullable=False),
)

_chunks: Final = sa.Table(
    "chunks",
    _metadata,
    sa.Column("hash", sa.String(64), primary_key=True),
    sa.Column("number", sa.Integer, primary_key=True),
    sa.Column("content", sa.LargeBinary, nullable=False),
)

_servers: Final = sa.Table(
    "servers",
    _metadata,
    sa.Column("id", sa.String(32), primary_key=True),
    sa.Column("host", sa.Text, nullable=False),
    sa.Column("process", sa.Text, nullable=False),
    sa.Column("seen", sa.Float, nullable=False),
)


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
    losses: int
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
class StoredUpload:
    """One uploaded file, without its content."""

    hash: str
    owner: str
    name: str
    kind: str
    bytes: int
    created: float


class Store:
    """The database at one SQLAlchemy URL; every method is one transaction and may be called from any thread.

    Raises:
        InputError: The URL is not valid, or the database does not answer.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        try:
            if url.startswith(SQLITE):
                Path(url.removeprefix(SQLITE)).absolute().parent.mkdir(parents=True, exist_ok=True)
            driven = url.replace("postgresql://", "postgresql+psycopg://", 1)  # the package of the extra postgresql
            self.engine = sa.create_engine(driven, **({} if url.startswith(SQLITE) else {"pool_pre_ping": True}))
            if url.startswith(SQLITE):
                sa.event.listen(self.engine, "connect", _tune_sqlite)
            _metadata.create_all(self.engine)
        except (ArgumentError, sa.exc.NoSuchModuleError):
            rule = "--store must be the URL of a database"
            raise InputError(
                rule, without_password(url), "sqlite:///jobs.sqlite or postgresql://USER@HOST/DB"
            ) from None
        except ModuleNotFoundError as error:
            hint = "pip install 'llm-capacity-planner[web,postgresql]'"
            raise InputError("this database needs a package that is not installed", error.name, hint=hint) from None
        except (SQLAlchemyError, OSError) as error:
            reason = str(getattr(error, "orig", None) or error).splitlines()[0]
            raise InputError(f"the database of --store does not answer ({reason})", without_password(url)) from None

    def close(self) -> None:
        """Close all connections."""
        self.engine.dispose()

    def check(self) -> None:
        """Read one row, to find out whether the database answers.

        Raises:
            SQLAlchemyError: It does not.
        """
        with self.engine.connect() as connection:
            connection.execute(sa.select(1))

    @contextmanager
    def _writing(self) -> Iterator[sa.Connection]:
        """Yield a connection whose transaction is committed at the end of the block."""
        with self.engine.begin() as connection:
            if self.engine.dialect.name == "sqlite":
                connection.exec_driver_sql("BEGIN IMMEDIATE")
            yield connection

    # ---- jobs

    def add(self, new: NewJob) -> Job:
        """Add a waiting job and return it."""
        now = time.time()
        row = {
            "id": secrets.token_hex(8), "number": time.time_ns(), "kind": new.kind, "title": new.title,
            "owner": new.owner, "key": new.key, "question": json.dumps(new.question), "status": QUEUED,
            "created": now, "parent": new.parent, "attempt": 0, "losses": 0, "cancelled": False,
        }  # fmt: skip
        with self._writing() as connection:
            connection.execute(_jobs.insert().values(row))
        return self.job(str(row["id"]))

    def job(self, id_: str) -> Job:
        """Return a job.

        Raises:
            KeyError: There is no such job.
        """
        with self.engine.connect() as connection:
            row = connection.execute(sa.select(_jobs).where(_jobs.c.id == id_)).one_or_none()
        if row is None:
            raise KeyError(id_)
        return _job(row)

    def jobs(
        self, owner: str | None, limit: int, kind: str | None = None, without: Sequence[str] = (), before: int = 0
    ) -> list[Job]:
        """Return jobs, newest first: of one owner or of all, of one kind or of all kinds except `without`."""
        query = sa.select(_jobs).order_by(_jobs.c.number.desc()).limit(limit)
        if owner is not None:
            query = query.where(_jobs.c.owner == owner)
        if kind is not None:
            query = query.where(_jobs.c.kind == kind)
        if without:
            query = query.where(_jobs.c.kind.not_in(without))
        if before:
            query = query.where(_jobs.c.number < before)
        with self.engine.connect() as connection:
            return [_job(row) for row in connection.execute(query)]

    def found(self, owner: str, key: str) -> Job | None:
        """Return the last job of an owner with this key that is waiting, running or done; None if there is none."""
        query = sa.select(_jobs).where(_jobs.c.owner == owner, _jobs.c.key == key, ~_jobs.c.cancelled)
        query = query.where(_jobs.c.status.in_((*ACTIVE, DONE))).order_by(_jobs.c.number.desc()).limit(1)
        with self.engine.connect() as connection:
            row = connection.execute(query).one_or_none()
        return None if row is None else _job(row)

    def counts(self, owner: str | None = None) -> dict[str, int]:
        """Return the number of jobs by status, of one owner or of all."""
        query = sa.select(_jobs.c.status, sa.func.count()).group_by(_jobs.c.status)
        if owner is not None:
            query = query.where(_jobs.c.owner == owner)
        with self.engine.connect() as connection:
            return {str(status): int(n) for status, n in connection.execute(query)}

    def claim(self, server: str, first_kinds: Sequence[str], only: bool) -> Job | None:
        """Take the first waiting job for a server and return it; None if none is waiting.

        Args:
            server: Id of the server.
            first_kinds: Kinds of jobs that are taken before others.
            only: Whether no other kinds are taken.
        """
        preferred = _jobs.c.kind.in_(first_kinds)
        first = sa.select(_jobs.c.id).where(_jobs.c.status == QUEUED).limit(1)
        first = first.where(preferred) if only else first
        first = first.order_by(sa.case((preferred, 0), else_=1), _jobs.c.number)
        if self.engine.dialect.name == "postgresql":
            first = first.with_for_update(skip_locked=True)
        taken = {"status": RUNNING, "server": server, "attempt": _jobs.c.attempt + 1, "started": time.time()}
        here = sa.and_(_jobs.c.id == first.scalar_subquery(), _jobs.c.status == QUEUED)
        with self._writing() as connection:
            row = connection.execute(_jobs.update().where(here).values(taken).returning(*_jobs.c)).one_or_none()
        return None if row is None else _job(row)

    def release(self, job: Job, lost: bool) -> None:
        """Let a running job wait again, for the next free server; `lost` counts the loss of its process."""
        with self._writing() as connection:
            values = {"status": QUEUED, "server": None, "started": None, "losses": job.losses + lost}
            connection.execute(_jobs.update().where(_of_attempt(job)).values(values))

    def request_cancel(self, id_: str) -> Job:
        """Ask for the end of a job: a waiting one ends at once, a running one when its server sees the request."""
        now = time.time()
        with self._writing() as connection:
            waiting = _jobs.update().where(_jobs.c.id == id_, _jobs.c.status == QUEUED)
            connection.execute(waiting.values(status=CANCELLED, cancelled=True, ended=now))
            running = _jobs.update().where(_jobs.c.id == id_, _jobs.c.status == RUNNING)
            connection.execute(running.values(cancelled=True))
        return self.job(id_)

    def cancelled(self, ids: Sequence[str]) -> set[str]:
        """Return which of these jobs someone has asked to end."""
        if not ids:
            return set()
        with self.engine.connect() as connection:
            query = sa.select(_jobs.c.id).where(_jobs.c.id.in_(ids), _jobs.c.cancelled)
            return set(connection.execute(query).scalars())

    def delete(self, id_: str) -> None:
        """Delete a job that is not active, with its events and results."""
        with self._writing() as connection:
            self._delete(connection, [id_])

    @staticmethod
    def _delete(connection: sa.Connection, ids: Sequence[str]) -> None:
        ended = _jobs.c.status.not_in(ACTIVE)
        gone = connection.execute(_jobs.delete().where(_jobs.c.id.in_(ids), ended).returning(_jobs.c.id)).scalars()
        gone_ids = list(gone)
        connection.execute(_events.delete().where(_events.c.job.in_(gone_ids)))
        connection.execute(_artifacts.delete().where(_artifacts.c.job.in_(gone_ids)))

    def write_progress(self, job: Job, progress: Mapping[str, Any]) -> None:
        """Set the progress of a running job and add it to its events."""
        data = json.dumps(progress)
        with self._writing() as connection:
            done = connection.execute(_jobs.update().where(_of_attempt(job)).values(progress=data))
            if done.rowcount:
                connection.execute(_events.insert().values(job=job.id, data=data))

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
        with self._writing() as connection:
            done = connection.execute(_jobs.update().where(_of_attempt(job)).values(values))
            if not done.rowcount:
                return False
            for name, content in packed:
                connection.execute(_artifacts.insert().values(job=job.id, name=name, content=content))
        return True

    def events(self, id_: str, after: int) -> list[tuple[int, str]]:
        """Return the events of a job after a number, as pairs of number and JSON text."""
        query = sa.select(_events.c.number, _events.c.data).where(_events.c.job == id_, _events.c.number > after)
        with self.engine.connect() as connection:
            return [(int(number), str(data)) for number, data in connection.execute(query.order_by(_events.c.number))]

    def artifact(self, id_: str, name: str = RESULT) -> bytes | None:
        """Return a result of a job; None if it has none of this name."""
        query = sa.select(_artifacts.c.content).where(_artifacts.c.job == id_, _artifacts.c.name == name)
        with self.engine.connect() as connection:
            content = connection.execute(query).scalar_one_or_none()
        return None if content is None else zlib.decompress(content)

    def artifact_names(self, ids: Sequence[str]) -> dict[str, list[str]]:
        """Return the names of the results of several jobs, by job."""
        found: dict[str, list[str]] = {id_: [] for id_ in ids}
        query = sa.select(_artifacts.c.job, _artifacts.c.name).where(_artifacts.c.job.in_(ids))
        with self.engine.connect() as connection:
            for id_, name in connection.execute(query.order_by(_artifacts.c.name)):
                found[id_].append(name)
        return found

    def expire(self, before: float) -> int:
        """Delete jobs that ended before a time, and uploads that are older and that no job uses; return the jobs."""
        with self._writing() as connection:
            old = sa.select(_jobs.c.id).where(_jobs.c.ended < before)
            ids = list(connection.execute(old).scalars())
            self._delete(connection, ids)
            for row in connection.execute(sa.select(_uploads).where(_uploads.c.created < before)).all():
                used = _jobs.c.question.contains(f"upload:{row.hash}")
                if connection.execute(sa.select(_jobs.c.id).where(used).limit(1)).first() is None:
                    connection.execute(
                        _uploads.delete().where(_uploads.c.hash == row.hash, _uploads.c.owner == row.owner)
                    )
            kept = sa.select(_uploads.c.hash)
            connection.execute(_chunks.delete().where(_chunks.c.hash.not_in(kept)))
        return len(ids)

    # ---- uploads

    def add_upload(self, upload: StoredUpload, chunks: Iterator[bytes]) -> None:
        """Add a file in chunks; the content of a file that another user uploaded before is stored once."""
        with self._writing() as connection:
            known = sa.select(_chunks.c.number).where(_chunks.c.hash == upload.hash).limit(1)
            if connection.execute(known).first() is None:
                for number, content in enumerate(chunks):
                    packed = zlib.compress(content, 1)
                    connection.execute(_chunks.insert().values(hash=upload.hash, number=number, content=packed))
            same = sa.and_(_uploads.c.hash == upload.hash, _uploads.c.owner == upload.owner)
            connection.execute(_uploads.delete().where(same))
            values = {name: getattr(upload, name) for name in StoredUpload.__slots__}
            connection.execute(_uploads.insert().values(values))

    def upload(self, hash_: str, owner: str) -> StoredUpload | None:
        """Return an uploaded file of a user; None if the user has not uploaded it."""
        query = sa.select(_uploads).where(_uploads.c.hash == hash_, _uploads.c.owner == owner)
        with self.engine.connect() as connection:
            row = connection.execute(query).one_or_none()
        return None if row is None else StoredUpload(**row._asdict())

    def upload_bytes(self) -> int:
        """Return the size of all uploads together, bytes."""
        with self.engine.connect() as connection:
            return int(connection.execute(sa.select(sa.func.coalesce(sa.func.sum(_uploads.c.bytes), 0))).scalar_one())

    def chunks(self, hash_: str) -> Iterator[bytes]:
        """Yield the content of an uploaded file in chunks."""
        query = sa.select(_chunks.c.content).where(_chunks.c.hash == hash_).order_by(_chunks.c.number)
        with self.engine.connect() as connection:
            for content in connection.execute(query).scalars():
                yield zlib.decompress(content)

    # ---- servers

    def heartbeat(self, server: str, host: str, process: str) -> None:
        """Record that a server is alive."""
        with self._writing() as connection:
            seen = _servers.update().where(_servers.c.id == server).values(seen=time.time())
            if not connection.execute(seen).rowcount:
                connection.execute(_servers.insert().values(id=server, host=host, process=process, seen=time.time()))

    def servers(self) -> list[tuple[str, str, str, float]]:
        """Return every server as (id, host, process, time of the last heartbeat)."""
        with self.engine.connect() as connection:
            query = sa.select(_servers.c.id, _servers.c.host, _servers.c.process, _servers.c.seen)
            return [(str(i), str(host), str(name), float(seen)) for i, host, name, seen in connection.execute(query)]

    def forget_server(self, server: str) -> None:
        """Delete a server that is gone; the jobs that it ran have no server then."""
        with self._writing() as connection:
            connection.execute(_servers.delete().where(_servers.c.id == server))

    def orphans(self) -> list[Job]:
        """Return the running jobs whose server is gone."""
        alive = sa.select(_servers.c.id)
        query = sa.select(_jobs).where(_jobs.c.status == RUNNING, _jobs.c.server.not_in(alive))
        with self.engine.connect() as connection:
            return [_job(row) for row in connection.execute(query)]


def _of_attempt(job: Job) -> sa.ColumnElement[bool]:
    """Return the condition that a job is still running in the attempt that the caller knows."""
    return sa.and_(_jobs.c.id == job.id, _jobs.c.attempt == job.attempt, _jobs.c.status == RUNNING)


def _job(row: sa.Row[Any]) -> Job:
    values = row._asdict()
    for name in ("question", "progress", "error"):
        values[name] = None if values[name] is None else json.loads(values[name])
    return Job(**values)


def _tune_sqlite(connection: Any, _: object) -> None:
    """Let readers and a writer work at the same time, and let writers wait for each other."""
    connection.isolation_level = None  # the store begins its transactions itself
    cursor = connection.cursor()
    for pragma in ("journal_mode=WAL", "synchronous=NORMAL", "busy_timeout=30000"):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()
